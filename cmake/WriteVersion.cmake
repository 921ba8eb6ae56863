# Runs at every build: writes the commit of the sources to a header, unless the header has it already.
#   cmake -DSOURCE=DIR -DOUTPUT=FILE -DVERSION=X.Y.Z -P WriteVersion.cmake
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed OR commit STREQUAL "")
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
