// Autotuning results, independent of any library: selects the fastest of several alternatives, and
// stores choices as text for a file and for other ranks.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace shardc::kernels::cuda {

/// Returns the index of the fastest of `ways` alternatives, or `ways` if none can run. `timeOf`
/// runs an alternative and returns its time, or a negative number if it cannot run. Each
/// alternative is timed once, and a second time if it was not slower than the best one so far. The
/// first one that can run is kept unless another one is faster both times, by more than the two
/// times of either differ.
size_t fastestBy(size_t ways, const std::function<float(size_t way)> &timeOf);

/// A product and the algorithm chosen for it, as bytes.
struct ChoiceRecord {
  std::string key, choice;
  bool operator==(const ChoiceRecord &) const = default;
};

/// Formats one line per record, ordered by key, after `head`: a line, with its newline, that names
/// what the choices depend on besides the product, such as GPU and library version.
std::string writeChoices(std::string_view head, std::vector<ChoiceRecord> records);

/// File name for texts with this head: its words and a checksum. GPUs and library versions that
/// share a folder therefore have separate files.
std::string choicesFileName(std::string_view head);

/// Parses such a text and returns the records whose keys and choices have these sizes in bytes.
/// Returns none if the head differs. Damaged lines are skipped.
std::vector<ChoiceRecord> readChoices(std::string_view head, std::string_view text, size_t keyBytes,
                                      size_t choiceBytes);

} // namespace shardc::kernels::cuda
