#include "kernels/cuda/Errors.h"

#include <utility>

namespace shardc::kernels::cuda {
namespace {

thread_local std::string kept;

} // namespace

void reportError(std::string text) {
  if (kept.empty())
    kept = std::move(text);
}

std::string takeError() { return std::exchange(kept, {}); }

} // namespace shardc::kernels::cuda
