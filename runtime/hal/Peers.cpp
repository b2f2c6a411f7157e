#include "runtime/hal/Peers.h"

#include <algorithm>

namespace shardc::hal {

/// Sends one part at a time, until no rank's last part was full; after a full one more may follow.
Result<std::vector<std::string>> Peers::allGatherLong(std::string_view what,
                                                      std::string_view mine) {
  constexpr size_t kPart = size_t{48} << 10;
  std::vector<std::string> whole(static_cast<size_t>(worldSize()));
  for (bool isMore = true; isMore;) {
    ASSIGN_OR_RETURN(std::vector<std::string> parts, allGather(what, mine.substr(0, kPart)));
    mine.remove_prefix(std::min(kPart, mine.size()));
    isMore = false;
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      isMore = isMore || parts[rank].size() == kPart;
      whole[rank] += parts[rank];
    }
  }
  return whole;
}

Result<std::string> Peers::broadcast(std::string_view what, int root, std::string_view bytes) {
  ASSIGN_OR_RETURN(std::vector<std::string> all, allGather(what, rank() == root ? bytes : ""));
  return std::move(all[static_cast<size_t>(root)]);
}

Status Peers::barrier(std::string_view what) { return allGather(what, "").status(); }

Status Peers::agree(std::string_view what, const Status &mine) {
  std::string text;
  if (!mine.isOk())
    text = fmt::format("{}{}", static_cast<char>('A' + static_cast<int>(mine.code())),
                       packReport(mine.report()));
  ASSIGN_OR_RETURN(std::vector<std::string> all, allGather(what, text));
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty())
      continue;
    if (static_cast<int>(r) == rank())
      return mine;
    std::optional<Report> report = unpackReport(std::string_view(all[r]).substr(1));
    int code = all[r][0] - 'A';
    bool isCode = report && code > 0 && code <= static_cast<int>(StatusCode::Internal);
    if (!isCode)
      return makeStatus(StatusCode::Internal, "rank {} sent {} bytes that are no status in '{}'", r,
                        all[r].size(), what);
    return Status(static_cast<StatusCode>(code), fmt::format("rank {}: {}", r, report->text))
        .as(*findReport(report->id));
  }
  return Status::ok();
}

} // namespace shardc::hal
