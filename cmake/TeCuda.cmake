# CUDA toolkit, cuBLASLt, cuDNN, NCCL and cudnn-frontend. Sets TE_HAVE_CUDA and the target te_cuda.
if(NOT CMAKE_CUDA_COMPILER AND DEFINED ENV{CUDACXX})
  set(CMAKE_CUDA_COMPILER $ENV{CUDACXX})
elseif(NOT CMAKE_CUDA_COMPILER)
  # nvcc is often installed but not on the PATH; the wheels of install_deps.sh never are.
  find_program(TE_NVCC nvcc HINTS ${TE_DEPS_DIR}/cuda/bin $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
  if(TE_NVCC)
    set(CMAKE_CUDA_COMPILER ${TE_NVCC})
  endif()
endif()
if(NOT CMAKE_CUDA_COMPILER)
  if(TE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TE_CUDA=ON, but no nvcc was found; run scripts/install_deps.sh or set CUDA_HOME")
  endif()
  return()
endif()

# FP8 GEMMs and TMA need the architecture-specific Hopper target.
set(CMAKE_CUDA_ARCHITECTURES "90a" CACHE STRING "CUDA architectures")
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # one runtime per process: te_cuda links the shared one, too
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  # CMake 3.25 (Debian 12) does not know that nvcc compiles C++20.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
find_package(CUDAToolkit REQUIRED)

# cuDNN and NCCL may be in the toolkit, in the system's folders, or in the wheels.
set(te_include_hints ${TE_DEPS_DIR}/cuda/include ${CUDAToolkit_INCLUDE_DIRS})
set(te_library_hints ${TE_DEPS_DIR}/cuda/lib ${CUDAToolkit_LIBRARY_DIR})
find_path(TE_CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS ${TE_DEPS_DIR}/cudnn-frontend/include)
find_path(TE_CUDNN_INCLUDE cudnn.h HINTS ${te_include_hints})
find_path(TE_NCCL_INCLUDE nccl.h HINTS ${te_include_hints})
find_library(TE_CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${te_library_hints})
find_library(TE_NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${te_library_hints})
foreach(piece TE_CUDNN_FRONTEND_INCLUDE TE_CUDNN_INCLUDE TE_NCCL_INCLUDE TE_CUDNN_LIBRARY TE_NCCL_LIBRARY)
  if(NOT ${piece})
    if(TE_CUDA STREQUAL "ON")
      message(FATAL_ERROR "${piece} not found; run scripts/install_deps.sh")
    endif()
    message(WARNING "CUDA was found but ${piece} was not: building the CPU version. Run scripts/install_deps.sh")
    return()
  endif()
endforeach()

# Executables, including installed ones, must find the libraries of a toolkit that the system's loader does not know.
# CMake omits a compiler's own library folders from the run path, hence the explicit list.
foreach(library ${TE_CUDNN_LIBRARY} ${TE_NCCL_LIBRARY} ${CUDA_cublasLt_LIBRARY} ${CUDA_cudart_LIBRARY})
  get_filename_component(folder ${library} DIRECTORY)
  list(APPEND CMAKE_BUILD_RPATH ${folder})
endforeach()
list(REMOVE_DUPLICATES CMAKE_BUILD_RPATH)
list(APPEND CMAKE_INSTALL_RPATH "$ORIGIN/../lib/te-train" ${CMAKE_BUILD_RPATH})

add_library(te_cuda INTERFACE)
target_compile_definitions(te_cuda INTERFACE TE_WITH_CUDA=1)
target_include_directories(te_cuda SYSTEM INTERFACE
  ${TE_CUDNN_FRONTEND_INCLUDE} ${TE_CUDNN_INCLUDE} ${TE_NCCL_INCLUDE} ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(te_cuda INTERFACE CUDA::cudart CUDA::cublasLt ${TE_CUDNN_LIBRARY} ${TE_NCCL_LIBRARY})
set(TE_CUDA_FLAGS --expt-relaxed-constexpr --expt-extended-lambda -Xcompiler=-Wall)
if(TE_WERROR)
  list(APPEND TE_CUDA_FLAGS --Werror=all-warnings)
endif()
target_compile_options(te_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:${TE_CUDA_FLAGS}>")
# fmt 9 assumes that nvcc does not support constexpr functions, and then fails to compile as C++20.
target_compile_definitions(te_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>")
set(TE_HAVE_CUDA ON)
