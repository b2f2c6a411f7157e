// Splits a bound segment into what all ranks of a role share and what one rank has for itself, and
// puts both together again.
#include "runtime/exec/RankPart.h"

#include <array>

namespace shardc::exec {
namespace {

void addCall(const kernels::Call &call, RankPart &part) {
  hal::OwnPart &own = part.calls.emplace_back();
  for (int i = 0; i < call.inCount; ++i)
    part.addresses.push_back(call.in[i].data);
  for (int i = 0; i < call.outCount; ++i)
    part.addresses.push_back(call.out[i].data);
  own.list = call.list;
  own.index = call.index;
  own.ranges = call.ranges;
  own.rangesOf = call.rangesOf;
  own.rangesCount = call.rangesCount;
}

} // namespace

void numberOwnParts(BoundSegment &bound) {
  std::array<uint32_t, 4> counts{};
  for (BoundOp &op : bound.ops)
    op.own = counts[op.kind]++;
}

/// Collects the addresses, collectives and copies of `own` in the order of the ops. `op.own` of the
/// shared segment is the index in these lists. Both segments must be the same apart from these
/// values.
RankPart partOf(const BoundSegment &shared, const BoundSegment &own) {
  SHARDC_CHECK(own.ops.size() == shared.ops.size(), "{} and {} ops of one segment", own.ops.size(),
               shared.ops.size());
  RankPart part;
  // Where each call's addresses begin; indices, since the vector may reallocate.
  std::vector<size_t> begins;
  for (size_t i = 0; i < own.ops.size(); ++i) {
    const BoundOp &op = own.ops[i];
    SHARDC_CHECK(op.kind == shared.ops[i].kind && op.kernel == shared.ops[i].kernel,
                 "'{}' is not the same on all ranks", op.label);
    switch (op.kind) {
    case BoundOp::Nothing:
      break;
    case BoundOp::Kernel:
      begins.push_back(part.addresses.size());
      addCall(*op.call, part);
      break;
    case BoundOp::Collective:
      part.collectives.push_back({op.channel, op.collective});
      break;
    case BoundOp::Copy:
      part.copies.push_back({op.from, op.to});
      break;
    }
  }
  part.addresses.shrink_to_fit();
  for (size_t i = 0; i < begins.size(); ++i)
    part.calls[i].addresses = part.addresses.data() + begins[i];
  return part;
}

RankPart takePart(const BoundSegment &shared, BoundSegment own) {
  RankPart part = partOf(shared, own);
  part.lists = std::move(own.lists);
  part.ranges = std::move(own.ranges);
  part.rangeStarts = std::move(own.rangeStarts);
  part.valid = std::move(own.valid);
  return part;
}

BoundOp opWithPart(const BoundOp &shared, const RankPart &part, kernels::Call &call) {
  BoundOp op = shared;
  switch (op.kind) {
  case BoundOp::Nothing:
    break;
  case BoundOp::Kernel:
    call = hal::apply(*op.call, part.calls[op.own]);
    op.call = &call;
    break;
  case BoundOp::Collective:
    op.channel = part.collectives[op.own].channel;
    op.collective = part.collectives[op.own].desc;
    break;
  case BoundOp::Copy:
    op.from = part.copies[op.own].from;
    op.to = part.copies[op.own].to;
    break;
  }
  return op;
}

} // namespace shardc::exec
