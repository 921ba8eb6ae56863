// The training state of a rank: everything that a step changes and a later step reads. It is listed once, the tensors
// in TrainingState and the numbers in Progress (progress.h). Checkpoints save and load it, a copy in memory restores it
// (train/state_copy.h), and warmup passes leave it as it was (train/step_runner.h). Gradients and FP8 weights do not
// belong to it: each step overwrites the former and requantizes the latter.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/block.h"
#include "checkpoint/manifest.h"
#include "checkpoint/reader.h"
#include "config/config.h"
#include "core/device.h"
#include "fp8/scale_table.h"
#include "kernels/common/granule.h"
#include "optim/moments.h"
#include "parameters/parameter_store.h"

namespace te::checkpoint {

/// A tensor of the state on this rank.
struct StateTensor {
  const char* name;
  Tensor tensor;
  bool changed_by_passes = false;  ///< by forward and backward passes; else only by updates
  bool in_checkpoints = true;  ///< else the first step after a resume computes it, or it is for statistics
};

/// Views of a rank's state. A new member must be listed in tensors().
struct TrainingState {
  parameters::ParameterStore* parameters = nullptr;
  optim::Moments exp_avg, exp_avg_sq;  ///< moments of the shard's elements
  /// Scales of the rank's pipeline stage. There is no FP8 state if this is null or has no history.
  const fp8::ScaleTable* scales = nullptr;
  /// Waits until parameters and moments may be read and written (optim::Optimizer::wait_offload); may be empty.
  std::function<void()> wait_offload{};

  /// All tensors of the state on this rank, planned or bound to memory.
  std::vector<StateTensor> tensors() const;
};

/// Position in the full parameter of elements [first, first + count) of this rank's shard, one block per run of rows.
std::vector<Block> blocks_of(const parameters::ParameterShard& shard, int64_t first, int64_t count);

/// Saving converts and writes at most this many elements at a time.
constexpr int64_t kFetch = 4 << 20;
static_assert(kFetch % kernels::kAdamWGranule == 0, "parts of FP8 moments begin at a block");

/// A shard of a parameter or of a moment that a rank stores.
struct StoredShard {
  std::string name;  ///< name of the logical tensor
  /// F32; moments, parameters that are not trained, and in converted checkpoints all parameters, may be BF16.
  DType dtype = DType::f32;
  std::vector<int64_t> global;  ///< shape of the full tensor
  std::vector<int64_t>
      stored;  ///< shape in the rank's file: rows if the shard consists of complete rows, else flat
  std::vector<Block> blocks;  ///< in the order of the stored elements

  int64_t count() const;
};

/// A stored shard with its location in device memory.
struct SavedShard : StoredShard {
  parameters::MainParams main;  ///< set for a parameter
  optim::Moments moment;        ///< set for a moment

  size_t file_bytes() const { return static_cast<size_t>(count()) * dtype_size(dtype); }
  size_t raw_bytes() const { return moment.values ? moment.raw_bytes() : main.bytes(); }
  /// True if the bytes on the device differ from those in the file.
  bool converts() const {
    return moment.values ? moment.blocks() : !main.fp32 && main.stored_dtype() == DType::f32;
  }
  /// Copies the device's bytes to `raw`, raw_bytes() of host memory. Asynchronous.
  void copy_raw(const Context& context, void* raw) const;
  /// The master weights or moments [first, first + count) on the device; from_raw of the result counts from `first`.
  SavedShard part(int64_t first, int64_t count) const;
  /// Elements [first, first + count) of copy_raw()'s result in the file's format: a pointer into raw, or to `converted`
  /// after filling it. `first` is a multiple of kFetch.
  const void* from_raw(const void* raw, int64_t first, int64_t count, float* converted) const;
};

/// The shards that this rank saves. Other ranks save parameters that are copies of another stage's and, on
/// tensor-parallel ranks above 0, parameters that are replicated across tensor-parallel ranks.
std::vector<SavedShard> shards_to_save(const TrainingState& state, bool optimizer);
/// The shards of a planned store without memory, with the moments of this optimizer.
std::vector<StoredShard> stored_shards(const parameters::ParameterStore& store, bool optimizer,
                                       config::OptimizerName name);

/// True if the rank saves the FP8 state of a gradient group's operands: the first of the ranks that have it.
bool saves_fp8(const parameters::StoreLayout& layout, GradientGroup group);
/// True if there is FP8 state and the rank saves some of it.
bool saves_fp8(const TrainingState& state);
bool has_fp8_state(const TrainingState& state);

/// Copies the rows of the scale table that the rank saves to the host; waits for the device.
Fp8State read_fp8(const Context& context, const TrainingState& training);
Fp8Operand operand_of(const fp8::OperandInfo& info);

}  // namespace te::checkpoint
