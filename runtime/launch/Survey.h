// A question that rank 0's supervisor regularly asks about all ranks. It travels down the tree of
// relays, which combine the answers on the way back; see docs/adr/0063-tree-of-supervisors.md. A
// relay passes the question on with less time than it has itself, so that the answers of its
// children arrive before it must answer.
#pragma once

#include <memory>
#include <span>

#include "runtime/launch/LateRanks.h"
#include "runtime/launch/RelayMessages.h"
#include "runtime/launch/Rendezvous.h"

namespace shardc::launch {

struct Ask {
  enum What : uint8_t { Positions, Waits, kLast = Waits } what = Positions;
  uint64_t number = 0;
  double seconds = 0; ///< for the answer; later parts are left out

  static void fields(auto &io, auto &it, int64_t) {
    io.field(it.what, kLast);
    io.field(it.number, UINT64_MAX);
    io.seconds(it.seconds, 60);
  }
};

struct Answer {
  uint64_t number = 0;                   ///< of the question
  std::map<int, RankProgress> positions; ///< by rank
  Waits waits;

  void merge(Answer other) {
    positions.merge(other.positions);
    waits.merge(other.waits);
  }
  static void fields(auto &io, auto &it, int64_t ranks) {
    io.field(it.number, UINT64_MAX);
    io.list(it.positions, ranks, [&io, ranks](auto &position) {
      io.field(position.first, ranks - 1);
      io.nested(position.second, ranks);
    });
    io.nested(it.waits, ranks);
  }
};

/// One question to the relays below, and the answers received so far.
class Survey {
public:
  /// Begins a question and abandons a running one. `own` is the part of the answer that is known
  /// here.
  void begin(const Ask &ask, Answer own, std::span<const std::unique_ptr<Connection>> relays,
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

  /// Adds a relay's answer. Returns false if `body` is not an answer.
  bool take(const Connection &relay, std::string_view body, int64_t ranks) {
    std::optional<Answer> answer = unpacked<Answer>(body, ranks);
    if (answer && isUnderWay_ && answer->number == ask_.number && std::erase(waitsFor_, &relay) > 0)
      answer_.merge(std::move(*answer));
    return answer.has_value();
  }

  /// Records that a relay will not answer.
  void drop(const Connection &relay) { std::erase(waitsFor_, &relay); }

  bool isUnderWay() const { return isUnderWay_; }
  /// Returns the answer, once, when all relays have answered or the time is over.
  std::optional<Answer> finish(double now) {
    if (!isUnderWay_ || (!waitsFor_.empty() && now < deadline_))
      return std::nullopt;
    isUnderWay_ = false;
    return std::move(answer_);
  }

  const Ask &ask() const { return ask_; }

private:
  /// Each level of the tree has this share of the time of the level above, which waits for it.
  static constexpr double kShare = 0.7;

  Ask ask_;
  Answer answer_;
  std::vector<const Connection *> waitsFor_;
  double deadline_ = 0;
  bool isUnderWay_ = false;
};

} // namespace shardc::launch
