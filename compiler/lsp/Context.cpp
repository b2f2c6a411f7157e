#include "compiler/lsp/Context.h"

#include <algorithm>
#include <utility>

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

namespace shardc::lsp {

namespace {

bool isWordChar(char c) { return llvm::isAlnum(c) || c == '_'; }

enum class TokenKind : uint8_t { Word, Text, Mark, Comment };

/// A token of a recipe as far as completion needs it: a word, a string, a single character or a
/// comment.
struct Token {
  TokenKind kind;
  size_t begin, end;
  llvm::StringRef text;
  bool is(char mark) const { return kind == TokenKind::Mark && text[0] == mark; }
};

/// The next token from `from` on, without leading blanks; at the end of the text, an empty token of
/// kind Mark.
Token nextToken(llvm::StringRef text, size_t from) {
  while (from < text.size() && llvm::isSpace(text[from]))
    ++from;
  size_t end = from;
  TokenKind kind = TokenKind::Mark;
  llvm::StringRef rest = text.drop_front(from);
  if (rest.startswith("//")) {
    kind = TokenKind::Comment;
    end = std::min(text.find('\n', from), text.size());
  } else if (rest.startswith("\"")) {
    kind = TokenKind::Text;
    for (end = from + 1; end < text.size() && text[end] != '"' && text[end] != '\n'; ++end)
      end += text[end] == '\\' && end + 1 < text.size();
    end += end < text.size() && text[end] == '"';
  } else if (!rest.empty() && isWordChar(rest[0])) {
    kind = TokenKind::Word;
    auto isPart = [&](size_t i) {
      bool isExponent = (text[i] == '-' || text[i] == '+') && (text[i - 1] | 32) == 'e' &&
                        llvm::isDigit(text[from]);
      return isWordChar(text[i]) || text[i] == '.' || isExponent;
    };
    while (end < text.size() && (end == from || isPart(end)))
      ++end;
  } else if (!rest.empty()) {
    end = from + 1;
  }
  end = std::min(end, text.size());
  return {kind, from, end, text.slice(from, end)};
}

/// Reads a recipe token by token and tracks which syntax may follow.
class Walker {
public:
  /// Advances over one complete token.
  void take(const Token &token) {
    if (token.kind == TokenKind::Comment)
      return;
    const bool isInValue = isValueOpen_ || lists_ > 0 || isBehindOperator();
    if (isInValue && token.kind == TokenKind::Word)
      add(Part::Kind::Use, token);
    if (token.is('{'))
      open();
    else if (token.is('}'))
      close(token);
    else if (token.is('='))
      expectValue();
    else if (token.is('[') || token.is('('))
      ++lists_;
    else if (token.is(']') || token.is(')'))
      closeList();
    else if (token.kind == TokenKind::Word || token.kind == TokenKind::Text)
      word(token);
    if (isInValue && setting_)
      parts_[*setting_].end = token.end;
    last_ = token;
  }

  Context context() const {
    Context out;
    out.section = section_;
    for (const Part &part : parts_)
      if (part.kind == Part::Kind::Constant)
        out.constants.push_back(part.name);
    out.written = written_;
    out.isInList = lists_ > 0;
    out.path = path_;
    bool isBehindSection = depth_ == 1 && !hasPath_ && config::findSection(name_) &&
                           config::info(*config::findSection(name_)).kind;
    if (depth_ == 0)
      out.expect = Expect::Recipe;
    else if (isValueOpen_ || lists_ > 0)
      out.expect = Expect::Value;
    else if (isBehindSection) {
      out.expect = Expect::Kind;
      out.section = config::findSection(name_);
    } else
      out.expect = depth_ == 1 ? Expect::Item : Expect::Option;
    return out;
  }

  /// The option that the last word names, or the option whose value the last word is.
  const std::string &path() const { return path_; }
  const std::vector<Part> &parts() const { return parts_; }

private:
  void add(Part::Kind kind, const Token &token) {
    parts_.push_back({kind, token.text.str(), token.begin, token.end, token.end, depth_ > 1});
  }
  void open() {
    if (depth_ == 1 && nameToken_ && !isLet_) {
      opened_ = parts_.size();
      add(Part::Kind::Section, *nameToken_);
    }
    ++depth_;
    if (depth_ == 2) {
      section_ = config::findSection(name_);
      written_.clear();
    }
    reset();
  }
  void close(const Token &token) {
    if (opened_ && depth_ == 2)
      parts_[*std::exchange(opened_, std::nullopt)].end = token.end;
    depth_ = depth_ > 0 ? depth_ - 1 : 0;
    if (depth_ <= 1)
      section_.reset();
    reset();
  }
  void reset() {
    name_.clear();
    nameToken_.reset();
    path_.clear();
    hasPath_ = isValueOpen_ = isLet_ = false;
    lists_ = 0;
  }
  void expectValue() {
    // A word without `=` after a value, where a `=` follows now, names the next option.
    if (isBehindValue_ && last_ && last_->kind == TokenKind::Word) {
      isBehindValue_ = isValueOpen_ = false;
      parts_.pop_back(); // was taken for a use
      word(*last_);
    }
    if (nameToken_ && !isValueOpen_ && !isLet_) {
      setting_ = parts_.size();
      add(Part::Kind::Option, *nameToken_);
    }
    isValueOpen_ = true;
    if (isLet_)
      path_.clear();
    else if (std::optional<config::Opt> opt = config::findOption(path_))
      written_.push_back(*opt);
  }
  void closeList() {
    lists_ = lists_ > 0 ? lists_ - 1 : 0;
    isValueOpen_ = false;
  }
  /// Follows the state of a setting: its name, perhaps a kind such as the optimizer's, then `=` and
  /// a value. A name that `let` defines is remembered as a constant.
  void word(const Token &token) {
    if (lists_ > 0 || isValueOpen_) {
      // Even after this word the value may continue, with an operator.
      isValueOpen_ = lists_ > 0;
      isBehindValue_ = true;
      return;
    }
    if (isBehindOperator())
      return;
    if (depth_ == 0 && token.kind == TokenKind::Text)
      return add(Part::Kind::Base, token);
    isBehindValue_ = false;
    bool mayBeKind = depth_ == 1 && !hasPath_ && token.kind == TokenKind::Word &&
                     !token.text.contains('.') && !config::findSection(token.text);
    if (mayBeKind && !kindOf(name_).empty()) {
      path_ = kindOf(name_);
      hasPath_ = true;
      return;
    }
    if (isLet_ && name_ == "let") {
      setting_ = parts_.size();
      add(Part::Kind::Constant, token);
      name_ = token.text.str();
      path_.clear();
      hasPath_ = true;
      return;
    }
    name_ = token.text.str();
    nameToken_ = token;
    isLet_ = token.text == "let";
    bool isDotted = token.text.contains('.');
    hasPath_ = isDotted || depth_ == 2;
    if (depth_ == 2)
      path_ = (section_ ? config::info(*section_).name.str() : std::string()) + "." + name_;
    else
      path_ = kindOf(name_).empty() ? name_ : kindOf(name_); // as in `mixed_precision = ...`
  }

  bool isBehindOperator() const {
    return isBehindValue_ && last_ && last_->kind == TokenKind::Mark &&
           llvm::StringRef("+-*/").contains(last_->text);
  }

  /// The option that the word after the section's name sets; empty if the section has no such
  /// option.
  static std::string kindOf(llvm::StringRef section) {
    std::optional<config::Section> found = config::findSection(section);
    if (!found || !config::info(*found).kind)
      return {};
    return config::info(*config::info(*found).kind).path.str();
  }

  unsigned depth_ = 0;
  unsigned lists_ = 0;
  std::optional<config::Section> section_;
  std::string name_; ///< the last word outside of a value
  std::string path_; ///< the option that `name_` refers to
  bool hasPath_ = false;
  bool isValueOpen_ = false; ///< true between `=` and the value
  bool isBehindValue_ = false;
  bool isLet_ = false;
  std::vector<config::Opt> written_;
  std::optional<Token> last_, nameToken_;
  std::vector<Part> parts_;
  std::optional<size_t> opened_, setting_; ///< of `parts_`: the open section, the last setting
};

} // namespace

/// Reads the tokens before the offset. If the last one touches it, that token is the word to
/// complete; inside of a comment or a string nothing is allowed.
Context contextAt(llvm::StringRef text, size_t offset) {
  offset = std::min(offset, text.size());
  Walker walker;
  Context context;
  for (size_t at = 0;;) {
    Token token = nextToken(text.take_front(offset), at);
    bool touches = token.end == offset && token.begin < token.end;
    if (token.begin >= token.end)
      break;
    bool isOpenText =
        token.kind == TokenKind::Text && (token.text.size() < 2 || !token.text.endswith("\""));
    if (touches && (token.kind == TokenKind::Comment || isOpenText)) {
      bool isBase = isOpenText && walker.context().expect == Expect::Recipe;
      context.expect = isBase ? Expect::Base : Expect::Nothing;
      context.wordBegin = token.begin + 1;
      context.word = isBase ? token.text.drop_front().str() : "";
      return context;
    }
    if (touches && token.kind == TokenKind::Word) {
      context = walker.context();
      auto [before, behind] = token.text.rsplit('.');
      bool isDotted = token.text.contains('.') && context.expect == Expect::Item;
      if (isDotted) {
        context.section = config::findSection(before.split('.').first);
        context.expect = Expect::Option;
      }
      context.word = isDotted ? behind.str() : token.text.str();
      context.wordBegin = offset - context.word.size();
      return context;
    }
    walker.take(token);
    at = token.end;
  }
  context = walker.context();
  context.wordBegin = offset;
  return context;
}

std::optional<std::string> optionPathAt(llvm::StringRef text, size_t offset) {
  Walker walker;
  for (size_t at = 0; at <= offset;) {
    Token token = nextToken(text, at);
    if (token.begin >= token.end || token.begin > offset)
      return std::nullopt;
    walker.take(token);
    bool isHere = token.begin <= offset && offset <= token.end && token.kind == TokenKind::Word;
    isHere |= token.begin <= offset && offset <= token.end && token.kind == TokenKind::Text;
    if (isHere && !walker.path().empty())
      return walker.path();
    at = token.end;
  }
  return std::nullopt;
}

std::pair<size_t, size_t> wordAt(llvm::StringRef text, size_t offset) {
  size_t begin = std::min(offset, text.size()), end = begin;
  while (begin > 0 && isWordChar(text[begin - 1]))
    --begin;
  while (end < text.size() && isWordChar(text[end]))
    ++end;
  return {begin, end};
}

std::vector<Part> partsOf(llvm::StringRef text) {
  Walker walker;
  for (Token token = nextToken(text, 0); token.begin < token.end;
       token = nextToken(text, token.end))
    walker.take(token);
  return walker.parts();
}

std::vector<Part> constantPlaces(llvm::StringRef text, size_t offset) {
  std::vector<Part> places = partsOf(text);
  llvm::erase_if(places, [](const Part &part) {
    return part.kind != Part::Kind::Constant && part.kind != Part::Kind::Use;
  });
  auto here = llvm::find_if(places, [&](const Part &part) { return part.isAt(offset); });
  std::string name = here == places.end() ? std::string() : here->name;
  llvm::erase_if(places, [&](const Part &part) { return part.name != name; });
  auto isDefinition = [](const Part &part) { return part.kind == Part::Kind::Constant; };
  if (llvm::none_of(places, isDefinition))
    return {};
  std::stable_partition(places.begin(), places.end(), isDefinition);
  return places;
}

} // namespace shardc::lsp
