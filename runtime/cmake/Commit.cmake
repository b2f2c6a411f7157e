# cmake -DSOURCE=FOLDER -DOUTPUT=FILE -P Commit.cmake: writes the commit of the sources into a header. The file does not
# change if it has that commit already, so that nothing is compiled again. Sources outside a repository have one if their archive
# wrote it to the file COMMIT.
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
elseif(EXISTS ${SOURCE}/COMMIT)
  file(STRINGS ${SOURCE}/COMMIT commit LIMIT_COUNT 1 REGEX "^[0-9a-f]+$")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define SHARDC_COMMIT \"@commit@\"\n" @ONLY)
