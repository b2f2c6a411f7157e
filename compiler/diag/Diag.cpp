#include "compiler/diag/Diag.h"

#include "compiler/basic/Format.h"

namespace shardc {

llvm::StringRef severityName(Severity severity) { return severityWord(severity); }

std::string DiagArg::str() const {
  return isInt() ? fmt::format("{}", integer()) : std::get<std::string>(value_);
}

namespace {

/// A parsed placeholder.
struct Placeholder {
  enum class Form : uint8_t { Plain, Select, Plural } form = Form::Plain;
  unsigned index = 0;
  llvm::StringRef words; ///< for Form::Select
};

/// Parses `{0}`, `{0:s}` or `{0?a|b}` at the beginning of `text` and removes it. Returns false if
/// the text does not begin with a placeholder.
bool takePlaceholder(llvm::StringRef &text, Placeholder &out) {
  size_t close = text.find('}');
  if (close == llvm::StringRef::npos)
    return false;
  llvm::StringRef inside = text.slice(1, close);
  if (inside.consumeInteger(10, out.index))
    return false;
  if (inside.empty()) {
    out.form = Placeholder::Form::Plain;
  } else if (inside == ":s") {
    out.form = Placeholder::Form::Plural;
  } else if (inside.consume_front("?") && inside.contains('|')) {
    out.form = Placeholder::Form::Select;
    out.words = inside;
  } else {
    return false;
  }
  text = text.drop_front(close + 1);
  return true;
}

std::string selectWord(llvm::StringRef words, int64_t number) {
  llvm::SmallVector<llvm::StringRef, 4> list;
  words.split(list, '|');
  size_t last = list.size() - 1;
  bool inside = number >= 0 && static_cast<uint64_t>(number) < last;
  return list[inside ? static_cast<size_t>(number) : last].str();
}

std::string expand(const Placeholder &placeholder, const DiagArg &arg) {
  switch (placeholder.form) {
  case Placeholder::Form::Plain:
    return arg.str();
  case Placeholder::Form::Select:
    return selectWord(placeholder.words, arg.integer());
  case Placeholder::Form::Plural:
    return arg.integer() == 1 ? "" : "s";
  }
  return "";
}

} // namespace

std::string formatDiagText(llvm::StringRef text, llvm::ArrayRef<DiagArg> args) {
  std::string out;
  while (!text.empty()) {
    if (text.startswith("{{") || text.startswith("}}")) {
      out += text[0];
      text = text.drop_front(2);
      continue;
    }
    Placeholder placeholder;
    llvm::StringRef rest = text;
    if (text[0] == '{' && takePlaceholder(rest, placeholder) && placeholder.index < args.size()) {
      out += expand(placeholder, args[placeholder.index]);
      text = rest;
      continue;
    }
    out += text[0];
    text = text.drop_front();
  }
  return out;
}

/// Returns what is wrong with the text of a table row, or nothing: the text must use each argument,
/// and `{n}` needs an argument n. Tests call it for rows of the tables.
std::string checkDiagText(llvm::StringRef text, size_t numArgs) {
  std::vector<bool> used(numArgs, false);
  while (!text.empty()) {
    if (text.startswith("{{") || text.startswith("}}")) {
      text = text.drop_front(2);
      continue;
    }
    if (text[0] == '}')
      return "a '}' without '{'; write '}}' for a brace";
    if (text[0] != '{') {
      text = text.drop_front();
      continue;
    }
    Placeholder placeholder;
    std::string at = text.take_front(16).str();
    if (!takePlaceholder(text, placeholder))
      return fmt::format("'{}' begins no placeholder", at);
    if (placeholder.index >= numArgs)
      return fmt::format("argument {} of {}", placeholder.index, numArgs);
    used[placeholder.index] = true;
  }
  for (size_t i = 0; i < numArgs; ++i)
    if (!used[i])
      return fmt::format("argument {} is not used", i);
  return "";
}

FixIt FixIt::replace(SourceRange range, llvm::StringRef text, FixItKind kind) {
  return FixIt{kind, {TextEdit{range, text.str()}}};
}

FixIt FixIt::insert(SourceLoc at, llvm::StringRef text, FixItKind kind) {
  return replace(SourceRange(at), text, kind);
}

FixIt FixIt::remove(SourceRange range, FixItKind kind) { return replace(range, "", kind); }

FixIt &&FixIt::andReplace(SourceRange range, llvm::StringRef text) && {
  edits.push_back(TextEdit{range, text.str()});
  return std::move(*this);
}

} // namespace shardc
