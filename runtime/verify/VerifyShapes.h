// What the checks of operands' and results' types share: each op has a function of ShapeCheck.
#pragma once

#include "runtime/base/StepState.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {

using Key = AttrKey;

inline int64_t cols(const Type &type) { return type.shape[type.rank - 1]; }
inline int64_t rows(const Type &type) { return type.numel() / cols(type); }

inline bool isData(const Type &type) {
  switch (type.dtype) {
  case DType::F64:
  case DType::F32:
  case DType::BF16:
  case DType::F16:
  case DType::F8E4M3:
  case DType::F8E5M2:
    return true;
  default:
    return false;
  }
}

inline bool isFloat8(const Type &type) {
  return type.dtype == DType::F8E4M3 || type.dtype == DType::F8E5M2;
}

/// A sum of squares that is there already.
inline bool isPartial(const Type &type) { return type.dtype == DType::F64 && type.numel() == 1; }

class ShapeCheck {
public:
  ShapeCheck(const Scope &scope, uint32_t index)
      : scope_(scope), index_(index), op_(scope.segment.ops[index]) {}

  void run();

private:
  const Type &in(size_t i) const { return scope_.value(op_.operands[i]).type; }
  const Type &out(size_t i) const { return scope_.value(op_.results[i]).type; }
  bool has(size_t i) const { return i < op_.operands.size(); }
  bool hasOut(size_t i) const { return i < op_.results.size(); }

  /// Reports `text` unless the condition holds. `types` names what is shown with its types.
  void need(bool condition, std::string_view text) {
    if (condition || hasFailed_)
      return;
    hasFailed_ = true; // an op has one finding; an op with many operands would make as many texts
    std::string types = typesOf(op_.operands);
    types += (types.empty() ? "-> " : " -> ") + typesOf(op_.results);
    scope_.add(Rule::Shape, index_, "'{}' needs {}; found {}", opInfo(op_).name, text, types);
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
  /// Checks the type of a value that is kept of a block, or is sent.
  void needKnown(ValueId id, bool isKnown, std::string_view what) {
    if (!isKnown)
      scope_.addValue(Rule::State, index_, id, "'%{}' has type {}; '{}' supports {}",
                      scope_.nameOf(id), dtypeName(scope_.value(id).type.dtype), opInfo(op_).name,
                      what);
  }
  /// Of a value whose extents follow from factors.
  void needOf(const Type &type, DType dtype, std::string_view text) {
    need(type.dtype == dtype, text);
  }
  void needState(const Type &type) {
    need(type.bytes() == static_cast<int64_t>(sizeof(StepState)),
         "step states of 128 bytes as operand and result");
  }
  /// Of ops that start gradients: with the loss scale.
  void needScaleState(size_t operand = 5) {
    if (has(operand))
      need(in(operand).bytes() == static_cast<int64_t>(sizeof(StepState)),
           "a step state of 128 bytes as the last operand");
  }
  void needData() {
    for (ValueId id : op_.operands)
      need(isData(scope_.value(id).type), "floating point operands");
    for (ValueId id : op_.results)
      need(isData(scope_.value(id).type), "floating point results");
  }

#define OP(enumerator, name, operands, results, traits, doc) void check##enumerator();
#include "runtime/plan/Ops.def"

  /// Equal factors have equal extents.
  void needExtents();
  void needCounts(const Type &counts, int64_t bound);
  void needPlaces(const Type &places);
  void needLoad(const Type &load, int64_t rows);
  void needRouter(const Type &logits, const Type &ids, const Type &weights);
  void norm(size_t first, size_t last);
  void normBwd(size_t statistics);
  void splitQkv(const Type &qkv, const Type &q, const Type &k, const Type &v);
  void latentHeads();
  void needWindow();
  void attentionPart(size_t first, size_t words, const Type &o, const Type &lse);
  void needPositions(size_t operand);
  void attentionQkv(const Type &qkv, size_t docs, const Type &o, const Type &lse);
  /// Of an op whose ranks have parts of the whole by their index.
  int64_t members() const { return scope_.plan().groupSize(op_.group); }
  void needLabels(size_t labels, size_t mask);
  void needValidCols(int64_t columns);
  void crossEntropy(size_t labels, size_t mask);
  void lmLoss();
  void checkJoined();
  void collective();
  void needWire();
  void stepOp();
  void addLosses();
  void optimizer(size_t moments);
  void quantized(const Type &x, size_t amax, size_t copy);
  void quantizedDelayed(const Type &x, size_t amax, size_t copy);
  void quantizedBlocks(size_t first = 0);
  void needPlain();
  void needSlot(size_t amax, Key key);
  void needNormOf(const Type &x, const Type &w, const Type &rstd);
  void needNormOfSum(const Type &sum, const Type &rstd);
  void needCentred(const Type &bias, const Type &mean);
  void needSwiGlu();
#define EPILOGUES(enumerator, makes, alone, delayed, amax, tensorwise, blocks)                     \
  const Type &madeBy##enumerator(size_t own);
  const Type &madeFirst(size_t own);
  void checkFused();
  void checkAlone();
  void needTurnedY(size_t amax, size_t y);
  bool isMagnitudes(const Type &type) const;
  void needPart(const Type &type, std::string_view what, int64_t Block::*numel);
  void needShard(const Type &type) { needPart(type, "shard", &Block::shard); }
  void needStateShard(const Type &type) {
    needPart(type, "shard of the state", &Block::stateShard);
  }
  void needTable(const Type &shard, int64_t columns, int64_t tableRows);

  const Scope &scope_;
  uint32_t index_;
  const Op &op_;
  bool hasFailed_ = false;
};

} // namespace shardc::plan::verifier
