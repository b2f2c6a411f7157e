// Numbers the ops of a plan consecutively over all roles and segments, so that one 32-bit word per
// stream tells where a rank is.
#include "runtime/exec/ProgressMap.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/base/ProgressWord.h"
#include "runtime/exec/Bind.h"
#include "runtime/exec/Mesh.h"
#include "runtime/plan/Coordinates.h"
#include "runtime/plan/Text.h"

namespace shardc::exec {
namespace {

std::string listOf(const std::vector<int> &ranks) {
  constexpr size_t kListed = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kListed); ++i)
    text += fmt::format("{}{}", i > 0 ? ", " : "", ranks[i]);
  if (ranks.size() > kListed)
    text += fmt::format(" and {} more", ranks.size() - kListed);
  return text;
}

bool isIn(std::span<const uint32_t> words, uint32_t word) {
  return std::ranges::find(words, word) != words.end();
}

bool isInAny(std::span<const uint32_t> words) {
  return std::ranges::any_of(words, ProgressWord::isInside);
}

} // namespace

ProgressMap::ProgressMap(const plan::Plan &plan) : plan_(plan) {
  uint32_t begin = 0;
  for (const plan::Role &role : plan.roles)
    for (const plan::Segment &segment : role.segments) {
      segments_.push_back(&segment);
      begins_.push_back(begin);
      begin += static_cast<uint32_t>(segment.ops.size());
    }
}

uint32_t ProgressMap::numberOf(const plan::Segment &segment, size_t op) const {
  auto at = std::ranges::find(segments_, &segment);
  return begins_[static_cast<size_t>(at - segments_.begin())] + static_cast<uint32_t>(op);
}

bool ProgressMap::find(uint32_t number, At &at) const {
  auto after = std::ranges::upper_bound(begins_, number);
  if (after == begins_.begin())
    return false;
  at.segment = static_cast<uint32_t>(after - begins_.begin() - 1);
  at.op = number - begins_[at.segment];
  return at.op < segments_[at.segment]->ops.size();
}

std::string ProgressMap::label(uint32_t number) const {
  At at{};
  if (!find(number, at))
    return "?";
  const plan::Segment &segment = *segments_[at.segment];
  return fmt::format("{}: {}", plan::printable(segment.name),
                     plan::opLabel(plan_, segment, segment.ops[at.op]));
}

std::string ProgressMap::place(uint32_t word) const {
  if (!ProgressWord::isBegun(word))
    return "";
  if (word == ProgressWord::kExchanging)
    return "in an exchange of the host";
  std::string_view how = ProgressWord::isMaking(word)   ? "creating the channel of"
                         : ProgressWord::isInside(word) ? "in"
                                                        : "after";
  return fmt::format("{} '{}'", how, label(ProgressWord::op(word)));
}

std::string ProgressMap::place(std::span<const uint32_t> words) const {
  uint32_t best = 0;
  for (uint32_t word : words)
    if (ProgressWord::isBegun(word) && std::pair(ProgressWord::isInside(word), word) >
                                           std::pair(ProgressWord::isInside(best), best))
      best = word;
  return place(best) + microbatchOf(words, best);
}

std::string ProgressMap::microbatchOf(std::span<const uint32_t> words, uint32_t word) const {
  auto own = std::ranges::find_if(words, ProgressWord::isMicrobatch);
  At at{};
  if (own == words.end() || !ProgressWord::isBegun(word) || word == ProgressWord::kExchanging ||
      !find(ProgressWord::op(word), at) || !segments_[at.segment]->body)
    return "";
  return fmt::format(" of microbatch {}", ProgressWord::microbatch(*own));
}

std::string ProgressMap::stageOf(int64_t rank) const {
  return plan::isPipeline(plan_) && rank < plan_.worldSize()
             ? plan::stageOf(plan_, exec::roleOf(plan_, rank))
             : "";
}

std::string ProgressMap::nameOf(int rank) const {
  std::string stage = stageOf(rank);
  return fmt::format("rank {}{}{}", rank, stage, stage.empty() ? "" : ",");
}

std::vector<int> ProgressMap::membersOf(uint32_t word, int rank) const {
  At at{};
  if (!ProgressWord::isInside(word) || !find(ProgressWord::op(word), at))
    return {};
  const plan::Op &op = segments_[at.segment]->ops[at.op];
  return op.channel >= 0 ? channelMembers(plan_, op.channel, rank)
         : op.group >= 0 ? groupMembers(plan_, op.group, rank)
                         : std::vector<int>();
}

std::string ProgressMap::explain(std::span<const std::vector<uint32_t>> words, int rank, int waiter,
                                 uint32_t waitedIn) const {
  std::vector<int> waiting;
  for (size_t r = 0; r < words.size(); ++r)
    if (static_cast<int>(r) != rank && isIn(words[r], waitedIn))
      waiting.push_back(static_cast<int>(r));
  std::string last = place(words[static_cast<size_t>(rank)]);
  return fmt::format("{} fell behind: {} {} for it {}{}; {}", nameOf(rank), listOf(waiting),
                     waiting.size() == 1 ? "waits" : "wait", place(waitedIn),
                     microbatchOf(words[static_cast<size_t>(waiter)], waitedIn),
                     last.empty() ? "it has not reported yet" : "it was last seen " + last);
}

/// Prefers a rank without a heartbeat. Next comes a rank that does not wait although others wait
/// for it; ranks that wait may be late because of it. If all ranks wait, the collectives do not
/// match, and an incomplete one is reported.
std::string ProgressMap::explainStall(std::span<const std::vector<uint32_t>> words,
                                      int silent) const {
  enum Pass { Silent, Idle, Any };
  for (Pass pass : {Silent, Idle, Any})
    for (size_t waiter = 0; waiter < words.size(); ++waiter)
      for (uint32_t word : words[waiter])
        for (int member : membersOf(word, static_cast<int>(waiter))) {
          auto index = static_cast<size_t>(member);
          if (index >= words.size() || index == waiter)
            continue;
          bool isFirst = pass == Silent ? member == silent
                         : pass == Idle ? !isInAny(words[index])
                                        : !isIn(words[index], word);
          if (isFirst)
            return explain(words, member, static_cast<int>(waiter), word);
        }
  if (silent >= 0) {
    std::string last = place(words[static_cast<size_t>(silent)]);
    return fmt::format("{} does not respond; {}", nameOf(silent),
                       last.empty() ? "it has not reported yet" : "it was last seen " + last);
  }
  for (size_t rank = 0; rank < words.size(); ++rank)
    if (isInAny(words[rank]))
      return fmt::format("{} is stuck in {}: it is {}", nameOf(static_cast<int>(rank)),
                         std::ranges::any_of(words[rank], ProgressWord::isMaking) ? "its set-up"
                                                                                  : "a collective",
                         place(words[rank]));
  return "work has stopped";
}

} // namespace shardc::exec
