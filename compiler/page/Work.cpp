#include "compiler/page/Work.h"

#include <algorithm>

#include "runtime/plan/Text.h"

namespace shardc::page {
namespace {

Class classOf(const plan::Op &op) {
  if (plan::opInfo(op).collective || op.kind == plan::OpKind::ToHost ||
      op.kind == plan::OpKind::ToDevice)
    return Class::Transfer;
  if (op.isRecomputed)
    return Class::Recompute;
  switch (op.phase) {
  case plan::Phase::Forward:
    return Class::Forward;
  case plan::Phase::Backward:
    return Class::Backward;
  case plan::Phase::Update:
    return Class::Update;
  case plan::Phase::Other:
    break;
  }
  return Class::Other;
}

/// For each op of each segment, a piece without times; each execution of the op copies it.
std::vector<std::vector<Piece>> patternsOf(const plan::Plan &plan, const plan::Role &role,
                                           Names &names) {
  std::vector<std::vector<Piece>> all;
  for (const plan::Segment &segment : role.segments) {
    std::vector<std::string> labels = plan::opLabels(plan, segment);
    std::vector<Piece> pieces;
    for (size_t i = 0; i < segment.ops.size(); ++i) {
      const plan::Op &op = segment.ops[i];
      Piece piece;
      piece.lane = op.stream;
      piece.of = classOf(op);
      piece.label = names.idOf(labels[i]);
      piece.op = names.idOf(std::string(plan::opInfo(op).name));
      bool hasGroup = piece.of == Class::Transfer && op.group >= 0;
      piece.group = names.idOf(hasGroup ? plan.groups[static_cast<size_t>(op.group)].name : "");
      piece.unit = names.idOf(op.unit < 0 ? "" : plan.units[static_cast<size_t>(op.unit)].name);
      piece.segment = names.idOf(segment.name);
      pieces.push_back(piece);
    }
    all.push_back(std::move(pieces));
  }
  return all;
}

void sortByLane(std::vector<Piece> &pieces) {
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece &a, const Piece &b) {
    return std::pair(a.lane, a.begin) < std::pair(b.lane, b.begin);
  });
}

} // namespace

uint32_t Names::idOf(const std::string &text) {
  auto [at, isNew] = ids_.try_emplace(text, static_cast<uint32_t>(list_.size()));
  if (isNew)
    list_.push_back(text);
  return at->second;
}

const char *toString(Class of) {
  static constexpr const char *kWords[kClassCount] = {"forward", "backward", "recomputation",
                                                      "update",  "other",    "communication"};
  return kWords[static_cast<size_t>(of)];
}

Work predictedWork(const plan::Plan &plan, const plan::Role &role,
                   const std::vector<predict::Interval> &intervals) {
  Work work;
  for (const plan::Stream &stream : plan.streams)
    work.lanes.push_back(stream.name);
  std::vector<std::vector<Piece>> patterns = patternsOf(plan, role, work.names);
  work.pieces.reserve(intervals.size());
  for (const predict::Interval &interval : intervals) {
    Piece piece = patterns[interval.segment][interval.op];
    piece.begin = interval.begin;
    piece.end = interval.end;
    piece.microbatch = interval.microbatch;
    work.pieces.push_back(piece);
  }
  sortByLane(work.pieces);
  return work;
}

Work tracedWork(const plan::Plan &plan, const plan::Role &role,
                const std::vector<trace::Span> &spans, size_t &known, int64_t &steps) {
  Work work;
  std::map<std::string, Piece> byLabel;
  for (const std::vector<Piece> &pieces : patternsOf(plan, role, work.names))
    for (const Piece &piece : pieces)
      byLabel.try_emplace(work.names.list()[piece.label], piece);
  uint32_t beginOp = work.names.idOf(std::string(plan::opInfo(plan::OpKind::StepBegin).name));
  Names lanes;
  known = 0;
  steps = 0;
  for (const trace::Span &span : spans) {
    auto found = byLabel.find(span.label);
    Piece piece;
    if (found != byLabel.end()) {
      piece = found->second;
      ++known;
      steps += piece.op == beginOp;
    } else {
      piece.label = work.names.idOf(span.label);
      piece.op = work.names.idOf("(no op)");
      piece.group = piece.unit = piece.segment = work.names.idOf("");
    }
    piece.lane = lanes.idOf(span.stream);
    piece.begin = static_cast<double>(span.beginNs) * 1e-9;
    piece.end = static_cast<double>(span.endNs) * 1e-9;
    piece.microbatch = span.microbatch;
    work.pieces.push_back(piece);
  }
  work.lanes = lanes.list();
  sortByLane(work.pieces);
  return work;
}

int32_t firstRank(const plan::Plan &plan, const plan::Role &role) {
  int64_t rank = 0;
  for (const plan::AxisRange &range : role.where) {
    int64_t stride = 1;
    for (size_t axis = plan.mesh.size() - 1; axis > range.axis; --axis)
      stride *= plan.mesh[axis].size;
    rank += range.begin * stride;
  }
  return static_cast<int32_t>(rank);
}

int64_t rankCount(const plan::Plan &plan, const plan::Role &role) {
  int64_t count = plan.worldSize();
  for (const plan::AxisRange &range : role.where)
    count = count / plan.mesh[range.axis].size * (range.end - range.begin);
  return count;
}

} // namespace shardc::page
