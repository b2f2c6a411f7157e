// A document that is open in an editor, positions as the Language Server Protocol counts them, and
// conversion between paths and `file:` URIs.
#pragma once

#include <cstdint>
#include <string>

#include "llvm/ADT/StringRef.h"

namespace shardc::lsp {

/// A position of the protocol: line and column count from 0, the column in UTF-16 code units.
struct Position {
  uint32_t line = 0;
  uint32_t character = 0;
  auto operator<=>(const Position &) const = default;
};

struct Document {
  std::string uri;
  std::string path; ///< the path that the compiler uses
  std::string text;
  int64_t version = 0;

  /// The byte offset of a position. Positions after the end of a line or of the text give that end.
  size_t offsetOf(Position at) const;
  Position positionOf(size_t offset) const;
  /// Replaces the text between two positions, which may be in either order.
  void replace(Position begin, Position end, llvm::StringRef with);
};

/// Converts `file:///a%20b` to `/a b`. Returns a URI of another scheme unchanged.
std::string pathOfUri(llvm::StringRef uri);

/// Converts an absolute or relative path to a `file:` URI. Returns a URI of another scheme
/// unchanged.
std::string uriOfPath(llvm::StringRef path);

} // namespace shardc::lsp
