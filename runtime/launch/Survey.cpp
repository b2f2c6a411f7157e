// A relay passes the question on with less time than it has itself, so that the answers of its
// children arrive before it must answer.
#include "runtime/launch/Survey.h"

namespace shardc::launch {
namespace {

/// Each level of the tree has this share of the time of the level above, which waits for it.
constexpr double kShare = 0.7;

} // namespace

void Survey::begin(const Ask &ask, Answer own, std::span<const std::unique_ptr<Connection>> relays,
                   double now) {
  ask_ = ask;
  answer_ = std::move(own);
  answer_.number = ask.number;
  deadline_ = now + ask.seconds;
  isUnderWay_ = true;
  waitsFor_.clear();
  Ask below = ask;
  below.seconds *= kShare;
  for (const std::unique_ptr<Connection> &relay : relays)
    if (relay->wire.isOpen()) {
      relay->wire.queue(MessageKind::Ask, packed(below));
      waitsFor_.push_back(relay.get());
    }
}

bool Survey::take(const Connection &relay, std::string_view body, int64_t ranks) {
  std::optional<Answer> answer = unpacked<Answer>(body, ranks);
  if (answer && isUnderWay_ && answer->number == ask_.number && std::erase(waitsFor_, &relay) > 0)
    answer_.merge(std::move(*answer));
  return answer.has_value();
}

void Survey::drop(const Connection &relay) { std::erase(waitsFor_, &relay); }

std::optional<Answer> Survey::finish(double now) {
  if (!isUnderWay_ || (!waitsFor_.empty() && now < deadline_))
    return std::nullopt;
  isUnderWay_ = false;
  return std::move(answer_);
}

} // namespace shardc::launch
