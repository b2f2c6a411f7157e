# Shared build rules: language level, warnings, where binaries go, one library per folder.
include_guard(GLOBAL)

set(SHARDC_VERSION 0.1.0)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

get_filename_component(SHARDC_ROOT ${CMAKE_CURRENT_LIST_DIR}/../.. ABSOLUTE)

set(SHARDC_SANITIZE "" CACHE STRING "sanitizers, as in -fsanitize=: address,undefined or thread")
if(SHARDC_SANITIZE)
  add_compile_options(-fsanitize=${SHARDC_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${SHARDC_SANITIZE})
endif()

find_program(SHARDC_CCACHE ccache)
if(SHARDC_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SHARDC_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${SHARDC_CCACHE})
endif()

# Warnings are errors in our own code; generated and foreign code is exempt.
add_library(shardc_warnings INTERFACE)
target_compile_options(shardc_warnings INTERFACE -Wall -Wextra -Werror -Wno-missing-field-initializers
  # GCC 12 sees overlapping copies in std::string's operator+ (its bug 105651).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 sees overlapping copies in std::string's assignments that are none.
  target_compile_options(shardc_warnings INTERFACE -Wno-restrict)
endif()

# shardc_library(name SOURCES a.cpp ... DEPS lib ...): one static library for one folder.
# The folder above the repository's root is the include path, so includes read "runtime/plan/Plan.h".
function(shardc_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${SHARDC_ROOT}>)
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE $<BUILD_INTERFACE:shardc_warnings>)
endfunction()

# shardc_tool(name SOURCES ... DEPS ...): one program in <build>/bin.
function(shardc_tool name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${SHARDC_ROOT})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} shardc_warnings)
endfunction()
