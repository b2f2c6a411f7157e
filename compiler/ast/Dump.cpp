#include "compiler/ast/Dump.h"

#include "compiler/basic/Format.h"
#include "compiler/basic/ShellWord.h"
#include "compiler/basic/Utf8.h"

namespace shardc::ast {

namespace {

class Dumper {
public:
  Dumper(const SourceManager &sources, bool withPlaces)
      : sources_(sources), withPlaces_(withPlaces) {}

  void node(const Node &node) {
    visit(node, [this](const auto &n) { head(n, fields(n)); });
    ++depth_;
    visit(node, [this](const auto &n) { children(n); });
    --depth_;
  }
  std::string take() { return std::move(out_); }

private:
  void head(const Node &node, const std::string &fields) {
    out_.append(2 * depth_, ' ');
    out_ += nodeKindName(node.kind);
    if (!fields.empty())
      out_ += " " + fields;
    if (withPlaces_ && node.range.isValid()) {
      LineColumn place = sources_.lineColumn(node.range.begin);
      out_ += fmt::format(" @{}:{}", place.line, place.column);
    }
    out_ += '\n';
  }

  // Text on the line of a node. A kind without an overload fails to compile.
  static std::string fields(const Recipe &n) { return n.isSetting ? "--set" : n.name.text.str(); }
  static std::string fields(const Section &n) {
    return n.label ? fmt::format("{} {}", n.name.text, n.label->text) : n.name.text.str();
  }
  static std::string fields(const Assignment &n) {
    std::string path;
    for (const Ident &ident : n.path)
      path += fmt::format("{}{}", path.empty() ? "" : ".", ident.text);
    return path;
  }
  static std::string fields(const Let &n) { return n.name.text.str(); }
  static std::string fields(const BoolValue &n) { return n.value ? "true" : "false"; }
  static std::string fields(const IntValue &n) { return fmt::format("{}", n.value); }
  static std::string fields(const FloatValue &n) {
    std::string text = fmt::format("{}", n.value);
    bool looksWhole = llvm::StringRef(text).find_first_of(".e") == llvm::StringRef::npos;
    return looksWhole ? text + ".0" : text;
  }
  static std::string fields(const StringValue &n) { return recipeQuoted(n.value); }
  static std::string fields(const SizeValue &n) { return fmt::format("{} bytes", n.bytes); }
  static std::string fields(const DurationValue &n) { return fmt::format("{} ms", n.ms); }
  static std::string fields(const NameValue &n) { return n.name.str(); }
  static std::string fields(const NoneValue &) { return ""; }
  static std::string fields(const ListValue &n) { return n.isTuple ? "tuple" : ""; }
  static std::string fields(const UnaryValue &n) { return spelling(n.op).str(); }
  static std::string fields(const BinaryValue &n) { return spelling(n.op).str(); }
  static std::string fields(const ErrorValue &) { return ""; }

  void children(const Recipe &n) {
    for (const StringValue *base : n.bases)
      head(*base, "extends " + recipeQuoted(base->value));
    for (const Item *item : n.items)
      node(*item);
  }
  void children(const Section &n) {
    for (const Item *item : n.items)
      node(*item);
  }
  void children(const Assignment &n) {
    const SourceRange range = n.value->range;
    bool isSecret = range.isValid() && sources_.text(range) != sources_.shown(range);
    isSecret ? head(*n.value, "***") : node(*n.value);
  }
  void children(const Let &n) { node(*n.value); }
  void children(const ListValue &n) {
    for (const Value *element : n.elements)
      node(*element);
  }
  void children(const UnaryValue &n) { node(*n.operand); }
  void children(const BinaryValue &n) {
    node(*n.left);
    node(*n.right);
  }
  void children(const Value &) {}

  const SourceManager &sources_;
  bool withPlaces_;
  size_t depth_ = 0;
  std::string out_;
};

} // namespace

std::string dump(const Recipe &recipe, const SourceManager &sources, bool withPlaces) {
  Dumper dumper(sources, withPlaces);
  dumper.node(recipe);
  return dumper.take();
}

} // namespace shardc::ast
