#include "compiler/upstream/Tree.h"

#include <cmath>
#include <cstdlib>

#include "compiler/basic/Format.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

namespace shardc::upstream {
namespace {

/// Maximum length of a value's description in a message.
constexpr size_t kDescriptionMax = 120;

void describeInto(const Tree &tree, std::string &out) {
  if (out.size() > kDescriptionMax)
    return;
  switch (tree.kind) {
  case Tree::Kind::None:
    out += "none";
    return;
  case Tree::Kind::Bool:
    out += tree.boolean ? "true" : "false";
    return;
  case Tree::Kind::Int:
    out += std::to_string(tree.integer);
    return;
  case Tree::Kind::Float:
    out += fmt::format("{}", tree.number);
    return;
  case Tree::Kind::Text:
  case Tree::Kind::Name:
    out += tree.text;
    return;
  case Tree::Kind::List:
    out += "[";
    for (size_t i = 0; i < tree.items.size() && out.size() <= kDescriptionMax; ++i) {
      out += i == 0 ? "" : ", ";
      describeInto(*tree.items[i], out);
    }
    out += "]";
    return;
  case Tree::Kind::Map:
    if (const Tree *unknown = tree.find(kUnknownRest))
      return describeInto(*unknown, out);
    if (tree.call == kUnknownCall && !tree.items.empty())
      return describeInto(*tree.items.front(), out);
    out += tree.call.empty() ? "{...}" : tree.call + "(...)";
    return;
  }
}

/// Removes single `_` between digits; empty if there is another `_`.
std::string withoutSeparators(llvm::StringRef text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    bool isBetween =
        i > 0 && i + 1 < text.size() && llvm::isDigit(text[i - 1]) && llvm::isDigit(text[i + 1]);
    if (text[i] == '_' && !isBetween)
      return {};
    if (text[i] != '_')
      out += text[i];
  }
  return out;
}

} // namespace

const Tree *Tree::find(llvm::StringRef key) const {
  for (const auto &[name, value] : entries)
    if (name == key)
      return value.get();
  return nullptr;
}

bool Tree::saysNothing() const {
  return isNone() || (kind == Kind::Bool && !boolean) || (kind == Kind::List && items.empty()) ||
         (kind == Kind::Map && entries.empty() && call.empty()) || (isWord() && text.empty());
}

llvm::StringRef Tree::callName() const { return lastPart(call); }

TreePtr makeText(llvm::StringRef text, SourceRange range, Tree::Kind kind) {
  auto tree = std::make_shared<Tree>();
  tree->kind = kind;
  tree->text = text.str();
  tree->range = range;
  return tree;
}

TreePtr makeScalar(llvm::StringRef text, SourceRange range) {
  auto tree = std::make_shared<Tree>();
  tree->range = range;
  std::string lower = text.lower();
  if (lower.empty() || lower == "null" || lower == "~" || text == "None")
    return tree;
  if (lower == "true" || lower == "false") {
    tree->kind = Tree::Kind::Bool;
    tree->boolean = lower == "true";
    return tree;
  }
  if (readInteger(text, tree->integer)) {
    tree->kind = Tree::Kind::Int;
    return tree;
  }
  if (readNumber(text, tree->number)) {
    tree->kind = Tree::Kind::Float;
    return tree;
  }
  tree->kind = Tree::Kind::Text;
  tree->text = text.str();
  return tree;
}

bool readInteger(llvm::StringRef text, int64_t &value) {
  std::string plain = withoutSeparators(text);
  llvm::StringRef digits(plain);
  digits.consume_front("+");
  if (digits.consume_front("0x"))
    return !digits.getAsInteger(16, value);
  return !digits.empty() && (llvm::isDigit(digits.back())) && !digits.getAsInteger(10, value);
}

bool readNumber(llvm::StringRef text, double &value) {
  std::string plain = withoutSeparators(text);
  // strtod also accepts words and hexadecimal numbers, which are not floats in YAML.
  bool isPlain = !plain.empty() && llvm::all_of(plain, [](char c) {
    return llvm::isDigit(c) || c == '+' || c == '-' || c == '.' || c == 'e' || c == 'E';
  });
  if (!isPlain || llvm::none_of(plain, llvm::isDigit))
    return false;
  char *end = nullptr;
  value = std::strtod(plain.c_str(), &end);
  return *end == '\0' && std::isfinite(value);
}

std::string describe(const Tree &tree) {
  std::string out;
  describeInto(tree, out);
  if (out.size() > kDescriptionMax)
    out = out.substr(0, kDescriptionMax) + "...";
  return out;
}

llvm::StringRef lastPart(llvm::StringRef dotted) {
  size_t dot = dotted.rfind('.');
  return dot == llvm::StringRef::npos ? dotted : dotted.substr(dot + 1);
}

} // namespace shardc::upstream
