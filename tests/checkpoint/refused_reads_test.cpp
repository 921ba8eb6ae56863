// Checkpoints that a reader refuses although they are not damaged: with infinities or NaN, or without read permission.
#include <sys/stat.h>

#include <limits>

#include "checkpoint/checkpoint_testing.h"
#include "checkpoint/folder.h"
#include "checkpoint/reader.h"
#include "testing/files.h"
#include "testing/unprivileged.h"

namespace te::testing {
namespace {

namespace fs = std::filesystem;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(),
                kInfinity = std::numeric_limits<float>::infinity();

/// A checkpoint of one weight tensor and its moment. The last element of tensor `where` is `value`.
fs::path write_checkpoint(const fs::path& directory, int64_t step, const std::string& where, float value) {
  constexpr int64_t kNumel = 3 << 20;  // more than two checksum blocks
  checkpoint::Writer writer(directory, {.step = step}, "",
                            {{"w\x1b[2J", DType::f32, {kNumel}}, {"exp_avg/w\x1b[2J", DType::f32, {kNumel}}});
  for (const std::string name : {"w\x1b[2J", "exp_avg/w\x1b[2J"}) {
    std::vector<float> values(kNumel, 1.0f);
    if (name == where) values.back() = value;
    writer.write(name, values.data(), values.size() * sizeof(float));
  }
  return writer.finish();
}

TEST(RefusedReads, ValuesThatAreNotFinite) {
  const TemporaryFolder folder;
  for (const std::string name : {"w\x1b[2J", "exp_avg/w\x1b[2J"}) {
    for (const float value : {kNaN, kInfinity}) {
      const fs::path path = write_checkpoint(folder / "x", 1, name, value);
      const checkpoint::Reader reader(path);
      const std::string all = refusal([&] { reader.verify_all(); });
      std::vector<float> row(8);
      const checkpoint::LogicalTensor& tensor = reader.at(name);
      const std::string part = refusal([&] {
        reader.read(tensor, {0, tensor.cols(), tensor.numel() - 8, 8}, row.data());
      });
      for (const std::string& text : {all, part}) {
        TE_EXPECT_CONTAINS(
            text, std::string(name.starts_with("exp") ? "exp_avg/w" : "tensor \"w") + "\\u001b[2J\" has");
        TE_EXPECT_CONTAINS(text, "values that are infinite or NaN");
      }
      reader.read(tensor, {0, tensor.cols(), 0, 8}, row.data());  // another block
      fs::remove_all(folder / "x");
    }
  }
}

TEST(RefusedReads, ContentsOfLatestArePrintable) {
  const TemporaryFolder folder;
  write_bytes(folder / "latest", "\x1b]0;title\x07step_9\n");
  TE_EXPECT_REFUSED("names '\\x1b]0;title\\x07step_9'", checkpoint::find_latest(folder.path()));
}

/// The message of the refusal, which must not be Damaged: a run resumes from an older checkpoint if one is damaged.
template <class Body>
std::string not_damage(Body&& body) {
  const Unprivileged user;
  try {
    body();
  } catch (const checkpoint::Damaged& error) {
    ADD_FAILURE() << "reported as damaged: " << error.what();
  } catch (const UserError& error) {
    return error.what();
  }
  return {};
}

TEST(RefusedReads, PermissionDeniedIsNotDamage) {
  const TemporaryFolder folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
  write_checkpoint(folder.path(), 1, "", 0);
  const fs::path path = write_checkpoint(folder.path(), 2, "", 0);
  const auto may_read = [](const fs::path& file, bool may) {
    fs::permissions(file, may ? fs::perms::all : fs::perms::none);
  };
  for (const auto& entry : fs::directory_iterator(path)) may_read(entry.path(), true);
  may_read(path, true);
  const auto read_all = [&] { checkpoint::Reader(path).verify_all(); };
  EXPECT_EQ(not_damage(read_all), "");
  for (const char* name : {"manifest.json", "model.safetensors", "optimizer.safetensors"}) {
    may_read(path / name, false);
    const std::string text = not_damage(read_all);
    TE_EXPECT_CONTAINS(text, (path / name).string() + ": cannot be read: Permission denied");
    may_read(path / name, true);
  }
  // An older checkpoint does not replace an unreadable one, whether or not `latest` names it.
  for (const bool named : {true, false}) {
    if (!named) fs::remove(folder / "latest");
    for (const fs::path& file : {path / "manifest.json", path}) {
      may_read(file, false);
      TE_EXPECT_CONTAINS(not_damage([&] { checkpoint::find_latest(folder.path()); }), "Permission denied");
      may_read(file, true);
    }
  }
}

TEST(RefusedReads, WriteProtectedCheckpointsAreNotRemovedInPart) {
  const TemporaryFolder folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 0777), 0);
  const fs::path path = write_checkpoint(folder.path(), 1, "", 0);
  fs::permissions(path, fs::perms::all & ~fs::perms::group_write & ~fs::perms::others_write);
  {
    const Unprivileged user;
    EXPECT_FALSE(checkpoint::is_removable(path));
    EXPECT_THROW(checkpoint::remove_checkpoint(path), fs::filesystem_error);
    EXPECT_TRUE(fs::exists(path / "manifest.json"));
    fs::create_directory_symlink(path,
                                 folder / "step_00000002");  // a link needs no permission for its target
    checkpoint::remove_checkpoint(folder / "step_00000002");
    EXPECT_FALSE(fs::exists(fs::symlink_status(folder / "step_00000002")));
  }
  EXPECT_TRUE(checkpoint::is_removable(path));
  checkpoint::remove_checkpoint(path);
  EXPECT_FALSE(fs::exists(path));
}

TEST(RefusedReads, UnreadableFoldersAreNotEmpty) {
  const TemporaryFolder folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
  const fs::path run = folder / "run", inside = run / "checkpoints";
  write_checkpoint(inside, 1, "", 0);
  write_bytes(run / "run.json", "{}");
  fs::permissions(run / "run.json", fs::perms::all);
  for (const fs::path& closed : {inside, run}) {
    fs::permissions(closed, fs::perms::none);
    const std::string text = not_damage([&] { checkpoint::resolve(run); });
    TE_EXPECT_CONTAINS(text, closed.string());
    TE_EXPECT_CONTAINS(text, ": cannot be read: Permission denied");
    fs::permissions(closed, fs::perms::all);
  }
}

}  // namespace
}  // namespace te::testing
