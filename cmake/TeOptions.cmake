# Options and compiler flags: all settings of a build.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release or RelWithDebInfo" FORCE)
endif()

set(TE_CUDA "AUTO" CACHE STRING "CUDA backend: ON, OFF, or AUTO (on where a CUDA compiler is found)")
set_property(CACHE TE_CUDA PROPERTY STRINGS AUTO ON OFF)
option(TE_BUILD_TESTS "Build the test suite" ON)
option(TE_NATIVE "Tune host code for this machine (-march=native)" ON)
option(TE_SANITIZE "AddressSanitizer and UndefinedBehaviorSanitizer for host code" OFF)
option(TE_FUZZ "libFuzzer targets of fuzz/, with sanitizers; needs clang" OFF)
option(TE_WERROR "Treat warnings as errors, as in CI; newer compilers may have more warnings" OFF)
option(TE_UNOPTIMIZED_KERNELS "Only check that CUDA kernels compile: optimize those for 90a alone" OFF)
option(TE_PCH "Precompiled standard headers; OFF shows files with missing includes" ON)
option(TE_UNITY "Compile the sources of a library or executable together: faster full builds; OFF: faster small changes" ON)

add_library(te_flags INTERFACE)
# -ffp-contract=off: the CPU backend is the reference, so its results must not depend on whether the
# compiler fuses a multiply-add. Code that needs a fused multiply-add calls std::fma.
set(TE_HOST_FLAGS -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND TE_HOST_FLAGS -Wno-restrict)  # false alarms in std::string of GCC 12 (GCC bug 105651)
  if(TE_PCH)
    # False alarms that GCC reports only if <string> is in a precompiled header; builds without one keep the warnings.
    list(APPEND TE_HOST_FLAGS -Wno-stringop-overflow -Wno-array-bounds)
  endif()
endif()
if(TE_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND TE_HOST_FLAGS -Wno-subobject-linkage)  # unnamed namespaces of sources are then in included files
endif()
if(TE_WERROR)
  list(APPEND TE_HOST_FLAGS -Werror)
endif()
if(TE_NATIVE)
  list(APPEND TE_HOST_FLAGS -march=native)
endif()
if(TE_SANITIZE)
  # UndefinedBehaviorSanitizer's pointer checks, a quarter of the time to compile, are left to AddressSanitizer, which
  # checks the accesses; overflows, shifts, bounds and conversions remain enabled.
  # -fno-math-errno: otherwise each square root is a function call at low optimization levels.
  list(APPEND TE_HOST_FLAGS -fsanitize=address,undefined -fno-sanitize=null,alignment,object-size,pointer-overflow,vptr
    -fno-sanitize-recover=all -fno-omit-frame-pointer -fno-math-errno)
  target_link_options(te_flags INTERFACE -fsanitize=address,undefined)
endif()
if(TE_FUZZ)
  list(APPEND TE_HOST_FLAGS -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
    -fno-omit-frame-pointer -include ${CMAKE_SOURCE_DIR}/cmake/clang14.h)
  target_link_options(te_flags INTERFACE -fsanitize=address,undefined)
endif()
target_compile_options(te_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${TE_HOST_FLAGS}>")

# Code of tests is compiled without optimization, in sanitizer builds with AddressSanitizer only, for shorter builds.
# Code that runs long or needs all sanitizers is in the libraries. Stack frames on the heap, which detect a use after
# return, take a fifth of the tests' time if tests have them, too.
add_library(te_quick_flags INTERFACE)
if(TE_SANITIZE)
  target_compile_options(te_quick_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-O0;--param=asan-use-after-return=0;-fno-sanitize=undefined>")
elseif(CMAKE_BUILD_TYPE STREQUAL "Release")
  target_compile_options(te_quick_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-O0>")
endif()

find_program(TE_CCACHE ccache)
if(TE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Without the sloppiness it does not keep what was compiled with a precompiled header. CCACHE_DEPEND: it compares the
  # headers that the compiler lists, and does not preprocess each source before compiling it.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1 ${TE_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_DEPEND=1 ${TE_CCACHE})
endif()
# A test reads ptxas's messages about kernels from these files instead of compiling again.
list(PREPEND CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CURRENT_LIST_DIR}/keep_messages.sh)
