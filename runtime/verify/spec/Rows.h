// The tables of Spec.def in parsed form.
#pragma once

#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan::spec {

/// One plain op of a lemma. Values are numbered; the op's operands come first.
struct LemmaStep {
  OpKind kind = OpKind::Add;
  std::vector<std::pair<AttrKey, int64_t>> set; ///< attributes that the lemma sets
  std::vector<uint8_t> operands, results;
};

/// The plain ops that a fused op stands for: a LEMMA row.
struct Lemma {
  OpKind kind = OpKind::Add;
  uint8_t operandsMin = 0, operandsMax = 0, valueCount = 0;
  std::vector<uint8_t> results; ///< value numbers of the op's results
  uint32_t wide = 0;            ///< a bit for each value between steps that is f32: `x: f32`
  std::vector<LemmaStep> steps;
};

/// The lemma for an op with this many operands and results; null if it is a plain op.
const Lemma *lemmaOf(OpKind kind, size_t operands, size_t results);
/// All lemmas of the table, in its order.
std::span<const Lemma> allLemmas();
/// Parses the text of a LEMMA row; none if it is malformed. Tests compare wrong rows with kernels.
std::optional<Lemma> parseLemma(OpKind kind, std::string_view values, std::string_view steps);

/// How an op maps partial sums to partial sums. Together: if all its linear operands are partial
/// sums. Alone: if exactly one of them is.
enum class Linearity : uint8_t { None, Together, Alone };
/// Whether, and how, the op is linear in the operand (rows LINEAR).
Linearity linearity(OpKind kind, size_t operand);
/// The attributes that are part of the op's value.
std::vector<Attr> meantAttrs(OpKind kind, std::span<const Attr> attrs);
/// The index of the operand that the op does not use with these attributes (rows UNUSED); -1 if it
/// uses all of them.
int unusedOperand(OpKind kind, std::span<const Attr> attrs);

} // namespace shardc::plan::spec
