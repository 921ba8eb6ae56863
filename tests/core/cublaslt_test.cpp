// The loader of cuBLASLt (core/cublaslt.h), which needs the library but no GPU.
#include <gtest/gtest.h>

#ifdef TE_WITH_CUDA
#include "core/cublaslt.h"

namespace te {
namespace {

TEST(CublasLtLoader, LoadsTheLibraryOfTheBuildsMajorVersion) {
  EXPECT_EQ(cublaslt().version() / 10000, static_cast<size_t>(CUBLAS_VER_MAJOR));
}

}  // namespace
}  // namespace te
#endif
