// Traces the contents of values in one variant of a segment: which op's result each of their bytes
// comes from, through ties, views, packs and gathers in place. `source` below is a value that an op
// writes, or a live-in one.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/verify/VerifyImpl.h"
#include "runtime/verify/VerifyRange.h"

namespace shardc::plan::verifier {

/// Variants of the segment that its program takes, one of each set that executes the same.
std::vector<Variant> distinctVariants(Inspection &inspection, uint32_t role, uint32_t segment);

/// True if the gather's operand is this rank's own part of its result, which it then leaves as it
/// is.
bool gathersInPlace(const Plan &plan, const Role &role, const Segment &segment, const Op &op);

class Contents {
public:
  Contents(const Scope &scope, Variant variant);

  /// False for what the variant does not make.
  bool isDefined(ValueId value) const { return contents_[value].kind != Kind::Undefined; }
  /// The single source of all of the value's bytes, or kNone if there are several.
  ValueId soleSource(ValueId value) const {
    return contents_[value].kind == Kind::Leaf ? contents_[value].target : kNone;
  }
  /// True if a view cuts the value out of something with several sources: which of them it has is a
  /// matter of bytes.
  bool isCutOut(ValueId value) const {
    return contents_[value].kind == Kind::Composite && contents_[value].isNarrow;
  }
  /// True if the value is only a part of its source.
  bool isNarrow(ValueId value) const { return contents_[value].isNarrow; }

  /// Calls fn(source) for all sources of a defined value that is not a cut-out; with `ofWhole`,
  /// also for those of what it is cut out of.
  template <typename Fn>
  void forEachSource(ValueId value, const Fn &fn, bool ofWhole = false) const {
    const Content &content = contents_[value];
    if (content.kind == Kind::Leaf)
      fn(content.target);
    else if (content.kind == Kind::Composite && (ofWhole || !content.isNarrow))
      forEachPart(
          content, [&](ValueId part) { forEachSource(part, fn, ofWhole); }, fn);
  }

  /// Calls fn(source, range) for all bytes of `range`, which lies inside the value's buffer. Bytes
  /// between the parts of a pack are left out. For placed plans.
  template <typename Fn> void forEachPiece(ValueId value, const Range &range, const Fn &fn) const;

  /// True if packs and views are nested deeper than is followed.
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

  template <typename OnPart, typename OnSource>
  void forEachPart(const Content &content, const OnPart &onPart, const OnSource &onSource) const {
    const Op &op = segment_.ops[segment_.values[content.target].def];
    if (!report_.spend(op.operands.size()))
      return;
    for (ValueId part : op.operands)
      onPart(part);
    if (op.kind == OpKind::AllGather)
      onSource(content.target);
  }

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
    if (!piece.isEmpty(indices_))
      forEachPiece(part, piece, fn);
  }
  if (op.kind != OpKind::AllGather)
    return;
  // The gather writes what lies before and after this rank's own part.
  Range own = Range::of(segment_.values[op.operands[0]], indices_);
  for (const Range &rest : {range.before(own, indices_), range.behind(own, indices_)})
    if (!rest.isEmpty(indices_))
      fn(content.target, rest);
}

} // namespace shardc::plan::verifier
