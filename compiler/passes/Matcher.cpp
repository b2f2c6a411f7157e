#include "compiler/passes/Matcher.h"

#include <algorithm>
#include <optional>

#include "compiler/passes/PlanNames.h"
#include "runtime/plan/FactorExtents.h"
#include "runtime/plan/OpTypes.h"

namespace shardc::passes {
namespace {

using plan::Attr;
using plan::AttrKey;
using plan::OpStep;
using plan::OpSteps;
using plan::Segment;

bool sameValue(const Attr &a, const Attr &b) {
  bool isFloat = plan::attrInfo(a.key).type == plan::AttrInfo::Float;
  return isFloat ? a.f == b.f : a.i == b.i;
}

/// The attribute of the op; null if it has its default.
const Attr *find(const std::vector<Attr> &attrs, AttrKey key) {
  auto at = std::ranges::find(attrs, key, &Attr::key);
  return at == attrs.end() ? nullptr : &*at;
}

/// The row of the op's steps.
const OpSteps &rowOf(OpKind kind) {
  return *std::ranges::find_if(plan::allSteps(),
                               [&](const OpSteps &row) { return row.kind == kind; });
}

class Matcher {
public:
  Matcher(const plan::Plan &plan, Segment &segment, const Fusion &fusion)
      : plan_(plan), segment_(segment), fusion_(fusion), row_(rowOf(fusion.fused)), users_(segment),
        isGone_(segment.ops.size(), 0), before_(segment.ops.size()) {
    for (size_t s = 0; s < row_.steps.size(); ++s)
      if (!isStore(row_.steps[s]))
        numbers_.push_back(s);
    for (const OpStep &step : row_.steps)
      for (uint8_t value : step.results)
        stored_[value] = value;
    // `x = cast z` of a value in f32 gives its stored type: plans have x in place of z.
    for (const OpStep &step : row_.steps)
      if (isStore(step))
        stored_[step.operands[0]] = step.results[0];
  }

  void run() {
    bool any = false;
    const size_t at = numbers_[fusion_.at];
    for (uint32_t i = 0; i < segment_.ops.size(); ++i)
      if (segment_.ops[i].kind == row_.steps[at].kind && isGone_[i] == 0)
        any |= tryAt(i, false) || tryAt(i, true);
    if (any)
      rebuild();
  }

private:
  bool isStore(const OpStep &step) const {
    return step.kind == OpKind::Cast && row_.isWide(step.operands[0]);
  }
  uint8_t stored(uint8_t value) const { return value < row_.operandsMax ? value : stored_[value]; }

  /// Fuses the match whose op at the place is this one. Sums also match with their terms exchanged.
  bool tryAt(uint32_t place, bool isSwapped) {
    const size_t at = numbers_[fusion_.at];
    if (isSwapped && row_.steps[at].kind != OpKind::Add)
      return false;
    Match match = {plan_, segment_, users_, {}, {}, {}};
    match.ops.assign(row_.steps.size(), kNone);
    match.values.assign(row_.valueCount, kNone);
    isAbsent_ = 0;
    attrs_.clear();
    if (!bind(match, at, place, isSwapped))
      return false;
    for (size_t left = numbers_.size() - 1; left > 0; --left)
      if (!bindNext(match))
        return false;
    views_.clear();
    if (!isAlone(match) || !isInOrder(match, place))
      return false;
    makeFused(match);
    if (fusion_.mayFuse && !fusion_.mayFuse(match))
      return false;
    replace(match, place);
    return true;
  }

  /// Binds a step that a bound value leads to: the op that makes it, or the first of its readers.
  bool bindNext(Match &match) {
    for (size_t s : numbers_) {
      if (match.ops[s] != kNone)
        continue;
      const OpStep &step = row_.steps[s];
      for (uint8_t value : step.results)
        if (ValueId id = match.values[stored(value)]; id != kNone)
          return segment_.values[id].def != kNone && bind(match, s, segment_.values[id].def, false);
      for (uint8_t value : step.operands)
        if (ValueId id = match.values[stored(value)]; id != kNone && value >= row_.operandsMax)
          for (const uint32_t *user = users_.begin(id); user != users_.end(id); ++user)
            if (segment_.ops[*user].kind == step.kind &&
                std::ranges::find(match.ops, *user) == match.ops.end())
              return bind(match, s, *user, false);
    }
    return false;
  }

  bool bind(Match &match, size_t s, uint32_t index, bool isSwapped) {
    const OpStep &step = row_.steps[s];
    const Op &op = segment_.ops[index];
    if (isGone_[index] != 0 || op.kind != step.kind || !op.ties.empty() ||
        op.operands.size() > step.operands.size() || op.results.size() != step.results.size())
      return false;
    for (size_t i = 0; i < step.operands.size(); ++i) {
      size_t from = isSwapped ? step.operands.size() - 1 - i : i;
      if (!bindValue(match, stored(step.operands[i]),
                     i < op.operands.size() ? op.operands[from] : kNone))
        return false;
    }
    for (size_t r = 0; r < step.results.size(); ++r)
      if (!bindValue(match, stored(step.results[r]), op.results[r]))
        return false;
    match.ops[s] = index;
    return takeAttrs(step, op);
  }

  /// kNone: the op lacks the operand, which must then be an optional one that all steps lack.
  bool bindValue(Match &match, uint8_t value, ValueId id) {
    const uint32_t bit = 1u << value;
    if (id == kNone) {
      isAbsent_ |= bit;
      return match.values[value] == kNone && value < row_.operandsMax && value >= row_.operandsMin;
    }
    if ((isAbsent_ & bit) != 0 || (match.values[value] != kNone && match.values[value] != id))
      return false;
    match.values[value] = id;
    return true;
  }

  /// Checks the attributes that the row sets or the fused op lacks, and takes the others.
  bool takeAttrs(const OpStep &step, const Op &op) {
    const plan::OpInfo &fused = plan::opInfo(fusion_.fused);
    for (AttrKey key : plan::attrKeys(plan::opInfo(step.kind).attrs)) {
      const Attr *has = find(op.attrs, key);
      auto set = std::ranges::find(step.set, key, &OpStep::Set::key);
      if (set != step.set.end() ? op.getInt(key) != set->value : !fused.attrs.has(key) && has)
        return false;
      if (set != step.set.end() || !fused.attrs.has(key))
        continue;
      auto known = std::ranges::find(attrs_, key, &Taken::key);
      if (known == attrs_.end())
        attrs_.push_back({key, has ? std::optional(*has) : std::nullopt});
      else if ((has != nullptr) != known->attr.has_value() ||
               (has && !sameValue(*has, *known->attr)))
        return false;
    }
    return true;
  }

  bool isFirstKept(size_t s) const { return fusion_.keepsFirst && s == numbers_[0]; }
  bool isResult(uint8_t value) const {
    return std::ranges::any_of(row_.results, [&](uint8_t r) { return stored(r) == value; });
  }

  /// Whether nothing but the steps reads the values between them, and no step but the base, whose
  /// group the fused op takes, has a group.
  bool isAlone(const Match &match) const {
    for (size_t s : numbers_) {
      const Op &op = match.op(s);
      bool mayHaveGroup = s == numbers_[fusion_.base] && plan::opInfo(fusion_.fused).takesIndex();
      if (op.group >= 0 && !mayHaveGroup)
        return false;
      for (size_t r = 0; r < op.results.size() && !isFirstKept(s); ++r) {
        if (isResult(stored(row_.steps[s].results[r])))
          continue;
        ValueId value = op.results[r];
        bool isRead = std::any_of(users_.begin(value), users_.end(value), [&](uint32_t user) {
          return std::ranges::find(match.ops, user) == match.ops.end();
        });
        if (isRead || match.isOut(value))
          return false;
      }
    }
    return true;
  }

  bool isBefore(ValueId value, uint32_t place) const {
    uint32_t def = segment_.values[value].def;
    return def == kNone || def < place;
  }

  /// Whether the fused op can stand at the place: its operands are defined before it, or are views
  /// that can be, and its results are read behind it.
  bool isInOrder(const Match &match, uint32_t place) {
    for (uint8_t i = 0; i < row_.operandsMax; ++i) {
      ValueId value = match.values[i];
      if (value == kNone || isBefore(value, place))
        continue;
      uint32_t def = segment_.values[value].def;
      if (segment_.ops[def].kind != OpKind::View || isGone_[def] != 0 ||
          !isBefore(segment_.ops[def].operands[0], place))
        return false;
      views_.push_back(def);
    }
    for (uint8_t r : row_.results)
      if (ValueId value = match.values[stored(r)]; value != kNone)
        for (const uint32_t *user = users_.begin(value); user != users_.end(value); ++user)
          if (*user < place && std::ranges::find(match.ops, *user) == match.ops.end())
            return false;
    return true;
  }

  void makeFused(Match &match) const {
    Op &fused = match.fused = match.op(numbers_[fusion_.base]);
    fused.kind = fusion_.fused;
    fused.operands.clear(), fused.results.clear(), fused.attrs.clear();
    for (uint8_t i = 0; i < row_.operandsMax; ++i)
      if (match.values[i] != kNone)
        fused.operands.push_back(match.values[i]);
    for (uint8_t r : row_.results)
      fused.results.push_back(match.values[stored(r)]);
    for (const Taken &taken : attrs_)
      if (taken.attr)
        fused.attrs.push_back(*taken.attr);
    std::ranges::sort(fused.attrs, {}, &Attr::key);
  }

  void replace(Match &match, uint32_t place) {
    setRanks(match.fused);
    for (size_t s : numbers_)
      if (!isFirstKept(s))
        isGone_[match.ops[s]] = 1;
    isGone_[place] = 0;
    segment_.ops[place] = std::move(match.fused);
    before_[place] = views_;
  }

  /// Gives results the number of dimensions that the fused op's row asks for.
  void setRanks(const Op &fused) {
    const plan::OpFactors &factors = plan::factorsOf(fused);
    for (size_t r = 0; r < fused.results.size(); ++r) {
      plan::Type &type = segment_.values[fused.results[r]].type;
      uint8_t rank = plan::typesOf(fused).result(r).rank;
      if (rank == 0 || rank == type.rank)
        continue;
      std::vector<const plan::Type *> operands, results;
      for (ValueId operand : fused.operands)
        operands.push_back(&segment_.values[operand].type);
      for (ValueId result : fused.results)
        results.push_back(result == fused.results[r] ? nullptr : &segment_.values[result].type);
      type.shape =
          plan::FactorExtents(factors, fused, operands, results, plan_.groupSize(fused.group))
              .shapeOf(factors.result(r));
      type.rank = rank;
      std::fill(type.shape.begin() + rank, type.shape.end(), 0);
    }
  }

  /// Removes the steps, and moves views before the fused ops that read them.
  void rebuild() {
    std::vector<Op> ops;
    auto take = [&](uint32_t op) {
      if (isGone_[op] == 0)
        ops.push_back(std::move(segment_.ops[op]));
      isGone_[op] = 1;
    };
    for (uint32_t i = 0; i < segment_.ops.size(); ++i) {
      std::ranges::for_each(before_[i], take);
      take(i);
    }
    plan::replaceOps(segment_, std::move(ops));
  }

  struct Taken {
    AttrKey key;
    std::optional<Attr> attr; ///< none: its default
  };

  const plan::Plan &plan_;
  Segment &segment_;
  const Fusion &fusion_;
  const OpSteps &row_;
  plan::Users users_;           ///< before any change
  std::vector<size_t> numbers_; ///< the steps that are ops of plans
  std::array<uint8_t, plan::kValuesOfStepsMax> stored_{};
  std::vector<uint8_t> isGone_;
  std::vector<std::vector<uint32_t>> before_; ///< by op: views that move before it
  std::vector<uint32_t> views_;               ///< of the match
  std::vector<Taken> attrs_;                  ///< of the match
  uint32_t isAbsent_ = 0;                     ///< a bit for each optional operand that it lacks
};

} // namespace

bool Match::isOut(ValueId value) const {
  return std::ranges::find(segment.outs, value, &Segment::Boundary::value) != segment.outs.end();
}

void fuse(const plan::Plan &plan, Segment &segment, const Fusion &fusion) {
  auto hasStep = [&](const OpStep &step) {
    return std::ranges::find(segment.ops, step.kind, &Op::kind) != segment.ops.end();
  };
  if (std::ranges::all_of(rowOf(fusion.fused).steps, [&](const OpStep &step) {
        return step.kind == OpKind::Cast || hasStep(step);
      }))
    Matcher(plan, segment, fusion).run();
}

} // namespace shardc::passes
