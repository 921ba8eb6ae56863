// Lookup of mapped files by address, and the error when one shrinks.
#include "core/mapped_region.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

namespace te {
namespace {

TEST(MappedRegion, IsFoundByAddressUntilDestruction) {
  const char bytes[30] = {};
  EXPECT_EQ(MappedRegion::find(bytes), nullptr);
  auto first = std::make_unique<MappedRegion>(bytes, 10, "first");
  auto second = std::make_unique<MappedRegion>(bytes + 10, 10, "second");
  auto third = std::make_unique<MappedRegion>(bytes + 20, 10, "third");
  EXPECT_EQ(MappedRegion::find(bytes), first.get());
  EXPECT_EQ(MappedRegion::find(bytes + 9), first.get());
  EXPECT_EQ(MappedRegion::find(bytes + 10), second.get());
  second.reset();
  EXPECT_EQ(MappedRegion::find(bytes + 10), nullptr);
  EXPECT_EQ(MappedRegion::find(bytes + 29), third.get());
  first.reset();
  third.reset();
  EXPECT_EQ(MappedRegion::find(bytes), nullptr);
}

/// Maps a file, truncates it to zero bytes and reads from it; `known`: with the mapping registered.
void read_truncated_file(bool known) {
  std::FILE* unnamed = std::tmpfile();
  const int file = unnamed != nullptr ? ::fileno(unnamed) : -1;
  if (file < 0 || ::ftruncate(file, 100) != 0) std::abort();
  void* address = ::mmap(nullptr, 100, PROT_READ, MAP_SHARED, file, 0);
  const MappedRegion other(&unnamed, 1, "another");
  std::unique_ptr<MappedRegion> region;
  if (known) region = std::make_unique<MappedRegion>(address, 100, "data/books.bin");
  if (::ftruncate(file, 0) != 0) std::abort();
  ::_exit(*static_cast<volatile char*>(address));
}

TEST(MappedRegion, ErrorNamesTheFileThatShrank) {
  EXPECT_EXIT(read_truncated_file(true), ::testing::ExitedWithCode(2),
              "error: data/books.bin: became shorter while it was in use");
  // An unregistered file ends the process by the signal or by a sanitizer, not by the region's handler.
  EXPECT_EXIT(
      read_truncated_file(false), [](int status) { return !(WIFEXITED(status) && WEXITSTATUS(status) == 2); },
      "");
}

}  // namespace
}  // namespace te
