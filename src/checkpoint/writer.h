// Writes a checkpoint of whole tensors from one process, tensor by tensor (te-convert: import, reshard). te-train's own
// saving, by all ranks at once, is saver.h; both make the same format.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/reader.h"

namespace te::checkpoint {

/// A tensor to be written. Parameters and moments are F32 or BF16 (converted when loaded).
struct TensorSpec {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
};

class Writer {
 public:
  /// Begins DIRECTORY/step_<8 digits> as a temporary folder. `config` is the YAML of the run (config::to_yaml). Moments
  /// ("exp_avg/NAME", "exp_avg_sq/NAME") go to a file of their own. UserError when the disk is full or the folder
  /// cannot be written.
  Writer(const std::filesystem::path& directory, const Progress& progress, const std::string& config,
         const std::vector<TensorSpec>& tensors, const Fp8State& fp8 = {});
  /// Before finish(): removes what was written.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  /// The next bytes of a tensor: whole, or in consecutive pieces. Tensors come in any order, also interleaved.
  void write(std::string_view name, const void* data, size_t bytes);
  /// Checks that every tensor is complete, syncs, gives the folder its name and makes it DIRECTORY/latest. A checkpoint
  /// of the same step is replaced. Returns the step folder.
  std::filesystem::path finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace te::checkpoint
