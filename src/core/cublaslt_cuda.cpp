#include <dlfcn.h>

#include "core/cublaslt.h"
#include "core/error.h"

namespace te {
namespace {

const std::string& library_name() {
  static const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  return name;
}

template <class Function>
void load(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr)
    user_error("{} has no function {}; install cuBLAS of CUDA {}", library_name(), name, CUBLAS_VER_MAJOR);
}

CublasLt load_all() {
  void* const library = ::dlopen(library_name().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = ::dlerror();
    user_error(
        "cuBLASLt cannot be loaded: {}; install cuBLAS of CUDA {}, or name its folder in LD_LIBRARY_PATH",
        reason != nullptr ? reason : library_name(), CUBLAS_VER_MAJOR);
  }
  CublasLt lt;
  load(library, "cublasLtCreate", lt.create);
  load(library, "cublasLtGetStatusString", lt.status_string);
  load(library, "cublasLtGetVersion", lt.version);
  load(library, "cublasLtMatmul", lt.matmul);
  load(library, "cublasLtMatmulAlgoCheck", lt.algo_check);
  load(library, "cublasLtMatmulAlgoGetHeuristic", lt.algo_heuristic);
  load(library, "cublasLtMatmulDescCreate", lt.desc_create);
  load(library, "cublasLtMatmulDescDestroy", lt.desc_destroy);
  load(library, "cublasLtMatmulDescSetAttribute", lt.desc_set);
  load(library, "cublasLtMatmulPreferenceCreate", lt.preference_create);
  load(library, "cublasLtMatmulPreferenceDestroy", lt.preference_destroy);
  load(library, "cublasLtMatmulPreferenceSetAttribute", lt.preference_set);
  load(library, "cublasLtMatrixLayoutCreate", lt.layout_create);
  load(library, "cublasLtMatrixLayoutDestroy", lt.layout_destroy);
  return lt;
}

}  // namespace

const CublasLt& cublaslt() {
  static const CublasLt lt = load_all();
  return lt;
}

}  // namespace te
