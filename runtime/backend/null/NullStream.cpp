// Streams, events, marks and graphs of the null backend. They check calls against the ledger and
// record which work would run.
#include "runtime/backend/null/NullStream.h"

#include <algorithm>
#include <chrono>
#include <limits>

namespace shardc::null {
class NullStream;

/// Counts launches of the graph that captured it.
class NullMark final : public hal::Mark {
public:
  explicit NullMark(std::shared_ptr<Ledger> ledger, int rank)
      : ledger_(std::move(ledger)), rank_(rank) {
    ledger_->add(this);
  }

  ~NullMark() override {
    std::lock_guard lock(ledger_->mutex);
    ledger_->drop(this, "a mark");
  }

  bool isPassed(int64_t launches) override {
    std::lock_guard lock(ledger_->mutex);
    return launches_ >= launches;
  }

  Status await(int64_t launches) override {
    std::lock_guard lock(ledger_->mutex);
    RETURN_IF_ERROR(ledger_->checkOpen());
    return launches_ >= launches
               ? Status::ok()
               : Ledger::refuse(
                     "rank {}: a wait for launch {} of a mark, whose graph was launched {} "
                     "times, does not end",
                     rank_, launches, launches_);
  }

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
  ~NullGraph() override {
    if (!isHandedOut_)
      return; // an abandoned capture; the caller holds the mutex
    std::lock_guard lock(ledger_->mutex);
    ledger_->drop(this, "a graph");
    for (auto &[line, issued] : collectives_)
      --line->graphs;
    if (!ledger_->isKnown(rank_, lastLaunch_))
      ledger_->keep(Ledger::refuse("rank {}: graph '{}' is destroyed while a launch of it may run",
                                   rank_, label()));
  }

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
  NullEvent(std::shared_ptr<Ledger> ledger, int rank, bool isTimed)
      : ledger_(std::move(ledger)), rank_(rank), isTimed_(isTimed) {
    ledger_->add(this);
  }

  ~NullEvent() override {
    std::lock_guard lock(ledger_->mutex);
    ledger_->drop(this, "an event");
  }

  /// Queued work counts as ended as soon as a caller asks.
  bool isDone() override {
    std::lock_guard lock(ledger_->mutex);
    if (isRecorded_)
      ledger_->rankOf(rank_).known.join(clock_);
    return true;
  }

  Status synchronize() override {
    static_cast<void>(isDone());
    std::lock_guard lock(ledger_->mutex);
    return ledger_->checkOpen();
  }

  double secondsSince(hal::Event &earlier) override {
    auto &from = static_cast<NullEvent &>(earlier);
    if (!isTimed_ || !from.isTimed_ || !isRecorded_ || !from.isRecorded_)
      return std::numeric_limits<double>::quiet_NaN();
    return std::chrono::duration<double>(at_ - from.at_).count();
  }

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

namespace {

/// Bytes of a tensor, or -1 if its shape is invalid.
int64_t bytesOf(const kernels::Tensor &tensor) {
  int64_t bytes = dtypeBytes(tensor.dtype);
  if (tensor.rank > std::size(tensor.shape))
    return -1;
  for (int d = 0; d < tensor.rank; ++d)
    if (tensor.shape[d] < 0 || __builtin_mul_overflow(bytes, tensor.shape[d], &bytes))
      return -1;
  return bytes;
}

bool overlaps(const void *a, const void *b, int64_t bytes) {
  auto x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
  auto size = static_cast<uintptr_t>(bytes);
  return x < y + size && y < x + size;
}

} // namespace

/// Checks each call and advances the rank's clock instead of executing work.
class NullStream final : public hal::Stream {
public:
  NullStream(std::shared_ptr<DeviceState> device, std::string name)
      : device_(std::move(device)), ledger_(*device_->ledger), name_(std::move(name)) {
    RankState &rank = ledger_.rankOf(device_->rank);
    number_ = rank.issued.size();
    rank.issued.push_back(0);
    device_->streams.push_back(this);
    ledger_.add(this);
  }

  ~NullStream() override {
    std::lock_guard lock(ledger_.mutex);
    if (capturing_)
      ledger_.keep(refuse("the stream is destroyed inside of a capture"));
    std::erase(device_->streams, this);
    ledger_.drop(this, "a stream");
  }

  Status launch(kernels::KernelFn kernel, kernels::Call &call, const char *label) override {
    std::lock_guard lock(ledger_.mutex);
    RETURN_IF_ERROR(begin(label));
    if (!kernel)
      return refuse("{}: no kernel", label);
    ASSIGN_OR_RETURN(Blocks used, checkCall(call, label));
    take(used);
    return Status::ok();
  }

  Status copy(void *to, const void *from, int64_t bytes, const char *label) override {
    std::lock_guard lock(ledger_.mutex);
    RETURN_IF_ERROR(begin(label));
    ASSIGN_OR_RETURN(auto target,
                     ledger_.find(device_->rank, to, bytes, fmt::format("{}: the target", label)));
    ASSIGN_OR_RETURN(auto source, ledger_.find(device_->rank, from, bytes,
                                               fmt::format("{}: the source", label)));
    if (to != from && overlaps(to, from, bytes))
      return refuse("{}: target and source of {} bytes overlap", label, bytes);
    take({target, source});
    return Status::ok();
  }

  Status fill(void *to, uint8_t, int64_t bytes, const char *label) override {
    std::lock_guard lock(ledger_.mutex);
    RETURN_IF_ERROR(begin(label));
    ASSIGN_OR_RETURN(auto block,
                     ledger_.find(device_->rank, to, bytes, fmt::format("{}: the target", label)));
    take({block});
    return Status::ok();
  }

  /// Checks the collective and notes it for the comparison among members: in the graph during a
  /// capture, otherwise in the channel's record.
  Status collective(hal::Channel &channel, const hal::Collective &desc,
                    const char *label) override {
    std::lock_guard lock(ledger_.mutex);
    RETURN_IF_ERROR(begin(label));
    if (!ledger_.has(&channel))
      return refuse("{}: a channel that does not exist", label);
    auto &nullChannel = static_cast<NullChannel &>(channel);
    Result<Blocks> used = nullChannel.check(device_->rank, desc);
    if (!used.isOk())
      return Status(used.status()).withContext(label);
    take(*used);
    const std::shared_ptr<Line> &line = nullChannel.line();
    if (capturing_) {
      auto [at, isNew] = device_->capture->collectives_.try_emplace(line);
      line->graphs += isNew;
      at->second.add(issuedOf(desc));
      return Status::ok();
    }
    line->issued[device_->rank].add(issuedOf(desc));
    line->lastUse[device_->rank].set(number_, clock_.of(number_));
    return Status::ok();
  }

  Status writeWord(uint32_t *word, uint32_t) override {
    std::lock_guard lock(ledger_.mutex);
    RETURN_IF_ERROR(begin("progress"));
    ASSIGN_OR_RETURN(auto block, ledger_.find(device_->rank, word, sizeof *word, "a word"));
    if (block->kind != hal::MemoryKind::Host ||
        reinterpret_cast<uintptr_t>(word) % sizeof *word != 0)
      return refuse("a word is at byte {} of '{}', and must be aligned in host memory",
                    reinterpret_cast<const uint8_t *>(word) - block->data, block->name);
    take({block});
    return Status::ok();
  }

  Status record(hal::Event &event) override {
    std::lock_guard lock(ledger_.mutex);
    RETURN_IF_ERROR(ledger_.checkOpen());
    if (!ledger_.has(&event))
      return refuse("a record of an event that does not exist");
    auto &nullEvent = static_cast<NullEvent &>(event);
    if (nullEvent.rank_ != device_->rank)
      return refuse("a record of an event of rank {}", nullEvent.rank_);
    nullEvent.stream_ = life_;
    if (capturing_) {
      nullEvent.captureId_ = device_->captureId;
      nullEvent.captured_ = captured_;
      return Status::ok();
    }
    nullEvent.isRecorded_ = true;
    nullEvent.captureId_ = 0;
    nullEvent.clock_ = clock_;
    nullEvent.at_ = std::chrono::steady_clock::now();
    return Status::ok();
  }

  Status mark(hal::Mark &mark) override {
    std::lock_guard lock(ledger_.mutex);
    RETURN_IF_ERROR(ledger_.checkOpen());
    if (!ledger_.has(&mark))
      return refuse("a mark that does not exist");
    auto &nullMark = static_cast<NullMark &>(mark);
    if (!capturing_ || nullMark.isCaptured_ || nullMark.rank_ != device_->rank)
      return refuse("a mark of rank {} {}", nullMark.rank_,
                    capturing_ ? "that was captured before, or elsewhere" : "outside of a capture");
    nullMark.isCaptured_ = true;
    device_->capture->marks_.push_back(&nullMark);
    take({});
    return Status::ok();
  }

  Status wait(hal::Event &event) override {
    std::lock_guard lock(ledger_.mutex);
    RETURN_IF_ERROR(ledger_.checkOpen());
    if (!ledger_.has(&event))
      return refuse("a wait for an event that does not exist");
    auto &nullEvent = static_cast<NullEvent &>(event);
    if (nullEvent.rank_ != device_->rank)
      return refuse("a wait for an event of rank {}", nullEvent.rank_);
    bool isCaptured = device_->origin && nullEvent.captureId_ == device_->captureId;
    if ((nullEvent.isRecorded_ || isCaptured) && nullEvent.stream_.expired())
      return refuse("a wait for an event whose stream was destroyed");
    if (isCaptured) {
      capturing_ = true;
      captured_.join(nullEvent.captured_);
      return Status::ok();
    }
    if (!nullEvent.isRecorded_)
      return Status::ok();
    if (capturing_)
      return refuse("a capture waits for an event recorded outside of it");
    clock_.join(nullEvent.clock_);
    return Status::ok();
  }

  Status beginCapture() override {
    std::lock_guard lock(ledger_.mutex);
    RETURN_IF_ERROR(ledger_.checkOpen());
    if (device_->origin)
      return refuse("a capture is already active");
    device_->origin = this;
    device_->capture = std::make_unique<NullGraph>(device_->ledger, device_->rank);
    ++device_->captureId;
    capturing_ = true;
    return Status::ok();
  }

  /// Fails, as in CUDA, if another stream took part in the capture and this stream did not wait for
  /// the end of its work.
  Result<std::unique_ptr<hal::Graph>> endCapture() override {
    std::lock_guard lock(ledger_.mutex);
    RETURN_IF_ERROR(ledger_.checkOpen());
    if (device_->origin != this)
      return refuse("no capture was started on this stream");
    std::string unjoined;
    for (const NullStream *stream : device_->streams)
      if (stream->capturedWork_ > captured_.of(stream->number_))
        unjoined = stream->name_;
    std::unique_ptr<NullGraph> graph = leaveCapture();
    if (!unjoined.empty()) {
      for (auto &[line, issued] : graph->collectives_)
        --line->graphs;
      return refuse("the capture ends without joining stream {}", unjoined);
    }
    graph->isHandedOut_ = true;
    graph->setNodes(graph->work_);
    ledger_.add(graph.get());
    return std::unique_ptr<hal::Graph>(std::move(graph));
  }

  void abandonCapture() override {
    std::lock_guard lock(ledger_.mutex);
    if (device_->origin != this)
      return;
    std::unique_ptr<NullGraph> graph = leaveCapture();
    for (auto &[line, issued] : graph->collectives_)
      --line->graphs;
  }

  /// Checks that everything that the graph refers to still exists, and notes its collectives and
  /// marks as issued once more.
  Status launch(hal::Graph &graph, const hal::LaunchParams &params) override {
    std::lock_guard lock(ledger_.mutex);
    RETURN_IF_ERROR(ledger_.checkOpen());
    if (!ledger_.has(&graph))
      return refuse("a launch of a graph that does not exist");
    auto &nullGraph = static_cast<NullGraph &>(graph);
    const std::string &label = nullGraph.label();
    if (capturing_)
      return refuse("graph '{}' is launched inside a capture", label);
    if (nullGraph.rank_ != device_->rank)
      return refuse("graph '{}' belongs to rank {}", label, nullGraph.rank_);
    if (params.step < 0 || params.microbatch < 0 || params.microbatch >= params.microbatches)
      return refuse("graph '{}' is launched for step {}, microbatch {} of {}", label, params.step,
                    params.microbatch, params.microbatches);
    for (const std::shared_ptr<Block> &block : nullGraph.blocks_)
      if (!block->isAlive)
        return refuse("graph '{}' uses buffer '{}', which was destroyed", label, block->name);
    for (auto &[line, issued] : nullGraph.collectives_)
      if (!ledger_.lines.contains(line))
        return refuse("graph '{}' uses channel '{}', which was destroyed", label, line->name);
    take({nullGraph.blocks_.begin(), nullGraph.blocks_.end()});
    nullGraph.lastLaunch_.set(number_, clock_.of(number_));
    for (auto &[line, issued] : nullGraph.collectives_) {
      line->issued[device_->rank].add(issued);
      line->lastUse[device_->rank].set(number_, clock_.of(number_));
    }
    for (NullMark *mark : nullGraph.marks_)
      if (ledger_.has(mark))
        ++mark->launches_;
    return Status::ok();
  }

private:
  using Blocks = std::vector<std::shared_ptr<Block>>;

  Status begin(const char *label) const {
    RETURN_IF_ERROR(ledger_.checkOpen());
    return label ? Status::ok() : refuse("work without a label");
  }

  Status useTensor(const kernels::Tensor &tensor, const std::string &what, Blocks &used) const {
    int64_t bytes = bytesOf(tensor);
    if (bytes < 0)
      return refuse("{} has no shape", what);
    ASSIGN_OR_RETURN(auto block, ledger_.find(device_->rank, tensor.data, bytes, what));
    used.push_back(std::move(block));
    return Status::ok();
  }

  /// Returns the buffers that the call uses. Every operand, result and list item, and the
  /// workspace, must lie in a living buffer of this rank.
  Result<Blocks> checkCall(const kernels::Call &call, const char *label) const {
    Blocks used;
    if (call.inCount > kernels::kOperandsMax || call.outCount > kernels::kResultsMax)
      return refuse("{}: a call of {} operands and {} results", label, call.inCount, call.outCount);
    for (int i = 0; i < call.inCount; ++i)
      RETURN_IF_ERROR(useTensor(call.in[i], fmt::format("{}: operand {}", label, i), used));
    for (int r = 0; r < call.outCount; ++r)
      RETURN_IF_ERROR(useTensor(call.out[r], fmt::format("{}: result {}", label, r), used));
    if (call.listCount < 0 || (call.listCount > 0 && !call.list))
      return refuse("{}: a list of {} tensors without them", label, call.listCount);
    for (int64_t i = 0; i < call.listCount; ++i)
      RETURN_IF_ERROR(useTensor(call.list[i], fmt::format("{}: item {}", label, i), used));
    for (int64_t i = 0; i < call.rangesCount; ++i)
      if (call.ranges[i].begin < 0 || call.ranges[i].begin > call.ranges[i].end)
        return refuse("{}: range {} is from {} to {}", label, i, call.ranges[i].begin,
                      call.ranges[i].end);
    if (call.workspaceBytes > 0) {
      ASSIGN_OR_RETURN(auto block, ledger_.find(device_->rank, call.workspace,
                                                static_cast<int64_t>(call.workspaceBytes),
                                                fmt::format("{}: the workspace", label)));
      used.push_back(std::move(block));
    }
    return used;
  }

  /// Records one piece of work that uses these buffers.
  void take(const Blocks &used) {
    if (capturing_) {
      device_->capture->blocks_.insert(used.begin(), used.end());
      ++device_->capture->work_;
      captured_.set(number_, ++capturedWork_);
      return;
    }
    int64_t position = ++ledger_.rankOf(device_->rank).issued[number_];
    clock_.set(number_, position);
    for (const std::shared_ptr<Block> &block : used)
      block->lastUse.set(number_, position);
  }

  /// Ends the capture and returns its graph. The rank's streams execute work again.
  std::unique_ptr<NullGraph> leaveCapture() {
    for (NullStream *stream : device_->streams) {
      stream->capturing_ = false;
      stream->capturedWork_ = 0;
      stream->captured_ = {};
    }
    device_->origin = nullptr;
    return std::move(device_->capture);
  }

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

std::shared_ptr<DeviceState> makeDeviceState(std::shared_ptr<Ledger> ledger, int rank) {
  auto state = std::make_shared<DeviceState>();
  state->ledger = std::move(ledger), state->rank = rank;
  return state;
}

std::unique_ptr<hal::Stream> makeStream(std::shared_ptr<DeviceState> device, std::string name) {
  return std::make_unique<NullStream>(std::move(device), std::move(name));
}

std::unique_ptr<hal::Event> makeEvent(std::shared_ptr<Ledger> ledger, int rank, bool isTimed) {
  return std::make_unique<NullEvent>(std::move(ledger), rank, isTimed);
}

std::unique_ptr<hal::Mark> makeMark(std::shared_ptr<Ledger> ledger, int rank) {
  return std::make_unique<NullMark>(std::move(ledger), rank);
}

} // namespace shardc::null
