#include "compiler/model/PassOrder.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace shardc::model {
namespace {

using Kind = OrderFault::Kind;

/// What passes compute for a chunk and a microbatch: its output, and the gradients of its input and
/// of its weights.
enum Result : uint8_t { kOutput, kInputs, kWeights, kResults };

bool makes(PassKind kind, Result result) {
  return result == kOutput   ? hasForward(kind)
         : result == kInputs ? hasInputs(kind)
                             : kind != PassKind::Forward && kind != PassKind::Inputs;
}

/// Finds the first fault of an order.
class OrderCheck {
public:
  explicit OrderCheck(const PassOrder &order) : order_(order), placement_(order.placement) {}

  std::optional<OrderFault> run() {
    for (auto check : {&OrderCheck::shape, &OrderCheck::cells, &OrderCheck::missing,
                       &OrderCheck::orderInRows, &OrderCheck::cycle})
      if (std::optional<OrderFault> fault = (this->*check)())
        return fault;
    return std::nullopt;
  }

private:
  struct Place {
    size_t row = SIZE_MAX, pass = 0;
    auto operator<=>(const Place &) const = default;
    bool isKnown() const { return row != SIZE_MAX; }
  };

  const StagePass &at(const Place &place) const { return order_.rows[place.row][place.pass]; }
  int64_t columnOf(const Place &place) const { return order_.columnOf(place.row, place.pass); }
  OrderFault faultAt(Kind kind, const Place &place, std::string reason) const {
    return {kind, static_cast<int64_t>(place.row) + 1, columnOf(place), std::move(reason)};
  }
  Place &placeOf(Result result, int32_t chunk, int64_t microbatch) {
    return places_[(static_cast<size_t>(chunk) * static_cast<size_t>(order_.microbatches) +
                    static_cast<size_t>(microbatch)) *
                       kResults +
                   result];
  }

  template <typename Fn> std::optional<OrderFault> forEach(const Fn &fn) {
    for (size_t row = 0; row < order_.rows.size(); ++row)
      for (size_t pass = 0; pass < order_.rows[row].size(); ++pass)
        if (std::optional<OrderFault> fault = fn(Place{row, pass}))
          return fault;
    return std::nullopt;
  }

  std::optional<OrderFault> shape() {
    std::set<int64_t> numbers;
    for (const std::vector<StagePass> &row : order_.rows)
      for (const StagePass &pass : row)
        numbers.insert(pass.microbatch);
    int64_t count = std::ssize(numbers);
    if (count != order_.microbatches && count > 0 && *numbers.rbegin() == count - 1)
      return OrderFault{Kind::Shape, 0, 0,
                        fmt::format("the schedule has {} microbatches, but a step has {}", count,
                                    order_.microbatches)};
    return std::nullopt;
  }

  std::optional<OrderFault> cells() {
    places_.resize(static_cast<size_t>(placement_.chunks()) *
                   static_cast<size_t>(order_.microbatches) * kResults);
    return forEach([&](const Place &place) -> std::optional<OrderFault> {
      const StagePass &pass = at(place);
      const std::string name = nameOf(pass);
      if (pass.microbatch >= order_.microbatches)
        return faultAt(Kind::Cell, place,
                       fmt::format("'{}' is of microbatch {}, but a step has {}", name,
                                   pass.microbatch, order_.microbatches));
      if (auto stage = placement_.stageOf(pass.part.chunk); std::cmp_not_equal(stage, place.row))
        return faultAt(Kind::Placement, place,
                       fmt::format("'{}' is of chunk {}, which stage {} holds, not stage {}", name,
                                   pass.part.chunk, stage, place.row));
      for (Result result : {kOutput, kInputs, kWeights}) {
        if (!makes(pass.part.kind, result))
          continue;
        Place &of = placeOf(result, pass.part.chunk, pass.microbatch);
        if (of.isKnown())
          return faultAt(
              Kind::Twice, place,
              at(of).part == pass.part
                  ? fmt::format("'{}' is there twice; first in column {}", name, columnOf(of))
                  : fmt::format("'{}' repeats a part of '{}', column {}", name, nameOf(at(of)),
                                columnOf(of)));
        of = place;
      }
      return std::nullopt;
    });
  }

  std::optional<OrderFault> missing() {
    for (int32_t chunk = 0; chunk < placement_.chunks(); ++chunk)
      for (int64_t i = 0; i < order_.microbatches; ++i) {
        auto has = [&](Result result) { return placeOf(result, chunk, i).isKnown(); };
        auto name = [&](PassKind kind) { return nameOf({{kind, chunk}, i}); };
        const bool hasI = has(kInputs), hasW = has(kWeights);
        std::string reason;
        if (!has(kOutput))
          reason = fmt::format("'{}' is missing", name(PassKind::Forward));
        else if (hasI != hasW)
          reason = fmt::format("'{}' is missing; the row has '{}'",
                               name(hasI ? PassKind::Weights : PassKind::Inputs),
                               name(hasI ? PassKind::Inputs : PassKind::Weights));
        else if (!hasI)
          reason = fmt::format("'{}' is missing, or '{}' and '{}'", name(PassKind::Backward),
                               name(PassKind::Inputs), name(PassKind::Weights));
        else
          continue;
        return OrderFault{Kind::Missing, placement_.stageOf(chunk) + 1, 0, std::move(reason)};
      }
    return std::nullopt;
  }

  /// The passes that must end before this one: at most two.
  std::vector<Place> needsOf(const StagePass &pass) {
    std::vector<Place> needs;
    auto add = [&](Result result, int32_t chunk) {
      needs.push_back(placeOf(result, chunk, pass.microbatch));
    };
    if (pass.part.kind == PassKind::Forward && pass.part.chunk > 0)
      add(kOutput, pass.part.chunk - 1);
    if (!hasForward(pass.part.kind) && hasInputs(pass.part.kind)) {
      add(kOutput, pass.part.chunk);
      if (!placement_.isLast(pass.part.chunk))
        add(kInputs, pass.part.chunk + 1);
    }
    if (pass.part.kind == PassKind::Weights)
      add(kInputs, pass.part.chunk);
    return needs;
  }

  /// Whether the passes are a pair, in this order.
  bool isInOneCell(const Place &first, const Place &second) const {
    return first.row == second.row && first.pass + 1 == second.pass && at(first).isPair;
  }

  std::optional<OrderFault> orderInRows() {
    return forEach([&](const Place &place) -> std::optional<OrderFault> {
      for (const Place &needed : needsOf(at(place))) {
        bool isTogether = isInOneCell(needed, place) || isInOneCell(place, needed);
        if (needed.row != place.row || (needed.pass < place.pass && !isTogether))
          continue;
        std::string where = isTogether
                                ? "in the same cell"
                                : fmt::format("which comes later, in column {}", columnOf(needed));
        return faultAt(
            Kind::Order, place,
            fmt::format("'{}' needs '{}', {}", nameOf(at(place)), nameOf(at(needed)), where));
      }
      return std::nullopt;
    });
  }

  /// Runs the rows as far as they can. A pair begins when both its passes can.
  std::optional<OrderFault> cycle() {
    std::vector<size_t> done(order_.rows.size());
    auto waitsFor = [&](size_t row) -> std::optional<std::pair<Place, Place>> {
      for (size_t pass = done[row];; ++pass) {
        for (const Place &needed : needsOf(order_.rows[row][pass]))
          if (done[needed.row] <= needed.pass)
            return std::pair(Place{row, pass}, needed);
        if (!order_.rows[row][pass].isPair || pass + 1 == order_.rows[row].size())
          return std::nullopt;
      }
    };
    for (bool moves = true; moves;) {
      moves = false;
      for (size_t row = 0; row < done.size(); ++row)
        for (; done[row] < order_.rows[row].size() && !waitsFor(row); moves = true)
          done[row] += order_.rows[row][done[row]].isPair ? 2 : 1;
    }
    size_t row = 0;
    while (row < done.size() && done[row] == order_.rows[row].size())
      ++row;
    if (row == done.size())
      return std::nullopt;
    std::vector<std::pair<Place, Place>> path;
    std::vector<size_t> seenAt(done.size(), SIZE_MAX);
    for (; seenAt[row] == SIZE_MAX; row = path.back().second.row) {
      seenAt[row] = path.size();
      path.push_back(*waitsFor(row));
    }
    path.erase(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(seenAt[row]));
    std::string text;
    for (const auto &[waits, needed] : path)
      text +=
          fmt::format("{} stage {} (column {}) waits in '{}' for '{}'", text.empty() ? ":" : ";",
                      waits.row, columnOf(waits), nameOf(at(waits)), nameOf(at(needed)));
    return faultAt(Kind::Cycle, path.front().first, "stages wait for each other" + text);
  }

  const PassOrder &order_;
  const Placement &placement_;
  std::vector<Place> places_; ///< by chunk, microbatch and result
};

} // namespace

std::string nameOf(const StagePass &pass) {
  constexpr std::string_view kLetters = "FBBIW";
  return fmt::format("{}{}{}", pass.part.chunk, kLetters[static_cast<size_t>(pass.part.kind)],
                     pass.microbatch);
}

std::optional<OrderFault> PassOrder::check() const { return OrderCheck(*this).run(); }

} // namespace shardc::model
