// Records slower kernels that replace a library's kernels, so that the run can report
// them.
#pragma once

#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace shardc::kernels::cuda {

/// Any thread may use it.
class Fallbacks {
public:
  /// Records a sentence, once.
  void note(std::string_view text);
  /// Sentences recorded since the last call, in order.
  std::vector<std::string> take();

private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

} // namespace shardc::kernels::cuda
