// Checks the types of operands and results. Extents follow from the op's factors
// (runtime/plan/Factors.h), element types and numbers of dimensions from its TYPES row
// (runtime/plan/OpTypes.h). VerifyRelations.def has further relations between attributes and types.
// A matrix has its leading dimensions as rows, so [B,S,H] and [T,H] are the same matrix.
#include <algorithm>
#include <bit>
#include <cmath>

#include "runtime/base/Float8.h"
#include "runtime/base/Router.h"
#include "runtime/plan/Execution.h"
#include "runtime/plan/FactorExtents.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/OpTypes.h"
#include "runtime/plan/Text.h"
#include "runtime/plan/WeightScales.h"
#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {
namespace {

using Key = AttrKey;

int64_t cols(const Type &type) { return type.shape[type.rank - 1]; }
int64_t rows(const Type &type) { return type.numel() / cols(type); }
bool isSameShape(const Type &a, const Type &b) { return a.rank == b.rank && a.shape == b.shape; }

bool isOneScale(const Type &scale) {
  return scale.rank == 1 && scale.dtype == DType::F32 && scale.numel() == 1;
}
bool isScaleOfBlocks(const Type &scale, const Type &factor) {
  return scale.rank == 2 && (scale.dtype == DType::F32 || scale.dtype == DType::U8) &&
         blocksOf(scale.dtype == DType::U8, {rows(scale), cols(scale)},
                  {rows(factor), cols(factor)});
}

bool areScales(const Type &ofA, const Type &a, const Type &ofB, const Type &b) {
  return (isOneScale(ofA) && isOneScale(ofB)) ||
         (isScaleOfBlocks(ofA, a) && isScaleOfBlocks(ofB, b) && ofA.dtype == ofB.dtype);
}

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
    if (op_.epilogue != Epilogue::None)
      checkFused();
    else
      checkRelations();
    needLeftOut();
    if (!hasFailed_)
      needExtents();
  }

private:
  const Type &in(size_t i) const { return scope_.value(op_.operands[i]).type; }
  const Type &out(size_t i) const { return scope_.value(op_.results[i]).type; }
  /// The operand with this name in the op's row; an unknown name does not compile.
  template <OpKind kind> const Type &in(names::NameOf<kind, names::kOperands> name) const {
    return in(name.index);
  }
  template <OpKind kind> const Type &out(names::NameOf<kind, names::kResults> name) const {
    return out(name.index);
  }
  template <OpKind kind> bool has(names::NameOf<kind, names::kOperands> name) const {
    return name.index < op_.operands.size();
  }
  bool hasOut(size_t i) const { return i < op_.results.size(); }
  template <OpKind kind> bool hasOut(names::NameOf<kind, names::kResults> name) const {
    return hasOut(name.index);
  }
  /// The index of an operand by name, for an op with an epilogue, which has no row of its own.
  size_t operandNamed(std::string_view name) const {
    return static_cast<size_t>(positionOf(info_.operands, name));
  }

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
  int64_t attr(Key key) const { return op_.getInt(key); }
  /// The number of ranks in the op's group.
  int64_t members() const { return scope_.plan().groupSize(op_.group); }

  // ---- what the op's rows say ----

  void checkTypes() {
    const OpTypes &types = plan::typesOf(op_);
    for (size_t i = 0; i < op_.operands.size() && !hasFailed_; ++i)
      if (const ValueType &needed = types.operand(i); !fits(needed, in(i), likeOf(needed)))
        refuseType(needed, "operand", nameInRow(info_.operands, i));
    for (size_t r = 0; r < op_.results.size() && !hasFailed_; ++r)
      if (const ValueType &needed = types.result(r); !fits(needed, out(r), likeOf(needed)))
        refuseType(needed, "result", nameInRow(info_.results, r));
  }

  /// The type with which another type is compared; null if there is none.
  const Type *likeOf(const ValueType &needed) const {
    if (needed.like < 0)
      return nullptr;
    auto at = static_cast<size_t>(needed.like);
    return needed.isLikeOperand ? &in(at) : &out(at);
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
                            factorsOf(op_).text));
  }

  template <OpKind kOp> void checkRelationsOf() {
#define RELATION(op, condition, text)                                                              \
  if constexpr (kOp == OpKind::op)                                                                 \
    need(hasFailed_ || (condition), text);
#define CALL(op, call)                                                                             \
  if constexpr (kOp == OpKind::op)                                                                 \
    call;
#include "runtime/verify/VerifyRelations.def"
  }
  void checkRelations() {
    using Check = void (ShapeCheck::*)();
    static constexpr auto kChecks = []<size_t... kinds>(std::index_sequence<kinds...>) {
      return std::array<Check, kOpCount>{&ShapeCheck::checkRelationsOf<OpKind(kinds)>...};
    }
    (std::make_index_sequence<kOpCount>());
    (this->*kChecks[static_cast<size_t>(op_.kind)])();
  }

  // ---- data, tables and losses ----

  void needPart(const Type &type, std::string_view what, int64_t Block::*numel) {
    int64_t block = attr(Key::block);
    if (block < 0)
      return scope_.add(finding::NamesNoBlock, index_), void();
    const Block &each = blockAt(scope_.plan(), block);
    if (type.numel() != each.*numel)
      scope_.add(finding::PartSize, index_, type.numel(), what, each.name, each.*numel);
  }
  void needStateShard(const Type &type) {
    needPart(type, "shard of the state", &Block::stateShard);
  }

  /// Checks a shard of a block that holds one table. The table has rows of `columns` elements,
  /// which no shard boundary may cut. It has `tableRows` rows, unless that is negative.
  void needTable(const Type &shard, int64_t columns, int64_t tableRows) {
    needPart(shard, "shard", &Block::shard);
    int64_t block = attr(Key::block);
    if (block < 0)
      return;
    const std::vector<const Param *> &params =
        scope_.inspection.paramsOf(static_cast<int32_t>(block));
    need(params.size() == 1 && params[0]->type.rank == 2 && cols(params[0]->type) == columns &&
             (tableRows < 0 || rows(params[0]->type) == tableRows),
         "a block that holds one table with the op's rows and columns");
    need(shard.numel() % columns == 0 && (params.empty() || params[0]->offset % columns == 0),
         "shards whose boundaries lie between rows");
  }

  /// Checks the vocabulary's size, given that this rank has `columns` of its columns.
  void needValidCols(int64_t columns) {
    int64_t valid = attr(Key::valid_cols);
    need(valid >= 0 && valid <= columns * members(),
         "valid_cols between 0 and the number of columns of all members");
    needSoftCap();
  }

  // ---- attention ----

  /// Checks the soft cap of scores or of logits.
  void needSoftCap() {
    double cap = op_.getFloat(Key::soft_cap);
    need(cap >= 0 && std::isfinite(cap), "a soft_cap that is a number of at least 0");
  }

  /// A window extends backwards from the query, so it needs a causal mask.
  void needWindow() {
    needSoftCap();
    int64_t window = attr(Key::window);
    need(window == -1 || (window >= 0 && op_.getBool(Key::causal)),
         "a window of at least 0 under a causal mask, or -1");
    int64_t chunk = attr(Key::chunk);
    need(chunk == 0 || op_.getBool(Key::causal), "chunks under a causal mask");
  }

  void needKeys(const Type &q, const Type &k) {
    needWindow();
    need(op_.getFloat(Key::p) == 0 || attr(Key::positions) > 0,
         "attribute 'positions' where it has dropout");
    int64_t slices = attr(Key::slices);
    need(slices == 0 ||
             (slices > 0 && members() % slices == 0 && (slices == 1 || q.shape[1] % 2 == 0)),
         "mirrored slices of the members of its group");
    need(slices == 0 || k.shape[1] == q.shape[1] || k.shape[1] == slices * q.shape[1],
         "keys of one slice or of all");
    need(slices == 0 || (attr(Key::by) >= 0 && attr(Key::by) < slices),
         "attribute 'by' below the number of slices");
  }

  /// Checks that attributes for heads fit the columns of qkv.
  void needQkv(const Type &qkv) {
    needWindow();
    int64_t heads = attr(Key::num_heads), groups = attr(Key::num_groups),
            channels = attr(Key::head_dim);
    bool isNamed = heads > 0 && groups > 0 && channels > 0 && heads % groups == 0 &&
                   heads <= limits::kElementsMax / 3 &&
                   channels <= limits::kElementsMax / (3 * heads);
    need(isNamed, "attributes for heads, groups and channels, with groups that divide the heads");
    need(!isNamed || cols(qkv) == (heads + 2 * groups) * channels, "qkv[B, S, (N+2G)·D]");
  }

  void needHeads(const Type &q) {
    need(attr(Key::num_heads) == 0 || attr(Key::num_heads) == q.shape[2],
         "attribute 'num_heads' as in its types");
  }

  /// Checks the attributes of ops on rows or columns in parts: `kept` has bits of parts only.
  bool needKept() {
    int64_t more = attr(Key::units) - attr(Key::first_units); // parts beside the first one
    int64_t kept = attr(Key::kept);
    bool areThere = more >= 0 && more < 31 && kept > 0 && kept < int64_t{2} << more;
    need(areThere, "attributes 'units', 'first_units' and 'kept' that fit together");
    return areThere;
  }

  /// The same of ops that take a joined value apart: each part that is kept has as many columns as
  /// the joined value.
  void needParts(const Type &joined, const Type &apart) {
    int64_t parts = attr(Key::parts);
    if (!needKept())
      return;
    need(std::popcount(static_cast<uint64_t>(attr(Key::kept))) == parts,
         "as many bits of 'kept' as 'parts'");
    need(cols(apart) == cols(joined) * parts, "columns for each of its parts");
  }

  // ---- routers and groups of rows ----

  void needChoice(const Type &logits) {
    RouterChoice choice = {.experts = cols(logits),
                           .topk = attr(Key::topk),
                           .groups = attr(Key::expert_groups),
                           .groupTopk = attr(Key::group_topk)};
    if (const char *wanted = choice.missing())
      need(false, wanted);
  }

  /// Checks a load [parts, experts]: the rows of all members must consist of parts of equal size.
  void needLoad(const Type &load, int64_t rows) {
    need(rows * members() % load.shape[0] == 0, "rows that consist of equal parts");
  }

  /// Checks row counts: the rows must fit slots of equal size.
  void needSlots(const Type &counts, int64_t bound) {
    need(bound % counts.shape[0] == 0, "a number of rows that its slots divide");
  }
  /// Checks row counts that are optional.
  void needLeftOut() {
    if (std::optional<size_t> counts = leavesOutBy(op_);
        counts && op_.operands.size() > info_.operandsMin)
      needSlots(in(*counts), in(0).shape[0]);
  }
  template <OpKind kind> void needGrouped() {
    needSlots(in<kind>("counts"), rows(in<kind>("a")));
    int64_t recipe = attr(Key::fp8_recipe);
    need(recipe <= static_cast<int64_t>(Fp8Factors::Delayed), "a recipe of 8-bit factors");
    need(recipe > 0 || !op_.getBool(Key::e5m2), "a first factor in 8 bits where it is e5m2");
    constexpr size_t kAmax = operandIndex<kind>("amax"), kSeen = operandIndex<kind>("seen");
    bool isDelayed = recipe == static_cast<int64_t>(Fp8Factors::Delayed);
    need(isDelayed == (op_.operands.size() > kAmax),
         "expected amaxes by the recipe delayed, and by no other one");
    need(hasOut(resultIndex<kind>("seen")) == (op_.operands.size() > kSeen),
         "amaxes that are seen before it and behind it");
    if (op_.operands.size() > kAmax)
      for (Key key : {Key::slot, Key::b_slot})
        need(attr(key) <= in(kAmax).numel() - members() * in<kind>("counts").shape[1],
             "amaxes of f32[n] with one for each run of all members from its slot on");
  }

  // ---- views, packs and collectives ----

  void needInside(int64_t taken, int64_t elements) {
    int64_t coef = attr(Key::coef), offset = attr(Key::offset);
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
    int64_t block = attr(Key::block);
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
  void needWire() {
    for (ValueId id : {op_.operands[0], op_.results[0]}) {
      DType type = scope_.value(id).type.dtype;
      needKnown(id, isComputeType(type) || type == DType::F64, "sums of f32, bf16, f16 and f64");
    }
  }

  template <OpKind kind> void needSquared() {
    const OpInfo &info = opInfo(kind);
    auto squares = static_cast<size_t>(info.squares);
    if (!hasOut(squares))
      return;
    need(isComputeType(out(static_cast<size_t>(info.squared)).dtype),
         "a result of f32, bf16 or f16 to square");
    need(std::ranges::find(op_.ties, squares, &Tie::result) == op_.ties.end(),
         "a sum of squares without ties");
  }

  /// An op may return squares of its sum only if its ranks exchange parts and add them themselves.
  void needOwnSum(const Type &shard, size_t squares) {
    if (!hasOut(squares))
      return;
    if (!isExchanged(scope_.plan(), scope_.segment, op_))
      scope_.add(finding::SquaresNotExchanged, index_);
    needStateShard(shard);
  }

  // ---- the step ----

  void needSquares() {
    for (size_t i = 0; i < op_.operands.size(); ++i) {
      bool isSum = in(i).dtype == DType::F64 && in(i).numel() == 1;
      need(isSum || (isData(in(i)) && in(i).dtype != DType::F64),
           "shards of at most 32 bits per element, or sums of squares of f64[1]");
    }
  }

  /// g master moments... state -> master moments... weight?; for remainders also weight -> weight.
  template <OpKind kind> void needUpdate() {
    constexpr size_t kMaster = operandIndex<kind>("master"), kState = operandIndex<kind>("state");
    constexpr size_t kWeight = resultIndex<kind>("weight");
    needStateShard(in(kMaster));
    needKnown(op_.operands[0], isComputeType(in(0).dtype), "gradients of f32, bf16 and f16");
    const bool hasHalves =
        op_.operands.size() > kState + 1 && positionOf(info_.operands, "weight") >= 0;
    for (size_t i = kMaster + 1; i < kState; ++i)
      needKnown(op_.operands[i], isComputeType(in(i).dtype), "moments of f32, bf16 and f16");
    if (hasHalves) {
      needKnown(op_.operands[kMaster], in(kMaster).dtype == DType::U16,
                "remainders of u16 beside weights");
      need(hasOut(kWeight) && out(kWeight) == in(kState + 1),
           "a result 'weight' of the type of operand 'weight'");
      return;
    }
    needKnown(op_.operands[kMaster], in(kMaster).dtype == DType::F32, "master weights of f32");
    if (hasOut(kWeight))
      needKnown(op_.results[kWeight], isComputeType(out(kWeight).dtype),
                "weights of f32, bf16 and f16");
  }

  // ---- 8-bit numbers ----

  void needSlot(size_t amax, Key key) {
    int64_t slot = attr(key);
    need(slot >= 0 && slot < in(amax).numel(), "amaxes of f32[n] with one for its slot");
  }
  /// Checks a quantisation that uses one amax. The result `copy`, if present, is the transposed
  /// copy.
  void needQuantized(size_t amax, size_t copy) {
    needSlot(amax, Key::slot);
    need(!hasOut(copy) || !op_.getBool(Key::transposed),
         "a copy that is the transpose of a result that is none");
  }

  /// Checks an epilogue by its form. A producer's second result is quantised transposed, with its
  /// own amax.
  void checkFused() {
    const OpInfo &producer = opInfo(op_.kind);
    bool makesTwo = producer.makes.find(' ') != std::string_view::npos;
    need(producer.formsOf(op_.epilogue) == EpilogueForms::Either || !op_.getBool(Key::transposed),
         "a result that is not transposed");
    if (op_.epilogue == Epilogue::Amax)
      return;
    if (op_.epilogue == Epilogue::QuantizeBlocks) {
      need(!makesTwo || cols(in(operandNamed("dy"))) % blockOf(ScaleBlocks::Rows128).cols == 0,
           "rows of dy in whole blocks of 128");
      return;
    }
    needQuantized(operandNamed("amax"), static_cast<size_t>(positionOf(info_.results, "t")));
    if (makesTwo)
      needSlot(operandNamed("amax"), Key::y_slot);
  }

  void needAmaxes(const Type &amax) {
    need(amax.numel() == countWeightScales(scope_.plan()),
         "amaxes of f32[n], one for each parameter of 8 bits");
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
