// Converts the parse tree of a value to ast::Value. Interprets literals and reports their errors.
// Internal to compiler/parse, since it includes ANTLR.
#pragma once

#include <limits>

#include <fmt/format.h>

#include "compiler/ast/Ast.h"
#include "compiler/basic/Suggest.h"
#include "compiler/basic/Utf8.h"
#include "compiler/diag/Engine.h"
#include "compiler/parse/Literals.h"
#include "compiler/parse/Parse.h"
#include "compiler/parse/Tokens.h"
#include "grammar/RecipeParser.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

namespace shardc::parse {

class ValueBuilder {
public:
  using Grammar = grammar::RecipeParser;

  ValueBuilder(const TokenList &tokens, ast::Ast &ast, DiagEngine &diags)
      : tokens_(tokens), ast_(ast), diags_(diags) {}

  /// Never returns null: a part that could not be parsed becomes an ErrorValue.
  const ast::Value *value(Grammar::ValueContext *context) { return sum(context).value; }

  const ast::Value *literal(Grammar::LiteralContext *context) { return literalOf(context).value; }

  /// The value that a name stands for.
  const ast::Value *name(size_t tokenIndex) {
    const Lexeme &lexeme = tokens_[tokenIndex];
    for (const ForeignWord &word : kForeignWords) {
      if (lexeme.text != word.theirs)
        continue;
      diags_.report(diag::ForeignWord, lexeme.range, word.theirs, word.ours)
          .fixIt(FixIt::replace(lexeme.range, word.ours));
      if (word.ours == "none")
        return ast_.make<ast::NoneValue>(lexeme.range);
      return ast_.make<ast::BoolValue>(lexeme.range, word.ours == "true");
    }
    return ast_.make<ast::NameValue>(lexeme.range, lexeme.text);
  }

  /// The base of `extends`, or null if it could not be read.
  const ast::StringValue *string(size_t tokenIndex) {
    const Lexeme &lexeme = tokens_[tokenIndex];
    std::optional<StringFault> fault;
    std::string value = decodeString(lexeme.text, fault);
    if (fault)
      stringFault(tokenIndex, *fault);
    return ast_.make<ast::StringValue>(lexeme.range, ast_.copy(llvm::StringRef(value)));
  }

  const ast::Value *error(SourceRange range) { return ast_.make<ast::ErrorValue>(range); }

private:
  /// The index of the token if the child is a matched token; otherwise kNoToken.
  static size_t tokenOf(antlr4::tree::ParseTree *child) {
    auto *terminal = dynamic_cast<antlr4::tree::TerminalNode *>(child);
    bool isMatched = terminal && !dynamic_cast<antlr4::tree::ErrorNode *>(child);
    return isMatched ? terminal->getSymbol()->getTokenIndex() : kNoToken;
  }

  struct ForeignWord {
    llvm::StringLiteral theirs;
    llvm::StringLiteral ours;
  };

  /// Keywords of Python, YAML and JSON, and our words for them.
  static constexpr ForeignWord kForeignWords[] = {
      {"True", "true"},   {"False", "false"}, {"None", "none"},   {"TRUE", "true"},
      {"FALSE", "false"}, {"null", "none"},   {"nullptr", "none"}};

  /// A value, and the height of its tree. The height is limited so that recursive functions do not
  /// exhaust the stack.
  struct Built {
    const ast::Value *value;
    unsigned height = 1;
  };

  Built sum(antlr4::ParserRuleContext *context) {
    return chain<Grammar::ProductContext>(
        context, [this](Grammar::ProductContext *operand) { return product(operand); });
  }

  Built product(Grammar::ProductContext *context) {
    return chain<Grammar::UnaryContext>(
        context, [this](Grammar::UnaryContext *operand) { return unary(operand); });
  }

  /// Signs apply from the innermost one outwards, so they are visited from the last to the first.
  Built unary(Grammar::UnaryContext *context) {
    if (!context->primary())
      return {error(rangeOf(context))};
    Built result = primary(context->primary());
    for (size_t i = context->children.size(); i-- > 0;) {
      size_t index = tokenOf(context->children[i]);
      if (index == kNoToken)
        continue;
      if (++result.height > kNestingMax) {
        diags_.report(diag::ExpressionTooDeep, tokens_[index].range, kNestingMax);
        return {error(rangeOf(context)), kNestingMax + 1};
      }
      auto op = tokens_[index].type == Grammar::PLUS ? ast::UnaryOp::Plus : ast::UnaryOp::Minus;
      SourceRange range = tokens_[index].range.joined(result.value->range);
      result.value = ast_.make<ast::UnaryValue>(range, op, tokens_[index].range, result.value);
    }
    return result;
  }

  Built primary(Grammar::PrimaryContext *context) {
    if (context->literal())
      return literalOf(context->literal());
    if (context->name() && !context->name()->children.empty())
      return {name(context->name()->start->getTokenIndex())};
    return {error(rangeOf(context))};
  }

  Built literalOf(Grammar::LiteralContext *context) {
    if (context->list())
      return list(context->list(), /*isTuple=*/false);
    if (context->group())
      return list(context->group(), /*isTuple=*/true);
    size_t index = context->children.empty() ? kNoToken : tokenOf(context->children[0]);
    return {index == kNoToken ? error(rangeOf(context)) : token(index)};
  }

  /// Combines operands and the operators between them, from left to right.
  template <typename Operand, typename Make>
  Built chain(antlr4::ParserRuleContext *context, Make make) {
    std::optional<Built> result;
    size_t opIndex = kNoToken;
    for (antlr4::tree::ParseTree *child : context->children) {
      if (auto *operand = dynamic_cast<Operand *>(child)) {
        Built right = make(operand);
        result = result && opIndex != kNoToken ? binary(opIndex, *result, right) : right;
      } else if (tokenOf(child) != kNoToken) {
        opIndex = tokenOf(child);
      }
    }
    return result ? *result : Built{error(rangeOf(context))};
  }

  /// Builds one binary operation. The height of expressions is limited, because later steps process
  /// them recursively.
  Built binary(size_t opIndex, Built left, Built right) {
    ast::BinaryOp op = ast::BinaryOp::Add;
    switch (tokens_[opIndex].type) {
    case Grammar::MINUS:
      op = ast::BinaryOp::Subtract;
      break;
    case Grammar::STAR:
      op = ast::BinaryOp::Multiply;
      break;
    case Grammar::SLASH:
      op = ast::BinaryOp::Divide;
      break;
    default:
      break;
    }
    SourceRange range = left.value->range.joined(right.value->range);
    unsigned height = std::max(left.height, right.height) + 1;
    if (height > kNestingMax) {
      if (left.height == kNestingMax || right.height == kNestingMax)
        diags_.report(diag::ExpressionTooDeep, tokens_[opIndex].range, kNestingMax);
      return {error(range), height}; // above the limit, so that the error is reported only once
    }
    auto *value =
        ast_.make<ast::BinaryValue>(range, op, tokens_[opIndex].range, left.value, right.value);
    return {value, height};
  }

  /// Builds a list, or the value in parentheses. Missing commas and values are reported here, since
  /// the grammar accepts them.
  Built list(antlr4::ParserRuleContext *context, bool isTuple) {
    SourceRange range = rangeOf(context);
    llvm::SmallVector<const ast::Value *, 8> elements;
    unsigned height = 0;
    bool hasComma = false;
    bool isAfterValue = false;
    for (antlr4::tree::ParseTree *child : context->children) {
      size_t index = tokenOf(child);
      if (auto *element = dynamic_cast<Grammar::ElementContext *>(child)) {
        Built built = sum(element);
        SourceLoc begin = built.value->range.begin;
        // A sign after a value is parsed as a binary operator. It can begin an element only if the
        // operand before it is missing.
        size_t firstType = tokens_[element->start->getTokenIndex()].type;
        bool isSigned = firstType == Grammar::PLUS || firstType == Grammar::MINUS;
        if (isAfterValue && !isSigned && !context->exception)
          diags_.report(diag::MissingComma, built.value->range)
              .fixIt(FixIt::insert(elements.back()->range.end, ","));
        if (elements.size() == kListElementsMax) {
          diags_.report(diag::ListTooLong, begin, kListElementsMax);
          return {error(range)};
        }
        elements.push_back(built.value);
        height = std::max(height, built.height);
        isAfterValue = true;
      } else if (index != kNoToken && tokens_[index].type == Grammar::COMMA) {
        if (!isAfterValue)
          diags_.report(diag::ExpectedValue, tokens_[index].range, 1, ",");
        hasComma = true;
        isAfterValue = false;
      }
    }
    if (context->exception)
      return {error(range)};
    if (isTuple && elements.size() == 1 && !hasComma)
      return parenthesised({elements[0], height}, range);
    auto copied = ast_.copy(llvm::ArrayRef<const ast::Value *>(elements));
    if (height + 1 > kNestingMax && height <= kNestingMax)
      diags_.report(diag::ExpressionTooDeep, SourceRange(range.begin), kNestingMax);
    if (height + 1 > kNestingMax)
      return {error(range), height + 1};
    return {ast_.make<ast::ListValue>(range, copied, isTuple), height + 1};
  }

  /// Extends the range of a value to its parentheses. Nodes are immutable, so a new node is
  /// created.
  Built parenthesised(Built inner, SourceRange range) {
    const ast::Value *outer = ast::visit(*inner.value, [&](const auto &node) -> const ast::Value * {
      using Type = std::decay_t<decltype(node)>;
      if constexpr (std::is_base_of_v<ast::Value, Type>) {
        Type *copy = ast_.make<Type>(node);
        copy->range = range;
        return copy;
      } else {
        return inner.value;
      }
    });
    return {outer, inner.height};
  }

  const ast::Value *token(size_t index) {
    const Lexeme &lexeme = tokens_[index];
    switch (lexeme.type) {
    case Grammar::NUMBER:
      return number(index);
    case Grammar::STRING:
      return string(index);
    case Grammar::TRUE:
    case Grammar::FALSE:
      return ast_.make<ast::BoolValue>(lexeme.range, lexeme.type == Grammar::TRUE);
    case Grammar::NONE:
      return ast_.make<ast::NoneValue>(lexeme.range);
    default:
      return error(lexeme.range);
    }
  }

  const ast::Value *number(size_t index) {
    const Lexeme &lexeme = tokens_[index];
    NumberLiteral literal = decodeNumber(lexeme.text);
    if (literal.fault != NumberFault::None)
      return numberFault(index, literal);
    switch (literal.kind) {
    case NumberKind::Int:
      return ast_.make<ast::IntValue>(lexeme.range, literal.integer);
    case NumberKind::Float:
      return ast_.make<ast::FloatValue>(lexeme.range, literal.real);
    case NumberKind::Bytes:
      return ast_.make<ast::SizeValue>(lexeme.range, literal.integer);
    case NumberKind::Milliseconds:
      return ast_.make<ast::DurationValue>(lexeme.range, literal.integer);
    }
    return error(lexeme.range);
  }

  /// Reports a malformed number at the part that is wrong, and returns the corrected value or an
  /// ErrorValue.
  const ast::Value *numberFault(size_t index, const NumberLiteral &literal) {
    const Lexeme &lexeme = tokens_[index];
    SourceLoc unitBegin = lexeme.range.end.advanced(-static_cast<int64_t>(literal.unit.size()));
    switch (literal.fault) {
    case NumberFault::None:
      break;
    case NumberFault::Malformed: {
      DiagBuilder report =
          diags_.report(diag::MalformedNumber, lexeme.range, printable(lexeme.text));
      if (!literal.replacement.empty())
        report.fixIt(FixIt::replace(lexeme.range, literal.replacement));
      else if (llvm::all_of(lexeme.text, [](char c) { return llvm::isAlnum(c) || c == '_'; }))
        report.fixIt(FixIt::replace(lexeme.range, fmt::format("\"{}\"", lexeme.text.str()),
                                    FixItKind::Alternative)); // text with a leading digit: 1f1b
      break;
    }
    case NumberFault::Separator:
      diags_.report(diag::NumberSeparator, lexeme.range, lexeme.text);
      break;
    case NumberFault::UnknownUnit: {
      DiagBuilder report = diags_.report(diag::UnknownUnit, {unitBegin, lexeme.range.end},
                                         literal.unit, quotedList(numberUnits(), 99));
      if (!literal.replacement.empty())
        report.fixIt(FixIt::replace(lexeme.range, literal.replacement));
      break;
    }
    case NumberFault::OutOfRange:
      if (lexeme.text.find_first_of(".eE") != llvm::StringRef::npos && literal.unit.empty())
        diags_.report(diag::FloatOutOfRange, lexeme.range, lexeme.text);
      else
        diags_.report(diag::NumberOutOfRange, lexeme.range, lexeme.text,
                      std::numeric_limits<int64_t>::max());
      break;
    case NumberFault::Uneven: {
      bool isBytes = literal.unit.endswith("B");
      diags_.report(diag::UnevenNumber, lexeme.range, lexeme.text, isBytes ? 0 : 1);
      break;
    }
    }
    // A malformed number with an obvious correction gets the corrected value, like its fix-it.
    NumberLiteral meant = decodeNumber(literal.replacement);
    if (literal.replacement.empty() || meant.fault != NumberFault::None)
      return error(lexeme.range);
    if (meant.kind == NumberKind::Float)
      return ast_.make<ast::FloatValue>(lexeme.range, meant.real);
    if (meant.kind == NumberKind::Bytes)
      return ast_.make<ast::SizeValue>(lexeme.range, meant.integer);
    return ast_.make<ast::DurationValue>(lexeme.range, meant.integer);
  }

  void stringFault(size_t index, const StringFault &fault) {
    const Lexeme &lexeme = tokens_[index];
    SourceLoc begin = lexeme.range.begin;
    SourceRange range(begin.advanced(static_cast<int64_t>(fault.begin)),
                      begin.advanced(static_cast<int64_t>(fault.end)));
    switch (fault.kind) {
    case StringFault::Kind::UnknownEscape:
      diags_.report(diag::UnknownEscape, range, lexeme.text.slice(fault.begin, fault.end),
                    R"('\"', '\\', '\n', '\t', '\r', '\u{...}')");
      break;
    case StringFault::Kind::BadCodePoint:
      diags_.report(diag::BadCodePoint, range);
      break;
    case StringFault::Kind::Control:
      diags_.report(diag::ControlCharacter, range, static_cast<int>(lexeme.text[fault.begin]));
      break;
    }
  }

  SourceRange rangeOf(antlr4::ParserRuleContext *context) const {
    size_t first = context->start->getTokenIndex();
    size_t last = context->stop ? context->stop->getTokenIndex() : first;
    SourceRange begin = tokens_[first].range;
    return last < first || last == kNoToken ? SourceRange(begin.begin)
                                            : begin.joined(tokens_[last].range);
  }

  const TokenList &tokens_;
  ast::Ast &ast_;
  DiagEngine &diags_;
};

} // namespace shardc::parse
