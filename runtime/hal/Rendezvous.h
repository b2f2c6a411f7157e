// How the members of a channel agree while they create it, if they are in several processes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc::hal {

class Rendezvous {
public:
  virtual ~Rendezvous() = default;
  /// Exchanges one text per member of a group, and returns all in the order of members. The members
  /// call it with the same key and order of members; others do not take part. A rank is in one
  /// exchange at a time, and groups that share no rank do not wait for each other.
  virtual Result<std::vector<std::string>>
  gather(std::string_view key, const std::vector<int> &members, std::string_view mine) = 0;
  /// The same, but returns only the first text that is not empty; empty if there is none.
  virtual Result<std::string> first(std::string_view key, const std::vector<int> &members,
                                    std::string_view mine) = 0;
};

} // namespace shardc::hal
