// The matrix product through cuBLASLt.
//
// cuBLASLt's matrices are column-major. A row-major [rows, cols] matrix is the same memory as a column-major
// [cols, rows] one, so out = op(a) op(b) is computed as out^T = op(b)^T op(a)^T: cuBLASLt's A is our b, its B
// our a, and its m, n, k are our n, m, k. The FP8 form (a [m, k], b [n, k] with trans_b) becomes "TN", the
// one that Hopper has; the bias, one value a column of out, becomes one a row of out^T, as the library's
// epilogue wants it.
//
// A problem is planned at its first use: descriptors, the heuristic's candidates, and (with autotuning) their
// times on the device. Later calls look the plan up and launch.
#include <cublasLt.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/cuda_check.h"
#include "kernels/gemm/gemm_cuda.h"
#include "kernels/gemm/gemm_tune.h"

#define TE_CUBLAS_CHECK(call)                                                                \
  do {                                                                                       \
    const cublasStatus_t te_status = (call);                                                 \
    if (te_status != CUBLAS_STATUS_SUCCESS) [[unlikely]]                                     \
      ::te::internal_error(fmt::format("{}: {}", #call, cublasLtGetStatusString(te_status)), \
                           std::source_location::current());                                 \
  } while (false)

namespace te::kernels::cuda {
namespace {

constexpr int kMaxCandidates = 8;
bool autotune_enabled = true;

cublasLtHandle_t library() {
  // Lives as long as the process: contexts come and go (in tests), and the driver outlives no static
  // destructor.
  static const cublasLtHandle_t handle = [] {
    cublasLtHandle_t created = nullptr;
    TE_CUBLAS_CHECK(cublasLtCreate(&created));
    return created;
  }();
  return handle;
}

cudaDataType_t cuda_type(DType type) {
  switch (type) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::e4m3:
      return CUDA_R_8F_E4M3;
    case DType::e5m2:
      return CUDA_R_8F_E5M2;
    default:
      internal_error(fmt::format("gemm: no cuBLASLt type for {}", dtype_name(type)),
                     std::source_location::current());
  }
}

/// The alignment classes that may lead to different algorithms: 256 (what planned buffers have), 16 (one
/// vector), or less.
int64_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (address % 256 == 0) return 256;
  for (int64_t bytes = 16; bytes > 1; bytes /= 2)
    if (address % static_cast<uintptr_t>(bytes) == 0) return bytes;
  return 1;
}

template <class T, cublasStatus_t (*destroy)(T)>
struct Destroy {
  using pointer = T;
  void operator()(T handle) const { destroy(handle); }
};
using MatmulDesc = std::unique_ptr<void, Destroy<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>>;
using Layout = std::unique_ptr<void, Destroy<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>>;
using Preference =
    std::unique_ptr<void, Destroy<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>>;

/// The column-major view of a row-major tensor.
Layout layout_of(const Tensor& tensor) {
  cublasLtMatrixLayout_t layout = nullptr;
  TE_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, cuda_type(tensor.dtype),
                                             static_cast<uint64_t>(tensor.cols()),
                                             static_cast<uint64_t>(tensor.rows()), tensor.cols()));
  return Layout(layout);
}

template <class T>
void set(const MatmulDesc& desc, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  TE_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(desc.get(), attribute, &value, sizeof(value)));
}
template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  TE_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)));
}

/// All that the choice of an algorithm depends on.
using Key = std::array<int64_t, 15>;

Key key_of(const Gemm& args) {
  const auto [m, n, k] = gemm_size(args);
  return {m,
          n,
          k,
          static_cast<int64_t>(args.a.dtype),
          static_cast<int64_t>(args.b.dtype),
          static_cast<int64_t>(args.out.dtype),
          args.trans_a,
          args.trans_b,
          args.accumulate,
          static_cast<bool>(args.bias),
          args.fast_accumulation,
          alignment_of(args.a.data),
          alignment_of(args.b.data),
          alignment_of(args.out.data),
          args.bias ? alignment_of(args.bias.data) : 0};
}

struct Plan {
  MatmulDesc desc;
  Layout a, b, out;  ///< of our a, b and out
  cublasLtMatmulAlgo_t algo{};
  bool separate_bias = false;  ///< no such epilogue: prepare_bias, then an accumulating product
};

MatmulDesc make_desc(const Gemm& args) {
  cublasLtMatmulDesc_t created = nullptr;
  TE_CUBLAS_CHECK(cublasLtMatmulDescCreate(&created, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  MatmulDesc desc(created);
  set(desc, CUBLASLT_MATMUL_DESC_TRANSA, args.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(desc, CUBLASLT_MATMUL_DESC_TRANSB, args.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (is_fp8(args.a.dtype))
    set(desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(args.fast_accumulation ? 1 : 0));
  if (args.bias) {
    set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(args.bias.dtype));
  }
  return desc;
}

void set_pointers(const MatmulDesc& desc, const Gemm& args) {
  if (is_fp8(args.a.dtype)) {
    TE_CHECK(reinterpret_cast<uintptr_t>(args.a_scale_inv) % 16 == 0 &&
                 reinterpret_cast<uintptr_t>(args.b_scale_inv) % 16 == 0,
             "gemm: a_scale_inv and b_scale_inv must be aligned to 16 bytes");
    set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, args.b_scale_inv);
    set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, args.a_scale_inv);
  }
  if (args.bias) set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(args.bias.data));
}

Preference make_preference(const Context& context, const Gemm& args) {
  cublasLtMatmulPreference_t created = nullptr;
  TE_CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&created));
  Preference preference(created);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
      static_cast<uint64_t>(context.library_workspace().bytes()));
  // A sum that is split must be put together in FP32: other schemes round partial sums to the output's dtype.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  const auto align = [](const Tensor& tensor) { return static_cast<uint32_t>(alignment_of(tensor.data)); };
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align(args.b));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align(args.a));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align(args.out));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align(args.out));
  return preference;
}

/// The heuristic's candidates, best guess first; none when the library cannot run the problem.
std::vector<cublasLtMatmulAlgo_t> candidates(const Context& context, const Gemm& args, const Plan& plan) {
  const Preference preference = make_preference(context, args);
  std::array<cublasLtMatmulHeuristicResult_t, kMaxCandidates> results{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      library(), plan.desc.get(), plan.b.get(), plan.a.get(), plan.out.get(), plan.out.get(),
      preference.get(), kMaxCandidates, results.data(), &count);
  std::vector<cublasLtMatmulAlgo_t> algos;
  if (status != CUBLAS_STATUS_SUCCESS) return algos;
  for (int i = 0; i < count; ++i)
    if (results[static_cast<size_t>(i)].state == CUBLAS_STATUS_SUCCESS)
      algos.push_back(results[static_cast<size_t>(i)].algo);
  return algos;
}

/// Launches; `destination` is out.data, or scratch while accumulating candidates are timed.
cublasStatus_t launch(const Context& context, const Gemm& args, const Plan& plan,
                      const cublasLtMatmulAlgo_t& algo, void* destination) {
  const float alpha = 1.0f, beta = args.accumulate ? 1.0f : 0.0f;
  const Tensor workspace = context.library_workspace();
  return cublasLtMatmul(library(), plan.desc.get(), &alpha, args.b.data, plan.b.get(), args.a.data,
                        plan.a.get(), &beta, args.out.data, plan.out.get(), destination, plan.out.get(),
                        &algo, workspace.data, workspace.bytes(), cuda_stream(context));
}

/// The fastest candidate. An accumulating product is timed into scratch memory (out stays as it is); where
/// there is no memory for that, the first candidate is taken.
cublasLtMatmulAlgo_t choose(const Context& context, const Gemm& args, const Plan& plan,
                            const std::vector<cublasLtMatmulAlgo_t>& algos) {
  if (!autotune_enabled || algos.size() == 1) return algos.front();
  const TuneScratch scratch(args.accumulate ? args.out.bytes() : 0);
  void* destination = args.accumulate ? scratch.data() : args.out.data;
  if (destination == nullptr) return algos.front();
  const int best = fastest_candidate(cuda_stream(context), static_cast<int>(algos.size()), [&](int i) {
    return launch(context, args, plan, algos[static_cast<size_t>(i)], destination) == CUBLAS_STATUS_SUCCESS;
  });
  return algos[static_cast<size_t>(best)];
}

std::string describe(const Gemm& args) {
  const auto [m, n, k] = gemm_size(args);
  return fmt::format("m {} n {} k {}, a {}{}, b {}{}, out {}{}{}", m, n, k, dtype_name(args.a.dtype),
                     args.trans_a ? " transposed" : "", dtype_name(args.b.dtype),
                     args.trans_b ? " transposed" : "", dtype_name(args.out.dtype),
                     args.accumulate ? " accumulated" : "", args.bias ? ", bias" : "");
}

Plan make_plan(const Context& context, const Gemm& args) {
  Plan plan;
  // cuBLASLt's FP8 products take a BF16 bias only.
  plan.separate_bias = args.bias && is_fp8(args.a.dtype) && args.out.dtype == DType::f32;
  if (plan.separate_bias) return plan;
  plan.desc = make_desc(args);
  plan.a = layout_of(args.a);
  plan.b = layout_of(args.b);
  plan.out = layout_of(args.out);
  set_pointers(plan.desc, args);
  const std::vector<cublasLtMatmulAlgo_t> algos = candidates(context, args, plan);
  if (algos.empty()) {
    TE_CHECK(args.bias, "gemm: cuBLASLt has no algorithm for {}", describe(args));
    plan.separate_bias = true;
    return plan;
  }
  plan.algo = choose(context, args, plan, algos);
  return plan;
}

const Plan& plan_of(const Context& context, const Gemm& args) {
  static std::map<Key, Plan>& plans = *new std::map<Key, Plan>;  // never destroyed, like the library's handle
  const Key key = key_of(args);
  const auto found = plans.find(key);
  if (found != plans.end()) return found->second;
  return plans.emplace(key, make_plan(context, args)).first->second;
}

}  // namespace

void gemm(const Context& context, const Gemm& args) {
  // A plan's descriptor carries the pointers of the call, so planning and launching are one critical section.
  static std::mutex mutex;
  std::unique_lock lock(mutex);
  const Plan& plan = plan_of(context, args);
  if (plan.separate_bias) {
    lock.unlock();
    prepare_bias(context, args.out, args.bias, args.accumulate);
    Gemm rest = args;
    rest.bias = {};
    rest.accumulate = true;
    return cuda::gemm(context, rest);
  }
  set_pointers(plan.desc, args);
  TE_CUBLAS_CHECK(launch(context, args, plan, plan.algo, args.out.data));
}

void set_gemm_autotune(bool enabled) {
  autotune_enabled = enabled;
}

}  // namespace te::kernels::cuda
