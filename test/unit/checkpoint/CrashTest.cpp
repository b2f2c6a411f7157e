// A save that dies or fails at any file operation leaves the last checkpoint loadable.
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "runtime/base/Thread.h"
#include "runtime/checkpoint/Convert.h"
#include "runtime/checkpoint/PlainValue.h"
#include "test/unit/checkpoint/PlantedFileFaults.h"
#include "test/unit/checkpoint/TestFiles.h"

namespace shardc::checkpoint {
namespace {

/// Saves a checkpoint whose every value is `iteration`, on two ranks.
Status saveValues(const std::string &root, int64_t iteration, FileFaults *faults = nullptr) {
  SaveTarget target = SaveTarget::iteration(root, iteration, {.faults = faults});
  std::vector<float> values(8, static_cast<float>(iteration));
  BytesItem item = objectItem({"iteration"}, PlainValue(iteration));
  RETURN_IF_ERROR(beginSave(target));
  for (int rank = 0; rank < 2; ++rank) {
    TensorSlice slice{"w", Element::F32, {4, 4}, {{2 * rank, 0}, {2, 4}}, values.data()};
    RETURN_IF_ERROR(writeRank(target, rank, {&slice, 1}, {&item, 1}));
  }
  RETURN_IF_ERROR(addFile(target, "train_state.pt", "state"));
  return commitSave(target, 2);
}

/// The iteration of the latest checkpoint after recovery. All of its values must equal it.
int64_t recovered(const std::string &root) {
  EXPECT_OK(recoverInterrupted(root, [](const Report &) {}));
  Result<std::optional<SavedIteration>> latest = latestIteration(root);
  EXPECT_TRUE(latest.isOk()) << latest.status().message();
  if (!latest.isOk() || !*latest)
    return -1;
  Result<CheckpointReader> reader = CheckpointReader::open((*latest)->folder, Verify::Whole);
  EXPECT_TRUE(reader.isOk()) << reader.status().message();
  if (!reader.isOk())
    return -2;
  for (float value : readBox<float>(*reader, "w", {0, 0}, {4, 4}, Element::F32))
    EXPECT_EQ(value, static_cast<float>((*latest)->iteration));
  EXPECT_OK(reader->verifyFiles());
  for (const auto &entry : std::filesystem::directory_iterator(root)) {
    std::string name = entry.path().filename().string();
    EXPECT_TRUE(name.starts_with("iter_") || name == "latest_checkpointed_iteration.txt" ||
                name == "latest_train_state.pt")
        << name;
  }
  return (*latest)->iteration;
}

int64_t operationsOfASave() {
  TempFolder folder;
  EXPECT_OK(saveValues(folder.path(), 1));
  InjectedFileFaults counter; // with writes in halves
  EXPECT_OK(saveValues(folder.path(), 2, &counter));
  return counter.operationsDone();
}

/// Runs a save in a child process that dies at an operation. Returns whether the save ended before
/// that operation.
bool crashAt(const std::string &root, int64_t iteration, int64_t operation) {
  pid_t child = ::fork();
  if (child == 0) {
    InjectedFileFaults faults({FileFault::Kind::Crash, operation});
    ::_exit(saveValues(root, iteration, &faults).isOk() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_TRUE(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 137);
  return WEXITSTATUS(status) == 0;
}

TEST(Crash, AtEveryOperationTheLastCheckpointStays) {
  int64_t count = operationsOfASave();
  ASSERT_GT(count, 30);
  for (int64_t operation = 0; operation <= count; ++operation) {
    TempFolder folder;
    ASSERT_OK(saveValues(folder.path(), 1));
    bool hasEnded = crashAt(folder.path(), 2, operation);
    int64_t latest = recovered(folder.path());
    EXPECT_TRUE(latest == 1 || latest == 2) << "operation " << operation;
    EXPECT_TRUE(!hasEnded || latest == 2);
    ASSERT_OK(saveValues(folder.path(), 3));
    EXPECT_EQ(recovered(folder.path()), 3);
  }
}

TEST(Crash, AtEveryOperationOfTheFirstSave) {
  int64_t count = operationsOfASave();
  for (int64_t operation = 0; operation <= count; ++operation) {
    TempFolder folder;
    bool hasEnded = crashAt(folder.path(), 1, operation);
    int64_t latest = recovered(folder.path());
    EXPECT_TRUE(latest == 1 || (latest == -1 && !hasEnded)) << "operation " << operation;
  }
}

TEST(Crash, AtEveryOperationOfAReplacement) {
  int64_t count = operationsOfASave() + 5;
  for (int64_t operation = 0; operation <= count; ++operation) {
    TempFolder folder;
    ASSERT_OK(saveValues(folder.path(), 1));
    crashAt(folder.path(), 1, operation);
    EXPECT_EQ(recovered(folder.path()), 1) << "operation " << operation;
  }
}

TEST(Crash, FullDiskAndMissingRightsAreReportedAndHarmless) {
  int64_t count = operationsOfASave();
  for (auto kind : {FileFault::Kind::DiskFull, FileFault::Kind::Denied})
    for (int64_t operation = 0; operation < count; ++operation) {
      TempFolder folder;
      ASSERT_OK(saveValues(folder.path(), 1));
      InjectedFileFaults faults({kind, operation});
      Status status = saveValues(folder.path(), 2, &faults);
      EXPECT_FALSE(status.isOk()) << "operation " << operation;
      const char *reason =
          kind == FileFault::Kind::DiskFull ? "No space left on device" : "Permission denied";
      EXPECT_NE(status.message().find(reason), std::string::npos) << status.message();
      int64_t latest = recovered(folder.path());
      EXPECT_TRUE(latest == 1 || latest == 2);
    }
}

TEST(Crash, TooFewThreadsDoTheWorkOfAll) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers take more than the address space that the test leaves";
#endif
  TempFolder folder;
  pid_t child = ::fork(); // the memory limit applies only to this child process
  if (child == 0) {
    rlimit memory = {512 << 20, 512 << 20}; // a thread's stack takes 8 MiB
    ::setrlimit(RLIMIT_AS, &memory);
    std::atomic<int> done{0};
    std::atomic<size_t> last{0}; // of the threads that could be started
    Status status = runOnThreads(500, 500, [&](size_t, size_t thread) {
      for (size_t known = last; known < thread && !last.compare_exchange_weak(known, thread);) {
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2)); // so that others get work
      ++done;
      return Status::ok();
    });
    ::_exit(status.isOk() && done == 500 && last < 499 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(Crash, AnInterruptedConversionLeavesNothing) {
  TempFolder folder;
  ASSERT_OK(saveValues(folder.path(), 1));
  Interruption interruption;
  ReshardOptions options;
  options.ranks = 4;
  options.progress = [&](int64_t, int64_t) { interruption.request(); };
  SaveTarget out = SaveTarget::iteration(folder / "out", 1, {.interruption = &interruption});
  EXPECT_FALSE(interruption.isClearingUp());
  Status status = reshard(folder / "iter_0000001", out, options);
  EXPECT_EQ(status.code(), StatusCode::Aborted);
  EXPECT_EQ(status.message(), "interrupted");
  EXPECT_TRUE(interruption.isClearingUp());
  EXPECT_TRUE(std::filesystem::is_empty(folder / "out"));
}

TEST(Crash, KilledAtRandomMoments) {
  TempFolder folder;
  ASSERT_OK(saveValues(folder.path(), 1));
  int64_t latest = 1;
  for (int round = 0; round < 40; ++round) {
    pid_t child = ::fork();
    if (child == 0) {
      for (int64_t iteration = latest + 1;; ++iteration)
        if (!saveValues(folder.path(), iteration).isOk())
          ::_exit(1);
    }
    ::usleep(static_cast<useconds_t>(500 + 997 * (round % 13)));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status));
    int64_t now = recovered(folder.path());
    EXPECT_GE(now, latest);
    latest = now;
    ASSERT_OK(removeOldIterations(folder.path(), 2));
  }
}

} // namespace
} // namespace shardc::checkpoint
