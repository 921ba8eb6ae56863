// te-convert export of an adapter as a PEFT folder.
#include <filesystem>

#include "convert/tools_testing.h"

namespace te::testing {
namespace {

// Phi-3 stores q, k and v in one matrix, of which PEFT would silently skip adapters of each.
TEST(PeftExport, NamesTheMatricesOfTheBase) {
  const TrainFolder folder;
  run(folder, "base", {"training.train_steps=1"});
  const std::string base = folder.checkpoint("base", 1);
  run(folder, "adapter",
      {"training.train_steps=1", "adapter.type=lora", "adapter.rank=8", "checkpoint.init_from=" + base});
  // As if the adapter had been trained on this folder.
  const auto export_on = [&](const char* fixture) {
    std::filesystem::remove_all(base);
    std::filesystem::copy(std::string(TE_SOURCE_DIR) + "/tests/fixtures/" + fixture, base);
    return te_convert(folder,
                      "export " + folder.checkpoint("adapter", 1) + " --force --out " + (folder / "peft"));
  };
  const Result llama = export_on("hugging_face/llama");
  EXPECT_EQ(llama.code, 0) << llama.error;
  expect_convert_refused(
      export_on("hugging_face_keys/phi3"),
      "transformers stores layers.0.self_attention.linear_qkv.weight of this model in one tensor");
}

}  // namespace
}  // namespace te::testing
