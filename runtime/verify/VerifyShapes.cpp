// Types of operands and results, op by op. Data is floating point of any width unless a row says
// otherwise; matrices have their leading dimensions as rows, so [B,S,H] and [T,H] are the same
// matrix.
#include "runtime/verify/VerifyShapes.h"

#include <algorithm>

#include "runtime/plan/Landing.h"
#include "runtime/plan/Limits.h"

namespace shardc::plan::verifier {

void ShapeCheck::checkBatchLoad() {
  const Type &tokens = out(0);
  need(in(0).dtype == DType::I32 && in(0).rank == 2, "a feed of i32[slots, words]");
  need(tokens.rank == 2 && out(1) == tokens && out(3) == tokens && out(4) == tokens &&
           tokens.dtype == DType::I32,
       "tokens, labels, positions and docs of i32[B, S] as results");
  needVector(out(2), DType::F32, tokens.numel(), "a mask of f32[B, S] as a result");
  needVector(out(5), DType::I64, tokens.shape[0], "samples of i64[B] as a result");
  if (hasOut(6))
    needVector(out(6), DType::I32, tokens.numel(), "places of i32[B, S] as a result");
  need(cols(in(0)) >= (hasOut(6) ? 6 : 5) * tokens.numel() + 2 * tokens.shape[0],
       "a feed of at least 5·B·S + 2·B words, and B·S of places");
  int64_t slots = op_.getInt(Key::slots);
  need(slots == 0 || slots == in(0).shape[0], "as many slots as its feed");
}

/// c = op(a)·op(b), and what it is made of.
void ShapeCheck::product() {
  needData();
  int64_t m = rows(in(0)), k = cols(in(0)), k2 = rows(in(1)), n = cols(in(1));
  if (op_.getBool(Key::trans_a))
    std::swap(m, k);
  if (op_.getBool(Key::trans_b))
    std::swap(k2, n);
  need(k == k2, "factors whose inner dimensions are equal");
  need(rows(out(0)) == m && cols(out(0)) == n,
       "a result with the rows of the first factor and the columns of the second");
}

void ShapeCheck::checkMatMul() {
  product();
  need(!has(2) || in(2).numel() == cols(out(0)), "a bias with one element per column");
}

void ShapeCheck::checkMatMulGelu() {
  product();
  need(!has(2) || in(2).numel() == cols(out(0)), "a bias with one element per column");
  need(sameMatrix(out(0), out(1)), "results y and x of the same shape");
}

void ShapeCheck::checkMatMulGeluBwd() {
  product();
  need(sameMatrix(in(2), out(0)), "x in the shape of its gradient");
}

/// y and statistics of the norm of x with `vectors` weights after x.
void ShapeCheck::norm(size_t x, size_t vectors, size_t y, size_t statistics) {
  needData();
  need(sameMatrix(in(x), out(y)), "a result in the shape of its operand");
  for (size_t i = 1; i <= vectors; ++i)
    need(in(x + i).numel() == cols(in(x)), "weights with one element per column");
  for (size_t i = 1; i <= statistics; ++i)
    needVector(out(y + i), DType::F32, rows(in(x)), "f32 statistics as results, one per row");
}

/// dy x w statistics... dres? -> dx, gradients of the vectors
void ShapeCheck::normBwd(size_t statistics, size_t vectors) {
  needData();
  const Type &x = in(1);
  need(sameMatrix(in(0), x) && sameMatrix(out(0), x), "gradients in the shape of x");
  need(in(2).numel() == cols(x), "weights with one element per column");
  for (size_t i = 0; i < statistics; ++i)
    needVector(in(3 + i), DType::F32, rows(x), "f32 statistics, one per row");
  need(!has(3 + statistics) || sameMatrix(in(3 + statistics), x),
       "a residual's gradient in the shape of x");
  for (size_t i = 1; i <= vectors; ++i)
    need(out(i).numel() == cols(x), "gradients of weights with one element per column");
}

void ShapeCheck::needLabels(size_t labels, size_t mask, int64_t count) {
  needVector(in(labels), DType::I32, count, "i32 labels, one per row");
  needVector(in(mask), DType::F32, count, "an f32 mask, one element per row");
}

void ShapeCheck::crossEntropy(size_t labels, size_t mask) {
  need(isData(in(0)), "floating point logits");
  needLabels(labels, mask, rows(in(0)));
  needValidCols(cols(in(0)));
}

/// Of the vocabulary, of which this rank has so many columns.
void ShapeCheck::needValidCols(int64_t columns) {
  int64_t valid = op_.getInt(Key::valid_cols);
  need(valid >= 0 && valid <= columns * members(),
       "valid_cols between 0 and the number of columns of all members");
}

void ShapeCheck::lmLoss() {
  need(isData(in(0)) && isData(in(1)) && in(1).rank == 2 && cols(in(0)) == cols(in(1)),
       "x[T,H] and w[V,H] with the same number of columns");
  needLabels(2, 3, rows(in(0)));
  needVector(out(0), DType::F32, rows(in(0)), "f32 losses as a result, one per row");
  int64_t valid = op_.getInt(Key::valid_cols);
  need(valid >= 0 && valid <= rows(in(1)), "valid_cols between 0 and the number of rows of w");
}

void ShapeCheck::checkLmLossGrad() {
  lmLoss();
  needVector(in(4), DType::F32, 1, "a token count of f32[1]");
  needScaleState();
  need(sameMatrix(out(1), in(0)) && sameMatrix(out(2), in(1)) && isData(out(1)) && isData(out(2)),
       "gradients in the shapes of x and w as results");
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
  int64_t members = scope_.plan().membersOf(op_);
  switch (collectiveKindOf(op_)) {
  case CollectiveKind::AllGather:
    need(in(0).dtype == out(0).dtype, "a result with its operand's element type");
    if (out(0).numel() != in(0).numel() * members)
      scope_.add(Rule::Shape, index_,
                 "'all_gather' gives {} elements; {} ranks with shards of {} have {}",
                 out(0).numel(), members, in(0).numel(), in(0).numel() * members);
    return;
  case CollectiveKind::ReduceScatter:
    need(isData(in(0)) && isData(out(0)), "floating point operands and results");
    needWire();
    need(dtypeBytes(out(0).dtype) >= dtypeBytes(in(0).dtype),
         "a result type at least as wide as its operand's");
    if (in(0).numel() != out(0).numel() * members)
      scope_.add(Rule::Shape, index_,
                 "'reduce_scatter' takes {} elements; {} ranks with shards of {} have {}",
                 in(0).numel(), members, out(0).numel(), out(0).numel() * members);
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
  case CollectiveKind::AllToAll:
    need(in(0).dtype == out(0).dtype && in(0).numel() == out(0).numel(),
         "a result with its operand's elements and type");
    if (in(0).numel() % members != 0)
      scope_.add(Rule::Shape, index_,
                 "'all_to_all' takes {} elements; they need to be equal parts for {} ranks",
                 in(0).numel(), members);
    return;
  case CollectiveKind::Shift:
    need(in(0).dtype == out(0).dtype && in(0).numel() == out(0).numel(),
         "a result with its operand's elements and type");
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
    return scope_.add(Rule::Shape, index_, "'{}' names no block", opInfo(op_.kind).name), void();
  const Block &each = scope_.plan().blocks[static_cast<size_t>(block)];
  if (type.numel() != each.*numel)
    scope_.add(Rule::Shape, index_, "'{}' has {} elements; a {} of block '{}' has {}",
               opInfo(op_.kind).name, type.numel(), what, each.name, each.*numel);
}

/// g master moments... state -> master moments... weight?
void ShapeCheck::optimizer(size_t moments) {
  needStateShard(in(1));
  needState(in(2 + moments));
  for (size_t i = 0; i < 2 + moments; ++i)
    need(isData(in(i)) && in(i).numel() == in(1).numel(),
         "gradient, master and moments of the same length");
  for (size_t i = 0; i <= moments; ++i)
    need(out(i) == in(1 + i), "master and moments as results, in their operands' types");
  need(!hasOut(1 + moments) ||
           (isData(out(1 + moments)) && out(1 + moments).numel() == in(1).numel()),
       "a floating point weight of the master's length as a result");
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
  needVector(in(2), DType::F32, 1, "a token count of f32[1]");
}

void ShapeCheck::checkEmbedding() {
  need(in(0).dtype == DType::I32 && in(1).rank == 2 && isData(in(1)), "i32 ids and a table [V,H]");
  need(rows(out(0)) == in(0).numel() && cols(out(0)) == cols(in(1)) && isData(out(0)),
       "one row of the table per id as its result");
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
  need(rows(out(0)) == in(0).numel() && isData(out(0)), "one row per id as its result");
  needTable(in(1), cols(out(0)), op_.getInt(Key::table_rows));
}

void ShapeCheck::checkEmbeddingShardBwd() {
  need(isData(in(0)) && in(1).dtype == DType::I32 && in(1).numel() == rows(in(0)),
       "i32 ids, one per row of dx");
  need(isData(out(0)), "a floating point result");
  needTable(out(0), cols(in(0)), -1);
}

void ShapeCheck::checkBiasAdd() {
  needData();
  need(sameMatrix(in(0), out(0)) && in(1).numel() == cols(in(0)),
       "a bias with one element per column");
}

void ShapeCheck::checkAdd() {
  needData();
  need(sameMatrix(in(0), in(1)) && sameMatrix(in(0), out(0)),
       "operands and a sum of the same shape");
}

void ShapeCheck::checkGelu() {
  needData();
  need(sameMatrix(in(0), out(0)), "a result in the shape of its operand");
}

void ShapeCheck::checkSwiGlu() {
  needData();
  need(rows(in(0)) == rows(out(0)) && cols(in(0)) == 2 * cols(out(0)),
       "operand rows twice as long as the result's");
}

void ShapeCheck::checkSquaredRelu() { checkGelu(); }

void ShapeCheck::checkGeGlu() { checkSwiGlu(); }

void ShapeCheck::checkRmsNorm() { norm(0, 1, 0, 1); }

void ShapeCheck::checkAddRmsNorm() {
  need(sameMatrix(in(0), in(1)) && sameMatrix(in(0), out(0)),
       "operands and a sum of the same shape");
  norm(1, 1, 1, 1);
}

void ShapeCheck::checkLayerNorm() { norm(0, 2, 0, 2); }

void ShapeCheck::checkAddLayerNorm() {
  need(sameMatrix(in(0), in(1)) && sameMatrix(in(0), out(0)),
       "operands and a sum of the same shape");
  norm(1, 2, 1, 2);
}

void ShapeCheck::checkDropout() {
  need(isData(in(0)) && isData(out(0)) && sameMatrix(in(0), out(0)),
       "a result in the shape of its operand");
  need(in(1).dtype == DType::I64 && rows(in(0)) * members() % in(1).numel() == 0,
       "i64 samples whose number divides the rows of all members");
  need(!has(2) || (in(2).dtype == DType::I32 && in(2).numel() == rows(in(0)) * members()),
       "i32 positions, one for each row of all members");
}

void ShapeCheck::checkTokenCount() {
  need(in(0).dtype == DType::F32, "an f32 mask");
  needVector(out(0), DType::F32, 1, "a result of f32[1]");
}

void ShapeCheck::checkCrossEntropy() {
  crossEntropy(1, 2);
  needVector(out(1), DType::F32, rows(in(0)), "f32 lse as a result, one per row");
  needVector(out(0), DType::F32, rows(in(0)), "f32 losses as a result, one per row");
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
  needVector(in(1), DType::I32, rows(in(0)), "i32 labels, one per row");
  needValidCols(cols(in(0)));
  need(out(0).dtype == DType::F32 && out(0).rank == 2 && out(0).shape[0] == 3 &&
           out(0).shape[1] == rows(in(0)),
       "stats of f32[3, T] as a result");
}

void ShapeCheck::checkVocabLoss() {
  const Type &stats = in(0);
  bool has = stats.dtype == DType::F32 && stats.rank == 2 && stats.shape[0] % 3 == 0;
  need(has, "stats of f32[3·n, T]");
  needVector(in(1), DType::F32, cols(stats), "an f32 mask, one element per row of logits");
  needVector(out(0), DType::F32, cols(stats), "f32 losses as a result, one per row of logits");
  needVector(out(1), DType::F32, cols(stats), "f32 lse as a result, one per row of logits");
}

void ShapeCheck::checkCrossEntropyBwd() {
  crossEntropy(2, 3);
  needVector(in(1), DType::F32, rows(in(0)), "f32 lse, one per row");
  needVector(in(4), DType::F32, 1, "a token count of f32[1]");
  needScaleState();
  need(sameMatrix(in(0), out(0)) && isData(out(0)),
       "a gradient in the shape of the logits as its result");
}

void ShapeCheck::checkLmLoss() { lmLoss(); }

void ShapeCheck::checkEmbeddingBwd() {
  need(isData(in(0)) && in(1).dtype == DType::I32 && in(1).numel() == rows(in(0)),
       "i32 ids, one per row of dx");
  need(isData(out(0)) && out(0).rank == 2 && cols(out(0)) == cols(in(0)),
       "a table with the columns of dx as its result");
}

void ShapeCheck::checkReduceRows() {
  needData();
  need(out(0).numel() == cols(in(0)), "a result with one element per column");
}

void ShapeCheck::checkGeluBwd() {
  needData();
  need(sameMatrix(in(0), in(1)) && sameMatrix(in(0), out(0)),
       "operands and a result of the same shape");
}

void ShapeCheck::checkSwiGluBwd() {
  needData();
  need(rows(in(0)) == rows(in(1)) && cols(in(1)) == 2 * cols(in(0)) && sameMatrix(in(1), out(0)),
       "dy with rows half as long as those of x, and a result in the shape of x");
  if (op_.results.size() > 1)
    need(sameMatrix(in(0), out(1)) && isData(out(1)), "y in the shape of dy as a result");
}

void ShapeCheck::checkSquaredReluBwd() { checkGeluBwd(); }

void ShapeCheck::checkGeGluBwd() { checkSwiGluBwd(); }

void ShapeCheck::checkRmsNormBwd() {
  normBwd(1, 1);
  if (op_.results.size() > 2)
    need(sameMatrix(in(0), out(2)) && isData(out(2)), "y in the shape of dy as a result");
}

void ShapeCheck::checkLayerNormBwd() { normBwd(2, 2); }

void ShapeCheck::checkCast() {
  needData();
  need(in(0).numel() == out(0).numel(), "a result with as many elements as its operand");
}

void ShapeCheck::checkFill() {} // any type

void ShapeCheck::checkAllGather() { collective(); }

void ShapeCheck::checkReduceScatter() {
  collective();
  if (!hasOut(1))
    return;
  needVector(out(1), DType::F64, 1, "a sum of squares of f64[1] as a result");
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
  needVector(out(0), DType::F64, 1, "a result of f64[1]");
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
  needVector(in(1), DType::F64, 1, "a sum of squares of f64[1]");
  need(!isData(in(2)), "an integer stop flag");
  needVector(out(0), DType::F64, kStepPartialCount, "partial sums of f64[4] as a result");
}

void ShapeCheck::checkStepFinish() {
  stepOp();
  needVector(in(1), DType::F64, kStepPartialCount, "partial sums of f64[4]");
  needVector(in(2), DType::F64, 1, "a sum of squares of f64[1]");
}

void ShapeCheck::checkEvalBegin() { stepOp(); }

void ShapeCheck::checkEvalPack() {
  needState(in(0));
  needVector(out(0), DType::F64, kEvalPartialCount, "partial sums of f64[2] as a result");
}

void ShapeCheck::checkEvalFinish() {
  stepOp();
  needVector(in(1), DType::F64, kEvalPartialCount, "partial sums of f64[2]");
}

void ShapeCheck::checkStepReset() { needState(out(0)); }

void ShapeCheck::checkSnapshot() { need(in(0) == out(0), "a result of its operand's type"); }

void ShapeCheck::run() {
  switch (op_.kind) {
#define OP(enumerator, name, operands, results, traits, doc)                                       \
  case OpKind::enumerator:                                                                         \
    return check##enumerator();
#include "runtime/plan/Ops.def"
  }
}

void checkShapes(const Scope &scope) {
  for (uint32_t i = 0; i < scope.segment.ops.size() && !scope.inspection.isFull(); ++i)
    ShapeCheck(scope, i).run();
}

} // namespace shardc::plan::verifier
