// What runs of segments have done to the marks of cells, so that it need not be found out again.
// How marks change depends on which of two microbatches is the earlier one, and on nothing else of
// their numbers. So a run that finds the same marks as an earlier one, of microbatches in the same
// order, leaves the same marks, of the microbatches in the same places of that order.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/verify/VerifySegmentSums.h"

namespace shardc::plan::verifier {

/// What a run finds: what it takes from cells and in which variant, but for what differs between
/// runs that do the same.
class RunStart {
public:
  /// `context` is in which steps it runs; `about` are microbatches that it may make marks of.
  RunStart(uint64_t context, const Variant &variant, const Holds &taken,
           const std::vector<int64_t> &about);

  bool doesAs(const RunStart &other) const { return words_ == other.words_; }
  /// A mark with the places of its microbatches in their order, and back.
  Mark ordered(Mark mark) const;
  Mark numbered(Mark mark) const;

private:
  int64_t placeOf(int64_t number) const;

  std::vector<int64_t> numbers_; ///< ends of microbatches, in order
  std::vector<uint64_t> words_;
};

/// What a run has left, and what it has met in.
struct KnownRun {
  struct Out {
    Mark mark; ///< with microbatches by their places
    /// Of what is computed from numbers that stand for what is taken; or of which of these it is.
    uint64_t number = 0;
    uint32_t taken = kNone;
  };
  RunStart start;
  std::vector<Out> outs; ///< for each boundary
  ValueNumbers::Meetings meetings;
};

/// Of the segments of a role.
class KnownRuns {
public:
  explicit KnownRuns(size_t segments) : runs_(segments) {}

  /// One that has done what a run does that begins like this; null if none is known.
  std::shared_ptr<const KnownRun> find(uint32_t segment, const RunStart &start) const;
  void keep(uint32_t segment, std::shared_ptr<const KnownRun> run);

private:
  std::vector<std::vector<std::shared_ptr<const KnownRun>>> runs_;
};

/// What stands for the number of what is taken at a boundary.
uint64_t standInFor(size_t boundary);

} // namespace shardc::plan::verifier
