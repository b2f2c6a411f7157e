#include "compiler/model/ScheduleFile.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <tuple>

#include <fmt/format.h>

#include "runtime/base/ParseNumber.h"
#include "runtime/base/Status.h"

namespace shardc::model {
namespace {

using Kind = OrderFault::Kind;

/// What a cell may say: a pass, one end of a transfer, or what happens to a chunk's weights.
enum class Action : uint8_t { Pass, Move, Gather, Release, Reduce };

struct Word {
  std::string_view text;
  Action action;
  PassKind pass = PassKind::Forward; ///< that it is, or whose value it moves
  bool isSend = false;
  bool isCounted() const { return action == Action::Pass || action == Action::Move; }
};

/// The words behind the number of a chunk; a microbatch follows passes and transfers.
constexpr std::array<Word, 11> kWords = {{
    {"REDUCE_GRAD", Action::Reduce},
    {"UNSHARD", Action::Gather},
    {"RESHARD", Action::Release},
    {"SEND_F", Action::Move, PassKind::Forward, true},
    {"RECV_F", Action::Move},
    {"SEND_B", Action::Move, PassKind::Inputs, true},
    {"RECV_B", Action::Move, PassKind::Inputs},
    {"F", Action::Pass, PassKind::Forward},
    {"B", Action::Pass, PassKind::Backward},
    {"I", Action::Pass, PassKind::Inputs},
    {"W", Action::Pass, PassKind::Weights},
}};

/// One end of a transfer: what a chunk sends to a neighbour, or receives from it.
struct End {
  bool isSend = false, isForward = false;
  int32_t chunk = 0;
  int64_t microbatch = 0;
  auto operator<=>(const End &) const = default;

  End other() const {
    return {!isSend, isForward, chunk + (isSend == isForward ? 1 : -1), microbatch};
  }
  std::string name() const {
    return fmt::format("{}{}_{}{}", chunk, isSend ? "SEND" : "RECV", isForward ? 'F' : 'B',
                       microbatch);
  }
};

/// What a cell says. Waits are left out.
struct Item {
  Action action;
  PassKind pass;
  End end; ///< of transfers; the others have only a chunk
  std::string name;
  PassPlace place; ///< of a pass; otherwise that of the row's next pass
  int32_t column;
};

std::string_view trimmed(std::string_view text) {
  size_t begin = text.find_first_not_of(" \t\r"), end = text.find_last_not_of(" \t\r");
  return begin == std::string_view::npos ? text.substr(text.size())
                                         : text.substr(begin, end - begin + 1);
}

/// Takes the text up to the next `end` that is not in quotes.
std::string_view takeUntil(char end, std::string_view &text) {
  size_t at = 0;
  for (bool isQuoted = false; at < text.size() && (isQuoted || text[at] != end); ++at)
    isQuoted ^= text[at] == '"';
  std::string_view taken = text.substr(0, at);
  text.remove_prefix(std::min(at + 1, text.size()));
  return taken;
}

/// Reads an order and checks it, up to the first fault.
class Reader {
public:
  explicit Reader(PassOrder order) : order_(std::move(order)) {}

  std::optional<OrderFault> check() {
    return run({&Reader::checkShape, &Reader::checkCells, &Reader::findMissing, &Reader::checkRows,
                &Reader::findCycle});
  }
  std::variant<PassOrder, OrderFault> read(std::string_view text, int64_t stages) {
    readRows(text);
    if (!fault_)
      place(stages);
    check();
    if (auto fault = run({&Reader::checkTransfers, &Reader::checkUses}))
      return *fault;
    return std::move(order_);
  }

private:
  std::optional<OrderFault> run(std::initializer_list<void (Reader::*)()> steps) {
    for (auto step : steps)
      if (!fault_)
        (this->*step)();
    return fault_;
  }

  /// A place in a file, from 1.
  struct Spot {
    size_t row = 0;
    int64_t column = 0;
  };
  template <typename... Args>
  void fail(Kind kind, Spot at, fmt::format_string<Args...> text, Args &&...args) {
    if (!fault_)
      fault_ = {kind, static_cast<int64_t>(at.row), at.column,
                fmt::format(text, std::forward<Args>(args)...)};
  }
  void failAt(const Item &item, std::string_view problem) {
    fail(Kind::Transfer, {item.place.row + 1, item.column}, "'{}' {}", item.name, problem);
  }
  Spot spotOf(const PassPlace &place) const { return {place.row + 1, columnOf(place)}; }
  int64_t columnOf(const PassPlace &place) const { return order_.columnOf(place.row, place.pass); }
  std::string nameAt(const PassPlace &place) const { return nameOf(order_.at(place)); }
  int32_t stageOf(const End &end) const { return order_.placement.stageOf(end.chunk); }

  void readRows(std::string_view text) {
    while (!text.empty() && !fault_) {
      std::string_view line = takeUntil('\n', text);
      if (text.empty() && trimmed(line).empty())
        break;
      order_.rows.emplace_back(), order_.columns.emplace_back();
      for (int32_t column = 1; !line.empty() && !fault_; ++column) {
        std::string cell(takeUntil(',', line));
        std::erase(cell, '"');
        readCell(trimmed(cell), column);
      }
    }
  }

  void readCell(std::string_view cell, int32_t column) {
    constexpr std::string_view kPair = ")OVERLAP_F_B";
    if (!cell.starts_with('(') || !cell.ends_with(kPair))
      return cell.empty() ? void() : readAction(cell, column);
    std::vector<StagePass> &row = order_.rows.back();
    const size_t first = row.size();
    std::string_view inside = cell.substr(1, cell.size() - 1 - kPair.size());
    while (!inside.empty() && !fault_)
      readAction(trimmed(takeUntil(';', inside)), column);
    auto isOfPair = [](const StagePass &pass) { return pass.part.kind != PassKind::Weights; };
    if (row.size() == first + 2 && std::ranges::all_of(row.begin() + first, row.end(), isOfPair) &&
        hasForward(row[first].part.kind) != hasForward(row[first + 1].part.kind))
      row[first].isPair = true;
    else
      fail(Kind::Cell, {order_.rows.size(), column}, "'{}' must hold a forward and a backward pass",
           cell.substr(0, 64));
  }

  void readAction(std::string_view text, int32_t column) {
    constexpr std::string_view kDigits = "0123456789";
    const size_t begin = std::min(text.find_first_not_of(kDigits), text.size());
    const size_t end = std::min(text.find_first_of(kDigits, begin), text.size());
    std::string_view name = text.substr(begin, end - begin);
    const bool isWait = name.starts_with("WAIT_");
    const auto *word = std::ranges::find(kWords, name.substr(isWait ? 5 : 0), &Word::text);
    int32_t chunk = 0;
    int64_t microbatch = 0;
    if (word == kWords.end() || (isWait && word->action == Action::Pass) ||
        !parseNumber(text.substr(0, begin), chunk) ||
        (word->isCounted() ? !parseNumber(text.substr(end), microbatch) : end < text.size()))
      return fail(Kind::Cell, {order_.rows.size(), column},
                  "'{}' is not a pass; write the chunk, then F, B, I or W, then the microbatch, as "
                  "in '2F0'",
                  text.substr(0, 64));
    if (isWait)
      return;
    std::vector<StagePass> &row = order_.rows.back();
    items_.push_back({word->action,
                      word->pass,
                      {word->isSend, word->pass == PassKind::Forward, chunk, microbatch},
                      std::string(text),
                      {order_.rows.size() - 1, row.size()},
                      column});
    if (word->action != Action::Pass)
      return;
    row.push_back({{word->pass, chunk}, microbatch});
    order_.columns.back().push_back(column);
  }

  /// The chunks of each row.
  void place(int64_t stages) {
    if (std::cmp_not_equal(order_.rows.size(), stages))
      return fail(Kind::Shape, {}, "the schedule has {} rows, but the pipeline has {} stages",
                  order_.rows.size(), stages);
    std::map<int32_t, std::vector<size_t>> passes; // by chunk: their number in each row
    for (const Item &item : items_)
      if (item.action == Action::Pass) {
        passes[item.end.chunk].resize(order_.rows.size());
        ++passes[item.end.chunk][item.place.row];
      }
    std::vector<int32_t> stageOf; // that of most passes
    for (const auto &[chunk, each] : passes) {
      if (std::cmp_not_equal(chunk, stageOf.size()))
        return fail(Kind::Placement, {},
                    "no row has a pass of chunk {}, but there are passes of chunk {}",
                    stageOf.size(), passes.rbegin()->first);
      stageOf.push_back(static_cast<int32_t>(std::ranges::max_element(each) - each.begin()));
    }
    for (size_t row = 0; row < order_.rows.size(); ++row)
      if (std::ranges::count(stageOf, static_cast<int32_t>(row)) == 0)
        return fail(Kind::Missing, {row + 1, 0}, "no chunk has most of its passes in this row");
    order_.placement = Placement(std::move(stageOf));
  }

  /// Refuses what is far from complete before memory for all passes is taken.
  void checkShape() {
    places_ = order_.places();
    std::set<int64_t> numbers;
    for (const PassPlace &place : places_)
      numbers.insert(order_.at(place).microbatch);
    const int64_t count = std::ssize(numbers), passes = std::ssize(places_);
    const int64_t chunks = order_.placement.chunks(), needed = chunks * order_.microbatches;
    if (count < order_.microbatches || (count > order_.microbatches && *numbers.rbegin() < count))
      return fail(Kind::Shape, {}, "the schedule has {} microbatches, but a step has {}", count,
                  order_.microbatches);
    if (needed > passes)
      return fail(Kind::Missing, {},
                  "the schedule has {} passes; {} chunks and {} microbatches need at least {}",
                  passes, chunks, order_.microbatches, 2 * needed);
    index_ = {order_.placement.chunks(), order_.microbatches};
  }

  void checkCells() {
    for (const PassPlace &place : places_) {
      const auto &[part, microbatch, isPair] = order_.at(place);
      if (microbatch >= order_.microbatches)
        return fail(Kind::Cell, spotOf(place), "'{}' is of microbatch {}, but a step has {}",
                    nameAt(place), microbatch, order_.microbatches);
      if (auto stage = order_.placement.stageOf(part.chunk); std::cmp_not_equal(stage, place.row))
        return fail(Kind::Placement, spotOf(place),
                    "'{}' is of chunk {}, which stage {} holds, not stage {}", nameAt(place),
                    part.chunk, stage, place.row);
      for (PassResult result : kPassResults)
        if (auto of = index_.at(result, part.chunk, microbatch);
            !makes(part.kind, result) || !of.isKnown())
          continue;
        else if (order_.at(of).part == part)
          return fail(Kind::Twice, spotOf(place), "'{}' is there twice; first in column {}",
                      nameAt(place), columnOf(of));
        else
          return fail(Kind::Twice, spotOf(place), "'{}' repeats a part of '{}', column {}",
                      nameAt(place), nameAt(of), columnOf(of));
      index_.add(order_.at(place), place);
    }
  }

  void findMissing() {
    for (int32_t chunk = 0; chunk < order_.placement.chunks(); ++chunk)
      for (int64_t i = 0; i < order_.microbatches; ++i) {
        const auto row = static_cast<size_t>(order_.placement.stageOf(chunk)) + 1;
        auto has = [&](PassResult result) { return index_.at(result, chunk, i).isKnown(); };
        auto name = [&](PassKind kind) { return nameOf({{kind, chunk}, i}); };
        const bool hasI = has(PassResult::Inputs), hasW = has(PassResult::Weights);
        if (!has(PassResult::Output))
          return fail(Kind::Missing, {row, 0}, "'{}' is missing", name(PassKind::Forward));
        if (hasI != hasW)
          return fail(Kind::Missing, {row, 0}, "'{}' is missing; the row has '{}'",
                      name(hasI ? PassKind::Weights : PassKind::Inputs),
                      name(hasI ? PassKind::Inputs : PassKind::Weights));
        if (!hasI)
          return fail(Kind::Missing, {row, 0}, "'{}' is missing, or '{}' and '{}'",
                      name(PassKind::Backward), name(PassKind::Inputs), name(PassKind::Weights));
      }
  }

  /// A pass comes after those of its stage that it needs, and in another cell.
  void checkRows() {
    for (const PassPlace &place : places_)
      for (const PassPlace *needed : index_.needsOf(order_.at(place)))
        if (needed == nullptr || needed->row != place.row)
          continue;
        else if (order_.cellBegin(*needed) == order_.cellBegin(place))
          return fail(Kind::Order, spotOf(place), "'{}' needs '{}', in the same cell",
                      nameAt(place), nameAt(*needed));
        else if (needed->pass > place.pass)
          return fail(Kind::Order, spotOf(place),
                      "'{}' needs '{}', which comes later, in column {}", nameAt(place),
                      nameAt(*needed), columnOf(*needed));
  }

  void findCycle() {
    const PassSpans done = order_.run(index_, [](const StagePart &) { return 1; });
    std::vector<PassWait> path;
    for (size_t row = 0; row < done.size() && path.empty(); ++row)
      if (std::optional<PassWait> wait = order_.waitOf(index_, done, row))
        path.push_back(*wait);
    if (path.empty())
      return;
    auto begin = path.begin();
    auto isAgain = [&](const PassWait &each) { return each.pass.row == path.back().needed.row; };
    while ((begin = std::ranges::find_if(path, isAgain)) == path.end())
      path.push_back(*order_.waitOf(index_, done, path.back().needed.row));
    const PassPlace first = begin->pass;
    std::string text;
    for (; begin != path.end(); ++begin)
      text += fmt::format("{} stage {} (column {}) waits in '{}' for '{}'",
                          text.empty() ? ":" : ";", begin->pass.row, columnOf(begin->pass),
                          nameAt(begin->pass), nameAt(begin->needed));
    fail(Kind::Cycle, spotOf(first), "stages wait for each other{}", text);
  }

  /// Transfers of a file must be those that its passes need, after the pass that makes the value
  /// and before the one that reads it, and in one order at both ends.
  void checkTransfers() {
    std::map<End, size_t> left; // ends that passes need, with the index of the pass
    for (const Item &item : items_)
      for (bool isForward : {true, false})
        for (bool isSend : {true, false}) {
          const End end{isSend, isForward, item.end.chunk, item.end.microbatch};
          if (item.action == Action::Pass &&
              (isForward ? hasForward(item.pass) : hasInputs(item.pass)) &&
              order_.placement.areApart(end.chunk, end.other().chunk))
            left[end] = item.place.pass;
        }
    /// Sends and receives, by both stages and direction.
    std::map<std::tuple<int32_t, int32_t, bool>, std::array<std::vector<const Item *>, 2>> queues;
    for (const Item &item : items_) {
      if (item.action != Action::Move)
        continue;
      const bool isSend = item.end.isSend;
      auto own = left.find(item.end);
      if (own == left.end() || std::cmp_not_equal(stageOf(item.end), item.place.row))
        return failAt(item, "moves no value between this stage and another one, or once more");
      if ((item.place.pass <= own->second) == isSend)
        return failAt(item, isSend ? "comes before the pass that makes the value"
                                   : "comes after the pass that reads the value");
      left.erase(own);
      const End sent = isSend ? item.end : item.end.other();
      queues[{stageOf(sent), stageOf(sent.other()), sent.isForward}][isSend ? 0 : 1].push_back(
          &item);
    }
    if (!queues.empty() && !left.empty())
      return fail(Kind::Transfer, {static_cast<size_t>(stageOf(left.begin()->first)) + 1, 0},
                  "'{}' is missing; the file has other transfers", left.begin()->first.name());
    for (const auto &[ends, both] : queues)
      for (size_t i = 0; i < both[0].size(); ++i)
        if (const Item &sent = *both[0][i]; both[1][i]->end != sent.end.other())
          return failAt(*both[1][i],
                        fmt::format("receives, but '{}' is sent first (row {}, column {})",
                                    sent.name, sent.place.row + 1, sent.column));
  }

  /// If a file gathers the weights of a chunk, the chunk's passes must run while they are there. A
  /// reduction must follow all gradients of its chunk.
  void checkUses() {
    struct Use {
      bool isGathered = true; ///< also if the file does not say when
      const Item *reduced = nullptr;
    };
    std::map<int32_t, Use> uses; // by chunk
    for (const Item &item : items_)
      if (item.action == Action::Pass || item.action == Action::Move)
        continue;
      else if (item.end.chunk >= order_.placement.chunks() ||
               std::cmp_not_equal(stageOf(item.end), item.place.row))
        return failAt(item, "is of a chunk that the stage does not hold");
      else
        uses[item.end.chunk].isGathered &= item.action == Action::Reduce;
    for (const Item &item : items_) {
      Use &use = uses[item.end.chunk];
      if (item.action == Action::Reduce)
        use.reduced = &item;
      else if (item.action == Action::Gather || item.action == Action::Release)
        use.isGathered = item.action == Action::Gather;
      else if (item.action == Action::Pass && item.pass != PassKind::Forward && use.reduced)
        return failAt(*use.reduced,
                      fmt::format("comes before '{}', which adds to the gradient", item.name));
      else if (item.action == Action::Pass && !use.isGathered)
        return failAt(item, fmt::format("runs while the weights of chunk {} are not gathered",
                                        item.end.chunk));
    }
  }

  PassOrder order_;
  std::vector<Item> items_; ///< in the order of rows and cells
  std::vector<PassPlace> places_;
  PassIndex index_{0, 0};
  std::optional<OrderFault> fault_;
};

} // namespace

std::variant<PassOrder, OrderFault> readSchedule(std::string_view text, int64_t stages,
                                                 int64_t microbatches) {
  PassOrder empty;
  empty.microbatches = microbatches;
  return Reader(std::move(empty)).read(text, stages);
}

std::optional<OrderFault> PassOrder::check() const { return Reader(*this).check(); }

PassOrder readFaultless(std::string_view text, int64_t stages, int64_t microbatches) {
  auto read = readSchedule(text, stages, microbatches);
  SHARDC_CHECK(std::holds_alternative<PassOrder>(read), "the schedule has a fault: {}",
               std::get<OrderFault>(read).reason);
  return std::get<PassOrder>(std::move(read));
}

std::string_view cellOf(std::string_view line, int64_t column) {
  std::string_view cell = line;
  for (; column > 0; --column)
    cell = takeUntil(',', line);
  return trimmed(cell);
}

std::string writeSchedule(const PassOrder &order, char rowEnd) {
  std::string text;
  for (const std::vector<StagePass> &row : order.rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += i == 0 ? "" : ",";
      text += row[i].isPair ? fmt::format("({};{})OVERLAP_F_B", nameOf(row[i]), nameOf(row[i + 1]))
                            : nameOf(row[i]);
      i += row[i].isPair ? 1 : 0;
    }
    text += rowEnd;
  }
  return text;
}

} // namespace shardc::model
