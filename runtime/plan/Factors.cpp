// Parses the FACTORS rows of Ops.def at compile time. A row that is missing, malformed, or does not
// fit its OP row is a compile error.
#include "runtime/plan/Factors.h"

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc::plan {
namespace {

/// An error in a row; the compiler prints the number.
enum class FactorFault : uint8_t {
  None,
  NoArrow,          ///< there must be exactly one `->` between operands and results
  OperandCount,     ///< the OP row has another number of operands
  ResultCount,      ///< the OP row has another number of results
  List,             ///< `*` must mark the same operands as in the OP row
  UnknownAttribute, ///< no row of Attrs.def has that name
  Word,             ///< the word does not belong to the notation
  TooMany,          ///< the row has more factors, dimensions or words than the limits allow
  Unclosed,         ///< a parenthesis has no counterpart
  MarkOfOperand,    ///< `=` and `^` mark results only, `!` and `+` operands only
  UnknownFactor,    ///< a result names a factor that neither an operand nor a clause has
  Uncounted,        ///< a factor with `?` needs an operand with row counts or indices
  Transposed        ///< a transposed value needs at least two dimensions
};

struct Parsed {
  OpFactors factors;
  int rows = 0;
  FactorFault fault = FactorFault::None;
};

constexpr bool isDigit(char c) { return c >= '0' && c <= '9'; }
constexpr bool isLetter(char c) { return c >= 'a' && c <= 'z'; }

constexpr bool isListName(std::string_view names, size_t at) {
  for (; at > 0; --at)
    takeUntil(names, ' ');
  return takeUntil(names, ' ').ends_with('*');
}

class RowParser {
public:
  constexpr explicit RowParser(OpFactors &factors) : out_(factors) {}

  constexpr FactorFault fault() const { return fault_; }

  /// `operands` and `results` are the names in the OP row.
  constexpr void parse(std::string_view text, std::string_view operands, std::string_view results) {
    out_.text = text;
    std::string_view clauses = text;
    std::string_view values = takeUntil(clauses, ';');
    size_t arrow = values.find("->");
    if (arrow == std::string_view::npos)
      return fail(FactorFault::NoArrow);
    parseSide(values.substr(0, arrow), operands, true);
    bool isOpen = out_.operandCount == 0 ||
                  std::ranges::any_of(out_.operands(), [](const FactorValue &value) {
                    return value.form == FactorValue::Opaque;
                  });
    FactorId known = static_cast<FactorId>(out_.factorCount);
    parseSide(values.substr(arrow + 2), results, false);
    while (!clauses.empty())
      if (std::string_view clause = takeUntil(clauses, ' '); !clause.empty())
        parseClause(clause);
    for (FactorId factor = known; factor < out_.factorCount && !isOpen; ++factor)
      if (factor != out_.members && !out_.attrOf[static_cast<size_t>(factor)])
        fail(FactorFault::UnknownFactor);
    for (const FactorValue &value : out_.operands())
      needCounts(value);
    for (const FactorValue &value : out_.results())
      needCounts(value);
  }

private:
  constexpr void fail(FactorFault fault) {
    if (fault_ == FactorFault::None)
      fault_ = fault;
  }

  constexpr void needCounts(const FactorValue &value) {
    for (size_t a = 0; a < value.atomCount; ++a)
      if (FactorId rows = value.atoms[a].factor;
          value.atoms[a].isBound &&
          std::ranges::none_of(out_.operands(), [rows](const FactorValue &operand) {
            return operand.countsRowsOf == rows || operand.pointsInto == rows;
          }))
        fail(FactorFault::Uncounted);
  }

  constexpr void parseSide(std::string_view text, std::string_view names, bool isOperand) {
    text = trimmed(text);
    size_t count = 0, wanted = countNames(names);
    for (; !text.empty(); ++count) {
      std::string_view value = takeUntil(text, ',');
      if (count >= wanted || count >= (isOperand ? kOperandsOfOpMax : kResultsOfOpMax))
        return fail(isOperand ? FactorFault::OperandCount : FactorFault::ResultCount);
      FactorValue &target = isOperand ? out_.operandValues[count] : out_.resultValues[count];
      parseValue(value, target, isOperand);
      if (isOperand && target.isList != isListName(names, count))
        fail(FactorFault::List);
    }
    if (count != wanted)
      fail(isOperand ? FactorFault::OperandCount : FactorFault::ResultCount);
    (isOperand ? out_.operandCount : out_.resultCount) = static_cast<uint8_t>(count);
  }

  /// Parses one value: an optional attribute that transposes it, marks before the dimensions, `>f`
  /// for values that index factor f, `*` for a list, then the dimensions.
  constexpr void parseValue(std::string_view text, FactorValue &value, bool isOperand) {
    if (size_t colon = text.find(':'); colon != std::string_view::npos) {
      value.transposedBy = parseAttrKey(text.substr(0, colon));
      if (!value.transposedBy)
        fail(FactorFault::UnknownAttribute);
      text.remove_prefix(colon + 1);
    }
    if (text == "." || text == "$") {
      value.form = text == "." ? FactorValue::Opaque : FactorValue::Scales;
      return;
    }
    parseLead(text, value, isOperand);
    if (size_t at = text.find('>'); at != std::string_view::npos) {
      if (at + 2 != text.size() || !isLetter(text[at + 1]))
        return fail(FactorFault::Word);
      value.pointsInto = factorOf(text[at + 1], false);
      text = text.substr(0, at);
    }
    if (text.ends_with('*')) {
      value.isList = true;
      text.remove_suffix(1);
    }
    parseDims(text, value, isOperand);
    if (value.transposedBy && value.dimCount < 2)
      fail(FactorFault::Transposed);
    if (value.countsRowsOf != kNoFactor && isOperand)
      for (FactorAtom &atom : value.atoms)
        atom.isNeededWhole = true; // the start of a group of rows depends on the groups before it
  }

  constexpr void parseLead(std::string_view &text, FactorValue &value, bool isOperand) {
    if (text.starts_with('|')) {
      if (text.size() < 2 || !isLetter(text[1]))
        return fail(FactorFault::Word);
      value.countsRowsOf = factorOf(text[1], false);
      text.remove_prefix(2);
      return;
    }
    bool hasLead = text.starts_with('+') || text.starts_with('=') || text.starts_with('^');
    if (!hasLead)
      return;
    if ((text[0] == '+') != isOperand)
      fail(FactorFault::MarkOfOperand);
    value.isAddedOnce = text[0] == '+';
    if (text[0] == '=')
      value.combine = FactorValue::Same;
    if (text[0] == '^')
      value.combine = FactorValue::Largest;
    text.remove_prefix(1);
  }

  /// Parses dimensions: a word is one, and so are several words in parentheses, whose extents are
  /// multiplied.
  constexpr void parseDims(std::string_view text, FactorValue &value, bool isOperand) {
    bool isInside = false; // inside of parentheses
    while (!text.empty()) {
      if (text[0] == ' ') {
        text.remove_prefix(1);
        continue;
      }
      if (text[0] == '(' && !isInside) {
        isInside = true;
        text.remove_prefix(1);
        continue;
      }
      if (text[0] == ')' && isInside) {
        isInside = false;
        text.remove_prefix(1);
        if (text.starts_with('%')) {
          for (size_t a = 0; a < value.atomCount; ++a)
            value.atoms[a].isInSharedDim |= value.atoms[a].dim == value.dimCount;
          text.remove_prefix(1);
        }
        ++value.dimCount;
        continue;
      }
      if (value.atomCount == kAtomsOfValueMax || value.dimCount == kDimsOfValueMax)
        return fail(FactorFault::TooMany);
      FactorAtom &atom = value.atoms[value.atomCount++];
      atom.dim = value.dimCount;
      parseWord(text, atom, isOperand);
      if (fault_ != FactorFault::None)
        return;
      value.dimCount = static_cast<uint8_t>(value.dimCount + (isInside ? 0 : 1));
    }
    if (isInside || value.dimCount == 0)
      fail(FactorFault::Unclosed);
  }

  constexpr uint16_t parseNumber(std::string_view &text) {
    int number = 0;
    if (text.empty() || !isDigit(text[0]))
      fail(FactorFault::Word);
    for (; !text.empty() && isDigit(text[0]); text.remove_prefix(1))
      number = number * 10 + (text[0] - '0');
    if (number == 0 || number > UINT16_MAX)
      fail(FactorFault::Word);
    return static_cast<uint16_t>(number);
  }

  /// Parses one word: a number, or a factor with an optional sum (`a+b`, `a+2`), block size
  /// (`a/128`) or mirror sign (`~a`), then marks.
  constexpr void parseWord(std::string_view &text, FactorAtom &atom, bool isOperand) {
    if (isDigit(text[0])) {
      atom.form = FactorAtom::Number;
      atom.number = parseNumber(text);
      return;
    }
    if (text[0] == '~') {
      atom.form = FactorAtom::Mirrored;
      text.remove_prefix(1);
    }
    if (text.empty() || !isLetter(text[0]))
      return fail(FactorFault::Word);
    bool isPrimed = text.size() > 1 && text[1] == '\'';
    atom.factor = factorOf(text[0], isPrimed);
    text.remove_prefix(isPrimed ? 2 : 1);
    if (text.size() > 1 && text[0] == '+' && isLetter(text[1])) {
      atom.form = FactorAtom::Joined;
      atom.other = factorOf(text[1], false);
      text.remove_prefix(2);
    } else if (text.starts_with('+') || text.starts_with('/')) {
      atom.form = text[0] == '+' ? FactorAtom::Beside : FactorAtom::Blocks;
      text.remove_prefix(1);
      atom.number = parseNumber(text);
    }
    parseMarks(text, atom, isOperand);
  }

  constexpr void parseMarks(std::string_view &text, FactorAtom &atom, bool isOperand) {
    for (; !text.empty() && text[0] != ' ' && text[0] != ')'; text.remove_prefix(1))
      switch (text[0]) {
      case '!':
        if (!isOperand)
          fail(FactorFault::MarkOfOperand);
        atom.isNeededWhole = true;
        break;
      case '#':
        atom.isCounted = true;
        break;
      case '@':
        atom.isKnownByIndex = true;
        break;
      case '%':
        atom.isShare = true;
        break;
      case '?':
        atom.isBound = true;
        break;
      default:
        return fail(FactorFault::Word);
      }
  }

  /// Returns the number of the letter, and adds the letter if it is new in the row.
  constexpr FactorId factorOf(char letter, bool isPrimed) {
    // Primed letters are stored as capitals.
    char kept = isPrimed ? static_cast<char>(letter - 'a' + 'A') : letter;
    for (size_t i = 0; i < out_.factorCount; ++i)
      if (out_.letters[i] == kept)
        return static_cast<FactorId>(i);
    FactorId base = isPrimed ? factorOf(letter, false) : kNoFactor;
    if (out_.factorCount == kFactorsOfOpMax) {
      fail(FactorFault::TooMany);
      return 0;
    }
    auto factor = static_cast<FactorId>(out_.factorCount++);
    out_.letters[static_cast<size_t>(factor)] = kept;
    out_.extentOf[static_cast<size_t>(factor)] = isPrimed ? base : factor;
    return factor;
  }

  /// Parses `x=attribute`, `x=group`, or an attribute that reverses the op.
  constexpr void parseClause(std::string_view clause) {
    size_t equal = clause.find('=');
    if (equal == std::string_view::npos) {
      out_.reversedBy = parseAttrKey(clause);
      return out_.reversedBy ? void() : fail(FactorFault::UnknownAttribute);
    }
    FactorId factor = equal == 1 ? out_.find(clause[0]) : kNoFactor;
    if (factor == kNoFactor)
      return fail(FactorFault::UnknownFactor);
    std::string_view name = clause.substr(equal + 1);
    if (name == "group") {
      out_.members = factor;
      return;
    }
    std::optional<AttrKey> attr = parseAttrKey(name);
    if (!attr)
      fail(FactorFault::UnknownAttribute);
    out_.attrOf[static_cast<size_t>(factor)] = attr;
  }

  OpFactors &out_;
  FactorFault fault_ = FactorFault::None;
};

struct FactorTable {
  std::array<OpFactors, kOpCount> factors{};
  std::array<FactorFault, kOpCount> faults{};
  std::array<int, kOpCount> rows{};
};

struct FactorNames {
  std::string_view operands, results;
};
constexpr FactorNames kNames[] = {
#define OP(enumerator, name, operands, results, traits, doc) {operands, results},
#include "runtime/plan/Ops.def"
};

/// Parses all rows FACTORS of Ops.def at compile time. The faults are checked below.
constexpr FactorTable makeFactorTable() {
  FactorTable table;
  auto add = [&](OpKind kind, std::string_view text) {
    auto at = static_cast<size_t>(kind);
    RowParser parser(table.factors[at]);
    parser.parse(text, kNames[at].operands, kNames[at].results);
    table.faults[at] = parser.fault();
    ++table.rows[at];
  };
#define FACTORS(op, text) add(OpKind::op, text);
#include "runtime/plan/Ops.def"
  return table;
}

constexpr FactorTable kFactorTable = makeFactorTable();

#define OP(enumerator, name, operands, results, traits, doc)                                       \
  static_assert(kFactorTable.rows[static_cast<size_t>(OpKind::enumerator)] == 1,                   \
                "op " #enumerator " has one FACTORS row");                                         \
  static_assert(kFactorTable.faults[static_cast<size_t>(OpKind::enumerator)] == FactorFault::None, \
                "the FACTORS row of op " #enumerator " is malformed, or does not fit its OP row");
#include "runtime/plan/Ops.def"

constexpr bool needsAllRows(const OpFactors &factors) {
  return factors.operandValues[0].atoms[0].isNeededWhole;
}
#define OWN_ROWS(op, what)                                                                         \
  static_assert(needsAllRows(kFactorTable.factors[static_cast<size_t>(OpKind::op)]),               \
                "op " #op " has an OWN_ROWS row, so it needs all rows of its first operand");
#include "runtime/plan/Ops.def"

/// The FACTORS rows of ops with epilogues. The texts of op and epilogue are joined and then parsed
/// like other rows.
class FusedFactors {
public:
  FusedFactors() {
    for (const OpForm &form : allOpForms()) {
      OpFactors &factors = factors_.emplace_back();
      if (form.epilogue == Epilogue::None) {
        factors = kFactorTable.factors[static_cast<size_t>(form.kind)];
        continue;
      }
      const OpInfo &info = opInfo(form.kind, form.epilogue);
      RowParser parser(factors);
      const std::string &text = texts_.emplace_back(textOf(form, info));
      parser.parse(text, info.operands, info.results);
      SHARDC_CHECK(parser.fault() == FactorFault::None, "the factors '{}' of {} are malformed",
                   text, info.name);
    }
  }

  const OpFactors &at(size_t form) const { return factors_[form]; }

private:
  static std::string valueAt(std::string_view side, int index) {
    for (; index > 0; --index)
      takeUntil(side, ',');
    return std::string(takeUntil(side, ','));
  }
  /// Returns the text after the first comma: the epilogue's operands other than the value it works
  /// on.
  static std::string behindFirst(std::string_view side) {
    takeUntil(side, ',');
    return std::string(trimmed(side));
  }

  /// The dimensions of one value that the op computes: its rows and its last dimension, which may
  /// be compound.
  struct Made {
    std::string rows, last;
    std::string plain() const { return rows + ' ' + last; }
    std::string transposed() const { return last + ' ' + rows; }
    /// The dimensions of its scales, one per block of 128 along the last dimension of the plain or
    /// of the transposed value.
    std::string scales(bool isTransposed) const {
      std::string blocks = isTransposed ? rows : last;
      blocks.insert(blocks.size() - (blocks.ends_with(')') ? 1 : 0), "/128");
      return blocks + ' ' + (isTransposed ? last : rows);
    }
  };

  /// Joins the FACTORS texts of op and epilogue to one text: the op's operands, the epilogue's
  /// other operands, and the results in the order of the fused row.
  static std::string textOf(const OpForm &form, const OpInfo &info) {
    const OpInfo &producer = opInfo(form.kind);
    std::string_view results = kFactorTable.factors[static_cast<size_t>(form.kind)].text;
    OpKind epilogue = opOfEpilogue(form.epilogue);
    std::string_view more = kFactorTable.factors[static_cast<size_t>(epilogue)].text;
    constexpr std::string_view kArrow = "->";
    std::string text(trimmed(results.substr(0, results.find(kArrow))));
    results.remove_prefix(results.find(kArrow) + kArrow.size());
    if (std::string operands = behindFirst(more.substr(0, more.find(kArrow))); !operands.empty())
      text += ", " + operands;
    std::vector<Made> made;
    std::string_view names = producer.makes;
    while (!names.empty()) {
      std::string dims = valueAt(results, positionOf(producer.results, takeUntil(names, ' ')));
      made.push_back({dims.substr(0, 1), dims.substr(2)});
    }
    text += " ->";
    names = info.results;
    for (const char *comma = " "; !names.empty(); comma = ", ")
      text += comma + resultOf(form, takeUntil(names, ' '), producer, results, made);
    return text;
  }

  /// The factors of one result of a fused op, by its name: `q` and `t` are quantised values, plain
  /// and transposed; `scale`, `tscale` and `yscale` are their scales.
  static std::string resultOf(const OpForm &form, std::string_view name, const OpInfo &producer,
                              std::string_view results, const std::vector<Made> &made) {
    if (name.ends_with('?'))
      name.remove_suffix(1);
    bool isBlocks = form.epilogue == Epilogue::QuantizeBlocks;
    EpilogueForms written = producer.formsOf(form.epilogue);
    if (name == "q")
      return (written == EpilogueForms::Either ? "transposed:" : "") + made[0].plain();
    if (name == "t")
      return made[0].transposed();
    if (name == "yt")
      return made[1].transposed();
    if (name == "seen")
      return "^a";
    if (name == "m")
      return made.size() > 1 ? "^2" : "^1";
    if (name == "scale" || name == "tscale" || name == "yscale") {
      bool isTransposed = name != "scale" || written == EpilogueForms::Transposed;
      return isBlocks ? made[name == "yscale" ? 1 : 0].scales(isTransposed) : "=1";
    }
    return valueAt(results, positionOf(producer.results, name));
  }

  std::deque<std::string> texts_;
  std::vector<OpFactors> factors_; ///< by OpInfo::index
};

} // namespace

std::optional<OpFactors> parseFactors(OpKind kind, std::string_view text) {
  OpFactors factors;
  RowParser parser(factors);
  parser.parse(text, opInfo(kind).operands, opInfo(kind).results);
  return parser.fault() == FactorFault::None ? std::optional(factors) : std::nullopt;
}

int64_t FactorAtom::extent(int64_t ofFactor, int64_t ofOther) const {
  switch (form) {
  case Plain:
    return ofFactor;
  case Number:
    return number;
  case Beside:
    return ofFactor + number;
  case Blocks:
    return (ofFactor + number - 1) / number;
  case Mirrored:
    return 2 * ofFactor;
  case Joined:
    return ofFactor + ofOther;
  }
  return ofFactor;
}

const FactorAtom *FactorValue::find(FactorId factor) const {
  for (const FactorAtom &atom : words())
    if ((atom.factor == factor || atom.other == factor) && factor != kNoFactor)
      return &atom;
  return nullptr;
}

bool OpFactors::isNeededWhole(FactorId factor) const {
  auto keepsWhole = [&](const FactorValue &value) {
    const FactorAtom *atom = value.find(factor);
    return atom != nullptr && (atom->isNeededWhole || atom->form == FactorAtom::Beside ||
                               atom->form == FactorAtom::Joined);
  };
  return std::ranges::any_of(operands(), keepsWhole) || std::ranges::any_of(results(), keepsWhole);
}

std::optional<size_t> OpFactors::chosenBy() const {
  for (const FactorValue &result : results())
    for (size_t i = 0; i < operandCount; ++i)
      if (operandValues[i].has(result.pointsInto))
        return i;
  return std::nullopt;
}

bool OpFactors::isSummed(FactorId factor, size_t result) const {
  return resultValues[result].form == FactorValue::Dims &&
         resultValues[result].combine == FactorValue::Sum && !resultValues[result].has(factor) &&
         !isNeededWhole(factor);
}

bool OpFactors::isBound(FactorId factor) const {
  auto bounds = [&](const FactorValue &value) {
    const FactorAtom *atom = value.find(factor);
    return atom != nullptr && atom->isBound;
  };
  return std::ranges::any_of(operands(), bounds) || std::ranges::any_of(results(), bounds);
}

bool OpFactors::hasShares() const {
  auto isShared = [](const FactorValue &value) {
    return std::ranges::any_of(value.words(), &FactorAtom::isOfShare);
  };
  return std::ranges::any_of(operands(), isShared) || std::ranges::any_of(results(), isShared);
}

std::optional<size_t> OpFactors::boundBy(FactorId factor) const {
  for (size_t i = 0; i < operandCount; ++i)
    if (operandValues[i].countsRowsOf == factor || operandValues[i].pointsInto == factor)
      return i;
  return std::nullopt;
}

std::optional<size_t> OpFactors::leavesOutBy() const {
  for (size_t i = 0; i < operandCount; ++i)
    if (FactorId rows = operandValues[i].countsRowsOf; rows != kNoFactor && !isBound(rows))
      return i;
  return std::nullopt;
}

const OpFactors &factorsOf(OpKind kind) { return kFactorTable.factors[static_cast<size_t>(kind)]; }

bool isLayerProduct(OpKind kind) {
  const OpFactors &factors = factorsOf(kind);
  return factors.isTransposed(0, AttrKey::trans_a) && factors.isTransposed(1, AttrKey::trans_b);
}

std::optional<size_t> leavesOutBy(const Op &op) {
  std::optional<size_t> by = factorsOf(op).leavesOutBy();
  return by && *by < op.operands.size() ? by : std::nullopt;
}

const OpFactors &factorsOf(OpKind kind, Epilogue epilogue) {
  if (epilogue == Epilogue::None)
    return factorsOf(kind);
  static const FusedFactors fused;
  return fused.at(opInfo(kind, epilogue).index);
}

} // namespace shardc::plan
