# Finds the dependencies of te-train. scripts/install_deps.sh installs them; PyPI wheels (CUDA without a
# toolkit, cudnn-frontend) are unpacked to .deps/ and found there.
set(TE_DEPS_DIR ${CMAKE_SOURCE_DIR}/.deps CACHE PATH "Folder of dependencies fetched by scripts/install_deps.sh")

find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(MPI REQUIRED COMPONENTS CXX)
find_package(ZLIB REQUIRED)
find_package(LibLZMA REQUIRED)

# Uses the library, not the header's inline functions, which do not compile for AVX-512 without optimization.
find_path(TE_XXHASH_INCLUDE xxhash.h REQUIRED)
find_library(TE_XXHASH_LIBRARY xxhash REQUIRED)
add_library(te_xxhash INTERFACE)
target_include_directories(te_xxhash SYSTEM INTERFACE ${TE_XXHASH_INCLUDE})
target_link_libraries(te_xxhash INTERFACE ${TE_XXHASH_LIBRARY})

# Distributions ship zstd without a CMake package.
find_path(TE_ZSTD_INCLUDE zstd.h REQUIRED)
find_library(TE_ZSTD_LIBRARY zstd REQUIRED)
add_library(te_zstd INTERFACE)
target_include_directories(te_zstd SYSTEM INTERFACE ${TE_ZSTD_INCLUDE})
target_link_libraries(te_zstd INTERFACE ${TE_ZSTD_LIBRARY})

find_path(TE_CBLAS_INCLUDE cblas.h PATH_SUFFIXES openblas x86_64-linux-gnu openblas-openmp openblas-pthread REQUIRED)
find_library(TE_OPENBLAS_LIBRARY openblas REQUIRED)
add_library(te_openblas INTERFACE)
target_include_directories(te_openblas SYSTEM INTERFACE ${TE_CBLAS_INCLUDE})
target_link_libraries(te_openblas INTERFACE ${TE_OPENBLAS_LIBRARY})

# Tokenizers: regular expressions, Unicode normal forms, SentencePiece models. None has CMake files on Debian.
find_path(TE_PCRE2_INCLUDE pcre2.h REQUIRED)
find_library(TE_PCRE2_LIBRARY pcre2-8 REQUIRED)
find_path(TE_UTF8PROC_INCLUDE utf8proc.h REQUIRED)
find_library(TE_UTF8PROC_LIBRARY utf8proc REQUIRED)
find_path(TE_SENTENCEPIECE_INCLUDE sentencepiece_processor.h REQUIRED)
find_library(TE_SENTENCEPIECE_LIBRARY sentencepiece REQUIRED)
add_library(te_tokenizer_libraries INTERFACE)
target_include_directories(te_tokenizer_libraries SYSTEM INTERFACE
  ${TE_PCRE2_INCLUDE} ${TE_UTF8PROC_INCLUDE} ${TE_SENTENCEPIECE_INCLUDE})
target_link_libraries(te_tokenizer_libraries INTERFACE
  ${TE_PCRE2_LIBRARY} ${TE_UTF8PROC_LIBRARY} ${TE_SENTENCEPIECE_LIBRARY})
# Since version 0.2 SentencePiece's header uses Abseil's types, but its package does not contain Abseil's headers.
file(STRINGS ${TE_SENTENCEPIECE_INCLUDE}/sentencepiece_processor.h te_sentencepiece_abseil REGEX "include <absl/")
if(te_sentencepiece_abseil)
  find_package(absl REQUIRED)
  target_link_libraries(te_tokenizer_libraries INTERFACE absl::status absl::span absl::strings)
endif()

# yaml-cpp 0.8 exports yaml-cpp::yaml-cpp, 0.7 the plain name.
add_library(te_yaml INTERFACE)
if(TARGET yaml-cpp::yaml-cpp)
  target_link_libraries(te_yaml INTERFACE yaml-cpp::yaml-cpp)
else()
  target_link_libraries(te_yaml INTERFACE yaml-cpp)
endif()

set(TE_HAVE_CUDA OFF)
if(NOT TE_CUDA STREQUAL "OFF")
  include(TeCuda)
endif()
message(STATUS "te-train: CUDA backend ${TE_HAVE_CUDA}")
