#include "kernels/cuda/Fallbacks.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace shardc::kernels::cuda {
namespace {

struct Kept {
  std::mutex mutex;
  std::vector<std::string> texts;
};

Kept &kept() {
  static Kept instance;
  return instance;
}

} // namespace

void noteFallback(std::string_view text) {
  std::lock_guard lock(kept().mutex);
  std::vector<std::string> &texts = kept().texts;
  if (std::find(texts.begin(), texts.end(), text) == texts.end())
    texts.emplace_back(text);
}

std::vector<std::string> takeFallbacks() {
  std::lock_guard lock(kept().mutex);
  return std::exchange(kept().texts, {});
}

} // namespace shardc::kernels::cuda
