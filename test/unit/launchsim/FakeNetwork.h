// A network in simulated time that replaces the system's: a program linked with FakeNetwork.cpp
// gets its sockets from here. Bytes arrive late, and depending on a seed they are sometimes lost,
// sent twice, changed or swapped. Counts what each process sends and receives. For one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <poll.h>

namespace shardc::launch {

/// A process's use of the network.
struct Usage {
  uint64_t bytesIn = 0, bytesOut = 0, messagesIn = 0, messagesOut = 0;
  int connections = 0, connectionsMost = 0;
  int parent = -1; ///< the process that it connected to last
};

class FakeNetwork {
public:
  static FakeNetwork &only();
  /// Removes all sockets, and draws all chances from a new seed.
  void reset(uint64_t seed);

  double now = 0;
  int machine = 0;               ///< machine on which the current calls run
  static inline int process = 0; ///< process that makes the current calls; 0: none
  double faultChance = 0; ///< chance that bytes sent at once are lost, changed, repeated or swapped
  double slowChance = 0;  ///< chance that bytes take up to two seconds to another machine
  double lateMost = 0;    ///< maximum seconds that other bytes take to another machine
  uint64_t moved = 0;     ///< bytes that have arrived

  /// The resources of a process, without named sockets.
  Usage usage(int of) const {
    return of < std::ssize(usage_) ? usage_[static_cast<size_t>(of)] : Usage();
  }

  /// Another descriptor of the same socket.
  int duplicate(int fd);
  /// The machine loses power: others receive nothing from it, not even the end of its connections,
  /// which they notice after some minutes.
  void vanish(int lost);
  /// Sets the entries like poll(2).
  void look(std::vector<pollfd> &entries) const;

  // Replacements of the system's calls.
  int open(bool isNamed);
  int close(int fd);
  int bind(int fd, int port, const std::string &name);
  int listen(int fd);
  int connect(int fd, int port, const std::string &name);
  int accept(int fd);
  int64_t send(int fd, const char *data, size_t bytes);
  int64_t receive(int fd, char *data, size_t bytes);
  /// Machine and port of an end, or of the end that it is connected to.
  bool address(int fd, bool isOther, int &of, int &port) const;
  bool has(int fd) const;

private:
  struct Chunk {
    double at;
    std::string bytes;
    uint64_t messages;
  };
  struct End {
    std::weak_ptr<End> other;
    std::deque<Chunk> arriving;
    std::deque<std::shared_ptr<End>> waiting; ///< of a listener
    double endsAt = -1; ///< time at which the other end closed the connection; -1: it is open
    int machine = 0, port = 0, otherMachine = 0, otherPort = 0;
    int process = -1;    ///< process that owns the connection; -1: none
    int listensFor = -1; ///< the process that listens
    std::string name;
    bool isNamed = false, isGone = false;
    ~End();
  };
  std::shared_ptr<End> at(int fd) const;
  int add(std::shared_ptr<End> end);
  double late(const End &from);
  Usage &usageOf(const End &end);
  void own(End &end);
  double chance() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

  std::vector<Usage> usage_;               ///< by process
  std::vector<std::shared_ptr<End>> ends_; ///< by descriptor
  std::map<int, std::weak_ptr<End>> ports_;
  std::map<std::string, std::weak_ptr<End>> names_;
  std::mt19937_64 random_;
  int nextPort_ = 0;
};

} // namespace shardc::launch
