#include "runtime/tools/PeerRendezvous.h"

#include <utility>

namespace shardc::tools {

/// All ranks create channels together, even if their groups are disjoint, so one exchange serves
/// all groups. Its parts carry keys, so that parts of another vote or channel are not taken for
/// this one's.
Result<std::vector<std::string>> PeerRendezvous::gather(const std::string &key,
                                                        const std::vector<int> &members,
                                                        const std::string &mine) {
  if (mpi_)
    return mpi_->gather(key, members, mine);
  constexpr char kEnd = '\0';
  ASSIGN_OR_RETURN(std::vector<std::string> all,
                   peers_.allGather("making communicators", key + kEnd + mine));
  std::vector<std::string> parts;
  for (int member : members) {
    const std::string &text = all[static_cast<size_t>(member)];
    size_t end = text.find(kEnd);
    if (text.substr(0, end) != key)
      return makeStatus(StatusCode::Internal,
                        "creating communicators: rank {} is at '{}', rank {} at '{}'", member,
                        text.substr(0, end), peers_.rank(), key);
    parts.push_back(text.substr(end + 1));
  }
  return parts;
}

Status PeerRendezvous::end() {
  auto mpi = std::exchange(mpi_, nullptr);
  return mpi ? mpi->end() : Status::ok();
}

} // namespace shardc::tools
