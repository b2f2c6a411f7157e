// Parses the rows of Ops.def at compile time. It is a compile error if a row is malformed, names an
// operand or result that the op does not have, or contradicts itself.
#include <unordered_map>

#include <fmt/format.h>

#include "runtime/plan/Derivation.h"

namespace shardc::plan {
namespace {

/// The number of operands, or of results, that a bit set can hold.
constexpr int kSetMax = 8;

/// The names of operands or results, with their marks.
struct NameList {
  std::array<char, 64> chars{};
  size_t size = 0;
  constexpr std::string_view view() const { return {chars.data(), size}; }
};
constexpr NameList namesOf(std::string_view values) {
  NameList list;
  forEachValue(values, [&](std::string_view name, auto) {
    if (list.size > 0)
      list.chars[list.size++] = ' ';
    for (char c : name)
      list.chars[list.size++] = c;
  });
  return list;
}
constexpr auto kNameLists = [] {
  std::array<std::array<NameList, 2>, kOpCount> lists{};
  for (size_t k = 0; k < lists.size(); ++k)
    for (bool areResults : {false, true})
      lists[k][areResults] = namesOf(valuesOf(names::kSignatures[k], areResults));
  return lists;
}();

/// Fills in one row, but for what follows from steps.
class RowMaker {
public:
  constexpr explicit RowMaker(OpRow &row) : row_(row), info_(row.info) {}

  constexpr void begin(OpKind kind, const OpFacts &facts, std::string_view doc) {
    static_cast<OpFacts &>(info_) = facts;
    info_.doc = doc;
    info_.name = names::kNames[static_cast<size_t>(kind)];
    info_.signature = names::kSignatures[static_cast<size_t>(kind)];
    info_.operands = kNameLists[static_cast<size_t>(kind)][0].view();
    info_.results = kNameLists[static_cast<size_t>(kind)][1].view();
    count(info_.operands, info_.operandsMin, info_.operandsMax);
    count(info_.results, info_.resultsMin, info_.resultsMax);
    info_.inPlace.fill(-1), info_.scaleOf.fill(-1);
    shareByName();
    info_.hasPackedHeads = positionOf(info_.operands, "qkv") >= 0;
    auto headsAt = [&](std::string_view name) {
      return static_cast<int8_t>(positionOf(info_.operands, info_.hasPackedHeads ? "qkv" : name));
    };
    info_.queries = headsAt("q"), info_.keys = headsAt("k"), info_.values = headsAt("v");
    info_.hasSlices = positionOf(info_.operands, "kpos") >= 0;
  }

  constexpr void readFacts() {
    const OpFacts &facts = info_;
    if (facts.collective)
      info_.traits = OpTraits::Collective, info_.sum = SumRole::Combines;
    mark(facts.holds, info_.blockOperands, info_.blockResults);
    mark(facts.weights, info_.weightOperands, info_.weightResults);
    mark(facts.ranges, info_.rangeOperands, info_.rangeResults);
    forEachValue(facts.linear, [&](std::string_view name, auto) {
      info_.linearOperands |= static_cast<uint16_t>(1u << needed(name, false));
    });
    if (facts.again)
      needed("y", true), forEachValue(facts.again->values, [&](std::string_view name, auto) {
        need(positionOf(info_.operands, name) >= 0 || positionOf(info_.results, name) >= 0);
      });
    if (!facts.squaresResult.empty())
      info_.squares = needed(facts.squaresResult, true),
      info_.squared = needed(facts.squaredResult, true);
    forEachValue(facts.scaledResults, [&](std::string_view name, auto) {
      info_.scaleOf[static_cast<size_t>(needed(name, true))] = needed(facts.scaleResult, true);
    });
    if (facts.reuses >= 0)
      info_.inPlace[0] = facts.reuses;
  }

  /// Adds the attributes of a list, or those of a set that it names.
  constexpr void addAttrs(std::string_view names) {
    while (!names.empty()) {
      std::string_view name = takeUntil(names, ' ');
      if (name.starts_with('@')) {
        addAttrs(attrSetNamed(name.substr(1)));
        continue;
      }
      std::optional<AttrKey> key = parseAttrKey(name.substr(0, name.find_first_of("!~")));
      if (!key || info_.attrs.has(*key))
        return fail(OpFault::UnknownAttribute);
      info_.attrs.add(*key);
      if (name.ends_with('!'))
        info_.needed.add(*key);
      if (name.find('~') != std::string_view::npos)
        info_.unmeant.add(*key);
    }
  }
  /// Adds the attributes that steps take from the fused op.
  constexpr void addAttrs(const OpSteps &steps, const OpRows &rows) {
    AttrSet meant;
    for (const OpStep &step : steps.steps) {
      const OpInfo &of = rows[static_cast<size_t>(step.kind)].info;
      for (int k = 0; k < kAttrCount; ++k) {
        auto key = static_cast<AttrKey>(k);
        if (!of.attrs.has(key) || step.own.has(key))
          continue;
        info_.attrs.add(key);
        if (of.needed.has(key))
          info_.needed.add(key);
        (of.unmeant.has(key) ? info_.unmeant : meant).add(key);
      }
      for (const OpStep::Set &set : step.set)
        if (set.from)
          info_.attrs.add(*set.from), meant.add(*set.from);
    }
    for (int k = 0; k < kAttrCount; ++k)
      if (meant.has(static_cast<AttrKey>(k)))
        info_.unmeant.remove(static_cast<AttrKey>(k));
    addAttrs(info_.moreAttrs);
  }

  /// Whether facts that depend on each other agree.
  constexpr void check() {
    const bool isCollective = info_.collective.has_value();
    const bool isAlias = info_.traits == OpTraits::Alias;
    const bool namesBlock = info_.block == BlockUse::Named || info_.block == BlockUse::NamedKeeps;
    need(namesBlock == !info_.holds.empty() && info_.attrs.has(AttrKey::block) == namesBlock);
    need((info_.weightOperands & ~info_.blockOperands) == 0 &&
         (info_.weightResults & ~info_.blockResults) == 0);
    need(info_.rangeOperands == 0 || info_.rangeResults == 0);
    need((info_.recompute == Recompute::FusedNorm) == info_.norm.has_value());
    need((info_.work.cost == CostClass::Transfer) == isCollective);
    need((info_.sum == SumRole::Combines) == isCollective);
    need((info_.work.cost == CostClass::Nothing) == isAlias);
    need((info_.traffic == OpTraffic::Nothing) == isAlias);
    need(info_.indexed.empty() || info_.sum == SumRole::Computes ||
         info_.sum == SumRole::CountsRows || info_.sum == SumRole::Loads);
    need(info_.work.cost != CostClass::Attention || info_.queries >= 0);
    need(!info_.startsGradient || positionOf(info_.operands, "state") >= 0);
    need(info_.ownRows.empty() || row_.factors.operandValues[0].atoms[0].isNeededWhole);
    if (info_.nodes == 0)
      info_.nodes = 1;
  }

private:
  constexpr void fail(OpFault fault) {
    if (row_.fault == OpFault::None)
      row_.fault = fault;
  }
  constexpr void need(bool isSound) {
    if (!isSound)
      fail(OpFault::Facts);
  }
  constexpr int8_t needed(std::string_view name, bool isResult) {
    int at = positionOf(isResult ? info_.results : info_.operands, name);
    if (at < 0)
      fail(OpFault::UnknownName);
    return static_cast<int8_t>(std::max(at, 0));
  }

  /// Counts names: a `?` lowers the minimum, a `*` removes the maximum.
  static constexpr void count(std::string_view names, uint8_t &min, uint8_t &max) {
    forEachValue(names, [&](std::string_view name, auto) {
      min = static_cast<uint8_t>(min + (withoutMark(name) == name ? 1 : 0));
      max = name.ends_with('*') ? kAnyNumber : static_cast<uint8_t>(max + 1);
    });
  }
  /// Sets the bit of each name: in `operands`, or in `results` if no operand has the name.
  constexpr void mark(std::string_view names, uint8_t &operands, uint8_t &results) {
    forEachValue(names, [&](std::string_view name, auto) {
      int operand = positionOf(info_.operands, name), result = positionOf(info_.results, name);
      if (operand >= 0 && operand < kSetMax)
        operands = static_cast<uint8_t>(operands | 1u << operand);
      else if (operand < 0 && result >= 0 && result < kSetMax)
        results = static_cast<uint8_t>(results | 1u << result);
      else
        fail(OpFault::UnknownName);
    });
  }
  /// The text of an ATTR_SETS row; a wrong name if there is none.
  static constexpr std::string_view attrSetNamed(std::string_view name) {
#define ATTR_SETS(set, names)                                                                      \
  if (name == set)                                                                                 \
    return names;
#include "runtime/plan/OpColumns.def"
    return "?";
  }
  /// A result with an operand's name lives in that operand's buffer.
  constexpr void shareByName() {
    size_t r = 0;
    forEachValue(info_.results, [&](std::string_view name, auto) {
      info_.inPlace[r++] = static_cast<int8_t>(positionOf(info_.operands, withoutMark(name)));
    });
  }

  OpRow &row_;
  OpInfo &info_;
};

constexpr OpRow &at(OpRows &rows, OpKind kind) { return rows[static_cast<size_t>(kind)]; }

/// Makes a row without what follows from steps. A fused op has no signature but names.
constexpr void addRow(OpRow &row, OpKind kind, const OpFacts &facts, std::string_view doc,
                      std::string_view attrs, bool isFused) {
  RowMaker maker(row);
  maker.begin(kind, facts, doc);
  maker.addAttrs(attrs);
  maker.readFacts();
  if (isFused)
    return;
  SignatureParser parser(row.factors, row.types);
  parser.parse(row.info.signature);
  if (row.fault == OpFault::None)
    row.fault = parser.fault();
}
constexpr OpRows makePlainRows() {
  OpRows rows{};
#define OP(enumerator, name, signature, attrs, facts, doc)                                         \
  addRow(at(rows, OpKind::enumerator), OpKind::enumerator, OpFacts() facts, doc, attrs, false);
#define FUSED(enumerator, name, values, steps, facts, doc)                                         \
  addRow(at(rows, OpKind::enumerator), OpKind::enumerator, OpFacts() facts, doc, "", true);
#include "runtime/plan/Ops.def"
  return rows;
}
/// The compiler limits the length of one evaluation, so there are several.
constexpr OpRows kPlainRows = makePlainRows();

constexpr StepsParser parsedSteps(OpKind kind, std::string_view values, std::string_view steps) {
  StepsParser parser(kind);
  parser.parse(values, steps,
               [](OpKind of) { return kPlainRows[static_cast<size_t>(of)].info.attrs; });
  return parser;
}
constexpr StepsParser kSteps[] = {
#define FUSED(enumerator, name, values, steps, facts, doc)                                         \
  parsedSteps(OpKind::enumerator, values, steps),
#define EQUALS(op, values, steps) parsedSteps(OpKind::op, values, steps),
#include "runtime/plan/Ops.def"
};

constexpr OpRow makeFusedRow(OpKind kind) {
  OpRow row;
  row = kPlainRows[static_cast<size_t>(kind)];
  const StepsParser &steps =
      *std::ranges::find(kSteps, kind, [](const StepsParser &parser) { return parser.row().kind; });
  row.fault = row.fault == OpFault::None ? steps.fault() : row.fault;
  if (row.fault != OpFault::None)
    return row;
  RowMaker(row).addAttrs(steps.row(), kPlainRows);
  Derivation(kPlainRows, steps.row(), row).run();
  return row;
}
template <OpKind kKind> constexpr OpRow kFusedRow = makeFusedRow(kKind);

/// The producer's forms do not write the results that they lack.
constexpr void addForm(OpRows &rows, OpKind kind, QuantisingForm form) {
  at(rows, kind).info.form = form;
  OpInfo &producer = at(rows, form.producer).info;
  size_t r = 0;
  forEachValue(producer.results, [&](std::string_view name, auto) {
    if (positionOf(at(rows, kind).info.results, withoutMark(name)) < 0)
      producer.quantised = static_cast<uint8_t>(producer.quantised | 1u << r);
    ++r;
  });
}
constexpr OpRows makeRows() {
  OpRows rows = kPlainRows;
#define FUSED(enumerator, name, values, text, facts, doc)                                          \
  at(rows, OpKind::enumerator) = kFusedRow<OpKind::enumerator>;                                    \
  at(rows, OpKind::enumerator).info.steps = text;
#include "runtime/plan/Ops.def"
#define FORM(producer, quantizer, ...)                                                             \
  addForm(rows, OpKind::producer##quantizer, {OpKind::producer, OpKind::quantizer});
#include "runtime/plan/Ops.def"
  for (size_t k = 0; k < rows.size(); ++k)
    if (std::optional<OpKind> gradient = rows[k].info.lossGradient)
      at(rows, *gradient).info.startsGradient = true;
  for (OpRow &row : rows)
    RowMaker(row).check();
  return rows;
}
constexpr OpRows kRows = makeRows();

/// The compiler's message names the op and the fault.
template <OpKind kKind, OpFault kFault> struct RowOfOp {
  static_assert(kFault == OpFault::None, "this row of Ops.def is malformed or contradicts itself");
};
#define OP(enumerator, ...)                                                                        \
  template struct RowOfOp<OpKind::enumerator, kRows[static_cast<size_t>(OpKind::enumerator)].fault>;
#include "runtime/plan/Ops.def"

std::string_view wordOf(const ValueType &type) {
  constexpr std::string_view kMeanings[] = {
#define VALUE_TYPES(enumerator, word, meaning) meaning,
#include "runtime/plan/OpColumns.def"
  };
  return type.numbers == ValueType::Exact ? dtypeName(type.dtype) : kMeanings[type.numbers];
}

} // namespace

constexpr std::array<OpInfo, kOpCount> kOpInfos = [] {
  std::array<OpInfo, kOpCount> infos{};
  for (size_t k = 0; k < infos.size(); ++k)
    infos[k] = kRows[k].info;
  return infos;
}();

const OpFactors &factorsOf(OpKind kind) { return kRows[static_cast<size_t>(kind)].factors; }
const OpTypes &typesOf(OpKind kind) { return kRows[static_cast<size_t>(kind)].types; }

std::optional<OpKind> parseOpKind(std::string_view name) {
  static const auto kKinds = [] {
    std::unordered_map<std::string_view, OpKind> kinds;
    for (size_t k = 0; k < kOpCount; ++k)
      kinds.emplace(names::kNames[k], static_cast<OpKind>(k));
    return kinds;
  }();
  auto at = kKinds.find(name);
  return at == kKinds.end() ? std::nullopt : std::optional(at->second);
}

std::optional<OpKind> quantisingForm(OpKind producer, OpKind quantizer) {
#define FORM(op, quantizer_, name, values, steps, facts)                                           \
  if (producer == OpKind::op && quantizer == OpKind::quantizer_)                                   \
    return OpKind::op##quantizer_;
#include "runtime/plan/Ops.def"
  return std::nullopt;
}

std::optional<OpFactors> parseFactors(std::string_view signature) {
  OpFactors factors;
  OpTypes types;
  SignatureParser parser(factors, types);
  parser.parse(signature);
  return parser.fault() == OpFault::None ? std::optional(factors) : std::nullopt;
}

std::span<const OpSteps> allSteps() {
  static constexpr auto kAll = [] {
    std::array<OpSteps, std::size(kSteps)> all{};
    std::ranges::transform(kSteps, all.begin(), &StepsParser::row);
    return all;
  }();
  return kAll;
}

std::optional<OpSteps> parseSteps(OpKind kind, std::string_view values, std::string_view steps) {
  StepsParser parser(kind);
  parser.parse(values, steps, [](OpKind of) { return opInfo(of).attrs; });
  return parser.fault() == OpFault::None ? std::optional(parser.row()) : std::nullopt;
}

const OpSteps *stepsOf(OpKind kind, size_t operands, size_t results) {
  for (const OpSteps &row : allSteps())
    if (row.kind == kind && operands >= row.operandsMin && operands <= row.operandsMax &&
        results <= row.results.size())
      return &row;
  return nullptr;
}

NeededSteps neededSteps(const OpSteps &row, size_t results) {
  NeededSteps needed;
  for (size_t r = 0; r < results; ++r)
    needed.values |= 1u << row.results[r];
  for (size_t s = row.steps.size(); s-- > 0;) {
    const OpStep &step = row.steps[s];
    if (std::ranges::none_of(step.results, [&](uint8_t value) { return needed.hasValue(value); }))
      continue;
    needed.steps |= 1u << s;
    for (uint8_t value : step.operands)
      needed.values |= 1u << value;
  }
  return needed;
}

std::string toString(const ValueType &needed, std::string_view like) {
  if (needed.like >= 0)
    return fmt::format("the {} of '{}'", needed.isSameType ? "type" : "element type", like);
  return needed.rank == 0 ? std::string(wordOf(needed))
                          : fmt::format("{} with {} dimension{}", wordOf(needed), needed.rank,
                                        needed.rank == 1 ? "" : "s");
}

} // namespace shardc::plan
