// Types of operands and results. Extents follow from the op's factors (runtime/plan/Factors.h). A
// function for each op checks what factors cannot say: element types, ranks, and attributes. Data
// is floating point of any width unless a row says otherwise; matrices have their leading
// dimensions as rows, so [B,S,H] and [T,H] are the same matrix.
#include "runtime/verify/VerifyShapes.h"

#include <algorithm>

#include "runtime/plan/FactorExtents.h"
#include "runtime/plan/Landing.h"
#include "runtime/plan/Limits.h"

namespace shardc::plan::verifier {

void ShapeCheck::checkBatchLoad() {
  const Type &tokens = out(0);
  need(in(0).dtype == DType::I32 && in(0).rank == 2, "a feed of i32[slots, words]");
  need(tokens.rank == 2 && out(1) == tokens && out(3) == tokens && out(4) == tokens &&
           tokens.dtype == DType::I32,
       "tokens, labels, positions and docs of i32[B, S] as results");
  needOf(out(2), DType::F32, "a mask of f32[B, S] as a result");
  needOf(out(5), DType::I64, "samples of i64[B] as a result");
  if (hasOut(6))
    needOf(out(6), DType::I32, "places of i32[B, S] as a result");
  need(cols(in(0)) >= (hasOut(6) ? 6 : 5) * tokens.numel() + 2 * tokens.shape[0],
       "a feed of at least 5·B·S + 2·B words, and B·S of places");
  int64_t slots = op_.getInt(Key::slots);
  need(slots == 0 || slots == in(0).shape[0], "as many slots as its feed");
}

void ShapeCheck::checkMatMul() { needData(); }

void ShapeCheck::checkMatMulGelu() { needData(); }

void ShapeCheck::checkMatMulGeluBwd() { needData(); }

/// Results `first` to `last` are statistics.
void ShapeCheck::norm(size_t first, size_t last) {
  needData();
  for (size_t r = first; r <= last; ++r)
    needOf(out(r), DType::F32, "f32 statistics as results, one per row");
}

/// dy x w statistics... dres? -> dx, gradients of the vectors
void ShapeCheck::normBwd(size_t statistics) {
  needData();
  for (size_t i = 0; i < statistics; ++i)
    needOf(in(3 + i), DType::F32, "f32 statistics, one per row");
}

void ShapeCheck::needLabels(size_t labels, size_t mask) {
  needOf(in(labels), DType::I32, "i32 labels, one per row");
  needOf(in(mask), DType::F32, "an f32 mask, one element per row");
}

void ShapeCheck::crossEntropy(size_t labels, size_t mask) {
  need(isData(in(0)), "floating point logits");
  needLabels(labels, mask);
  needValidCols(cols(in(0)));
}

/// Of the vocabulary, of which this rank has so many columns.
void ShapeCheck::needValidCols(int64_t columns) {
  int64_t valid = op_.getInt(Key::valid_cols);
  need(valid >= 0 && valid <= columns * members(),
       "valid_cols between 0 and the number of columns of all members");
}

void ShapeCheck::lmLoss() {
  need(isData(in(0)) && isData(in(1)) && in(1).rank == 2, "floating point x[T,H] and w[V,H]");
  needLabels(2, 3);
  needOf(out(0), DType::F32, "f32 losses as a result, one per row");
  int64_t valid = op_.getInt(Key::valid_cols);
  need(valid >= 0 && valid <= rows(in(1)), "valid_cols between 0 and the number of rows of w");
}

void ShapeCheck::checkLmLossGrad() {
  lmLoss();
  needOf(in(4), DType::F32, "a token count of f32[1]");
  needScaleState();
  need(isData(out(1)) && isData(out(2)), "floating point gradients of x and w as results");
}

void ShapeCheck::checkView() {
  int64_t coef = op_.getInt(Key::coef), offset = op_.getInt(Key::offset);
  int64_t most = in(0).numel() - out(0).numel();
  IndexRange indices;
  if (coef != 0)
    indices = Indices(scope_.plan(), scope_.role).of(op_.group);
  need(in(0).dtype == out(0).dtype, "a result with its operand's element type");
  bool inside = true;
  // The start is affine in the coordinate, so both ends decide.
  for (int64_t member : {indices.first, indices.last})
    inside = inside && offset + coef * member >= 0 && offset + coef * member <= most;
  if (!inside)
    scope_.add(
        Rule::Shape, index_,
        "'view' takes {} elements from {} + {}*index (index up to {}); its operand has {} elements",
        out(0).numel(), offset, coef, indices.last, in(0).numel());
}

void ShapeCheck::checkPack() {
  const Plan &plan = scope_.plan();
  int64_t block = op_.getInt(Key::block);
  if (block < 0)
    return checkJoined();
  const std::vector<const Param *> &params =
      scope_.inspection.paramsOf(static_cast<int32_t>(block));
  need(out(0).numel() == plan.blocks[static_cast<size_t>(block)].numel,
       "a result with as many elements as its block");
  if (params.size() != op_.operands.size()) {
    scope_.add(Rule::Shape, index_, "'pack' has {} parts; block '{}' has {} parameters",
               op_.operands.size(), plan.blocks[static_cast<size_t>(block)].name, params.size());
    return;
  }
  for (size_t i = 0; i < params.size(); ++i)
    if (in(i).numel() != params[i]->type.numel() || in(i).dtype != out(0).dtype)
      scope_.addValue(Rule::Shape, index_, op_.operands[i],
                      "part {} of 'pack' is {}; parameter '{}' has {} elements of {}", i,
                      printType(in(i)), params[i]->name, params[i]->type.numel(),
                      dtypeName(out(0).dtype));
}

/// Parts of no block, one after the other.
void ShapeCheck::checkJoined() {
  int64_t numel = 0;
  for (size_t i = 0; i < op_.operands.size(); ++i) {
    numel += in(i).numel();
    need(in(i).dtype == out(0).dtype, "parts of the type of its result");
  }
  need(numel == out(0).numel(), "a result with as many elements as its parts");
}

void ShapeCheck::collective() {
  switch (collectiveKindOf(op_)) {
  case CollectiveKind::AllGather:
  case CollectiveKind::AllToAll:
  case CollectiveKind::Shift:
    need(in(0).dtype == out(0).dtype, "a result with its operand's element type");
    return;
  case CollectiveKind::ReduceScatter:
    need(isData(in(0)) && isData(out(0)), "floating point operands and results");
    needWire();
    need(dtypeBytes(out(0).dtype) >= dtypeBytes(in(0).dtype),
         "a result type at least as wide as its operand's");
    return;
  case CollectiveKind::AllReduce:
    need(isData(in(0)) && in(0) == out(0),
         "a floating point operand, and a result of the same type");
    needWire();
    return;
  case CollectiveKind::Send: // of any type; the other member's is compared where both meet
  case CollectiveKind::Recv:
    return;
  case CollectiveKind::AllReduceMax:
    need(isData(in(0)) && in(0) == out(0),
         "a floating point operand, and a result of the same type");
    needKnown(op_.operands[0], isComputeType(in(0).dtype) || in(0).dtype == DType::F64,
              "f32, bf16 and f64");
    return;
  }
}

/// What a sum over ranks is made of, and in what it is given.
void ShapeCheck::needWire() {
  for (ValueId id : {op_.operands[0], op_.results[0]}) {
    DType type = scope_.value(id).type.dtype;
    needKnown(id, isComputeType(type) || type == DType::F64, "sums of f32, bf16, f16 and f64");
  }
}

void ShapeCheck::needPart(const Type &type, std::string_view what, int64_t Block::*numel) {
  int64_t block = op_.getInt(Key::block);
  if (block < 0)
    return scope_.add(Rule::Shape, index_, "'{}' names no block", opInfo(op_).name), void();
  const Block &each = scope_.plan().blocks[static_cast<size_t>(block)];
  if (type.numel() != each.*numel)
    scope_.add(Rule::Shape, index_, "'{}' has {} elements; a {} of block '{}' has {}",
               opInfo(op_).name, type.numel(), what, each.name, each.*numel);
}

/// g master moments... state -> master moments... weight?
void ShapeCheck::optimizer(size_t moments) {
  needStateShard(in(1));
  needState(in(2 + moments));
  for (size_t i = 0; i < 2 + moments; ++i)
    need(isData(in(i)), "floating point gradient, master and moments");
  for (size_t i = 0; i <= moments; ++i)
    need(out(i) == in(1 + i), "master and moments as results, in their operands' types");
  need(!hasOut(1 + moments) || isData(out(1 + moments)), "a floating point weight as a result");
  needKnown(op_.operands[0], isComputeType(in(0).dtype), "gradients of f32, bf16 and f16");
  for (size_t i = 1; i < 2 + moments; ++i)
    needKnown(op_.operands[i], in(i).dtype == DType::F32, "master weights and moments of f32");
  if (hasOut(1 + moments))
    needKnown(op_.results[1 + moments], isComputeType(out(1 + moments).dtype),
              "weights of f32, bf16 and f16");
}

/// Ops that read the step state and leave it changed.
void ShapeCheck::stepOp() {
  needState(in(0));
  needState(out(0));
}

void ShapeCheck::addLosses() {
  stepOp();
  need(in(1).dtype == DType::F32, "f32 losses");
  needOf(in(2), DType::F32, "a token count of f32[1]");
}

void ShapeCheck::checkEmbedding() {
  need(in(0).dtype == DType::I32 && in(1).rank == 2 && isData(in(1)), "i32 ids and a table [V,H]");
  need(isData(out(0)), "floating point rows of the table as a result");
}

/// A shard of a block that holds one table with rows of `columns` elements, none of which a
/// boundary cuts; with `tableRows` rows unless that is negative.
void ShapeCheck::needTable(const Type &shard, int64_t columns, int64_t tableRows) {
  needShard(shard);
  int64_t block = op_.getInt(Key::block);
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

void ShapeCheck::checkEmbeddingShard() {
  need(in(0).dtype == DType::I32 && isData(in(1)), "i32 ids and a shard of a table");
  need(isData(out(0)), "a floating point result");
  needTable(in(1), cols(out(0)), op_.getInt(Key::table_rows));
}

void ShapeCheck::checkEmbeddingShardBwd() {
  need(isData(in(0)) && in(1).dtype == DType::I32, "i32 ids, one per row of dx");
  need(isData(out(0)), "a floating point result");
  needTable(out(0), cols(in(0)), -1);
}

void ShapeCheck::checkBiasAdd() { needData(); }

void ShapeCheck::checkAdd() { needData(); }

void ShapeCheck::checkGelu() { needData(); }

void ShapeCheck::checkSwiGlu() { needData(); }

void ShapeCheck::checkSquaredRelu() { needData(); }

void ShapeCheck::checkGeGlu() { needData(); }

void ShapeCheck::checkQuickGeGlu() { needData(); }

void ShapeCheck::checkRmsNorm() { norm(1, 1); }

void ShapeCheck::checkAddRmsNorm() { norm(2, 2); }

void ShapeCheck::checkLayerNorm() { norm(1, 2); }

void ShapeCheck::checkAddLayerNorm() { norm(2, 3); }

void ShapeCheck::checkDropout() {
  need(isData(in(0)) && isData(out(0)), "a floating point operand and result");
  needOf(in(1), DType::I64, "i64 samples whose number divides the rows of all members");
  need(!has(2) || in(2).dtype == DType::I32, "i32 positions, one for each row of all members");
}

void ShapeCheck::checkTokenCount() {
  need(in(0).dtype == DType::F32, "an f32 mask");
  needOf(out(0), DType::F32, "a result of f32[1]");
}

void ShapeCheck::checkCrossEntropy() {
  crossEntropy(1, 2);
  needOf(out(1), DType::F32, "f32 lse as a result, one per row");
  needOf(out(0), DType::F32, "f32 losses as a result, one per row");
}

void ShapeCheck::checkJoin() {
  need(isData(out(0)), "a floating point result");
  int64_t numel = 0;
  for (size_t i = 0; has(i); ++i) {
    need(in(i).dtype == out(0).dtype, "parts of its result's type");
    numel += in(i).numel();
  }
  need(numel == out(0).numel(), "a result with as many elements as its parts have together");
}

void ShapeCheck::checkVocabStats() {
  need(isData(in(0)), "floating point logits");
  needOf(in(1), DType::I32, "i32 labels, one per row");
  needValidCols(cols(in(0)));
  need(out(0).dtype == DType::F32 && out(0).rank == 2, "stats of f32[3, T] as a result");
}

void ShapeCheck::checkVocabLoss() {
  need(in(0).dtype == DType::F32 && in(0).rank == 2, "stats of f32[3·n, T]");
  needOf(in(1), DType::F32, "an f32 mask, one element per row of logits");
  needOf(out(0), DType::F32, "f32 losses as a result, one per row of logits");
  needOf(out(1), DType::F32, "f32 lse as a result, one per row of logits");
}

void ShapeCheck::checkCrossEntropyBwd() {
  crossEntropy(2, 3);
  needOf(in(1), DType::F32, "f32 lse, one per row");
  needOf(in(4), DType::F32, "a token count of f32[1]");
  needScaleState();
  need(isData(out(0)), "a floating point gradient as its result");
}

void ShapeCheck::checkLmLoss() { lmLoss(); }

void ShapeCheck::checkEmbeddingBwd() {
  need(isData(in(0)) && in(1).dtype == DType::I32, "i32 ids, one per row of dx");
  need(isData(out(0)) && out(0).rank == 2, "a table with the columns of dx as its result");
}

void ShapeCheck::checkReduceRows() { needData(); }

void ShapeCheck::checkGeluBwd() { needData(); }

void ShapeCheck::checkSwiGluBwd() { needData(); }

void ShapeCheck::checkSquaredReluBwd() { needData(); }

void ShapeCheck::checkGeGluBwd() { needData(); }

void ShapeCheck::checkQuickGeGluBwd() { needData(); }

void ShapeCheck::checkRmsNormBwd() { normBwd(1); }

void ShapeCheck::checkLayerNormBwd() { normBwd(2); }

void ShapeCheck::checkCast() { needData(); }

void ShapeCheck::checkFill() {} // any type

void ShapeCheck::checkAllGather() { collective(); }

void ShapeCheck::checkReduceScatter() {
  collective();
  if (!hasOut(1))
    return;
  needOf(out(1), DType::F64, "a sum of squares of f64[1] as a result");
  need(isComputeType(out(0).dtype), "a scattered result of f32, bf16 or f16 to square");
  need(std::ranges::none_of(op_.ties, [](const Tie &tie) { return tie.result == 1; }),
       "a sum of squares without ties");
  if (!isExchanged(scope_.plan(), scope_.segment, op_))
    scope_.add(Rule::Shape, index_,
               "'reduce_scatter' can return a sum of squares only if its ranks exchange parts and "
               "add them themselves");
  needStateShard(out(0));
}

void ShapeCheck::checkAllReduce() { collective(); }

void ShapeCheck::checkSend() { collective(); }

void ShapeCheck::checkRecv() { collective(); }

void ShapeCheck::checkAllReduceMax() { collective(); }

void ShapeCheck::checkAllToAll() { collective(); }

void ShapeCheck::checkShift() { collective(); }

void ShapeCheck::checkSumSquares() {
  needOf(out(0), DType::F64, "a result of f64[1]");
  for (size_t i = 0; has(i); ++i)
    need(isPartial(in(i)) || (isData(in(i)) && in(i).dtype != DType::F64),
         "shards of at most 32 bits per element, or sums of squares of f64[1]");
}

void ShapeCheck::checkAdamW() { optimizer(2); }

void ShapeCheck::checkSgdMomentum() { optimizer(1); }

void ShapeCheck::checkSgd() { optimizer(0); }

void ShapeCheck::checkInitBlock() {
  need(isData(out(0)), "a floating point result");
  needKnown(op_.results[0], isComputeType(out(0).dtype), "f32, bf16 and f16");
  needStateShard(out(0));
}

void ShapeCheck::checkLossAdd() { addLosses(); }

void ShapeCheck::checkEvalAdd() { addLosses(); }

void ShapeCheck::checkStepBegin() { stepOp(); }

void ShapeCheck::checkStepPack() {
  needState(in(0));
  needOf(in(1), DType::F64, "a sum of squares of f64[1]");
  need(!isData(in(2)), "an integer stop flag");
  needOf(out(0), DType::F64, "partial sums of f64[4] as a result");
}

void ShapeCheck::checkStepFinish() {
  stepOp();
  needOf(in(1), DType::F64, "partial sums of f64[4]");
  needOf(in(2), DType::F64, "a sum of squares of f64[1]");
}

void ShapeCheck::checkEvalBegin() { stepOp(); }

void ShapeCheck::checkEvalPack() {
  needState(in(0));
  needOf(out(0), DType::F64, "partial sums of f64[2] as a result");
}

void ShapeCheck::checkEvalFinish() {
  stepOp();
  needOf(in(1), DType::F64, "partial sums of f64[2]");
}

void ShapeCheck::checkStepReset() { needState(out(0)); }

void ShapeCheck::checkSnapshot() { need(in(0) == out(0), "a result of its operand's type"); }

/// What operand or result i is called in the op's row.
std::string_view nameInRow(std::string_view names, size_t i) {
  for (; i > 0; --i)
    names.remove_prefix(std::min(names.find(' '), names.size() - 1) + 1);
  names = names.substr(0, names.find(' '));
  return names.substr(0, names.find_first_of("?*"));
}

void ShapeCheck::needExtents() {
  std::array<const Type *, kOperandsOfOpMax> operands{};
  std::array<const Type *, kResultsOfOpMax> results{};
  size_t operandCount = std::min(op_.operands.size(), operands.size());
  bool isCollective = opInfo(op_.kind).traits == OpTraits::Collective;
  for (size_t i = 0; i < operandCount; ++i)
    operands[i] = &in(i);
  for (size_t r = 0; r < op_.results.size(); ++r)
    results[r] = &out(r);
  FactorExtents extents(op_, std::span(operands.data(), operandCount),
                        std::span(results.data(), op_.results.size()),
                        isCollective ? scope_.plan().membersOf(op_) : members());
  if (!extents.fault())
    return;
  const ExtentFault &fault = *extents.fault();
  const OpInfo &info = opInfo(op_);
  std::string_view name = nameInRow(fault.isOperand ? info.operands : info.results, fault.index);
  bool isNumber = fault.dims == std::to_string(fault.needed);
  std::string needed = isNumber           ? std::string()
                       : fault.needed > 0 ? fmt::format(" = {}", fault.needed)
                                          : " of a size that fits";
  need(false, fmt::format("{}{} in {} '{}' by its factors '{}'", fault.dims, needed,
                          fault.isOperand ? "operand" : "result", name, factorsOf(op_).text));
}

void ShapeCheck::run() {
  if (op_.epilogue != Epilogue::None)
    checkFused();
  else
    checkAlone();
  if (!hasFailed_)
    needExtents();
}

/// By the kind of an op without an epilogue.
void ShapeCheck::checkAlone() {
  switch (op_.kind) {
#define OP(enumerator, name, operands, results, traits, doc)                                       \
  case OpKind::enumerator:                                                                         \
    check##enumerator();                                                                           \
    break;
#include "runtime/plan/Ops.def"
  }
}

void checkShapes(const Scope &scope) {
  for (uint32_t i = 0; i < scope.segment.ops.size() && !scope.inspection.isFull(); ++i)
    ShapeCheck(scope, i).run();
}

} // namespace shardc::plan::verifier
