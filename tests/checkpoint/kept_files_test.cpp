// Hugging Face files that a checkpoint directory keeps in addition to its checkpoints, and their names.
#include <algorithm>

#include "checkpoint/kept_files.h"

#include "checkpoint_testing.h"

namespace te {
namespace {

namespace fs = std::filesystem;

using checkpoint::find_kept_folder;
using checkpoint::keep_files;
using checkpoint::kept_files;
using checkpoint::KeptFile;
using checkpoint::tokenizer_files;
using testing::entries;
using testing::read_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

class KeptFiles : public ::testing::Test {
 protected:
  void make(const std::vector<std::string>& names) const {
    for (const std::string& name : names) {
      fs::create_directories((folder_ / name).parent_path());
      write_bytes(folder_ / name, "content of " + name);
    }
  }
  /// Each file as "name<source", sorted.
  static std::vector<std::string> shown(const std::vector<KeptFile>& files) {
    std::vector<std::string> result;
    for (const KeptFile& file : files) result.push_back(file.name + "<" + file.source.filename().string());
    std::ranges::sort(result);
    return result;
  }
  using Names = std::vector<std::string>;

  TemporaryFolder folder_;
};

TEST_F(KeptFiles, FilesOfAFolder) {
  make({"hf/config.json", "hf/chat_turns.json", "hf/tokenizer.json", "hf/README.md", "hf/model.safetensors",
        "hf/LICENSE"});
  EXPECT_EQ(shown(kept_files(folder_ / "hf")),
            (Names{"LICENSE<LICENSE", "chat_turns.json<chat_turns.json", "config.json<config.json",
                   "tokenizer.json<tokenizer.json"}));
  EXPECT_EQ(shown(tokenizer_files(folder_ / "hf")), shown(kept_files(folder_ / "hf")));
  make({"bare/config.json"});
  EXPECT_TRUE(tokenizer_files(folder_ / "bare").empty());
  EXPECT_TRUE(tokenizer_files(folder_ / "nowhere").empty());
}

TEST_F(KeptFiles, ATokenizersFileWithoutOtherTokenizersOfItsFolder) {
  make({"t/tokenizer_config.json", "t/tokenizer.json", "t/my.model", "t/v2.json", "t/vocab.json",
        "t/merges.txt"});
  const std::string beside = "tokenizer_config.json<tokenizer_config.json";
  EXPECT_EQ(shown(tokenizer_files(folder_ / "t/my.model")), (Names{"tokenizer.model<my.model", beside}));
  EXPECT_EQ(shown(tokenizer_files(folder_ / "t/v2.json")), (Names{"tokenizer.json<v2.json", beside}));
  EXPECT_EQ(shown(tokenizer_files(folder_ / "t/merges.txt")),
            (Names{"merges.txt<merges.txt", beside, "vocab.json<vocab.json"}));
}

TEST_F(KeptFiles, RenamesOpenAisGpt2FilesToHuggingFaceNames) {
  make({"old/encoder.json", "old/vocab.bpe"});
  const Names renamed = {"merges.txt<vocab.bpe", "vocab.json<encoder.json"};
  EXPECT_EQ(shown(tokenizer_files(folder_ / "old")), renamed);
  EXPECT_EQ(shown(tokenizer_files(folder_ / "old/vocab.bpe")), renamed);
}

TEST_F(KeptFiles, AreReplacedTogetherAndOnlyIfTheyDiffer) {
  make({"a/tokenizer.json", "a/config.json", "b/my.model", "run/step_00000001/manifest.json"});
  EXPECT_TRUE(find_kept_folder(folder_ / "run").empty());
  make({"run/hugging_face.tmp/tokenizer.json"});  // left by a run that was killed
  EXPECT_TRUE(keep_files(kept_files(folder_ / "a"), folder_ / "run"));
  EXPECT_FALSE(keep_files(kept_files(folder_ / "a"), folder_ / "run"));
  EXPECT_EQ(entries(folder_ / "run"), (Names{"hugging_face", "step_00000001"}));
  EXPECT_EQ(entries(folder_ / "run/hugging_face"), (Names{"config.json", "tokenizer.json"}));
  // From the folder itself: a run that resumes in the directory from which it was started.
  EXPECT_FALSE(keep_files(kept_files(folder_ / "run/hugging_face"), folder_ / "run"));
  // Equal names with different bytes, then different names.
  write_bytes(folder_ / "a/config.json", "changed");
  EXPECT_TRUE(keep_files(kept_files(folder_ / "a"), folder_ / "run"));
  EXPECT_EQ(read_bytes(folder_ / "run/hugging_face/config.json"), "changed");
  EXPECT_TRUE(keep_files(tokenizer_files(folder_ / "b/my.model"), folder_ / "run"));
  EXPECT_EQ(entries(folder_ / "run/hugging_face"), (Names{"tokenizer.model"}));
  EXPECT_EQ(entries(folder_ / "run"), (Names{"hugging_face", "step_00000001"}));
  for (const char* path : {"run", "run/", "run/step_00000001", "run/step_00000001/"})
    EXPECT_EQ(find_kept_folder(folder_ / path), fs::absolute(folder_ / "run/hugging_face")) << path;
}

TEST_F(KeptFiles, KeepsTheOldFilesIfCopyingFails) {
  make({"a/tokenizer.json", "run/hugging_face/tokenizer.json"});
  const std::vector<KeptFile> gone = {{folder_ / "a/none.json", "tokenizer.json"}};
  EXPECT_THROW(keep_files(gone, folder_ / "run"), UserError);
  EXPECT_EQ(read_bytes(folder_ / "run/hugging_face/tokenizer.json"),
            "content of run/hugging_face/tokenizer.json");
}

}  // namespace
}  // namespace te
