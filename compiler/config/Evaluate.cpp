#include "compiler/config/Evaluate.h"

#include <cmath>
#include <limits>

#include "compiler/basic/Format.h"
#include "compiler/basic/Numbers.h"
#include "compiler/basic/Suggest.h"

namespace shardc::config {

namespace {

using Kind = Constant::Kind;

bool hasUnit(Kind kind) { return kind == Kind::Size || kind == Kind::Duration; }
bool isArithmetic(Kind kind) { return kind == Kind::Int || kind == Kind::Float || hasUnit(kind); }

Constant makeInteger(Kind kind, int64_t value, SourceRange range) {
  Constant result;
  result.kind = kind;
  result.range = range;
  result.integer = value;
  return result;
}

Constant makeNumber(double value, SourceRange range) {
  Constant result;
  result.kind = Kind::Float;
  result.range = range;
  result.number = value;
  return result;
}

Constant makeError(SourceRange range) {
  Constant result;
  result.range = range;
  return result;
}

/// Evaluates one expression in a scope, and reports errors to an engine.
class Evaluator {
public:
  Evaluator(Scope &scope, DiagEngine &diags) : scope_(scope), diags_(diags) {}

  Constant operator()(const ast::Value &value) {
    Constant result = ast::visit(value, [&](const auto &node) { return eval(node); });
    result.range = value.range;
    return result;
  }

private:
  Constant eval(const ast::BoolValue &node) {
    Constant result = makeInteger(Kind::Bool, 0, node.range);
    result.boolean = node.value;
    return result;
  }
  Constant eval(const ast::IntValue &node) {
    return makeInteger(Kind::Int, node.value, node.range);
  }
  Constant eval(const ast::FloatValue &node) { return makeNumber(node.value, node.range); }
  Constant eval(const ast::SizeValue &node) {
    return makeInteger(Kind::Size, node.bytes, node.range);
  }
  Constant eval(const ast::DurationValue &node) {
    return makeInteger(Kind::Duration, node.ms, node.range);
  }
  Constant eval(const ast::StringValue &node) {
    return makeText(Kind::String, node.value, node.range);
  }
  Constant eval(const ast::NoneValue &node) { return makeInteger(Kind::None, 0, node.range); }
  Constant eval(const ast::ErrorValue &node) { return makeError(node.range); }
  Constant eval(const ast::NameValue &node) {
    auto found = scope_.constants.find(node.name);
    if (found == scope_.constants.end())
      return makeText(Kind::Name, node.name, node.range);
    const Constant &constant = found->second.value;
    return spend(constant.size, node.range) ? constant : makeError(node.range);
  }
  Constant eval(const ast::ListValue &node) {
    Constant result = makeInteger(Kind::List, 0, node.range);
    for (const ast::Value *element : node.elements) {
      if (!spend(1, element->range))
        return makeError(node.range);
      result.elements.push_back((*this)(*element));
      if (result.elements.back().kind == Kind::Error)
        return makeError(node.range);
      result.size += result.elements.back().size;
    }
    return result;
  }
  Constant eval(const ast::UnaryValue &node) {
    Constant operand = (*this)(*node.operand);
    if (!checkOperand(operand))
      return makeError(node.range);
    if (node.op == ast::UnaryOp::Plus)
      return operand;
    if (operand.kind == Kind::Float)
      return makeNumber(-operand.number, node.range);
    if (operand.integer == std::numeric_limits<int64_t>::min())
      return overflow(node.opRange);
    return makeInteger(operand.kind, -operand.integer, node.range);
  }
  Constant eval(const ast::BinaryValue &node) {
    Constant left = (*this)(*node.left);
    Constant right = (*this)(*node.right);
    bool leftFits = checkOperand(left);
    if (!checkOperand(right) || !leftFits)
      return makeError(node.range);
    if (left.kind == Kind::Float || right.kind == Kind::Float)
      return floatArithmetic(node, left, right);
    return integerArithmetic(node, left, right);
  }
  /// Nodes that cannot be on the right side of `=`.
  Constant eval(const ast::Node &node) { return makeError(node.range); }

  Constant makeText(Kind kind, llvm::StringRef text, SourceRange range) {
    if (!spend(text.size(), range))
      return makeError(range);
    Constant result = makeInteger(kind, 0, range);
    result.text = text.str();
    result.size += text.size();
    return result;
  }

  /// Subtracts `size` from what remains of kConstantSizeMax. Reports an error and returns false if
  /// too little remains.
  bool spend(size_t size, SourceRange range) {
    if (size > scope_.sizeLeft) {
      diags_.report(diag::ValuesTooLarge, range, kConstantSizeMax - scope_.sizeLeft + size,
                    kConstantSizeMax);
      return false;
    }
    scope_.sizeLeft -= size;
    return true;
  }

  bool checkOperand(const Constant &operand) {
    if (operand.kind == Kind::Error)
      return false;
    if (isArithmetic(operand.kind))
      return true;
    if (operand.kind == Kind::Name)
      reportUnknownConstant(operand);
    else
      diags_.report(diag::OperandNotANumber, operand.range, describe(operand));
    return false;
  }

  void reportUnknownConstant(const Constant &operand) {
    std::vector<llvm::StringRef> names;
    if (scope_.constants.size() <= scope_.suggestionsLeft) {
      scope_.suggestionsLeft -= scope_.constants.size();
      for (const auto &entry : scope_.constants)
        names.push_back(entry.getKey());
      llvm::sort(names);
    }
    Suggestion near = suggest(operand.text, names);
    if (near.names.empty()) {
      diags_.report(diag::UnknownConstant, operand.range, operand.text);
      return;
    }
    DiagBuilder report =
        diags_.report(diag::MisspeltConstant, operand.range, operand.text, quotedList(near.names));
    if (near.isSure())
      report.fixIt(FixIt::replace(operand.range, near.names.front()));
  }

  Constant overflow(SourceRange at) {
    diags_.report(diag::ArithmeticOverflow, at);
    return makeError(at);
  }

  /// The unit of the result; empty if the units do not match.
  static std::optional<Kind> resultKind(ast::BinaryOp op, Kind left, Kind right) {
    switch (op) {
    case ast::BinaryOp::Add:
    case ast::BinaryOp::Subtract:
      return left == right ? std::optional(left) : std::nullopt;
    case ast::BinaryOp::Multiply:
      if (hasUnit(left) && hasUnit(right))
        return std::nullopt;
      return hasUnit(left) ? left : right;
    case ast::BinaryOp::Divide:
      if (left == right)
        return Kind::Int;
      return hasUnit(right) ? std::nullopt : std::optional(left);
    }
    return std::nullopt;
  }

  Constant integerArithmetic(const ast::BinaryValue &node, const Constant &left,
                             const Constant &right) {
    std::optional<Kind> kind = resultKind(node.op, left.kind, right.kind);
    if (!kind) {
      diags_.report(diag::UnitsDoNotFit, node.opRange, ast::spelling(node.op), describe(left),
                    describe(right));
      return makeError(node.range);
    }
    int64_t result = 0;
    bool tooLarge = false;
    switch (node.op) {
    case ast::BinaryOp::Add:
      tooLarge = __builtin_add_overflow(left.integer, right.integer, &result);
      break;
    case ast::BinaryOp::Subtract:
      tooLarge = __builtin_sub_overflow(left.integer, right.integer, &result);
      break;
    case ast::BinaryOp::Multiply:
      tooLarge = __builtin_mul_overflow(left.integer, right.integer, &result);
      break;
    case ast::BinaryOp::Divide:
      return divide(node, *kind, left.integer, right.integer);
    }
    return tooLarge ? overflow(node.opRange) : makeInteger(*kind, result, node.range);
  }

  Constant divide(const ast::BinaryValue &node, Kind kind, int64_t left, int64_t right) {
    if (right == 0) {
      diags_.report(diag::DivisionByZero, node.right->range);
      return makeError(node.range);
    }
    if (right == -1 && left == std::numeric_limits<int64_t>::min())
      return overflow(node.opRange);
    if (left % right != 0) {
      diags_.report(diag::UnevenDivision, node.opRange, left, right, left % right)
          .highlight(node.left->range)
          .highlight(node.right->range);
      return makeError(node.range);
    }
    return makeInteger(kind, left / right, node.range);
  }

  Constant floatArithmetic(const ast::BinaryValue &node, const Constant &left,
                           const Constant &right) {
    if (hasUnit(left.kind) || hasUnit(right.kind)) {
      diags_.report(diag::UnitsDoNotFit, node.opRange, ast::spelling(node.op), describe(left),
                    describe(right));
      return makeError(node.range);
    }
    double a = left.asNumber(), b = right.asNumber();
    if (node.op == ast::BinaryOp::Divide && b == 0) {
      diags_.report(diag::DivisionByZero, node.right->range);
      return makeError(node.range);
    }
    double result = node.op == ast::BinaryOp::Add        ? a + b
                    : node.op == ast::BinaryOp::Subtract ? a - b
                    : node.op == ast::BinaryOp::Multiply ? a * b
                                                         : a / b;
    return std::isfinite(result) ? makeNumber(result, node.range) : overflow(node.opRange);
  }

  Scope &scope_;
  DiagEngine &diags_;
};

} // namespace

Constant evaluate(const ast::Value &value, Scope &scope, DiagEngine &diags) {
  return Evaluator(scope, diags)(value);
}

/// Adds a decimal point to a number that would otherwise look like an integer.
static std::string withPoint(std::string text) {
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

/// The constant as the object of a sentence in messages, such as `the integer 8`.
std::string describe(const Constant &constant) {
  switch (constant.kind) {
  case Kind::Error:
    return "an error";
  case Kind::None:
    return "'none'";
  case Kind::Bool:
    return constant.boolean ? "'true'" : "'false'";
  case Kind::Int:
    return fmt::format("the integer {}", constant.integer);
  case Kind::Float:
    return "the number " + withPoint(fmt::format("{}", constant.number));
  case Kind::Size:
    return fmt::format("a size of {} bytes", constant.integer);
  case Kind::Duration:
    return fmt::format("a duration of {} ms", constant.integer);
  case Kind::String:
    return fmt::format("the string \"{}\"", constant.text);
  case Kind::Name:
    return fmt::format("the name '{}'", constant.text);
  case Kind::List:
    return "a list of " + formatCount(std::ssize(constant.elements), "value");
  }
  return {};
}

} // namespace shardc::config
