// The syntax tree of one recipe file or one `--set`, as written: names are neither resolved nor
// checked. Nodes are plain, immutable, and live as long as their Ast. Texts point into the Ast or
// into the SourceManager. compiler/parse creates the tree, compiler/config reads it.
#pragma once

#include <optional>

#include "compiler/basic/SourceLoc.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Allocator.h"

namespace shardc::ast {

enum class NodeKind : uint8_t {
#define NODE(name, base, text) name,
#include "compiler/ast/Nodes.def"
};

/// The name of a node kind in dumps.
llvm::StringRef nodeKindName(NodeKind kind);

struct Node {
  NodeKind kind;
  SourceRange range; ///< the whole node, including parentheses around a value

protected:
  Node(NodeKind kind, SourceRange range) : kind(kind), range(range) {}
};

struct Item : Node {
  using Node::Node;
};

struct Value : Node {
  using Node::Node;
};

/// A name with its location.
struct Ident {
  llvm::StringRef text;
  SourceRange range;
};

/// `ddp.average_in_collective = false`, or just `mixed_precision = bf16_mixed`. Inside a section,
/// the path is relative to the section.
struct Assignment : Item {
  Assignment(SourceRange range) : Item(NodeKind::Assignment, range) {}
  llvm::ArrayRef<Ident> path; ///< at least one name
  SourceRange pathRange;      ///< from the first name to the last
  const Value *value = nullptr;
};

/// `optimizer adam { ... }`. Sections may be nested in the tree.
struct Section : Item {
  Section(SourceRange range) : Item(NodeKind::Section, range) {}
  Ident name;
  std::optional<Ident> label; ///< `adam`
  SourceRange head;           ///< name and label
  SourceLoc openBrace;
  SourceLoc closeBrace; ///< invalid if it is missing
  llvm::ArrayRef<const Item *> items;
};

/// `let NAME = expr`; allowed only in the recipe's body.
struct Let : Item {
  Let(SourceRange range) : Item(NodeKind::Let, range) {}
  Ident name;
  const Value *value = nullptr;
};

struct BoolValue : Value {
  BoolValue(SourceRange range, bool value) : Value(NodeKind::BoolValue, range), value(value) {}
  bool value;
};

/// An integer literal. Negative numbers are a UnaryValue.
struct IntValue : Value {
  IntValue(SourceRange range, int64_t value) : Value(NodeKind::IntValue, range), value(value) {}
  int64_t value;
};

struct FloatValue : Value {
  FloatValue(SourceRange range, double value) : Value(NodeKind::FloatValue, range), value(value) {}
  double value; ///< finite
};

struct StringValue : Value {
  StringValue(SourceRange range, llvm::StringRef value)
      : Value(NodeKind::StringValue, range), value(value) {}
  llvm::StringRef value; ///< without quotes, escapes resolved; well-formed UTF-8 without NUL
};

/// `80GiB`.
struct SizeValue : Value {
  SizeValue(SourceRange range, int64_t bytes) : Value(NodeKind::SizeValue, range), bytes(bytes) {}
  int64_t bytes;
};

/// `30min`.
struct DurationValue : Value {
  DurationValue(SourceRange range, int64_t ms) : Value(NodeKind::DurationValue, range), ms(ms) {}
  int64_t ms;
};

/// An identifier: a constant if a `let` of that name is in scope, otherwise an enumerator. An
/// operand can only be a constant.
struct NameValue : Value {
  NameValue(SourceRange range, llvm::StringRef name)
      : Value(NodeKind::NameValue, range), name(name) {}
  llvm::StringRef name;
};

struct NoneValue : Value {
  NoneValue(SourceRange range) : Value(NodeKind::NoneValue, range) {}
};

/// `[a, b]`, or the tuple `(a, b)`. `(a)` is the value `a`; a tuple with one element is `(a,)`.
struct ListValue : Value {
  ListValue(SourceRange range, llvm::ArrayRef<const Value *> elements, bool isTuple)
      : Value(NodeKind::ListValue, range), elements(elements), isTuple(isTuple) {}
  llvm::ArrayRef<const Value *> elements;
  bool isTuple;
};

enum class UnaryOp : uint8_t { Plus, Minus };
enum class BinaryOp : uint8_t { Add, Subtract, Multiply, Divide };

/// The spelling of an operator: `+`, `-`, `*` or `/`.
llvm::StringRef spelling(UnaryOp op);
llvm::StringRef spelling(BinaryOp op);

struct UnaryValue : Value {
  UnaryValue(SourceRange range, UnaryOp op, SourceRange opRange, const Value *operand)
      : Value(NodeKind::UnaryValue, range), op(op), opRange(opRange), operand(operand) {}
  UnaryOp op;
  SourceRange opRange;
  const Value *operand;
};

/// An arithmetic operation, as written. compiler/config evaluates it, and checks division, overflow
/// and units.
struct BinaryValue : Value {
  BinaryValue(SourceRange range, BinaryOp op, SourceRange opRange, const Value *left,
              const Value *right)
      : Value(NodeKind::BinaryValue, range), op(op), opRange(opRange), left(left), right(right) {}
  BinaryOp op;
  SourceRange opRange;
  const Value *left;
  const Value *right;
};

/// A value that could not be parsed; the error is already reported. The option counts as set to an
/// unknown value, so consumers report nothing further.
struct ErrorValue : Value {
  ErrorValue(SourceRange range) : Value(NodeKind::ErrorValue, range) {}
};

/// `recipe NAME extends "a", "b" { ... }`. A `--set` has no name and no bases, but one assignment.
struct Recipe : Node {
  Recipe(SourceRange range) : Node(NodeKind::Recipe, range) {}
  Ident name;
  llvm::ArrayRef<const StringValue *> bases; ///< as written, in order
  llvm::ArrayRef<const Item *> items;
  bool isSetting = false;
  /// False if braces did not match. It is then unknown which settings belong to which section, so
  /// nothing further must be reported about them.
  bool isStructureKnown = true;
};

/// Owns a tree. The parser creates the nodes, which need no destructor.
class Ast {
public:
  Ast() = default;
  Ast(const Ast &) = delete;
  Ast &operator=(const Ast &) = delete;

  /// The root; never null once the parser has returned the tree.
  const Recipe &recipe() const { return *recipe_; }
  void setRecipe(const Recipe *recipe) { recipe_ = recipe; }

  template <typename T, typename... Args> T *make(Args &&...args) {
    static_assert(std::is_trivially_destructible_v<T>);
    return new (allocator_.Allocate<T>()) T(std::forward<Args>(args)...);
  }
  template <typename T> llvm::ArrayRef<T> copy(llvm::ArrayRef<T> elements) {
    return elements.copy(allocator_);
  }
  llvm::StringRef copy(llvm::StringRef text) { return text.copy(allocator_); }

private:
  llvm::BumpPtrAllocator allocator_;
  const Recipe *recipe_ = nullptr;
};

/// `node` as a T; null if it is of another kind.
template <typename T> const T *dynCast(const Node *node);
#define NODE(name, base, text)                                                                     \
  template <> inline const name *dynCast<name>(const Node *node) {                                 \
    return node && node->kind == NodeKind::name ? static_cast<const name *>(node) : nullptr;       \
  }
#include "compiler/ast/Nodes.def"

/// Calls `visitor` with the node as its concrete type. The visitor has an overload for each kind,
/// or a template.
template <typename Visitor> decltype(auto) visit(const Node &node, Visitor &&visitor) {
  switch (node.kind) {
#define NODE(name, base, text)                                                                     \
  case NodeKind::name:                                                                             \
    return visitor(static_cast<const name &>(node));
#include "compiler/ast/Nodes.def"
  }
  __builtin_unreachable();
}

} // namespace shardc::ast
