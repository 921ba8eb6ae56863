// Writes a checkpoint of full tensors from one process, tensor by tensor (te-convert import). saver.h writes the same
// format from all ranks of a training run.
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

/// A tensor to write. Parameters and moments are F32 or BF16; loading converts them.
struct TensorSpec {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
};

class Writer {
 public:
  /// Creates the temporary folder of DIRECTORY/step_<8 digits>. `config` is the YAML of the run (config::to_yaml).
  /// Moments ("exp_avg/NAME", "exp_avg_sq/NAME") go to a separate file. UserError if the disk is full or the folder
  /// cannot be written.
  Writer(const std::filesystem::path& directory, const Progress& progress, const std::string& config,
         const std::vector<TensorSpec>& tensors, const Fp8State& fp8 = {});
  /// Removes the temporary folder unless finish() was called.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  /// Writes the next bytes of a tensor. Tensors may be written in any order, also interleaved.
  void write(std::string_view name, const void* data, size_t bytes);
  /// Checks that every tensor is complete, syncs, renames the folder to its final name and updates DIRECTORY/latest. A
  /// checkpoint of the same step is replaced. Returns the step folder.
  std::filesystem::path finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace te::checkpoint
