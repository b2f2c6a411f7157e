// Results of timing, independent of any library: selects the fastest of several alternatives, and
// stores choices as text for a file and for other ranks.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace shardc::kernels::cuda {

/// Index of the fastest of `ways` alternatives; `ways` if none can run. `timeOf` returns the time
/// of one run of an alternative, or a negative number if it cannot run. Each is timed once, and
/// again if it was not slower than the best so far. The first that can run is kept unless another
/// was faster both times, by more than the two times of either differ.
size_t fastestBy(size_t ways, const std::function<float(size_t way)> &timeOf);

/// A product and the algorithm chosen for it, as bytes.
struct ChoiceRecord {
  std::string key, choice;
  bool operator==(const ChoiceRecord &) const = default;
};

/// Formats one line for each record, in order of keys, after `head`: a line that says what the
/// choices depend on in addition to the product. `head` ends with a newline.
std::string writeChoices(std::string_view head, std::vector<ChoiceRecord> records);

/// File name for texts with this head: its words and a checksum of it. So GPUs and libraries that
/// share a folder have separate files.
std::string choicesFileName(std::string_view head);

/// The records of such a text whose keys and choices have these sizes. Returns none if the head
/// differs; skips damaged lines.
std::vector<ChoiceRecord> readChoices(std::string_view head, std::string_view text, size_t keyBytes,
                                      size_t choiceBytes);

} // namespace shardc::kernels::cuda
