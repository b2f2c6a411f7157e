// Locations in source text. A SourceLoc is one 32-bit number that the SourceManager maps to a
// buffer and an offset, so nodes and diagnostics stay small. Ranges are half-open, in one buffer.
#pragma once

#include <compare>
#include <cstdint>

namespace shardc {

/// Identifies a buffer of a SourceManager. Buffers are numbered in the order in which they were
/// added.
struct BufferId {
  uint32_t index = 0;
  auto operator<=>(const BufferId &) const = default;
};

/// A byte in a buffer, or invalid. Locations are ordered by buffer, then by offset.
class SourceLoc {
public:
  constexpr SourceLoc() = default;

  constexpr bool isValid() const { return raw_ != 0; }
  /// The location `bytes` after this one in the same buffer. Does not check the end of the buffer.
  constexpr SourceLoc advanced(int64_t bytes) const {
    return fromRaw(static_cast<uint32_t>(raw_ + bytes));
  }
  constexpr uint32_t raw() const { return raw_; }
  static constexpr SourceLoc fromRaw(uint32_t raw) {
    SourceLoc loc;
    loc.raw_ = raw;
    return loc;
  }
  auto operator<=>(const SourceLoc &) const = default;

private:
  uint32_t raw_ = 0; ///< 0: invalid; a buffer with base b has its first byte at b
};

/// The bytes [begin, end) of one buffer. An empty range is a position between two bytes.
struct SourceRange {
  SourceLoc begin;
  SourceLoc end;

  constexpr SourceRange() = default;
  constexpr SourceRange(SourceLoc begin, SourceLoc end) : begin(begin), end(end) {}
  /// The empty range at `at`.
  constexpr SourceRange(SourceLoc at) : begin(at), end(at) {}

  constexpr bool isValid() const { return begin.isValid(); }
  constexpr uint32_t sizeBytes() const { return end.raw() - begin.raw(); }
  constexpr bool contains(SourceLoc loc) const { return begin <= loc && loc < end; }
  /// The smallest range that contains both. An invalid range is ignored.
  constexpr SourceRange joined(SourceRange other) const {
    if (!isValid() || !other.isValid())
      return isValid() ? *this : other;
    return {begin < other.begin ? begin : other.begin, end > other.end ? end : other.end};
  }
  auto operator<=>(const SourceRange &) const = default;
};

} // namespace shardc
