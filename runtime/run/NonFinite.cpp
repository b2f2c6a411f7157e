// Searches results on the host, in the valid rows only. Before a result is searched, make_runs is
// checked for rows that exceeded the capacity of their experts, since these become NaNs later.
#include "runtime/run/NonFinite.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <vector>

#include "runtime/base/Reduction.h"
#include "runtime/base/Reports.h"
#include "runtime/base/Router.h"
#include "runtime/exec/Ranges.h"
#include "runtime/plan/Coordinates.h"
#include "runtime/plan/Text.h"

namespace shardc::run {
namespace {

/// The element as a double; 0 for integers.
double numberAt(DType type, const void *data, int64_t index) {
  switch (type) {
  case DType::F64:
    return static_cast<const double *>(data)[index];
  case DType::F32:
    return static_cast<const float *>(data)[index];
  case DType::BF16:
    return toFloat(static_cast<const BF16 *>(data)[index]);
  case DType::F16:
    return toFloat(static_cast<const F16 *>(data)[index]);
  default:
    return 0;
  }
}

std::string spell(double value) {
  return std::isnan(value)   ? "nan"
         : std::isinf(value) ? (value < 0 ? "-inf" : "inf")
                             : fmt::format("{}", value);
}

/// Whether the op writes the value and may write -inf into it.
bool mayWriteMinusInfinity(const plan::Op &op, plan::ValueId id) {
#define MINUS_INFINITY(enumerator, result, where)                                                  \
  if (op.kind == plan::OpKind::enumerator)                                                         \
    return plan::resultNamed<plan::OpKind::enumerator>(op, result) == id;
#include "runtime/plan/Ops.def"
  return false;
}

/// Whether the value may hold -inf: an op may write it, or it has elements of such a value of the
/// segment.
bool mayHoldMinusInfinity(const plan::Segment &segment, plan::ValueId id) {
  if (segment.values[id].def == plan::kNone)
    return false;
  const plan::Op &op = segment.ops[segment.values[id].def];
  const plan::OpTraits traits = plan::opInfo(op).traits;
  bool isMoved = traits != plan::OpTraits::None && traits != plan::OpTraits::Pure;
  return mayWriteMinusInfinity(op, id) ||
         (isMoved && std::ranges::any_of(op.operands, [&](plan::ValueId from) {
            return mayHoldMinusInfinity(segment, from);
          }));
}

/// The value whose memory a view or pack refers to.
plan::ValueId named(const plan::Segment &segment, plan::ValueId value) {
  for (uint32_t def = segment.values[value].def;
       def != plan::kNone && plan::opInfo(segment.ops[def]).traits == plan::OpTraits::Alias;
       def = segment.values[value].def)
    value = segment.ops[def].operands[0];
  return value;
}

bool isCounts(const plan::Segment &segment, plan::ValueId value) {
  return segment.values[value].type.dtype == DType::I32 &&
         std::ranges::any_of(segment.values, [&](const plan::Value &each) {
           return each.counts != plan::kNone && named(segment, each.counts) == value;
         });
}

/// Finds the valid rows of values in a run op by op, from row counts that ops wrote or that a
/// segment began with. Only these rows may be searched. Counts are copied, since other values may
/// overwrite them before the rows are inspected.
class CountedRows final : public exec::OpObserver {
public:
  explicit CountedRows(exec::Executable &executable) : executable_(executable) {}
  Status beforeSegment(const Position &position) override {
    const plan::Segment &segment = executable_.segment(position.segment);
    for (const plan::Segment::Boundary &in : segment.ins)
      if (isCounts(segment, in.value))
        RETURN_IF_ERROR(keep(position, in.value));
    return Status::ok();
  }

  Status afterOp(const Position &position) override {
    const plan::Segment &segment = executable_.segment(position.segment);
    for (plan::ValueId result : segment.ops[position.op].results)
      if (isCounts(segment, result))
        RETURN_IF_ERROR(keep(position, result));
    return Status::ok();
  }

  /// The valid elements of a value of the segment; all elements if the value has no row counts.
  std::vector<ElementRange> elementsOf(uint32_t segment, size_t rank, plan::ValueId id) const {
    const plan::Segment &of = executable_.segment(segment);
    const plan::Value &value = of.values[id];
    auto kept = value.counts == plan::kNone ? kept_.end()
                                            : kept_.find({segment, rank, named(of, value.counts)});
    if (kept == kept_.end())
      return {{0, value.type.numel()}};
    const plan::Type &counts = of.values[value.counts].type;
    int64_t slots = counts.shape[0], runs = counts.shape[1];
    int64_t slotSize = value.type.numel() / slots,
            rowSize = value.type.numel() / value.type.shape[0];
    std::vector<ElementRange> elements;
    for (int64_t slot = 0; slot < slots; ++slot) {
      int64_t rows = 0;
      for (int64_t run = 0; run < runs; ++run)
        rows += kept->second[static_cast<size_t>(slot * runs + run)];
      int64_t begin = slot * slotSize;
      elements.push_back({begin, begin + std::clamp<int64_t>(rows * rowSize, 0, slotSize)});
    }
    return elements;
  }

private:
  Status keep(const Position &position, plan::ValueId counts) {
    const plan::Value &value = executable_.segment(position.segment).values[counts];
    for (size_t rank : executable_.ranksOf(position.segment)) {
      ASSIGN_OR_RETURN(uint8_t * address,
                       executable_.arenas(rank).resolve(value.place, value.type.bytes(), value.name,
                                                        position.instance.slot));
      std::vector<int32_t> &kept = kept_[{position.segment, rank, counts}];
      kept.resize(static_cast<size_t>(value.type.numel()));
      RETURN_IF_ERROR(executable_.readBeside(rank, address, value.type.bytes(), kept.data()));
    }
    return Status::ok();
  }

  exec::Executable &executable_;
  std::map<std::tuple<uint32_t, size_t, plan::ValueId>, std::vector<int32_t>> kept_;
};

/// Index of the first element in [begin, end) that is infinite or NaN; -1 if there is none, or if
/// the type has no such values. With `takesMinusInfinity`, -inf is accepted. `data` must be host
/// memory.
int64_t findNonFinite(DType type, const void *data, int64_t begin, int64_t end,
                      bool takesMinusInfinity) {
  for (int64_t i = begin; i < end; ++i)
    if (double value = numberAt(type, data, i);
        !std::isfinite(value) && !(takesMinusInfinity && value < 0))
      return i;
  return -1;
}

/// Ends a run op by op with Numeric at the first non-finite result. Ignores the padding of blocks,
/// and invalid rows.
class NonFiniteFinder final : public exec::OpObserver {
public:
  NonFiniteFinder(exec::Executable &executable, const int64_t &step)
      : executable_(executable), rows_(executable), step_(step) {}
  Status beforeSegment(const Position &position) override { return rows_.beforeSegment(position); }

  /// Rows over capacity are checked first, since they become NaN later and have a clearer cause.
  Status afterOp(const Position &position) override {
    const plan::Op &op = executable_.segment(position.segment).ops[position.op];
    const exec::BoundSegment *bound = executable_.bound(position.segment, position.instance);
    if (bound->ops[position.op].kind == exec::BoundOp::Nothing)
      return Status::ok();
    RETURN_IF_ERROR(rows_.afterOp(position));
    for (size_t rank : executable_.ranksOf(position.segment))
      if (op.kind == plan::OpKind::MakeRuns)
        RETURN_IF_ERROR(checkRoom(position, rank, op));
    for (size_t rank : executable_.ranksOf(position.segment))
      for (plan::ValueId result : op.results)
        RETURN_IF_ERROR(checkResult(position, rank, op, result));
    return Status::ok();
  }

private:
  /// Checks whether each row that an expert must receive fits into its slot.
  Status checkRoom(const Position &position, size_t rank, const plan::Op &op) {
    const plan::Segment &segment = executable_.segment(position.segment);
    auto read = [&](plan::ValueId id, std::vector<int32_t> &into) -> Status {
      const plan::Value &value = segment.values[id];
      ASSIGN_OR_RETURN(uint8_t * address,
                       executable_.arenas(rank).resolve(value.place, value.type.bytes(), value.name,
                                                        position.instance.slot));
      into.resize(static_cast<size_t>(value.type.numel()));
      return executable_.readBeside(rank, address, value.type.bytes(), into.data());
    };
    using enum plan::OpKind;
    std::vector<int32_t> ids, places;
    RETURN_IF_ERROR(read(plan::operandNamed<MakeRuns>(op, "ids"), ids));
    RETURN_IF_ERROR(read(plan::resultNamed<MakeRuns>(op, "places"), places));
    auto lacking = std::ranges::count(places, kOverCapacity);
    if (lacking == 0)
      return Status::ok();
    // What each slot would have needed, and the factor that would have made room for it.
    const plan::Type &counts = segment.values[plan::resultNamed<MakeRuns>(op, "counts")].type;
    int64_t slots = counts.shape[0], runs = counts.shape[1];
    std::vector<int64_t> needs(static_cast<size_t>(slots));
    for (int32_t id : ids)
      if (id >= 0 && id < slots * runs)
        ++needs[static_cast<size_t>(id / runs)];
    auto most = std::ranges::max_element(needs);
    double factor = static_cast<double>(*most * slots) / static_cast<double>(ids.size());
    return makeStatus(report::RowsOverCapacity,
                      "step {}, rank {}{}, microbatch {}: {} rows of %{} have found no room: the "
                      "experts of rank {} "
                      "of {} would get {} of them, and there is room for {}; "
                      "'model.moe_expert_rank_capacity_factor' would have to be {:.2f} or more",
                      step_, executable_.worldRank(rank),
                      plan::stageOf(executable_.plan(), executable_.roleIndexOf(rank)),
                      position.params.microbatch, lacking,
                      plan::printable(segment.values[op.results[0]].name), most - needs.begin(),
                      slots, *most, op.getInt(plan::AttrKey::bound) / slots, factor);
  }

  Status checkResult(const Position &position, size_t rank, const plan::Op &op, plan::ValueId id) {
    const plan::Segment &segment = executable_.segment(position.segment);
    const plan::Value &value = segment.values[id];
    DType type = value.type.dtype;
    if (type != DType::F64 && !isComputeType(type))
      return Status::ok();
    const exec::Arenas &arenas = executable_.arenas(rank);
    ASSIGN_OR_RETURN(uint8_t * address, arenas.resolve(value.place, value.type.bytes(), value.name,
                                                       position.instance.slot));
    copy_.resize(static_cast<size_t>(value.type.bytes()));
    RETURN_IF_ERROR(executable_.readBeside(rank, address, value.type.bytes(), copy_.data()));
    int64_t numel = value.type.numel(), found = -1;
    bool takesMinus = mayHoldMinusInfinity(segment, id);
    int32_t block = exec::blockOf(executable_.plan(), op, 0, numel);
    if (block < 0) {
      for (const ElementRange &part : rows_.elementsOf(position.segment, rank, id))
        if (found < 0)
          found = findNonFinite(type, copy_.data(), part.begin, part.end, takesMinus);
    } else { // padding of a block may have any value
      int64_t begin = exec::pieceBegin(executable_.plan().blocks[block], numel, arenas.indices());
      for (const exec::ParamPiece &part :
           exec::paramPieces(executable_.plan(), block, begin, numel))
        if (found < 0)
          found = findNonFinite(type, copy_.data(), part.begin, part.end, takesMinus);
    }
    if (found < 0)
      return Status::ok();
    std::string where;
    if (op.loc != plan::kNone) {
      const plan::Loc &loc = executable_.plan().locs[op.loc];
      where = fmt::format(" ({}:{}:{})", plan::printable(loc.file), loc.line, loc.column);
    }
    std::string microbatch =
        segment.body ? fmt::format(", microbatch {}", position.params.microbatch) : std::string();
    return makeStatus(StatusCode::Numeric,
                      "step {}, rank {}{}, segment {}{}: element {} of %{}, made by '{}'{}, is {}",
                      step_, executable_.worldRank(rank),
                      plan::stageOf(executable_.plan(), executable_.roleIndexOf(rank)),
                      plan::printable(segment.name), microbatch, found, plan::printable(value.name),
                      plan::opInfo(op).name, where, spell(numberAt(type, copy_.data(), found)));
  }

  exec::Executable &executable_;
  CountedRows rows_;
  const int64_t &step_;
  std::vector<uint8_t> copy_;
};

} // namespace

std::unique_ptr<exec::OpObserver> makeNonFiniteFinder(exec::Executable &executable,
                                                      const int64_t &step) {
  return std::make_unique<NonFiniteFinder>(executable, step);
}

bool mayExceedCapacity(const plan::Plan &plan) {
  auto isShort = [](const plan::Segment &segment, const plan::Op &op) {
    if (op.kind != plan::OpKind::MakeRuns)
      return false;
    const plan::Type &ids =
        segment.values[plan::operandNamed<plan::OpKind::MakeRuns>(op, "ids")].type;
    const plan::Type &counts =
        segment.values[plan::resultNamed<plan::OpKind::MakeRuns>(op, "counts")].type;
    int64_t most = counts.shape[0] * ids.shape[0] * std::min(ids.shape[1], counts.shape[1]);
    return op.getInt(plan::AttrKey::bound) < most;
  };
  return std::ranges::any_of(plan.roles, [&](const plan::Role &role) {
    return std::ranges::any_of(role.segments, [&](const plan::Segment &segment) {
      return std::ranges::any_of(segment.ops,
                                 [&](const plan::Op &op) { return isShort(segment, op); });
    });
  });
}

} // namespace shardc::run
