// The contents of a rank's arenas over a training step, and the largest buffers at peak memory.
#pragma once

#include <string>
#include <vector>

#include "runtime/plan/Plan.h"
#include "runtime/plan/Summary.h"

namespace shardc::page {

/// A buffer, drawn at its addresses (vertical axis) for the ops during which it exists (horizontal
/// axis). The horizontal axis numbers the ops of a step's segments in sequence, each segment once.
struct Rect {
  plan::Arena arena = plan::Arena::Work;
  int64_t offset = 0, bytes = 0;
  uint32_t begin = 0, end = 0; ///< range of ops on the axis; `end` is one past the last
  plan::Purpose purpose = plan::Purpose::Activations;
  bool isKept = false; ///< a cell: its content outlives the segment
  std::string name;
  std::string madeBy; ///< name of the op that writes it first; empty for a cell
};

/// The range of a segment on the horizontal axis.
struct Stretch {
  std::string name;
  uint32_t begin = 0, end = 0;
};

struct AddressMap {
  std::vector<Stretch> segments;
  std::vector<Rect> rects;  ///< the largest first, so that smaller ones are drawn on top
  size_t omitted = 0;       ///< number of smaller rects left out
  int64_t omittedBytes = 0; ///< bytes of the largest rect left out
  int64_t peakAt = -1;      ///< op with the highest memory use; -1 if no op uses memory
};

/// The address map of a role. If it has more than `rectsMax` rects, those with the largest area
/// (bytes times ops) are kept.
AddressMap addressMapOf(const plan::Role &role, size_t rectsMax);

/// Buffers whose names differ only in numbers.
struct Holder {
  std::string pattern; ///< for example `l*.qkv`
  plan::Purpose purpose = plan::Purpose::Activations;
  bool isKept = false;
  size_t count = 0;
  int64_t bytes = 0; ///< total
};

/// The buffers that exist at peak memory, the largest first. Their total equals that of
/// memoryByPurpose.
std::vector<Holder> holdersOf(const plan::Role &role);

/// A description of the buffers, for example `MLP activations`.
std::string wordsOf(const Holder &holder);

/// `name` with `*` for each number, such as a layer's, that no two letters precede: `l3.fc1` gives
/// `l*.fc1`.
std::string patternOf(const std::string &name);

} // namespace shardc::page
