// Aggregates a rank's work for a page: a limited number of blocks, the communication that no kernel
// overlaps, and sums per op.
#pragma once

#include <array>

#include "compiler/page/Work.h"

namespace shardc::page {

/// Adjacent pieces on one stream, drawn as one rectangle.
struct Block {
  uint32_t lane = 0;
  double begin = 0, end = 0;              ///< seconds
  std::array<double, kClassCount> busy{}; ///< seconds in which pieces run, by class
  Class of = Class::Other;                ///< class with the largest busy time
  bool isMixed = false;                   ///< the pieces have several classes
  size_t count = 0;                       ///< number of pieces
  std::string name;                       ///< the piece's label, or the names that all pieces share
  int64_t microbatch = -1;                ///< -1 if the pieces belong to several microbatches
};

/// Which pieces form one block, from fine to coarse.
enum class Grain : uint8_t { Op, Unit, Pass, Segment, Time };
const char *toString(Grain);

struct Timeline {
  Grain grain = Grain::Op;
  std::vector<Block> blocks; ///< by lane, then by begin
};

/// The timeline with the finest grain that needs at most `blocksMax` blocks. Grain `Time` divides
/// the step into equal intervals, so it always fits.
Timeline timelineOf(const Work &work, size_t blocksMax);

/// An interval in which at least one transfer but no kernel runs.
struct Exposed {
  double begin = 0, end = 0;
  size_t piece = 0;   ///< the running transfer that began first
  double seconds = 0; ///< exposed seconds; less than end - begin only after `thinned`
};
std::vector<Exposed> exposedOf(const Work &work);

/// Reduces the list to at most `countMax` entries by merging the closest neighbours. A merged entry
/// may contain kernels; its `piece` is that of its longest part.
std::vector<Exposed> thinned(std::vector<Exposed> list, size_t countMax);

/// The total of all pieces of one kind of op; for transfers, separately per group.
struct OpSum {
  uint32_t op = 0, group = 0; ///< index into Work::names
  bool isTransfer = false;
  size_t count = 0;
  double seconds = 0;
  double exposed = 0;
};
/// The sums, longest first.
std::vector<OpSum> sumsOf(const Work &work, const std::vector<Exposed> &exposed);

/// How a rank spends its time; the three shares add up to `total`.
struct Shares {
  double total = 0;     ///< from 0 to the end of the last piece
  double computing = 0; ///< at least one kernel runs
  double exposed = 0;   ///< only transfers run
  double idle = 0;      ///< nothing runs
};
Shares sharesOf(const Work &work, const std::vector<Exposed> &exposed);

} // namespace shardc::page
