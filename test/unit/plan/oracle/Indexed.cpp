#include "Indexed.h"

namespace shardc::plan::oracle {
namespace {

/// An op that computes its rank's part by the index in a group.
class Indexed {
public:
  Indexed(const Plan &plan, const Segment &segment, const Op &op)
      : segment_(segment), op_(op), members_(op.group < 0 ? 1 : plan.groupSize(op.group)) {}

  bool fits() const {
    OpKind kind = op_.kind;
    if (kind == OpKind::SplitQkv || kind == OpKind::SplitQkvRope)
      return headsFit(in(0), out(0), out(1));
    if (kind == OpKind::MergeQkv || kind == OpKind::MergeQkvRope)
      return headsFit(out(0), in(0), in(1));
    if (kind == OpKind::VocabStats || kind == OpKind::CrossEntropyBwd)
      return op_.getInt(AttrKey::valid_cols) <= columns(in(0)) * members_;
    if (kind == OpKind::Dropout)
      return rows(in(0)) * members_ % in(1).numel() == 0 &&
             (op_.operands.size() < 3 || in(2).numel() == rows(in(0)) * members_);
    if (kind == OpKind::AttentionSink)
      return op_.operands.size() < 3 || in(2).numel() == in(1).shape[1] * members_;
    if (kind == OpKind::AttentionSinkBwd)
      return in(3).numel() == in(2).shape[1] * members_;
    if (kind == OpKind::AttentionPart || kind == OpKind::AttentionPartBwd)
      return slicesFit(in(kind == OpKind::AttentionPart ? 0 : 1).shape[1]);
    return true;
  }

private:
  const Type &in(size_t i) const { return segment_.values[op_.operands[i]].type; }
  const Type &out(size_t i) const { return segment_.values[op_.results[i]].type; }
  static int64_t columns(const Type &type) { return type.shape[type.rank - 1]; }
  static int64_t rows(const Type &type) { return type.numel() / columns(type); }

  /// A row contains the queries of all members.
  bool headsFit(const Type &whole, const Type &queries, const Type &keys) const {
    return whole.numel() == members_ * queries.numel() + 2 * keys.numel();
  }

  /// Each member has two mirrored slices; `slices` members share a sequence.
  bool slicesFit(int64_t positions) const {
    int64_t slices = op_.getInt(AttrKey::slices);
    return slices == 0 ||
           (slices > 0 && members_ % slices == 0 && (slices == 1 || positions % 2 == 0));
  }

  const Segment &segment_;
  const Op &op_;
  int64_t members_;
};

} // namespace

bool membersFit(const Plan &plan, const Segment &segment, const Op &op) {
  return Indexed(plan, segment, op).fits();
}

} // namespace shardc::plan::oracle
