#include "compiler/ast/Ast.h"

namespace shardc::ast {

llvm::StringRef nodeKindName(NodeKind kind) {
  switch (kind) {
#define NODE(name, base, text)                                                                     \
  case NodeKind::name:                                                                             \
    return text;
#include "compiler/ast/Nodes.def"
  }
  return "";
}

llvm::StringRef spelling(UnaryOp op) {
  switch (op) {
  case UnaryOp::Plus:
    return "+";
  case UnaryOp::Minus:
    return "-";
  }
  return "";
}

llvm::StringRef spelling(BinaryOp op) {
  switch (op) {
  case BinaryOp::Add:
    return "+";
  case BinaryOp::Subtract:
    return "-";
  case BinaryOp::Multiply:
    return "*";
  case BinaryOp::Divide:
    return "/";
  }
  return "";
}

} // namespace shardc::ast
