// What a rank has that belongs into a checkpoint, and which part of it this rank is the one to save.
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

/// Views of a rank's state, bound to memory.
struct TrainingState {
  parameters::ParameterStore* parameters = nullptr;
  optim::Moments exp_avg, exp_avg_sq;  ///< of the shard's elements
  const fp8::ScaleTable* scales =
      nullptr;  ///< of the rank's pipeline stage; null or without history: no FP8 state
  /// Waits until parameters and moments may be read and written (optim::Optimizer::wait_offload); empty: they always
  /// may.
  std::function<void()> wait_offload{};
};

/// The elements of the whole parameter that elements [first, first + count) of this rank's part of it are, one block
/// per run of rows.
std::vector<Block> blocks_of(const parameters::ParameterShard& shard, int64_t first, int64_t count);

/// Saving goes piece by piece, at most so many elements a time.
constexpr int64_t kFetch = 4 << 20;
static_assert(kFetch % kernels::kAdamWGranule == 0, "parts of moments in FP8 begin with a block");

/// A piece of a parameter or of a moment that a rank stores.
struct StoredPiece {
  std::string name;             ///< of the logical tensor
  DType dtype = DType::f32;     ///< F32; moments, and in converted checkpoints parameters, may be BF16
  std::vector<int64_t> global;  ///< shape of the whole
  std::vector<int64_t> stored;  ///< shape in the rank's file: whole rows where the piece has them, else flat
  std::vector<Block> blocks;    ///< in the order of the stored elements

  int64_t count() const;
};

/// ... and where this rank has it, on the device.
struct SavedPiece : StoredPiece {
  parameters::MainParams main;  ///< of a parameter
  optim::Moments moment;        ///< of a moment

  size_t file_bytes() const { return static_cast<size_t>(count()) * dtype_size(dtype); }
  size_t raw_bytes() const { return moment.values ? moment.raw_bytes() : main.bytes(); }
  /// True when the device's bytes are not those of the file.
  bool converts() const { return moment.values ? moment.blocks() : !main.fp32; }
  /// The device's bytes; `raw`: raw_bytes() of host memory. Returns before the copy is done.
  void copy_raw(const Context& context, void* raw) const;
  /// The device's main parameters or moments [first, first + count) alone, with from_raw's `first` counted from there.
  SavedPiece part(int64_t first, int64_t count) const;
  /// Elements [first, first + count) from what copy_raw() has copied, as the file has them: a pointer into raw, or
  /// `converted` filled. `first` is a multiple of kFetch.
  const void* from_raw(const void* raw, int64_t first, int64_t count, float* converted) const;
};

/// Leaves out what another rank saves: copies of another stage's parameters, and on tensor ranks above 0 what all
/// tensor ranks hold.
std::vector<SavedPiece> pieces_to_save(const TrainingState& state, bool optimizer);
/// The same of a store that is planned and needs no memory, with the moments of this optimizer.
std::vector<StoredPiece> stored_pieces(const parameters::ParameterStore& store, bool optimizer,
                                       config::OptimizerName name);

/// True when there is FP8 state and this is the rank of its stage that saves it.
bool saves_fp8(const TrainingState& state);
bool has_fp8_state(const TrainingState& state);

/// Copies the scale table to the host; waits for the device.
Fp8State read_fp8(const Context& context, const fp8::ScaleTable& table);
Fp8Operand operand_of(const fp8::OperandInfo& info);

}  // namespace te::checkpoint
