// Simulates jobs behind relays, by seeds: trees of any depth, whose nodes and ranks take their
// turns in any order and with any delay, exchange, and end at any moment. Sockets are real, time is
// simulated. Every job ends; one that does not end well says why, once. A hundredth of the seeds
// runs; all of them with SHARDC_LONG=1.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>

#include <gtest/gtest.h>
#include <unistd.h>

#include "runtime/launch/RendezvousServer.h"
#include "test/unit/launch/SocketRank.h"
#include "test/unit/support/Long.h"

namespace shardc::launch {
namespace {

using Fold = hal::Peers::Fold;

constexpr Key kTreeSecret = {7};
constexpr int kTurnsMax = 200'000;
constexpr double kJoin = 30, kCollective = 60;

class RelayWorld {
public:
  explicit RelayWorld(uint64_t seed) : seed_(seed), random_(seed) {
    machines_ = 1 + below(6);
    perMachine_ = 1 + below(3);
    worldSize_ = machines_ * perMachine_;
    fanOut_ = static_cast<size_t>(1 + below(3));
    if (below(3) != 0)
      faultAt_ = below(below(2) ? 400 : 60);
    open();
    for (int64_t count = below(6); count > 0; --count)
      program_.push_back(exchange(static_cast<int>(program_.size())));
  }

  void run() {
    for (int turn = 0; turn < kTurnsMax; ++turn) {
      if (turn == faultAt_)
        strike();
      step();
      now_ += below(50) == 0 ? 0.5 : 0.01;
      if (isOver())
        return check();
    }
    ADD_FAILURE() << "seed " << seed_ << ": an endless loop; " << describe();
  }
  bool hasFailed() const { return !said_.empty(); }
  bool isDeep() const { return machines_ > static_cast<int64_t>(fanOut_) + 1; }

private:
  struct Exchanged {
    std::string key;
    std::vector<int> members; ///< of whom it is asked; none: all
    Fold fold;
    bool hasMember(int rank) const {
      return members.empty() || std::ranges::find(members, rank) != members.end();
    }
  };
  struct Rank {
    std::unique_ptr<SocketRank> end;
    bool hasConnected = false, isWaiting = false, isStruck = false, isDone = false;
    size_t at = 0; ///< of the program
  };

  int64_t below(int64_t count) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(count));
  }

  void open() {
    Socket listener = std::move(*listenOn("127.0.0.1", 0));
    port_ = portOf(listener);
    RendezvousOptions options;
    options.worldSize = worldSize_;
    options.planHash = 7;
    options.secret = kTreeSecret;
    options.job = "j";
    options.where = "here";
    options.timeoutSeconds = kCollective;
    options.joinSeconds = kJoin;
    options.fanOut = fanOut_;
    options.tell = [this](const Report &report) { said_.push_back(report.text); };
    server_.emplace(std::move(listener), std::move(options));
    for (int64_t machine = 1; machine < machines_; ++machine) {
      RelayOptions relay;
      relay.address = "127.0.0.1";
      relay.port = port_;
      relay.rank = machine * perMachine_;
      relay.worldSize = worldSize_;
      relay.secret = kTreeSecret;
      relay.job = "j";
      relay.name = fmt::format("shardc-world-{}-{}-{}", ::getpid(), port_, machine);
      relay.joinSeconds = kJoin;
      relay.fanOut = fanOut_;
      relay.askSeconds = 0;
      relay.tell = [this](const Report &report) { said_.push_back(report.text); };
      relays_.push_back(std::make_unique<Relay>(std::move(relay)));
    }
    for (int64_t rank = 0; rank < worldSize_; ++rank)
      ranks_.push_back({std::make_unique<SocketRank>(rank, worldSize_, kTreeSecret,
                                                     fmt::format("m{}", rank / perMachine_))});
  }

  Exchanged exchange(int number) {
    Exchanged each = {fmt::format("exchange {}", number), {}, below(2) ? Fold::Parts : Fold::First};
    if (below(2))
      for (int rank = 0; rank < worldSize_; ++rank)
        if (below(2))
          each.members.push_back(rank);
    std::ranges::shuffle(each.members, random_);
    return each;
  }

  Relay *relayOf(int64_t rank) const {
    int64_t machine = rank / perMachine_;
    return machine == 0 ? nullptr : relays_[static_cast<size_t>(machine - 1)].get();
  }

  /// One node or rank, whichever it is.
  void step() {
    int64_t nodes = 1 + std::ssize(relays_) + std::ssize(ranks_);
    int64_t which = below(nodes);
    std::vector<pollfd> entries;
    if (which == 0) {
      if (server_) {
        server_->addTo(entries);
        ::poll(entries.data(), entries.size(), 0);
        server_->step(now_, entries);
      }
    } else if (which <= std::ssize(relays_)) {
      if (Relay *relay = relays_[static_cast<size_t>(which - 1)].get()) {
        relay->addTo(entries);
        ::poll(entries.data(), entries.size(), 0);
        relay->step(now_, entries);
      }
    } else {
      act(ranks_[static_cast<size_t>(which - 1 - std::ssize(relays_))]);
    }
  }

  void act(Rank &rank) {
    int64_t number = rank.end->rank();
    if (rank.isStruck || (rank.hasConnected && !rank.end->isConnected()))
      return;
    if (rank.isDone) { // its process ends
      rank.end->step();
      if (!rank.end->wire().hasUnsent())
        rank.end->close();
      return;
    }
    if (!rank.hasConnected) {
      bool isDirect = number < perMachine_;
      Relay *relay = relayOf(number);
      if (isDirect ? !server_ : !relay || relay->port() == 0 || relay->isOver())
        return;
      rank.hasConnected = rank.end->connect("127.0.0.1", isDirect ? port_ : relay->port()).isOk();
      return;
    }
    rank.end->step();
    if (rank.end->aborted)
      rank.end->close();
    if (!rank.end->isConnected() || !rank.end->welcome())
      return;
    if (rank.isWaiting) {
      if (rank.end->gathered.empty())
        return;
      expectParts(program_[rank.at], rank.end->gathered.front());
      rank.end->gathered.clear();
      rank.isWaiting = false;
      ++rank.at;
    }
    while (rank.at < program_.size() && !program_[rank.at].hasMember(static_cast<int>(number)))
      ++rank.at;
    if (rank.at < program_.size()) {
      const Exchanged &next = program_[rank.at];
      rank.end->gather(next.key, next.members, partOf(next, static_cast<int>(number)), next.fold);
      rank.isWaiting = true;
    } else {
      rank.end->send(MessageKind::Bye, Packer().number(0).take());
      rank.isDone = true;
    }
    if (below(4) == 0)
      rank.end->progress(static_cast<uint32_t>(below(100)), 1);
  }

  std::string partOf(const Exchanged &of, int rank) const {
    bool isEmpty = of.fold == Fold::First && rank % 3 != 0;
    return isEmpty ? "" : fmt::format("{} of {}", of.key, rank);
  }

  void expectParts(const Exchanged &of, const std::vector<std::string> &given) {
    std::vector<std::string> parts;
    if (of.members.empty())
      for (int rank = 0; rank < worldSize_; ++rank)
        parts.push_back(partOf(of, rank));
    for (int rank : of.members)
      parts.push_back(partOf(of, rank));
    EXPECT_EQ(given, hal::Peers::folded(std::move(parts), of.fold)) << "seed " << seed_;
  }

  /// A rank, a relay, or rank 0's supervisor ends.
  void strike() {
    int64_t which = below(8);
    if (which == 0) {
      server_.reset();
    } else if (which < 4 && !relays_.empty()) {
      relays_[static_cast<size_t>(below(std::ssize(relays_)))].reset();
    } else {
      Rank &rank = ranks_[static_cast<size_t>(below(worldSize_))];
      rank.isStruck = true;
      rank.end->close();
    }
  }

  /// Nobody who is left is still in the job.
  bool isOver() const {
    bool areNodesOver = (!server_ || server_->isOver()) &&
                        std::ranges::all_of(relays_, [](const std::unique_ptr<Relay> &relay) {
                          return !relay || relay->isOver();
                        });
    if (server_ && server_->isOver()) { // its process ends, and with it its connections
      for (const Rank &rank : ranks_)
        rank.end->close();
    }
    return areNodesOver &&
           std::ranges::none_of(ranks_, [](const Rank &rank) { return rank.end->isConnected(); });
  }

  std::string describe() const {
    std::string text = fmt::format("{} machines of {} ranks, fan-out {}, struck at {}; ", machines_,
                                   perMachine_, fanOut_, faultAt_);
    text += server_ ? fmt::format("server is over: {}, runs: {}; ", server_->isOver(),
                                  server_->isRunning())
                    : "no server; ";
    for (const std::unique_ptr<Relay> &relay : relays_)
      text += relay ? fmt::format("relay is over: {}, has {} connections; ", relay->isOver(),
                                  relay->connections())
                    : "no relay; ";
    for (const Rank &rank : ranks_)
      text += fmt::format("rank {} connected: {}, at {} of {}; ", rank.end->rank(),
                          rank.end->isConnected(), rank.at, program_.size());
    return text;
  }

  void check() const {
    if (!server_)
      return;
    bool isWell = server_->exitStatus() == 0;
    EXPECT_EQ(said_.size(), isWell ? 0u : 1u) << "seed " << seed_;
    for (const Rank &rank : ranks_)
      EXPECT_TRUE(!isWell || rank.isDone || rank.isStruck) << "seed " << seed_;
  }

  uint64_t seed_;
  std::mt19937_64 random_;
  int64_t machines_ = 1, perMachine_ = 1, worldSize_ = 1, faultAt_ = -1;
  size_t fanOut_ = 1;
  int port_ = 0;
  double now_ = 100;
  std::optional<RendezvousServer> server_;
  std::vector<std::unique_ptr<Relay>> relays_; ///< of machine 1 and on; null: has ended
  std::vector<Rank> ranks_;
  std::vector<Exchanged> program_;
  std::vector<std::string> said_;
};

TEST(RelaySimulation, EveryJobEndsAndSaysOnceWhy) {
  const uint64_t seeds = shardc::test::isLong() ? 100'000 : 300;
  uint64_t failed = 0, deep = 0;
  const char *first = std::getenv("SEED");
  for (uint64_t seed = first ? std::strtoull(first, nullptr, 10) : 1;
       seed <= seeds && !HasFailure(); ++seed) {
    RelayWorld world(seed);
    world.run();
    failed += world.hasFailed();
    deep += world.isDeep();
  }
  std::printf("%lu jobs, %lu of them with relays behind relays; %lu ended with a message\n",
              static_cast<unsigned long>(seeds), static_cast<unsigned long>(deep),
              static_cast<unsigned long>(failed));
}

} // namespace
} // namespace shardc::launch
