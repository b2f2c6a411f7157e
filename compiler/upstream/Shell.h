// Interprets launch scripts of the shell: a syntax tree of simple commands, assignments, arrays,
// conditions and here-documents, and a runner that does the assignments and collects the commands.
// It starts no program, and reads no file or variable outside the script.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compiler/diag/Engine.h"

namespace shardc::upstream {

struct ShellWord;

/// A piece of a word: text, or what `$` introduces.
struct ShellPart {
  enum class Kind : uint8_t { Text, Variable, Arithmetic, Command };
  Kind kind = Kind::Text;
  bool quoted = false;
  std::string text;  ///< Text, the expression of Arithmetic, the script of Command
  std::string name;  ///< Variable
  std::string index; ///< Variable of an array: `@`, `*` or an arithmetic expression
  std::string op;    ///< Variable: `:-`, `-`, `:=`, `=`, `:+`, `+`, `#` (its length), or foreign
  std::shared_ptr<ShellWord> argument; ///< of the operator
};

struct ShellWord {
  std::vector<ShellPart> parts;
  SourceRange range;
  /// The text of a word without quotes and expansions, as reserved words are; empty otherwise.
  std::string plain() const;
};

/// An element of an array as it is assigned: `word` or `[index]=word`.
struct ShellElement {
  std::string index; ///< an arithmetic expression, or empty
  ShellWord word;
};

struct ShellAssignment {
  std::string name;
  std::string index; ///< of the one element that is assigned, or empty
  bool append = false;
  bool isArray = false;
  ShellWord value;                    ///< not for arrays
  std::vector<ShellElement> elements; ///< for arrays
};

struct ShellLink;
using ShellList = std::vector<ShellLink>;

struct ShellCase {
  std::vector<ShellWord> patterns;
  ShellList body;
};

struct ShellNode {
  enum class Kind : uint8_t { Simple, If, Case, Loop, Function, Group };
  Kind kind = Kind::Simple;
  bool negated = false; ///< it follows a `!`
  SourceRange range;
  std::vector<ShellAssignment> assignments;              ///< Simple
  std::vector<ShellWord> words;                          ///< Simple; Case: the subject
  std::vector<ShellWord> documents;                      ///< Simple: bodies of here-documents
  std::vector<std::pair<ShellList, ShellList>> branches; ///< If: condition and body
  ShellList body;                                        ///< If: of else; Loop, Function, Group
  std::vector<ShellCase> cases;                          ///< Case
  std::string name;                                      ///< Function
};

/// A command and the operator after it: `;`, `&&`, `||` or `|`.
struct ShellLink {
  ShellNode node;
  std::string next;
};

struct ShellScript {
  ShellList list;
  std::vector<ShellWord> directives; ///< `#SBATCH` lines, without that word
};

/// Text of a script, where it stands in the input, and the place of all of it where it is itself
/// the value of an expansion.
struct ShellText {
  llvm::StringRef text;
  SourceLoc begin;   ///< of the text's first byte, if the text is a literal part of the input
  SourceRange whole; ///< otherwise: where messages about it point to
};

/// The script's syntax tree; syntax errors are reported and end it there.
std::optional<ShellScript> parseShell(const ShellText &text, DiagEngine &diags, unsigned depth = 0);

/// The parts of a text between double quotes.
ShellWord parseShellQuoted(const ShellText &text, DiagEngine &diags, unsigned depth = 0);

/// A word of a command after expansion.
struct RanWord {
  std::string text;
  SourceRange range;
};

struct RanCommand {
  std::vector<RanWord> words;
  std::vector<std::pair<std::string, std::string>> environment; ///< assignments before it
  SourceRange range;
};

/// A variable that the script hands to its commands; no value where it is unset.
struct RanVariable {
  std::optional<std::string> value;
  SourceRange range;
};

/// The final value of a variable.
struct RanArray {
  std::string name;
  bool isArray = false; ///< false: `words` is the one value of a plain variable
  std::vector<RanWord> words;
};

struct ShellRun {
  std::vector<RanCommand> commands; ///< in order
  std::vector<RanWord> directives;
  std::map<std::string, RanVariable> exported;
  std::vector<RanArray> arrays; ///< by first use
};

/// Runs a script with some variables set beforehand. Conditions that cannot be decided are
/// reported where they guard anything that matters, and their branches left out.
std::optional<ShellRun> runShell(const ShellText &text,
                                 const std::map<std::string, std::string> &variables,
                                 DiagEngine &diags);

} // namespace shardc::upstream
