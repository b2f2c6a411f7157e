// Ranks that are threads of one process, and exchange data as ranks do through rank 0's supervisor.
#pragma once

#include <array>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "runtime/hal/Peers.h"
#include "runtime/launch/Exchange.h"

namespace shardc::test {

class Board {
public:
  explicit Board(int ranks) : ranks(ranks), exchange_(ranks) {}
  const int ranks;

  /// Aborts for all ranks as soon as they wait for each other in different exchanges.
  Result<std::vector<std::string>> exchange(int rank, launch::GatherPart part) {
    std::unique_lock lock(mutex_);
    if (!exchange_.add(rank, std::move(part), 0))
      return Status(StatusCode::Internal, "no part of an exchange");
    if (std::optional<int64_t> other = exchange_.findOther(rank))
      stuck_ = fmt::format("rank {} is at '{}', rank {} at '{}'", *other, exchange_.nameOf(*other),
                           rank, exchange_.nameOf(rank));
    if (std::optional<launch::Exchange::Done> done = exchange_.take(rank))
      for (int member : done->members)
        gathered_[member] = done->body;
    changed_.notify_all();
    changed_.wait(lock, [&] { return gathered_.contains(rank) || !stuck_.empty(); });
    if (!gathered_.contains(rank))
      return Status(StatusCode::Aborted, stuck_);
    std::vector<std::string> parts;
    launch::Unpacker in(gathered_[rank]);
    while (!in.isComplete() && !in.hasFailed())
      parts.push_back(in.text());
    gathered_.erase(rank);
    return parts;
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  launch::Exchange exchange_;
  std::map<int, std::string> gathered_; ///< by rank, until the rank takes the result
  std::string stuck_;
};

class BoardPeers final : public hal::Peers {
public:
  BoardPeers(Board &board, int rank) : board_(board), rank_(rank) {}
  int rank() const override { return rank_; }
  int worldSize() const override { return board_.ranks; }
  int localRank() const override { return rank_; }
  int localSize() const override { return board_.ranks; }
  std::string address() const override { return ""; }
  Key jobKey() const override { return {}; }
  Result<std::vector<std::string>> exchange(std::string_view key, const std::vector<int> &members,
                                            std::string_view mine, Fold fold) override {
    ++exchanges;
    return board_.exchange(rank_, {std::string(key), fold, members, std::string(mine)});
  }
  void reportLost(int, std::string_view) override {}
  int exchanges = 0;

private:
  Board &board_;
  int rank_;
};

/// Runs `work` as each rank, concurrently.
inline void asRanks(int ranks, const std::function<void(BoardPeers &)> &work) {
  Board board(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      BoardPeers peers(board, rank);
      work(peers);
    });
  for (std::thread &thread : threads)
    thread.join();
}

} // namespace shardc::test
