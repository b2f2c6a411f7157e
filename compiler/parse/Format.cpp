#include "compiler/parse/Format.h"

#include "compiler/ast/Dump.h"
#include "compiler/basic/Utf8.h"
#include "compiler/parse/Parse.h"
#include "compiler/parse/Tokens.h"
#include "grammar/RecipeParser.h"
#include "llvm/ADT/StringRef.h"

namespace shardc {

namespace parse {

namespace {

/// Collects finished lines. A line is filled until it would be too wide.
class Lines {
public:
  void begin(size_t indent) {
    end();
    indent_ = indent;
  }
  /// Adds `text` to the line, after `gap` unless the line is empty. Starts a new line first if the
  /// line would be too wide. Text with several lines gets separate lines.
  void add(llvm::StringRef text, llvm::StringRef gap) {
    bool isBlock = text.contains('\n');
    size_t width = indent_ + countCodePoints(line_) + gap.size() + countCodePoints(text);
    if (isBlock || isAfterBlock_ || width > kFormatColumnsMax)
      end();
    if (!line_.empty())
      line_ += gap;
    line_ += text;
    isAfterBlock_ = isBlock;
  }
  /// Appends a comment to the line, even if the line becomes too wide.
  void addComment(llvm::StringRef text) {
    if (!line_.empty())
      line_ += "  ";
    line_ += text;
    end();
  }
  void blank() {
    end();
    if (!out_.empty())
      out_ += '\n';
  }
  void end() {
    if (!line_.empty())
      out_ += std::string(indent_, ' ') + line_ + "\n";
    line_.clear();
    isAfterBlock_ = false;
  }
  std::string take() {
    end();
    return std::move(out_);
  }

private:
  std::string out_;
  std::string line_;
  size_t indent_ = 0;
  bool isAfterBlock_ = false;
};

using Kind = grammar::RecipeParser;

constexpr size_t kIndent = 2;
constexpr llvm::StringLiteral kItemGap = "  ";

/// An entry of a body or a list: a comment, a setting, a section, or an element.
struct Entry {
  enum class Form : uint8_t { Comment, Plain, Section } form = Form::Plain;
  size_t first = 0;
  size_t last = 0;
  size_t open = 0;       ///< '{' of a section
  bool hasComma = false; ///< after an element
  bool isFirstOnLine = false;
  bool isBehindBlankLine = false;
};

class Formatter {
public:
  explicit Formatter(const TokenList &tokens) : tokens_(tokens) {}

  /// Formats the file: comments, the recipe, comments.
  std::string file() {
    Lines lines;
    lines.begin(0);
    for (size_t i = 0; i < tokens_.endIndex();) {
      Entry entry = isComment(i) ? commentAt(i) : itemAt(i);
      if (entry.isFirstOnLine)
        lines.end();
      if (entry.isBehindBlankLine)
        lines.blank();
      if (entry.form == Entry::Form::Comment)
        lines.addComment(tokens_[i].text.rtrim());
      else
        lines.add(hoisted(entry.first, entry.open, 0) + section(entry, 0, /*mayBeFlat=*/false),
                  " ");
      i = entry.last + 1;
    }
    return lines.take();
  }

private:
  bool isComment(size_t index) const { return tokens_[index].state == Lexeme::State::Comment; }
  bool isOpen(size_t index) const {
    size_t type = tokens_[index].type;
    return type == Kind::LBRACE || type == Kind::LBRACK || type == Kind::LPAREN;
  }

  bool hasComment(size_t first, size_t last) const {
    for (size_t i = first; i <= last; ++i)
      if (isComment(i))
        return true;
    return false;
  }

  /// Whether a comment in a value is at the beginning or end of an element, so that it can stay.
  bool isAtElementEnd(size_t comment) const {
    size_t before = tokens_[tokens_.previous(comment)].type;
    size_t behind = tokens_[tokens_.next(comment)].type;
    return before == Kind::LBRACK || before == Kind::LPAREN || before == Kind::COMMA ||
           behind == Kind::COMMA || behind == Kind::RBRACK || behind == Kind::RPAREN;
  }

  /// Returns the comments inside an item that cannot be broken, as separate lines before the item.
  std::string hoisted(size_t first, size_t last, size_t indent) const {
    std::string out;
    for (size_t i = first; i <= last; ++i)
      if (isComment(i) && !isAtElementEnd(i))
        out += tokens_[i].text.rtrim().str() + "\n" + std::string(indent, ' ');
    return out;
  }

  /// The last token of the value that begins at `index`.
  size_t valueEnd(size_t index) const {
    auto isOperator = [&](size_t i) {
      size_t type = tokens_[i].type;
      return type == Kind::PLUS || type == Kind::MINUS || type == Kind::STAR || type == Kind::SLASH;
    };
    while (true) {
      while (isOperator(index))
        index = tokens_.next(index);
      if (isOpen(index))
        index = tokens_[index].partner;
      size_t behind = tokens_.next(index);
      if (!isOperator(behind))
        return index;
      index = behind;
    }
  }

  /// The setting, section or `let` that begins at `index`.
  Entry itemAt(size_t index) const {
    Entry entry{Entry::Form::Plain, index, index};
    place(entry);
    size_t i = index;
    while (tokens_[i].type != Kind::ASSIGN && tokens_[i].type != Kind::LBRACE)
      i = tokens_.next(i);
    if (tokens_[i].type == Kind::ASSIGN) {
      entry.last = valueEnd(tokens_.next(i));
    } else {
      entry.form = Entry::Form::Section;
      entry.open = i;
      entry.last = tokens_[i].partner;
    }
    return entry;
  }

  Entry commentAt(size_t index) const {
    Entry entry{Entry::Form::Comment, index, index};
    place(entry);
    return entry;
  }

  /// Records whether the entry starts a line, and whether blank lines precede it.
  void place(Entry &entry) const {
    if (entry.first == 0) {
      entry.isFirstOnLine = true;
      return;
    }
    unsigned before = tokens_[entry.first - 1].line;
    unsigned line = tokens_[entry.first].line;
    entry.isFirstOnLine = line > before;
    entry.isBehindBlankLine = line > before + 1;
  }

  std::vector<Entry> bodyEntries(size_t open) const {
    std::vector<Entry> entries;
    for (size_t i = open + 1; i < tokens_[open].partner;) {
      entries.push_back(isComment(i) ? commentAt(i) : itemAt(i));
      i = entries.back().last + 1;
    }
    return entries;
  }

  /// The elements of a list with their commas, and the comments between them.
  std::vector<Entry> listEntries(size_t open) const {
    std::vector<Entry> entries;
    std::vector<Entry> late; // comments between an element and its comma move after the comma
    size_t close = tokens_[open].partner;
    for (size_t i = open + 1; i < close;) {
      if (isComment(i)) {
        entries.push_back(commentAt(i));
        ++i;
        continue;
      }
      Entry entry{Entry::Form::Plain, i, valueEnd(i)};
      place(entry);
      i = entry.last + 1;
      size_t behind = tokens_.next(entry.last);
      if (tokens_[behind].type == Kind::COMMA) {
        entry.hasComma = true;
        for (; i < behind; ++i)
          late.push_back(commentAt(i));
        i = behind + 1;
      }
      entries.push_back(entry);
      entries.insert(entries.end(), late.begin(), late.end());
      late.clear();
    }
    return entries;
  }

  /// The tokens in one line, without comments.
  std::string flat(size_t first, size_t last) const {
    std::string out;
    size_t before = kNoToken;
    for (size_t i = first; i <= last; i = tokens_.next(i)) {
      if (before != kNoToken && wantsBlank(before, i))
        out += ' ';
      out += tokens_[i].text;
      before = i;
      if (i == last)
        break;
    }
    return out;
  }

  /// Whether two tokens of one item are separated by a blank.
  bool wantsBlank(size_t before, size_t index) const {
    size_t left = tokens_[before].type;
    size_t right = tokens_[index].type;
    bool isTight = left == Kind::DOT || right == Kind::DOT || left == Kind::LBRACK ||
                   left == Kind::LPAREN || right == Kind::RBRACK || right == Kind::RPAREN ||
                   right == Kind::COMMA || (left == Kind::LBRACE && right == Kind::RBRACE);
    if (isTight)
      return false;
    if (left != Kind::PLUS && left != Kind::MINUS)
      return true;
    // A sign has no blank after it; a binary operator has blanks on both sides.
    size_t operand = tokens_.previous(before);
    switch (tokens_[operand].type) {
    case Kind::ASSIGN:
    case Kind::LBRACK:
    case Kind::LPAREN:
    case Kind::COMMA:
    case Kind::PLUS:
    case Kind::MINUS:
    case Kind::STAR:
    case Kind::SLASH:
      return false;
    default:
      return true;
    }
  }

  std::string item(const Entry &entry, size_t indent) const {
    if (entry.form != Entry::Form::Section)
      return hoisted(entry.first, entry.last, indent) + setting(entry, indent);
    // In the head of a section, no comment is at the end of an element.
    return hoisted(entry.first, entry.open, indent) + section(entry, indent, /*mayBeFlat=*/true);
  }

  /// Formats `name label { ... }`: on one line if it was and fits, otherwise with its items on
  /// separate lines.
  std::string section(const Entry &entry, size_t indent, bool mayBeFlat) const {
    std::string head = flat(entry.first, entry.open);
    size_t close = tokens_[entry.open].partner;
    if (tokens_.next(entry.open) == close && !hasComment(entry.open, close))
      return head + "}";
    bool wasOneLine = tokens_[entry.open].line == tokens_[close].line;
    if (mayBeFlat && wasOneLine) {
      std::string out = head;
      llvm::StringRef gap = " ";
      for (const Entry &inner : bodyEntries(entry.open)) {
        out += gap.str() + item(inner, 0);
        gap = kItemGap;
      }
      out += " }";
      bool fits = indent + countCodePoints(out) <= kFormatColumnsMax;
      if (fits && out.find('\n') == std::string::npos)
        return out;
    }
    size_t first = entry.open + 1;
    bool hasHeadComment = isComment(first) && tokens_[first].line == tokens_[entry.open].line;
    if (hasHeadComment)
      head += "  " + tokens_[first].text.rtrim().str();
    return head + "\n" + body(entry.open, indent + kIndent, hasHeadComment) +
           std::string(indent, ' ') + "}";
  }

  /// Formats a setting or an element. Its lists are broken if they are too wide or contain
  /// comments.
  std::string setting(const Entry &entry, size_t indent) const {
    llvm::StringRef comma = entry.hasComma ? "," : "";
    std::string whole = flat(entry.first, entry.last) + comma.str();
    bool mustBreak = false;
    for (size_t i = entry.first; i <= entry.last; ++i)
      mustBreak |= isComment(i) && isAtElementEnd(i);
    if (!mustBreak && indent + countCodePoints(whole) <= kFormatColumnsMax)
      return whole;
    std::string out;
    size_t before = kNoToken;
    for (size_t i = entry.first; i <= entry.last; i = tokens_.next(i)) {
      if (before != kNoToken && wantsBlank(before, i))
        out += ' ';
      before = i;
      if (isOpen(i)) {
        before = tokens_[i].partner;
        out += list(i, indent);
        i = before;
      } else {
        out += tokens_[i].text;
      }
      if (i == entry.last)
        break;
    }
    return out + comma.str();
  }

  /// Formats a list, tuple or parenthesis over several lines: the first and the last one have the
  /// brackets.
  std::string list(size_t open, size_t indent) const {
    size_t close = tokens_[open].partner;
    if (tokens_.next(open) == close && !hasComment(open, close))
      return flat(open, close);
    bool keepsLines = hasComment(open, close);
    Lines lines;
    lines.begin(indent + kIndent);
    for (const Entry &entry : listEntries(open)) {
      if (entry.form == Entry::Form::Comment && !isAtElementEnd(entry.first))
        continue; // hoisted() has moved it
      if (keepsLines && entry.isFirstOnLine)
        lines.end();
      if (entry.form == Entry::Form::Comment)
        lines.addComment(tokens_[entry.first].text.rtrim());
      else
        lines.add(setting(entry, indent + kIndent), " ");
    }
    return tokens_[open].text.str() + "\n" + lines.take() + std::string(indent, ' ') +
           tokens_[close].text.str();
  }

  /// A comment behind the opening brace was printed with the head, so it is skipped here.
  std::string body(size_t open, size_t indent, bool hasHeadComment) const {
    Lines lines;
    lines.begin(indent);
    std::vector<Entry> entries = bodyEntries(open);
    for (size_t i = hasHeadComment ? 1 : 0; i < entries.size(); ++i) {
      const Entry &entry = entries[i];
      if (entry.isFirstOnLine)
        lines.end();
      if (entry.isBehindBlankLine)
        lines.blank();
      if (entry.form == Entry::Form::Comment)
        lines.addComment(tokens_[entry.first].text.rtrim());
      else
        lines.add(item(entry, indent), kItemGap);
    }
    return lines.take();
  }

  const TokenList &tokens_;
};

} // namespace

} // namespace parse

std::optional<std::string> formatRecipe(BufferId buffer, DiagEngine &diags) {
  unsigned numErrorsBefore = diags.numErrors();
  std::unique_ptr<ast::Ast> ast = parseRecipe(buffer, diags);
  if (diags.numErrors() != numErrorsBefore)
    return std::nullopt;
  std::optional<parse::TokenList> tokens =
      parse::scanTokens(buffer, parse::InputKind::Recipe, diags);
  SHARDC_CHECK(tokens.has_value(), "what was parsed has tokens");
  std::string formatted = parse::Formatter(*tokens).file();
  // Also checks that the meaning is unchanged, because users rely on it.
  SourceManager sources;
  DiagEngine silent(sources);
  BufferId again = sources.addBuffer("formatted", formatted);
  std::unique_ptr<ast::Ast> formattedAst = parseRecipe(again, silent);
  SHARDC_CHECK(!silent.hasErrors() &&
                   ast::dump(ast->recipe(), diags.sources(), /*withPlaces=*/false) ==
                       ast::dump(formattedAst->recipe(), sources, /*withPlaces=*/false),
               "formatting changed what the recipe means");
  return formatted;
}

} // namespace shardc
