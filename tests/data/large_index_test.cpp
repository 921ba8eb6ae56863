// Datasets with many documents: which parts of the index are read on opening and at the start of an epoch.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <limits>
#include <memory>

#include "data/epoch_permutation.h"
#include "data/index_layout.h"
#include "data/indexed_dataset.h"
#include "data/sampler.h"
#include "data_testing.h"

namespace te {
namespace {

/// Writes an index of documents with 1 to 2 * mean - 1 tokens, and a sparse .bin.
void write_large_dataset(const std::string& prefix, int64_t documents, int32_t mean) {
  std::FILE* file = std::fopen((prefix + ".idx").c_str(), "wb");
  ASSERT_NE(file, nullptr);
  const auto length_of = [&](int64_t i) {
    return 1 + static_cast<int32_t>(static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15ull >> 40) % (2 * mean - 1);
  };
  const uint64_t counts[] = {static_cast<uint64_t>(documents), static_cast<uint64_t>(documents) + 1};
  std::fwrite(data::kIndexMagic, 1, sizeof(data::kIndexMagic), file);
  std::fwrite(&data::kIndexVersion, 8, 1, file);
  std::fputc(static_cast<int>(data::TokenType::kU16), file);
  std::fwrite(counts, 8, 2, file);
  int64_t position = 0;
  for (int64_t i = 0; i < documents; ++i) {
    const int32_t length = length_of(i);
    std::fwrite(&length, 4, 1, file);
  }
  for (int64_t i = 0; i < documents; ++i) {
    std::fwrite(&position, 8, 1, file);
    position += 2 * length_of(i);
  }
  for (int64_t i = 0; i <= documents; ++i) std::fwrite(&i, 8, 1, file);
  ASSERT_EQ(std::fclose(file), 0);
  const int tokens = ::open((prefix + ".bin").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  ASSERT_EQ(::ftruncate(tokens, position), 0);
  ::close(tokens);
}

// Prints times without checking them: TE_LARGE_INDEX_DOCUMENTS=200000000 test_data --gtest_also_run_disabled_tests
// --gtest_filter='*PrintsTimes' creates an index of 4 GB in the folder of temporary files.
TEST(LargeIndex, DISABLED_PrintsTimes) {
  testing::TextFolder folder;
  const char* wanted = std::getenv("TE_LARGE_INDEX_DOCUMENTS");
  const int64_t documents = wanted != nullptr ? std::atoll(wanted) : 1000000;
  write_large_dataset(folder / "a", documents, 64);
  auto before = std::chrono::steady_clock::now();
  std::clock_t processor = std::clock();
  const auto lap = [&](const char* what) {
    const auto now = std::chrono::steady_clock::now();
    std::printf("%-28s %8.3f s, %8.3f s of CPU time\n", what,
                std::chrono::duration<double>(now - before).count(),
                static_cast<double>(std::clock() - processor) / CLOCKS_PER_SEC);
    std::fflush(stdout);
    before = now;
    processor = std::clock();
  };
  const auto source =
      data::make_indexed_source({{1.0, folder / "a"}}, {.seq_length = 2048, .vocab_size = 65536, .seed = 1});
  lap("opened");
  const int64_t samples = (documents * 64 - documents) / 2048;  // an epoch has slightly more
  source->batch(0, 1);
  lap("first sample");
  source->batch(samples / 2, 1);
  lap("another sample of the epoch");
  source->batch(samples * 3 / 2, 1);
  lap("first sample of epoch 2");
}

/// Resident bytes of a mapped file in this process.
int64_t touched_bytes(const std::string& path) {
  std::ifstream maps("/proc/self/smaps");
  int64_t bytes = 0;
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(' ')) inside = line.ends_with(path);
    if (inside && line.starts_with("Rss:")) bytes += std::atoll(line.c_str() + 4) * 1024;
  }
  return bytes;
}

// The limits are generous because the kernel maps additional pages around each page that is read.
TEST(LargeIndex, OpeningDoesNotReadTheIndex) {
  testing::TextFolder folder;
  constexpr int64_t kDocuments = 3000000;
  write_large_dataset(folder / "a", kDocuments, 64);
  const std::string index = folder / "a.idx";
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(index));
  ASSERT_GT(bytes, 59000000);
  const data::IndexedSourceOptions options{.seq_length = 64, .vocab_size = 65536, .seed = 1};
  {
    const auto source = data::make_indexed_source({{1.0, folder / "a"}}, options);
    EXPECT_FALSE(source->describe().empty());
    EXPECT_GT(touched_bytes(index), 0);
    EXPECT_LT(touched_bytes(index), bytes / 50);
  }
  data::IndexedSourceOptions in_order = options;
  in_order.shuffle = false;
  const auto source = data::make_indexed_source({{1.0, folder / "a"}}, in_order);
  for (const int64_t sample : {int64_t{0}, source->num_samples() / 3, source->num_samples() - 1})
    source->batch(sample, 1);
  EXPECT_LT(touched_bytes(index), bytes / 5);
}

// In the order of an epoch, each document would cost cache misses or disk reads.
TEST(LargeIndex, AnEpochReadsLengthsOnceInTheOrderOfTheFile) {
  for (const int64_t size : {1, 63, 64, 65, 255, 256, 257, 5000}) {
    const data::Permutation order(size, 11, 2);
    const auto length_of = [](int64_t item) { return item * 7919 % 83; };
    int64_t next = 0;
    const std::vector<int64_t> starts =
        data::block_starts(order, 64, [&](int64_t first, std::span<int64_t> lengths) {
          EXPECT_EQ(first, next);
          for (int64_t& length : lengths) length = length_of(next++);
        });
    EXPECT_EQ(next, size);
    std::vector<int64_t> expected;
    int64_t position = 0;
    for (int64_t i = 0; i < size; ++i) {
      if (i % 64 == 0) expected.push_back(position);
      position += length_of(order(i));
    }
    expected.push_back(position);
    EXPECT_EQ(starts, expected) << size;
  }
}

class DamagedIndex : public ::testing::Test {
 protected:
  static constexpr int64_t kDocuments = 5000;
  DamagedIndex() { write_large_dataset(folder_ / "a", kDocuments, 20); }
  template <class Value>
  void overwrite(int64_t at, Value value) const {
    std::string index = testing::read_file(folder_ / "a.idx");
    std::memcpy(index.data() + at, &value, sizeof(value));
    testing::write_file(folder_ / "a.idx", index);
  }
  std::unique_ptr<data::BatchSource> open(bool shuffle) const {
    return data::make_indexed_source({{1.0, folder_ / "a"}},
                                     {.seq_length = 32, .vocab_size = 65536, .seed = 1, .shuffle = shuffle});
  }
  /// Offsets of the numbers in the index.
  static int64_t length_at(int64_t sequence) { return 34 + 4 * sequence; }
  static int64_t pointer_at(int64_t sequence) { return 34 + 4 * kDocuments + 8 * sequence; }
  static int64_t mark_at(int64_t document) { return 34 + 12 * kDocuments + 8 * document; }
  /// Expects that the dataset opens, and that each reader reports the damage when it reads the damaged part, not
  /// before.
  void expect_reported(const std::string& part) const {
    TE_EXPECT_CONTAINS(testing::user_error_of([&] { open(true)->batch(0, 1); }), part);
    const auto in_order = open(false);
    in_order->batch(0, 20);
    TE_EXPECT_CONTAINS(testing::user_error_of([&] { in_order->batch(0, in_order->num_samples()); }),
                       "a.idx: ");
    const data::IndexedDataset dataset(folder_ / "a");
    TE_EXPECT_CONTAINS(testing::user_error_of([&] { dataset.check_documents(); }), part);
    TE_EXPECT_CONTAINS(testing::user_error_of([&] { dataset.check_all(); }), "a.idx: ");
  }
  testing::TextFolder folder_;
};

TEST_F(DamagedIndex, IsReportedWhenItIsRead) {
  overwrite(length_at(3000), int32_t{-1});
  expect_reported("a.idx: sequence 3000 has length -1");
  write_large_dataset(folder_ / "a", kDocuments, 20);
  overwrite(length_at(3000), int32_t{1000});
  expect_reported("a.idx: sequence 3001 starts at byte");
  for (const int64_t pointer : {int64_t{-2}, int64_t{7}, int64_t{1} << 62,
                                std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}) {
    write_large_dataset(folder_ / "a", kDocuments, 20);
    overwrite(pointer_at(3000), pointer);
    expect_reported("a.idx: sequence 3000 starts at byte " + std::to_string(pointer) +
                    ", which is not the start of a token");
  }
  write_large_dataset(folder_ / "a", kDocuments, 20);
  overwrite(pointer_at(3000), int64_t{8});
  expect_reported("a.idx: sequence 3000 starts at byte 8, but the previous one ends at");
  for (const int64_t mark : {int64_t{-1}, kDocuments + 1, int64_t{5}, std::numeric_limits<int64_t>::max()}) {
    write_large_dataset(folder_ / "a", kDocuments, 20);
    overwrite(mark_at(3000), mark);
    expect_reported("a.idx: document 3000 starts at sequence " + std::to_string(mark));
  }
}

// Only the first and last sequence of a document determine its position.
TEST_F(DamagedIndex, BothEndsOfADocumentOfSeveralSequencesAreChecked) {
  overwrite(mark_at(1000), int64_t{1002});
  overwrite(mark_at(1001), int64_t{1002});
  data::IndexedDataset(folder_ / "a").check_all();
  const std::string good = testing::read_file(folder_ / "a.idx");
  overwrite(length_at(1000), int32_t{1000});
  const data::IndexedDataset dataset(folder_ / "a");
  dataset.check_documents();
  TE_EXPECT_CONTAINS(testing::user_error_of([&] { dataset.check_all(); }), "sequence 1001 starts at byte");
  for (const int64_t at : {length_at(999), length_at(1001)}) {
    testing::write_file(folder_ / "a.idx", good);
    overwrite(at, int32_t{1000});
    EXPECT_NE(testing::user_error_of([&] { data::IndexedDataset(folder_ / "a").check_documents(); }), "");
  }
}

TEST_F(DamagedIndex, OpeningChecksBothEnds) {
  const auto expect_refused = [&](const std::string& part) {
    TE_EXPECT_CONTAINS(testing::user_error_of([&] { open(true); }), part);
    write_large_dataset(folder_ / "a", kDocuments, 20);
  };
  overwrite(mark_at(0), int64_t{1});
  expect_refused("a.idx: document 0 starts at sequence 1");
  overwrite(mark_at(kDocuments), kDocuments - 1);
  expect_refused("a.idx: the documents end at sequence 4999 of 5000");
  overwrite(pointer_at(0), int64_t{2});
  expect_refused("a.idx: sequence 0 starts at byte 2");
  overwrite(pointer_at(kDocuments - 1), std::numeric_limits<int64_t>::max());
  expect_refused("a.bin: has");
  overwrite(length_at(kDocuments - 1), int32_t{-5});
  expect_refused("a.bin: has");
}

}  // namespace
}  // namespace te
