# Writes the output of a program to a file: cmake -P WriteOutput.cmake FILE PROGRAM ARGUMENT...
# The file is written only if the program succeeds.
math(EXPR last "${CMAKE_ARGC} - 1")
set(command "")
foreach(i RANGE 4 ${last})
  list(APPEND command ${CMAKE_ARGV${i}})
endforeach()
set(file ${CMAKE_ARGV3})
execute_process(COMMAND ${command} OUTPUT_VARIABLE text ERROR_VARIABLE errors RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "${command} failed (${failed}): ${errors}")
endif()
file(WRITE ${file} "${text}")
