// Parses arbitrary bytes as a manifest with a corrected checksum; every failure must be a UserError. An accepted
// manifest must read back from its own text, and all its tensors are read from the files of a small checkpoint.
#include "checkpoint/manifest.h"

#include <filesystem>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/shard_file.h"
#include "core/error.h"
#include "fuzz_file.h"

namespace {

using te::DType;
namespace checkpoint = te::checkpoint;

/// The files that the seeds' manifests describe.
void write_shards() {
  const float values[24] = {1, 2, 3, 4, 5, 6, 7, 8};
  checkpoint::ShardFile first(te::fuzz::folder(), "a", {{"w", DType::f32, {12}}});
  checkpoint::ShardFile second(te::fuzz::folder(), "b",
                               {{"w", DType::f32, {12}}, {"exp_avg/w", DType::f32, {24}}});
  first.write("w", values, 48);
  second.write("w", values + 12, 48);
  second.write("exp_avg/w", values, 96);
  first.finish();
  second.finish();
  std::vector<checkpoint::StoredFile> files;
  checkpoint::write_fp8(
      te::fuzz::folder(), "c",
      {.history_len = 2, .position = 1, .rows = {{{"fc1", "input", 448.0f}, 2.0f, {0.5f, 0.25f}}}}, files);
}

void read_everything(const std::filesystem::path& folder) {
  const checkpoint::Reader reader(folder);
  for (const checkpoint::LogicalTensor& tensor : reader.tensors()) {
    if (tensor.numel() > 100000) continue;  // a caller would not allocate such a buffer
    std::vector<std::byte> bytes(tensor.bytes());
    reader.read_rows(tensor.name, 0, tensor.rows(), bytes.data());
  }
  reader.fp8();
  reader.verify_all();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static te::fuzz::FuzzFile file("manifest.json");
  static const bool written = (write_shards(), true);
  static_cast<void>(written);
  std::string text(reinterpret_cast<const char*>(data), size);
  text += fmt::format("  \"manifest_checksum\": \"{:016x}\"\n}}\n",
                      checkpoint::checksum(text.data(), text.size()));
  try {
    const checkpoint::Manifest manifest = checkpoint::parse_manifest("m", text);
    const std::string again = checkpoint::to_text(manifest);
    TE_CHECK(checkpoint::to_text(checkpoint::parse_manifest("m", again)) == again,
             "the text does not read back: {}", again);
    file.write({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
    read_everything(te::fuzz::folder());
  } catch (const te::UserError&) {
  }
  return 0;
}
