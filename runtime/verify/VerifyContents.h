// Traces which op wrote each byte of a value, in one variant of a segment. Ties, views, packs and
// gathers in place do not copy bytes, so the bytes of a value may come from several ops. A `source`
// below is a value that an op writes, or a live-in of the segment.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/verify/VerifyImpl.h"
#include "runtime/verify/VerifyRange.h"

namespace shardc::plan::verifier {

/// True if the gather's operand is this rank's part of its result buffer. NCCL then leaves that
/// part as it is, so those bytes keep their source.
bool gathersInPlace(const Plan &plan, const Role &role, const Segment &segment, const Op &op);

class Contents {
public:
  Contents(const Scope &scope, Variant variant);

  /// False if the variant does not execute the op that defines the value.
  bool isDefined(ValueId value) const { return contents_[value].kind != Kind::Undefined; }
  /// The source of all bytes of the value, or kNone if they have several sources.
  ValueId soleSource(ValueId value) const {
    return contents_[value].kind == Kind::Leaf ? contents_[value].target : kNone;
  }
  /// True if the value contains only some bytes of its source.
  bool isNarrow(ValueId value) const { return contents_[value].isNarrow; }

  /// Calls fn(source, range) for each piece of `range`, which must lie inside the value's buffer.
  /// Padding between the parts of a pack has no source and is skipped. Needs a placed plan.
  template <typename Fn> void forEachPiece(ValueId value, const Range &range, const Fn &fn) const;

  /// True if packs and views are nested deeper than the analysis follows; the plan is then refused.
  bool isTooDeep() const { return tooDeep_; }

private:
  enum class Kind : uint8_t { Undefined, Leaf, Composite };
  struct Content {
    Kind kind = Kind::Undefined;
    bool isNarrow = false;
    uint8_t depth = 0;      ///< of nested composites
    ValueId target = kNone; ///< the source, or the result of the pack or gather
  };

  void define(uint32_t opIndex);
  Content composite(const Op &op);

  Inspection &report_;
  const Plan &plan_;
  const Role &role_;
  const Segment &segment_;
  Variant variant_;
  Indices indices_;
  std::vector<Content> contents_;
  bool tooDeep_ = false;
};

template <typename Fn>
void Contents::forEachPiece(ValueId value, const Range &range, const Fn &fn) const {
  const Content &content = contents_[value];
  if (content.kind == Kind::Leaf)
    return fn(content.target, range);
  if (content.kind == Kind::Undefined)
    return;
  const Op &op = segment_.ops[segment_.values[content.target].def];
  if (!report_.spend(op.operands.size()))
    return;
  for (ValueId part : op.operands) {
    Range piece = range.intersect(Range::of(segment_.values[part], indices_), indices_);
    if (piece.findIndex(indices_))
      forEachPiece(part, piece, fn);
  }
  if (op.kind != OpKind::AllGather)
    return;
  // The gather writes what lies before and after this rank's own part.
  Range own = Range::of(segment_.values[op.operands[0]], indices_);
  for (const Range &rest : {range.before(own, indices_), range.behind(own, indices_)})
    if (rest.findIndex(indices_))
      fn(content.target, rest);
}

} // namespace shardc::plan::verifier
