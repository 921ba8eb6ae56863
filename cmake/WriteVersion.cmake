# Runs at every build: writes the commit of the sources to a header, unless the header has it already.
#   cmake -DSOURCE=DIR -DOUTPUT=FILE -DVERSION=X.Y.Z -P WriteVersion.cmake
# Git hooks and some users export these variables for another repository.
foreach(variable GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE)
  unset(ENV{${variable}})
endforeach()
# Sources without .git may lie in another repository, below its root.
execute_process(COMMAND git -C ${SOURCE} rev-parse --show-prefix
                OUTPUT_VARIABLE prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE outside)
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(outside OR NOT prefix STREQUAL "" OR failed OR commit STREQUAL "")
  set(commit unknown)
endif()
set(text "#define TE_VERSION \"${VERSION}\"\n#define TE_COMMIT \"${commit}\"\n")
set(before "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} before)
endif()
if(NOT before STREQUAL text)
  file(WRITE ${OUTPUT} "${text}")
endif()
