// Streams, events, marks, graphs and channels of the null backend. They check calls against the
// ledger and record which work would run.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "runtime/backend/null/Ledger.h"
#include "runtime/backend/null/Options.h"

namespace shardc::null {

class NullStream;

/// The digest of a collective, which must be equal on all members.
Issued issuedOf(const hal::Collective &desc);

/// Checks descriptions, memory and uses, and compares the members' collectives; transfers nothing.
class NullChannel final : public hal::Channel {
public:
  /// Creates a channel. InvalidInput for members or memory that a channel cannot have. `ranksHere`
  /// lists the ranks of this process.
  static Result<std::unique_ptr<NullChannel>> create(const hal::ChannelDesc &desc,
                                                     const std::vector<int> &ranksHere,
                                                     const Options &options,
                                                     std::shared_ptr<Ledger> ledger);
  ~NullChannel() override;

  const std::shared_ptr<Line> &line() const { return line_; }
  /// Checks whether the rank may issue this collective. Returns the buffers that it uses, or the
  /// reason why not. The caller must hold the mutex.
  Result<std::vector<std::shared_ptr<Block>>> check(int rank, const hal::Collective &desc) const;

private:
  NullChannel(hal::ChannelDesc desc, std::shared_ptr<Ledger> ledger)
      : Channel(std::move(desc)), ledger_(std::move(ledger)), line_(std::make_shared<Line>()) {}
  /// Checks the description and registers the channel as alive.
  Status fill(const std::vector<int> &ranksHere);
  /// Connects to the members in other processes. Ranks that the process leaves out are not waited
  /// for.
  Status connect(const Options &options) const;
  Status take(const hal::SharedMemory &memory, std::string_view what);
  Status checkTypes(const hal::Collective &desc) const;
  /// A channel that was created with a list of uses accepts no other use.
  Status checkUse(const hal::Collective &desc, int64_t bytes) const;
  /// Checks that the result lies in memory that other members can access, in addition to the checks
  /// for all backends.
  Status checkCounted(int rank, const hal::Collective &desc) const;

  std::shared_ptr<Ledger> ledger_;
  std::shared_ptr<Line> line_;
};

/// Counts launches of the graph that captured it.
class NullMark final : public hal::Mark {
public:
  explicit NullMark(std::shared_ptr<Ledger> ledger, int rank);
  ~NullMark() override;
  bool isPassed(int64_t launches) override;
  Status await(int64_t launches) override;

private:
  friend class NullStream;
  std::shared_ptr<Ledger> ledger_;
  int rank_;
  bool isCaptured_ = false;
  int64_t launches_ = 0;
};

/// Remembers what a launch uses, for the checks that buffers and channels are still alive.
class NullGraph final : public hal::Graph {
public:
  NullGraph(std::shared_ptr<Ledger> ledger, int rank) : ledger_(std::move(ledger)), rank_(rank) {}
  ~NullGraph() override;

private:
  friend class NullStream;
  std::shared_ptr<Ledger> ledger_;
  int rank_;
  bool isHandedOut_ = false;
  int64_t work_ = 0;
  Clock lastLaunch_;
  std::set<std::shared_ptr<Block>> blocks_;
  std::map<std::shared_ptr<Line>, Issued> collectives_;
  std::vector<NullMark *> marks_;
};

/// Stands for a point in the rank's vector clock.
class NullEvent final : public hal::Event {
public:
  NullEvent(std::shared_ptr<Ledger> ledger, int rank, bool isTimed);
  ~NullEvent() override;
  bool isDone() override;
  Status synchronize() override;
  double secondsSince(hal::Event &earlier) override;

private:
  friend class NullStream;
  std::shared_ptr<Ledger> ledger_;
  int rank_;
  bool isTimed_, isRecorded_ = false; ///< isRecorded_: outside of captures
  Clock clock_;                       ///< clock of the last record outside of captures
  std::chrono::steady_clock::time_point at_;
  uint64_t captureId_ = 0; ///< the capture that last recorded it; 0: none
  Clock captured_;         ///< of that record
  std::weak_ptr<char> stream_;
};

/// State that a device's streams share. A device has at most one capture at a time.
struct DeviceState {
  std::shared_ptr<Ledger> ledger;
  int rank = 0;
  NullStream *origin = nullptr; ///< the stream on which the capture began
  uint64_t captureId = 0;
  std::unique_ptr<NullGraph> capture;
  std::vector<NullStream *> streams; ///< live streams
};

/// Checks each call and advances the rank's clock instead of executing work.
class NullStream final : public hal::Stream {
public:
  NullStream(std::shared_ptr<DeviceState> device, std::string name);
  ~NullStream() override;

  Status launch(kernels::KernelFn kernel, kernels::Call &call, const char *label) override;
  Status copy(void *to, const void *from, int64_t bytes, const char *label) override;
  Status fill(void *to, uint8_t value, int64_t bytes, const char *label) override;
  Status collective(hal::Channel &channel, const hal::Collective &desc, const char *label) override;
  Status writeWord(uint32_t *word, uint32_t value) override;
  Status record(hal::Event &event) override;
  Status mark(hal::Mark &mark) override;
  Status wait(hal::Event &event) override;
  Status beginCapture() override;
  Result<std::unique_ptr<hal::Graph>> endCapture() override;
  void abandonCapture() override;
  Status launch(hal::Graph &graph, const hal::LaunchParams &params) override;

private:
  using Blocks = std::vector<std::shared_ptr<Block>>;

  Status begin(const char *label) const;
  Status useTensor(const kernels::Tensor &tensor, const std::string &what, Blocks &used) const;
  /// Returns the buffers that the call uses. Every operand, result and list item, and the
  /// workspace, must lie in a living buffer of this rank.
  Result<Blocks> checkCall(const kernels::Call &call, const char *label) const;
  /// Records one piece of work that uses these buffers.
  void take(const Blocks &used);
  /// Ends the capture and returns its graph. The rank's streams execute work again.
  std::unique_ptr<NullGraph> leaveCapture();
  template <typename... Args>
  Status refuse(fmt::format_string<Args...> text, Args &&...args) const {
    return Ledger::refuse("rank {} {}: {}", device_->rank, name_,
                          fmt::format(text, std::forward<Args>(args)...));
  }

  std::shared_ptr<DeviceState> device_;
  Ledger &ledger_;
  std::string name_;
  size_t number_;
  std::shared_ptr<char> life_ = std::make_shared<char>(); ///< tells events whether it is alive
  Clock clock_;                                           ///< the work that precedes the next work
  bool capturing_ = false;
  int64_t capturedWork_ = 0;
  Clock captured_; ///< within a capture, the work that precedes the next work
};

} // namespace shardc::null
