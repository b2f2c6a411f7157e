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

/// The events of its job that a rank has seen, for its own supervisor, as bits.
enum Heard : uint32_t {
  kHeardLeader = 1, ///< rank 0's supervisor has answered
  kHeardOver = 2,   ///< the job is over, or this rank's part of it
  /// This rank reports it if rank 0's supervisor is gone; later processes of the rank know it too.
  kHeardSpeaker = 4
};

struct RendezvousClientOptions {
  std::string address; ///< where rank 0's supervisor listens
  int port = 0;
  /// Under which this machine's relay is found (Relay.h); empty: it connects to rank 0's
  /// supervisor.
  std::string relayName;
  /// The launcher's numbers; in an elastic job those of the place and of all places. The rank is
  /// then assigned when the ranks begin, for which a place waits as long as needed.
  int64_t rank = 0, worldSize = 1, localRank = 0;
  bool isElastic = false;
  uint64_t planHash = 0;
  Key secret{};
  std::string secretSource; ///< where that is from, for messages
  std::string job;
  std::optional<Report> problem; ///< why this rank cannot take part
  double joinSeconds = 600;      ///< until all have come
  /// Longest silence of rank 0's supervisor, seconds: dist.distributed_timeout_minutes.
  double timeoutSeconds = 600;
  /// Until rank 0 answers a rank that is started again; 0: this one is not, and waits as above.
  double connectSeconds = 0;
  std::string gpu; ///< of this rank, for people
  /// A supervisor starts this rank again if it loses rank 0's, which is then not told.
  bool startsAgain = false;
  /// Where the supervisor reads what the rank has heard; null: nowhere.
  std::atomic<uint32_t> *heard = nullptr;
  /// Another process says so if rank 0's supervisor is killed.
  bool hasWitness = false;
  /// Whether this process was asked to end; never if empty.
  std::function<bool()> isAsked;
  ReportSink emit; ///< takes what no other process can tell
};

class RendezvousClient final : public hal::Peers {
public:
  /// Returns once all ranks have arrived. If the job fails before, the failure was reported why (by
  /// this rank, if rank 0 cannot), and the status is Aborted.
  static Result<std::unique_ptr<RendezvousClient>> join(const RendezvousClientOptions &options);
  ~RendezvousClient() override;

  int rank() const override { return static_cast<int>(options_.rank); }
  int worldSize() const override { return static_cast<int>(options_.worldSize); }
  int localRank() const override { return static_cast<int>(options_.localRank); }
  int localSize() const override { return static_cast<int>(welcome_.localSize); }
  std::string address() const override { return ownAddress_; }
  int64_t attempt() const override { return welcome_.attempt; }
  /// The step of the save from which this start of the ranks continues; -1: the options say.
  int64_t savedStep() const { return welcome_.savedStep; }
  /// On rank 0: the ranks with which the job can go on behind its next save; 0: no others.
  const std::atomic<int64_t> &growsTo() const { return growsTo_; }
  Key jobKey() const override {
    return deriveKey(options_.secret, {"job", bytesOf(welcome_.nonce)});
  }
  Result<std::vector<std::string>> exchange(std::string_view key, const std::vector<int> &members,
                                            std::string_view mine, Fold fold) override;
  void reportLost(int rank, std::string_view what) override;
  void reportFailure(const Status &status) override;

  /// Sets a callback that runs in a thread of its own before the process ends because the job is
  /// over. It may unblock threads that wait for other ranks, and has a few seconds.
  void onAbort(std::function<void()> callback);
  /// Starts to call `read` regularly from another thread, and to send what it returns.
  void watch(std::function<RankProgress()> read);
  /// Stops watching: afterwards no call of `read` is running or will be made.
  void stopWatching();

  /// Sends the reason why this rank cannot continue, and waits until the job is over. Returns the
  /// exit status for this process. Rank 0's supervisor prints the message once for all ranks.
  int fail(const Status &status, int exitStatus);
  /// The same for errors that were all found before the first step.
  int fail(std::vector<Report> errors, int exitStatus);
  /// All ranks call it together, having saved: waits until the supervisor of rank 0 has ended this
  /// start of them, to begin another one with other ranks. The exit status for this process.
  int rest();
  /// Reports that this rank has done its work.
  void leave(int exitStatus);

private:
  explicit RendezvousClient(RendezvousClientOptions options) : options_(std::move(options)) {}
  /// How an attempt to join has ended.
  struct Attempt {
    enum Outcome : uint8_t {
      Joined,
      Again,  ///< another one may do better
      Misfit, ///< it will not, but for a moment in which rank 0 changes
      Failed  ///< it cannot
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
  std::string server_; ///< the address of what it connects to: a relay, or rank 0's supervisor
  int serverPort_ = 0;
  Welcome welcome_;

  std::mutex mutex_; ///< for all below
  std::condition_variable changed_;
  Wire wire_;
  std::vector<std::string> gathered_;
  bool hasGathered_ = false, isWelcome_ = false, isLeaving_ = false;
  bool isStopping_ = false, isOver_ = false;
  bool hasFailed_ = false;  ///< this rank has said that it cannot continue
  bool isAborting_ = false; ///< what waits is being ended
  int exitStatus_ = 3;
  std::function<void()> onAbort_;
  std::atomic<int64_t> growsTo_{0};

  // Used only by the thread.
  double clock_ = 0, lastSeconds_ = -1; ///< own time: a pause of this process does not count
  double heardAt_ = 0;                  ///< rank 0's supervisor

  std::mutex readMutex_; ///< held while `read_` runs
  std::function<RankProgress()> read_;
  std::optional<RankProgress> sent_;

  Socket wakeup_; ///< of the thread
  std::thread thread_;
};

} // namespace shardc::launch
