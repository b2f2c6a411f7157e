// Reads-from analysis of one variant of a segment, byte by byte: which contents its ops read, and
// how the segment changes the cells of its role. checkPrograms() joins the effects along the
// program. Needs a placed plan.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/verify/VerifyContents.h"
#include "runtime/verify/VerifyRegions.h"
#include "runtime/verify/VerifyShadow.h"

namespace shardc::plan::verifier {

/// Why a region has no valid content. A message about a later read shows it.
struct Loss {
  Spot at;
  std::optional<ByteRange> bytes; ///< the overwritten bytes; none: all of them
  /// Why the content of the cell is incomplete; null if it is complete, the usual case.
  std::shared_ptr<const Finding> corrupted;
};

/// The effect of one variant of a segment on cells: the regions that it reads, stores to, and
/// overwrites.
struct SegmentEffect {
  /// A region whose content at the segment's start an op reads.
  struct Need {
    uint32_t region;
    uint32_t op;
    ValueId operand;
  };
  /// A region of a cell to which the segment stores a value.
  struct Out {
    uint32_t region;
    ValueId value;
    bool isDefined;             ///< false: not in this variant; the cell becomes undefined
    Loss loss;                  ///< why the region has no content afterwards, if so
    bool isWritten = false;     ///< its content is not the one that it had at the start
    std::vector<uint32_t> from; ///< live-in regions that are part of its content
  };
  /// A region that loses its content: an op overwrites its bytes, and the segment stores nothing to
  /// its cell.
  struct Clobber {
    uint32_t region;
    Loss loss;
  };
  std::vector<Need> needs;
  std::vector<Out> outs;
  std::vector<Clobber> clobbers;
};

/// Effects by segment, and by the variants that the program executes. Variants that execute the
/// same ops share one effect.
using SegmentEffects = std::vector<std::map<Variant, std::shared_ptr<const SegmentEffect>>>;

/// Computes the effect of each executed variant of the segment and reports reads of undefined
/// bytes. Adds the regions that these reads use to `regions`. An effect covers only regions that
/// existed before the call, so callers repeat the call until it adds no region.
void checkBytes(const Scope &scope, CellRegions &regions, SegmentEffects &effects);

} // namespace shardc::plan::verifier
