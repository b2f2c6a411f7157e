# Finds what CUDA code needs to build: nvcc, cuBLASLt, NCCL, and cuDNN with its frontend. Sets SHARDC_CUDA if nvcc is
# found; otherwise nothing changes. Custom commands call nvcc, because CMake's CUDA language would link every program
# that contains one CUDA object with nvcc.
include_guard(GLOBAL)

option(SHARDC_WITH_CUDA "build the CUDA kernels and backend where nvcc is" ON)
set(SHARDC_CUDA OFF CACHE INTERNAL "CUDA code is built")
if(NOT SHARDC_WITH_CUDA)
  return()
endif()
find_program(SHARDC_NVCC nvcc PATHS /usr/local/cuda/bin)
if(NOT SHARDC_NVCC)
  message(STATUS "no nvcc: CUDA code is not built")
  return()
endif()

get_filename_component(cuda_bin ${SHARDC_NVCC} REALPATH)
get_filename_component(cuda_bin ${cuda_bin} DIRECTORY)
get_filename_component(cuda_root ${cuda_bin} DIRECTORY)
set(cuda_lib_paths ${cuda_root}/lib64 ${cuda_root}/targets/x86_64-linux/lib)
find_path(SHARDC_CUDA_INCLUDE cuda_runtime.h PATHS ${cuda_root}/include REQUIRED)
find_library(SHARDC_CUDART cudart_static PATHS ${cuda_lib_paths} REQUIRED)
find_library(SHARDC_CUBLASLT cublasLt PATHS ${cuda_lib_paths})
find_library(SHARDC_NCCL nccl PATHS ${cuda_lib_paths})
find_path(SHARDC_NCCL_INCLUDE nccl.h PATHS ${cuda_root}/include)
if(NOT SHARDC_CUBLASLT OR NOT SHARDC_NCCL OR NOT SHARDC_NCCL_INCLUDE)
  message(STATUS "nvcc without cuBLASLt or NCCL: CUDA code is not built")
  return()
endif()
set(SHARDC_CUDA ON CACHE INTERNAL "CUDA code is built")

find_package(Threads REQUIRED GLOBAL)
add_library(shardc_cudart INTERFACE)
target_include_directories(shardc_cudart SYSTEM INTERFACE ${SHARDC_CUDA_INCLUDE})
target_link_libraries(shardc_cudart INTERFACE ${SHARDC_CUDART} Threads::Threads dl rt)
add_library(shardc_nccl INTERFACE)
target_include_directories(shardc_nccl SYSTEM INTERFACE ${SHARDC_NCCL_INCLUDE})
target_link_libraries(shardc_nccl INTERFACE ${SHARDC_NCCL} shardc_cudart)

option(SHARDC_WITH_CUDNN "attention by cuDNN; without it plain kernels do it, which are many times slower" ON)
# cuDNN's frontend consists of headers only. If none is installed, it is downloaded from the package index, and its
# digest is compared with those of cudnn-frontend.txt.
find_library(SHARDC_CUDNN cudnn PATHS ${cuda_lib_paths})
find_library(SHARDC_NVRTC nvrtc PATHS ${cuda_lib_paths}) # opened at run time, for cuDNN
find_path(SHARDC_CUDNN_INCLUDE cudnn.h PATHS ${cuda_root}/include)
set(frontend_dir ${CMAKE_BINARY_DIR}/cudnn-frontend)
find_path(SHARDC_CUDNN_FRONTEND cudnn_frontend.h PATHS ${frontend_dir}/include)
if(SHARDC_WITH_CUDNN AND NOT SHARDC_CUDNN_FRONTEND)
  find_package(Python3 COMPONENTS Interpreter)
  if(Python3_FOUND)
    execute_process(
      COMMAND ${Python3_EXECUTABLE} -m pip download --quiet --no-deps --only-binary :all: --dest ${frontend_dir}
              --require-hashes -r ${CMAKE_CURRENT_LIST_DIR}/cudnn-frontend.txt
      RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
    file(GLOB wheel ${frontend_dir}/nvidia_cudnn_frontend-*.whl)
    if(NOT failed AND wheel)
      file(ARCHIVE_EXTRACT INPUT ${wheel} DESTINATION ${frontend_dir} PATTERNS include/*)
    endif()
  endif()
  find_path(SHARDC_CUDNN_FRONTEND cudnn_frontend.h PATHS ${frontend_dir}/include)
endif()
set(SHARDC_HAS_CUDNN ${SHARDC_WITH_CUDNN})
if(SHARDC_WITH_CUDNN)
  set(missing)
  if(NOT SHARDC_CUDNN OR NOT SHARDC_CUDNN_INCLUDE)
    list(APPEND missing "cuDNN")
  endif()
  if(NOT SHARDC_NVRTC)
    list(APPEND missing "NVRTC")
  endif()
  if(NOT SHARDC_CUDNN_FRONTEND)
    list(APPEND missing "nvidia-cudnn-frontend")
  endif()
  if(missing)
    list(JOIN missing ", " missing)
    message(FATAL_ERROR "attention needs what was not found: ${missing}\n"
            "'pip download nvidia-cudnn-frontend' has to work, or SHARDC_CUDNN_FRONTEND to name its headers; "
            "-DSHARDC_WITH_CUDNN=OFF builds plain attention kernels instead, which are many times slower")
  endif()
endif()

find_program(SHARDC_CCACHE ccache)
set(nvcc_command ${SHARDC_NVCC})
if(SHARDC_CCACHE)
  set(nvcc_command ${SHARDC_CCACHE} ${SHARDC_NVCC})
endif()
set(SHARDC_NVCC_COMMAND ${nvcc_command} CACHE INTERNAL "nvcc as it is called")

set(SHARDC_CUDA_ARCHITECTURES native CACHE STRING
    "GPUs of CUDA objects, in the form of CMAKE_CUDA_ARCHITECTURES (for example 80-virtual;90a-real); 'native': those of this machine, or Hopper; 'all': of packages")

option(SHARDC_CUDA_QUICK "compile kernels in less time to slow code: to find out whether they compile" OFF)

# Packages have machine code for every GPU of today, since code of a capability runs on all later ones of its major
# version, and PTX for GPUs to come. They are compressed, and lack the lines that profilers show.
set(cuda_flags -lineinfo)
set(architectures ${SHARDC_CUDA_ARCHITECTURES})
if(architectures STREQUAL all)
  set(architectures 80-real 90a-real 100-real 120-real 100-virtual)
  set(cuda_flags --fatbin-options=--compress-all)
elseif(architectures STREQUAL native)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE capabilities ERROR_QUIET)
  string(REGEX MATCHALL "[0-9]+[.][0-9]+" capabilities "${capabilities}")
  list(TRANSFORM capabilities REPLACE "[.]" "")
  list(TRANSFORM capabilities REPLACE "^90$" "90a")
  list(TRANSFORM capabilities APPEND -real)
  list(REMOVE_DUPLICATES capabilities)
  set(architectures ${capabilities})
  if(NOT architectures)
    set(architectures 90a-real)
  endif()
endif()
set(code "")
foreach(architecture ${architectures})
  if(NOT architecture MATCHES "^([0-9]+a?)(-real|-virtual)?$")
    message(FATAL_ERROR "SHARDC_CUDA_ARCHITECTURES has '${architecture}'; needed: native, all, or a list such as 80-virtual;90a-real")
  endif()
  if(NOT CMAKE_MATCH_2 STREQUAL -virtual)
    list(APPEND code -gencode=arch=compute_${CMAKE_MATCH_1},code=sm_${CMAKE_MATCH_1})
  endif()
  if(NOT CMAKE_MATCH_2 STREQUAL -real)
    list(APPEND code -gencode=arch=compute_${CMAKE_MATCH_1},code=compute_${CMAKE_MATCH_1})
  endif()
endforeach()
set(SHARDC_CUDA_CODE ${code} CACHE INTERNAL "options of nvcc for SHARDC_CUDA_ARCHITECTURES")
set(SHARDC_CUDA_FLAGS ${cuda_flags} CACHE INTERNAL "further options of nvcc")

# shardc_cuda_objects(var a.cu ...) compiles objects for SHARDC_CUDA_ARCHITECTURES. shardc_cuda_objects(var HOPPER a.cu
# ...) compiles machine code for Hopper only, for kernels that no other GPU can run.
function(shardc_cuda_objects var)
  cmake_parse_arguments(PARSE_ARGV 1 arg "HOPPER" "" "")
  set(objects)
  set(architectures ${SHARDC_CUDA_CODE})
  if(arg_HOPPER)
    set(architectures -gencode=arch=compute_90a,code=sm_90a)
  endif()
  if(SHARDC_CUDA_QUICK)
    list(APPEND architectures --Ofast-compile=max)
  endif()
  foreach(source ${arg_UNPARSED_ARGUMENTS})
    get_filename_component(from ${source} ABSOLUTE)
    get_filename_component(file ${source} NAME)
    set(to ${CMAKE_CURRENT_BINARY_DIR}/${file}.o)
    add_custom_command(
      OUTPUT ${to}
      COMMAND ${SHARDC_NVCC_COMMAND} -std=c++20 -O3 ${SHARDC_CUDA_FLAGS} ${architectures}
              -I${SHARDC_ROOT} -isystem=${SHARDC_NCCL_INCLUDE} -ccbin=${CMAKE_CXX_COMPILER}
              -Xcompiler=-Wall,-Wextra,-Werror,-Wno-missing-field-initializers
              -MD -MT ${to} -MF ${to}.d -c ${from} -o ${to}
      DEPENDS ${from}
      DEPFILE ${to}.d
      COMMENT "Building CUDA object ${file}.o"
      VERBATIM)
    list(APPEND objects ${to})
  endforeach()
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  set(${var} ${objects} PARENT_SCOPE)
endfunction()

# shardc_cuda_batch(var name a.cu ...) returns one source that includes all of these, for shardc_cuda_objects(): CUDA's
# headers take longer to compile than small kernels. Names in the files' anonymous namespaces must differ. With
# SHARDC_BATCH off, returns the sources themselves.
function(shardc_cuda_batch var name)
  set(sources)
  foreach(source ${ARGN})
    get_filename_component(source ${source} ABSOLUTE)
    list(APPEND sources ${source})
  endforeach()
  if(SHARDC_BATCH)
    list(TRANSFORM sources REPLACE "(.+)" "#include \"\\1\"\n" OUTPUT_VARIABLE text)
    string(JOIN "" text ${text})
    set(sources ${CMAKE_CURRENT_BINARY_DIR}/${name}.cu)
    file(CONFIGURE OUTPUT ${sources} CONTENT "${text}" @ONLY)
  endif()
  set(${var} ${sources} PARENT_SCOPE)
endfunction()
