# cmake -DSOURCE=FOLDER -DOUTPUT=FILE -P Commit.cmake: writes the commit of the sources into a header, and leaves the file
# alone if it has that commit, so that nothing is compiled again. Without a repository of their own there is none.
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND git -C ${SOURCE} rev-parse --show-toplevel --short=12 HEAD
                OUTPUT_VARIABLE said OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
set(commit "")
if(status EQUAL 0 AND said MATCHES "^(.*)\n([0-9a-f]+)$" AND CMAKE_MATCH_1 STREQUAL SOURCE)
  set(commit ${CMAKE_MATCH_2})
  execute_process(COMMAND git -C ${SOURCE} diff --quiet HEAD ERROR_QUIET RESULT_VARIABLE changed)
  if(changed EQUAL 1)
    string(APPEND commit ", changed")
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define SHARDC_COMMIT \"@commit@\"\n" @ONLY)
