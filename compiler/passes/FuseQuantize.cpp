// Quantises results of norms and gated activations in the op that computes them, if nothing else
// reads them, so that they are not written and read in 16 bits.
//
// Delayed: the scales are known in advance, so the op that computes a value also quantises it. A
// norm's kernel works on whole rows and cannot transpose them; if products also read the transpose,
// another op transposes the 8-bit values.
// Blockwise: works likewise with scales of blocks, which lie along rows and, for transposed forms,
// along columns. Tiles of 128 by 128 serve both. The blocks of swiglu's gradient must lie within
// its gate or its up part, so each part must consist of whole blocks.
// Tensorwise: the amax must be known first. So one op computes only the amax and writes no value,
// and another op recomputes the value and quantises it. This moves no more bytes than computing the
// amax on the way and writing the value for another op to read. In units u, the bytes of one 16-bit
// matrix, and without the 8-bit results:
//
//                   recomputed    written and read
//     swiglu        2u + 2u       2u + u + u
//     swiglu_bwd    3u + 3u       3u + 3u + 3u
//     add_rmsnorm   3u + u        3u + u + u
//
// rmsnorm_bwd writes the norm's output once more. Instead, the quantising op recomputes it from the
// norm's statistic, in tiles that can be transposed; this reads u, instead of writing and reading
// u. Its amax is that of the forward pass.
//
// Ops that update observed amax values form a chain in the order of issue, which fusing changes.
// After all fusions, the chain is rebuilt.
#include <algorithm>
#include <bit>
#include <map>

#include "compiler/passes/Passes.h"
#include "runtime/base/Float8.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

using plan::OpInfo;
using plan::quantisingForm;

bool quantizes(const Op &op) {
  return op.kind == OpKind::Quantize || op.kind == OpKind::QuantizeDelayed ||
         op.kind == OpKind::QuantizeBlocks;
}

/// How the form of an op that also quantises writes the numbers. Either: plain, transposed, or
/// both, depending on results and attribute `transposed`.
enum class Written : uint8_t { Not, Plain, Transposed, Either, Both };

Written writtenBy(OpKind producer, OpKind quantizer) {
  std::optional<OpKind> form = quantisingForm(producer, quantizer);
  if (!form)
    return Written::Not;
  std::string_view results = plan::opInfo(*form).results;
  if (results.ends_with("t?"))
    return Written::Either;
  bool isTransposed = plan::positionOf(results, "t") >= 0;
  return !isTransposed                         ? Written::Plain
         : plan::positionOf(results, "q") >= 0 ? Written::Both
                                               : Written::Transposed;
}

/// All readers of a value: the op that quantises it and, under recipe tensorwise, the ops that
/// compute its amax.
struct Readers {
  Op *quantizer = nullptr; ///< null if other ops read the value, or no op does
  Op *amax = nullptr;      ///< null: the amax is known in advance
  Op *all = nullptr;       ///< maximum over the ranks that have parts of the value

  bool isBy(OpKind kind) const { return quantizer && quantizer->kind == kind; }
  bool isTensorwise() const { return isBy(OpKind::Quantize) && amax; }
  bool isTransposed() const { return quantizer->getBool(Key::transposed); }
  bool hasBothForms() const {
    return quantizer->results.size() == (isBy(OpKind::QuantizeDelayed) ? 4u : 3u);
  }
};

/// The ops that quantise a value in blocks of 1 by 128, if nothing else reads it.
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
    for (Op &op : segment_.ops)
      if (!plan::opInfo(op).form)
        fuse(op, plan::opInfo(op));
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

  /// The only reader of a value, if it belongs to the same unit and pass as the producer; otherwise
  /// null.
  Op *onlyReader(const Op &producer, ValueId value) {
    if (users_.count(value) != 1 || isLeft_[value] != 0)
      return nullptr;
    Op &op = segment_.ops[*users_.begin(value)];
    return areBeside(producer, op) ? &op : nullptr;
  }

  /// The readers of a value, if they quantise it and its type is that of `like`.
  Readers readersOf(const Op &producer, ValueId value, ValueId like) {
    Readers found;
    if (isLeft_[value] != 0 || typeOf(value).dtype != typeOf(like).dtype || users_.count(value) > 2)
      return {};
    for (const uint32_t *user = users_.begin(value); user != users_.end(value); ++user) {
      Op &op = segment_.ops[*user];
      bool isQuantizer = quantizes(op);
      Op *&place = isQuantizer ? found.quantizer : found.amax;
      if (place || !areBeside(producer, op) || (!isQuantizer && op.kind != OpKind::Amax))
        return {};
      place = &op;
    }
    return !found.quantizer || hasOwnAmax(found) ? found : Readers{};
  }

  BlockReaders blockReadersOf(const Op &producer, ValueId value, ValueId like) {
    BlockReaders found;
    if (isLeft_[value] != 0 || typeOf(value).dtype != typeOf(like).dtype)
      return {};
    for (const uint32_t *user = users_.begin(value); user != users_.end(value); ++user) {
      Op &op = segment_.ops[*user];
      Op *&place = op.getBool(Key::transposed) ? found.transposed : found.plain;
      if (place || !areBeside(producer, op) || !hasRowBlocks(op))
        return {};
      place = &op;
    }
    return found;
  }
  /// Whether the op uses blocks of 1 by 128 of its operand or of its transpose.
  bool hasRowBlocks(const Op &op) const {
    return op.kind == OpKind::QuantizeBlocks && typeOf(op.results[1]).dtype == DType::F32;
  }

  /// Whether the quantising op is the only reader of the amax, if an op computes one.
  bool hasOwnAmax(Readers &found) {
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

  // ---- fusions by the table of ops ----

  /// Lets the op write the quantised forms of its result that readers need, if it has such a form.
  void fuse(Op &op, const OpInfo &info) {
    if (info.quantised == 0) {
      if (info.again && op.results.size() == info.resultsMax)
        makeAgain(op, info);
      return;
    }
    bool makesTwo = std::popcount(info.quantised) > 1;
    if (writtenBy(op.kind, OpKind::QuantizeBlocks) == Written::Both &&
        fuseBlocks(op, info, makesTwo))
      return;
    if (!makesTwo)
      fuseOne(op, info);
    else if (op.results.size() == info.resultsMax)
      fuseTwo(op, info);
  }

  /// The value whose type the op's result has before it is quantised.
  static ValueId likeOf(const Op &op, const OpInfo &info) {
    int sum = plan::positionOf(info.results, "sum");
    int x = plan::positionOf(info.operands, "x");
    return sum >= 0 ? op.results[static_cast<size_t>(sum)] : op.operands[static_cast<size_t>(x)];
  }

  /// The operands or results of the op whose names are in the list.
  static std::vector<ValueId> valuesOf(const Op &op, const OpInfo &info, std::string_view names) {
    std::vector<ValueId> values;
    while (!names.empty()) {
      std::string_view name = names.substr(0, names.find(' '));
      int operand = plan::positionOf(info.operands, name);
      int result = plan::positionOf(info.results, name);
      values.push_back(operand >= 0 ? op.operands[static_cast<size_t>(operand)]
                                    : op.results[static_cast<size_t>(result)]);
      names.remove_prefix(std::min(name.size() + 1, names.size()));
    }
    return values;
  }

  // ---- fusing one op ----

  /// Lets the op quantise its result. The results of `quantizer`, which is removed, precede the
  /// op's own results.
  void join(Op &op, const Op &quantizer, const std::vector<ValueId> &own) {
    take(op, quantizer, own);
    remove(&quantizer);
  }

  void take(Op &op, const Op &quantizer, const std::vector<ValueId> &own) {
    hasFused_ = true;
    op.kind = *quantisingForm(op.kind, quantizer.kind);
    op.operands.insert(op.operands.end(), quantizer.operands.begin() + 1, quantizer.operands.end());
    op.results = quantizer.results;
    op.results.insert(op.results.end(), own.begin(), own.end());
    for (Key key : {Key::transposed, Key::slot})
      op.set(key, quantizer.getInt(key));
  }

  /// Like join(), for ops that do not transpose their results. If products need the transpose,
  /// `quantizer` becomes the op that transposes the 8-bit values.
  void joinRows(Op &op, Op &quantizer, bool hasBothForms, const std::vector<ValueId> &own) {
    if (!hasBothForms)
      return join(op, quantizer, own);
    ValueId transposed = quantizer.results.back();
    quantizer.results.pop_back();
    take(op, quantizer, own);
    quantizer.kind = OpKind::Transpose;
    quantizer.operands = {op.results[0]};
    quantizer.results = {transposed};
    quantizer.attrs.clear();
    quantizer.set(Key::outer, typeOf(transposed).shape[1]);
    quantizer.set(Key::inner, typeOf(transposed).shape[0]);
  }

  static void takeAttrs(Op &consumer, const Op &producer) {
    for (const plan::Attr &attr : producer.attrs)
      if (plan::attrInfo(attr.key).type == plan::AttrInfo::Float)
        consumer.set(attr.key, attr.f);
      else
        consumer.set(attr.key, attr.i);
  }

  /// Lets `consumer` compute the value that it reads, by op `kind` from the operands `from`.
  void make(Op &consumer, OpKind kind, const std::vector<ValueId> &from) {
    hasFused_ = true;
    consumer.kind = *quantisingForm(kind, consumer.kind);
    consumer.operands.erase(consumer.operands.begin());
    consumer.operands.insert(consumer.operands.begin(), from.begin(), from.end());
  }

  // ---- ops with one fused result ----

  void fuseOne(Op &op, const OpInfo &info) {
    const auto at = static_cast<size_t>(std::countr_zero(info.quantised));
    std::vector<ValueId> own = op.results;
    own.erase(own.begin() + static_cast<ptrdiff_t>(at));
    Readers readers = readersOf(op, op.results[at], likeOf(op, info));
    if (readers.isTensorwise())
      return fuseTensorwise(op, info, readers, own);
    if (!readers.isBy(OpKind::QuantizeDelayed) && !readers.isBy(OpKind::QuantizeBlocks))
      return;
    const Written forms = writtenBy(op.kind, readers.quantizer->kind);
    bool isPlain = !readers.isTransposed();
    if (readers.isBy(OpKind::QuantizeBlocks)) {
      if (forms == Written::Plain && isPlain && !readers.hasBothForms() &&
          hasRowBlocks(*readers.quantizer))
        join(op, *readers.quantizer, own);
    } else if (forms == Written::Either) {
      join(op, *readers.quantizer, own);
    } else if (forms == Written::Plain && isPlain) {
      joinRows(op, *readers.quantizer, readers.hasBothForms(), own);
    }
  }

  /// The op computes the amax only. The value is recomputed, by the same op or from values that it
  /// keeps.
  void fuseTensorwise(Op &op, const OpInfo &info, const Readers &readers,
                      const std::vector<ValueId> &own) {
    const std::optional<OpKind> amax = quantisingForm(op.kind, OpKind::Amax);
    if (!amax)
      return;
    if (quantisingForm(op.kind, OpKind::Quantize)) {
      for (Op *consumer : {readers.amax, readers.quantizer}) {
        make(*consumer, op.kind, op.operands);
        takeAttrs(*consumer, op);
      }
      return remove(&op);
    }
    std::vector<ValueId> from = valuesOf(op, info, info.again->values);
    amaxes_[from.back()] = readers.quantizer->operands[1];
    quantizeAgain(*readers.quantizer, info.again->by, from, op);
    op.kind = *amax;
    op.results = own;
    op.results.push_back(readers.amax->results[0]);
    remove(readers.amax);
  }

  void quantizeAgain(Op &quantizer, OpKind kind, const std::vector<ValueId> &from,
                     const Op &producer) {
    make(quantizer, kind, from);
    quantizer.set(Key::zero_centered, producer.getInt(Key::zero_centered));
  }

  /// If a backward op rewrites a forward value, lets the quantising op recompute that value from
  /// what the forward pass keeps.
  void makeAgain(Op &back, const OpInfo &info) {
    auto [by, names] = *info.again;
    std::vector<ValueId> from = valuesOf(back, info, names);
    Readers readers = readersOf(back, back.results.back(), from[0]);
    if (!readers.quantizer)
      return;
    const Written forms = writtenBy(by, readers.quantizer->kind);
    auto magnitude = amaxes_.find(from.back());
    if (readers.isBy(OpKind::QuantizeDelayed) && forms == Written::Either) {
      quantizeAgain(*readers.quantizer, by, from, back);
    } else if (readers.isTensorwise() && forms == Written::Either && magnitude != amaxes_.end()) {
      quantizeAgain(*readers.quantizer, by, from, back);
      readers.quantizer->operands.back() = magnitude->second;
      remove(readers.amax);
      remove(readers.all);
    } else if (forms == Written::Transposed && readers.isTransposed() &&
               hasRowBlocks(*readers.quantizer)) {
      quantizeAgain(*readers.quantizer, by, from, back);
      readers.quantizer->set(Key::transposed, int64_t{0});
    } else {
      return;
    }
    back.results.pop_back();
  }

  // ---- ops with two fused results, or with blocks in both directions ----

  bool fuseBlocks(Op &op, const OpInfo &info, bool makesTwo) {
    BlockReaders ofX = blockReadersOf(op, op.results[0], likeOf(op, info));
    if (!ofX.plain || !ofX.transposed || (makesTwo && op.results.size() != info.resultsMax))
      return false;
    std::vector<ValueId> transposed = ofX.transposed->results;
    if (makesTwo) {
      ValueId dy = op.operands[0];
      BlockReaders ofY = blockReadersOf(op, op.results[1], dy);
      if (ofY.plain || !ofY.transposed)
        return false;
      const Type &type = typeOf(dy);
      if (type.shape[type.rank - 1] % blockOf(ScaleBlocks::Rows128).cols != 0)
        return true; // a block of dx would contain columns of gate and of up
      transposed.insert(transposed.end(), ofY.transposed->results.begin(),
                        ofY.transposed->results.end());
      remove(ofY.transposed);
    }
    join(op, *ofX.plain, transposed);
    remove(ofX.transposed);
    return true;
  }

  void fuseTwo(Op &op, const OpInfo &info) {
    Readers ofX = readersOf(op, op.results[0], likeOf(op, info));
    Readers ofY = readersOf(op, op.results[1], op.operands[0]);
    if (!ofX.quantizer || !ofY.quantizer || !ofX.hasBothForms() || !ofY.isTransposed())
      return;
    std::vector<ValueId> y = {ofY.quantizer->results[0], ofY.quantizer->results[1]};
    auto takes = [&](OpKind kind) { return writtenBy(op.kind, kind) == Written::Both; };
    if (ofX.isBy(OpKind::QuantizeDelayed) && ofY.isBy(OpKind::QuantizeDelayed)) {
      if (!takes(OpKind::QuantizeDelayed))
        return;
      join(op, *ofX.quantizer, y);
      op.set(Key::y_slot, ofY.quantizer->getInt(Key::slot));
      remove(ofY.quantizer);
    } else if (ofX.isTensorwise() && ofY.isTensorwise() && !ofX.all == !ofY.all &&
               quantisingForm(op.kind, OpKind::Amax) && takes(OpKind::Quantize)) {
      quantizeBoth(op, ofX, ofY, y);
    }
  }

  /// One op computes both amaxes, and both values are quantised at the position of the first
  /// quantiser.
  void quantizeBoth(Op &back, const Readers &ofX, const Readers &ofY,
                    const std::vector<ValueId> &y) {
    const Readers &first = ofX.quantizer < ofY.quantizer ? ofX : ofY;
    const Readers &second = ofX.quantizer < ofY.quantizer ? ofY : ofX;
    std::vector<ValueId> results = ofX.quantizer->results;
    results.insert(results.end(), y.begin(), y.end());
    ValueId amaxes = first.amax->results[0];
    Op quantizer = *first.quantizer;
    make(quantizer, back.kind, back.operands);
    quantizer.results = results;
    quantizer.attrs = back.attrs;
    quantizer.set(Key::y_slot, int64_t{1});
    back.kind = *quantisingForm(back.kind, OpKind::Amax);
    back.results = {amaxes};
    for (ValueId value : {amaxes, quantizer.operands.back()})
      segment_.values[value].type = Type::of(DType::F32, {2});
    *first.quantizer = std::move(quantizer);
    for (const Op *op : {first.amax, second.amax, second.all, second.quantizer})
      remove(op);
  }

  // ---- the chain of observed amax values ----

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
  plan::Users users_;                 ///< before any change
  std::vector<uint8_t> isLeft_;       ///< by value: whether it is stored in a cell
  std::vector<uint8_t> isSeen_;       ///< by value: whether it has observed amax values
  ValueId firstSeen_ = kNone;         ///< the amax values with which the segment begins
  std::map<ValueId, ValueId> amaxes_; ///< amax of a norm's output, by the norm's statistic
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
