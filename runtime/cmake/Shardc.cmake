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
set(SHARDC_SANITIZE_NOT "" CACHE STRING "of these sanitizers, checks that are left out, as in -fno-sanitize=")
if(SHARDC_SANITIZE)
  # Undefined behaviour ends the program, like errors of other sanitizers. A report alone would not fail a test.
  add_compile_options(-fsanitize=${SHARDC_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  if(SHARDC_SANITIZE_NOT)
    add_compile_options(-fno-sanitize=${SHARDC_SANITIZE_NOT})
  endif()
  add_link_options(-fsanitize=${SHARDC_SANITIZE})
endif()

find_program(SHARDC_CCACHE ccache)
if(SHARDC_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SHARDC_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${SHARDC_CCACHE})
endif()

# GCC collects its garbage later, which takes a twelfth less time and a fifth more memory.
add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,GNU>:SHELL:--param ggc-min-heapsize=524288>")

# Warnings are errors in our own code; generated and foreign code is exempt.
add_library(shardc_warnings INTERFACE)
target_compile_options(shardc_warnings INTERFACE -Wall -Wextra -Werror -Wno-missing-field-initializers
  # GCC 12 sees overlapping copies in std::string's operator+ (its bug 105651).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 warns of copies in std::string that would leave their object, which is wrong. In precompiled headers, it also
  # does not treat this code as system headers.
  target_compile_options(shardc_warnings INTERFACE -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
endif()

# Headers of other projects that most files include are precompiled, once for each kind of code. Our own headers are not, so
# that a changed header recompiles only the files that include it.
option(SHARDC_PRECOMPILE "precompile headers of other projects" ON)
set(standard_headers <algorithm> <array> <atomic> <charconv> <chrono> <cmath> <condition_variable> <cstdint> <cstring> <filesystem>
    <functional> <map> <memory> <mutex> <numeric> <optional> <set> <span> <string> <string_view> <thread> <tuple> <unordered_map>
    <unordered_set> <utility> <variant> <vector> <fmt/format.h>)

# shardc_precompiled(kind HEADERS <a> ... DEPS lib ... [OPTIONS option ...]): declares a kind; shardc_precompile() uses it. What uses
# it has the options, too.
function(shardc_precompiled kind)
  cmake_parse_arguments(ARG "" "" "HEADERS;DEPS;OPTIONS" ${ARGN})
  if(NOT SHARDC_PRECOMPILE)
    return()
  endif()
  set(source ${CMAKE_BINARY_DIR}/precompiled/${kind}.cpp)
  file(GENERATE OUTPUT ${source} CONTENT "// Carries the precompiled headers of kind ${kind}.\n")
  add_library(shardc_precompiled_${kind} OBJECT ${source})
  target_link_libraries(shardc_precompiled_${kind} PRIVATE ${ARG_DEPS})
  target_precompile_headers(shardc_precompiled_${kind} PRIVATE ${standard_headers} ${ARG_HEADERS})
  target_compile_options(shardc_precompiled_${kind} PRIVATE ${ARG_OPTIONS})
endfunction()

# shardc_precompile(target DEPS...): uses the precompiled headers of the kind that follows from the target's folder and DEPS.
function(shardc_precompile target)
  file(RELATIVE_PATH folder ${SHARDC_ROOT} ${CMAKE_CURRENT_SOURCE_DIR})
  set(kind runtime)
  if(folder MATCHES "^compiler")
    set(kind compiler)
  elseif("${ARGN}" MATCHES "GTest::")
    set(kind tests)
    # Most lines of a test run only a few times, so optimising them takes longer than running them. But then, inline
    # functions of our headers that the test uses are not optimised in the whole program. Tests that mostly run code of
    # libraries are therefore not of this kind.
    if(folder MATCHES "^test/unit" AND NOT folder MATCHES "^test/unit/(checkpoint|config|lower)$")
      set(kind unit_tests)
      target_compile_options(${target} PRIVATE -O0)
    endif()
  endif()
  if(TARGET shardc_precompiled_${kind})
    target_precompile_headers(${target} REUSE_FROM shardc_precompiled_${kind})
  endif()
endfunction()

# Compiles several sources of a library together (a unity build), so that their headers are read, and templates instantiated,
# only once. A change of one source then recompiles its whole batch, and names in anonymous namespaces of a batch must differ.
option(SHARDC_BATCH "compile sources in batches" ON)

# shardc_batch(target size): `size` sources a batch.
function(shardc_batch target size)
  if(SHARDC_BATCH AND size)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${size})
    # A batch includes its sources, so GCC treats them as headers, in which classes must not have members of anonymous types.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# shardc_cold(target): for code that a command runs only a few times, not for each op, token or byte. -Og compiles it in little
# more than half the time of -O2. With -Og, GCC analyses std::optional less and warns of empty ones that are never read.
function(shardc_cold target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-Og> $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
endfunction()

# shardc_library(name SOURCES a.cpp ... DEPS lib ... [BATCH n] [COLD [HOT b.cpp ...]] [OWN_HEADERS]): one static library for one
# folder. BATCH: see shardc_batch(). COLD: see shardc_cold(). HOT: further sources, which are not cold. OWN_HEADERS: it is compiled
# with other options than its kind and takes no precompiled headers of the kind. The folder above the repository's root is the
# include path, so includes read "runtime/plan/Plan.h".
function(shardc_library name)
  cmake_parse_arguments(ARG "COLD;OWN_HEADERS" "BATCH" "SOURCES;HOT;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  set(parts ${name})
  if(ARG_HOT) # a batch has one set of options, so they are a target of their own
    add_library(${name}_hot OBJECT ${ARG_HOT})
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:${name}_hot>)
    list(APPEND parts ${name}_hot)
  endif()
  foreach(part ${parts})
    target_include_directories(${part} PUBLIC $<BUILD_INTERFACE:${SHARDC_ROOT}>)
    target_compile_features(${part} PUBLIC cxx_std_20)
    target_link_libraries(${part} PUBLIC ${ARG_DEPS} PRIVATE $<BUILD_INTERFACE:shardc_warnings>)
    shardc_batch(${part} "${ARG_BATCH}")
    if(NOT ARG_OWN_HEADERS)
      shardc_precompile(${part} ${ARG_DEPS})
    endif()
  endforeach()
  if(ARG_COLD)
    shardc_cold(${name})
  endif()
endfunction()

# shardc_tool(name SOURCES ... DEPS ... [BATCH n]): one program in <build>/bin. Its own sources are
# cold (see shardc_cold()); the libraries that it links need not be.
function(shardc_tool name)
  cmake_parse_arguments(ARG "" "BATCH" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${SHARDC_ROOT})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} shardc_warnings)
  shardc_batch(${name} "${ARG_BATCH}")
  shardc_cold(${name})
  shardc_precompile(${name} ${ARG_DEPS})
endfunction()

find_package(fmt REQUIRED GLOBAL)
find_package(Threads REQUIRED GLOBAL)
find_package(nlohmann_json REQUIRED GLOBAL)
shardc_precompiled(runtime DEPS fmt::fmt)
