// Lets the members of a channel exchange data while they create it, if they are in several
// processes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc::hal {

/// Implemented by exchanges among the processes of a job (Peers), and by tests within one process.
class Rendezvous {
public:
  virtual ~Rendezvous() = default;
  /// Exchanges one text per member of a group, and returns all texts in the order of members. The
  /// members call it with the same key and in the same order of members; other ranks do not take
  /// part. A rank can be in one exchange at a time. Groups that share no rank do not wait for each
  /// other.
  virtual Result<std::vector<std::string>>
  gather(std::string_view key, const std::vector<int> &members, std::string_view mine) = 0;
  /// Returns only the first text that is not empty; empty if there is none.
  virtual Result<std::string> first(std::string_view key, const std::vector<int> &members,
                                    std::string_view mine) = 0;
};

} // namespace shardc::hal
