#include "compiler/model/ScheduleFile.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include <fmt/format.h>

namespace shardc::model {
namespace {

using FileFault = OrderFault::Kind;

/// What a cell may say besides passes.
enum class Action : uint8_t {
  Pass,
  SendForward,
  ReceiveForward,
  SendBackward,
  ReceiveBackward,
  Gather,
  Release,
  Reduce,
  Wait
};

struct Word {
  std::string_view text;
  Action action;
  PassKind pass = PassKind::Forward;
  bool hasMicrobatch = true;
};

/// Longer words come before those with which they begin.
constexpr std::array<Word, 15> kWords = {{
    {"WAIT_REDUCE_GRAD", Action::Wait, PassKind::Forward, false},
    {"WAIT_UNSHARD", Action::Wait, PassKind::Forward, false},
    {"WAIT_SEND_F", Action::Wait},
    {"WAIT_SEND_B", Action::Wait},
    {"REDUCE_GRAD", Action::Reduce, PassKind::Forward, false},
    {"UNSHARD", Action::Gather, PassKind::Forward, false},
    {"RESHARD", Action::Release, PassKind::Forward, false},
    {"SEND_F", Action::SendForward},
    {"RECV_F", Action::ReceiveForward},
    {"SEND_B", Action::SendBackward},
    {"RECV_B", Action::ReceiveBackward},
    {"F", Action::Pass, PassKind::Forward},
    {"B", Action::Pass, PassKind::Backward},
    {"I", Action::Pass, PassKind::Inputs},
    {"W", Action::Pass, PassKind::Weights},
}};

/// An action of a cell that is no pass.
struct Other {
  Action action;
  std::string name;
  int32_t chunk;
  int64_t microbatch;
  size_t row;
  int32_t column;
  size_t before; ///< number of the row's passes before it
};

std::string_view trimmed(std::string_view text) {
  size_t begin = text.find_first_not_of(" \t\r"), end = text.find_last_not_of(" \t\r");
  return begin == std::string_view::npos ? "" : text.substr(begin, end - begin + 1);
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
        size_t comma = 0;
        for (bool isQuoted = false; comma < line.size() && (isQuoted || line[comma] != ',');
             ++comma)
          isQuoted ^= line[comma] == '"';
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
    auto word =
        std::ranges::find_if(kWords, [&](const Word &each) { return rest.starts_with(each.text); });
    int64_t microbatch = 0;
    bool isRead = error == std::errc() && chunk >= 0 && word != kWords.end();
    if (isRead && word->hasMicrobatch) {
      auto [behind, problem] = std::from_chars(at + word->text.size(), end, microbatch);
      isRead = problem == std::errc() && behind == end && microbatch >= 0;
    } else if (isRead) {
      isRead = rest.size() == word->text.size();
    }
    if (!isRead)
      return fail(FileFault::Cell, order_.rows.size(), column,
                  fmt::format("'{}' is no pass; passes look like '2F0': chunk, F, B, I or W, "
                              "microbatch",
                              text.substr(0, 64)));
    if (word->action == Action::Pass) {
      order_.rows.back().push_back({{word->pass, chunk}, microbatch});
      order_.columns.back().push_back(column);
    } else if (word->action != Action::Wait) {
      others_.push_back({word->action, std::string(text), chunk, microbatch, order_.rows.size() - 1,
                         column, order_.rows.back().size()});
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
    std::map<int32_t, size_t> rowOf; // of most passes
    for (const auto &[chunk, each] : passes)
      rowOf[chunk] = static_cast<size_t>(std::ranges::max_element(each) - each.begin());
    for (size_t row = 0; row < order_.rows.size(); ++row)
      for (size_t i = 0; i < order_.rows[row].size(); ++i) {
        const StagePass &pass = order_.rows[row][i];
        if (size_t held = rowOf[pass.part.chunk]; held != row)
          return fail(FileFault::Placement, row + 1, order_.columnOf(row, i),
                      fmt::format("'{}' is of chunk {}, which stage {} holds, not stage {}",
                                  nameOf(pass), pass.part.chunk, held, row));
      }
    std::vector<int32_t> stageOf;
    for (auto [chunk, row] : rowOf) {
      if (std::cmp_not_equal(chunk, stageOf.size()))
        return fail(FileFault::Placement, 0, 0,
                    fmt::format("no row has a pass of chunk {}, but there are passes of chunk {}",
                                stageOf.size(), rowOf.rbegin()->first));
      stageOf.push_back(static_cast<int32_t>(row));
    }
    for (size_t row = 0; row < order_.rows.size(); ++row)
      if (order_.rows[row].empty())
        return fail(FileFault::Missing, row + 1, 0, "the row has no pass");
    order_.placement = Placement(std::move(stageOf));
  }

  struct Found {
    size_t row, pass;
  };
  std::optional<Found> find(int32_t chunk, int64_t microbatch, bool isForward) const {
    if (chunk < 0 || chunk >= order_.placement.chunks())
      return std::nullopt;
    auto row = static_cast<size_t>(order_.placement.stageOf(chunk));
    for (size_t i = 0; i < order_.rows[row].size(); ++i) {
      const StagePass &pass = order_.rows[row][i];
      if (pass.part.chunk == chunk && pass.microbatch == microbatch &&
          (isForward ? hasForward(pass.part.kind) : hasInputs(pass.part.kind)))
        return Found{row, i};
    }
    return std::nullopt;
  }

  /// Transfers of a file must be those that its passes need, after the pass that makes the value
  /// and before the one that reads it, and in one order at both ends.
  void checkTransfers() {
    std::set<std::tuple<Action, int32_t, int64_t>> given;
    /// Sends and receives, by both stages and direction.
    std::map<std::tuple<int32_t, int32_t, bool>, std::array<std::vector<const Other *>, 2>> queues;
    for (const Other &other : others_) {
      bool isForward =
          other.action == Action::SendForward || other.action == Action::ReceiveForward;
      bool isSend = other.action == Action::SendForward || other.action == Action::SendBackward;
      if (!isForward && !isSend && other.action != Action::ReceiveBackward)
        continue;
      int32_t neighbour = other.chunk + (isForward == isSend ? 1 : -1);
      std::optional<Found> own = find(other.chunk, other.microbatch, isForward);
      if (!own || !order_.placement.areApart(other.chunk, neighbour))
        return failAt(other, "moves no value between stages");
      if (own->row != other.row)
        return failAt(other,
                      fmt::format("is of chunk {}, which stage {} holds", other.chunk, own->row));
      if (isSend ? other.before <= own->pass : other.before > own->pass)
        return failAt(other, isSend ? "comes before the pass that makes the value"
                                    : "comes after the pass that reads the value");
      if (!given.emplace(other.action, other.chunk, other.microbatch).second)
        return failAt(other, "is there twice");
      int32_t from = order_.placement.stageOf(isSend ? other.chunk : neighbour);
      int32_t to = order_.placement.stageOf(isSend ? neighbour : other.chunk);
      queues[{from, to, isForward}][isSend ? 0 : 1].push_back(&other);
    }
    if (given.empty())
      return;
    checkAllGiven(given);
    for (const auto &[ends, both] : queues)
      for (size_t i = 0; i < std::min(both[0].size(), both[1].size()) && !fault_; ++i) {
        const Other &sent = *both[0][i], &got = *both[1][i];
        int32_t taker = sent.chunk + (std::get<2>(ends) ? 1 : -1);
        if (got.chunk != taker || got.microbatch != sent.microbatch)
          failAt(got, fmt::format("receives, but '{}' is sent first (row {}, column {})", sent.name,
                                  sent.row + 1, sent.column));
      }
  }

  void checkAllGiven(const std::set<std::tuple<Action, int32_t, int64_t>> &given) {
    for (int32_t chunk = 0; chunk < order_.placement.chunks(); ++chunk)
      for (int64_t i = 0; i < order_.microbatches; ++i)
        for (Action action : {Action::SendForward, Action::ReceiveForward, Action::SendBackward,
                              Action::ReceiveBackward}) {
          bool isUp = action == Action::SendForward || action == Action::ReceiveBackward;
          if (order_.placement.areApart(chunk, chunk + (isUp ? 1 : -1)) &&
              !given.contains({action, chunk, i})) {
            auto word = std::ranges::find(kWords, action, &Word::action);
            return fail(FileFault::Transfer,
                        static_cast<size_t>(order_.placement.stageOf(chunk)) + 1, 0,
                        fmt::format("'{}{}{}' is missing; the file has other transfers", chunk,
                                    word->text, i));
          }
        }
  }

  void failAt(const Other &other, std::string_view problem) {
    fail(FileFault::Transfer, other.row + 1, other.column,
         fmt::format("'{}' {}", other.name, problem));
  }

  /// If a file gathers the weights of a chunk, the chunk's passes must run while they are there. A
  /// reduction must follow all gradients of its chunk.
  void checkUses() {
    std::map<int32_t, std::vector<const Other *>> gathers; // and releases, by chunk, in order
    for (const Other &other : others_) {
      bool isReduction = other.action == Action::Reduce;
      if (!isReduction && other.action != Action::Gather && other.action != Action::Release)
        continue;
      if (other.chunk >= order_.placement.chunks() ||
          std::cmp_not_equal(order_.placement.stageOf(other.chunk), other.row))
        return failAt(other, "is of a chunk that the stage does not hold");
      if (!isReduction)
        gathers[other.chunk].push_back(&other);
      const std::vector<StagePass> &row = order_.rows[other.row];
      for (size_t i = other.before; isReduction && i < row.size(); ++i)
        if (row[i].part.chunk == other.chunk && row[i].part.kind != PassKind::Forward)
          return failAt(
              other, fmt::format("comes before '{}', which adds to the gradient", nameOf(row[i])));
    }
    for (size_t row = 0; row < order_.rows.size(); ++row)
      for (size_t i = 0; i < order_.rows[row].size(); ++i) {
        const StagePass &pass = order_.rows[row][i];
        auto own = gathers.find(pass.part.chunk);
        if (own == gathers.end())
          continue;
        bool isGathered = false;
        for (const Other *other : own->second)
          if (other->before <= i)
            isGathered = other->action == Action::Gather;
        if (!isGathered)
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
