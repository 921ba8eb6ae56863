// SwiGLU of experts and its gradient with quantization in the same pass, in BF16 (expert_quantize.cuh): the values are
// rounded to BF16 and quantized, but not stored. The sums for the router's probabilities have the order of
// expert_activation.cu, so all results equal separate passes.
#include "kernels/activation/activation_device.cuh"
#include "kernels/moe/expert_activation_gradient.cuh"
#include "kernels/moe/expert_quantize.cuh"

namespace te::kernels::cuda {
namespace {

constexpr ActivationKind kKind = ActivationKind::swiglu;
using Value = __nv_bfloat16;
using Vec = Vec8<Value>;

/// The columns of this thread in a tile.
__device__ __forceinline__ int thread_col() {
  return static_cast<int>(threadIdx.x) % 8 * 8;
}

/// Rows that are not copies of tokens are zeros.
__device__ __forceinline__ void keep_rows(int4& source, int64_t row) {
  const int first = static_cast<int>(row);
  source.x = source.x < 0 ? -1 : first, source.y = source.y < 0 ? -1 : first + 1;
  source.z = source.z < 0 ? -1 : first + 2, source.w = source.w < 0 ? -1 : first + 3;
}

/// Copies 16 bytes of each of four rows of a matrix.
__device__ __forceinline__ void copy_rows(uint4* to, const Value* from, const int4& rows, int64_t stride,
                                          int col, bool in_row) {
  const auto one = [&](int i, int row) {
    const bool valid = row >= 0 && in_row;
    copy_async(to + i * kTileThreads + threadIdx.x, valid ? from + row * stride + col : from, valid);
  };
  one(0, rows.x), one(1, rows.y), one(2, rows.z), one(3, rows.w);
}

/// Vector `which` of this thread's row i.
__device__ __forceinline__ Vec staged(const uint4* stage, int which, int i) {
  return staged_vec8(stage + (which * kThreadRows + i) * kTileThreads + threadIdx.x);
}

/// Selections and probabilities of a thread's rows; of rows without a selection -1 and 0.
struct RowProbs {
  int32_t from[kThreadRows];
  float prob[kThreadRows];
  __device__ RowProbs(const int32_t* source, const float* probs, int64_t row, bool valid) {
    int4 all = make_int4(-1, -1, -1, -1);
    if (valid) all = *reinterpret_cast<const int4*>(source + row);
    from[0] = all.x, from[1] = all.y, from[2] = all.z, from[3] = all.w;
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) prob[i] = from[i] < 0 ? 0.0f : probs[from[i]];
  }
};

struct ForwardInput {
  static constexpr int kVectors = 2, kStages = 2, kBlocks = 3;
  const Value* x;
  const int32_t* source;
  const float* probs;
  int ffn;

  __device__ int4 rows_at(int64_t row) const { return *reinterpret_cast<const int4*>(source + row); }
  __device__ void resolve(int4& rows, int64_t row) const { keep_rows(rows, row); }
  __device__ __forceinline__ void copy(uint4* to, const int4& rows, int tile_col) const {
    const int col = tile_col + thread_col();
    copy_rows(to, x, rows, 2 * int64_t{ffn}, col, col < ffn);
    copy_rows(to + kThreadRows * kTileThreads, x + ffn, rows, 2 * int64_t{ffn}, col, col < ffn);
  }
  struct Rows : RowProbs {
    __device__ Rows(const ForwardInput& in, int64_t row, bool valid)
        : RowProbs(in.source, in.probs, row, valid) {}
    __device__ void finish(const ForwardInput&) const {}
  };
  template <class Writer>
  __device__ __forceinline__ void write(const uint4* stage, const Rows& rows, int64_t tile_row, int tile_col,
                                        Writer& writer) const {
    uint2 bytes[kThreadRows];
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      const Vec gate = staged(stage, 0, i), up = staged(stage, 1, i);
      const auto value = [&](int j) {
        const float in = gate.get(j);
        return activation_value<kKind>(in, up.get(j), activation_factor<kKind, Value>(in)) * rows.prob[i];
      };
      Vec y;
#pragma unroll
      for (int j = 0; j < 8; j += 2) y.set_pair(j, value(j), value(j + 1));
      bytes[i] = writer.quantize(y);
    }
    writer.write(bytes, tile_row, tile_col, ffn);
  }
};

struct BackwardInput {
  static constexpr int kVectors = 3, kStages = 2, kBlocks = 2;
  const Value *x, *dy;
  const int32_t* source;
  const float* probs;
  float* d_probs;
  int ffn;

  __device__ int4 rows_at(int64_t row) const { return *reinterpret_cast<const int4*>(source + row); }
  __device__ void resolve(int4& rows, int64_t row) const { keep_rows(rows, row); }
  __device__ __forceinline__ void copy(uint4* to, const int4& rows, int tile_col) const {
    const int col = tile_col + thread_col();
    copy_rows(to, x, rows, 2 * int64_t{ffn}, col, col < ffn);
    copy_rows(to + kThreadRows * kTileThreads, x + ffn, rows, 2 * int64_t{ffn}, col, col < ffn);
    copy_rows(to + 2 * kThreadRows * kTileThreads, dy, rows, ffn, col, col < ffn);
  }
  /// Sums of each row. Four consecutive steps correspond to the 32 lanes that expert_activation.cu has for a row, so a
  /// thread has the sums of four lanes: the next step's first.
  struct Rows : RowProbs {
    float along[kThreadRows][4] = {};
    __device__ Rows(const BackwardInput& in, int64_t row, bool valid)
        : RowProbs(in.source, in.probs, row, valid) {}
    __device__ __forceinline__ void advance(int i) {
      const float first = along[i][0];
      along[i][0] = along[i][1], along[i][1] = along[i][2], along[i][2] = along[i][3], along[i][3] = first;
    }
    /// As warp_sum(): lanes 16, 8, 4, 2 and 1 apart.
    __device__ __forceinline__ void finish(const BackwardInput& in) const {
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) {
        float sum = (along[i][0] + along[i][2]) + (along[i][1] + along[i][3]);
#pragma unroll
        for (int offset = 4; offset > 0; offset /= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
        if (from[i] >= 0 && threadIdx.x % 8 == 0) in.d_probs[from[i]] = sum;
      }
    }
  };
  template <class Writer>
  __device__ __forceinline__ void write(const uint4* stage, Rows& rows, int64_t tile_row, int tile_col,
                                        Writer& writer) const {
    uint2 d_gate[kThreadRows], d_up[kThreadRows];
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      const Vec gate = staged(stage, 0, i), up = staged(stage, 1, i), dy = staged(stage, 2, i);
      Vec of_gate, of_up;
      float along = rows.along[i][0];
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        float in[2], ups[2];
#pragma unroll
        for (int k = 0; k < 2; ++k)
          along = fmaf(dy.get(j + k),
                       gradient<kKind, Value>(gate.get(j + k), up.get(j + k), dy.get(j + k), rows.prob[i],
                                              0.0f, in[k], ups[k]),
                       along);
        of_gate.set_pair(j, in[0], in[1]);
        of_up.set_pair(j, ups[0], ups[1]);
      }
      rows.along[i][0] = along;
      rows.advance(i);
      d_gate[i] = writer.quantize(of_gate), d_up[i] = writer.quantize(of_up);
    }
    writer.write(d_gate, tile_row, tile_col, ffn);
    writer.write(d_up, tile_row, ffn + tile_col, 2 * int64_t{ffn});
  }
};

/// `cols`: of the quantized tensor. Counters, and scales of the values themselves, need values that are stored.
template <class Args>
bool suits(const Context& context, const Args& a, const Fp8Output& out, int64_t ffn, size_t shared) {
  return a.kind == kKind && a.x.dtype == DType::bf16 && out.counters == nullptr &&
         first_scale_of(out).data != nullptr && ffn % 8 == 0 && a.x.rows() % 16 == 0 &&
         is_aligned(a.x.data, 16) && is_aligned(a.source.data, 16) && is_aligned(out.rowwise.data, 8) &&
         is_aligned(out.columnwise.data, 16) &&
         shared <= static_cast<size_t>(device_caps(context).shared_bytes);
}

template <class Input>
void quantize_rows(const Context& context, const Input& input, const Tensor& offsets, int64_t experts,
                   const StepGrid& grid, int64_t cols, const Fp8Output& out) {
  const RowsOfExperts of_experts{offsets.as<int32_t>(), static_cast<int>(experts), 0};
  const DType format = out.rowwise ? out.rowwise.dtype : out.columnwise.dtype;
  quantize_at_once(context, of_experts, out, [&](const ExpertOutput& output) {
    if (format == DType::e4m3)
      launch_steps<Input, DType::e4m3>(context, input, of_experts, grid, cols, output);
    else
      launch_steps<Input, DType::e5m2>(context, input, of_experts, grid, cols, output);
  });
}

}  // namespace

bool expert_activation_fp8(const Context& context, const ExpertActivation& a) {
  const int64_t ffn = a.y.cols(), rows = a.x.rows();
  if (!suits(context, a, a.y_fp8, ffn, step_bytes<ForwardInput>(static_cast<int>(a.experts)))) return false;
  const ForwardInput input{a.x.as<Value>(), a.source.as<int32_t>(), a.probs.as<float>(),
                           static_cast<int>(ffn)};
  const StepGrid grid(rows, ffn, item_cols<ForwardInput>(context, rows, ffn));
  quantize_rows(context, input, a.offsets, a.experts, grid, ffn, a.y_fp8);
  return true;
}

bool expert_activation_backward_fp8(const Context& context, const ExpertActivationBackward& a) {
  const int64_t ffn = a.dy.cols();
  if (!is_aligned(a.dy.data, 16) ||
      !suits(context, a, a.dx_fp8, ffn, step_bytes<BackwardInput>(static_cast<int>(a.experts))))
    return false;
  const BackwardInput input{a.x.as<Value>(),     a.dy.as<Value>(),      a.source.as<int32_t>(),
                            a.probs.as<float>(), a.d_probs.as<float>(), static_cast<int>(ffn)};
  quantize_rows(context, input, a.offsets, a.experts, StepGrid(a.x.rows(), ffn, ffn), 2 * ffn, a.dx_fp8);
  return true;
}

}  // namespace te::kernels::cuda
