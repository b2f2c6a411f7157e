// Locations in source text. A SourceLoc is one 32-bit number that the SourceManager maps to a
// buffer and an offset, so nodes and diagnostics stay small. Ranges are half-open, in one buffer.
#pragma once

#include <compare>
#include <cstdint>

namespace shardc {

/// One of the buffers of a SourceManager, in the order in which they were added.
struct BufferId {
  uint32_t index = 0;
  auto operator<=>(const BufferId &) const = default;
};

/// A byte in some buffer, or none. Locations are ordered by buffer, then by offset.
class SourceLoc {
public:
  constexpr SourceLoc() = default;

  constexpr bool isValid() const { return raw_ != 0; }
  /// The location `bytes` further on in the same buffer; not checked against its end.
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
  uint32_t raw_ = 0; ///< 0 is not a location; a buffer at base b has its first byte at b
};

/// The bytes [begin, end) of one buffer; an empty range is a position between two bytes.
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
  /// The smallest range over both; an invalid one adds nothing.
  constexpr SourceRange joined(SourceRange other) const {
    if (!isValid() || !other.isValid())
      return isValid() ? *this : other;
    return {begin < other.begin ? begin : other.begin, end > other.end ? end : other.end};
  }
  auto operator<=>(const SourceRange &) const = default;
};

} // namespace shardc
