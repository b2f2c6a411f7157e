// The exchange under way among the ranks of a job: each gives a part, and the parts of all go back
// to all of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/launch/Wire.h"

namespace shardc::launch {

class Exchange {
public:
  explicit Exchange(int64_t ranks) : parts_(static_cast<size_t>(ranks)) {}

  /// What a rank that waits in it has given.
  struct Part {
    std::string name; ///< of the exchange
    std::string bytes;
    double since = 0; ///< when it came
  };

  /// Takes the body of a rank's Gather; false if it is none.
  bool add(int64_t rank, const std::string &body, double now);
  bool isComplete() const;
  /// The first rank that is in an exchange of another name than this rank.
  std::optional<int64_t> findOther(int64_t rank) const;
  /// The parts of all ranks as each of them gets them. The next exchange begins.
  std::string take();

  /// A rank's part; null if it has not come.
  const Part *part(int64_t rank) const;
  /// The rank that has waited longest; the lowest of several.
  std::optional<int64_t> longestWaiting() const;
  /// Ranks that have not come, as text.
  std::string missingRanks() const;

private:
  std::vector<std::optional<Part>> parts_; ///< by rank
};

} // namespace shardc::launch
