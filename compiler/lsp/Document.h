// What an editor has open: the text as it stands there, places in it as the protocol counts them
// (lines from 0, columns in UTF-16 units), and the names of files as URIs.
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
  std::string path; ///< what the compiler knows it by
  std::string text;
  int64_t version = 0;

  /// The byte at a position; one beyond a line or the text is moved to its end.
  size_t offsetOf(Position at) const;
  Position positionOf(size_t offset) const;
  /// Replaces the bytes between two positions, in whichever order they are given.
  void replace(Position begin, Position end, llvm::StringRef with);
};

/// `file:///a%20b` as a path; another scheme's URI as it is.
std::string pathOfUri(llvm::StringRef uri);

/// An absolute or relative path as a `file:` URI; what is none (a URI of another scheme) as it is.
std::string uriOfPath(llvm::StringRef path);

} // namespace shardc::lsp
