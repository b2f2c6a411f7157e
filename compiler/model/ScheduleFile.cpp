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

/// An action of a cell that is not a pass.
struct Other {
  Action action;
  End end; ///< of transfers; the others have only a chunk
  std::string name;
  size_t row, before; ///< `before`: number of the row's passes before it
  int32_t column;
};

std::string_view trimmed(std::string_view text) {
  size_t begin = text.find_first_not_of(" \t\r"), end = text.find_last_not_of(" \t\r");
  return begin == std::string_view::npos ? text.substr(text.size())
                                         : text.substr(begin, end - begin + 1);
}

/// Where the first cell of a line ends: at a comma that is not in quotes, or with the line.
size_t cellEnd(std::string_view line) {
  size_t end = 0;
  for (bool isQuoted = false; end < line.size() && (isQuoted || line[end] != ','); ++end)
    isQuoted ^= line[end] == '"';
  return end;
}

class Reader {
public:
  Reader(std::string_view text, int64_t stages, int64_t microbatches)
      : text_(text), stages_(stages) {
    order_.microbatches = microbatches;
  }

  std::variant<PassOrder, OrderFault> run() {
    readRows();
    if (!fault_)
      place();
    if (!fault_)
      fault_ = order_.check();
    if (!fault_)
      checkTransfers();
    if (!fault_)
      checkUses();
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
      size_t end = std::min(left.find('\n'), left.size());
      std::string_view line = left.substr(0, end);
      left.remove_prefix(std::min(end + 1, left.size()));
      if (left.empty() && trimmed(line).empty())
        break;
      order_.rows.emplace_back(), order_.columns.emplace_back();
      int32_t column = 0;
      for (bool isLast = false; !isLast && !fault_;) {
        const size_t comma = cellEnd(line);
        std::string cell(line.substr(0, comma));
        std::erase(cell, '"');
        readCell(trimmed(cell), ++column);
        isLast = comma >= line.size();
        line.remove_prefix(std::min(comma + 1, line.size()));
      }
    }
  }

  void readCell(std::string_view cell, int32_t column) {
    constexpr std::string_view kPair = ")OVERLAP_F_B";
    if (cell.empty())
      return;
    if (!cell.starts_with('(') || !cell.ends_with(kPair))
      return readAction(cell, column);
    std::string_view inside = cell.substr(1, cell.size() - 1 - kPair.size());
    std::vector<StagePass> &row = order_.rows.back();
    size_t first = row.size(), middle = inside.find(';');
    if (middle != std::string_view::npos) {
      readAction(trimmed(inside.substr(0, middle)), column);
      readAction(trimmed(inside.substr(middle + 1)), column);
    }
    if (fault_)
      return;
    if (row.size() != first + 2 ||
        hasForward(row[first].part.kind) == hasForward(row[first + 1].part.kind) ||
        row[first].part.kind == PassKind::Weights || row[first + 1].part.kind == PassKind::Weights)
      return fail(FileFault::Cell, order_.rows.size(), column,
                  fmt::format("'{}' must hold a forward and a backward pass", cell.substr(0, 64)));
    row[first].isPair = true;
  }

  void readAction(std::string_view text, int32_t column) {
    int32_t chunk = -1;
    const char *end = text.data() + text.size();
    auto [at, error] = std::from_chars(text.data(), end, chunk);
    std::string_view rest(at, static_cast<size_t>(end - at));
    const bool isWait = rest.starts_with("WAIT_");
    rest.remove_prefix(isWait ? 5 : 0);
    auto word =
        std::ranges::find_if(kWords, [&](const Word &each) { return rest.starts_with(each.text); });
    int64_t microbatch = 0;
    bool isRead = error == std::errc() && chunk >= 0 && word != kWords.end() &&
                  !(isWait && word->action == Action::Pass);
    if (isRead) {
      rest.remove_prefix(word->text.size());
      bool isNumbered = word->action == Action::Pass || word->action == Action::Move;
      auto [behind, problem] = std::from_chars(rest.data(), end, microbatch);
      isRead =
          isNumbered ? problem == std::errc() && behind == end && microbatch >= 0 : rest.empty();
    }
    if (!isRead)
      return fail(FileFault::Cell, order_.rows.size(), column,
                  fmt::format("'{}' is not a pass; write the chunk, then F, B, I or W, then the "
                              "microbatch, as in '2F0'",
                              text.substr(0, 64)));
    std::vector<StagePass> &row = order_.rows.back();
    if (word->action == Action::Pass) {
      row.push_back({{word->pass, chunk}, microbatch});
      order_.columns.back().push_back(column);
    } else if (!isWait) {
      End moved{word->isSend, word->pass == PassKind::Forward, chunk, microbatch};
      others_.push_back(
          {word->action, moved, std::string(text), order_.rows.size() - 1, row.size(), column});
    }
  }

  /// The chunks of each row.
  void place() {
    if (std::cmp_not_equal(order_.rows.size(), stages_))
      return fail(FileFault::Shape, 0, 0,
                  fmt::format("the schedule has {} rows, but the pipeline has {} stages",
                              order_.rows.size(), stages_));
    std::map<int32_t, std::vector<size_t>> passes; // by chunk: their number in each row
    for (size_t row = 0; row < order_.rows.size(); ++row)
      for (const StagePass &pass : order_.rows[row]) {
        passes[pass.part.chunk].resize(order_.rows.size());
        ++passes[pass.part.chunk][row];
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

  /// Transfers of a file must be those that its passes need, after the pass that makes the value
  /// and before the one that reads it, and in one order at both ends.
  void checkTransfers() {
    using Place = std::pair<size_t, size_t>; // row and pass
    std::map<End, Place> left;               // ends that passes need
    for (size_t row = 0; row < order_.rows.size(); ++row)
      for (size_t i = 0; i < order_.rows[row].size(); ++i)
        for (bool isForward : {true, false})
          for (bool isSend : {true, false}) {
            const auto &[part, microbatch, isPair] = order_.rows[row][i];
            const End end{isSend, isForward, part.chunk, microbatch};
            if ((isForward ? hasForward(part.kind) : hasInputs(part.kind)) &&
                order_.placement.areApart(part.chunk, end.other().chunk))
              left[end] = {row, i};
          }
    /// Sends and receives, by both stages and direction.
    std::map<std::tuple<size_t, size_t, bool>, std::array<std::vector<const Other *>, 2>> queues;
    for (const Other &other : others_) {
      if (other.action != Action::Move)
        continue;
      const auto [isSend, isForward, chunk, microbatch] = other.end;
      auto own = left.find(other.end);
      if (own == left.end() || own->second.first != other.row)
        return failAt(other, "moves no value between this stage and another one, or once more");
      if ((other.before <= own->second.second) == isSend)
        return failAt(other, isSend ? "comes before the pass that makes the value"
                                    : "comes after the pass that reads the value");
      left.erase(own);
      auto there = static_cast<size_t>(order_.placement.stageOf(other.end.other().chunk));
      queues[{isSend ? other.row : there, isSend ? there : other.row, isForward}][isSend ? 0 : 1]
          .push_back(&other);
    }
    if (!queues.empty() && !left.empty())
      return fail(
          FileFault::Transfer, left.begin()->second.first + 1, 0,
          fmt::format("'{}' is missing; the file has other transfers", left.begin()->first.name()));
    for (const auto &[ends, both] : queues)
      for (size_t i = 0; i < both[0].size(); ++i)
        if (const Other &sent = *both[0][i]; both[1][i]->end != sent.end.other())
          return failAt(*both[1][i],
                        fmt::format("receives, but '{}' is sent first (row {}, column {})",
                                    sent.name, sent.row + 1, sent.column));
  }

  void failAt(const Other &other, std::string_view problem) {
    fail(FileFault::Transfer, other.row + 1, other.column,
         fmt::format("'{}' {}", other.name, problem));
  }

  /// If a file gathers the weights of a chunk, the chunk's passes must run while they are there. A
  /// reduction must follow all gradients of its chunk.
  void checkUses() {
    struct Use {
      bool isGathered = true; ///< also if the file does not say when
      const Other *reduced = nullptr;
    };
    std::map<int32_t, Use> uses; // by chunk
    for (const Other &other : others_)
      if (other.action == Action::Move)
        continue;
      else if (other.end.chunk >= order_.placement.chunks() ||
               std::cmp_not_equal(order_.placement.stageOf(other.end.chunk), other.row))
        return failAt(other, "is of a chunk that the stage does not hold");
      else
        uses[other.end.chunk].isGathered &= other.action == Action::Reduce;
    auto next = others_.begin();
    for (size_t row = 0; row < order_.rows.size(); ++row)
      for (size_t i = 0; i < order_.rows[row].size(); ++i) {
        for (; next != others_.end() && std::tie(next->row, next->before) <= std::tie(row, i);
             ++next)
          if (next->action == Action::Reduce)
            uses[next->end.chunk].reduced = &*next;
          else if (next->action != Action::Move)
            uses[next->end.chunk].isGathered = next->action == Action::Gather;
        const StagePass &pass = order_.rows[row][i];
        const Use &use = uses[pass.part.chunk];
        if (use.reduced != nullptr && pass.part.kind != PassKind::Forward)
          return failAt(*use.reduced,
                        fmt::format("comes before '{}', which adds to the gradient", nameOf(pass)));
        if (!use.isGathered)
          return fail(FileFault::Transfer, row + 1, order_.columnOf(row, i),
                      fmt::format("'{}' runs while the weights of chunk {} are not gathered",
                                  nameOf(pass), pass.part.chunk));
      }
  }

  std::string_view text_;
  int64_t stages_;
  PassOrder order_;
  std::vector<Other> others_;
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
  for (int64_t before = 1; before < column; ++before)
    line.remove_prefix(std::min(cellEnd(line) + 1, line.size()));
  return trimmed(column > 0 ? line.substr(0, cellEnd(line)) : line);
}

std::string writeSchedule(const PassOrder &order) {
  std::string text;
  for (const std::vector<StagePass> &row : order.rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += i == 0 ? "" : ",";
      text += row[i].isPair ? fmt::format("({};{})OVERLAP_F_B", nameOf(row[i]), nameOf(row[i + 1]))
                            : nameOf(row[i]);
      i += row[i].isPair ? 1 : 0;
    }
    text += "\n";
  }
  return text;
}

} // namespace shardc::model
