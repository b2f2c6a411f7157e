#include "runtime/measure/Bench.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/base/Float8.h"
#include "runtime/base/Reports.h"

namespace shardc::measure {
namespace {

constexpr int64_t kTile = int64_t{1} << 20; ///< bytes of random numbers, repeated in operands
constexpr const char *kLabel = "measure";

/// Fills a tile with numbers between -1 and 1 of the given type, the same on all ranks and in all
/// runs.
void drawTile(uint8_t *to, DType dtype) {
  uint64_t state = 0x9e3779b97f4a7c15;
  for (int64_t at = 0; at < kTile; at += dtypeBytes(dtype)) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    float value = static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31f;
    if (dtype == DType::F32) {
      std::memcpy(to + at, &value, sizeof value);
    } else if (dtype == DType::BF16) {
      BF16 narrow = toBF16(value);
      std::memcpy(to + at, &narrow, sizeof narrow);
    } else if (dtype == DType::F16) {
      F16 narrow = toF16(value);
      std::memcpy(to + at, &narrow, sizeof narrow);
    } else { // 8 bits: random signs and fractions, and the exponents of 1/8 to 1
      to[at] = static_cast<uint8_t>((state >> 40 & 0x80) | 0x20 | (state >> 33 & 0x1f));
    }
  }
}

/// Returns the median of the later half, in which clock rates and power have settled.
double settledOf(std::vector<double> seconds) {
  std::vector<double> late(seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2),
                           seconds.end());
  auto middle = late.begin() + static_cast<std::ptrdiff_t>(late.size() / 2);
  std::nth_element(late.begin(), middle, late.end());
  return *middle;
}

} // namespace

Result<std::unique_ptr<Bench>> Bench::create(hal::Backend &backend, hal::Peers *peers,
                                             BenchOptions options) {
  std::unique_ptr<Bench> bench(new Bench(backend, peers, std::move(options)));
  ASSIGN_OR_RETURN(bench->stream_, bench->device().createStream(kLabel, hal::StreamUse::Compute));
  ASSIGN_OR_RETURN(bench->begin_, bench->device().createTimedEvent());
  ASSIGN_OR_RETURN(bench->end_, bench->device().createTimedEvent());
  return bench;
}

/// Exchanges the time of each rank. The ranks also agree on whether to stop, since a rank that
/// stopped alone would leave the others waiting in a collective.
Result<std::vector<double>> Bench::exchange(double seconds) {
  bool isAsked = options_.isAsked && options_.isAsked();
  std::vector<std::string> all = {fmt::format("{:a} {:d}", seconds, isAsked)};
  if (peers_) {
    ASSIGN_OR_RETURN(all, peers_->allGather("measuring", all.front()));
  }
  std::vector<double> out;
  bool isOneAsked = false;
  for (const std::string &text : all) {
    char *end = nullptr;
    out.push_back(std::strtod(text.c_str(), &end));
    isOneAsked = isOneAsked || std::string_view(end) == " 1";
  }
  if (isOneAsked)
    return Status(StatusCode::Aborted, "stopped before everything was measured");
  return out;
}

Result<void *> Bench::allocate(hal::MemoryKind kind, int64_t bytes) {
  ASSIGN_OR_RETURN(auto buffer, device().allocate(kind, bytes, kLabel));
  buffers_.push_back(std::move(buffer));
  return static_cast<void *>(buffers_.back()->data());
}

Status Bench::fillRandom(void *to, int64_t bytes, DType dtype) {
  ASSIGN_OR_RETURN(auto tile, device().allocate(hal::MemoryKind::Host, kTile, kLabel));
  drawTile(tile->data(), dtype);
  for (int64_t at = 0; at < bytes; at += kTile)
    RETURN_IF_ERROR(stream_->copy(static_cast<uint8_t *>(to) + at, tile->data(),
                                  std::min(kTile, bytes - at), kLabel));
  return backend_.synchronize(); // the tile is freed after this
}

/// Allocates a tensor. Data is random, indices are zero, and scales are one.
Status Bench::addTensor(kernels::Tensor &to, DType dtype, std::initializer_list<int64_t> shape) {
  to.dtype = dtype;
  to.rank = static_cast<uint8_t>(shape.size());
  std::ranges::copy(shape, to.shape);
  int64_t bytes = to.numel() * dtypeBytes(dtype);
  ASSIGN_OR_RETURN(to.data, allocate(hal::MemoryKind::Work, bytes));
  if (dtype == DType::I32 || dtype == DType::I64)
    return stream_->fill(to.data, 0, bytes, kLabel);
  return fillRandom(to.data, bytes, dtype);
}

Status Bench::makeProduct(const Rate &work, kernels::Call &call) {
  int64_t m = work.size("m"), n = work.size("n"), k = work.size("k");
  call.attrs.trans_b = true;
  RETURN_IF_ERROR(addTensor(call.in[call.inCount++], work.dtype, {m, k}));
  RETURN_IF_ERROR(addTensor(call.in[call.inCount++], work.dtype, {n, k}));
  bool isScaled = work.op == "matmul_scaled";
  for (int scale = 0; isScaled && scale < 2; ++scale)
    RETURN_IF_ERROR(addTensor(call.in[call.inCount++], DType::F32, {1}));
  return addTensor(call.out[call.outCount++], isScaled ? DType::BF16 : work.dtype, {m, n});
}

/// Operands and results are those of the ops `attention` and `attention_bwd`: heads in `groups`
/// groups share keys and values, and queries have shape [batch, positions, heads, channels].
Status Bench::makeAttention(const Rate &work, kernels::Call &call) {
  int64_t batch = work.size("batch"), positions = work.size("positions"),
          heads = work.size("heads"), groups = work.size("groups"),
          channels = work.size("channels");
  call.attrs.causal = true;
  call.attrs.scale = 1 / std::sqrt(static_cast<double>(channels));
  bool isBackward = work.op == "attention_bwd";
  auto in = [&](DType dtype, std::initializer_list<int64_t> shape) {
    return addTensor(call.in[call.inCount++], dtype, shape);
  };
  if (isBackward)
    RETURN_IF_ERROR(in(work.dtype, {batch, positions, heads * channels}));
  RETURN_IF_ERROR(in(work.dtype, {batch, positions, heads, channels}));
  for (int i = 0; i < 2; ++i)
    RETURN_IF_ERROR(in(work.dtype, {batch, positions, groups, channels}));
  if (isBackward) {
    RETURN_IF_ERROR(in(work.dtype, {batch, positions, heads * channels}));
    RETURN_IF_ERROR(in(DType::F32, {batch, heads, positions}));
  }
  RETURN_IF_ERROR(in(DType::I32, {batch, positions}));
  RETURN_IF_ERROR(in(DType::I64, {batch}));
  auto out = [&](DType dtype, std::initializer_list<int64_t> shape) {
    return addTensor(call.out[call.outCount++], dtype, shape);
  };
  if (!isBackward) {
    RETURN_IF_ERROR(out(work.dtype, {batch, positions, heads * channels}));
    return out(DType::F32, {batch, heads, positions});
  }
  RETURN_IF_ERROR(out(work.dtype, {batch, positions, heads, channels}));
  RETURN_IF_ERROR(out(work.dtype, {batch, positions, groups, channels}));
  return out(work.dtype, {batch, positions, groups, channels});
}

/// Prepares the operands of a kernel call for the work.
Status Bench::makeCall(const Rate &work, kernels::Call &call) {
  switch (work.kind) {
  case RateKind::Product:
    return makeProduct(work, call);
  case RateKind::Attention:
    return makeAttention(work, call);
  case RateKind::Memory: { // two values are read, one is written
    int64_t count = work.size("bytes") / 3 / dtypeBytes(work.dtype);
    for (int i = 0; i < 2; ++i)
      RETURN_IF_ERROR(addTensor(call.in[call.inCount++], work.dtype, {count}));
    return addTensor(call.out[call.outCount++], work.dtype, {count});
  }
  case RateKind::Collective:
    break;
  }
  return makeStatus(StatusCode::Internal, "'{}' is no call", work.text());
}

/// Returns a function that enqueues the work once. Copies count bytes that are read and written: a
/// copy within the device of n bytes moves n/2 each way.
Result<Bench::Enqueue> Bench::enqueueOf(const Rate &work) {
  bool isCopy = work.kind == RateKind::Memory && work.op != "add";
  if (isCopy) {
    int64_t bytes = work.op == "copy" ? work.size("bytes") / 2 : work.size("bytes");
    using enum hal::MemoryKind;
    ASSIGN_OR_RETURN(void *from, allocate(work.op == "to_device" ? Host : Work, bytes));
    ASSIGN_OR_RETURN(void *to, allocate(work.op == "to_host" ? Host : Work, bytes));
    for (void *end : {from, to})
      RETURN_IF_ERROR(fillRandom(end, bytes, work.dtype));
    return Enqueue([=](hal::Stream &stream) { return stream.copy(to, from, bytes, kLabel); });
  }
  const kernels::Kernel *kernel = options_.findKernel(work.op);
  if (!kernel)
    return makeStatus(StatusCode::Unavailable, "the backend has no kernel for '{}'", work.op);
  call_ = {};
  call_.context = backend_.kernelContext();
  RETURN_IF_ERROR(makeCall(work, call_));
  if (const char *why = kernel->accepts ? kernel->accepts(call_) : nullptr)
    return Status(StatusCode::Unavailable, why);
  call_.workspaceBytes = kernel->workspaceBytes ? kernel->workspaceBytes(call_) : 0;
  if (call_.workspaceBytes > 0) {
    ASSIGN_OR_RETURN(call_.workspace,
                     allocate(hal::MemoryKind::Work, static_cast<int64_t>(call_.workspaceBytes)));
  }
  RETURN_IF_ERROR(backend_.synchronize());
  if (options_.choose)
    options_.choose(work.op, call_);
  return Enqueue(
      [this, run = kernel->run](hal::Stream &stream) { return stream.launch(run, call_, kLabel); });
}

/// If the call waits for other ranks, all ranks begin together.
Result<double> Bench::timeOnce(const std::function<Status()> &work, bool isTogether) {
  if (isTogether && peers_)
    RETURN_IF_ERROR(peers_->barrier("measuring"));
  RETURN_IF_ERROR(stream_->record(*begin_));
  RETURN_IF_ERROR(work());
  RETURN_IF_ERROR(stream_->record(*end_));
  RETURN_IF_ERROR(end_->synchronize());
  return end_->secondsSince(*begin_);
}

Result<double> Bench::timeRepeated(const Enqueue &enqueue, double once, bool isTogether) {
  constexpr double kGraphSeconds = 0.02; // long enough for the launch of a graph not to matter
  constexpr int kRepeatsMax = 50, kReplaysMin = 3, kReplaysMax = 60;
  int repeats = static_cast<int>(std::clamp(kGraphSeconds / once, 1.0, 1.0 * kRepeatsMax));
  int replays = static_cast<int>(
      std::clamp(options_.secondsEach / (repeats * once), 1.0 * kReplaysMin, 1.0 * kReplaysMax));
  RETURN_IF_ERROR(stream_->beginCapture());
  for (int i = 0; i < repeats; ++i)
    if (Status status = enqueue(*stream_); !status.isOk()) {
      stream_->abandonCapture();
      return status;
    }
  ASSIGN_OR_RETURN(std::unique_ptr<hal::Graph> graph, stream_->endCapture());
  std::vector<double> seconds;
  Status failed;
  for (int i = 0; i < replays && failed.isOk(); ++i) {
    Result<double> one = timeOnce([&] { return stream_->launch(*graph, {}); }, isTogether);
    if (one.isOk())
      seconds.push_back(*one / repeats);
    else
      failed = one.status();
  }
  RETURN_IF_ERROR(failed);
  return settledOf(std::move(seconds));
}

Result<Timing> Bench::time(const Result<Enqueue> &enqueue, bool isTogether) {
  // The first call loads what it needs; the second one shows how long a call takes.
  Result<double> once = enqueue.isOk() ? Result<double>(0.0) : Result<double>(enqueue.status());
  for (int i = 0; i < 2 && once.isOk(); ++i)
    once = timeOnce([&] { return (*enqueue)(*stream_); }, isTogether);
  if (!once.isOk() && isTogether)
    return once.status(); // the others would wait
  Timing timing;
  double failed = std::numeric_limits<double>::infinity();
  ASSIGN_OR_RETURN(timing.seconds, exchange(once.isOk() ? *once : failed));
  double slowest = *std::ranges::max_element(timing.seconds);
  if (!once.isOk())
    timing.refused = once.status().message();
  else if (std::isinf(slowest))
    timing.refused = "another rank cannot do it";
  if (!timing.refused.empty()) {
    timing.seconds.clear();
    return timing;
  }
  if (slowest > options_.secondsMax)
    return timing;
  ASSIGN_OR_RETURN(double own, timeRepeated(*enqueue, std::max(slowest, 1e-7), isTogether));
  ASSIGN_OR_RETURN(timing.seconds, exchange(own));
  return timing;
}

Result<Timing> Bench::compute(const Rate &work) {
  Result<Timing> timing = time(enqueueOf(work), /*isTogether=*/false);
  RETURN_IF_ERROR(backend_.synchronize());
  buffers_.clear();
  return timing;
}

/// The bytes of the work are those of the whole buffer. The rank with index 0 sends to the others,
/// which receive.
Result<Timing> Bench::collective(const Rate &work, hal::Channel &channel, int index) {
  int64_t members = work.size("members");
  int64_t count = work.size("bytes") / dtypeBytes(work.dtype) / members;
  hal::Collective &desc = collective_;
  desc = {};
  desc.inType = desc.outType = work.dtype;
  desc.anyOrder = true;
  desc.kind = work.op == "all_gather"       ? CollectiveKind::AllGather
              : work.op == "reduce_scatter" ? CollectiveKind::ReduceScatter
              : work.op == "all_reduce"     ? CollectiveKind::AllReduce
              : work.op == "all_to_all"     ? CollectiveKind::AllToAll
              : index == 0                  ? CollectiveKind::Send
                                            : CollectiveKind::Recv;
  bool isOfParts = desc.kind == CollectiveKind::AllGather ||
                   desc.kind == CollectiveKind::ReduceScatter ||
                   desc.kind == CollectiveKind::AllToAll;
  desc.count = isOfParts ? count : count * members;
  int64_t whole = count * members * dtypeBytes(work.dtype);
  ASSIGN_OR_RETURN(void *in, allocate(hal::MemoryKind::Work, whole));
  ASSIGN_OR_RETURN(void *out, allocate(hal::MemoryKind::Work, whole));
  RETURN_IF_ERROR(fillRandom(in, whole, work.dtype));
  RETURN_IF_ERROR(fillRandom(out, whole, work.dtype));
  desc.in = in;
  desc.out = out;
  Result<Timing> timing = time(Enqueue([&channel, &desc](hal::Stream &stream) {
                                 return stream.collective(channel, desc, kLabel);
                               }),
                               /*isTogether=*/true);
  RETURN_IF_ERROR(backend_.synchronize());
  buffers_.clear();
  return timing;
}

} // namespace shardc::measure
