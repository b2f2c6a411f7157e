// Checks the types of operands and results. Extents follow from the op's factors
// (runtime/plan/Factors.h), element types and numbers of dimensions from its types
// (runtime/plan/OpTypes.h). A kernel states what else it needs of attributes and types, and a run
// that it refuses does not begin; ops without a kernel are checked here. A matrix has its leading
// dimensions as rows, so [B,S,H] and [T,H] are the same matrix.
#include <algorithm>

#include "runtime/plan/Execution.h"
#include "runtime/plan/FactorExtents.h"
#include "runtime/plan/OpTypes.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {
namespace {

/// The name of operand or result i in the op's row.
std::string_view nameInRow(std::string_view names, size_t i) {
  for (; i > 0; --i)
    names.remove_prefix(std::min(names.find(' '), names.size() - 1) + 1);
  names = names.substr(0, names.find(' '));
  return names.substr(0, names.find_first_of("?*"));
}

class ShapeCheck {
public:
  ShapeCheck(const Scope &scope, uint32_t index)
      : scope_(scope), index_(index), op_(scope.segment.ops[index]), info_(opInfo(op_)) {}

  void run() {
    checkTypes();
    if (hasFailed_)
      return;
    checkWithoutKernel();
    if (!hasFailed_)
      needExtents();
  }

private:
  const Type &in(size_t i) const { return scope_.value(op_.operands[i]).type; }
  const Type &out(size_t i) const { return scope_.value(op_.results[i]).type; }
  /// Reports `text` unless the condition holds. Reports only the first failure of an op, since an
  /// op with many operands could fail as often.
  void need(bool condition, std::string_view text) {
    if (condition || hasFailed_)
      return;
    hasFailed_ = true;
    std::string types = typesOf(op_.operands);
    types += (types.empty() ? "-> " : " -> ") + typesOf(op_.results);
    scope_.add(finding::OpNeeds, index_, text, types);
  }
  std::string typesOf(const std::vector<ValueId> &ids) const {
    constexpr size_t kTextMax = 200;
    std::string types;
    for (ValueId id : ids) {
      if (types.size() > kTextMax)
        return types + ", ...";
      types += (types.empty() ? "" : ", ") + printType(scope_.value(id).type);
    }
    return types;
  }
  /// Checks the type of a value that is part of a block, or that ranks send.
  void needKnown(ValueId id, bool isKnown, std::string_view what) {
    if (!isKnown)
      scope_.addValue(finding::TypeNotSupported, index_, id, dtypeName(scope_.value(id).type.dtype),
                      what);
  }
  /// The number of ranks in the op's group.
  int64_t members() const { return scope_.plan().groupSize(op_.group); }

  // ---- what the op's rows say ----

  void checkTypes() {
    const OpTypes &types = plan::typesOf(op_);
    for (size_t i = 0; i < op_.operands.size() && !hasFailed_; ++i)
      if (const ValueType &needed = types.operand(i); !fitsHere(needed, in(i)))
        refuseType(needed, "operand", nameInRow(info_.operands, i));
    for (size_t r = 0; r < op_.results.size() && !hasFailed_; ++r)
      if (const ValueType &needed = types.result(r); !fitsHere(needed, out(r)))
        refuseType(needed, "result", nameInRow(info_.results, r));
  }

  /// Whether the type fits. One that needs to be that of a value which the op lacks does not.
  bool fitsHere(const ValueType &needed, const Type &type) const {
    if (needed.like < 0)
      return fits(needed, type, nullptr);
    auto at = static_cast<size_t>(needed.like);
    return at < (needed.isLikeOperand ? op_.operands : op_.results).size() &&
           fits(needed, type, needed.isLikeOperand ? &in(at) : &out(at));
  }

  void refuseType(const ValueType &needed, std::string_view side, std::string_view name) {
    std::string_view names = needed.isLikeOperand ? info_.operands : info_.results;
    std::string_view like =
        needed.like < 0 ? "" : nameInRow(names, static_cast<size_t>(needed.like));
    need(false, fmt::format("{} in {} '{}'", toString(needed, like), side, name));
  }

  /// Checks that equal factors have equal extents.
  void needExtents() {
    std::array<const Type *, kOperandsOfOpMax> operands{};
    std::array<const Type *, kResultsOfOpMax> results{};
    size_t operandCount = std::min(op_.operands.size(), operands.size());
    for (size_t i = 0; i < operandCount; ++i)
      operands[i] = &in(i);
    for (size_t r = 0; r < op_.results.size(); ++r)
      results[r] = &out(r);
    bool isCollective = opInfo(op_.kind).traits == OpTraits::Collective;
    FactorExtents extents(op_, std::span(operands.data(), operandCount),
                          std::span(results.data(), op_.results.size()),
                          isCollective ? scope_.plan().membersOf(op_) : members());
    if (!extents.fault())
      return;
    const ExtentFault &fault = *extents.fault();
    std::string_view names = fault.isOperand ? info_.operands : info_.results;
    bool isNumber = fault.dims == std::to_string(fault.needed);
    std::string needed = isNumber           ? std::string()
                         : fault.needed > 0 ? fmt::format(" = {}", fault.needed)
                                            : " of a size that fits";
    need(false, fmt::format("{}{} in {} '{}' by its factors '{}'", fault.dims, needed,
                            fault.isOperand ? "operand" : "result", nameInRow(names, fault.index),
                            printFactors(factorsOf(op_))));
  }

  // ---- ops without a kernel: views, packs and collectives ----

  void checkWithoutKernel() {
    if (op_.kind == OpKind::View)
      needInside(out(0).numel(), in(0).numel());
    if (op_.kind == OpKind::Pack)
      needParams(out(0));
    if (op_.kind == OpKind::AllToAll)
      need(op_.operands.size() < 2 || in(0).shape[0] % in(1).shape[0] == 0,
           "a number of rows that its slots divide");
    if (op_.kind == OpKind::AllReduceMax)
      needKnown(op_.operands[0], isComputeType(in(0).dtype) || in(0).dtype == DType::F64,
                "f32, bf16 and f64");
    if (op_.kind == OpKind::AllReduce || op_.kind == OpKind::ReduceScatter)
      needSums();
    if (op_.kind == OpKind::ReduceScatter) {
      need(dtypeBytes(out(0).dtype) >= dtypeBytes(in(0).dtype),
           "a result type at least as wide as its operand's");
      needSquared();
    }
  }

  void needInside(int64_t taken, int64_t elements) {
    int64_t coef = op_.getInt(AttrKey::coef), offset = op_.getInt(AttrKey::offset);
    IndexRange indices;
    if (coef != 0)
      indices = Indices(scope_.plan(), scope_.role).of(op_.group);
    bool isInside = true;
    // The start is linear in the index, so the smallest and the largest index decide.
    for (int64_t member : {indices.first, indices.last}) {
      int64_t begin = offset + coef * member;
      isInside = isInside && begin >= 0 && begin <= elements - taken;
    }
    if (!isInside)
      scope_.add(finding::ViewOutside, index_, taken, offset, coef, indices.last, elements);
  }

  void needParams(const Type &whole) {
    int64_t block = op_.getInt(AttrKey::block);
    if (block < 0)
      return needJoined(whole);
    const Block &of = blockAt(scope_.plan(), block);
    const std::vector<const Param *> &params =
        scope_.inspection.paramsOf(static_cast<int32_t>(block));
    need(whole.numel() == of.numel, "a result with as many elements as its block");
    if (params.size() != op_.operands.size()) {
      scope_.add(finding::PackParts, index_, op_.operands.size(), of.name, params.size());
      return;
    }
    for (size_t i = 0; i < params.size(); ++i)
      if (in(i).numel() != params[i]->type.numel() || in(i).dtype != whole.dtype)
        scope_.addValue(finding::PartOfPack, index_, op_.operands[i], i, printType(in(i)),
                        params[i]->name, params[i]->type.numel(), dtypeName(whole.dtype));
  }

  /// Checks that the result consists of the parts, one after the other.
  void needJoined(const Type &whole) {
    int64_t numel = 0;
    for (size_t i = 0; i < op_.operands.size(); ++i) {
      need(in(i).dtype == whole.dtype, "parts of the type of its result");
      numel += in(i).numel();
    }
    need(numel == whole.numel(), "a result with as many elements as its parts");
  }

  /// Checks the types of the operand and the result of a sum over ranks.
  void needSums() {
    for (ValueId id : {op_.operands[0], op_.results[0]}) {
      DType type = scope_.value(id).type.dtype;
      needKnown(id, isComputeType(type) || type == DType::F64, "sums of f32, bf16, f16 and f64");
    }
  }

  /// An op may return squares of its sum only if its ranks exchange parts and add them themselves.
  void needSquared() {
    if (op_.results.size() < 2)
      return;
    need(isComputeType(out(0).dtype), "a result of f32, bf16 or f16 to square");
    need(std::ranges::find(op_.ties, size_t{1}, &Tie::result) == op_.ties.end(),
         "a sum of squares without ties");
    if (!isExchanged(scope_.plan(), scope_.segment, op_))
      scope_.add(finding::SquaresNotExchanged, index_);
    needStateShard(out(0));
  }

  void needStateShard(const Type &type) {
    int64_t block = op_.getInt(AttrKey::block);
    if (block < 0)
      return scope_.add(finding::NamesNoBlock, index_), void();
    const Block &each = blockAt(scope_.plan(), block);
    if (type.numel() != each.stateShard)
      scope_.add(finding::PartSize, index_, type.numel(), "shard of the state", each.name,
                 each.stateShard);
  }

  const Scope &scope_;
  uint32_t index_;
  const Op &op_;
  const OpInfo &info_;
  bool hasFailed_ = false;
};

} // namespace

void checkShapes(const Scope &scope) {
  for (uint32_t i = 0; i < scope.segment.ops.size() && !scope.inspection.isFull(); ++i)
    ShapeCheck(scope, i).run();
}

} // namespace shardc::plan::verifier
