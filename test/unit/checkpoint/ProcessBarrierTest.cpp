// Rendezvous of several processes through a folder; here of threads that share nothing else.
#include <thread>

#include <gtest/gtest.h>

#include "runtime/checkpoint/ProcessBarrier.h"
#include "test/unit/checkpoint/TestFiles.h"

namespace shardc::checkpoint {
namespace {

/// Runs `work` as each rank, the last one first.
void asRanks(int ranks, const std::function<void(int)> &work) {
  std::vector<std::thread> threads;
  for (int rank = ranks - 1; rank >= 0; --rank)
    threads.emplace_back(work, rank);
  for (std::thread &thread : threads)
    thread.join();
}

std::unique_ptr<ProcessBarrier> joined(const std::string &place, int rank, int ranks) {
  Result<std::unique_ptr<ProcessBarrier>> barrier = ProcessBarrier::join(place, rank, ranks, {});
  EXPECT_TRUE(barrier.isOk()) << barrier.status().message();
  return barrier.isOk() ? std::move(*barrier) : nullptr;
}

TEST(ProcessBarrier, NobodyPassesBeforeAllHaveCome) {
  TempFolder folder;
  constexpr int kRanks = 4, kMeetings = 5;
  std::atomic<int> came[kMeetings] = {};
  asRanks(kRanks, [&](int rank) {
    auto barrier = joined(folder / "place", rank, kRanks);
    ASSERT_NE(barrier, nullptr);
    for (std::atomic<int> &count : came) {
      ++count;
      EXPECT_OK(barrier->meet(Status::ok()));
      EXPECT_EQ(count, kRanks);
    }
  });
  EXPECT_FALSE(std::filesystem::exists(folder / "place"));
}

TEST(ProcessBarrier, AllLearnOfAFailure) {
  TempFolder folder;
  asRanks(3, [&](int rank) {
    auto barrier = joined(folder / "place", rank, 3);
    ASSERT_NE(barrier, nullptr);
    Status mine = rank == 2 ? Status(StatusCode::Exhausted, "the disk is full") : Status::ok();
    Status all = barrier->meet(mine);
    EXPECT_EQ(all.code(), StatusCode::Exhausted);
    EXPECT_NE(all.message().find("rank 2: the disk is full"), std::string::npos) << all.message();
  });
}

TEST(ProcessBarrier, WhoLeavesEarlyIsMissed) {
  TempFolder folder;
  for (int leaver : {0, 1})
    asRanks(3, [&](int rank) {
      auto barrier = joined(folder / "place", rank, 3);
      ASSERT_NE(barrier, nullptr);
      if (rank != leaver) {
        EXPECT_EQ(barrier->meet(Status::ok()).code(), StatusCode::Aborted);
      }
    });
}

TEST(ProcessBarrier, LeftoversOfAnInterruptedJobDoNoHarm) {
  TempFolder folder;
  std::filesystem::create_directories(folder / "place");
  for (const char *name : {"hello.1", "hello.2", "session", "old.0.all", "old.left.1"})
    putContents(folder / "place/" + name, "old\n1 old\n2 old\n");
  std::atomic<int> met = 0;
  asRanks(3, [&](int rank) {
    auto barrier = joined(folder / "place", rank, 3);
    ASSERT_NE(barrier, nullptr);
    EXPECT_OK(barrier->meet(Status::ok()));
    ++met;
  });
  EXPECT_EQ(met, 3);
}

TEST(ProcessBarrier, NobodyWaitsWhereNothingCanBeMade) {
  TempFolder folder;
  putContents(folder / "file", "");
  EXPECT_FALSE(ProcessBarrier::join(folder / "file/place", 0, 2, {}).isOk());
  EXPECT_FAILS(ProcessBarrier::join(folder / "file/place", 1, 2, {}).status(), "cannot write in");
}

TEST(ProcessBarrier, APlaceThatIsSweptWhileRanksWaitIsMadeAgain) {
  TempFolder folder;
  std::thread sweeper([&] {
    while (!std::filesystem::exists(folder / "place"))
      std::this_thread::yield();
    std::filesystem::remove_all(folder / "place");
  });
  asRanks(2, [&](int rank) {
    if (rank == 1)
      sweeper.join(); // only the first rank has arrived
    auto barrier = joined(folder / "place", rank, 2);
    ASSERT_NE(barrier, nullptr);
    EXPECT_OK(barrier->meet(Status::ok()));
    EXPECT_EQ(barrier->meetings(), 1);
  });
}

TEST(ProcessBarrier, WaitsNoLongerThanItsPatience) {
  TempFolder folder;
  ProcessBarrier::Options options;
  options.patience = std::chrono::seconds(0);
  EXPECT_FAILS(ProcessBarrier::join(folder / "place", 0, 2, options).status(),
               "of 2 ranks reached");
  EXPECT_FAILS(ProcessBarrier::join(folder / "place", 1, 2, options).status(), "was not admitted");
}

} // namespace
} // namespace shardc::checkpoint
