// Equal reports of several ranks become one report that names these ranks.
#include "runtime/launch/RankReports.h"

#include <algorithm>
#include <charconv>

#include "runtime/launch/Wire.h"

namespace shardc::launch {

Result<std::vector<std::vector<Report>>> gatherReports(hal::Peers &peers, std::string_view what,
                                                       const std::vector<Report> &mine) {
  size_t count = std::min(mine.size(), kReportsMax);
  std::string packed = Packer().reports(std::span(mine).first(count)).take();
  const std::string tooLong = "long"; // no packed reports begin with this
  bool isLong = packed.size() > kBlobBytesMax;
  ASSIGN_OR_RETURN(std::vector<hal::Peers::Kind> kinds,
                   peers.allKinds(what, isLong ? tooLong : packed));
  std::vector<std::string> all(static_cast<size_t>(peers.worldSize()));
  bool isAnyLong = false;
  for (const hal::Peers::Kind &kind : kinds) {
    isAnyLong = isAnyLong || kind.part == tooLong;
    for (int rank : kind.ranks)
      all[static_cast<size_t>(rank)] = kind.part;
  }
  if (isAnyLong) {
    ASSIGN_OR_RETURN(all, peers.allGatherLong(what, packed));
  }
  std::vector<std::vector<Report>> byRank;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    Unpacker in(all[rank]);
    byRank.push_back(in.reports());
    if (!in.isComplete())
      return makeStatus(StatusCode::Internal, "rank {} sent {} bytes that are no reports", rank,
                        all[rank].size());
  }
  return byRank;
}

std::vector<Report> mergeReports(const std::vector<std::vector<Report>> &byRank) {
  std::vector<Report> seen, merged;
  for (const std::vector<Report> &reports : byRank)
    for (const Report &report : reports) {
      if (std::ranges::find(seen, report) != seen.end())
        continue;
      seen.push_back(report);
      std::vector<int64_t> ranks;
      for (size_t rank = 0; rank < byRank.size(); ++rank)
        if (std::ranges::find(byRank[rank], report) != byRank[rank].end())
          ranks.push_back(static_cast<int64_t>(rank));
      merged.push_back(report);
      if (ranks.size() < byRank.size())
        merged.back().text = fmt::format("rank {}: {}", rangesOf(ranks), report.text);
    }
  return merged;
}

std::optional<int64_t> rankNamedBy(std::string_view text) {
  constexpr std::string_view kBegin = "rank ";
  int64_t rank = 0;
  if (!text.starts_with(kBegin))
    return std::nullopt;
  auto [end, error] = std::from_chars(text.data() + kBegin.size(), text.data() + text.size(), rank);
  return error == std::errc() && rank >= 0 ? std::optional(rank) : std::nullopt;
}

std::string rangesOf(const std::vector<int64_t> &ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i;
    while (end + 1 < ranks.size() && ranks[end + 1] == ranks[end] + 1)
      ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", ranks[i]);
    if (end > i)
      text += fmt::format("{}{}", end > i + 1 ? "-" : ", ", ranks[end]);
    i = end + 1;
  }
  return text;
}

} // namespace shardc::launch
