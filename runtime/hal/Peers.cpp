// Builds all exchanges among ranks from the virtual function `exchange`, which folds the parts on
// the way to limit what rank 0 sends back.
#include "runtime/hal/Peers.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <tuple>

namespace shardc::hal {

namespace {

/// The element-wise maximum of parts that consist of numbers; empty parts are ignored. Empty if the
/// other parts differ in length.
std::string mostOf(const std::vector<std::string> &parts) {
  std::string most;
  for (const std::string &part : parts) {
    if (most.empty())
      most = part;
    if (part.empty())
      continue;
    if (part.size() != most.size() || part.size() % sizeof(int64_t) != 0)
      return "";
    for (size_t at = 0; at < part.size(); at += sizeof(int64_t)) {
      int64_t own, other;
      std::memcpy(&own, most.data() + at, sizeof own);
      std::memcpy(&other, part.data() + at, sizeof other);
      own = std::max(own, other);
      std::memcpy(most.data() + at, &own, sizeof own);
    }
  }
  return most;
}

/// Each distinct part, followed by the indices of the members that sent it, as in `0-2,5`.
std::vector<std::string> kindsOf(std::vector<std::string> parts, bool areRepeated) {
  std::map<std::string_view, std::vector<size_t>> byPart;
  for (size_t i = 0; i < parts.size(); ++i)
    byPart[parts[i]].push_back(i);
  std::vector<std::string> kinds;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::vector<size_t> &places = byPart[parts[i]];
    if (places.front() != i || (areRepeated && places.size() == 1))
      continue;
    std::string text;
    for (size_t at = 0; at < places.size();) {
      size_t end = at;
      while (end + 1 < places.size() && places[end + 1] == places[end] + 1)
        ++end;
      text += fmt::format("{}{}", text.empty() ? "" : ",", places[at]);
      if (end > at)
        text += fmt::format("-{}", places[end]);
      at = end + 1;
    }
    kinds.push_back(parts[i]);
    kinds.push_back(std::move(text));
  }
  return kinds;
}

/// Parses a list of member indices below `count`, as in `0-2,5`; false for any other text.
bool readPlaces(std::string_view text, int count, std::vector<int> &places) {
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    int first = 0, last = 0;
    auto [next, error] = std::from_chars(at, end, first);
    last = first;
    if (error == std::errc() && next < end && *next == '-')
      std::tie(next, error) = std::tuple(std::from_chars(next + 1, end, last).ptr, error);
    if (error != std::errc() || first < 0 || last < first || last >= count ||
        (next < end && *next != ','))
      return false;
    for (int place = first; place <= last; ++place)
      places.push_back(place);
    at = next + 1;
  }
  return !places.empty();
}

} // namespace

/// Reduces the parts of all members to what the receivers need. The rendezvous server calls it, and
/// so do relays, which fold the parts of their own members before they pass them on.
std::vector<std::string> Peers::folded(std::vector<std::string> parts, Fold fold) {
  switch (fold) {
  case Fold::Parts:
    return parts;
  case Fold::Kinds:
  case Fold::Repeated:
    return kindsOf(std::move(parts), fold == Fold::Repeated);
  case Fold::Most:
    return {mostOf(parts)};
  case Fold::First:
    break;
  }
  auto first = std::ranges::find_if_not(parts, &std::string::empty);
  return {first == parts.end() ? "" : std::move(*first)};
}

Result<std::vector<Peers::Kind>> Peers::allKinds(std::string_view what, std::string_view mine,
                                                 Fold fold) {
  ASSIGN_OR_RETURN(std::vector<std::string> given, exchange(what, {}, mine, fold));
  std::vector<Kind> kinds;
  for (size_t i = 0; i + 1 < given.size(); i += 2) {
    Kind &kind = kinds.emplace_back(Kind{std::move(given[i]), {}});
    if (!readPlaces(given[i + 1], worldSize(), kind.ranks))
      return makeStatus(StatusCode::Internal, "'{}': '{}' are no ranks", what, given[i + 1]);
  }
  return kinds;
}

Result<std::vector<int64_t>> Peers::allMost(std::string_view what, std::span<const int64_t> mine) {
  std::string bytes(reinterpret_cast<const char *>(mine.data()), mine.size_bytes());
  ASSIGN_OR_RETURN(std::vector<std::string> most, exchange(what, {}, bytes, Fold::Most));
  std::vector<int64_t> numbers(mine.size());
  if (most.size() != 1 || most.front().size() != mine.size_bytes())
    return makeStatus(StatusCode::Internal, "'{}': ranks sent other bytes than {} numbers", what,
                      mine.size());
  std::memcpy(numbers.data(), most.front().data(), most.front().size());
  return numbers;
}

/// Each round sends one part per rank. The rounds end when no rank's part was full, since only a
/// full part may have a successor.
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

Status Peers::barrier(std::string_view what) {
  return exchange(what, {}, "", Fold::First).status();
}

/// All ranks return the same status: one failure, with the rank that had it, or success if no rank
/// failed. A failure is encoded as one letter for the code, the rank and the packed report. The
/// rank itself returns its own status unchanged.
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
