// What a rank has that belongs into a checkpoint, and which part of it this rank is the one to save.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/block.h"
#include "checkpoint/manifest.h"
#include "checkpoint/reader.h"
#include "core/device.h"
#include "fp8/scale_table.h"
#include "model/parameter_store.h"

namespace te::checkpoint {

/// Views of a rank's state, bound to memory.
struct TrainingState {
  model::ParameterStore* parameters = nullptr;
  Tensor exp_avg, exp_avg_sq;  ///< [shard_size] fp32 or bf16
  const fp8::ScaleTable* scales =
      nullptr;  ///< of the rank's pipeline stage; null or without history: no FP8 state
};

/// The elements of the whole parameter that elements [first, first + count) of this rank's part of it are, one block per
/// run of rows.
std::vector<Block> blocks_of(const model::ParameterShard& shard, int64_t first, int64_t count);

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
  model::MainParams main;  ///< of a parameter
  Tensor moment;           ///< of a moment, in the dtype that is stored

  /// On the device as in the file.
  size_t bytes() const { return static_cast<size_t>(count()) * dtype_size(dtype); }
  /// Elements [first, first + count) as the device has them; `raw`: as many bytes of host memory as the file takes for
  /// them. Returns before the copy is done.
  void copy_raw(const Context& context, int64_t first, int64_t count, void* raw) const;
  /// Elements [first, first + count) of the `total` that copy_raw() has copied, as the file has them: a pointer into
  /// raw, or `joined` filled.
  const void* from_raw(const void* raw, int64_t total, int64_t first, int64_t count, float* joined) const;
};

/// Leaves out what another rank saves: copies of another stage's parameters, and on tensor ranks above 0 what all tensor
/// ranks hold.
std::vector<SavedPiece> pieces_to_save(const TrainingState& state, bool optimizer);
/// The same of a store that is planned and needs no memory.
std::vector<StoredPiece> stored_pieces(const model::ParameterStore& store, bool optimizer);

/// True when there is FP8 state and this is the rank of its stage that saves it.
bool saves_fp8(const TrainingState& state);
bool has_fp8_state(const TrainingState& state);

/// Copies the scale table to the host; waits for the device.
Fp8State read_fp8(const Context& context, const fp8::ScaleTable& table);
Fp8Operand operand_of(const fp8::OperandInfo& info);

}  // namespace te::checkpoint
