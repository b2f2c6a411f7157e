// Parses the rows of Ops.def at compile time, except FACTORS and TYPES. It is a compile error if a
// row is missing, names an operand or result that the op does not have, or contradicts another row.
#include "runtime/plan/OpInfo.h"

namespace shardc::plan {
namespace {

/// The number of operands, or of results, that a bit set can hold.
constexpr int kSetMax = 8;

/// Counts of an op's rows, which the assertions below check.
struct RowCounts {
  int facts = 0, blocks = 0, norms = 0, indices = 0, ownRows = 0, nodes = 0, epilogues = 0,
      collectives = 0;
  bool hasUnknownName = false, hasWrongAttrs = false;
};

struct OpTable {
  std::array<OpInfo, kOpCount> infos{};
  std::array<RowCounts, kOpCount> rows{};

  constexpr OpInfo &info(OpKind kind) { return infos[static_cast<size_t>(kind)]; }
  constexpr RowCounts &countsAt(OpKind kind) { return rows[static_cast<size_t>(kind)]; }

  /// Sets the bit of each name: in `operands`, or in `results` if no operand has the name.
  constexpr void mark(OpKind kind, std::string_view names, uint8_t &operands, uint8_t &results) {
    while (!names.empty()) {
      size_t end = std::min(names.find(' '), names.size());
      std::string_view name = names.substr(0, end);
      int operand = positionOf(info(kind).operands, name);
      int result = positionOf(info(kind).results, name);
      if (operand >= 0 && operand < kSetMax)
        operands = static_cast<uint8_t>(operands | 1u << operand);
      else if (operand < 0 && result >= 0 && result < kSetMax)
        results = static_cast<uint8_t>(results | 1u << result);
      else
        countsAt(kind).hasUnknownName = true;
      names.remove_prefix(std::min(end + 1, names.size()));
    }
  }

  constexpr void needNames(OpKind kind, std::string_view names, bool areResults) {
    for (; !names.empty(); names.remove_prefix(std::min(names.find(' '), names.size() - 1) + 1)) {
      std::string_view name = names.substr(0, names.find(' '));
      countsAt(kind).hasUnknownName |= positionOf(info(kind).results, name) < 0 &&
                                       (areResults || positionOf(info(kind).operands, name) < 0);
    }
  }

  /// Adds the attributes of an ATTRS row, or those of a set that the row names.
  constexpr void addAttrs(OpKind kind, std::string_view names) {
    while (!names.empty()) {
      std::string_view name = takeUntil(names, ' ');
      if (name.starts_with('@')) {
        addAttrs(kind, attrSetNamed(name.substr(1)));
        continue;
      }
      OpInfo &row = info(kind);
      std::optional<AttrKey> key = parseAttrKey(name.substr(0, name.find_first_of("!~")));
      countsAt(kind).hasWrongAttrs |= !key || row.attrs.has(*key);
      if (!key)
        continue;
      row.attrs.add(*key);
      if (name.ends_with('!'))
        row.needed.add(*key);
      if (name.find('~') != std::string_view::npos)
        row.unmeant.add(*key);
    }
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
  constexpr void shareByName(OpKind kind) {
    std::string_view results = info(kind).results;
    for (size_t r = 0; !results.empty(); ++r) {
      std::string_view name = takeUntil(results, ' ');
      name = name.substr(0, name.find_first_of("?*"));
      info(kind).inPlace[r] = static_cast<int8_t>(positionOf(info(kind).operands, name));
    }
  }

  constexpr void setEpilogues(OpKind kind, std::string_view makes,
                              std::array<EpilogueForms, kEpilogueCount> epilogues) {
    needNames(kind, makes, true);
    info(kind).makes = makes;
    info(kind).epilogues = epilogues;
    ++countsAt(kind).epilogues;
  }

  constexpr void setAgain(OpKind kind, MadeAgain again) {
    needNames(kind, again.values, false);
    needNames(kind, "y", true);
    info(kind).again = again;
  }

  constexpr void setSquares(OpKind kind, std::string_view squares, std::string_view of) {
    needNames(kind, squares, true);
    needNames(kind, of, true);
    info(kind).squares = static_cast<int8_t>(positionOf(info(kind).results, squares));
    info(kind).squared = static_cast<int8_t>(positionOf(info(kind).results, of));
  }

  constexpr void setIndexed(OpKind kind, std::string_view part) {
    info(kind).indexed = part;
    ++countsAt(kind).indices;
  }
  constexpr void setOwnRows(OpKind kind, std::string_view what) {
    info(kind).ownRows = what;
    ++countsAt(kind).ownRows;
  }

  constexpr void setScale(OpKind kind, std::string_view scale, std::string_view factors) {
    OpInfo &row = info(kind);
    int at = positionOf(row.results, scale);
    while (!factors.empty()) {
      size_t end = std::min(factors.find(' '), factors.size());
      int factor = positionOf(row.results, factors.substr(0, end));
      if (at >= 0 && factor >= 0)
        row.scaleOf[static_cast<size_t>(factor)] = static_cast<int8_t>(at);
      else
        countsAt(kind).hasUnknownName = true;
      factors.remove_prefix(std::min(end + 1, factors.size()));
    }
  }
};

#define ATTRS(enumerator, names) table.addAttrs(OpKind::enumerator, names);
#define SQUARES(enumerator, ss, of) table.setSquares(OpKind::enumerator, ss, of);
#define TENSOR_NODES(enumerator, count) table.info(OpKind::enumerator).tensorNodes = count;
constexpr OpTable makeOpTable() {
  OpTable table;
#define OP(enumerator, name_, operands_, results_, traits_, doc_)                                  \
  {                                                                                                \
    OpInfo &info = table.info(OpKind::enumerator);                                                 \
    info.name = name_;                                                                             \
    info.index = static_cast<uint16_t>(OpKind::enumerator);                                        \
    info.operands = operands_;                                                                     \
    info.results = results_;                                                                       \
    info.traits = OpTraits::traits_;                                                               \
    info.doc = doc_;                                                                               \
    info.inPlace.fill(-1), info.scaleOf.fill(-1);                                                  \
    table.shareByName(OpKind::enumerator);                                                         \
    countNames(operands_, info.operandsMin, info.operandsMax);                                     \
    countNames(results_, info.resultsMin, info.resultsMax);                                        \
    info.hasPackedHeads = positionOf(operands_, "qkv") >= 0;                                       \
    info.queries = static_cast<int8_t>(positionOf(operands_, info.hasPackedHeads ? "qkv" : "q"));  \
    info.keys = static_cast<int8_t>(positionOf(operands_, info.hasPackedHeads ? "qkv" : "k"));     \
    info.values = static_cast<int8_t>(positionOf(operands_, info.hasPackedHeads ? "qkv" : "v"));   \
    info.hasSlices = positionOf(operands_, "kpos") >= 0;                                           \
  }
#define INPLACE(enumerator, result, operand)                                                       \
  table.info(OpKind::enumerator).inPlace[result] = operand;
#define FACTS(enumerator, work_, traffic_, workspace_, block_, sum_, recompute_)                   \
  {                                                                                                \
    OpInfo &info = table.info(OpKind::enumerator);                                                 \
    info.work = works::work_;                                                                      \
    info.traffic = OpTraffic::traffic_;                                                            \
    info.workspace = Workspace::workspace_;                                                        \
    info.block = BlockUse::block_;                                                                 \
    info.sum = SumRole::sum_;                                                                      \
    info.recompute = Recompute::recompute_;                                                        \
    ++table.countsAt(OpKind::enumerator).facts;                                                    \
  }
#define BLOCK(enumerator, holds, weights, ranges)                                                  \
  {                                                                                                \
    OpInfo &info = table.info(OpKind::enumerator);                                                 \
    table.mark(OpKind::enumerator, holds, info.blockOperands, info.blockResults);                  \
    table.mark(OpKind::enumerator, weights, info.weightOperands, info.weightResults);              \
    table.mark(OpKind::enumerator, ranges, info.rangeOperands, info.rangeResults);                 \
    ++table.countsAt(OpKind::enumerator).blocks;                                                   \
  }
#define NORM(enumerator, norm_)                                                                    \
  table.info(OpKind::enumerator).norm = OpKind::norm_;                                             \
  ++table.countsAt(OpKind::enumerator).norms;
#define SCALE(enumerator, scale, factors) table.setScale(OpKind::enumerator, scale, factors);
#define INDEXED(enumerator, part) table.setIndexed(OpKind::enumerator, part);
#define OWN_ROWS(enumerator, what) table.setOwnRows(OpKind::enumerator, what);
#define NODES(enumerator, count)                                                                   \
  table.info(OpKind::enumerator).nodes = count;                                                    \
  ++table.countsAt(OpKind::enumerator).nodes;
#define EPILOGUES(enumerator, makes_, alone, delayed, amax, tensorwise, blocks)                    \
  table.setEpilogues(OpKind::enumerator, makes_,                                                   \
                     {EpilogueForms::None, EpilogueForms::delayed,                                 \
                      amax == 0 ? EpilogueForms::None : EpilogueForms::Plain,                      \
                      EpilogueForms::tensorwise, EpilogueForms::blocks});                          \
  table.info(OpKind::enumerator).amaxWork = amax;                                                  \
  table.info(OpKind::enumerator).needsEpilogue = !alone;
#define AGAIN(op, other, values) table.setAgain(OpKind::op, {OpKind::other, values});
#define REEMITS(enumerator, forward) table.info(OpKind::enumerator).reemits = OpKind::forward;
#define WEIGHTED(enumerator, weighted_) table.info(OpKind::enumerator).weighted = OpKind::weighted_;
#define STARTS_GRADIENT(enumerator, gradient)                                                      \
  table.info(OpKind::enumerator).lossGradient = OpKind::gradient;                                  \
  table.info(OpKind::gradient).startsGradient = true;
#define COLLECTIVE(enumerator, kind_, conjugate_)                                                  \
  table.info(OpKind::enumerator).collective = {CollectiveKind::kind_, conjugate_};                 \
  ++table.countsAt(OpKind::enumerator).collectives;
#include "runtime/plan/Ops.def"
  return table;
}

constexpr OpTable kTable = makeOpTable();

// ---- whether rows are complete and consistent ----

constexpr const OpInfo &rowOf(OpKind kind) { return kTable.infos[static_cast<size_t>(kind)]; }
constexpr const RowCounts &countsOf(OpKind kind) { return kTable.rows[static_cast<size_t>(kind)]; }

constexpr bool namesBlock(OpKind kind) {
  BlockUse use = rowOf(kind).block;
  return use == BlockUse::Named || use == BlockUse::NamedKeeps;
}

/// Whether a BLOCK row names only values of the op, all weights among them have blocks, and the
/// values with ranges are either all operands or all results.
constexpr bool isBlockRowSound(OpKind kind) {
  const OpInfo &info = rowOf(kind);
  unsigned weights = info.weightOperands & ~info.blockOperands;
  weights |= info.weightResults & ~info.blockResults;
  bool hasBoth = info.rangeOperands != 0 && info.rangeResults != 0;
  return !countsOf(kind).hasUnknownName && weights == 0 && !hasBoth;
}

/// Whether the op has attribute `block` if a block is named by it, and only then.
constexpr bool hasAttrsOfBlock(OpKind kind) {
  return !countsOf(kind).hasWrongAttrs && rowOf(kind).attrs.has(AttrKey::block) == namesBlock(kind);
}

constexpr bool isCollective(OpKind kind) { return rowOf(kind).traits == OpTraits::Collective; }
constexpr bool isAliasOp(OpKind kind) { return rowOf(kind).traits == OpTraits::Alias; }

/// Whether an op that starts gradients takes the step state, which has the loss scale.
constexpr bool startsByRow(OpKind kind) {
  const OpInfo &info = rowOf(kind);
  return !info.startsGradient || positionOf(info.operands, "state") >= 0;
}

/// Whether columns that state the same fact agree.
constexpr bool isConsistent(OpKind kind) {
  const OpInfo &info = rowOf(kind);
  return (info.work.cost == CostClass::Transfer) == isCollective(kind) &&
         (info.sum == SumRole::Combines) == isCollective(kind) &&
         (info.work.cost == CostClass::Nothing) == isAliasOp(kind) &&
         (info.traffic == OpTraffic::Nothing) == isAliasOp(kind) &&
         (info.indexed.empty() || info.sum == SumRole::Computes ||
          info.sum == SumRole::CountsRows || info.sum == SumRole::Loads) &&
         (info.work.cost != CostClass::Attention || info.queries >= 0);
}

#define OP(enumerator, name, operands, results, traits, doc)                                       \
  static_assert(countsOf(OpKind::enumerator).facts == 1, "op " #enumerator " has one FACTS row");  \
  static_assert(countsOf(OpKind::enumerator).blocks == (namesBlock(OpKind::enumerator) ? 1 : 0),   \
                "op " #enumerator " has a BLOCK row if its block use is Named or NamedKeeps");     \
  static_assert(isBlockRowSound(OpKind::enumerator),                                               \
                "the BLOCK row of op " #enumerator                                                 \
                " has operands and results of its row, weights "                                   \
                "that hold the block, and values with ranges among one of them");                  \
  static_assert(countsOf(OpKind::enumerator).norms ==                                              \
                    (rowOf(OpKind::enumerator).recompute == Recompute::FusedNorm ? 1 : 0),         \
                "op " #enumerator " has a NORM row if it is a FusedNorm");                         \
  static_assert(countsOf(OpKind::enumerator).indices <= 1,                                         \
                "op " #enumerator " has at most one INDEXED row");                                 \
  static_assert(countsOf(OpKind::enumerator).ownRows <= 1,                                         \
                "op " #enumerator " has at most one OWN_ROWS row");                                \
  static_assert(countsOf(OpKind::enumerator).epilogues <= 1 &&                                     \
                    !countsOf(OpKind::enumerator).hasUnknownName,                                  \
                "op " #enumerator " has at most one EPILOGUES row, and all rows have its names");  \
  static_assert(countsOf(OpKind::enumerator).nodes <= 1 && rowOf(OpKind::enumerator).nodes > 0,    \
                "op " #enumerator " has at most one NODES row");                                   \
  static_assert(countsOf(OpKind::enumerator).collectives ==                                        \
                    (isCollective(OpKind::enumerator) ? 1 : 0),                                    \
                "op " #enumerator " has a COLLECTIVE row if it is a collective");                  \
  static_assert(startsByRow(OpKind::enumerator),                                                   \
                "op " #enumerator " starts gradients and takes 'state'");                          \
  static_assert(hasAttrsOfBlock(OpKind::enumerator),                                               \
                "the ATTRS row of op " #enumerator " names attributes or sets that exist, each "   \
                "once, and 'block' if its block use is Named or NamedKeeps");                      \
  static_assert(isConsistent(OpKind::enumerator),                                                  \
                "op " #enumerator ": collectives are transfer() and Combines; aliases are "        \
                "nothing() and move Nothing; attention takes 'q' or 'qkv'; indexed ops are "       \
                "Computes, CountsRows or Loads");
#include "runtime/plan/Ops.def"

} // namespace

constexpr std::array<OpInfo, kOpCount> kOpInfos = kTable.infos;

} // namespace shardc::plan
