// A rank's side of the rendezvous with rank 0's supervisor: joins, takes part in exchanges, sends
// its progress, and ends this process when the job has ended because of another rank.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/hal/Peers.h"
#include "runtime/launch/JobPosition.h"
#include "runtime/launch/Wire.h"

namespace shardc::launch {

/// The events of its job that a rank has seen, as bits for its own supervisor.
enum Heard : uint32_t {
  kHeardLeader = 1, ///< rank 0's supervisor has answered
  kHeardOver = 2,   ///< the job is over, or this rank's part of it
  /// This rank reports the loss of rank 0's supervisor. The bit also holds for later processes of
  /// the rank.
  kHeardSpeaker = 4
};

/// How a rank joins, and what its supervisor gives it. The rank of an elastic job is assigned when
/// the ranks begin, for which a place waits as long as needed.
struct RendezvousClientOptions : JoinOptions {
  int64_t localRank = 0; ///< from the launcher, or the rank if all ranks start here
  uint64_t planHash = 0;
  std::string secretSource;      ///< source of the secret, for messages
  std::optional<Report> problem; ///< why this rank cannot take part
  /// Longest silence of rank 0's supervisor in seconds: dist.distributed_timeout_minutes.
  double timeoutSeconds = 600;
  /// Longest wait in seconds until rank 0 answers a rank that was restarted; 0 for a rank that was
  /// not, which waits joinSeconds.
  double connectSeconds = 0;
  std::string gpu; ///< this rank's GPU, for messages
  /// Memory from which the supervisor reads the bits of Heard; null: none.
  std::atomic<uint32_t> *heard = nullptr;
  /// Whether another process reports it if rank 0's supervisor is killed.
  bool hasWitness = false;
  /// Whether this process was asked to end. If the function is empty, it never is.
  std::function<bool()> isAsked;
  std::span<uint8_t> heldOwn, heldGuest; ///< the supervisor's memory for this rank
};

class RendezvousClient final : public hal::Peers {
public:
  /// Joins the job and returns once all ranks have arrived. If the job fails before that, the
  /// failure has been reported (by this rank, if rank 0 cannot) and the status is Aborted.
  static Result<std::unique_ptr<RendezvousClient>> join(const RendezvousClientOptions &options);
  ~RendezvousClient() override;

  int rank() const override { return static_cast<int>(options_.rank); }
  int worldSize() const override { return static_cast<int>(options_.worldSize); }
  int localRank() const override { return static_cast<int>(options_.localRank); }
  int localSize() const override { return static_cast<int>(welcome_.localSize); }
  std::string address() const override { return ownAddress_; }
  int64_t attempt() const override { return welcome_.attempt; }
  /// The step of the save from which this start of the ranks continues; -1: as the options say.
  int64_t savedStep() const { return welcome_.savedStep; }
  /// On rank 0: the number of ranks with which the job can continue after its next save; 0 if there
  /// are no others.
  const std::atomic<int64_t> &growsTo() const { return growsTo_; }
  Key jobKey() const override {
    return deriveKey(options_.secret, {"job", bytesOf(welcome_.nonce)});
  }
  Result<std::vector<std::string>> exchange(std::string_view key, const std::vector<int> &members,
                                            std::string_view mine, Fold fold) override;
  void reportLost(int rank, std::string_view what) override;
  void reportFailure(const Status &status) override;

  /// Sets a callback that runs in a thread of its own before the process ends because the job is
  /// over. It may unblock threads that wait for other ranks, and has a few seconds to return.
  void onAbort(std::function<void()> callback);
  /// Starts to call `read` regularly from another thread and to send the returned progress.
  void watch(std::function<RankProgress()> read);
  /// Stops watching: when it returns, no call of `read` is running or will follow.
  void stopWatching();

  /// Sends the reason `status` why this rank cannot continue, and waits until the job is over.
  /// Returns the exit status for this process. Rank 0's supervisor prints the message once for all
  /// ranks.
  int fail(const Status &status, int exitStatus);
  /// Like fail() above, for `errors` that were all found before the first step.
  int fail(std::vector<Report> errors, int exitStatus);
  /// Waits until rank 0's supervisor has ended this start of the ranks, to begin another one with
  /// other ranks. All ranks must call it, after they have saved. Returns the exit status of this
  /// process.
  int rest();
  /// Reports that this rank has completed its work.
  void leave(int exitStatus);

private:
  explicit RendezvousClient(RendezvousClientOptions options) : options_(std::move(options)) {}
  /// The outcome of an attempt to join.
  struct Attempt {
    enum Outcome : uint8_t {
      Joined,
      Again,  ///< a further attempt may succeed
      Misfit, ///< further attempts fail too, unless rank 0 changes
      Failed  ///< a further attempt cannot succeed
    } outcome = Again;
    Status reason;
  };
  Status connect();
  Status findPlace();
  Status startThread();
  void awaitWelcome();
  Attempt tryToJoin(double seconds);
  Attempt shakeHands(Wire &wire, double seconds);
  Attempt answer(Wire &wire, const Message &message);
  Attempt refusedBy(const std::string &where, const std::optional<Refusal> &refusal) const;
  Status misfit(Status reason) const;
  Status unanswered(double seconds, const Status &reason) const;
  bool isSpeaker() const;
  void run();
  void note(uint32_t heard);
  void watchServer(double seconds);
  bool serve();
  void take(const Message &message);
  [[noreturn]] void endWithoutServer(const Report &report);
  void sendProgress();
  void sendPosition();
  [[noreturn]] void endProcessOf(const Abort &abort);
  void send(MessageKind kind, std::string_view body);
  void sendFailure(const Failure &failure);
  int awaitEnd(int exitStatus);

  RendezvousClientOptions options_;
  std::string ownAddress_, machine_;
  std::string server_; ///< the address that it connects to: of a relay or rank 0
  int serverPort_ = 0;
  Welcome welcome_;

  std::mutex mutex_; ///< protects all members below
  std::condition_variable changed_;
  Wire wire_;
  std::vector<std::string> gathered_;
  bool hasGathered_ = false, isWelcome_ = false, isLeaving_ = false;
  bool isStopping_ = false, isOver_ = false;
  bool hasFailed_ = false;  ///< this rank has reported that it cannot continue
  bool isAborting_ = false; ///< the waits of this process are being ended
  int exitStatus_ = 3;
  std::function<void()> onAbort_;
  std::atomic<int64_t> growsTo_{0};

  // Used only by the thread:
  double clock_ = 0, lastSeconds_ = -1; ///< without pauses of this process itself
  double heardAt_ = 0;                  ///< time of rank 0's last sign of life

  std::mutex readMutex_; ///< held while `read_` runs
  std::function<RankProgress()> read_;
  std::optional<RankProgress> sent_;

  Socket wakeup_; ///< wakes the thread
  std::thread thread_;
};

} // namespace shardc::launch
