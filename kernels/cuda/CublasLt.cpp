// Loads the library with dlopen and keeps a table of its functions. It is never unloaded, since
// handles of all ranks refer to it.
#include "kernels/cuda/CublasLt.h"

#include <dlfcn.h>

#include <fmt/format.h>

namespace shardc::kernels::cuda {
namespace {

CublasLt load() {
  CublasLt functions;
  // First the library's name, for the loader's search path, then the path that the build found.
  std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  void *library = nullptr;
  for (const char *file : {name.c_str(), SHARDC_CUBLASLT_FILE})
    if (!library)
      library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) {
    functions.failure = fmt::format("cannot load {}: {}", name, ::dlerror());
    return functions;
  }
#define SHARDC_CUBLASLT(name)                                                                      \
  functions.name = reinterpret_cast<decltype(functions.name)>(::dlsym(library, "cublasLt" #name)); \
  if (!functions.name)                                                                             \
    functions.failure = "cuBLASLt has no cublasLt" #name;
  SHARDC_CUBLASLT_FUNCTIONS(SHARDC_CUBLASLT)
#undef SHARDC_CUBLASLT
  return functions;
}

} // namespace

const CublasLt &cublasLt() {
  static const CublasLt &functions = *new CublasLt(load()); // outlives the handles of all ranks
  return functions;
}

} // namespace shardc::kernels::cuda
