// What timing has chosen, without any library that it is chosen from: which of several ways is the
// fastest, and choices as text for a file and for other ranks.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace shardc::kernels::cuda {

/// Index of the fastest of some ways. `timeOf` gives the time of one run of a way, or a negative
/// number if it cannot run. Each is timed once, and again if it was not slower than the best so
/// far. The first that can run stays unless another was faster both times, by more than the two
/// times of either differ. `ways` if none can run.
size_t fastestBy(size_t ways, const std::function<float(size_t way)> &timeOf);

/// A product and what was chosen for it, as bytes.
struct ChoiceRecord {
  std::string key, choice;
  bool operator==(const ChoiceRecord &) const = default;
};

/// A line of text for each record, in order of keys, behind `head`: one line that says what the
/// choices depend on besides the product. `head` ends with a newline.
std::string writeChoices(std::string_view head, std::vector<ChoiceRecord> records);

/// Name of the file for texts with this head, so that GPUs and libraries that share a folder keep
/// theirs apart: its words, and a sum over it.
std::string choicesFileName(std::string_view head);

/// The records of such a text whose keys and choices have so many bytes. None if the head is
/// another one; a line that was damaged is left out.
std::vector<ChoiceRecord> readChoices(std::string_view head, std::string_view text, size_t keyBytes,
                                      size_t choiceBytes);

} // namespace shardc::kernels::cuda
