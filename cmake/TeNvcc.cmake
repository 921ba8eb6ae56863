# te_find_nvcc(VARIABLE): sets the CUDA compiler: CUDACXX, else nvcc of CUDA_HOME, PATH, /usr/local/cuda, or the wheels
# of install_deps.sh. system_nvcc in scripts/lib.sh has the same order, so that install_deps.sh fetches what fits.
function(te_find_nvcc variable)
  set(found NOTFOUND)
  if(NOT "$ENV{TE_FORCE_CUDA_WHEELS}" STREQUAL "1")
    string(REPLACE ":" ";" folders "$ENV{PATH}")
    if(NOT "$ENV{CUDACXX}" STREQUAL "")
      find_program(found $ENV{CUDACXX} PATHS ${folders} NO_DEFAULT_PATH NO_CACHE)
      if(NOT found)
        set(found $ENV{CUDACXX})  # CMake's own error names it
      endif()
    endif()
    list(APPEND folders /usr/local/cuda/bin)
    if(NOT "$ENV{CUDA_HOME}" STREQUAL "")
      list(PREPEND folders $ENV{CUDA_HOME}/bin)
    endif()
  endif()
  find_program(found nvcc PATHS ${folders} ${TE_DEPS_DIR}/cuda/bin NO_DEFAULT_PATH NO_CACHE)
  set(${variable} "${found}" PARENT_SCOPE)
endfunction()

# te_check_nvcc(NVCC VARIABLE): sets what is wrong with a CUDA compiler, else an empty string. nvcc's own messages name
# options that an old version does not know.
function(te_check_nvcc nvcc variable)
  execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE answer ERROR_QUIET RESULT_VARIABLE failed)
  set(${variable} "" PARENT_SCOPE)
  if(answer MATCHES "release ([0-9]+)\\.([0-9]+)" AND CMAKE_MATCH_1 LESS 12)
    set(${variable} "CUDA ${CMAKE_MATCH_1}.${CMAKE_MATCH_2} (${nvcc}) is too old: te-train needs CUDA 12 or 13. \
Set CUDACXX to a newer nvcc, or configure with -DTE_CUDA=OFF" PARENT_SCOPE)
  endif()
endfunction()

# te_uses_wheels(NVCC VARIABLE): sets whether the wheels in .deps/cuda fit this compiler: they are only cuDNN and NCCL,
# or the compiler is theirs.
function(te_uses_wheels nvcc variable)
  file(REAL_PATH ${nvcc} nvcc)
  file(REAL_PATH ${TE_DEPS_DIR}/cuda/bin/nvcc wheels)
  set(${variable} OFF PARENT_SCOPE)
  if(NOT EXISTS ${wheels} OR nvcc STREQUAL wheels)
    set(${variable} ON PARENT_SCOPE)
  endif()
endfunction()
