// Cost of starting many ranks for rank 0's supervisor and the relays: with real sockets on
// loopback, and ranks that are connections of a few processes.
//
//     launch-bench RANKS [RANKS_OF_A_MACHINE]
//
// Prints one line: seconds until all ranks have met, for an exchange in which each rank needs one
// part, and for one within each machine; frames, bytes and descriptors of rank 0's supervisor, and
// its memory; bytes of the busiest relay; seconds from a rank's end to the message.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <new>
#include <ranges>
#include <vector>

#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/ProgressWord.h"
#include "runtime/launch/RendezvousServer.h"
#include "test/unit/launch/SocketRank.h"

namespace shardc::launch {
namespace {

constexpr int kWorkers = 4;           // processes with ranks
constexpr double kLookSeconds = 0.02; // between polls of a relay without new data
constexpr int kAskingMax = 8;         // relays of a process that look for their parents at once
constexpr int kExchanges = 5;         // of each kind
constexpr double kLimit = 300;        // seconds for the whole bench
constexpr double kSteady = 3;         // seconds in which ranks only send progress
constexpr double kBeat = 0.25;        // between two progress messages of a rank
constexpr Key kBenchSecret = {8};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Memory that the bench's processes share.
struct Shared {
  std::atomic<int> port{0}, readyRelays{0};
  std::atomic<double> begin{0}, met{0}, killed{0}, reported{0}, oneSeconds{0}, groupSeconds{0};
  std::atomic<uint64_t> frames{0}, bytes{0}, steadyBytes{0}, relayBytes{0};
  std::atomic<int64_t> descriptors{0}, relayConnections{0}, memory{0}, metRanks{0}, done{0};
  std::atomic<int> phase{0}; ///< 0: meet; then exchanges, the steady phase, the end of a rank
  std::atomic<int64_t> arrived[2 * kExchanges + 1];
};

struct Shape {
  int64_t ranks = 1, ofMachine = 8;
};

void serve(const Shape &shape, Shared &shared) {
  Socket listener = std::move(*listenOn("127.0.0.1", 0));
  shared.port = portOf(listener);
  RendezvousOptions options;
  options.worldSize = shape.ranks;
  options.planHash = 7;
  options.secret = kBenchSecret;
  options.job = "j";
  options.where = "here";
  options.timeoutSeconds = kLimit;
  options.joinSeconds = kLimit;
  options.emit = [&](const Report &report) {
    if (shared.reported == 0)
      shared.reported = now();
    std::fprintf(stderr, "%s\n", report.text.c_str());
  };
  RendezvousServer server(std::move(listener), std::move(options));
  uint64_t before = 0;
  int64_t connections = 0;
  for (double begin = now(); now() - begin < kLimit && !server.isOver();) {
    std::vector<pollfd> entries;
    server.addTo(entries);
    ::poll(entries.data(), entries.size(), 20);
    server.step(now(), entries);
    if (shared.phase == 2 * kExchanges + 1 && before == 0)
      before = server.traffic().readBytes;
    if (!server.hasFailed()) {
      Traffic traffic = server.traffic();
      shared.frames = traffic.readFrames + traffic.sentFrames;
      shared.bytes = traffic.readBytes + traffic.sentBytes;
      if (auto count = static_cast<int64_t>(server.connections()); count > connections) {
        connections = count;
        shared.descriptors =
            std::ranges::distance(std::filesystem::directory_iterator("/proc/self/fd"));
      }
      if (shared.phase == 2 * kExchanges + 1)
        shared.steadyBytes = traffic.readBytes - before;
    }
  }
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  shared.memory = usage.ru_maxrss;
}

/// The ranks and relays of every kWorkers-th machine, run by one process.
class Worker {
public:
  Worker(const Shape &shape, Shared &shared, int64_t number) : shape_(shape), shared_(shared) {
    int64_t machines = (shape.ranks + shape.ofMachine - 1) / shape.ofMachine;
    for (int64_t machine = number; machine < machines; machine += kWorkers)
      addMachine(machine);
  }

  void run() {
    std::vector<pollfd> entries;
    for (double begin = now(); now() - begin < kLimit && shared_.done == 0;) {
      entries.clear();
      int asking = 0; // bounded, since each search holds up all others of this process
      std::vector<std::pair<size_t, size_t>> ofRelays;
      for (std::unique_ptr<Relay> &relay : relays_) {
        size_t first = entries.size();
        if (relay->port() > 0 || ++asking <= kAskingMax)
          relay->addTo(entries);
        ofRelays.emplace_back(first, entries.size());
      }
      size_t firstRank = entries.size();
      for (size_t i = 0; i < next_; ++i)
        entries.push_back({ranks_[i].end->wire().fd(), POLLIN, 0});
      ::poll(entries.data(), entries.size(), 1);
      asking = 0;
      bool isTime = now() - lookedAt_ > kLookSeconds;
      lookedAt_ = isTime ? now() : lookedAt_;
      for (size_t r = 0; r < relays_.size(); ++r) {
        auto [first, end] = ofRelays[r];
        bool isReady = std::any_of(entries.begin() + static_cast<ptrdiff_t>(first),
                                   entries.begin() + static_cast<ptrdiff_t>(end),
                                   [](const pollfd &entry) { return entry.revents != 0; });
        bool isAsking = relays_[r]->port() == 0 && ++asking <= kAskingMax;
        if (isReady || isAsking || (isTime && relays_[r]->port() > 0))
          relays_[r]->step(now(), entries);
      }
      int phase = shared_.phase;
      bool isNews = phase != phase_ || phase == 2 * kExchanges + 1;
      phase_ = phase;
      for (size_t i = 0; i + firstRank < entries.size(); ++i)
        if (isNews || entries[firstRank + i].revents != 0 || ranks_[i].end->wire().hasUnsent())
          act(ranks_[i]);
      connectRanks();
    }
    uint64_t most = shared_.relayBytes;
    for (const std::unique_ptr<Relay> &relay : relays_) {
      Traffic traffic = relay->traffic();
      most = std::max(most, traffic.readBytes + traffic.sentBytes);
      shared_.relayConnections =
          std::max<int64_t>(shared_.relayConnections, static_cast<int64_t>(relay->connections()));
    }
    shared_.relayBytes = most;
  }

private:
  struct Rank {
    std::unique_ptr<SocketRank> end;
    Relay *relay = nullptr;
    bool hasMet = false, isWaiting = false;
    int phase = 0;
    double beatAt = 0;
  };

  void addMachine(int64_t machine) {
    Relay *relay = nullptr;
    if (machine > 0) {
      RelayOptions options;
      options.address = "127.0.0.1";
      options.port = shared_.port;
      options.rank = machine * shape_.ofMachine;
      options.worldSize = shape_.ranks;
      options.secret = kBenchSecret;
      options.job = "j";
      options.relayName = fmt::format("shardc-bench-{}-{}", shared_.port.load(), machine);
      options.joinSeconds = kLimit;
      options.emit = [](const Report &) {};
      relays_.push_back(std::make_unique<Relay>(std::move(options)));
      relay = relays_.back().get();
    }
    for (int64_t local = 0; local < shape_.ofMachine; ++local)
      if (int64_t rank = machine * shape_.ofMachine + local; rank < shape_.ranks)
        ranks_.push_back({std::make_unique<SocketRank>(rank, shape_.ranks, kBenchSecret,
                                                       fmt::format("m{}", machine)),
                          relay});
  }

  /// Connects some of the ranks, as a launcher's processes arrive.
  void connectRanks() {
    for (int left = 64; next_ < ranks_.size() && left > 0; --left) {
      Rank &rank = ranks_[next_];
      if (rank.relay && rank.relay->port() == 0)
        return;
      if (rank.end->connect("127.0.0.1", rank.relay ? rank.relay->port() : shared_.port.load())
              .isOk())
        ++next_;
    }
  }

  std::vector<int> machineOf(int64_t rank) const {
    std::vector<int> members;
    int64_t first = rank / shape_.ofMachine * shape_.ofMachine;
    for (int64_t each = first; each < std::min(first + shape_.ofMachine, shape_.ranks); ++each)
      members.push_back(static_cast<int>(each));
    return members;
  }

  /// Handles a rank's messages. Returns false if there was nothing to do.
  bool act(Rank &rank) {
    SocketRank &end = *rank.end;
    end.step();
    if (!rank.hasMet && end.welcome()) {
      rank.hasMet = true;
      if (++shared_.metRanks == shape_.ranks) {
        shared_.met = now();
        shared_.phase = 1;
      }
    }
    int phase = shared_.phase;
    if (rank.isWaiting) {
      if (end.gathered.empty())
        return false;
      end.gathered.clear();
      rank.isWaiting = false;
      if (++shared_.arrived[rank.phase - 1] == shape_.ranks)
        shared_.phase = phase + 1;
      return true;
    }
    if (phase > rank.phase && phase <= 2 * kExchanges) {
      bool isOfAll = phase <= kExchanges;
      end.gather(fmt::format("exchange {}", phase),
                 isOfAll ? std::vector<int>() : machineOf(end.rank()), std::string(16, 'x'),
                 isOfAll ? hal::Peers::Fold::First : hal::Peers::Fold::Parts);
      rank.phase = phase;
      rank.isWaiting = true;
      return true;
    }
    if (phase == 2 * kExchanges + 1 && now() - rank.beatAt > kBeat) {
      rank.beatAt = now();
      end.progress(ProgressWord::inside(static_cast<uint32_t>(++beats_ % 1000)), 1);
      return true;
    }
    if (phase == 2 * kExchanges + 2 && end.rank() == shape_.ranks / 2 && shared_.killed == 0) {
      shared_.killed = now();
      end.close();
    }
    return false;
  }

  const Shape &shape_;
  Shared &shared_;
  std::vector<std::unique_ptr<Relay>> relays_;
  std::vector<Rank> ranks_;
  size_t next_ = 0; ///< the next rank to connect
  int phase_ = 0;
  double lookedAt_ = 0;
  uint64_t beats_ = 0;
};

int bench(const Shape &shape) {
  rlimit limit = {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  void *page =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Shared &shared = *new (page) Shared;
  std::vector<pid_t> children;
  auto start = [&](auto work) {
    std::fflush(nullptr);
    pid_t pid = ::fork();
    if (pid == 0) {
      work();
      std::_Exit(0);
    }
    children.push_back(pid);
  };
  start([&] { serve(shape, shared); });
  while (shared.port == 0)
    ::usleep(1000);
  shared.begin = now();
  for (int64_t worker = 0; worker < kWorkers; ++worker)
    start([&, worker] { Worker(shape, shared, worker).run(); });
  double mark[2] = {0, 0};
  for (double begin = now(); now() - begin < kLimit && shared.reported == 0;) {
    int phase = shared.phase;
    for (int kind : {0, 1})
      if (phase == 1 + kind * kExchanges && mark[kind] == 0)
        mark[kind] = now();
    if (phase == kExchanges + 1 && shared.oneSeconds == 0)
      shared.oneSeconds = (now() - mark[0]) / kExchanges;
    if (phase == 2 * kExchanges + 1 && shared.groupSeconds == 0) {
      shared.groupSeconds = (now() - mark[1]) / kExchanges;
      ::usleep(static_cast<useconds_t>(kSteady * 1e6));
      shared.phase = 2 * kExchanges + 2;
    }
    ::usleep(200);
  }
  double reported = shared.reported;
  shared.done = 1;
  for (pid_t child : children)
    ::waitpid(child, nullptr, 0);
  if (reported == 0 || shared.killed == 0) {
    std::printf("%ld ranks: phase %d of %d, %ld have met\n", static_cast<long>(shape.ranks),
                shared.phase.load(), 2 * kExchanges + 2, static_cast<long>(shared.metRanks.load()));
    return 1;
  }
  std::printf(
      "%s",
      fmt::format(
          "{} ranks, {} of a machine: met in {:.2f} s; an exchange {:.1f} ms, of machines "
          "{:.1f} ms; rank 0's supervisor {} descriptors, {} frames, {:.2f} MB, {:.0f} MiB of "
          "memory, "
          "{:.2f} MB/s of progress; busiest relay {} connections, {:.2f} MB; reported after {:.2f} "
          "s\n",
          shape.ranks, shape.ofMachine, shared.met - shared.begin, shared.oneSeconds * 1e3,
          shared.groupSeconds * 1e3, shared.descriptors.load(), shared.frames.load(),
          static_cast<double>(shared.bytes) / 1e6, static_cast<double>(shared.memory) / 1024,
          static_cast<double>(shared.steadyBytes) / kSteady / 1e6, shared.relayConnections.load(),
          static_cast<double>(shared.relayBytes) / 1e6, reported - shared.killed)
          .c_str());
  return 0;
}

} // namespace
} // namespace shardc::launch

int main(int argc, char **argv) {
  shardc::launch::Shape shape;
  if (argc > 1)
    shape.ranks = std::max(1L, std::atol(argv[1]));
  if (argc > 2)
    shape.ofMachine = std::max(1L, std::atol(argv[2]));
  return shardc::launch::bench(shape);
}
