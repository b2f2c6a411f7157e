// Follows parts of sums over ranks with parts of a weight: a product that sums over a dimension in
// which its weight is split, and rows of a split table, are parts until an all_reduce or a
// reduce_scatter adds them. What takes them before is linear: views, packs, joins, casts, and sums
// with other parts.
#include <algorithm>
#include <optional>

#include "runtime/verify/VerifyImpl.h"
#include "runtime/verify/VerifySums.h"

namespace shardc::plan::verifier {
namespace {

using Key = AttrKey;

/// Elements of a block of weights, or a parameter that lies in none yet.
struct Elements {
  int32_t block = -1;
  int64_t begin = 0;
  int32_t param = -1;
  bool isTurned = false; ///< a transposed matrix
};

class PartialSums {
public:
  /// `cells` says of what sums the role's cells hold parts.
  PartialSums(const Scope &scope, const std::vector<Axes> &cells)
      : scope_(scope), segment_(scope.segment), parts_(segment_.values.size(), 0),
        elements_(segment_.values.size()) {
    for (const Segment::Boundary &in : segment_.ins) {
      const Cell &cell = scope.role.cells[in.cell];
      if (cell.kind == CellKind::Buffer)
        parts_[in.value] = cells[in.cell];
      if (cell.kind == CellKind::Weight || cell.kind == CellKind::GatheredWeight)
        elements_[in.value].block = static_cast<int32_t>(cell.of);
      else if (cell.kind == CellKind::Param)
        elements_[in.value].param = static_cast<int32_t>(cell.of);
    }
  }

  void follow() {
    for (const Op &op : segment_.ops) {
      followElements(op);
      Axes parts = partsOf(op);
      for (ValueId result : op.results)
        parts_[result] = parts;
    }
  }

  /// Whether more is known of cells by what is left in them.
  bool leave(std::vector<Axes> &cells) const {
    bool isMore = false;
    for (const Segment::Boundary &out : segment_.outs) {
      isMore |= (parts_[out.value] & ~cells[out.cell]) != 0;
      cells[out.cell] |= parts_[out.value];
    }
    return isMore;
  }

  /// After all is followed.
  void check() const {
    for (uint32_t i = 0; i < segment_.ops.size(); ++i)
      for (ValueId operand : segment_.ops[i].operands)
        if (parts_[operand] != 0 && !mayTakeParts(segment_.ops[i]))
          refuse(i, fmt::format("'{}'", opInfo(segment_.ops[i].kind).name), operand);
    for (const Segment::Boundary &out : segment_.outs) // others are added by another segment
      if (parts_[out.value] != 0 && scope_.role.cells[out.cell].purpose == Purpose::Grads)
        refuse(scope_.opOf(out.value), "the segment's end", out.value);
    for (uint32_t i = 0; i < segment_.ops.size(); ++i)
      checkIndex(i, segment_.ops[i]);
  }

private:
  const Plan &plan() const { return scope_.plan(); }
  const Type &typeOf(ValueId value) const { return scope_.value(value).type; }

  void refuse(uint32_t i, std::string_view taker, ValueId value) const {
    scope_.addValue(Rule::Sum, i, value,
                    "{} takes '%{}', of which ranks along {} have parts of a sum that none has "
                    "made",
                    taker, scope_.nameOf(value), namesOf(plan(), parts_[value]));
  }

  // ---- indices ----

  /// Rows of a table, and columns of logits, are those of the index by which the parameter is cut.
  void checkIndex(uint32_t i, const Op &op) const {
    if (op.kind == OpKind::Embedding)
      needIndex(i, op, knownSplitsOf(op.operands[1], 1));
    else if (op.kind == OpKind::VocabStats || op.kind == OpKind::CrossEntropyBwd)
      needIndex(i, op, columnSplitsOf(op.operands[0]));
    else if (op.kind == OpKind::Pack && op.getInt(Key::block) >= 0)
      checkGradients(op);
  }

  /// Of tables, by their places in the block.
  void checkGradients(const Op &pack) const {
    const std::vector<const Param *> &params =
        scope_.inspection.paramsOf(static_cast<int32_t>(pack.getInt(Key::block)));
    for (size_t p = 0; p < std::min(params.size(), pack.operands.size()); ++p) {
      uint32_t def = scope_.value(pack.operands[p]).def;
      if (def != kNone && segment_.ops[def].kind == OpKind::EmbeddingBwd &&
          params[p]->type.rank >= 2 && !params[p]->isUncut())
        needIndex(def, segment_.ops[def], splitsOf(*params[p], 1));
    }
  }

  void needIndex(uint32_t i, const Op &op, std::optional<Axes> needed) const {
    Axes found = axesOf(plan(), op.group);
    if (!needed || found == *needed)
      return;
    auto nameOf = [&](Axes axes) {
      return axes == 0 ? std::string("no axis") : namesOf(plan(), axes);
    };
    scope_.add(Rule::Split, i,
               "'{}' has what its rank has by the index along {}; its parameter is cut along {}",
               opInfo(op.kind).name, nameOf(found), nameOf(*needed));
  }

  /// Along which the weight was cut whose product has these columns.
  std::optional<Axes> columnSplitsOf(ValueId value) const {
    for (uint32_t def = scope_.value(value).def; def != kNone; def = scope_.value(value).def) {
      const Op &op = segment_.ops[def];
      if (op.kind == OpKind::MatMul)
        return knownSplitsOf(op.operands[1], op.getBool(Key::trans_b) ? 1 : 0);
      if (op.kind == OpKind::MatMulScaled)
        return knownSplitsOf(op.operands[1], 1);
      if (!isLinear(op.kind) || op.operands.empty())
        return std::nullopt;
      value = op.operands[0];
    }
    return std::nullopt;
  }

  // ---- weights ----

  void followElements(const Op &op) {
    if (op.operands.empty())
      return;
    Elements from = elements_[op.operands[0]];
    bool isQuantized = op.kind == OpKind::Quantize || op.kind == OpKind::QuantizeBlocks ||
                       op.kind == OpKind::QuantizeDelayed;
    if (isQuantized)
      return followQuantized(op, from);
    if (op.kind == OpKind::View)
      from.begin += op.getInt(Key::offset);
    else if (op.kind == OpKind::AllGather && op.getInt(Key::block) >= 0)
      from = {static_cast<int32_t>(op.getInt(Key::block))};
    else if (op.kind == OpKind::Transpose)
      from.isTurned ^= true;
    else if (op.kind != OpKind::Cast)
      return;
    elements_[op.results[0]] = from;
  }

  /// The transposed copy is the last result.
  void followQuantized(const Op &op, Elements from) {
    size_t others = op.kind == OpKind::QuantizeDelayed ? 3 : 2;
    from.isTurned ^= op.getBool(Key::transposed);
    elements_[op.results[0]] = from;
    from.isTurned ^= true;
    if (op.results.size() > others)
      elements_[op.results[others]] = from;
  }

  const Param *paramOf(ValueId value) const {
    const Elements &elements = elements_[value];
    if (elements.param >= 0)
      return &plan().params[static_cast<size_t>(elements.param)];
    if (elements.block < 0)
      return nullptr;
    const std::vector<const Param *> &params = scope_.inspection.paramsOf(elements.block);
    auto at = std::ranges::lower_bound(params, elements.begin, {}, &Param::offset);
    bool isIt = at != params.end() && (*at)->offset == elements.begin &&
                (*at)->type.numel() == typeOf(value).numel();
    return isIt ? *at : nullptr;
  }

  /// Along which ranks have other elements in the dimension of this matrix, counted from its end;
  /// nothing where it is no parameter that is known, or a parameter that is still to be cut.
  std::optional<Axes> knownSplitsOf(ValueId matrix, int fromEnd) const {
    const Param *param = paramOf(matrix);
    if (param == nullptr || param->isUncut() || param->type.rank < 2)
      return std::nullopt;
    return splitsOf(*param, elements_[matrix].isTurned ? 1 - fromEnd : fromEnd);
  }
  Axes splitsOf(ValueId matrix, int fromEnd) const {
    return knownSplitsOf(matrix, fromEnd).value_or(0);
  }
  Axes splitsOf(const Param &param, int fromEnd) const {
    Axes axes = 0;
    for (const Split &split : param.splits)
      if (split.dim == param.type.rank - 1 - fromEnd)
        axes |= axesOf(plan(), split.group);
    return axes;
  }

  // ---- parts ----

  /// Of the inner dimension: columns of the first factor and rows of the second one.
  Axes innerSplits(const Op &op, bool isTurnedA, bool isTurnedB) const {
    return static_cast<Axes>(splitsOf(op.operands[0], isTurnedA ? 1 : 0) |
                             splitsOf(op.operands[1], isTurnedB ? 0 : 1));
  }

  Axes partsOf(const Op &op) const {
    Axes taken = 0;
    for (ValueId operand : op.operands)
      taken |= parts_[operand];
    for (const Tie &tie : op.ties)
      taken |= parts_[tie.value];
    if (op.kind == OpKind::MatMul || op.kind == OpKind::MatMulGelu ||
        op.kind == OpKind::MatMulGeluBwd)
      return innerSplits(op, op.getBool(Key::trans_a), op.getBool(Key::trans_b));
    if (op.kind == OpKind::MatMulScaled)
      return innerSplits(op, false, true);
    if (op.kind == OpKind::Embedding && op.group >= 0 && plan().groupSize(op.group) > 1)
      return axesOf(plan(), op.group);
    if (isSumOverRanks(op))
      return static_cast<Axes>(taken & ~axesOf(plan(), op.group));
    return mayTakeParts(op) ? taken : Axes{0};
  }

  static bool isSumOverRanks(const Op &op) {
    return op.kind == OpKind::AllReduce || op.kind == OpKind::ReduceScatter;
  }

  bool mayTakeParts(const Op &op) const {
    if (op.kind == OpKind::Add)
      return parts_[op.operands[0]] == parts_[op.operands[1]];
    return isSumOverRanks(op) || isLinear(op.kind);
  }
  static bool isLinear(OpKind kind) {
    return kind == OpKind::View || kind == OpKind::Pack || kind == OpKind::Join ||
           kind == OpKind::Cast;
  }

  const Scope &scope_;
  const Segment &segment_;
  std::vector<Axes> parts_;        ///< by value
  std::vector<Elements> elements_; ///< by value
};

} // namespace

void checkPartialSums(Inspection &inspection, uint32_t index) {
  const Role &role = inspection.plan().roles[index];
  auto isPart = [](const Op &op) {
    return op.group >= 0 && (op.kind == OpKind::Embedding || op.kind == OpKind::EmbeddingBwd ||
                             op.kind == OpKind::VocabStats || op.kind == OpKind::CrossEntropyBwd);
  };
  bool hasParts = std::ranges::any_of(inspection.plan().params,
                                      [](const Param &param) { return !param.splits.empty(); }) ||
                  std::ranges::any_of(role.segments, [&](const Segment &segment) {
                    return std::ranges::any_of(segment.ops, isPart);
                  });
  if (!hasParts)
    return;
  std::vector<Axes> cells(role.cells.size(), 0);
  auto followAll = [&](bool isLast) {
    bool isMore = false;
    for (uint32_t s = 0; s < role.segments.size(); ++s) {
      if (inspection.variantsOf(index, s).empty())
        continue; // never run
      Scope scope = {inspection, role, role.segments[s], index, s};
      PartialSums sums(scope, cells);
      sums.follow();
      if (isLast)
        sums.check();
      isMore |= sums.leave(cells);
    }
    return isMore;
  };
  while (followAll(false)) {
  }
  followAll(true);
}

} // namespace shardc::plan::verifier
