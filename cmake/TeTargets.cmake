# Precompiled headers contain headers that nearly all sources include. Libraries are compiled with -fPIC and executables
# with -fPIE, which need separate precompiled headers. Sources must still include what they use: fuzzing and tidy builds
# have no precompiled headers (TE_PCH=OFF).
#
# GCC 13 and later refuse a precompiled header that was compiled at another optimization level (-O2 implies
# -munroll-only-small-loops). A target with its own level therefore has a header of that level (te_optimize on both), or
# none.
set(TE_PCH_HEADERS <algorithm> <array> <chrono> <cmath> <cstdint> <cstring> <filesystem> <fstream> <functional> <map> <memory>
  <optional> <string> <string_view> <unordered_map> <utility> <vector> <nlohmann/json.hpp>
  <spdlog/fmt/fmt.h>)
set(TE_PCH_LINKS spdlog::spdlog nlohmann_json::nlohmann_json OpenMP::OpenMP_CXX Threads::Threads)

# te_pch(NAME LIBRARY|EXECUTABLE LINKS ... HEADERS ...): creates a target that owns a precompiled header.
function(te_pch name kind)
  cmake_parse_arguments(ARG "" "" "LINKS;HEADERS" ${ARGN})
  if(NOT TE_PCH)
    return()
  endif()
  set(source ${CMAKE_BINARY_DIR}/${name}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "int main() {}\n")
  if(kind STREQUAL "LIBRARY")
    add_library(${name} OBJECT EXCLUDE_FROM_ALL ${source})
  else()
    add_executable(${name} EXCLUDE_FROM_ALL ${source})
  endif()
  target_link_libraries(${name} PRIVATE te_flags ${ARG_LINKS})
  list(TRANSFORM ARG_HEADERS REPLACE "(.+)" "$<$<COMPILE_LANGUAGE:CXX>:\\1>")
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
endfunction()

# te_optimize(TARGET LEVEL): compiles the target, or the owner of a precompiled header, at LEVEL (such as -O1) in
# release builds.
function(te_optimize target level)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${level}>")
  endif()
endfunction()

# te_compile_quickly(TARGET): for code of tests. Call it after linking te_flags, whose options it overrides.
function(te_compile_quickly target)
  target_link_libraries(${target} PRIVATE te_quick_flags)
endfunction()

# te_use_pch(TARGET NAME): compiles TARGET with the precompiled header of NAME.
function(te_use_pch target name)
  if(TE_PCH)
    target_precompile_headers(${target} REUSE_FROM ${name})
  endif()
endfunction()

# te_unity(TARGET N): compiles N sources of TARGET together (0: all of them). Names in unnamed namespaces must therefore
# be unique in a folder.
function(te_unity target batch)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${TE_UNITY} UNITY_BUILD_BATCH_SIZE ${batch})
endfunction()

# Optimization of code that is not in loops over data: command lines, tables, control flow.
set(TE_LITTLE -O1)

# te_library(NAME [LITTLE_OPTIMIZED] [SM90A sources] DEPENDS ...): creates the library of src/NAME. CUDA sources named
# after SM90A are compiled only for that architecture, and left out of builds without it. LITTLE_OPTIMIZED is for
# libraries without loops over data: TE_LITTLE takes a third less time to compile than -O3.
#
# Headers are included as "NAME/file.h". The include path of each library is a folder of symbolic links with only its
# own headers. Headers of other libraries are visible only if DEPENDS names them, so that includes against the
# architecture do not compile.
function(te_library name)
  cmake_parse_arguments(ARG "LITTLE_OPTIMIZED" "" "SM90A;DEPENDS" ${ARGN})
  set(farm ${CMAKE_BINARY_DIR}/include/${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS *.cpp)
  list(FILTER sources EXCLUDE REGEX "_cuda\\.cpp$")
  if(TE_HAVE_CUDA)
    file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS *.cu *_cuda.cpp)
    if(ARG_SM90A)
      list(REMOVE_ITEM cuda_sources ${ARG_SM90A})
    endif()
    set_source_files_properties(${cuda_sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    list(APPEND sources ${cuda_sources})
    if(ARG_SM90A AND TE_HAVE_SM90A)
      add_library(te_${name}_sm90a OBJECT ${ARG_SM90A})
      set_target_properties(te_${name}_sm90a PROPERTIES CUDA_ARCHITECTURES 90a-real)
      target_include_directories(te_${name}_sm90a PRIVATE ${farm})
      target_link_libraries(te_${name}_sm90a PRIVATE ${ARG_DEPENDS} te_cuda te_flags)
      list(APPEND sources $<TARGET_OBJECTS:te_${name}_sm90a>)
    endif()
  endif()
  add_library(te_${name} STATIC ${sources})
  if(TE_HAVE_CUDA AND TE_UNOPTIMIZED_KERNELS AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.9)
    target_compile_options(te_${name} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-Ofc=max>")
  endif()
  file(MAKE_DIRECTORY ${farm})
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR} ${farm}/${name} SYMBOLIC)
  target_include_directories(te_${name} PUBLIC ${farm})
  target_link_libraries(te_${name} PUBLIC ${ARG_DEPENDS} PRIVATE te_flags)
  if(ARG_LITTLE_OPTIMIZED AND CMAKE_BUILD_TYPE STREQUAL "Release")
    te_optimize(te_${name} ${TE_LITTLE})
    te_use_pch(te_${name} te_little_optimized_pch)
  else()
    te_use_pch(te_${name} te_library_pch)
  endif()
  te_unity(te_${name} 12)
  if(TE_HAVE_CUDA)
    target_link_libraries(te_${name} PUBLIC te_cuda)
  endif()
endfunction()


# All executables, as cmake --install needs them.
add_custom_target(executables)

# te_app(NAME [FOLDER folder] DEPENDS ...): creates the executable of apps/NAME.cpp and apps/folder/*.cpp, installed to
# bin/.
function(te_app name)
  cmake_parse_arguments(ARG "" "FOLDER" "DEPENDS" ${ARGN})
  set(sources ${name}.cpp)
  if(ARG_FOLDER)
    file(GLOB folder_sources CONFIGURE_DEPENDS ${ARG_FOLDER}/*.cpp)
    list(APPEND sources ${folder_sources})
  endif()
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS} te_apps te_flags)
  te_use_pch(${name} te_app_pch)
  te_unity(${name} 0)
  te_optimize(${name} ${TE_LITTLE})
  add_dependencies(executables ${name})
  install(TARGETS ${name} RUNTIME DESTINATION bin)
  te_completion(${name})
endfunction()

# te_completion(NAME): installs the completion script for bash that the executable prints.
function(te_completion name)
  if(TE_SANITIZE OR TE_FUZZ)
    return()
  endif()
  set(script ${CMAKE_BINARY_DIR}/completions/${name})
  add_custom_command(OUTPUT ${script} DEPENDS ${name} ${CMAKE_SOURCE_DIR}/cmake/WriteOutput.cmake
    COMMAND ${CMAKE_COMMAND} -P ${CMAKE_SOURCE_DIR}/cmake/WriteOutput.cmake ${script} $<TARGET_FILE:${name}> --completion bash
    COMMENT "Writing the completion script of ${name}" VERBATIM)
  add_custom_target(${name}-completion ALL DEPENDS ${script})
  add_dependencies(executables ${name}-completion)
  include(GNUInstallDirs)
  install(FILES ${script} DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
endfunction()

# te_tests(FOLDER [THREADS n] DEPENDS ...): adds tests/FOLDER/*_test.cpp on the CPU, and *_gpu_test.cpp and .cu (label
# gpu; .cu and flash_* only for 90a) on a GPU. Files named *_mpi_test.cpp and *_mpi_gpu_test.cpp belong to te_mpi_tests.
# THREADS sets the number of OpenMP threads of the CPU tests, independent of OMP_NUM_THREADS. Paths are compile
# definitions, so tests run from any directory.
function(te_tests folder)
  cmake_parse_arguments(ARG "" "THREADS" "DEPENDS" ${ARGN})
  file(GLOB cpu_sources CONFIGURE_DEPENDS *_test.cpp)
  list(FILTER cpu_sources EXCLUDE REGEX "_(gpu|mpi)_test\\.cpp$")
  file(GLOB gpu_sources CONFIGURE_DEPENDS *_gpu_test.cpp *_gpu_test.cu)
  list(FILTER gpu_sources EXCLUDE REGEX "_mpi_gpu_test\\.cpp$")
  if(NOT TE_HAVE_SM90A)
    list(FILTER gpu_sources EXCLUDE REGEX "\\.cu$|/flash_[a-z_]*\\.cpp$")
  endif()
  if(cpu_sources)
    set(te_test_properties)
    if(ARG_THREADS)
      set(te_test_properties ENVIRONMENT OMP_NUM_THREADS=${ARG_THREADS})
    endif()
    te_test_executable(test_${folder} "cpu" "${ARG_DEPENDS}" ${cpu_sources})
    set(te_test_properties)
  endif()
  if(gpu_sources AND TE_HAVE_CUDA)
    te_test_executable(test_${folder}_gpu "gpu" "${ARG_DEPENDS}" ${gpu_sources})
    set_target_properties(test_${folder}_gpu PROPERTIES CUDA_ARCHITECTURES 90a-real)
  endif()
endfunction()

# Properties of tests with the label cpu. Executables that choose their device see no GPU, because these tests expect
# results of the CPU.
set(TE_CPU_TEST LABELS cpu ENVIRONMENT_MODIFICATION CUDA_VISIBLE_DEVICES=set:)
set(TE_GPU_TEST LABELS gpu)

function(te_test_executable target label depends)
  string(TOUPPER ${label} kind)
  add_executable(${target} ${ARGN})
  target_link_libraries(${target} PRIVATE ${depends} te_testing GTest::gtest_main te_flags)
  te_use_pch(${target} te_test_pch)
  te_compile_quickly(${target})
  te_unity(${target} 12)
  target_compile_definitions(${target} PRIVATE
    TE_SOURCE_DIR="${CMAKE_SOURCE_DIR}" TE_BINARY_DIR="${CMAKE_BINARY_DIR}")
  # Discovery at test time, since the build machine may not be able to load CUDA's libraries.
  gtest_discover_tests(${target} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120
    PROPERTIES ${TE_${kind}_TEST} TIMEOUT 600 ${te_test_properties})
endfunction()

# Options for starting ranks in tests: more ranks than cores, in containers, as root, on one host. ob1 and no transport
# of networks, because these search for networks at every start, and "ofi" sleeps for a second in each MPI_Finalize; TCP
# warns on hosts that have only loopback. TE_MPI_ENVIRONMENT applies to all tests under mpirun. Open MPI 4 reads OMPI_*,
# Open MPI 5 also PRTE_*.
set(TE_MPI_LEAKS LSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/testing/mpi_leaks.supp:print_suppressions=0)
set(TE_MPI_START
  OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_pml=ob1
  OMPI_MCA_btl=^tcp,ofi,openib,uct,usnic OMPI_MCA_rmaps_base_oversubscribe=1
  OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
  PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe")
set(TE_MPI_ENVIRONMENT ${TE_MPI_START} ${TE_MPI_LEAKS})
# A shell command for tests that start jobs; they append the number of ranks and the program. In sanitizer builds,
# checks for use after return (tests of one rank) and for leaks (ranks of tests, executables without mpirun) are off in
# these jobs, which run the same code: each takes much time. Tests preload libraries (stop_rank.cpp) before that of the
# sanitizers.
set(te_start ${TE_MPI_START})
if(TE_SANITIZE)
  list(APPEND TE_MPI_ENVIRONMENT ASAN_OPTIONS=detect_stack_use_after_return=0)
  list(APPEND te_start ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0:verify_asan_link_order=0)
endif()
string(JOIN " " TE_MPIRUN env ${te_start} ${MPIEXEC_EXECUTABLE} ${MPIEXEC_PREFLAGS} ${MPIEXEC_NUMPROC_FLAG})

# te_mpi_tests(FOLDER NP 1 2 4 DEPENDS ...): adds tests/FOLDER/*_mpi_test.cpp under mpirun, once for every number of
# ranks, and *_mpi_gpu_test.cpp (label gpu), which are skipped if there are fewer GPUs than ranks. Each run is one
# ctest. GPU_NP sets other numbers of ranks for the GPU tests; GPU_SHARDS divides them into so many ctests, which run
# concurrently on one GPU.
function(te_mpi_tests folder)
  cmake_parse_arguments(ARG "" "GPU_SHARDS" "NP;GPU_NP;DEPENDS" ${ARGN})
  if(NOT ARG_GPU_SHARDS)
    set(ARG_GPU_SHARDS 1)
  endif()
  if(NOT ARG_GPU_NP)
    set(ARG_GPU_NP ${ARG_NP})
  endif()
  file(GLOB cpu_sources CONFIGURE_DEPENDS *_mpi_test.cpp)
  file(GLOB gpu_sources CONFIGURE_DEPENDS *_mpi_gpu_test.cpp)
  if(cpu_sources)
    te_mpi_test_executable(test_${folder}_mpi "cpu" "${ARG_DEPENDS}" "${ARG_NP}" 1 ${cpu_sources})
  endif()
  if(gpu_sources AND TE_HAVE_CUDA)
    te_mpi_test_executable(test_${folder}_mpi_gpu "gpu" "${ARG_DEPENDS}" "${ARG_GPU_NP}" ${ARG_GPU_SHARDS}
                           ${gpu_sources})
    target_compile_definitions(test_${folder}_mpi_gpu PRIVATE TE_MPI_TESTS_NEED_GPUS)
  endif()
endfunction()

function(te_mpi_test_executable target label depends ranks shards)
  string(TOUPPER ${label} kind)
  add_executable(${target} ${ARGN} ${CMAKE_SOURCE_DIR}/tests/testing/mpi_main.cpp)
  target_link_libraries(${target} PRIVATE ${depends} te_parallel te_testing te_flags)
  te_use_pch(${target} te_test_pch)
  te_compile_quickly(${target})
  te_unity(${target} 12)
  target_compile_definitions(${target} PRIVATE TE_SOURCE_DIR="${CMAKE_SOURCE_DIR}" TE_BINARY_DIR="${CMAKE_BINARY_DIR}")
  foreach(np ${ranks})
    # In sanitizer builds eight processes on a few cores take minutes; four processes run the same code.
    if(TE_SANITIZE AND np GREATER 4)
      continue()
    endif()
    foreach(shard RANGE 1 ${shards})
      set(name ${target}.np${np})
      set(environment ${TE_MPI_ENVIRONMENT})
      if(shards GREATER 1)
        set(name ${target}.${shard}of${shards}.np${np})
        math(EXPR index "${shard} - 1")
        list(APPEND environment GTEST_TOTAL_SHARDS=${shards} GTEST_SHARD_INDEX=${index})
      endif()
      add_test(NAME ${name}
               COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${np} ${MPIEXEC_PREFLAGS} $<TARGET_FILE:${target}>)
      # As many slots of ctest -j as ranks, since ranks wait by polling: beside other tests on two cores four ranks took
      # three times as long. COST: they take longest, so ctest starts them first.
      set_tests_properties(${name} PROPERTIES ${TE_${kind}_TEST} TIMEOUT 600 PROCESSORS ${np}
                           SKIP_RETURN_CODE 77 COST ${np} ENVIRONMENT "${environment}")
    endforeach()
  endforeach()
endfunction()
