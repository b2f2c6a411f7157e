// Checks byte by byte what the ops of one segment read, in one variant, and what the segment does
// to its role's cells.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/verify/VerifyContents.h"
#include "runtime/verify/VerifyRegions.h"
#include "runtime/verify/VerifyShadow.h"

namespace shardc::plan::verifier {

/// How a region comes to have no content.
struct Loss {
  Spot at;
  std::optional<ByteRange> bytes; ///< that are written over; none: all of it
  /// Why the content that is left there is incomplete; null if it is complete, which is usual.
  std::shared_ptr<const Finding> spoiled;
};

/// What a segment, in one variant, needs of cells and leaves in them, region by region.
struct SegmentEffect {
  /// A region whose content at the segment's start is read.
  struct Need {
    uint32_t region;
    uint32_t op;
    ValueId operand;
  };
  /// A region of a cell that the segment gives a content.
  struct Out {
    uint32_t region;
    ValueId value;
    bool isDefined;             ///< false: not in this variant, so the cell has none
    bool mayDrop;               ///< the plan says that nobody has to read it
    Loss loss;                  ///< if it has none afterwards
    std::vector<uint32_t> from; ///< regions whose content at the start is part of it
    /// What an op has made of it is of this microbatch, counted from the segment's own.
    std::optional<int64_t> shift;
  };
  /// A region that an op writes into without giving its cell a content.
  struct Clobber {
    uint32_t region;
    Loss loss;
  };
  std::vector<Need> needs;
  std::vector<Out> outs;
  std::vector<Clobber> clobbers;
};

/// By segment and variant; null where the program does not take it. Variants that execute alike
/// share one.
class SegmentEffects {
public:
  using Effect = std::shared_ptr<const SegmentEffect>;
  explicit SegmentEffects(size_t segments) : effects_(segments) {}

  void set(uint32_t segment, const Variant &variant, Effect effect) {
    for (auto &[each, own] : effects_[segment])
      if (each == variant) {
        own = std::move(effect);
        return;
      }
    effects_[segment].emplace_back(variant, std::move(effect));
  }
  const SegmentEffect *find(uint32_t segment, const Variant &variant) const {
    for (const auto &[each, effect] : effects_[segment])
      if (each == variant)
        return effect.get();
    return nullptr;
  }
  /// With the variant of each.
  const std::vector<std::pair<Variant, Effect>> &of(uint32_t segment) const {
    return effects_[segment];
  }

private:
  std::vector<std::vector<std::pair<Variant, Effect>>> effects_;
};

/// VerifyLost.cpp: contents that a role's segments leave and nobody reads.
void checkLost(Inspection &inspection, uint32_t role, const CellRegions &regions,
               const SegmentEffects &effects);

/// Finds what each variant of the segment that the program takes does to cells, and reports what
/// breaks reads-from. Adds the regions that it comes upon; follows those that existed before.
void checkBytes(const Scope &scope, CellRegions &regions, SegmentEffects &effects);

} // namespace shardc::plan::verifier
