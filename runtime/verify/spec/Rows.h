// The tables of Spec.def, taken apart.
#pragma once

#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan::spec {

/// One plain op that a lemma's op stands for. Values are numbered: the operands of the row first.
struct LemmaStep {
  OpKind kind = OpKind::Add;
  std::vector<AttrKey> attrs;                   ///< that it is handed
  std::vector<std::pair<AttrKey, int64_t>> set; ///< and those that it has
  std::vector<uint8_t> operands, results;
};

struct Lemma {
  OpKind kind = OpKind::Add;
  uint8_t operandsMin = 0, operandsMax = 0, valueCount = 0;
  std::vector<uint8_t> results; ///< values of the op's results
  std::vector<LemmaStep> steps;
};

/// The row that unfolds an op with so many operands and results; null if it is a plain op.
const Lemma *lemmaOf(OpKind kind, size_t operands, size_t results);
/// Those of the table.
std::span<const Lemma> allLemmas();
/// The lemma of a row's text; nothing if it is malformed. Tests hold wrong rows against kernels.
std::optional<Lemma> parseLemma(OpKind kind, std::string_view values, std::string_view steps);

enum class Linearity : uint8_t { None, Together, Alone };
/// Of the op in the operand.
Linearity linearity(OpKind kind, size_t operand);
bool commutes(OpKind kind);
/// Whether the attribute is part of the op's value.
bool isMeant(OpKind kind, AttrKey key);
bool isUnreported(OpKind kind);
/// The operand that the op does not use with its attributes; -1 if it uses all of them.
int unusedOperand(OpKind kind, std::span<const Attr> attrs);

} // namespace shardc::plan::spec
