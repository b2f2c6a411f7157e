// An open document of an editor: its text, positions as the protocol counts them (lines from 0,
// columns in UTF-16 units), and file names as URIs.
#pragma once

#include <cstdint>
#include <string>

#include "llvm/ADT/StringRef.h"

namespace shardc::lsp {

/// A place as the protocol counts: both from 0, the column in UTF-16 code units.
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

  /// The byte at a position; a position beyond a line or the text is moved to its end.
  size_t offsetOf(Position at) const;
  Position positionOf(size_t offset) const;
  /// Replaces the bytes between two positions, given in any order.
  void replace(Position begin, Position end, llvm::StringRef with);
};

/// `file:///a%20b` as a path; a URI of another scheme unchanged.
std::string pathOfUri(llvm::StringRef uri);

/// An absolute or relative path as a `file:` URI; a URI of another scheme unchanged.
std::string uriOfPath(llvm::StringRef path);

} // namespace shardc::lsp
