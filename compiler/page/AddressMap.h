// The contents of a rank's arenas over a training step, and the largest buffers at the point of
// peak memory.
#pragma once

#include <string>
#include <vector>

#include "runtime/plan/Plan.h"
#include "runtime/plan/Summary.h"

namespace shardc::page {

/// A buffer at its addresses. The horizontal axis of a map counts the ops of the segments of a step
/// one after the other, each segment once.
struct Rect {
  plan::Arena arena = plan::Arena::Work;
  int64_t offset = 0, bytes = 0;
  uint32_t begin = 0, end = 0; ///< ops of the map; end is one past the last
  plan::Purpose purpose = plan::Purpose::Activations;
  bool isKept = false; ///< a cell, whose content outlives segments
  std::string name;
  std::string madeBy; ///< the op that makes it, by its name in the op table; empty for a cell
};

/// A segment's part of the axis.
struct Stretch {
  std::string name;
  uint32_t begin = 0, end = 0;
};

struct AddressMap {
  std::vector<Stretch> segments;
  std::vector<Rect> rects;  ///< the largest first, so that smaller ones are drawn on them
  size_t omitted = 0;       ///< smaller ones that were left out
  int64_t omittedBytes = 0; ///< of the largest of them
  int64_t peakAt = -1;      ///< op of the axis at which most is needed; -1 if no op needs anything
};

/// The map with at most `rectsMax` buffers: those with the most bytes times ops.
AddressMap addressMapOf(const plan::Role &role, size_t rectsMax);

/// Buffers with the same name, but for its numbers.
struct Holder {
  std::string pattern; ///< `l*.qkv`
  plan::Purpose purpose = plan::Purpose::Activations;
  bool isKept = false;
  size_t count = 0;
  int64_t bytes = 0; ///< of all of them
};

/// The buffers at the point of peak memory, the largest first. Their bytes add up to those of
/// memoryByPurpose.
std::vector<Holder> holdersOf(const plan::Role &role);

/// What the buffers are, in words: `MLP activations`.
std::string wordsOf(const Holder &holder);

/// The text with a `*` for each number in it.
std::string patternOf(const std::string &name);

} // namespace shardc::page
