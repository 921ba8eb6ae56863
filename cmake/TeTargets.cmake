# te_library(NAME DEPENDS ...): the library of src/NAME.
#
# Headers are included as "NAME/file.h". Each library exposes a private link farm that holds its own
# folder alone, so a header of another folder is visible only to those who name that library in DEPENDS:
# an include against the direction of the design does not compile.
function(te_library name)
  cmake_parse_arguments(ARG "" "" "DEPENDS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS *.cpp)
  list(FILTER sources EXCLUDE REGEX "_cuda\\.cpp$")
  if(TE_HAVE_CUDA)
    file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS *.cu *_cuda.cpp)
    list(APPEND sources ${cuda_sources})
  endif()
  add_library(te_${name} STATIC ${sources})
  set(farm ${CMAKE_BINARY_DIR}/include/${name})
  file(MAKE_DIRECTORY ${farm})
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR} ${farm}/${name} SYMBOLIC)
  target_include_directories(te_${name} PUBLIC ${farm})
  target_link_libraries(te_${name} PUBLIC ${ARG_DEPENDS} PRIVATE te_flags)
  if(TE_HAVE_CUDA)
    target_link_libraries(te_${name} PUBLIC te_cuda)
  endif()
endfunction()

# te_app(NAME DEPENDS ...): the executable of apps/NAME.cpp, installed to bin/.
function(te_app name)
  cmake_parse_arguments(ARG "" "" "DEPENDS" ${ARGN})
  add_executable(${name} ${name}.cpp)
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS} CLI11::CLI11 te_flags)
  install(TARGETS ${name} RUNTIME DESTINATION bin)
endfunction()

# te_tests(FOLDER DEPENDS ...): tests/FOLDER/*_test.cpp on the CPU, *_gpu_test.cpp (label gpu) on a device.
# Paths a test needs come as compile definitions, so tests run from any directory.
function(te_tests folder)
  cmake_parse_arguments(ARG "" "" "DEPENDS" ${ARGN})
  file(GLOB cpu_sources CONFIGURE_DEPENDS *_test.cpp)
  list(FILTER cpu_sources EXCLUDE REGEX "_gpu_test\\.cpp$")
  file(GLOB gpu_sources CONFIGURE_DEPENDS *_gpu_test.cpp)
  if(cpu_sources)
    te_test_executable(test_${folder} "cpu" "${ARG_DEPENDS}" ${cpu_sources})
  endif()
  if(gpu_sources AND TE_HAVE_CUDA)
    te_test_executable(test_${folder}_gpu "gpu" "${ARG_DEPENDS}" ${gpu_sources})
  endif()
endfunction()

function(te_test_executable target label depends)
  add_executable(${target} ${ARGN})
  target_link_libraries(${target} PRIVATE ${depends} te_testing GTest::gtest_main te_flags)
  target_compile_definitions(${target} PRIVATE
    TE_SOURCE_DIR="${CMAKE_SOURCE_DIR}" TE_BINARY_DIR="${CMAKE_BINARY_DIR}")
  # Discovery at test time: a build machine need not be able to load CUDA's libraries.
  gtest_discover_tests(${target} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120
    PROPERTIES LABELS ${label} TIMEOUT 600)
endfunction()
