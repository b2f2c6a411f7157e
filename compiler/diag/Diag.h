// The parts of a message: its table row (DiagInfo), its arguments, and the finished Diagnostic with
// location, notes and fix-its, which consumers print. Rows come from Diagnostics.def as typed
// constants (`diag::UnknownKey`), or are created at run time from other tables, such as the rules
// of compiler/config.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "compiler/basic/SourceManager.h"
#include "runtime/base/Report.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"

namespace shardc {

/// `error`, `warning`, `remark` or `note`.
llvm::StringRef severityName(Severity severity);

/// One row of a table of messages. Its strings need to live only until the message is reported.
struct DiagInfo {
  Severity severity = Severity::Error;
  llvm::StringRef id;
  llvm::StringRef group; ///< empty: no -W flag affects it
  llvm::StringRef text;  ///< with the placeholders described in Diagnostics.def
};

/// One argument of a message: a string or an integer.
class DiagArg {
public:
  DiagArg(llvm::StringRef text) : value_(text.str()) {}
  DiagArg(const std::string &text) : value_(text) {}
  DiagArg(std::string_view text) : value_(std::string(text)) {}
  DiagArg(const char *text) : value_(std::string(text)) {}
  template <typename T, std::enable_if_t<std::is_integral_v<T>, int> = 0>
  DiagArg(T number) : value_(static_cast<int64_t>(number)) {}

  bool isInt() const { return std::holds_alternative<int64_t>(value_); }
  /// The number; 0 for a string.
  int64_t integer() const { return isInt() ? std::get<int64_t>(value_) : 0; }
  std::string str() const;

private:
  std::variant<std::string, int64_t> value_;
};

/// Replaces the placeholders in the text by the arguments. A placeholder without an argument stays
/// unchanged.
std::string formatDiagText(llvm::StringRef text, llvm::ArrayRef<DiagArg> args);

/// Describes the error in the placeholders of a text with `numArgs` arguments; empty if there is
/// none. Used by tests of message tables.
std::string checkDiagText(llvm::StringRef text, size_t numArgs);

/// Replaces the bytes of `range` by `text`. With an empty range it is an insertion, with an empty
/// text a removal.
struct TextEdit {
  SourceRange range;
  std::string text;
};

enum class FixItKind : uint8_t {
  Applied,     ///< nearly certain: `--fix` applies it, and the compiler continues as if it were
               ///< applied
  Recommended, ///< a better setting: only `--fix=recommended` applies it
  Alternative, ///< one of several solutions: never applied automatically
};

/// A fix-it. Its edits are applied together or not at all.
struct FixIt {
  FixItKind kind = FixItKind::Applied;
  std::vector<TextEdit> edits;

  static FixIt replace(SourceRange range, llvm::StringRef text,
                       FixItKind kind = FixItKind::Applied);
  static FixIt insert(SourceLoc at, llvm::StringRef text, FixItKind kind = FixItKind::Applied);
  static FixIt remove(SourceRange range, FixItKind kind = FixItKind::Applied);
  /// Adds an edit in another place to the same fix-it.
  FixIt &&andReplace(SourceRange range, llvm::StringRef text) &&;
};

/// A message, or a note below one.
struct Message {
  Severity severity = Severity::Error;
  std::string id;
  std::string text;
  SourceRange range;                   ///< location of the caret; invalid if there is none
  std::vector<SourceRange> highlights; ///< further ranges to underline if they are on the same line
  std::vector<FixIt> fixIts;
};

/// A complete message, as consumers receive it, including its notes.
struct Diagnostic : Message {
  std::string group;
  bool promoted = false; ///< a warning that -Werror turned into an error
  /// Whether it is a remark about a value that the user did not write and that follows from a
  /// written one. Such remarks are not counted.
  bool isConsequence = false;
  unsigned phase = 0; ///< phase of DiagEngine in which it was reported
  std::vector<Message> notes;
};

/// A typed row of Diagnostics.def: `report` requires exactly these arguments.
template <typename... Args> struct TypedDiag { DiagInfo info; };

namespace diag {
using Str = const DiagArg &; ///< anything that converts to a DiagArg
struct Int {                 ///< any integer
  int64_t value = 0;
  template <typename T, std::enable_if_t<std::is_integral_v<T>, int> = 0>
  constexpr Int(T number) : value(static_cast<int64_t>(number)) {}
};

/// Index of each row of Diagnostics.def.
enum class Kind : uint16_t {
#define DIAG(severity, name, id, group, text, ...) name,
#include "compiler/diag/Diagnostics.def"
};

#define DIAG(severity, name, id, group, text, ...)                                                 \
  inline constexpr TypedDiag<__VA_ARGS__> name{{Severity::severity, id, group, text}};
#include "compiler/diag/Diagnostics.def"
} // namespace diag

inline DiagArg toDiagArg(const DiagArg &arg) { return arg; }
inline DiagArg toDiagArg(diag::Int arg) { return DiagArg(arg.value); }

/// A row of Diagnostics.def. DiagTable.cpp lists all rows in order, with their numbers of
/// arguments.
struct DiagRow {
  DiagInfo info;
  llvm::StringRef name;
  unsigned numArgs = 0;
};
llvm::ArrayRef<DiagRow> diagTable();

} // namespace shardc
