// Products of factors of 8 bits: types of operands and results, and that each factor comes with the
// scale that it was quantised with, in the segment that made both or through cells.
#include "runtime/base/Float8.h"
#include "runtime/plan/WeightScales.h"
#include "runtime/verify/VerifyShapes.h"

namespace shardc::plan::verifier {

namespace {

bool isOneScale(const Type &scale) {
  return scale.rank == 1 && scale.dtype == DType::F32 && scale.numel() == 1;
}

bool isScaleOfBlocks(const Type &scale, const Type &factor) {
  return scale.rank == 2 && (scale.dtype == DType::F32 || scale.dtype == DType::U8) &&
         blocksOf(scale.dtype == DType::U8, {rows(scale), cols(scale)},
                  {rows(factor), cols(factor)});
}

} // namespace

void ShapeCheck::checkMatMulScaled() {
  const Type &a = in(0), &b = in(1);
  need(isFloat8(a) && isFloat8(b) && (a.dtype == DType::F8E4M3 || b.dtype == DType::F8E4M3),
       "factors of f8e4m3 and f8e5m2, one of f8e4m3 at least");
  need(isData(out(0)) && !isFloat8(out(0)), "a floating point result of 16 bits or more");
  bool isOfBlocks = isScaleOfBlocks(in(2), a) && isScaleOfBlocks(in(3), b);
  bool isOfAll = isOneScale(in(2)) && isOneScale(in(3));
  need(isOfAll || (isOfBlocks && in(2).dtype == in(3).dtype),
       "scales of f32[1], or of blocks of both factors");
  need(!has(4) || isData(in(4)), "a floating point bias");
}

void ShapeCheck::checkAmax() {
  need(isData(in(0)) && !isFloat8(in(0)), "a floating point operand of 16 bits or more");
  needOf(out(0), DType::F32, "a result of f32[1]");
}

/// What has the type of x and is quantised by one magnitude, with the copy as result `copy`.
void ShapeCheck::quantized(const Type &x, size_t amax, size_t copy) {
  const Type &q = out(0);
  need(isData(x) && !isFloat8(x), "a floating point operand of 16 bits or more");
  needSlot(amax, Key::slot);
  needOf(out(1), DType::F32, "a scale of f32[1]");
  need(isFloat8(q), "a result of 8 bits");
  need(!hasOut(copy) || (!op_.getBool(Key::transposed) && out(copy).dtype == q.dtype),
       "a copy that is the transpose of a result that is none");
}

void ShapeCheck::needSlot(size_t amax, Key key) {
  int64_t slot = op_.getInt(key);
  need(in(amax).dtype == DType::F32 && in(amax).rank == 1 && slot >= 0 && slot < in(amax).numel(),
       "magnitudes of f32[n] with one for its slot");
}

/// The same by the magnitude that it is expected to have, in an op that looks at it.
void ShapeCheck::quantizedDelayed(const Type &x, size_t amax, size_t copy) {
  quantized(x, amax, copy);
  const Type &seen = in(amax + 1);
  need(seen == in(amax) && out(2) == seen, "as many magnitudes that are seen as are expected");
}

void ShapeCheck::checkQuantize() { quantized(in(0), 1, 2); }

void ShapeCheck::checkQuantizeDelayed() { quantizedDelayed(in(0), 1, 3); }

// ---- quantised where they are made ----

/// Of ops whose kernels have whole rows, or both forms anyway.
void ShapeCheck::needPlain() {
  need(!op_.getBool(Key::transposed), "a result that is not transposed");
}

void ShapeCheck::needNormOf(const Type &x, const Type &w, const Type &rstd) {
  need(isData(x) && !isFloat8(x), "a floating point operand of 16 bits or more");
  need(isData(w), "weights with one element per column");
  needOf(rstd, DType::F32, "f32 statistics, one per row");
}

void ShapeCheck::needNormOfSum(const Type &sum, const Type &rstd) {
  need(isData(in(0)) && isData(in(1)), "floating point operands");
  needNormOf(sum, in(2), rstd);
}

/// What layernorm has besides.
void ShapeCheck::needCentred(const Type &bias, const Type &mean) {
  need(isData(bias), "biases with one element per column");
  needOf(mean, DType::F32, "f32 statistics, one per row");
}

void ShapeCheck::needSwiGlu() {
  need(isData(in(0)) && !isFloat8(in(0)),
       "rows of gate and up, in floating point of 16 bits or more");
}

/// The second result that an op makes, which is quantised turned, by a magnitude of its own.
void ShapeCheck::needTurnedY(size_t amax, size_t y) {
  needSlot(amax, Key::y_slot);
  need(isData(in(0)) && isFloat8(out(y)), "y of 8 bits as the transpose of dy");
  needOf(out(y + 1), DType::F32, "a scale of f32[1]");
}

/// A result of 8 bits and its scales behind it.
void ShapeCheck::quantizedBlocks(size_t first) {
  needPlain();
  need(isFloat8(out(first)), "a result of 8 bits");
  need(out(first + 1).dtype == DType::F32 && out(first + 1).rank == 2, "scales of f32[C/128,R]");
}

// Each checks operands and results of an op with an epilogue, of which its own results begin at
// `own`, and gives the type of what it makes first.

const Type &ShapeCheck::madeByRmsNorm(size_t own) {
  needNormOf(in(0), in(1), out(own));
  return in(0);
}

const Type &ShapeCheck::madeByAddRmsNorm(size_t own) {
  needNormOfSum(out(own), out(own + 1));
  return out(own);
}

const Type &ShapeCheck::madeByLayerNorm(size_t own) {
  needNormOf(in(0), in(1), out(own + 1));
  needCentred(in(2), out(own));
  return in(0);
}

const Type &ShapeCheck::madeByAddLayerNorm(size_t own) {
  needNormOfSum(out(own), out(own + 2));
  needCentred(in(3), out(own + 1));
  return out(own);
}

const Type &ShapeCheck::madeByRmsNormAgain(size_t) {
  needNormOf(in(0), in(1), in(2));
  return in(0);
}

const Type &ShapeCheck::madeByLayerNormAgain(size_t) {
  needNormOf(in(0), in(1), in(4));
  needCentred(in(2), in(3));
  return in(0);
}

const Type &ShapeCheck::madeBySwiGlu(size_t) {
  needSwiGlu();
  return in(0);
}

const Type &ShapeCheck::madeBySwiGluBwd(size_t) {
  need(isData(in(0)) && isData(in(1)) && !isFloat8(in(0)) && !isFloat8(in(1)),
       "floating point operands of 16 bits or more");
  need(op_.epilogue != Epilogue::QuantizeBlocks ||
           cols(in(0)) % blockOf(ScaleBlocks::Rows128).cols == 0,
       "rows of dy in whole blocks of 128");
  return in(1);
}

const Type &ShapeCheck::madeByGeGlu(size_t own) { return madeBySwiGlu(own); }

const Type &ShapeCheck::madeByGeGluBwd(size_t own) { return madeBySwiGluBwd(own); }

const Type &ShapeCheck::madeBySquaredRelu(size_t) {
  need(isData(in(0)) && !isFloat8(in(0)), "a floating point operand of 16 bits or more");
  return in(0);
}

const Type &ShapeCheck::madeBySquaredReluBwd(size_t) {
  need(isData(in(0)) && isData(in(1)) && !isFloat8(in(0)) && !isFloat8(in(1)),
       "floating point operands of 16 bits or more");
  return in(1);
}

const Type &ShapeCheck::madeFirst(size_t own) {
#define EPILOGUES(enumerator, makes, alone, delayed, amax, tensorwise, blocks)                     \
  if (op_.kind == OpKind::enumerator)                                                              \
    return madeBy##enumerator(own);
#include "runtime/plan/Ops.def"
  return in(0); // of an op that takes no epilogue
}

/// By the forms of its epilogue.
void ShapeCheck::checkFused() {
  const OpInfo &info = opInfo(op_), &maker = opInfo(op_.kind);
  EpilogueForms forms = maker.formsOf(op_.epilogue);
  bool makesTwo = maker.makes.find(' ') != std::string_view::npos;
  size_t behind = maker.operandsMax; // operands of the epilogue
  auto at = [&](std::string_view result) {
    return static_cast<size_t>(positionOf(info.results, result));
  };
  if (forms != EpilogueForms::Either)
    needPlain();
  switch (op_.epilogue) {
  case Epilogue::None:
    return;
  case Epilogue::QuantizeDelayed:
    quantizedDelayed(madeFirst(3), behind, at("t"));
    break;
  case Epilogue::Quantize:
    quantized(madeFirst(2), behind, at("t"));
    break;
  case Epilogue::Amax:
    madeFirst(0);
    return needOf(out(at("m")), DType::F32,
                  makesTwo ? "magnitudes of f32[2]" : "a magnitude of f32[1]");
  case Epilogue::QuantizeBlocks:
    madeFirst(2);
    quantizedBlocks(0);
    if (forms != EpilogueForms::Both)
      return;
    quantizedBlocks(at("t"));
    if (makesTwo)
      quantizedBlocks(at("yt"));
    return need(out(0).dtype == out(at("t")).dtype, "both forms of dx in one type");
  }
  if (makesTwo)
    needTurnedY(behind, at("yt"));
}

void ShapeCheck::checkRmsNormAgain() { madeByRmsNormAgain(0); }

void ShapeCheck::checkLayerNormAgain() { madeByLayerNormAgain(0); }

void ShapeCheck::checkAmaxUpdate() {
  const Type &history = in(0), &seen = in(1);
  need(history.dtype == DType::F32 && history.rank == 2, "a history of f32[len,n]");
  needOf(seen, DType::F32, "magnitudes of f32[n]");
  needState(in(2));
  need(out(0) == history && out(1) == seen && out(2) == seen, "results of the same types");
}

void ShapeCheck::checkAmaxShard() {
  needStateShard(in(0));
  need(in(0).dtype == DType::F32, "a shard of f32");
  need(in(1) == out(0) && isMagnitudes(in(1)),
       "magnitudes of f32[n], one for each parameter of 8 bits");
}

void ShapeCheck::checkQuantizeShard() {
  needStateShard(in(0));
  needStateShard(out(0));
  need(in(0).dtype == DType::F32 && out(0).dtype == DType::F8E4M3,
       "a shard of f32, and one of f8e4m3");
  need(isMagnitudes(in(1)), "magnitudes of f32[n], one for each parameter of 8 bits");
}

void ShapeCheck::checkWeightScales() {
  const Type &amax = in(0), &scales = out(0);
  need(isMagnitudes(amax), "magnitudes of f32[n], one for each parameter of 8 bits");
  need(scales == Type::of(DType::F32, {amax.numel(), kScaleStride}), "scales of f32[n,4]");
}

bool ShapeCheck::isMagnitudes(const Type &type) const {
  return type.dtype == DType::F32 && type.rank == 1 &&
         type.numel() == countWeightScales(scope_.plan());
}

void ShapeCheck::checkQuantizeBlocks() {
  need(isData(in(0)) && !isFloat8(in(0)), "a floating point operand of 16 bits or more");
  need(isFloat8(out(0)), "a result of 8 bits");
  need(isScaleOfBlocks(out(1), out(0)), "scales of f32[C/128,R], f32[R/128,C/128] or u8[R,C/32]");
}

namespace {

/// Operands of `matmul_scaled`: two factors, and the scale of each as many operands on.
constexpr size_t kFactors = 2;

/// A pair of cells from which a segment takes a factor and its scale.
struct CellPair {
  uint32_t factor, scale;
  int64_t factorShift, scaleShift;
  Spot at;
};

/// A cell from which a segment takes a weight, of which it has the scale.
struct CellOfWeight {
  uint32_t factor;
  int64_t row; ///< of the scales
  Spot at;
};

class ScaleOfFactorCheck {
public:
  ScaleOfFactorCheck(Inspection &report, uint32_t role)
      : report_(report), roleIndex_(role), role_(report.plan().roles[role]) {}

  void run() {
    for (uint32_t s = 0; s < role_.segments.size(); ++s)
      checkSegment(s);
    for (const Segment &segment : role_.segments)
      checkLeft(segment);
  }

private:
  using Boundary = Segment::Boundary;

  void checkSegment(uint32_t s) {
    const Segment &segment = role_.segments[s];
    if (std::ranges::none_of(segment.ops,
                             [](const Op &op) { return op.kind == OpKind::MatMulScaled; }))
      return;
    std::vector<const Boundary *> entered(segment.values.size(), nullptr);
    for (const Boundary &in : segment.ins)
      entered[in.value] = &in;
    for (uint32_t i = 0; i < segment.ops.size(); ++i) {
      const Op &op = segment.ops[i];
      for (size_t f = 0; op.kind == OpKind::MatMulScaled && f < kFactors; ++f) {
        ValueId factor = op.operands[f], scale = op.operands[f + kFactors];
        const Boundary *factorIn = entered[unturned(segment, factor)], *scaleIn = entered[scale];
        std::optional<int64_t> row = rowOfWeightScale(role_, segment, scale);
        bool isWeight = row && isWeightOfRow(report_.plan(), role_, segment, factor, *row);
        if (factorIn && scaleIn)
          pairs_.push_back(
              {factorIn->cell, scaleIn->cell, factorIn->shift, scaleIn->shift, {roleIndex_, s, i}});
        else if (factorIn && row && !isWeight)
          weights_.push_back({factorIn->cell, *row, {roleIndex_, s, i}});
        else if (!areOfOne(segment, factor, scale) && !isWeight)
          refuse({roleIndex_, s, i}, segment, factor, scale);
      }
    }
  }

  /// What a segment leaves in the cells of a pair belongs together, and in others is the weight.
  void checkLeft(const Segment &segment) {
    if (pairs_.empty() && weights_.empty())
      return;
    std::vector<const Boundary *> left(role_.cells.size(), nullptr);
    for (const Boundary &out : segment.outs)
      left[out.cell] = &out;
    for (const CellPair &pair : pairs_) {
      const Boundary *factor = left[pair.factor], *scale = left[pair.scale];
      bool isPair = factor && scale && areOfOne(segment, factor->value, scale->value) &&
                    factor->shift - pair.factorShift == scale->shift - pair.scaleShift;
      if ((factor || scale) && !isPair)
        report_.add(Rule::Scale, pair.at,
                    fmt::format("segment '{}' leaves no factor and scale of one 'quantize' in the "
                                "cells '@{}' and '@{}'",
                                segment.name, role_.cells[pair.factor].name,
                                role_.cells[pair.scale].name));
    }
    for (const CellOfWeight &weight : weights_)
      if (const Boundary *factor = left[weight.factor];
          factor != nullptr &&
          !isWeightOfRow(report_.plan(), role_, segment, factor->value, weight.row))
        report_.add(Rule::Scale, weight.at,
                    fmt::format("segment '{}' leaves no weight in the cell '@{}' whose scale "
                                "'matmul_scaled' takes with it",
                                segment.name, role_.cells[weight.factor].name));
  }

  /// What transposes have made a value of.
  static ValueId unturned(const Segment &segment, ValueId value) {
    while (segment.values[value].def != kNone &&
           segment.ops[segment.values[value].def].kind == OpKind::Transpose)
      value = segment.ops[segment.values[value].def].operands[0];
    return value;
  }

  /// Whether one op has quantised the factor, which may be turned since, and made the scale.
  static bool areOfOne(const Segment &segment, ValueId factor, ValueId scale) {
    const Value &q = segment.values[unturned(segment, factor)], &by = segment.values[scale];
    if (q.def == kNone || q.def != by.def)
      return false;
    return opInfo(segment.ops[q.def]).scaleOf[q.defResult] == by.defResult;
  }

  void refuse(Spot at, const Segment &segment, ValueId factor, ValueId scale) {
    report_.add(Rule::Scale, at,
                fmt::format("'matmul_scaled' takes '%{}' with the scale '%{}', which no 'quantize' "
                            "has made with it",
                            segment.values[factor].name, segment.values[scale].name),
                segment.values[factor].name);
  }

  Inspection &report_;
  uint32_t roleIndex_;
  const Role &role_;
  std::vector<CellPair> pairs_;
  std::vector<CellOfWeight> weights_;
};

} // namespace

void checkFactorScales(Inspection &inspection, uint32_t role) {
  ScaleOfFactorCheck(inspection, role).run();
  checkWeightScales(inspection, role);
}

} // namespace shardc::plan::verifier
