// Quantises results of norms and gated activations where they are made, so that they are not
// written and read in 16 bits, if nothing else reads them.
//
// Delayed: scales are known before, so the op that makes a value quantises it too. A norm's kernel
// has whole rows, which it cannot turn: where products also take it turned, another op turns the
// numbers of 8 bits.
// Blockwise: likewise with the scales of blocks, which lie along rows and, for transposed forms,
// columns. Tiles of 128 by 128 have both. Those of swiglu's gradient have to lie in its gate or in
// its up, so each has to be of whole blocks.
// Tensorwise: the largest magnitude comes first. So one op finds it and writes no value, and
// another one makes the value again and quantises it. That moves no more bytes than to find the
// magnitude on the way and to write the value, for the other op to read. With u those of a matrix
// in 16 bits, and beside what is written in 8:
//                   made again    written and read
//     swiglu        2u + 2u       2u + u + u
//     swiglu_bwd    3u + 3u       3u + 3u + 3u
//     add_rmsnorm   3u + u        3u + u + u
//
// The norm that rmsnorm_bwd writes again is made from its statistic instead, in tiles that can be
// turned: u is read, and not u written and read. Its magnitude is that of the forward pass.
//
// Ops that look at magnitudes hand them on in the order of issue, which fusing changes: behind all
// fusions each takes them from the one before.
#include <algorithm>
#include <map>

#include "compiler/passes/Passes.h"
#include "runtime/base/Float8.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

using plan::kNone;
using plan::Op;
using plan::OpKind;
using plan::Type;
using plan::ValueId;
using Key = plan::AttrKey;

bool quantizes(const Op &op) {
  return op.kind == OpKind::Quantize || op.kind == OpKind::QuantizeBlocks ||
         op.kind == OpKind::QuantizeDelayed;
}

/// What a norm becomes.
struct NormForms {
  OpKind norm;
  bool adds; ///< takes the terms of a sum, and gives the sum
  OpKind delayed, amax, again, blocks;
};

constexpr NormForms kNormForms[] = {
    {OpKind::RmsNorm, false, OpKind::RmsNormQuantizeDelayed, OpKind::RmsNormAmax,
     OpKind::RmsNormAgainQuantize, OpKind::RmsNormQuantizeBlocks},
    {OpKind::AddRmsNorm, true, OpKind::AddRmsNormQuantizeDelayed, OpKind::AddRmsNormAmax,
     OpKind::RmsNormAgainQuantize, OpKind::AddRmsNormQuantizeBlocks},
    {OpKind::LayerNorm, false, OpKind::LayerNormQuantizeDelayed, OpKind::LayerNormAmax,
     OpKind::LayerNormAgainQuantize, OpKind::LayerNormQuantizeBlocks},
    {OpKind::AddLayerNorm, true, OpKind::AddLayerNormQuantizeDelayed, OpKind::AddLayerNormAmax,
     OpKind::LayerNormAgainQuantize, OpKind::AddLayerNormQuantizeBlocks}};

const NormForms *formsOf(OpKind kind) {
  const auto *found = std::ranges::find(kNormForms, kind, &NormForms::norm);
  return found == std::end(kNormForms) ? nullptr : found;
}

/// All that reads a value: the op that quantises it, and by the recipe tensorwise those that find
/// its largest magnitude.
struct Readers {
  Op *quantizer = nullptr; ///< null: other ops read it, or none does
  Op *amax = nullptr;      ///< null: the magnitude is known before
  Op *all = nullptr;       ///< takes the largest of all ranks, where these have parts

  bool isBy(OpKind kind) const { return quantizer && quantizer->kind == kind; }
  bool isTensorwise() const { return isBy(OpKind::Quantize) && amax; }
  bool isTransposed() const { return quantizer->getBool(Key::transposed); }
  bool hasBothForms() const {
    return quantizer->results.size() == (isBy(OpKind::QuantizeDelayed) ? 4u : 3u);
  }
};

/// The ops that quantise a value in blocks of 1 by 128, where nothing else reads it.
struct BlockReaders {
  Op *plain = nullptr, *transposed = nullptr;
};

class QuantizeFuser {
public:
  explicit QuantizeFuser(plan::Segment &segment)
      : segment_(segment), users_(segment), isLeft_(segment.values.size(), 0),
        isSeen_(segment.values.size(), 0), dead_(segment.ops.size(), 0) {
    for (const plan::Segment::Boundary &out : segment.outs)
      isLeft_[out.value] = 1;
    findSeen();
  }

  void run() {
    for (Op &op : segment_.ops) {
      if (const NormForms *forms = formsOf(op.kind))
        fuseNorm(op, *forms);
      else if (op.kind == OpKind::SwiGlu)
        fuseSwiGlu(op);
      else if (op.kind == OpKind::SwiGluBwd && op.results.size() == 2)
        fuseSwiGluBwd(op);
      else if (op.kind == OpKind::RmsNormBwd && op.results.size() == 3)
        fuseNormAgain(op);
    }
    if (!hasFused_)
      return;
    plan::eraseOps(segment_, dead_);
    handOnSeen();
    plan::dropUnusedValues(segment_);
  }

private:
  const Type &typeOf(ValueId value) const { return segment_.values[value].type; }

  static bool areBeside(const Op &a, const Op &b) {
    return a.unit == b.unit && a.phase == b.phase && a.pred == b.pred &&
           a.isRecomputed == b.isRecomputed;
  }

  /// The op that alone reads a value, if there is one of the maker's unit and pass.
  Op *onlyReader(const Op &maker, ValueId value) {
    if (users_.count(value) != 1 || isLeft_[value] != 0)
      return nullptr;
    Op &op = segment_.ops[*users_.begin(value)];
    return areBeside(maker, op) ? &op : nullptr;
  }

  /// Those of a value of the type `like`.
  Readers readersOf(const Op &maker, ValueId value, ValueId like) {
    Readers found;
    if (isLeft_[value] != 0 || typeOf(value).dtype != typeOf(like).dtype || users_.count(value) > 2)
      return {};
    for (const uint32_t *user = users_.begin(value); user != users_.end(value); ++user) {
      Op &op = segment_.ops[*user];
      bool isQuantizer = quantizes(op);
      Op *&place = isQuantizer ? found.quantizer : found.amax;
      if (place || !areBeside(maker, op) || (!isQuantizer && op.kind != OpKind::Amax))
        return {};
      place = &op;
    }
    return !found.quantizer || hasOwnMagnitude(found) ? found : Readers{};
  }

  BlockReaders blockReadersOf(const Op &maker, ValueId value, ValueId like) {
    BlockReaders found;
    if (isLeft_[value] != 0 || typeOf(value).dtype != typeOf(like).dtype)
      return {};
    for (const uint32_t *user = users_.begin(value); user != users_.end(value); ++user) {
      Op &op = segment_.ops[*user];
      Op *&place = op.getBool(Key::transposed) ? found.transposed : found.plain;
      if (place || !areBeside(maker, op) || !hasRowBlocks(op))
        return {};
      place = &op;
    }
    return found;
  }
  /// Blocks of 1 by 128 of what it quantises, or of its transpose.
  bool hasRowBlocks(const Op &op) const {
    return op.kind == OpKind::QuantizeBlocks && typeOf(op.results[1]).dtype == DType::F32;
  }

  /// Whether the magnitude, if it is looked for, is for the op that quantises alone.
  bool hasOwnMagnitude(Readers &found) {
    if (!found.amax)
      return true;
    Op *next = onlyReader(*found.amax, found.amax->results[0]);
    if (next && next->kind == OpKind::AllReduceMax) {
      found.all = next;
      next = onlyReader(*next, next->results[0]);
    }
    return next == found.quantizer && next->kind == OpKind::Quantize;
  }

  void remove(const Op *op) {
    hasFused_ = true;
    if (op)
      dead_[static_cast<size_t>(op - segment_.ops.data())] = 1;
  }

  /// Lets the op quantise too: with the results of the other op, which goes, in front of its own.
  void join(Op &op, OpKind kind, const Op &quantizer, const std::vector<ValueId> &own) {
    take(op, kind, quantizer, own);
    remove(&quantizer);
  }

  void take(Op &op, OpKind kind, const Op &quantizer, const std::vector<ValueId> &own) {
    hasFused_ = true;
    op.kind = kind;
    op.operands.insert(op.operands.end(), quantizer.operands.begin() + 1, quantizer.operands.end());
    op.results = quantizer.results;
    op.results.insert(op.results.end(), own.begin(), own.end());
    for (Key key : {Key::transposed, Key::slot})
      op.set(key, quantizer.getInt(key));
  }

  /// The same with results that are not turned: the other op turns them, if that is asked for.
  void joinRows(Op &op, OpKind kind, Op &quantizer, bool hasBothForms,
                const std::vector<ValueId> &own) {
    if (!hasBothForms)
      return join(op, kind, quantizer, own);
    ValueId turned = quantizer.results.back();
    quantizer.results.pop_back();
    take(op, kind, quantizer, own);
    quantizer.kind = OpKind::Transpose;
    quantizer.operands = {op.results[0]};
    quantizer.results = {turned};
    quantizer.attrs.clear();
    quantizer.set(Key::outer, typeOf(turned).shape[1]);
    quantizer.set(Key::inner, typeOf(turned).shape[0]);
  }

  // ---- norms ----

  /// Operands are x, or the terms of the sum, and the vectors; results the sum, y and statistics.
  void fuseNorm(Op &norm, const NormForms &forms) {
    std::vector<ValueId> own = norm.results;
    ValueId x = forms.adds ? own[0] : norm.operands[0], y = own[forms.adds];
    own.erase(own.begin() + forms.adds);
    Readers readers = readersOf(norm, y, x);
    if (readers.isTensorwise()) {
      std::vector<ValueId> from = {x};
      from.insert(from.end(), norm.operands.begin() + 1 + forms.adds, norm.operands.end());
      from.insert(from.end(), own.begin() + forms.adds, own.end());
      magnitudes_[own.back()] = readers.quantizer->operands[1];
      quantizeAgain(*readers.quantizer, forms.again, from, norm);
      norm.kind = forms.amax;
      norm.results = own;
      norm.results.push_back(readers.amax->results[0]);
      remove(readers.amax);
    } else if (readers.isBy(OpKind::QuantizeDelayed) && !readers.isTransposed()) {
      joinRows(norm, forms.delayed, *readers.quantizer, readers.hasBothForms(), own);
    } else if (hasPlainRows(readers) && hasRowBlocks(*readers.quantizer)) {
      join(norm, forms.blocks, *readers.quantizer, own);
    }
  }
  static bool hasPlainRows(const Readers &readers) {
    return readers.quantizer && !readers.isTransposed() && !readers.hasBothForms();
  }

  /// Lets an op make what it quantises from these operands.
  void quantizeAgain(Op &quantizer, OpKind kind, std::vector<ValueId> from, const Op &maker) {
    hasFused_ = true;
    quantizer.kind = kind;
    quantizer.operands.erase(quantizer.operands.begin());
    quantizer.operands.insert(quantizer.operands.begin(), from.begin(), from.end());
    quantizer.set(Key::zero_centered, maker.getInt(Key::zero_centered));
  }

  void fuseNormAgain(Op &back) {
    std::vector<ValueId> from = {back.operands[1], back.operands[2], back.operands[3]};
    Readers readers = readersOf(back, back.results[2], from[0]);
    auto magnitude = magnitudes_.find(from[2]);
    if (readers.isBy(OpKind::QuantizeDelayed)) {
      quantizeAgain(*readers.quantizer, OpKind::RmsNormAgainQuantizeDelayed, from, back);
    } else if (readers.isTensorwise() && magnitude != magnitudes_.end()) {
      quantizeAgain(*readers.quantizer, OpKind::RmsNormAgainQuantize, from, back);
      readers.quantizer->operands.back() = magnitude->second;
      remove(readers.amax);
      remove(readers.all);
    } else if (readers.quantizer && readers.isTransposed() && hasRowBlocks(*readers.quantizer)) {
      quantizeAgain(*readers.quantizer, OpKind::RmsNormAgainQuantizeBlocks, from, back);
      readers.quantizer->set(Key::transposed, int64_t{0});
    } else {
      return;
    }
    back.results.pop_back();
  }

  // ---- activations ----

  void fuseSwiGlu(Op &swiglu) {
    ValueId x = swiglu.operands[0];
    Readers readers = readersOf(swiglu, swiglu.results[0], x);
    if (readers.isTensorwise()) {
      readers.amax->kind = OpKind::SwiGluAmax;
      readers.quantizer->kind = OpKind::SwiGluQuantize;
      readers.amax->operands[0] = readers.quantizer->operands[0] = x;
      remove(&swiglu);
    } else if (readers.isBy(OpKind::QuantizeDelayed)) {
      join(swiglu, OpKind::SwiGluQuantizeDelayed, *readers.quantizer, {});
    } else if (hasPlainRows(readers) && hasRowBlocks(*readers.quantizer)) {
      join(swiglu, OpKind::SwiGluQuantizeBlocks, *readers.quantizer, {});
    }
  }

  void fuseSwiGluBwd(Op &back) {
    BlockReaders blocksOfX = blockReadersOf(back, back.results[0], back.operands[1]);
    BlockReaders blocksOfY = blockReadersOf(back, back.results[1], back.operands[0]);
    if (blocksOfX.plain && blocksOfX.transposed && !blocksOfY.plain && blocksOfY.transposed)
      return fuseSwiGluBwdBlocks(back, blocksOfX, *blocksOfY.transposed);
    Readers ofX = readersOf(back, back.results[0], back.operands[1]);
    Readers ofY = readersOf(back, back.results[1], back.operands[0]);
    if (!ofX.quantizer || !ofY.quantizer || !ofX.hasBothForms() || !ofY.isTransposed())
      return;
    std::vector<ValueId> y = {ofY.quantizer->results[0], ofY.quantizer->results[1]};
    if (ofX.isBy(OpKind::QuantizeDelayed) && ofY.isBy(OpKind::QuantizeDelayed)) {
      join(back, OpKind::SwiGluBwdQuantizeDelayed, *ofX.quantizer, y);
      back.set(Key::y_slot, ofY.quantizer->getInt(Key::slot));
      remove(ofY.quantizer);
    } else if (ofX.isTensorwise() && ofY.isTensorwise() && !ofX.all == !ofY.all) {
      quantizeBoth(back, ofX, ofY, y);
    }
  }

  void fuseSwiGluBwdBlocks(Op &back, const BlockReaders &ofX, const Op &ofY) {
    const Type &dy = typeOf(back.operands[0]);
    if (dy.shape[dy.rank - 1] % blockOf(ScaleBlocks::Rows128).cols != 0)
      return;
    std::vector<ValueId> turned = ofX.transposed->results;
    turned.insert(turned.end(), ofY.results.begin(), ofY.results.end());
    join(back, OpKind::SwiGluBwdQuantizeBlocks, *ofX.plain, turned);
    remove(ofX.transposed);
    remove(&ofY);
  }

  /// Both magnitudes are found together, and both values quantised where the first of them was.
  void quantizeBoth(Op &back, const Readers &ofX, const Readers &ofY,
                    const std::vector<ValueId> &y) {
    const Readers &first = ofX.quantizer < ofY.quantizer ? ofX : ofY;
    const Readers &second = ofX.quantizer < ofY.quantizer ? ofY : ofX;
    std::vector<ValueId> results = ofX.quantizer->results;
    results.insert(results.end(), y.begin(), y.end());
    ValueId magnitudes = first.amax->results[0];
    Op quantizer = *first.quantizer;
    quantizer.kind = OpKind::SwiGluBwdQuantize;
    quantizer.operands.insert(quantizer.operands.begin(), back.operands[0]);
    quantizer.operands[1] = back.operands[1];
    quantizer.results = results;
    quantizer.attrs.clear();
    quantizer.set(Key::y_slot, int64_t{1});
    back.kind = OpKind::SwiGluBwdAmax;
    back.results = {magnitudes};
    for (ValueId value : {magnitudes, quantizer.operands[2]})
      segment_.values[value].type = Type::of(DType::F32, {2});
    *first.quantizer = std::move(quantizer);
    for (const Op *op : {first.amax, second.amax, second.all, second.quantizer})
      remove(op);
  }

  // ---- magnitudes that are handed on ----

  void findSeen() {
    for (const Op &op : segment_.ops)
      if (op.kind == OpKind::QuantizeDelayed)
        firstSeen_ = op.operands[2];
    if (firstSeen_ == kNone)
      return;
    while (segment_.values[firstSeen_].def != kNone)
      firstSeen_ = seenBefore(firstSeen_);
    isSeen_[firstSeen_] = 1;
    for (const Op &op : segment_.ops)
      for (size_t r = 0; r < op.results.size(); ++r)
        if (int at = plan::inPlaceOperand(op, r); at >= 0)
          isSeen_[op.results[r]] = isSeen_[op.operands[static_cast<size_t>(at)]];
  }
  ValueId seenBefore(ValueId seen) const {
    const plan::Value &value = segment_.values[seen];
    const Op &op = segment_.ops[value.def];
    return op.operands[static_cast<size_t>(plan::inPlaceOperand(op, value.defResult))];
  }

  void handOnSeen() {
    ValueId seen = firstSeen_;
    for (Op &op : segment_.ops)
      for (size_t r = 0; r < op.results.size(); ++r) {
        int at = plan::inPlaceOperand(op, r);
        if (at < 0 || isSeen_[op.results[r]] == 0)
          continue;
        op.operands[static_cast<size_t>(at)] = seen;
        seen = op.results[r];
      }
    for (plan::Segment::Boundary &out : segment_.outs)
      if (isSeen_[out.value] != 0)
        out.value = seen;
  }

  plan::Segment &segment_;
  plan::Users users_;                     ///< before any change
  std::vector<uint8_t> isLeft_;           ///< by value: a cell takes it
  std::vector<uint8_t> isSeen_;           ///< by value: magnitudes that are handed on
  ValueId firstSeen_ = kNone;             ///< those that the segment begins with
  std::map<ValueId, ValueId> magnitudes_; ///< of norms, by their statistics
  std::vector<uint8_t> dead_;
  bool hasFused_ = false;
};

} // namespace

void runFuseQuantize(plan::Plan &plan, Notes &) {
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments)
      if (std::ranges::any_of(segment.ops, quantizes))
        QuantizeFuser(segment).run();
}

} // namespace shardc::passes
