// Files that options name: complete or not at all, and an error with a reason.
#include "common/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdlib>

#include "testing/eventually.h"
#include "testing/files.h"
#include "testing/temporary_folder.h"

namespace te::apps {
namespace {

namespace fs = std::filesystem;
using testing::read_file;
using testing::user_error_of;
using testing::write_file;

void write(const std::string& path, const std::string& text) {
  OutputFile file("--json", path);
  file.write(text);
  file.finish();
}

TEST(OutputFile, OldContentStaysUntilTheNewOneIsComplete) {
  const testing::TextFolder folder;
  write_file(folder / "a", "old");
  {
    OutputFile file("--json", folder / "a");
    file.write("half");
  }
  EXPECT_EQ(read_file(folder / "a"), "old");
  write(folder / "a", "new");
  EXPECT_EQ(read_file(folder / "a"), "new");
  EXPECT_FALSE(fs::exists(folder / "a.part"));
  OutputFile lines("--output", folder / "a", OutputFile::Appears::at_once);
  lines.write("1\n");
  EXPECT_EQ(read_file(folder / "a"), "1\n");
}

TEST(OutputFile, LinksAndPipesAreWrittenDirectly) {
  const testing::TextFolder folder;
  fs::create_symlink(folder / "target", folder / "link");  // as /dev/stdout
  write(folder / "link", "text");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(read_file(folder / "target"), "text");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  File reader(folder / "pipe", O_RDONLY, FileKind::input);
  write(folder / "pipe", "text");
  std::string text;
  EXPECT_TRUE(reader.read_all(text, 100));
  EXPECT_EQ(text, "text");
}

TEST(OutputFile, ErrorsNameOptionFileAndReason) {
  const testing::TextFolder folder;
  const auto error = [&](const std::string& name) {
    return user_error_of([&] { const OutputFile file("--json", folder / name); });
  };
  const std::string advice = "); check the folder's permissions and free space";
  EXPECT_EQ(error("no/a"),
            "--json " + (folder / "no/a") + ": cannot be written (No such file or directory" + advice);
  fs::create_directory(folder / "b");
  EXPECT_EQ(error("b"),
            "--json " + (folder / "b") + ": cannot be written (is a folder, not a regular file" + advice);
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_NE(error("pipe"), "");  // no program reads it
}

// A writer that renames its finished file would put a regular file in the place of a device, pipe or link.
TEST(ReplaceableFile, FollowsLinksAndRefusesPipes) {
  const testing::TextFolder folder;
  const auto of = [&](const std::string& name) { return replaceable_file("--out", folder / name).string(); };
  const auto error = [&](const std::string& name) { return user_error_of([&] { (void)of(name); }); };
  EXPECT_EQ(of("new"), folder / "new");
  fs::create_symlink("new", folder / "link");
  fs::create_symlink(folder / "link", folder / "second");
  EXPECT_EQ(of("second"), folder / "new");
  write_file(folder / "new", "old");
  EXPECT_EQ(of("second"), fs::canonical(folder / "new"));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  fs::create_symlink("pipe", folder / "to_pipe");
  fs::create_symlink("loop", folder / "loop");
  for (const std::string name : {"pipe", "to_pipe", ""})
    EXPECT_EQ(error(name), "--out " + (folder / name) +
                               ": is not a regular file; name one, or a file that does not exist");
  EXPECT_EQ(error("loop"),
            "--out " + (folder / "loop") + ": cannot be written: Too many levels of symbolic links");
}

TEST(OutputFile, WaitsForASlowReader) {
  const testing::TextFolder folder;
  const std::string pipe = folder / "pipe", copy = folder / "copy", text(1 << 20, 'x');
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  File reader(pipe, O_RDONLY, FileKind::input);
  ASSERT_EQ(std::system(("cat '" + pipe + "' >'" + copy + "' &").c_str()), 0);
  write(pipe, text);
  EXPECT_TRUE(testing::eventually([&] { return fs::exists(copy) && fs::file_size(copy) == text.size(); }));
}

}  // namespace
}  // namespace te::apps
