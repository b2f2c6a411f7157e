#include "runtime/launch/Texts.h"

#include <algorithm>

namespace shardc::launch {

Result<std::vector<std::vector<std::string>>> gatherTexts(hal::Peers &peers, std::string_view what,
                                                          const std::vector<std::string> &mine) {
  constexpr char kEnd = '\0';
  std::string packed;
  for (const std::string &text : mine)
    packed += text + kEnd;
  ASSIGN_OR_RETURN(std::vector<std::string> all, peers.allGatherLong(what, packed));
  std::vector<std::vector<std::string>> byRank;
  for (const std::string &texts : all) {
    std::vector<std::string> &list = byRank.emplace_back();
    for (size_t at = 0, end; (end = texts.find(kEnd, at)) != std::string::npos; at = end + 1)
      list.push_back(texts.substr(at, end - at));
  }
  return byRank;
}

std::vector<std::string> mergeTexts(const std::vector<std::vector<std::string>> &byRank) {
  std::vector<std::string> seen, merged;
  for (const std::vector<std::string> &texts : byRank)
    for (const std::string &text : texts) {
      if (std::ranges::find(seen, text) != seen.end())
        continue;
      seen.push_back(text);
      std::vector<int64_t> ranks;
      for (size_t rank = 0; rank < byRank.size(); ++rank)
        if (std::ranges::find(byRank[rank], text) != byRank[rank].end())
          ranks.push_back(static_cast<int64_t>(rank));
      merged.push_back(
          ranks.size() == byRank.size() ? text : fmt::format("rank {}: {}", rangesOf(ranks), text));
    }
  return merged;
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
