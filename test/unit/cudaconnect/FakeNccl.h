// Records the calls to this program's fake NCCL, and decides which it refuses.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <nccl.h>

/// A rank's part of a communicator.
struct FakeCommunicator {
  std::string group; ///< the same text on all ranks of the communicator
  int rank = 0, size = 0, splits = 0, windows = 0;
  size_t registered = 0;          ///< buffers, locally
  std::vector<std::string> calls; ///< in order
  ncclConfig_t config = {};
};

namespace shardc::cuda {

class FakeNccl {
public:
  static FakeNccl &only();
  /// Forgets all that it has seen.
  void reset();

  /// Returns whether the call of this rank in the group is refused. If empty, no call is.
  std::function<bool(const std::string &call, int rank)> refuses;

  ncclResult_t begin();
  ncclResult_t end();
  std::string makeId();
  ncclResult_t join(const std::string &group, int rank, int size, const ncclConfig_t &config,
                    ncclComm_t *to);
  /// Records a call that all ranks of a communicator must make. The thread waits for the other
  /// ranks when its open ncclGroup ends, or at once if none is open.
  void together(FakeCommunicator &of, const std::string &call);
  ncclResult_t note(FakeCommunicator &of, const std::string &call);
  ncclResult_t leave(FakeCommunicator *of);
  bool isRefused(const std::string &call, int rank) { return refuses && refuses(call, rank); }

  /// Every communicator that was created: by group, then by rank.
  std::map<std::string, std::map<int, std::shared_ptr<FakeCommunicator>>> groups;
  /// Calls that NCCL does not allow, or in which it would wait forever.
  std::vector<std::string> wrong;
  int open = 0; ///< communicators

private:
  struct Wait {
    std::string what;
    int size;
  };
  ncclResult_t await(const std::vector<Wait> &waits);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, int> came_;
  int ids_ = 0;
};

} // namespace shardc::cuda
