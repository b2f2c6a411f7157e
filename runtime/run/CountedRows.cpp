// Follows row counts through a segment. Only the first rows of such a value are valid; a check for
// non-finite numbers must not look at the others.
#include "runtime/run/CountedRows.h"

#include <algorithm>

namespace shardc::run {
namespace {

/// The value whose memory a view or pack refers to.
plan::ValueId named(const plan::Segment &segment, plan::ValueId value) {
  for (uint32_t def = segment.values[value].def;
       def != plan::kNone && plan::opInfo(segment.ops[def]).traits == plan::OpTraits::Alias;
       def = segment.values[value].def)
    value = segment.ops[def].operands[0];
  return value;
}

bool isCounts(const plan::Segment &segment, plan::ValueId value) {
  return segment.values[value].type.dtype == DType::I32 &&
         std::ranges::any_of(segment.values, [&](const plan::Value &each) {
           return each.counts != plan::kNone && named(segment, each.counts) == value;
         });
}

} // namespace

Status CountedRows::beforeSegment(const Position &position) {
  const plan::Segment &segment = executable_.segment(position.segment);
  for (const plan::Segment::Boundary &in : segment.ins)
    if (isCounts(segment, in.value))
      RETURN_IF_ERROR(keep(position, in.value));
  return Status::ok();
}

Status CountedRows::afterOp(const Position &position) {
  const plan::Segment &segment = executable_.segment(position.segment);
  for (plan::ValueId result : segment.ops[position.op].results)
    if (isCounts(segment, result))
      RETURN_IF_ERROR(keep(position, result));
  return Status::ok();
}

Status CountedRows::keep(const Position &position, plan::ValueId counts) {
  const plan::Value &value = executable_.segment(position.segment).values[counts];
  for (size_t rank : executable_.ranksOf(position.segment)) {
    ASSIGN_OR_RETURN(uint8_t * address,
                     executable_.arenas(rank).resolve(value.place, value.type.bytes(), value.name,
                                                      position.instance.slot));
    std::vector<int32_t> &kept = kept_[{position.segment, rank, counts}];
    kept.resize(static_cast<size_t>(value.type.numel()));
    RETURN_IF_ERROR(executable_.readBeside(rank, address, value.type.bytes(), kept.data()));
  }
  return Status::ok();
}

std::vector<ElementRange> CountedRows::elementsOf(uint32_t segment, size_t rank,
                                                  plan::ValueId id) const {
  const plan::Segment &of = executable_.segment(segment);
  const plan::Value &value = of.values[id];
  auto kept = value.counts == plan::kNone ? kept_.end()
                                          : kept_.find({segment, rank, named(of, value.counts)});
  if (kept == kept_.end())
    return {{0, value.type.numel()}};
  const plan::Type &counts = of.values[value.counts].type;
  int64_t slots = counts.shape[0], runs = counts.shape[1];
  int64_t slotSize = value.type.numel() / slots, rowSize = value.type.numel() / value.type.shape[0];
  std::vector<ElementRange> elements;
  for (int64_t slot = 0; slot < slots; ++slot) {
    int64_t rows = 0;
    for (int64_t run = 0; run < runs; ++run)
      rows += kept->second[static_cast<size_t>(slot * runs + run)];
    int64_t begin = slot * slotSize;
    elements.push_back({begin, begin + std::clamp<int64_t>(rows * rowSize, 0, slotSize)});
  }
  return elements;
}

} // namespace shardc::run
