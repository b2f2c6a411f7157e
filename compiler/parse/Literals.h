// Interprets the text of a number or a string. Independent of grammar and messages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"

namespace shardc::parse {

enum class NumberKind : uint8_t { Int, Float, Bytes, Milliseconds };

/// The reason why a text is not a number.
enum class NumberFault : uint8_t {
  None,
  Malformed,   ///< `1.2.3`, `5.`, `1e`
  Separator,   ///< `_` that is not between two digits
  UnknownUnit, ///< `80GX`
  OutOfRange,  ///< exceeds int64 or double
  Uneven,      ///< `0.3B`: not a whole number of bytes or milliseconds
};

struct NumberLiteral {
  NumberKind kind = NumberKind::Int;
  NumberFault fault = NumberFault::None;
  int64_t integer = 0;     ///< for Int, Bytes and Milliseconds
  double real = 0;         ///< for Float
  llvm::StringRef unit;    ///< as written
  std::string replacement; ///< the corrected text, if it is nearly certain
};

/// Interprets the text of a NUMBER token.
NumberLiteral decodeNumber(llvm::StringRef text);

/// The units of numbers: sizes, then durations.
llvm::ArrayRef<llvm::StringRef> numberUnits();

/// An error in a string, at bytes [begin, end) of its text.
struct StringFault {
  enum class Kind : uint8_t { UnknownEscape, BadCodePoint, Control } kind;
  size_t begin = 0;
  size_t end = 0;
};

/// Resolves the escapes of a string: `\" \\ \n \t \r \u{1F600}`; `text` includes the quotes. The
/// value is complete except for erroneous parts. Returns only the first error in `fault`.
std::string decodeString(llvm::StringRef text, std::optional<StringFault> &fault);

/// The string in double quotes, with escapes.
std::string encodeString(llvm::StringRef value);

} // namespace shardc::parse
