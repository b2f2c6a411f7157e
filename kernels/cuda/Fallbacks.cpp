#include "kernels/cuda/Fallbacks.h"

#include <algorithm>
#include <utility>

namespace shardc::kernels::cuda {

void Fallbacks::note(std::string_view text) {
  std::lock_guard lock(mutex_);
  if (std::find(texts_.begin(), texts_.end(), text) == texts_.end())
    texts_.emplace_back(text);
}

std::vector<std::string> Fallbacks::take() {
  std::lock_guard lock(mutex_);
  return std::exchange(texts_, {});
}

} // namespace shardc::kernels::cuda
