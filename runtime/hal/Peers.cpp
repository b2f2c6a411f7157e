#include "runtime/hal/Peers.h"

#include <algorithm>
#include <charconv>

namespace shardc::hal {

std::vector<std::string> Peers::folded(std::vector<std::string> parts, Fold fold) {
  if (fold == Fold::Parts)
    return parts;
  auto first = std::ranges::find_if_not(parts, &std::string::empty);
  return {first == parts.end() ? "" : std::move(*first)};
}

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
  ASSIGN_OR_RETURN(auto parts, exchange(what, {}, rank() == root ? bytes : "", Fold::First));
  return std::move(parts.front());
}

Status Peers::barrier(std::string_view what) {
  return exchange(what, {}, "", Fold::First).status();
}

Status Peers::agree(std::string_view what, const Status &mine) {
  std::string text;
  if (!mine.isOk())
    text = fmt::format("{}{} {}", static_cast<char>('A' + static_cast<int>(mine.code())), rank(),
                       packReport(mine.report()));
  ASSIGN_OR_RETURN(std::vector<std::string> parts, exchange(what, {}, text, Fold::First));
  std::string_view first = parts.front();
  if (first.empty())
    return Status::ok();
  if (first == text)
    return mine;
  int code = first[0] - 'A', from = -1;
  auto [end, error] = std::from_chars(first.data() + 1, first.data() + first.size(), from);
  bool isNumber = error == std::errc() && end != first.data() + first.size();
  std::optional<Report> report =
      isNumber ? unpackReport({end + 1, first.data() + first.size()}) : std::nullopt;
  if (!report || code <= 0 || code > static_cast<int>(StatusCode::Internal))
    return makeStatus(StatusCode::Internal, "a rank sent {} bytes that are no status in '{}'",
                      first.size(), what);
  return Status(static_cast<StatusCode>(code), fmt::format("rank {}: {}", from, report->text))
      .as(*findReport(report->id));
}

} // namespace shardc::hal
