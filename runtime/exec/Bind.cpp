#include "runtime/exec/Bind.h"

#include <algorithm>
#include <array>

#include "runtime/base/Reports.h"
#include "runtime/exec/CallShape.h"
#include "runtime/exec/Ranges.h"
#include "runtime/plan/Execution.h"
#include "runtime/plan/Factors.h"
#include "runtime/plan/Text.h"

namespace shardc::exec {
namespace {

using plan::AttrKey;
using plan::Op;
using plan::OpTraits;
using plan::ValueId;

/// The values whose parameter ranges the op's kernel receives: all operands of a list, or one value
/// that stands for all operands and results with the same pieces.
std::vector<ValueId> shardsOf(const Op &op) {
  const plan::OpInfo &info = plan::opInfo(op);
  if (info.block == plan::BlockUse::List)
    return op.operands;
  std::vector<ValueId> shards;
  for (size_t i = 0; i < op.operands.size(); ++i)
    if (info.isRangeOperand(i))
      shards.push_back(op.operands[i]);
  for (size_t r = 0; r < op.results.size(); ++r)
    if (info.isRangeResult(r))
      shards.push_back(op.results[r]);
  return shards;
}

class Binder {
public:
  Binder(const BindContext &context, const plan::Segment &segment, plan::Variant variant,
         const std::vector<std::string> &labels)
      : context_(context), segment_(segment), variant_(variant), labels_(labels) {}

  /// Binds all ops before it reports, so that one message lists the refused ops (at most
  /// kRefusedMax) and the user need not fix them one at a time.
  Result<BoundSegment> run() {
    bound_.ops.resize(segment_.ops.size());
    std::string refused;
    int refusedCount = 0;
    for (size_t i = 0; i < segment_.ops.size(); ++i) {
      Status status = bindOp(segment_.ops[i], bound_.ops[i], labels_[i].c_str());
      if (status.isOk())
        continue;
      if (refusedCount++ < kRefusedMax)
        refused +=
            fmt::format("{}{}: {}", refused.empty() ? "" : "\n", labels_[i], status.message());
    }
    if (refusedCount > kRefusedMax)
      refused += fmt::format("\nand {} more ops", refusedCount - kRefusedMax);
    if (refusedCount > 0)
      return makeStatus(report::PlanCannotRun, std::move(refused));
    pruneWaits(segment_, bound_);
    bound_.together = plan::issuedTogether(context_.plan, segment_);
    return std::move(bound_);
  }

private:
  static constexpr int kRefusedMax = 20;

  /// Ops that do nothing in this variant keep the kind `Nothing`, but also their stream and waits:
  /// another op may wait for them, and thus for what they wait for.
  Status bindOp(const Op &op, BoundOp &out, const char *label) {
    const plan::OpInfo &info = plan::opInfo(op);
    out.stream = op.stream;
    out.label = label;
    out.waits = op.waits;
    if (info.traits == OpTraits::Alias || !plan::holds(op.pred, variant_))
      return Status::ok();
    if (info.traits == OpTraits::Copy)
      return bindCopy(op, out);
    return info.collective ? bindCollective(op, info.collective->kind, out)
                           : bindKernel(op, info, out);
  }

  Status bindCopy(const Op &op, BoundOp &out) {
    if (op.operands.size() != 1 || op.results.size() != 1)
      return makeStatus(report::PlanCannotRun, "a copy has one operand and one result");
    ASSIGN_OR_RETURN(kernels::Tensor in, tensor(op.operands[0]));
    ASSIGN_OR_RETURN(kernels::Tensor result, tensor(op.results[0]));
    out.kind = BoundOp::Copy;
    out.from = in.data;
    out.to = result.data;
    out.bytes = segment_.values[op.operands[0]].type.bytes();
    if (out.bytes != segment_.values[op.results[0]].type.bytes())
      return makeStatus(report::PlanCannotRun,
                        "a copy's result must have as many bytes as its operand");
    return Status::ok();
  }

  Result<kernels::Tensor> tensor(ValueId id) const {
    const plan::Value &value = segment_.values[id];
    kernels::Tensor tensor = tensorOf(value.type);
    ASSIGN_OR_RETURN(tensor.data,
                     context_.arenas.resolve(value.place, value.type.bytes(),
                                             fmt::format("%{}", value.name), context_.microbatch));
    return tensor;
  }

  /// Whether the kernel adds to the result instead of overwriting it. A tie may hold only in some
  /// variants, for example not in the first microbatch of a step.
  bool accumulates(const Op &op, size_t result) const {
    for (const plan::Tie &tie : op.ties)
      if (tie.kind == plan::Tie::Acc && tie.result == result && plan::holds(tie.pred, variant_))
        return true;
    return false;
  }

  /// `bound_` owns the call, its lists and its ranges by pointers, since kernels keep the addresses
  /// while the vectors grow.
  Status bindKernel(const Op &op, const plan::OpInfo &info, BoundOp &out) {
    out.kind = BoundOp::Kernel;
    out.kernel = context_.findKernel(info.name);
    if (!out.kernel)
      return makeStatus(report::PlanCannotRun, "the backend has no kernel for '{}'", info.name);
    bound_.calls.push_back(std::make_unique<kernels::Call>());
    kernels::Call &call = *bound_.calls.back();
    out.call = &call;
    call.context = context_.kernelContext;
    call.attrs = attrsOf(op);
    if (info.takesIndex()) {
      call.index = context_.arenas.indices().of(op.group);
      call.groupSize = context_.plan.groupSize(op.group);
    }
    RETURN_IF_ERROR(bindOperands(op, info, call));
    if (op.results.size() > static_cast<size_t>(kernels::kResultsMax))
      return makeStatus(report::PlanCannotRun, "{} results are more than {}", op.results.size(),
                        kernels::kResultsMax);
    call.outCount = static_cast<uint8_t>(op.results.size());
    for (size_t r = 0; r < op.results.size(); ++r) {
      ASSIGN_OR_RETURN(call.out[r], tensor(op.results[r]));
      call.out[r].accumulate = accumulates(op, r);
    }
    if (info.takesRanges())
      RETURN_IF_ERROR(bindRanges(op, call));
    if (const char *why = out.kernel->accepts ? out.kernel->accepts(call) : nullptr)
      return makeStatus(report::PlanCannotRun, "kernel {} refuses: {}", out.kernel->name, why);
    return Status::ok();
  }

  Status bindOperands(const Op &op, const plan::OpInfo &info, kernels::Call &call) {
    if (info.operandsMax == plan::kAnyNumber) {
      bound_.lists.push_back(std::make_unique<std::vector<kernels::Tensor>>());
      std::vector<kernels::Tensor> &list = *bound_.lists.back();
      for (ValueId operand : op.operands) {
        ASSIGN_OR_RETURN(kernels::Tensor item, tensor(operand));
        list.push_back(item);
      }
      call.list = list.data();
      call.listCount = static_cast<int64_t>(list.size());
      bound_.copies.push_back(std::make_unique<std::vector<int64_t>>());
      for (const plan::ListedBlock &each : op.blocks)
        bound_.copies.back()->push_back(each.copies);
      call.copies = op.blocks.size() == list.size() ? bound_.copies.back()->data() : nullptr;
      return Status::ok();
    }
    if (op.operands.size() > static_cast<size_t>(kernels::kOperandsMax))
      return makeStatus(report::PlanCannotRun, "{} operands are more than {}", op.operands.size(),
                        kernels::kOperandsMax);
    call.inCount = static_cast<uint8_t>(op.operands.size());
    for (size_t i = 0; i < op.operands.size(); ++i) {
      ASSIGN_OR_RETURN(call.in[i], tensor(op.operands[i]));
    }
    return Status::ok();
  }

  /// Binds the parameter ranges of each shard that the op works on.
  Status bindRanges(const Op &op, kernels::Call &call) {
    std::vector<ValueId> shards = shardsOf(op);
    bound_.ranges.push_back(std::make_unique<std::vector<kernels::ParamRange>>());
    bound_.rangeStarts.push_back(std::make_unique<std::vector<int64_t>>(1, 0));
    std::vector<kernels::ParamRange> &ranges = *bound_.ranges.back();
    std::vector<int64_t> &starts = *bound_.rangeStarts.back();
    RangeContext context{static_cast<uint64_t>(call.attrs.seed), context_.countOffsets,
                         plan::opInfo(op).sum == plan::SumRole::Norm};
    for (size_t i = 0; i < shards.size(); ++i) {
      const plan::Value &value = segment_.values[shards[i]];
      // A value may hold several equal parts, one after the other. The ranges describe the first
      // one.
      const int64_t parts = i > 0 ? std::max<int64_t>(call.attrs.tensor_parts, 1) : 1;
      int64_t numel = value.type.numel() / parts;
      if (value.type.dtype == DType::F64) { // a sum of squares contains no parameters
        starts.push_back(static_cast<int64_t>(ranges.size()));
        continue;
      }
      int32_t block = blockOf(context_.plan, op, i, numel);
      if (block < 0)
        return makeStatus(report::PlanCannotRun,
                          "%{} with {} elements is neither a block nor a shard of one", value.name,
                          numel);
      const GroupIndices &indices = context_.arenas.indices();
      int64_t begin = pieceBegin(context_.plan.blocks[block], numel, indices);
      std::vector<kernels::ParamRange> more =
          paramRanges(context_.plan, block, begin, numel, indices, context);
      ranges.insert(ranges.end(), more.begin(), more.end());
      starts.push_back(static_cast<int64_t>(ranges.size()));
    }
    call.ranges = ranges.data();
    call.rangesOf = starts.data();
    call.rangesCount = static_cast<int64_t>(ranges.size());
    return Status::ok();
  }

  Status bindTransfer(const Op &op, CollectiveKind kind, BoundOp &out) {
    bool sends = kind == CollectiveKind::Send;
    const std::vector<ValueId> &values = sends ? op.operands : op.results;
    if (values.size() != 1 || out.channel->size() != 2)
      return makeStatus(report::PlanCannotRun, "a transfer has one value and two members");
    ASSIGN_OR_RETURN(kernels::Tensor given, tensor(values[0]));
    hal::Collective &collective = out.collective;
    collective.kind = kind;
    if (sends)
      collective.in = given.data;
    else
      collective.out = given.data;
    collective.inType = collective.outType = given.dtype;
    collective.count = given.numel();
    return Status::ok();
  }

  Status bindCollective(const Op &op, CollectiveKind kind, BoundOp &out) {
    out.kind = BoundOp::Collective;
    out.channel = op.channel >= 0 ? context_.findChannel(op.channel) : nullptr;
    if (!out.channel)
      return makeStatus(report::PlanCannotRun, "no channel to communicate on");
    if (isPointToPoint(kind))
      return bindTransfer(op, kind, out);
    bool isCounted = plan::leavesRowsOut(op);
    if (op.operands.size() != (isCounted ? 2u : 1u) || op.results.empty() || op.results.size() > 2)
      return makeStatus(report::PlanCannotRun, "a collective has one operand and one result");
    ASSIGN_OR_RETURN(kernels::Tensor in, tensor(op.operands[0]));
    ASSIGN_OR_RETURN(kernels::Tensor result, tensor(op.results[0]));
    hal::Collective &collective = out.collective;
    collective.kind = kind;
    collective.in = in.data;
    collective.out = result.data;
    collective.inType = in.dtype;
    collective.outType = result.dtype;
    collective.average = op.getBool(AttrKey::average);
    collective.accumulate = accumulates(op, 0);
    collective.anyOrder = isSum(kind) && plan::sumsInAnyOrder(context_.plan, op);
    int64_t members = out.channel->size();
    const CollectiveTraits traits = traitsOf(kind);
    collective.count = !traits.isWholeOut ? result.numel()
                       : traits.isWholeIn ? result.numel() / members
                                          : in.numel();
    const int64_t inWant = collective.count * (traits.isWholeIn ? members : 1),
                  outWant = collective.count * (traits.isWholeOut ? members : 1);
    collective.by = op.getInt(AttrKey::by);
    if (in.numel() != inWant || result.numel() != outWant)
      return makeStatus(report::PlanCannotRun, "{} elements in and {} out do not fit {} members",
                        in.numel(), result.numel(), members);
    if (collective.accumulate && kind != CollectiveKind::ReduceScatter)
      return makeStatus(report::PlanCannotRun, "only reduce_scatter adds to what is there");
    if (isCounted)
      RETURN_IF_ERROR(bindCounts(op, members, collective));
    return op.results.size() > 1 ? bindSquares(op, collective) : Status::ok();
  }

  /// Binds the row counts of each member's part.
  Status bindCounts(const Op &op, int64_t members, hal::Collective &collective) {
    ASSIGN_OR_RETURN(kernels::Tensor counts, tensor(op.operands[1]));
    int64_t rows = segment_.values[op.operands[0]].type.shape[0], slots = counts.shape[0];
    if (counts.dtype != DType::I32 || counts.rank != 2 || slots % members != 0 || slots == 0 ||
        rows % slots != 0)
      return makeStatus(report::PlanCannotRun, "counts of {} rows for {} members in {} slots", rows,
                        members, slots);
    collective.counted = {static_cast<const int32_t *>(counts.data), slots, counts.shape[1], rows};
    return Status::ok();
  }

  /// Binds the result for the sum of the shard's squares, and the ranges of elements that are
  /// squared.
  Status bindSquares(const Op &op, hal::Collective &collective) {
    ASSIGN_OR_RETURN(kernels::Tensor squares, tensor(op.results[1]));
    if (collective.kind != CollectiveKind::ReduceScatter || squares.dtype != DType::F64 ||
        accumulates(op, 1))
      return makeStatus(report::PlanCannotRun, "a second result is the f64 squares of a shard");
    int32_t block = blockOf(context_.plan, op, 0, collective.count);
    if (block < 0)
      return makeStatus(report::PlanCannotRun, "%{} with {} elements is not a shard of a block",
                        segment_.values[op.results[0]].name, collective.count);
    const GroupIndices &indices = context_.arenas.indices();
    int64_t begin = pieceBegin(context_.plan.blocks[block], collective.count, indices);
    bound_.valid.push_back(std::make_unique<std::vector<ElementRange>>(
        countedElements(context_.plan, block, begin, collective.count, indices)));
    collective.squares = static_cast<double *>(squares.data);
    collective.valid = *bound_.valid.back();
    return Status::ok();
  }

  const BindContext &context_;
  const plan::Segment &segment_;
  plan::Variant variant_;
  const std::vector<std::string> &labels_;
  BoundSegment bound_;
};

} // namespace

Result<BoundSegment> bindSegment(const BindContext &context, const plan::Segment &segment,
                                 plan::Variant variant, const std::vector<std::string> &labels) {
  return Binder(context, segment, variant, labels).run();
}

/// Removes waits that other waits imply, so that captured graphs have fewer edges and fewer events
/// are needed. This is a vector clock: ops of a stream end in their order, and after a wait a
/// stream knows what the awaited op knew.
void pruneWaits(const plan::Segment &segment, BoundSegment &bound) {
  // A clock has a number for each stream: how many of the segment's first ops on this stream are
  // known to have ended.
  using Clock = std::array<uint32_t, plan::kStreamsMax>;
  std::vector<Clock> after(segment.ops.size());
  std::array<Clock, plan::kStreamsMax> now{};
  for (uint32_t i = 0; i < segment.ops.size(); ++i) {
    BoundOp &op = bound.ops[i];
    Clock &clock = now[op.stream];
    std::vector<uint32_t> needed;
    // Starts with the latest op, which often implies the others.
    std::sort(op.waits.begin(), op.waits.end(), std::greater<>());
    for (uint32_t awaited : op.waits) {
      auto stream = static_cast<size_t>(bound.ops[awaited].stream);
      if (stream == static_cast<size_t>(op.stream) || clock[stream] > awaited)
        continue;
      for (size_t s = 0; s < clock.size(); ++s)
        clock[s] = std::max(clock[s], after[awaited][s]);
      needed.push_back(awaited);
      bound.ops[awaited].isAwaited = true;
    }
    op.waits = std::move(needed);
    clock[static_cast<size_t>(op.stream)] = i + 1;
    after[i] = clock;
  }
}

} // namespace shardc::exec
