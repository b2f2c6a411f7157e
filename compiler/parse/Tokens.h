// The tokens of a buffer with their locations, and checks before parsing: errors of single tokens,
// partners of brackets, nesting. Internal to compiler/parse, since it includes ANTLR.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "compiler/basic/SourceManager.h"
#include "compiler/diag/Engine.h"

namespace antlr4 {
class Token;
}

namespace shardc::parse {

/// Whether a buffer holds a recipe or the text of a `--set`.
enum class InputKind : uint8_t { Recipe, Setting };

/// Maximum number of words in a recipe.
inline constexpr size_t kTokensMax = 1'000'000;

inline constexpr size_t kNoToken = ~size_t{0};

/// A token in the form that this folder uses. Its index equals ANTLR's token index.
struct Lexeme {
  enum class State : uint8_t {
    Seen,    ///< passed to the parser
    Comment, ///< kept for the formatter
    Dropped, ///< reported; the parser ignores it
  };
  size_t type = 0; ///< RecipeLexer's
  SourceRange range;
  llvm::StringRef text;
  unsigned line = 0; ///< line of the first byte, counted from 1 in the buffer
  State state = State::Seen;
  size_t partner = kNoToken; ///< index of the matching bracket, if there is one
};

class TokenList {
public:
  const Lexeme &operator[](size_t index) const { return lexemes_[index]; }
  size_t size() const { return lexemes_.size(); }
  size_t endIndex() const { return lexemes_.size() - 1; } ///< index of the EOF token

  /// The next or previous token that the parser sees. `next` of the EOF token is the EOF token;
  /// `previous` may be kNoToken.
  size_t next(size_t index) const;
  size_t previous(size_t index) const;

  /// Whether the token is a name, or a keyword that may be used as a name.
  bool isName(size_t index) const;
  /// Whether `a.b =` or `a.b:` begins here.
  bool isSettingHead(size_t index) const;
  /// Whether a setting, a section (`a {`, or `a b {` with both names on one line) or a `let` begins
  /// here.
  bool isItemHead(size_t index) const;
  bool isFirstOnLine(size_t index) const;
  /// Whether a token was dropped between the previous token of the parser and this one.
  bool isBehindDropped(size_t index) const;

  /// Whether errors about single tokens were reported.
  bool hasFaults() const { return hasFaults_; }

  /// An open `{` that probably lacks its `}`, according to the indentation of braces; kNoToken if
  /// every brace has a partner.
  size_t unclosedBrace() const { return unclosedBrace_; }

  /// The tokens for a parser of ANTLR, which takes ownership. They contain no text.
  std::vector<std::unique_ptr<antlr4::Token>> antlrTokens() const;

private:
  friend class Scanner;
  size_t behindPath(size_t index) const;

  std::vector<Lexeme> lexemes_;
  size_t unclosedBrace_ = kNoToken;
  bool hasFaults_ = false;
};

/// Splits a buffer into tokens and reports malformed ones. Empty if the buffer cannot be parsed at
/// all (not UTF-8, too large, nested too deeply), which is also reported.
std::optional<TokenList> scanTokens(BufferId buffer, InputKind kind, DiagEngine &diags);

} // namespace shardc::parse
