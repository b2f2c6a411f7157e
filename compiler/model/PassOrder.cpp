#include "compiler/model/PassOrder.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace shardc::model {
namespace {

using Kind = OrderFault::Kind;

using Spans = std::vector<std::vector<PassSpan>>;

/// What a row waits for, if it cannot continue: its pass, and the one that this pass needs.
struct Wait {
  PassPlace pass, needed;
};

std::optional<Wait> waitOf(const PassOrder &order, const PassIndex &index, const Spans &done,
                           size_t row) {
  for (PassPlace place{row, done[row].size()}; place.pass < order.rows[row].size(); ++place.pass) {
    for (const PassPlace *needed : index.needsOf(order.at(place)))
      if (needed != nullptr && done[needed->row].size() <= needed->pass &&
          (needed->row != row || needed->pass > place.pass)) // parts of one pass share a cell
        return Wait{place, *needed};
    if (!order.at(place).isPair)
      break;
  }
  return std::nullopt;
}

/// Finds the first fault of an order.
class OrderCheck {
public:
  explicit OrderCheck(const PassOrder &order) : order_(order) {}

  std::optional<OrderFault> run() {
    for (auto check :
         {&OrderCheck::shape, &OrderCheck::each<&OrderCheck::cell>, &OrderCheck::missing,
          &OrderCheck::each<&OrderCheck::orderInRow>, &OrderCheck::cycle})
      if (std::optional<OrderFault> fault = (this->*check)())
        return fault;
    return std::nullopt;
  }

private:
  int64_t columnOf(const PassPlace &place) const { return order_.columnOf(place.row, place.pass); }
  OrderFault faultAt(Kind kind, const PassPlace &place, std::string reason) const {
    return {kind, static_cast<int64_t>(place.row) + 1, columnOf(place), std::move(reason)};
  }

  /// Refuses what is far from complete before memory for all passes is taken.
  std::optional<OrderFault> shape() {
    std::set<int64_t> numbers;
    int64_t passes = 0;
    for (const std::vector<StagePass> &row : order_.rows)
      for (const StagePass &pass : row)
        numbers.insert(pass.microbatch), ++passes;
    const int64_t count = std::ssize(numbers), chunks = order_.placement.chunks();
    if (count < order_.microbatches || (count > order_.microbatches && *numbers.rbegin() < count))
      return OrderFault{Kind::Shape, 0, 0,
                        fmt::format("the schedule has {} microbatches, but a step has {}", count,
                                    order_.microbatches)};
    if (chunks * order_.microbatches > passes)
      return OrderFault{Kind::Missing, 0, 0,
                        fmt::format("the schedule has {} passes; {} chunks and {} microbatches "
                                    "need at least {}",
                                    passes, chunks, order_.microbatches,
                                    2 * chunks * order_.microbatches)};
    index_ = {order_.placement.chunks(), order_.microbatches};
    return std::nullopt;
  }

  template <std::optional<OrderFault> (OrderCheck::*kCheck)(const PassPlace &)>
  std::optional<OrderFault> each() {
    for (PassPlace place{0, 0}; place.row < order_.rows.size(); ++place.row)
      for (place.pass = 0; place.pass < order_.rows[place.row].size(); ++place.pass)
        if (std::optional<OrderFault> fault = (this->*kCheck)(place))
          return fault;
    return std::nullopt;
  }

  std::optional<OrderFault> cell(const PassPlace &place) {
    const StagePass &pass = order_.at(place);
    const std::string name = nameOf(pass);
    if (pass.microbatch >= order_.microbatches)
      return faultAt(Kind::Cell, place,
                     fmt::format("'{}' is of microbatch {}, but a step has {}", name,
                                 pass.microbatch, order_.microbatches));
    if (auto stage = order_.placement.stageOf(pass.part.chunk);
        std::cmp_not_equal(stage, place.row))
      return faultAt(Kind::Placement, place,
                     fmt::format("'{}' is of chunk {}, which stage {} holds, not stage {}", name,
                                 pass.part.chunk, stage, place.row));
    for (PassResult result : kPassResults) {
      if (!makes(pass.part.kind, result))
        continue;
      const PassPlace &of = index_.at(result, pass.part.chunk, pass.microbatch);
      if (of.isKnown())
        return faultAt(
            Kind::Twice, place,
            order_.at(of).part == pass.part
                ? fmt::format("'{}' is there twice; first in column {}", name, columnOf(of))
                : fmt::format("'{}' repeats a part of '{}', column {}", name, nameOf(order_.at(of)),
                              columnOf(of)));
    }
    index_.add(pass, place);
    return std::nullopt;
  }

  std::optional<OrderFault> missing() {
    for (int32_t chunk = 0; chunk < order_.placement.chunks(); ++chunk)
      for (int64_t i = 0; i < order_.microbatches; ++i) {
        auto has = [&](PassResult result) { return index_.at(result, chunk, i).isKnown(); };
        auto name = [&](PassKind kind) { return nameOf({{kind, chunk}, i}); };
        const bool hasI = has(PassResult::Inputs), hasW = has(PassResult::Weights);
        std::string reason;
        if (!has(PassResult::Output))
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
        return OrderFault{Kind::Missing, order_.placement.stageOf(chunk) + 1, 0, std::move(reason)};
      }
    return std::nullopt;
  }

  /// A pass comes after those of its stage that it needs, and in another cell.
  std::optional<OrderFault> orderInRow(const PassPlace &place) {
    for (const PassPlace *needed : index_.needsOf(order_.at(place))) {
      if (needed == nullptr || needed->row != place.row)
        continue;
      const auto &[first, second] = std::minmax(place, *needed);
      bool isTogether = order_.at(first).isPair && second.pass == first.pass + 1;
      if (isTogether || needed->pass > place.pass)
        return faultAt(
            Kind::Order, place,
            fmt::format("'{}' needs '{}', {}", nameOf(order_.at(place)), nameOf(order_.at(*needed)),
                        isTogether
                            ? "in the same cell"
                            : fmt::format("which comes later, in column {}", columnOf(*needed))));
    }
    return std::nullopt;
  }

  std::optional<OrderFault> cycle() {
    const Spans done = order_.run(index_, [](const StagePart &) { return 1; });
    std::vector<Wait> path;
    for (size_t row = 0; row < done.size() && path.empty(); ++row)
      if (std::optional<Wait> wait = waitOf(order_, index_, done, row))
        path.push_back(*wait);
    if (path.empty())
      return std::nullopt;
    auto begin = path.begin();
    auto isAgain = [&](const Wait &each) { return each.pass.row == path.back().needed.row; };
    while ((begin = std::ranges::find_if(path, isAgain)) == path.end())
      path.push_back(*waitOf(order_, index_, done, path.back().needed.row));
    const PassPlace first = begin->pass;
    std::string text;
    for (; begin != path.end(); ++begin)
      text += fmt::format("{} stage {} (column {}) waits in '{}' for '{}'",
                          text.empty() ? ":" : ";", begin->pass.row, columnOf(begin->pass),
                          nameOf(order_.at(begin->pass)), nameOf(order_.at(begin->needed)));
    return faultAt(Kind::Cycle, first, "stages wait for each other" + text);
  }

  const PassOrder &order_;
  PassIndex index_{0, 0};
};

} // namespace

std::string nameOf(const StagePass &pass) {
  constexpr std::string_view kLetters = " FI W BB"; // by kind
  return fmt::format("{}{}{}", pass.part.chunk, kLetters[static_cast<size_t>(pass.part.kind)],
                     pass.microbatch);
}

std::optional<Handover> PassIndex::operandOf(const StagePart &part) const {
  if (hasForward(part.kind))
    return part.chunk > 0 ? std::optional(Handover{false, part.chunk}) : std::nullopt;
  return hasInputs(part.kind) && part.chunk + 1 < chunks_
             ? std::optional(Handover{true, part.chunk})
             : std::nullopt;
}

std::array<const PassPlace *, 2> PassIndex::needsOf(const StagePass &pass) const {
  std::array<const PassPlace *, 2> needs{};
  const auto [kind, chunk] = pass.part;
  if (!hasForward(kind))
    needs[0] =
        &at(hasInputs(kind) ? PassResult::Output : PassResult::Inputs, chunk, pass.microbatch);
  if (std::optional<Handover> of = operandOf(pass.part))
    needs[1] = &at(of->result(), of->maker(), pass.microbatch);
  return needs;
}

std::optional<OrderFault> PassOrder::check() const { return OrderCheck(*this).run(); }

std::vector<std::vector<PassSpan>> PassOrder::run(const PassIndex &index,
                                                  const SecondsOf &seconds) const {
  Spans done(rows.size());
  for (bool moves = true; moves;) {
    moves = false;
    for (size_t row = 0; row < rows.size(); ++row)
      while (done[row].size() < rows[row].size() && !waitOf(*this, index, done, row)) {
        const size_t first = done[row].size(), end = cellEnd(row, first);
        PassSpan span{first == 0 ? 0 : done[row].back().end, 0};
        double length = 0;
        for (size_t i = first; i < end; ++i) {
          length += seconds(rows[row][i].part);
          for (const PassPlace *needed : index.needsOf(rows[row][i]))
            if (needed != nullptr && needed->pass < done[needed->row].size())
              span.begin = std::max(span.begin, done[needed->row][needed->pass].end);
        }
        span.end = span.begin + length;
        done[row].resize(end, span);
        moves = true;
      }
  }
  return done;
}

} // namespace shardc::model
