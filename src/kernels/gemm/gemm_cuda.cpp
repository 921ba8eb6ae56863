// GEMMs with cuBLASLt.
//
// cuBLASLt's matrices are column-major. A row-major [rows, cols] matrix has the same memory layout as a column-major
// [cols, rows] one, so out = op(a) op(b) is computed as out^T = op(b)^T op(a)^T: cuBLASLt's A is our b, its B is our a,
// and its m, n, k are our n, m, k. The FP8 layout (a [m, k], b [n, k] with trans_b) becomes "TN", the only one that
// Ada and Hopper support. The bias, one value per column of out, becomes one per row of out^T, as the library's
// epilogue requires.
//
// A problem is planned at its first use. The plan consists of descriptors and the algorithm, which is read from the
// file of earlier selections (gemm_cache.h), selected by timing the heuristic's candidates on the device, or the first
// candidate. Later calls look up the plan and launch.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/cublaslt.h"
#include "core/cuda_check.h"
#include "core/device_caps.h"
#include "kernels/gemm/gemm_cache.h"
#include "kernels/gemm/gemm_cuda.h"
#include "kernels/gemm/gemm_tune.h"

#define TE_CUBLAS_CHECK(call)                                                                       \
  do {                                                                                              \
    const cublasStatus_t te_status = (call);                                                        \
    if (te_status != CUBLAS_STATUS_SUCCESS) [[unlikely]]                                            \
      ::te::internal_error(fmt::format("{}: {}", #call, ::te::cublaslt().status_string(te_status)), \
                           std::source_location::current());                                        \
  } while (false)

namespace te::kernels::cuda {
namespace {

/// Limits of a search. `on` must not delay the first run on a machine by more than a few seconds in total.
struct Search {
  int effort;  ///< as stored in the file; 0 there means selected without a search
  int candidates;
  double problem_ms;  ///< host time for one problem
  double process_ms;  ///< host time for all problems of the process
};
constexpr Search kQuick{1, 16, 250.0, 6000.0};
constexpr Search kFull{3, 64, 1e9, 1e9};

double spent_ms = 0.0;  ///< by searches in this process
std::mutex plans_mutex;

const Search& search(const Context& context) {
  return context.options().gemm_autotune == GemmAutotune::full ? kFull : kQuick;
}

cublasLtHandle_t library() {
  // The handle lives as long as the process, because contexts are created and destroyed (in tests) and static
  // destructors may run after the driver has shut down.
  static const cublasLtHandle_t handle = [] {
    cublasLtHandle_t created = nullptr;
    TE_CUBLAS_CHECK(cublaslt().create(&created));
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
    case DType::f16:
      return CUDA_R_16F;
    case DType::e4m3:
      return CUDA_R_8F_E4M3;
    case DType::e5m2:
      return CUDA_R_8F_E5M2;
    case DType::e2m1:
      return CUDA_R_4F_E2M1;
    default:
      internal_error(fmt::format("gemm: no cuBLASLt type for {}", dtype_name(type)),
                     std::source_location::current());
  }
}

/// Alignment classes that may lead to different algorithms: 256 bytes (planned buffers), 16 (one vector), or less.
int64_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (address % 256 == 0) return 256;
  for (int64_t bytes = 16; bytes > 1; bytes /= 2)
    if (address % static_cast<uintptr_t>(bytes) == 0) return bytes;
  return 1;
}

template <class T, cublasStatus_t (*CublasLt::*destroy)(T)>
struct Destroy {
  using pointer = T;
  void operator()(T handle) const { (cublaslt().*destroy)(handle); }
};
using MatmulDesc = std::unique_ptr<void, Destroy<cublasLtMatmulDesc_t, &CublasLt::desc_destroy>>;
using Layout = std::unique_ptr<void, Destroy<cublasLtMatrixLayout_t, &CublasLt::layout_destroy>>;
using Preference = std::unique_ptr<void, Destroy<cublasLtMatmulPreference_t, &CublasLt::preference_destroy>>;

/// Column-major view of a row-major tensor.
Layout layout_of(const Tensor& tensor) {
  cublasLtMatrixLayout_t layout = nullptr;
  TE_CUBLAS_CHECK(cublaslt().layout_create(&layout, cuda_type(tensor.dtype),
                                           static_cast<uint64_t>(tensor.cols()),
                                           static_cast<uint64_t>(tensor.rows()), tensor.cols()));
  return Layout(layout);
}

template <class T>
void set(const MatmulDesc& desc, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  TE_CUBLAS_CHECK(cublaslt().desc_set(desc.get(), attribute, &value, sizeof(value)));
}
template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  TE_CUBLAS_CHECK(cublaslt().preference_set(preference.get(), attribute, &value, sizeof(value)));
}

bool has_factor(const Gemm& args) {
  return args.a.has_factor();
}

/// Bytes of the dense copy of a slice's scales (ScaleLayout::vectors), because cuBLASLt does not support strided
/// scales.
size_t slice_scale_bytes(const Gemm& args) {
  const Matrix& a = args.a;
  if (a.layout != ScaleLayout::vectors || a.scale_stride <= a.rows()) return 0;
  return (a.scales.bytes() + 255) / 256 * 256;
}

/// Most bytes of a slice's scales per call, so that the library keeps most of the workspace.
constexpr size_t kMaxSliceScaleBytes = 8 << 20;

/// Workspace for the library: the context's workspace without its end, which holds a slice's scales, or alpha and beta.
Tensor workspace_of(const Context& context, const Gemm& args) {
  Tensor workspace = context.gemm_workspace();
  const size_t taken = has_factor(args) ? 256 : slice_scale_bytes(args);
  TE_CHECK(taken < workspace.bytes(), "gemm: {} bytes of scales do not fit into the workspace", taken);
  workspace.shape = {static_cast<int64_t>((workspace.bytes() - taken) / dtype_size(workspace.dtype))};
  return workspace;
}

/// Device memory of alpha and beta with factors.
float* coefficients_of(const Context& context, const Gemm& args) {
  const Tensor workspace = workspace_of(context, args);
  return reinterpret_cast<float*>(static_cast<char*>(workspace.data) + workspace.bytes());
}

/// The same GEMM with its scales copied to a dense buffer.
Gemm with_dense_scales(const Context& context, const Gemm& args) {
  if (slice_scale_bytes(args) == 0) return args;
  Gemm dense = args;
  const Tensor workspace = workspace_of(context, args);
  dense.a.scales.data = static_cast<char*>(workspace.data) + workspace.bytes();
  dense.a.scale_stride = 0;
  const size_t row = static_cast<size_t>(args.a.rows()) * sizeof(float);
  TE_CUDA_CHECK(cudaMemcpy2DAsync(
      dense.a.scales.data, row, args.a.scales.data, static_cast<size_t>(args.a.scale_stride) * sizeof(float),
      row, static_cast<size_t>(args.a.scales.rows()), cudaMemcpyDeviceToDevice, cuda_stream(context)));
  return dense;
}

/// Whether FP32 operands are rounded to TF32.
bool in_tf32(const Context& context, const Gemm& args) {
  return context.options().tf32 && args.a.dtype() == DType::f32;
}

/// Everything that the selection of an algorithm depends on.
using Key = std::array<int64_t, 20>;

Key key_of(const Context& context, const Gemm& args) {
  const auto [m, n, k] = gemm_size(args);
  return {m,
          n,
          k,
          static_cast<int64_t>(args.a.dtype()),
          static_cast<int64_t>(args.b.dtype()),
          static_cast<int64_t>(args.out.dtype),
          static_cast<int64_t>(args.a.layout),
          static_cast<int64_t>(args.b.layout),
          args.trans_a,
          args.trans_b,
          args.accumulate,
          static_cast<bool>(args.bias),
          args.fast_accumulation,
          alignment_of(args.a.values.data),
          alignment_of(args.b.values.data),
          alignment_of(args.out.data),
          args.bias ? alignment_of(args.bias.data) : 0,
          static_cast<int64_t>(workspace_of(context, args).bytes()),
          static_cast<int64_t>(context.options().gemm_autotune),
          in_tf32(context, args)};
}

/// cuBLASLt's constant for a scale layout.
cublasLtMatmulMatrixScale_t scale_mode(ScaleLayout layout) {
  switch (layout) {
    case ScaleLayout::rows:
      return CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    case ScaleLayout::vectors:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case ScaleLayout::blocks:
      return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    case ScaleLayout::mx:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
    case ScaleLayout::nvfp4:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
    default:
      return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  }
}

struct Plan {
  MatmulDesc desc;
  Layout a, b, out;  ///< layouts of our a, b and out
  cublasLtMatmulAlgo_t algorithm{};
  bool separate_bias = false;  ///< no such epilogue: prepare_bias, then an accumulating GEMM
};

MatmulDesc make_desc(const Context& context, const Gemm& args) {
  cublasLtMatmulDesc_t created = nullptr;
  TE_CUBLAS_CHECK(cublaslt().desc_create(
      &created, in_tf32(context, args) ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
  MatmulDesc desc(created);
  set(desc, CUBLASLT_MATMUL_DESC_TRANSA, args.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(desc, CUBLASLT_MATMUL_DESC_TRANSB, args.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (is_fp8(args.a.dtype()))
    set(desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(args.fast_accumulation ? 1 : 0));
  if (has_factor(args)) {
    set(desc, CUBLASLT_MATMUL_DESC_POINTER_MODE, static_cast<int32_t>(CUBLASLT_POINTER_MODE_DEVICE));
  }
  if (is_quantized(args.a.dtype()) && args.a.layout != ScaleLayout::tensor) {
    set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode(args.b.layout));
    set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(args.a.layout));
  }
  set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, args.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT);
  if (args.bias) set(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(args.bias.dtype));
  return desc;
}

void set_pointers(const MatmulDesc& desc, const Gemm& args) {
  if (is_quantized(args.a.dtype())) {
    const void *of_a = args.a.scales.data, *of_b = args.b.scales.data;
    TE_CHECK(reinterpret_cast<uintptr_t>(of_a) % 16 == 0 && reinterpret_cast<uintptr_t>(of_b) % 16 == 0,
             "gemm: scales of a and b must be 16-byte aligned");
    set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of_b);
    set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of_a);
  }
  if (args.bias) set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(args.bias.data));
}

Preference make_preference(const Context& context, const Gemm& args) {
  cublasLtMatmulPreference_t created = nullptr;
  TE_CUBLAS_CHECK(cublaslt().preference_create(&created));
  Preference preference(created);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
      static_cast<uint64_t>(workspace_of(context, args).bytes()));
  // Split-k sums must be reduced in FP32; other schemes round partial sums to the output's dtype.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  const auto align = [](const Tensor& tensor) { return static_cast<uint32_t>(alignment_of(tensor.data)); };
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align(args.b.values));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align(args.a.values));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align(args.out));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align(args.out));
  return preference;
}

/// The heuristic's candidates, best first; none if the library cannot compute the problem.
std::vector<cublasLtMatmulAlgo_t> candidates(const Context& context, const Gemm& args, const Plan& plan,
                                             int max_candidates) {
  const Preference preference = make_preference(context, args);
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(max_candidates));
  int count = 0;
  const cublasStatus_t status =
      cublaslt().algo_heuristic(library(), plan.desc.get(), plan.b.get(), plan.a.get(), plan.out.get(),
                                plan.out.get(), preference.get(), max_candidates, results.data(), &count);
  std::vector<cublasLtMatmulAlgo_t> choices;
  if (status != CUBLAS_STATUS_SUCCESS) return choices;
  for (int i = 0; i < count; ++i)
    if (results[static_cast<size_t>(i)].state == CUBLAS_STATUS_SUCCESS)
      choices.push_back(results[static_cast<size_t>(i)].algo);
  return choices;
}

/// Launches a candidate. `destination` is the result's data, or scratch while accumulating candidates are timed.
cublasStatus_t launch(const Context& context, const Gemm& args, const Plan& plan,
                      const cublasLtMatmulAlgo_t& algorithm, void* destination) {
  const float alpha = 1.0f, beta = args.accumulate ? 1.0f : 0.0f;
  const float* const device = has_factor(args) ? coefficients_of(context, args) : nullptr;
  const Tensor workspace = workspace_of(context, args);
  return cublaslt().matmul(
      library(), plan.desc.get(), device != nullptr ? device : &alpha, args.b.values.data, plan.b.get(),
      args.a.values.data, plan.a.get(), device != nullptr ? device + 1 : &beta, args.out.data, plan.out.get(),
      destination, plan.out.get(), &algorithm, workspace.data, workspace.bytes(), cuda_stream(context));
}

/// Describes the scale layouts; empty for one scale per tensor, which keeps the keys of existing cache files valid.
std::string scale_words(const Gemm& args) {
  const auto word = [](ScaleLayout layout) {
    return layout == ScaleLayout::rows      ? "rows"
           : layout == ScaleLayout::vectors ? "vectors"
           : layout == ScaleLayout::factor  ? "factor"
           : layout == ScaleLayout::mx      ? "mx"
           : layout == ScaleLayout::nvfp4   ? "nvfp4"
                                            : "blocks";
  };
  if (args.a.layout == ScaleLayout::none || args.a.layout == ScaleLayout::tensor) return "";
  if (args.a.layout == args.b.layout) return fmt::format(", scales by {}", word(args.a.layout));
  return fmt::format(", scales by {} and {}", word(args.a.layout), word(args.b.layout));
}

std::string describe(const Gemm& args) {
  const auto [m, n, k] = gemm_size(args);
  return fmt::format("m {} n {} k {}, a {}{}, b {}{}, out {}{}{}{}", m, n, k, dtype_name(args.a.dtype()),
                     args.trans_a ? " transposed" : "", dtype_name(args.b.dtype()),
                     args.trans_b ? " transposed" : "", dtype_name(args.out.dtype),
                     args.accumulate ? " accumulated" : "", args.bias ? ", bias" : "", scale_words(args));
}

/// Selections of earlier processes on this GPU.
GemmCache& cache_of(const Context& context) {
  static GemmCache& cache =
      *new GemmCache(GemmCache::default_folder(), context.info().name, cublaslt().version());
  return cache;
}

/// Key of the problem in the cache file: everything in Key except the search options.
std::string cache_key(const Context& context, const Gemm& args) {
  return fmt::format("{}{}{}, alignment {} {} {} {}, workspace {}", describe(args),
                     args.fast_accumulation ? ", fast accumulation" : "",
                     in_tf32(context, args) ? ", TF32" : "", alignment_of(args.a.values.data),
                     alignment_of(args.b.values.data), alignment_of(args.out.data),
                     args.bias ? alignment_of(args.bias.data) : 0, workspace_of(context, args).bytes());
}

/// A selection as stored in the file.
std::vector<uint8_t> bytes_of(const cublasLtMatmulAlgo_t& algorithm) {
  std::vector<uint8_t> bytes(sizeof(algorithm));
  std::memcpy(bytes.data(), &algorithm, sizeof(algorithm));
  return bytes;
}

/// Copies an earlier selection to the plan, if there is one of sufficient effort that this library can run.
bool take_cached(const Context& context, const Gemm& args, Plan& plan) {
  GemmCache& cache = cache_of(context);
  const std::string key = cache_key(context, args);
  const GemmCache::Entry* entry = cache.find(key);
  if (entry == nullptr ||
      (context.options().gemm_autotune == GemmAutotune::full && entry->effort < kFull.effort))
    return false;
  cublasLtMatmulAlgo_t algo{};
  cublasLtMatmulHeuristicResult_t result{};
  if (entry->algorithm.size() == sizeof(algo)) {
    std::memcpy(&algo, entry->algorithm.data(), sizeof(algo));
    const cublasStatus_t status =
        cublaslt().algo_check(library(), plan.desc.get(), plan.b.get(), plan.a.get(), plan.out.get(),
                              plan.out.get(), &algo, &result);
    if (status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= workspace_of(context, args).bytes()) {
      plan.algorithm = algo;
      return true;
    }
  }
  cache.drop(key);
  return false;
}

/// The fastest candidate, and the effort spent. An accumulating GEMM is timed into scratch memory, so out keeps its
/// values. Without memory for that, or when the time for searches is spent, the first candidate is selected without a
/// search.
std::pair<cublasLtMatmulAlgo_t, int> search_fastest(const Context& context, const Gemm& args,
                                                    const Plan& plan,
                                                    const std::vector<cublasLtMatmulAlgo_t>& choices) {
  const TuneScratch scratch(cuda_stream(context), args.accumulate ? args.out.bytes() : 0);
  void* destination = args.accumulate ? scratch.data() : args.out.data;
  if (destination == nullptr || spent_ms > search(context).process_ms) return {choices.front(), 0};
  const auto start = std::chrono::steady_clock::now();
  const TuneOptions options{
      .working_set = args.a.values.bytes() + args.b.values.bytes() + 2 * args.out.bytes(),
      .budget_ms = search(context).problem_ms,
      .under_load = context.options().gemm_autotune == GemmAutotune::full};
  const int best =
      fastest_candidate(cuda_stream(context), static_cast<int>(choices.size()), options, [&](int i) {
        return launch(context, args, plan, choices[static_cast<size_t>(i)], destination) ==
               CUBLAS_STATUS_SUCCESS;
      });
  const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - start;
  spent_ms += spent.count();
  return {choices[static_cast<size_t>(best)], search(context).effort};
}

/// Selects an algorithm for this process and all others that share the file, or uses another one's new selection.
void choose(const Context& context, const Gemm& args, Plan& plan,
            const std::vector<cublasLtMatmulAlgo_t>& choices) {
  // A rank that holds the lock must not wait for ranks that wait for the lock. A collective on any CUDA stream of this
  // device ends only after the other ranks have launched it, and CUDA may wait for all streams when it loads a
  // candidate's kernel. So all work on the device must finish before the lock is acquired.
  TE_CUDA_CHECK(cudaDeviceSynchronize());
  const auto lock = cache_of(context).search();
  if (take_cached(context, args, plan)) return;
  const auto [algorithm, effort] = search_fastest(context, args, plan, choices);
  plan.algorithm = algorithm;
  cache_of(context).add(cache_key(context, args), {effort, bytes_of(algorithm)});
}

Plan make_plan(const Context& context, const Gemm& args) {
  Plan plan;
  // cuBLASLt's FP8 GEMMs support only a BF16 bias.
  plan.separate_bias = args.bias && is_quantized(args.a.dtype()) && args.out.dtype == DType::f32;
  if (plan.separate_bias) return plan;
  plan.desc = make_desc(context, args);
  plan.a = layout_of(args.a.values);
  plan.b = layout_of(args.b.values);
  plan.out = layout_of(args.out);
  set_pointers(plan.desc, with_dense_scales(context, args));
  const GemmAutotune autotune = context.options().gemm_autotune;
  if (autotune != GemmAutotune::off && take_cached(context, args, plan)) return plan;
  const bool searching = autotune == GemmAutotune::on || autotune == GemmAutotune::full;
  const auto choices = candidates(context, args, plan, searching ? search(context).candidates : 1);
  if (choices.empty()) {
    TE_CHECK(args.bias, "gemm: cuBLASLt has no algorithm for {}", describe(args));
    plan.separate_bias = true;
    return plan;
  }
  plan.algorithm = choices.front();
  if (searching && choices.size() > 1) choose(context, args, plan, choices);
  return plan;
}

/// Guarded by plans_mutex. Never destroyed, like the library's handle.
std::map<Key, Plan>& plans() {
  static std::map<Key, Plan>& all = *new std::map<Key, Plan>;
  return all;
}

const Plan& plan_of(const Context& context, const Gemm& args) {
  const Key key = key_of(context, args);
  const auto found = plans().find(key);
  if (found != plans().end()) return found->second;
  return plans().emplace(key, make_plan(context, args)).first->second;
}

void check_abilities(const Context& context, const Gemm& args) {
  if (!is_quantized(args.a.dtype())) return;
  const DeviceCaps& caps = device_caps(context);
  const bool of_groups = scale_dtype(args.a.layout) == DType::u8 ? caps.mx : caps.fp8_scale_groups;
  if (!caps.fp8 || (args.a.layout != ScaleLayout::tensor && !of_groups))
    user_error("gemm: {} has no FP8 GEMMs{}", caps.gpu, caps.fp8 ? " with such scales" : "");
}

}  // namespace

GemmKernels gemm_kernels(const Context& context, const Gemm& args) {
  if (fits_few_rows(args)) return GemmKernels::few_rows;
  if (args.a.dtype() == DType::f32 && !in_tf32(context, args)) return GemmKernels::cublaslt_fp32;
  const auto suits_tma = [](const Tensor& tensor) {
    const int64_t row_bytes = dtype_bytes(tensor.dtype, tensor.cols());
    return row_bytes % 16 == 0 && alignment_of(tensor.data) >= 16;
  };
  return suits_tma(args.a.values) && suits_tma(args.b.values) && suits_tma(args.out)
             ? GemmKernels::cublaslt
             : GemmKernels::cublaslt_unaligned;
}

void gemm(const Context& context, const Gemm& args) {
  check_abilities(context, args);
  if (gemm_few_rows(context, args)) return;
  if (slice_scale_bytes(args) > kMaxSliceScaleBytes) {
    const int64_t rows = args.a.rows(), half = rows / 2 / kScaleBlock * kScaleBlock;
    for (const auto& [first, count] : {std::pair(int64_t{0}, half), std::pair(half, rows - half)}) {
      Gemm part = args;
      part.a = args.a.slice_rows(first, count), part.out = args.out.slice_rows(first, count);
      cuda::gemm(context, part);
    }
    return;
  }
  // A plan's descriptor holds the pointers of the current call, so planning and launching are one critical section.
  std::unique_lock lock(plans_mutex);
  if (has_factor(args))
    prepare_coefficients(context, args.a.tensor_factor(), args.b.tensor_factor(), args.accumulate,
                         coefficients_of(context, args));
  const Plan& plan = plan_of(context, args);
  if (plan.separate_bias) {
    lock.unlock();
    prepare_bias(context, args.out, args.bias, args.accumulate);
    Gemm rest = args;
    rest.bias = {};
    rest.accumulate = true;
    return cuda::gemm(context, rest);
  }
  set_pointers(plan.desc, with_dense_scales(context, args));
  TE_CUBLAS_CHECK(launch(context, args, plan, plan.algorithm, args.out.data));
}

}  // namespace te::kernels::cuda
