#include "runtime/launch/Survey.h"

#include <algorithm>

namespace shardc::launch {
namespace {

constexpr double kSecondsMax = 60;
/// Each level has less time than the one above, which waits for it.
constexpr double kShare = 0.7;

} // namespace

std::string Ask::pack() const {
  return Packer().number(what).number(number).number(static_cast<uint64_t>(seconds * 1e3)).take();
}

std::optional<Ask> Ask::unpack(std::string_view body) {
  Unpacker in(body);
  Ask ask;
  ask.what = static_cast<What>(in.bounded(kLast));
  ask.number = in.number();
  ask.seconds = static_cast<double>(in.bounded(static_cast<uint64_t>(kSecondsMax * 1e3))) * 1e-3;
  return in.isComplete() ? std::optional(ask) : std::nullopt;
}

void Answer::merge(Answer other) {
  positions.ranks.insert(positions.ranks.end(), other.positions.ranks.begin(),
                         other.positions.ranks.end());
  for (RankProgress &position : other.positions.positions)
    positions.positions.push_back(std::move(position));
  waits.merge(other.waits);
}

std::string Answer::pack() const {
  return Packer().number(number).text(positions.pack()).text(waits.pack()).take();
}

std::optional<Answer> Answer::unpack(std::string_view body, int64_t ranks) {
  Unpacker in(body);
  uint64_t number = in.number();
  std::optional<RankPositions> positions = RankPositions::unpack(in.text(), ranks);
  std::optional<Waits> waits = Waits::unpack(in.text(), ranks);
  if (!positions || !waits || !in.isComplete())
    return std::nullopt;
  return Answer{number, std::move(*positions), std::move(*waits)};
}

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
      relay->wire.queue(MessageKind::Ask, below.pack());
      waitsFor_.push_back(relay.get());
    }
}

bool Survey::take(const Connection &relay, std::string_view body, int64_t ranks) {
  std::optional<Answer> answer = Answer::unpack(body, ranks);
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
