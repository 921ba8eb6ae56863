// Tiny models of Hugging Face transformers (scripts/make_convert_fixtures.py), and helpers that convert and compare
// them.
#pragma once

#include <fmt/ranges.h>

#include <cstring>
#include <map>

#include "checkpoint/checkpoint_testing.h"
#include "convert/exporter.h"
#include "convert/foreign_model.h"
#include "convert/importer.h"
#include "core/json.h"
#include "testing/testing.h"

namespace te::testing {

namespace fs = std::filesystem;

inline fs::path fixture(const std::string& name) {
  return fs::path(TE_SOURCE_DIR) / "tests/fixtures/hugging_face" / name;
}

/// A copy of a fixture that a test may change.
inline fs::path copy_fixture(const std::string& name, const fs::path& to) {
  fs::copy(fixture(name), to, fs::copy_options::recursive);
  fs::remove(to / "expected.safetensors");
  return to;
}

/// Applies a merge patch to config.json, which removes keys whose value is null.
inline void patch_config(const fs::path& folder, const nlohmann::json& patch) {
  nlohmann::json config = parse_json(read_bytes(folder / "config.json"));
  config.merge_patch(patch);
  write_bytes(folder / "config.json", config.dump());
}

/// All tensors of the safetensors files of a folder: type, shape and bytes, as text.
inline std::map<std::string, std::string> tensors_of(const fs::path& folder) {
  std::map<std::string, std::string> tensors;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors" || entry.path().filename() == "expected.safetensors")
      continue;
    const SafetensorsReader file(entry.path());
    for (const SafetensorsTensor& tensor : file.tensors()) {
      const std::string head = fmt::format("{} [{}] ", tensor.file_dtype, fmt::join(tensor.shape, ", "));
      const bool fresh =
          tensors
              .emplace(tensor.name,
                       head + std::string(reinterpret_cast<const char*>(tensor.data), tensor.bytes))
              .second;
      EXPECT_TRUE(fresh) << tensor.name << " twice";
    }
  }
  return tensors;
}

/// Converts an HF folder to a checkpoint directory.
inline void import_to(const fs::path& folder, const fs::path& directory) {
  convert::write_checkpoint(convert::open_hugging_face(folder), directory, {});
}

/// Converts a checkpoint to an HF folder.
inline convert::Converted export_to(const fs::path& checkpoint, const fs::path& folder,
                                    const convert::ExportOptions& options = {}) {
  fs::create_directories(folder);
  return convert::write_hugging_face(convert::ExportSource(checkpoint), folder, options, {});
}

inline std::vector<float> floats_of(const SafetensorsTensor& tensor) {
  std::vector<float> values(tensor.bytes / sizeof(float));
  std::memcpy(values.data(), tensor.data, tensor.bytes);
  return values;
}

}  // namespace te::testing
