#include "compiler/model/ScheduleFile.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <tuple>

#include <fmt/format.h>

#include "runtime/base/Status.h"

namespace shardc::model {
namespace {

using FileFault = OrderFault::Kind;

/// What a cell may say: a pass, one end of a transfer, or what happens to a chunk's weights.
enum class Action : uint8_t { Pass, Move, Gather, Release, Reduce };

struct Word {
  std::string_view text;
  Action action;
  PassKind pass = PassKind::Forward; ///< that it is, or whose value it moves
  bool isSend = false;
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
  size_t row, before; ///< `before`: number of the row's passes before it
  int32_t column;
};

/// Takes the number with which the text begins; -1 if it begins with none.
template <typename T> T takeNumber(std::string_view &text) {
  T number = -1;
  const char *end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data(), end, number);
  text.remove_prefix(error == std::errc() ? static_cast<size_t>(rest - text.data()) : 0);
  return error == std::errc() ? number : -1;
}

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

class Reader {
public:
  Reader(std::string_view text, int64_t stages, int64_t microbatches)
      : text_(text), stages_(stages) {
    order_.microbatches = microbatches;
  }

  std::variant<PassOrder, OrderFault> run() {
    for (auto step : {&Reader::readRows, &Reader::place, &Reader::checkOrder,
                      &Reader::checkTransfers, &Reader::checkUses})
      if (!fault_)
        (this->*step)();
    if (fault_)
      return *fault_;
    return std::move(order_);
  }

private:
  void fail(FileFault kind, size_t row, int64_t column, std::string reason) {
    if (!fault_)
      fault_ = OrderFault{kind, static_cast<int64_t>(row), column, std::move(reason)};
  }

  void readRows() {
    for (std::string_view left = text_; !left.empty() && !fault_;) {
      std::string_view line = takeUntil('\n', left);
      if (left.empty() && trimmed(line).empty())
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
      fail(FileFault::Cell, order_.rows.size(), column,
           fmt::format("'{}' must hold a forward and a backward pass", cell.substr(0, 64)));
  }

  void readAction(std::string_view text, int32_t column) {
    std::string_view rest = text;
    const auto chunk = takeNumber<int32_t>(rest);
    const bool isWait = rest.starts_with("WAIT_");
    rest.remove_prefix(isWait ? 5 : 0);
    auto word =
        std::ranges::find_if(kWords, [&](const Word &each) { return rest.starts_with(each.text); });
    bool isRead = chunk >= 0 && word != kWords.end() && !(isWait && word->action == Action::Pass);
    int64_t microbatch = 0;
    if (isRead) {
      rest.remove_prefix(word->text.size());
      if (word->action == Action::Pass || word->action == Action::Move)
        microbatch = takeNumber<int64_t>(rest);
    }
    if (!isRead || microbatch < 0 || !rest.empty())
      return fail(FileFault::Cell, order_.rows.size(), column,
                  fmt::format("'{}' is not a pass; write the chunk, then F, B, I or W, then the "
                              "microbatch, as in '2F0'",
                              text.substr(0, 64)));
    if (isWait)
      return;
    std::vector<StagePass> &row = order_.rows.back();
    items_.push_back({word->action,
                      word->pass,
                      {word->isSend, word->pass == PassKind::Forward, chunk, microbatch},
                      std::string(text),
                      order_.rows.size() - 1,
                      row.size(),
                      column});
    if (word->action != Action::Pass)
      return;
    row.push_back({{word->pass, chunk}, microbatch});
    order_.columns.back().push_back(column);
  }

  /// The chunks of each row.
  void place() {
    if (std::cmp_not_equal(order_.rows.size(), stages_))
      return fail(FileFault::Shape, 0, 0,
                  fmt::format("the schedule has {} rows, but the pipeline has {} stages",
                              order_.rows.size(), stages_));
    std::map<int32_t, std::vector<size_t>> passes; // by chunk: their number in each row
    for (const Item &item : items_)
      if (item.action == Action::Pass) {
        passes[item.end.chunk].resize(order_.rows.size());
        ++passes[item.end.chunk][item.row];
      }
    std::vector<int32_t> stageOf; // that of most passes
    for (const auto &[chunk, each] : passes) {
      if (std::cmp_not_equal(chunk, stageOf.size()))
        return fail(FileFault::Placement, 0, 0,
                    fmt::format("no row has a pass of chunk {}, but there are passes of chunk {}",
                                stageOf.size(), passes.rbegin()->first));
      stageOf.push_back(static_cast<int32_t>(std::ranges::max_element(each) - each.begin()));
    }
    for (size_t row = 0; row < order_.rows.size(); ++row)
      if (std::ranges::count(stageOf, static_cast<int32_t>(row)) == 0)
        return fail(FileFault::Missing, row + 1, 0, "no chunk has most of its passes in this row");
    order_.placement = Placement(std::move(stageOf));
  }

  void checkOrder() { fault_ = order_.check(); }

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
            left[end] = item.before;
        }
    /// Sends and receives, by both stages and direction.
    std::map<std::tuple<int32_t, int32_t, bool>, std::array<std::vector<const Item *>, 2>> queues;
    for (const Item &item : items_) {
      if (item.action != Action::Move)
        continue;
      const bool isSend = item.end.isSend;
      auto own = left.find(item.end);
      if (own == left.end() || std::cmp_not_equal(stageOf(item.end), item.row))
        return failAt(item, "moves no value between this stage and another one, or once more");
      if ((item.before <= own->second) == isSend)
        return failAt(item, isSend ? "comes before the pass that makes the value"
                                   : "comes after the pass that reads the value");
      left.erase(own);
      const End sent = isSend ? item.end : item.end.other();
      queues[{stageOf(sent), stageOf(sent.other()), sent.isForward}][isSend ? 0 : 1].push_back(
          &item);
    }
    if (!queues.empty() && !left.empty())
      return fail(
          FileFault::Transfer, static_cast<size_t>(stageOf(left.begin()->first)) + 1, 0,
          fmt::format("'{}' is missing; the file has other transfers", left.begin()->first.name()));
    for (const auto &[ends, both] : queues)
      for (size_t i = 0; i < both[0].size(); ++i)
        if (const Item &sent = *both[0][i]; both[1][i]->end != sent.end.other())
          return failAt(*both[1][i],
                        fmt::format("receives, but '{}' is sent first (row {}, column {})",
                                    sent.name, sent.row + 1, sent.column));
  }

  int32_t stageOf(const End &end) const { return order_.placement.stageOf(end.chunk); }
  void failAt(const Item &item, std::string_view problem) {
    fail(FileFault::Transfer, item.row + 1, item.column,
         fmt::format("'{}' {}", item.name, problem));
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
               std::cmp_not_equal(stageOf(item.end), item.row))
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

  std::string_view text_;
  int64_t stages_;
  PassOrder order_;
  std::vector<Item> items_; ///< in the order of rows and cells
  std::optional<OrderFault> fault_;
};

} // namespace

std::variant<PassOrder, OrderFault> readSchedule(std::string_view text, int64_t stages,
                                                 int64_t microbatches) {
  return Reader(text, stages, microbatches).run();
}

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
