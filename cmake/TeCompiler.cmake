# Refuses a C++ compiler that is too old. Clang, which compiles the preset fuzz alone, is not checked.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
  message(FATAL_ERROR "GCC ${CMAKE_CXX_COMPILER_VERSION} (${CMAKE_CXX_COMPILER}) is too old: te-train needs GCC 12 or \
newer; set CC and CXX as scripts/install_deps.sh prints, and run cmake with --fresh")
endif()
