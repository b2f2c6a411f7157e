// Aggregates a rank's work for a page: as few blocks as asked for, communication that nothing
// overlaps, and sums by op.
#pragma once

#include <array>

#include "compiler/page/Work.h"

namespace shardc::page {

/// Neighbouring pieces of one stream, as one.
struct Block {
  uint32_t lane = 0;
  double begin = 0, end = 0;              ///< seconds
  std::array<double, kClassCount> busy{}; ///< of the pieces themselves, by class
  Class of = Class::Other;                ///< that of most of the busy time
  bool isMixed = false;                   ///< there are pieces of other classes
  size_t count = 0;                       ///< of pieces
  std::string name;                       ///< the piece's label, or what the pieces have in common
  int64_t microbatch = -1;                ///< of all of them; -1 otherwise
};

/// The property that the pieces of a drawn block share, from fine to coarse.
enum class Grain : uint8_t { Op, Unit, Pass, Segment, Time };
const char *toString(Grain);

struct Timeline {
  Grain grain = Grain::Op;
  std::vector<Block> blocks; ///< by lane, then by begin
};

/// The timeline with the finest grain that has at most `blocksMax` blocks. Grain `Time` divides the
/// whole time into equal parts, and always fits.
Timeline timelineOf(const Work &work, size_t blocksMax);

/// Time in which a transfer runs and no kernel does.
struct Exposed {
  double begin = 0, end = 0;
  size_t piece = 0;   ///< the transfer that began first, on which it is charged
  double seconds = 0; ///< of exposed time between begin and end: all of it, until thinned
};
std::vector<Exposed> exposedOf(const Work &work);

/// Shortens the list to `countMax` entries, by merging those that are closest to each other. A
/// merged entry may have kernels inside, and has the piece of its longest part.
std::vector<Exposed> thinned(std::vector<Exposed> list, size_t countMax);

/// All pieces of one op of the table; of transfers those of one group.
struct OpSum {
  uint32_t op = 0, group = 0; ///< in Work::names
  bool isTransfer = false;
  size_t count = 0;
  double seconds = 0;
  double exposed = 0;
};
/// The longest first.
std::vector<OpSum> sumsOf(const Work &work, const std::vector<Exposed> &exposed);

/// The time of a rank by kind; the parts add up to `total`.
struct Shares {
  double total = 0;     ///< from 0 to the end of the last piece
  double computing = 0; ///< a kernel runs
  double exposed = 0;   ///< only transfers run
  double idle = 0;      ///< nothing runs
};
Shares sharesOf(const Work &work, const std::vector<Exposed> &exposed);

} // namespace shardc::page
