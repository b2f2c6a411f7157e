// Splits the loss of logits whose columns are sharded over ranks into chunks of rows, in bodies for
// which FuseLossHead has set the number of rows. Logits and their gradients then exist only for one
// chunk, and no rank has all columns. Ranks gather the statistics of a chunk while they compute the
// logits of the next one. The gradients of a chunk are computed right after its logits, in the
// forward pass; in the backward pass, the logits would have to be computed and the input gathered
// again. If several losses share an output layer, its weight gradient is then summed in the order
// of the losses; without this pass it is summed in the reverse order.
#include <algorithm>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "compiler/passes/Passes.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

/// The ops of one loss, as indices in the segment. Only a training body has the gradient ops.
struct LossHead {
  uint32_t product, stats, gather, loss;
  uint32_t entropy = kNone, dx = kNone, dw = kNone;
  ValueId before = kNone; ///< the weight gradient to which this loss adds its own
  ValueId sum = kNone;    ///< the weight gradient including this loss

  bool hasGradients() const { return entropy != kNone; }
};

/// Recognises the ops of a loss.
class LossHeadFinder {
public:
  explicit LossHeadFinder(const plan::Segment &segment) : segment_(segment), users_(segment) {}

  std::optional<LossHead> find(uint32_t loss) const {
    LossHead head = {};
    head.loss = loss;
    head.gather = producerOf(op(loss).operands[0], OpKind::AllGather);
    if (head.gather == kNone)
      return std::nullopt;
    head.stats = producerOf(op(head.gather).operands[0], OpKind::VocabStats);
    if (head.stats == kNone)
      return std::nullopt;
    ValueId logits = op(head.stats).operands[0], lse = op(loss).results[1];
    head.product = producerOf(logits, OpKind::MatMul);
    if (head.product == kNone || op(head.product).role != plan::ProductRole::Forward ||
        op(head.product).getBool(Key::trans_a) || op(head.product).operands.size() != 2)
      return std::nullopt;
    size_t gradients = users_.count(lse);
    if (gradients > 1 || users_.count(logits) != 1 + gradients)
      return std::nullopt;
    bool isFound = gradients == 0 || findGradients(head, *users_.begin(lse));
    return isFound ? std::optional(head) : std::nullopt;
  }

private:
  const Op &op(uint32_t index) const { return segment_.ops[index]; }

  uint32_t producerOf(ValueId value, OpKind kind) const {
    uint32_t def = segment_.values[value].def;
    return def != kNone && op(def).kind == kind ? def : kNone;
  }

  /// Finds the two products that read the gradient of the logits. Returns false if another op reads
  /// it.
  bool findGradients(LossHead &head, uint32_t entropy) const {
    constexpr size_t kMask = plan::operandIndex<OpKind::CrossEntropyBwd>("mask");
    bool isOfMask =
        op(entropy).kind == OpKind::CrossEntropyBwd &&
        op(entropy).operands[kMask] == plan::operandNamed<OpKind::VocabLoss>(op(head.loss), "mask");
    if (!isOfMask) // gradients of a preference loss start from its weights
      return false;
    ValueId dlogits = op(entropy).results[0],
            count = op(entropy).operands[plan::operandIndex<OpKind::CrossEntropyBwd>("n")];
    uint32_t counted = segment_.values[count].def;
    if (users_.count(dlogits) != 2 || (counted != kNone && counted > head.loss))
      return false;
    head.entropy = entropy;
    head.dx = head.dw = kNone;
    for (const uint32_t *user = users_.begin(dlogits); user != users_.end(dlogits); ++user) {
      const Op &product = op(*user);
      if (product.kind != OpKind::MatMul || product.operands.size() != 2 ||
          product.operands[0] != dlogits || product.role == plan::ProductRole::Forward)
        return false;
      bool isWeight = product.role == plan::ProductRole::WeightGradient;
      if (product.ties.size() > (isWeight ? 1u : 0u))
        return false;
      (product.role == plan::ProductRole::WeightGradient ? head.dw : head.dx) = *user;
    }
    return head.dx != kNone && head.dw != kNone &&
           op(head.dx).operands[1] == op(head.product).operands[1] &&
           op(head.dw).operands[1] == op(head.product).operands[0];
  }

  const plan::Segment &segment_;
  plan::Users users_;
};

/// Writes the ops of one loss, chunk after chunk.
class ChunkWriter {
public:
  ChunkWriter(plan::Segment &segment, const LossHead &head, std::vector<Op> &ops)
      : segment_(segment), head_(head), ops_(ops),
        rows_(segment.values[op(head.loss).results[0]].type.numel()),
        chunk_(std::min(rows_, op(head.loss).getInt(Key::chunk_rows))), dw_(head.before) {}

  void run() {
    Chunk before;
    for (int64_t begin = 0; begin < rows_; begin += chunk_) {
      Chunk chunk = forward(begin, std::min(chunk_, rows_ - begin));
      if (begin > 0 && head_.hasGradients())
        gradients(before);
      before = chunk;
    }
    join(losses_, op(head_.loss).results[0]);
    if (!head_.hasGradients())
      return;
    gradients(before);
    join(dx_, op(head_.dx).results[0]);
  }

private:
  struct Chunk {
    int64_t begin = 0, rows = 0;
    ValueId x = kNone, labels = kNone, mask = kNone, logits = kNone, lse = kNone;
  };

  const Op &op(uint32_t index) const { return segment_.ops[index]; }
  const std::string &nameOf(ValueId value) const { return segment_.values[value].name; }
  bool isWhole() const { return chunk_ == rows_; }

  Chunk forward(int64_t begin, int64_t rows) {
    const Op &product = op(head_.product), &stats = op(head_.stats), &loss = op(head_.loss);
    Chunk chunk = {begin, rows};
    chunk.x = rowsOf(product.operands[0], chunk);
    chunk.labels = rowsOf(stats.operands[plan::operandIndex<OpKind::VocabStats>("labels")], chunk);
    chunk.mask = rowsOf(loss.operands[plan::operandIndex<OpKind::VocabLoss>("mask")], chunk);
    chunk.logits = emit(product, {chunk.x, product.operands[1]}, chunk);
    ValueId here = emit(stats, {chunk.logits, chunk.labels}, chunk);
    ValueId all = emit(op(head_.gather), {here}, chunk);
    losses_.push_back(emit(loss, {all, chunk.mask}, chunk));
    chunk.lse = ops_.back().results[1];
    return chunk;
  }

  void gradients(const Chunk &chunk) {
    const Op &entropy = op(head_.entropy), &dx = op(head_.dx), &dw = op(head_.dw);
    std::vector<ValueId> operands = {chunk.logits, chunk.lse, chunk.labels, chunk.mask};
    for (size_t i = operands.size(); i < entropy.operands.size(); ++i)
      operands.push_back(beforeLosses(entropy.operands[i]));
    ValueId dlogits = emit(entropy, std::move(operands), chunk);
    dx_.push_back(emit(dx, {dlogits, dx.operands[1]}, chunk));
    emitWeightGradient(dw, {dlogits, chunk.x}, chunk);
  }

  /// Adds the chunk's contribution to the weight gradient, after those of earlier losses and
  /// chunks.
  void emitWeightGradient(const Op &dw, std::vector<ValueId> operands, const Chunk &chunk) {
    const plan::Value like = segment_.values[head_.sum];
    bool isLast = chunk.begin + chunk.rows == rows_;
    Op sum = copyOf(dw, std::move(operands));
    sum.results = {isLast ? head_.sum : addValue(like.name, like.type, like.purpose, chunk)};
    sum.ties.clear();
    if (dw_ != kNone)
      sum.ties.push_back({plan::Tie::Acc, 0, dw_});
    dw_ = sum.results[0];
    ops_.push_back(std::move(sum));
  }

  /// The step state before this loss and later ones were added to it.
  ValueId beforeLosses(ValueId value) const {
    uint32_t def = segment_.values[value].def;
    while (def != kNone && def > head_.loss && op(def).kind == OpKind::LossAdd) {
      value = op(def).operands[plan::operandIndex<OpKind::LossAdd>("state")];
      def = segment_.values[value].def;
    }
    return value;
  }

  Op copyOf(const Op &like, std::vector<ValueId> operands) const {
    Op copy = like;
    copy.operands = std::move(operands);
    copy.phase = op(head_.loss).phase;
    std::erase_if(copy.attrs, [](const plan::Attr &attr) { return attr.key == Key::chunk_rows; });
    return copy;
  }

  /// Appends a copy of `like` for the rows of a chunk. Returns its first result.
  ValueId emit(const Op &like, std::vector<ValueId> operands, const Chunk &chunk) {
    Op part = copyOf(like, std::move(operands));
    if (!isWhole())
      for (ValueId &result : part.results) {
        const plan::Value whole = segment_.values[result];
        result = addValue(whole.name, typeOf(like.kind, whole.type, chunk), whole.purpose, chunk);
      }
    ops_.push_back(std::move(part));
    return ops_.back().results[0];
  }

  ValueId addValue(const std::string &name, const Type &type, plan::Purpose purpose,
                   const Chunk &chunk) {
    return plan::addValue(segment_, fmt::format("{}.rows{}", name, chunk.begin), type, purpose);
  }

  /// The type of a result for the rows of a chunk. Statistics have shape [kind, row].
  Type typeOf(OpKind kind, const Type &whole, const Chunk &chunk) const {
    int64_t columns = whole.numel() / rows_;
    if (kind == OpKind::VocabStats || kind == OpKind::AllGather)
      return Type::of(whole.dtype, {columns, chunk.rows});
    return whole.rank == 1 ? Type::of(whole.dtype, {chunk.rows})
                           : Type::of(whole.dtype, {chunk.rows, columns});
  }

  ValueId rowsOf(ValueId whole, const Chunk &chunk) {
    if (isWhole())
      return whole;
    const plan::Value value = segment_.values[whole];
    int64_t columns = value.type.numel() / rows_;
    Type type = columns == 1 ? Type::of(value.type.dtype, {chunk.rows})
                             : Type::of(value.type.dtype, {chunk.rows, columns});
    Op view = plan::makeOp(OpKind::View, {whole}, op(head_.loss).unit, op(head_.loss).loc);
    view.set(Key::offset, chunk.begin * columns);
    view.phase = op(head_.loss).phase;
    std::string name = nameOf(op(head_.product).results[0]) + "." + value.name;
    view.results = {addValue(name, type, value.purpose, chunk)};
    ops_.push_back(std::move(view));
    return ops_.back().results[0];
  }

  void join(const std::vector<ValueId> &parts, ValueId whole) {
    if (isWhole())
      return;
    Op join = plan::makeOp(OpKind::Join, {}, op(head_.loss).unit, op(head_.loss).loc);
    join.operands = parts;
    join.phase = op(head_.loss).phase;
    join.results = {whole};
    ops_.push_back(std::move(join));
  }

  plan::Segment &segment_;
  const LossHead head_;
  std::vector<Op> &ops_;
  int64_t rows_, chunk_;
  std::vector<ValueId> losses_, dx_;
  ValueId dw_; ///< the weight's gradient so far
};

/// Whether no op reads the value as an operand; ops may accumulate into it.
bool isOnlyAddedTo(const plan::Segment &segment, ValueId value) {
  auto reads = [&](const Op &op) {
    return std::ranges::find(op.operands, value) != op.operands.end();
  };
  return std::ranges::none_of(segment.ops, reads);
}

/// Orders the losses that add to the gradient of one weight as in the forward pass; the backward
/// pass has the reverse order. A loss that adds to another gradient is not chunked, because that
/// gradient does not exist yet at the loss.
void orderSums(const plan::Segment &segment, std::vector<std::optional<LossHead>> &heads) {
  std::map<ValueId, uint32_t> addsTo; // by gradient: the loss that adds to it
  std::vector<uint32_t> firsts;       // losses whose gradient is the first in the backward pass
  for (uint32_t i = 0; i < heads.size(); ++i) {
    if (!heads[i] || !heads[i]->hasGradients())
      continue;
    const Op &dw = segment.ops[heads[i]->dw];
    heads[i]->sum = dw.results[0];
    if (dw.ties.empty())
      firsts.push_back(i);
    else if (dw.ties[0].kind == plan::Tie::Acc && dw.ties[0].pred == plan::Pred::Always)
      addsTo[dw.ties[0].value] = i;
  }
  std::vector<uint8_t> isOrdered(heads.size());
  for (uint32_t first : firsts) {
    std::vector<uint32_t> chain = {first};
    for (auto next = addsTo.find(heads[first]->sum);
         next != addsTo.end() && isOnlyAddedTo(segment, next->first);
         next = addsTo.find(heads[next->second]->sum))
      chain.push_back(next->second);
    std::vector<ValueId> sums;
    for (uint32_t loss : chain)
      sums.push_back(heads[loss]->sum);
    std::ranges::sort(chain);
    for (size_t i = 0; i < chain.size(); ++i) {
      heads[chain[i]]->before = i == 0 ? kNone : sums[i - 1];
      heads[chain[i]]->sum = sums[i];
      isOrdered[chain[i]] = 1;
    }
  }
  for (uint32_t i = 0; i < heads.size(); ++i)
    if (heads[i] && heads[i]->hasGradients() && isOrdered[i] == 0)
      heads[i].reset();
}

/// Finds the ops of each loss head, then replaces them by ops per chunk at the position of the
/// loss.
void chunkLosses(plan::Segment &segment) {
  LossHeadFinder finder(segment);
  std::vector<std::optional<LossHead>> heads(segment.ops.size());
  std::vector<uint8_t> isReplaced(segment.ops.size());
  for (uint32_t i = 0; i < segment.ops.size(); ++i) {
    if (segment.ops[i].kind != OpKind::VocabLoss || segment.ops[i].getInt(Key::chunk_rows) == 0)
      continue;
    heads[i] = finder.find(i);
  }
  orderSums(segment, heads);
  for (const std::optional<LossHead> &head : heads)
    if (head)
      for (uint32_t index : {head->product, head->stats, head->gather, head->loss, head->entropy,
                             head->dx, head->dw})
        if (index != kNone)
          isReplaced[index] = 1;
  std::vector<Op> ops;
  ops.reserve(segment.ops.size());
  for (uint32_t i = 0; i < segment.ops.size(); ++i)
    if (heads[i])
      ChunkWriter(segment, *heads[i], ops).run();
    else if (isReplaced[i] == 0)
      ops.push_back(segment.ops[i]);
  plan::replaceOps(segment, std::move(ops));
}

} // namespace

void runChunkLossHead(plan::Plan &plan, Notes &) {
  if (plan::groupToCutOf(plan, plan::GroupKind::Tensor) <
      0) // no tensor-parallel rank has a shard of the logits
    return;
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments)
      if (segment.body)
        chunkLosses(segment);
}

} // namespace shardc::passes
