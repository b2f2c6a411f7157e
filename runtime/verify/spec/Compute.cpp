// Derives the placements of an op's results: follows each mesh axis through the op's factors.
#include "runtime/verify/spec/Compute.h"

#include <array>

#include <fmt/format.h>

#include "runtime/plan/OpTypes.h"

namespace shardc::plan::spec {

/// One call of an op without steps.
class PlainCall {
public:
  PlainCall(Compute &compute, const Call &call)
      : compute_(compute), mesh_(compute.mesh_), terms_(compute.terms_), call_(call),
        info_(opInfo(call.kind)), factors_(factorsOf(call.kind)), groupAxes_(call.group),
        unused_(unusedOperand(call.kind, call.attrs)) {
    probe_.kind = call.kind;
    if (unused_ >= 0 && static_cast<size_t>(unused_) < operandCount())
      nothing_.edit().whole = (*call.operands[static_cast<size_t>(unused_)].state)->whole;
  }

  std::vector<State> run() {
    if (call_.kind == OpKind::Cast && state(0).isSum()) // the job chooses the types of sums
      return {state(0)};
    findWholeAttrs();
    makeTerms();
    bool isFine = bind();
    for (uint16_t axis : axes())
      isFine = isFine && follow(axis);
    isFine = isFine && mergeRest();
    for (size_t r = 0; r < results_.size(); ++r)
      isFine = isFine && place(r);
    return std::move(results_);
  }

private:
  struct Cut {
    FactorId factor = kNoFactor;
    int64_t sub = 1; ///< number of equal blocks of the factor, which are divided in the same way
    const FactorAtom *atom = nullptr;
    /// If the cut divides the factor into single elements, and then the next inner factor: the
    /// latter.
    FactorId through = kNoFactor;
    bool isSame(const Cut &other) const {
      return factor == other.factor && sub == other.sub && through == other.through;
    }
  };
  /// A place of a result along an axis. Place::outer follows from the cut when the result's extents
  /// are known.
  struct Pending {
    size_t result;
    Place place;
    Cut cut;
  };

  bool refuse(uint16_t axis, std::string_view why) {
    return compute_.refuse(fmt::format("{} along {}", why, mesh_.name(axis)));
  }
  const State &state(size_t i) const {
    return static_cast<int>(i) == unused_ ? nothing_ : *call_.operands[i].state;
  }
  const FactorValue &row(size_t i) const { return operandOf(probe_, factors_, i); }
  /// Into how many shards the axis cuts operands, for each that this rank has.
  Multiple shards(uint16_t axis) const {
    auto isCut = [&](const Operand &each) { return (*each.state)->cover.axis == axis; };
    auto at = std::ranges::find_if(call_.operands, isCut);
    return mesh_.shards(at == call_.operands.end() ? nothing_ : *at->state, axis);
  }
  bool isTransposed(const FactorValue &value) const {
    return value.transposedBy && probe_.getBool(*value.transposedBy);
  }
  size_t operandCount() const { return call_.operands.size(); }

  std::vector<uint16_t> axes() const {
    std::vector<uint16_t> axes = groupAxes_;
    for (size_t i = 0; i < operandCount(); ++i)
      for (const Place &place : state(i)->places)
        axes.push_back(place.axis);
    std::ranges::sort(axes);
    axes.erase(std::unique(axes.begin(), axes.end()), axes.end());
    return axes;
  }

  /// The axes that divide an outermost factor of a dimension in all operands that have it. `extent`
  /// is that of this rank, which may have a slice of each of fewer parts, such as gate and up.
  std::vector<uint16_t> axesThatCut(FactorId factor, int64_t extent) const {
    std::vector<uint16_t> done;
    for (size_t i = 0; i < operandCount(); ++i) {
      const FactorValue &value = row(i);
      const Type &whole = state(i)->whole;
      const FactorAtom *atom = value.find(factor);
      if (value.form != FactorValue::Dims || atom == nullptr || whole.rank == 0)
        continue;
      auto isBefore = [&](const FactorAtom &other) {
        return other.dim == atom->dim && &other < atom;
      };
      if (std::ranges::any_of(value.words(), isBefore))
        continue; // it is not the outermost factor of its dimension
      std::array<DimRange, kDimsOfValueMax> ranges;
      uint8_t count = dimRanges(value, whole.rank, ranges);
      int64_t before = 1;
      for (uint8_t r = 0; r < count; ++r)
        if (ranges[r].last < atom->dim)
          for (uint8_t d = ranges[r].typeFirst; d <= ranges[r].typeLast; ++d)
            before *= whole.shape[d];
      for (const Place *place : cutsOf(state(i))) {
        int64_t parts = place->outer / before;
        if (place->outer % before != 0 || (parts != 1 && parts >= extent))
          continue;
        before *= place->isMirrored ? 1 : mesh_.size(place->axis); // the next axis cuts this part
        if (!contains(done, place->axis))
          done.push_back(place->axis);
      }
    }
    std::erase_if(done, [&](uint16_t axis) {
      for (size_t i = 0; i < operandCount(); ++i)
        if (const Place *place = state(i).at(axis);
            row(i).has(factor) && (place == nullptr || place->kind != Place::Shard))
          return true;
      return false;
    });
    return done;
  }

  /// Finds the attributes of the op on whole values. In the call, attributes that are extents have
  /// this rank's extents.
  void findWholeAttrs() {
    probe_.attrs = meantAttrs(call_.kind, call_.attrs);
    auto scale = [&](AttrKey key, const std::vector<uint16_t> &axes) {
      for (Attr &attr : probe_.attrs)
        for (uint16_t axis : axes)
          attr.i = attr.key == key ? shards(axis).times(attr.i) : attr.i;
    };
    for (FactorId f = 0; f < factors_.factorCount; ++f)
      if (std::optional<AttrKey> key = factors_.attrOf[static_cast<size_t>(f)]) {
        std::vector<uint16_t> axes = axesThatCut(f, probe_.getInt(*key));
        scale(*key, axes);
        if (*key != AttrKey::num_groups)
          continue;
        scale(AttrKey::num_heads, axes);
        bool hasShares = anyAtom([&](const FactorAtom &atom) {
          return atom.isShare && hasRole(atom.factor, FactorRole::Heads);
        });
        std::vector<uint16_t> shares; // ranks along these axes share the heads of each group
        for (uint16_t axis : groupAxes_)
          if (hasShares && !contains(axes, axis))
            shares.push_back(axis);
        scale(AttrKey::num_heads, shares);
      }
  }

  /// Finds the extents of factors from the shapes of whole values.
  bool bind() {
    bool isUncut = groupAxes_.empty();
    std::vector<const Type *> operands, results;
    for (size_t i = 0; i < operandCount(); ++i) {
      operands.push_back(&state(i)->whole);
      for (const Place &place : state(i)->places)
        isUncut &= place.kind != Place::Shard;
    }
    std::vector<Type> shapes(results_.size());
    for (size_t r = 0; r < results_.size(); ++r) {
      shapes[r] = terms_.shape(bare_[r]);
      if (shapes[r].rank == 0 && isUncut && call_.results[r])
        shapes[r] = *call_.results[r]; // the rank's result is the whole
      results.push_back(&shapes[r]);
    }
    extents_.emplace(factors_, probe_, operands, results, 1);
    const auto &fault = extents_->fault();
    return !fault || compute_.refuse(fmt::format(
                         "{} {} has {} along {}, not {}", fault->isOperand ? "operand" : "result",
                         fault->index, fault->found, fault->dims, fault->needed));
  }

  /// Calls use(atom, product of the extents before it, its extent) in memory order, with whole
  /// extents, until it returns false. An unknown extent is 0 and ends the calls.
  template <typename Use> void eachAtom(const FactorValue &value, const Use &use) const {
    int64_t before = 1;
    for (uint8_t at = 0; at < value.dimCount; ++at)
      for (const FactorAtom &atom : value.words()) {
        if (placeOfDim(value, isTransposed(value), atom.dim) != at)
          continue;
        int64_t extent =
            atom.form == FactorAtom::Number
                ? atom.number
                : atom.extent(extents_->of(atom.factor),
                              atom.form == FactorAtom::Joined ? extents_->of(atom.other) : 0);
        if (atom.form != FactorAtom::Number && extents_->of(atom.factor) == 0)
          extent = 0;
        if (extent < 0 || !use(atom, before, extent) || extent == 0)
          return;
        before *= extent;
      }
  }

  std::optional<Cut> cutAt(const FactorValue &value, const Place &place) const {
    std::optional<Cut> found;
    int64_t n = mesh_.size(place.axis);
    bool isDone = false;
    if (place.outer == 0) // the position of its parts is not known
      return std::nullopt;
    eachAtom(value, [&](const FactorAtom &atom, int64_t before, int64_t extent) {
      if (extent != 0 && place.outer >= before * extent)
        return true;
      if (found) { // the last factor was divided into single elements, so this one is divided too
        found->through = atom.factor;
        isDone = atom.form == FactorAtom::Plain && extent % (n * place.outer / before) == 0;
        return false;
      }
      int64_t sub = place.outer / before;
      if (place.outer % before != 0 || atom.form == FactorAtom::Number)
        return false;
      isDone = extent == 0 ? sub == 1 : extent % (sub * n) == 0;
      bool isThrough = !isDone && !place.isMirrored && atom.form == FactorAtom::Plain &&
                       extent != 0 && (sub * n) % extent == 0;
      if (isDone || isThrough)
        found = Cut{atom.factor, sub, &atom};
      return isThrough;
    });
    return isDone ? found : std::nullopt;
  }

  bool hasRole(FactorId factor, FactorRole role) const {
    return spec::hasRole(factors_, factor, role);
  }
  FactorId factorWith(FactorRole role) const {
    return static_cast<FactorId>(std::ranges::find(factors_.roles, role) - factors_.roles.begin());
  }
  bool hasRole(const FactorValue &value, FactorRole role) const {
    return std::ranges::any_of(value.words(), [&](const FactorAtom &atom) {
      return hasRole(atom.factor, role) || hasRole(atom.other, role);
    });
  }
  /// Whether a rank's index in the op's group is the index of its part along the axis. This holds
  /// if the axes of the group divide one factor, in their order.
  bool isIndex(uint16_t axis) const {
    if (groupAxes_.size() < 2)
      return groupAxes_.size() == 1 && groupAxes_[0] == axis;
    bool isAny = false;
    for (size_t i = 0; i < operandCount(); ++i)
      if (const Place *place = state(i).at(axis); place && place->kind == Place::Shard) {
        isAny = true;
        if (!isCutInOrder(i, *place))
          return false;
      }
    return isAny && contains(groupAxes_, axis);
  }
  bool isCutInOrder(size_t i, const Place &like) const {
    State others = state(i); // divided only along axes outside the group
    for (uint16_t axis : groupAxes_)
      others.remove(axis);
    int64_t outer = 0;
    uint8_t dim = 0;
    for (uint16_t axis : groupAxes_) {
      const Place *place = state(i).at(axis);
      if (place == nullptr && cutsOthers(i, axis))
        continue;
      if (place == nullptr || place->kind != Place::Shard || place->distance != 0 ||
          place->isMirrored != like.isMirrored)
        return false;
      std::optional<Cut> cut = cutAt(row(i), *place);
      int64_t local = mesh_.localOuter(others, place->outer);
      if (!cut || (outer != 0 && (local != outer || cut->atom->dim != dim)))
        return false;
      outer = local * (place->isMirrored ? 1 : mesh_.size(axis));
      dim = cut->atom->dim;
    }
    return true;
  }
  /// Whether the axis cuts other operands, all along factors that this one lacks.
  bool cutsOthers(size_t i, uint16_t axis) const {
    bool isAny = false, isOther = true;
    for (size_t other = 0; other < operandCount(); ++other)
      if (const Place *place = state(other).at(axis); place && place->kind == Place::Shard) {
        std::optional<Cut> cut = cutAt(row(other), *place);
        isAny = true, isOther &= cut && !row(i).has(cut->factor);
      }
    return isAny && isOther;
  }
  /// The number of parts into which the axes of an op's group before this one divide the whole.
  int64_t partsBefore(uint16_t axis) const {
    int64_t parts = 1;
    for (size_t i = 0; groupAxes_[i] != axis; ++i)
      parts *= mesh_.size(groupAxes_[i]);
    return parts;
  }
  template <typename Is> bool anyAtom(const Is &is) const {
    auto has = [&](const FactorValue &value) { return std::ranges::any_of(value.words(), is); };
    return std::ranges::any_of(factors_.operands(), has) ||
           std::ranges::any_of(factors_.results(), has);
  }

  bool follow(uint16_t axis) {
    places_.assign(operandCount(), nullptr);
    const Place *rows = nullptr;
    for (size_t i = 0; i < operandCount(); ++i) {
      places_[i] = state(i).at(axis);
      if (places_[i] != nullptr && places_[i]->rows != Place::Any)
        rows = places_[i];
    }
    if (rows == nullptr)
      return followKinds(axis);
    return rows->rows == Place::All ? followAllRows(axis) : followRows(axis, *rows);
  }

  bool followKinds(uint16_t axis) {
    std::array<bool, Place::Whole + 1> has{};
    bool isAny = false, isSummed = false;
    for (const Place *place : places_)
      if (place != nullptr)
        isAny = has[place->kind] = true, isSummed |= place->isSummed;
    if (!isAny)
      return followUncut(axis);
    if (has[Place::Part])
      return followSums(axis, Place::Part);
    if (has[Place::Summed] || isSummed)
      return followSums(axis, has[Place::Summed] ? Place::Summed : Place::Shard);
    if (has[Place::Largest])
      return refuse(axis, fmt::format("takes {}", wordOf({axis, Place::Largest})));
    if (!findCuts(axis))
      return false;
    bool sharesRows = info_.takesOwnRows() && cut_ && hasRole(cut_->factor, FactorRole::Tokens);
    if (sharesRows)
      return followOwnRows(axis);
    if (cut_ && !followCut(axis))
      return false;
    if (cut_ && contains(groupAxes_, axis) && !isSelected())
      return refuse(axis, fmt::format("uses a rank's index in a group that divides {}, which the "
                                      "index does not select",
                                      nameOf(cut_->factor)));
    if (has[Place::Instance]) {
      if (cut_)
        return refuse(axis, "takes shards together with each rank's own samples");
      if (contains(groupAxes_, axis))
        return refuse(axis, "uses a rank's index in a group of ranks with different samples");
      for (State &result : results_)
        result.put({axis, Place::Instance});
    } else if (!cut_ && contains(groupAxes_, axis)) {
      return refuse(axis, "uses a rank's index in a group that divides no operand");
    }
    return true;
  }

  /// Whether the value has rows of tokens, grouped by expert or not, or counts of such rows.
  bool hasRowsOrTokens(const FactorValue &value) const {
    return hasRole(value, FactorRole::Rows) || hasRole(value, FactorRole::Tokens) ||
           value.countsRowsOf != kNoFactor;
  }
  bool isOfSamples(uint16_t axis) const { return contains(mesh_.axesOf(GroupKind::Data), axis); }

  /// Follows an op on rows of all ranks: along the axis, all operands with rows have all of them.
  /// A result without rows is the sum over all rows.
  bool followAllRows(uint16_t axis) {
    for (size_t i = 0; i < operandCount(); ++i) {
      const Place *&place = places_[i];
      bool isAll = place != nullptr && place->rows == Place::All;
      bool isOfOne = hasRowsOrTokens(row(i)) || (place != nullptr && place->rows != Place::Any) ||
                     (isOfSamples(axis) && state(i).microbatch >= 0);
      if (!isAll && isOfOne)
        return refuse(axis, "takes rows of all ranks together with those of one");
      if (isAll && place->kind == Place::Whole)
        place = nullptr;
    }
    allRows_.push_back(axis);
    return followKinds(axis);
  }

  bool placeAllRows(size_t r, const FactorValue &value) {
    for (uint16_t axis : allRows_) {
      const Place *known = results_[r].at(axis);
      Place place = known != nullptr ? *known : Place{axis, Place::Whole};
      place.rows = hasRowsOrTokens(value) ? Place::All : Place::Any;
      if (place.rows == Place::Any && isOfSamples(axis)) { // a sum over all samples
        if (value.combine != FactorValue::Sum ||
            (place.kind != Place::Whole && place.kind != Place::Shard))
          return refuse(axis, "takes the samples of all ranks");
        place.isSummed = place.kind == Place::Shard;
        place.kind = place.isSummed ? Place::Shard : Place::Summed;
      }
      if (place.kind != Place::Whole || place.rows != Place::Any)
        results_[r].put(place);
    }
    return true;
  }

  std::string_view nameOf(FactorId factor) const {
    return factors_.names[static_cast<size_t>(factor)];
  }

  /// Follows an axis along which all operands are equal on all ranks.
  bool followUncut(uint16_t axis) {
    if (!contains(groupAxes_, axis))
      return true;
    bool isAny = false;
    for (size_t r = 0; r < results_.size(); ++r)
      for (const FactorAtom &atom : resultOf(probe_, factors_, r).words()) {
        // The rank's index selects its part of the dimension, or its share of the factor.
        bool isOwn = atom.isKnownByIndex || atom.isShare;
        for (size_t i = 0; i < operandCount(); ++i) {
          const FactorAtom *same = row(i).find(atom.factor);
          isOwn &= same == nullptr || (atom.isShare && !same->isShare);
        }
        if (isOwn) {
          pending_.push_back({r, {axis, Place::Shard}, {atom.factor, partsBefore(axis), &atom}});
          isAny = true;
        }
      }
    return isAny || !anyAtom(isByIndex) ||
           refuse(axis, "uses a rank's index in a group that divides no operand");
  }

  /// Follows values that are sums over ranks of this kind. Shard: shards of sums over samples.
  bool followSums(uint16_t axis, Place::Kind kind) {
    size_t linear = 0, parts = 0, together = 0;
    for (size_t i = 0; i < operandCount(); ++i) {
      Linearity is = info_.linearityOf(i);
      linear += is != Linearity::None;
      together += is == Linearity::Together;
      if (places_[i] == nullptr)
        continue;
      if (is == Linearity::None)
        return refuse(axis,
                      fmt::format("takes {} as operand {}, for which its row does not say LINEAR",
                                  wordOf(*places_[i]), i));
      bool isSum = places_[i]->kind == kind && places_[i]->isSummed == (kind == Place::Shard);
      if (!isSum && !isShareOf(i, axis))
        return refuse(axis, fmt::format("takes {}", wordOf(*places_[i])));
      ++parts;
    }
    if (together > 0 ? parts != linear : parts != 1)
      return refuse(axis, "takes a partial sum together with a value that is not one");
    if (kind == Place::Shard)
      return followExperts(axis);
    for (State &result : results_)
      result.put({axis, kind});
    return true;
  }

  /// Follows sums over routed rows: each rank has those of its own experts.
  bool followExperts(uint16_t axis) {
    auto first = std::ranges::find_if(places_, [](const Place *place) { return place != nullptr; });
    std::optional<Cut> cut = cutAt(row(static_cast<size_t>(first - places_.begin())), **first);
    for (const Place *place : places_)
      if (!cut || (place != nullptr && !(*place == **first)))
        return refuse(axis, "takes sums of other experts");
    for (size_t r = 0; r < results_.size(); ++r)
      pending_.push_back({r, **first, *cut});
    return true;
  }

  /// Whether the operand is this rank's share, and the op takes zeros in place of the other shares.
  bool isShareOf(size_t i, uint16_t axis) const {
    if (places_[i]->kind != Place::Shard || !isIndex(axis))
      return false;
    std::optional<Cut> cut = cutAt(row(i), *places_[i]);
    return cut && cut->atom->isShare;
  }

  bool findCuts(uint16_t axis) {
    cut_.reset(), shard_ = nullptr;
    cuts_.assign(operandCount(), std::nullopt);
    for (size_t i = 0; i < operandCount(); ++i) {
      if (places_[i] == nullptr || places_[i]->kind != Place::Shard)
        continue;
      if (row(i).form != FactorValue::Dims || !(cuts_[i] = cutAt(row(i), *places_[i])))
        return refuse(axis, fmt::format("operand {} is sharded where its row has no factor", i));
      const Place &place = *places_[i];
      if (place.distance != 0)
        return refuse(axis, "takes a slice that belongs to another rank");
      if (cut_ && (!cut_->isSame(*cuts_[i]) || place.isMirrored != shard_->isMirrored))
        return refuse(axis, "operands are sharded in different ways");
      cut_ = cuts_[i], shard_ = &place;
    }
    return true;
  }

  bool hasPositions() const {
    int at = positionOf(info_.operands, "positions");
    return at >= 0 && static_cast<size_t>(at) < operandCount();
  }

  /// Whether the op may compute with a part of the factor.
  bool mayCut(uint16_t axis) {
    bool isIndexed = isIndex(axis), isAttention = info_.work.cost == CostClass::Attention;
    bool isCounted = false, isReported = false, isShare = false;
    for (FactorId factor : {cut_->factor, cut_->through})
      for (size_t i = 0; i < operandCount() && factor != kNoFactor; ++i) {
        const FactorAtom *atom = row(i).find(factor);
        if (atom == nullptr) {
          bool isAdded = row(i).isAddedOnce;
          for (size_t r = 0; r < results_.size(); ++r)
            isAdded &= !resultOf(probe_, factors_, r).has(factor);
          if (isAdded)
            return refuse(axis, fmt::format("every part would add operand {}", i));
          continue;
        }
        if (atom->isNeededWhole || atom->form == FactorAtom::Beside ||
            atom->form == FactorAtom::Joined)
          return refuse(axis, fmt::format("needs all of {} of operand {}", nameOf(factor), i));
        isCounted |= atom->isCounted, isReported |= atom->isKnownByIndex;
        isShare |= atom->isOfShare();
        if (places_[i] == nullptr && !(isIndexed && factors_.hasShares()))
          return refuse(axis, fmt::format("operand {} has all of {}, other operands have parts", i,
                                          nameOf(factor)));
      }
    if (isReported && isIndexed && cut_->sub != partsBefore(axis))
      return refuse(axis, "takes parts in another order than its index has");
    bool hasNoDropout = isAttention && probe_.getFloat(AttrKey::p) == 0;
    if (isReported && !isIndexed && !hasNoDropout)
      return refuse(axis, "needs the index of its part");
    if (isAttention && hasRole(cut_->factor, FactorRole::Heads))
      isCounted = !isIndexed && !hasNoDropout; // only dropout counts query heads
    bool isPlaced =
        hasPositions() || (isIndexed && (isShare || isReported)) || (isAttention && isReported);
    return !isCounted || isPlaced ||
           refuse(axis, fmt::format("counts along {}", nameOf(cut_->factor)));
  }
  /// Whether a rank's index in the op's group says which part of the dimension it has.
  static bool isByIndex(const FactorAtom &atom) { return atom.isKnownByIndex || atom.isOfShare(); }
  /// Whether a rank's index in the op's group selects its part of the factor.
  bool isSelected() const {
    bool counts = info_.work.cost == CostClass::Attention || !anyAtom(isByIndex);
    return probe_.getInt(AttrKey::slices) > 0 || anyAtom([&](const FactorAtom &atom) {
             return (atom.factor == cut_->factor || atom.factor == cut_->through) &&
                    (isByIndex(atom) || (counts && atom.isCounted));
           });
  }

  /// Whether ranks have shares of the factor, selected by their index in the op's group.
  bool isShareCut() const {
    bool isShare = false;
    for (size_t i = 0; i < operandCount(); ++i)
      if (const FactorAtom *atom = row(i).find(cut_->factor))
        isShare |= atom->isOfShare() && places_[i] != nullptr;
    return isShare && isIndex(shard_->axis);
  }

  bool followCut(uint16_t axis) {
    if (!mayCut(axis))
      return false;
    for (size_t r = 0; r < results_.size(); ++r) {
      const FactorValue &value = resultOf(probe_, factors_, r);
      const FactorAtom *atom = value.find(cut_->factor);
      bool hasRest = isShareCut() && atom && !atom->isOfShare();
      if (!hasRest && cut_->through != kNoFactor && (atom != nullptr) != value.has(cut_->through))
        return refuse(axis, "computes partial sums for only some of the operands' rows");
      if (atom != nullptr && !hasRest)
        pending_.push_back({r, *shard_, *cut_});
      else if (hasRest) // zeros for elements of other ranks
        results_[r].put({axis, Place::Part});
      else if (value.combine != FactorValue::Same)
        results_[r].put({axis, value.combine == FactorValue::Sum ? Place::Part : Place::Largest});
    }
    return true;
  }

  /// Follows an op that treats this rank's rows as if they were all rows.
  bool followOwnRows(uint16_t axis) {
    for (size_t i = 0; i < operandCount(); ++i)
      if (places_[i] == nullptr && row(i).has(cut_->factor))
        return refuse(axis, fmt::format("operand {} has all rows, other operands have parts", i));
    for (size_t r = 0; r < results_.size(); ++r)
      if (resultOf(probe_, factors_, r).has(cut_->factor))
        pending_.push_back({r, *shard_, *cut_});
      else
        results_[r].put({.axis = axis, .kind = Place::Whole, .rows = Place::Own});
    return true;
  }

  /// Follows an op on rows grouped by expert, made from this rank's tokens or taken from all ranks:
  /// along the axis, all operands with rows have such rows, and those with experts have theirs.
  bool followRows(uint16_t axis, const Place &rows) {
    if (!findCuts(axis))
      return false;
    const bool isTaken = rows.rows == Place::Taken;
    for (size_t i = 0; i < operandCount(); ++i) {
      const Place *place = places_[i];
      const FactorId cut = cuts_[i] ? cuts_[i]->factor : kNoFactor;
      const FactorRole needed = isTaken ? FactorRole::Experts : FactorRole::Tokens;
      if (place != nullptr && !(*place == rows) &&
          !(place->kind == Place::Shard && hasRole(cut, needed)))
        return refuse(axis, "mixes routed rows with others");
      if (isTaken && hasRole(cut, FactorRole::Experts) && cuts_[i]->sub != rows.outer)
        return refuse(axis, "takes rows that are routed to other experts");
      bool needs = hasRole(row(i), FactorRole::Rows) || row(i).countsRowsOf != kNoFactor ||
                   (isTaken && hasRole(row(i), FactorRole::Experts));
      if (place == nullptr && needs)
        return refuse(axis, fmt::format("operand {} has rows or experts that are not routed", i));
    }
    for (size_t r = 0; r < results_.size(); ++r)
      if (!putRows(axis, r, rows))
        return false;
    return true;
  }

  bool putRows(uint16_t axis, size_t r, const Place &rows) {
    const FactorValue &value = resultOf(probe_, factors_, r);
    bool isOfExperts = hasRole(value, FactorRole::Experts) && value.countsRowsOf == kNoFactor;
    if (hasRole(value, FactorRole::Tokens)) {
      if (!cut_)
        return refuse(axis, "computes rows that are not routed");
      pending_.push_back({r, *shard_, *cut_});
    } else if (!isOfExperts) {
      results_[r].put(rows);
    } else if (rows.rows == Place::Own) {
      results_[r].put({axis, Place::Part});
    } else {
      pending_.push_back({r,
                          {.axis = axis, .isSummed = isOfSamples(axis)},
                          {factorWith(FactorRole::Experts), rows.outer, nullptr}});
    }
    return true;
  }

  /// Merges microbatches and covers of the operands, and checks their order and multiples.
  bool mergeRest() {
    State merged;
    for (size_t i = 0; i < operandCount(); ++i) {
      const State &each = state(i);
      if (!each->order.isOfDims())
        return compute_.refuse(
            fmt::format("the elements of operand {} are in a different order", i));
      if (!each->cover.isAll() && !each->cover.isPiece())
        return compute_.refuse("takes attention to some keys only");
      if (!each->cover.isAll() && !merged->cover.isAll() && !(each->cover == merged->cover))
        return compute_.refuse("takes different pieces of values");
      if (!each->cover.isAll())
        merged.edit().cover = each->cover;
      if (each.isSum())
        return compute_.refuse("takes a sum over microbatches");
      if (!each->multiple.isOne())
        return compute_.refuse("takes a multiple of a value of the model");
      if (each.microbatch >= 0 && merged.microbatch >= 0 && each.microbatch != merged.microbatch)
        return compute_.refuse(fmt::format("operands are of microbatches {} and {}",
                                           merged.microbatch, each.microbatch));
      merged.microbatch = std::max(merged.microbatch, each.microbatch);
    }
    cover_ = merged->cover;
    for (State &result : results_)
      result.microbatch = merged.microbatch;
    return true;
  }

  void makeTerms() {
    results_.resize(call_.results.size());
    Term term = {Term::Apply, call_.kind, 0, call_.number, probe_.attrs, {}};
    for (size_t i = 0; i < operandCount(); ++i)
      term.operands.push_back(state(i).term);
    term.sortSummands();
    if (int at = positionOf(info_.operands, "positions");
        at >= 0 && static_cast<size_t>(at) == operandCount())
      term.operands.push_back(compute_.loaded(kPlaces));
    for (size_t r = 0; r < results_.size(); ++r) {
      const Type *type = call_.results[r];
      term.result = static_cast<uint8_t>(r);
      bool isPlainCast = call_.kind == OpKind::Cast && term.attrs.empty();
      bare_.push_back(isPlainCast ? term.operands[0] : terms_.of(term));
      results_[r].term = terms_.rounded(type ? type->dtype : typeBetween(r), bare_.back());
    }
  }
  DType typeBetween(size_t r) const {
    const ValueType &type = typesOf(call_.kind).result(r);
    return type.numbers == ValueType::Exact ? type.dtype : call_.between;
  }
  static constexpr int64_t kPlaces = resultIndex<OpKind::BatchLoad>("more");

  /// Places the shards of a result and sets its shape.
  bool place(size_t r) {
    const FactorValue &value = resultOf(probe_, factors_, r);
    State &result = results_[r];
    for (const Pending &each : pending_) {
      if (each.result != r)
        continue;
      int64_t outer = 0;
      bool isThrough = each.cut.through == kNoFactor;
      eachAtom(value, [&](const FactorAtom &atom, int64_t before, int64_t) {
        if (outer != 0) {
          isThrough = atom.factor == each.cut.through;
          return false;
        }
        if (atom.factor == each.cut.factor)
          outer = before * each.cut.sub;
        return before != 0 && (outer == 0 || !isThrough);
      });
      if (outer == 0)
        return compute_.refuse("the extents of a result are unknown");
      if (!isThrough)
        return compute_.refuse(
            "a result does not have the parts into which the rows of operands are divided");
      Place place = each.place;
      place.outer = outer;
      result.put(place);
    }
    if (!cover_.isAll() && result.at(static_cast<uint16_t>(cover_.axis)))
      result.edit().cover = cover_;
    setShape(r, value);
    if (!placeAllRows(r, value))
      return false;
    bool hasRoom =
        value.countsRowsOf != kNoFactor || std::ranges::any_of(value.words(), &FactorAtom::isBound);
    return hasRoom || fits(r);
  }

  void setShape(size_t r, const FactorValue &value) {
    State &result = results_[r];
    const Type &known = terms_.shape(bare_[r]);
    const Type *type = call_.results[r];
    bool isGiven = known.rank != 0 || value.form != FactorValue::Dims;
    Type shape = known.rank != 0 ? known : !isGiven ? shapeOf(value) : type ? *type : Type();
    if (type && !isGiven) {
      Type scaled = mesh_.wholeOf(result, *type);
      if (shape.rank == 0 || scaled.numel() == shape.numel())
        shape = scaled;
      shape.dtype = type->dtype;
    }
    result.edit().whole = shape;
    terms_.setShape(bare_[r], shape);
    terms_.setShape(result.term, shape);
  }

  Type shapeOf(const FactorValue &value) const {
    Type shape;
    shape.rank = value.dimCount;
    std::ranges::fill(shape.shape, 1);
    eachAtom(value, [&](const FactorAtom &atom, int64_t, int64_t extent) {
      shape.shape[placeOfDim(value, isTransposed(value), atom.dim)] *= extent;
      return true;
    });
    return shape.numel() == 0 ? Type() : shape;
  }

  /// Whether this rank's result has the size that its placement implies. That of rows depends on
  /// other ranks, and on their capacity.
  bool fits(size_t r) {
    const State &result = results_[r];
    if (call_.results[r] == nullptr || result->whole.rank == 0)
      return true;
    int64_t whole = result->whole.numel();
    Multiple ranks;
    for (const Place &place : result->places) {
      if (place.rows != Place::Any)
        return true;
      if (place.kind == Place::Shard)
        ranks.multiply(mesh_.shards(result, place.axis));
    }
    int64_t here = call_.results[r]->numel();
    return here * ranks.over == whole * ranks.under ||
           compute_.refuse(fmt::format("computes {} elements; this rank's part of {} has {}", here,
                                       whole, ranks.dividing(whole)));
  }

  Compute &compute_;
  const Mesh &mesh_;
  Terms &terms_;
  const Call &call_;
  const OpInfo &info_;
  const OpFactors &factors_;
  const std::vector<uint16_t> &groupAxes_;
  int unused_;    ///< index of the operand that the op does not use; -1: none
  State nothing_; ///< takes its place
  Op probe_{};    ///< the op with the attributes of the whole
  std::optional<FactorExtents> extents_;
  std::vector<State> results_;
  std::vector<TermId> bare_; ///< of each result, before rounding
  std::vector<Pending> pending_;
  Cover cover_;                   ///< of operands
  std::vector<uint16_t> allRows_; ///< axes along which operands have the rows of all ranks
  // For the axis that is being followed:
  std::vector<const Place *> places_;    ///< of each operand
  std::vector<std::optional<Cut>> cuts_; ///< of each operand
  std::optional<Cut> cut_;               ///< common to all operands
  const Place *shard_ = nullptr;
};

std::vector<State> Compute::applyPlain(const Call &call) { return PlainCall(*this, call).run(); }

} // namespace shardc::plan::spec
