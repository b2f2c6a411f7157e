#include "Oracle.h"

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "Blocks.h"
#include "Contract.h"
#include "Execution.h"
#include "Members.h"
#include "Positions.h"
#include "Rivals.h"
#include "Runs.h"
#include "Terms.h"

namespace shardc::plan::oracle {
namespace {

class Execution {
public:
  Execution(const Plan &plan, const Members &members, Held held, uint64_t seed, Steps steps = {})
      : plan_(plan), members_(members), held_(held), steps_(steps), random_(seed) {
    for (int64_t r = 0; r < plan.worldSize(); ++r)
      addRank(r);
  }

  std::string run() {
    for (Rank &rank : ranks_)
      enter(rank);
    std::vector<Action> actions;
    while (problem_.empty()) {
      actions.clear();
      for (Rank &rank : ranks_)
        for (Lane *lane : {&rank.main, &rank.background})
          addActions(rank, *lane, actions);
      if (actions.empty())
        break;
      perform(choose(actions));
    }
    for (const Rank &rank : ranks_)
      if (problem_.empty() && rank.at < rank.runs.size())
        problem_ = fmt::format("rank {} is stuck", rank.index);
    return problem_;
  }

private:
  void addRank(int64_t index) {
    Rank &rank = ranks_.emplace_back();
    rank.index = index;
    rank.role = &plan_.roles[roleOf(plan_, index)];
    for (size_t arena = 0; arena < kArenaCount; ++arena)
      rank.memory[arena].assign(static_cast<size_t>(granules(rank.role->arenaBytes[arena])),
                                kNothing);
    for (const Cell &cell : rank.role->cells) {
      std::map<int64_t, Labels> &slots = rank.cells.emplace_back();
      rank.isSaved.push_back(isSaved(*rank.role, cell));
      if (!isOfHost(cell))
        continue;
      slots[0] = fresh(cell.type);
      write(rank, place(rank, cell.place), slots[0]);
    }
    loops_ = 0;
    expand(rank, rank.role->program, 0);
  }

  void expand(Rank &rank, const std::vector<ProgramNode> &nodes, int64_t step) {
    for (const ProgramNode &node : nodes) {
      if (node.kind == ProgramNode::Steps) {
        for (int64_t s = steps_.first; s <= std::min(node.count, steps_.last); ++s) {
          expand(rank, node.children, s);
          if (!rank.runs.empty())
            rank.runs.back().isMarked = rank.runs.back().isStepEnd = true;
          startBackground(rank, s);
        }
        ++loops_;
      } else if (node.kind == ProgramNode::Every) {
        if (!rank.runs.empty())
          rank.runs.back().isMarked = true;
        if (step % node.count == 0)
          expand(rank, node.children, step);
        if (!rank.runs.empty())
          rank.runs.back().isMarked = true;
      } else if (node.kind == ProgramNode::Start && steps_.isLoaded) {
        load(rank, rank.role->segments[node.segment]);
      } else {
        for (const OneRun &run : runsOf(*rank.role, node, nodes))
          rank.runs.push_back({run, {loops_, step}});
      }
    }
  }

  /// A load fills the saved cells of what 'start' would fill.
  void load(Rank &rank, const Segment &start) {
    for (const Segment::Boundary &out : start.outs) {
      const Cell &cell = rank.role->cells[out.cell];
      if (!plan_.blocks.empty() && !isSaved(*rank.role, cell))
        continue;
      rank.cells[out.cell][0] = fresh(cell.type);
      write(rank, place(rank, cell.place), rank.cells[out.cell][0]);
    }
  }

  /// Each step is followed by saves. Background segments run one after the other; which one is
  /// last, and so overlaps the next steps, changes with each step. In every other round, the last
  /// one is started without the segment that follows it and copies the staged bytes further.
  static void startBackground(Rank &rank, int64_t step) {
    const std::vector<Segment> &segments = rank.role->segments;
    std::vector<std::vector<uint32_t>> saves;
    auto copiesOn = [&](uint32_t s) { return segments[segments[s].before].before != kNone; };
    for (uint32_t s = 0; s < segments.size(); ++s)
      if (segments[s].before != kNone && !copiesOn(s))
        saves.push_back({s});
    for (uint32_t s = 0; s < segments.size(); ++s)
      for (std::vector<uint32_t> &save : saves)
        if (segments[s].before == save.front())
          save.push_back(s);
    for (size_t i = 0; i < saves.size(); ++i) {
      auto turn = static_cast<size_t>(step) + i;
      const std::vector<uint32_t> &save = saves[turn % saves.size()];
      bool isCut = i + 1 == saves.size() && turn / saves.size() % 2 == 1;
      for (size_t s = 0; s < (isCut ? 1 : save.size()); ++s)
        rank.runs.push_back({{save[s]}, {}, true});
    }
  }

  Labels fresh(const Type &type) {
    Labels labels(static_cast<size_t>(granules(type.bytes())));
    for (Label &label : labels)
      label = next_++;
    return labels;
  }

  Bytes place(const Rank &rank, const Place &place) const {
    return {place.arena, members_.positions().begin(place, rank.index, microbatch_) / kGranule};
  }
  Label &cellAt(Rank &rank, const Bytes &at, size_t i) {
    return rank.memory[static_cast<size_t>(at.arena)][static_cast<size_t>(at.begin) + i];
  }
  void write(Rank &rank, const Bytes &at, const Labels &labels) {
    for (size_t i = 0; i < labels.size(); ++i)
      cellAt(rank, at, i) = labels[i];
  }

  // ---- the start of a segment: what values must hold, as if ops ran one after the other ----

  /// Proceeds to the next run that executes ops, unless that must wait for a background segment.
  void enter(Rank &rank) {
    for (; rank.at < rank.runs.size(); ++rank.at) {
      const SegmentRun &run = rank.runs[rank.at];
      const Lane &beside = rank.background;
      if (beside.isActive &&
          (run.isBackground || run.run.segment == rank.role->segments[beside.segment].before))
        return;
      Lane &lane = run.isBackground ? rank.background : rank.main;
      lane.isActive = prepare(rank, run, lane);
      if (lane.isActive && !run.isBackground)
        return;
      readByHost(rank, run);
    }
  }

  void readByHost(Rank &rank, const SegmentRun &run) {
    for (size_t c = 0; c < rank.cells.size(); ++c) {
      const Cell &cell = rank.role->cells[c];
      if (!rank.isSaved[c] || !(run.isStepEnd || (run.isMarked && cell.kind == CellKind::Step)))
        continue;
      Bytes at = place(rank, cell.place);
      const Labels &labels = rank.cells[c][0];
      bool isThere = !labels.empty();
      for (size_t i = 0; i < labels.size(); ++i)
        isThere = isThere && cellAt(rank, at, i) == labels[i];
      if (!isThere && problem_.empty())
        problem_ = fmt::format("rank {}: the host reads '{}' and finds other bytes", rank.index,
                               cell.name);
    }
  }

  /// Prepares a run's tasks. Returns false if there is nothing to execute; contents still pass on.
  bool prepare(Rank &rank, const SegmentRun &run, Lane &lane) {
    const Segment &segment = rank.role->segments[run.run.segment];
    std::vector<Labels> values(segment.values.size());
    microbatch_ = run.run.microbatch;
    for (const Segment::Boundary &in : segment.ins)
      values[in.value] = contentOf(rank, in, segment.values[in.value]);
    lane.segment = run.run.segment;
    lane.tasks.clear();
    // The host reads staged copies when the segment that copies them to the host has ended too.
    bool copiesOn = run.isBackground && rank.role->segments[segment.before].before != kNone;
    std::erase_if(lane.outs,
                  [&](const Access &out) { return !copiesOn || out.at.arena != Arena::Host; });
    lane.heads.fill(0);
    for (std::vector<uint32_t> &queue : lane.queues)
      queue.clear();
    for (uint32_t i = 0; i < segment.ops.size(); ++i)
      addTask(rank, lane, run, i, values);
    std::vector<std::map<int64_t, Labels>> cells = rank.cells;
    for (const Segment::Boundary &out : segment.outs) {
      bool isThere = std::find(values[out.value].begin(), values[out.value].end(), kMissing) ==
                     values[out.value].end();
      // Only the host reads this cell.
      bool isForHost = run.isBackground && rank.role->cells[out.cell].arena == Arena::Host;
      cells[out.cell][slotOf(rank, out)] = isThere && !isForHost ? values[out.value] : Labels();
      if (run.isBackground)
        lane.outs.push_back({place(rank, segment.values[out.value].place), values[out.value], false,
                             &segment.values[out.value]});
    }
    rank.cells = std::move(cells);
    microbatch_ = 0;
    return std::any_of(lane.tasks.begin(), lane.tasks.end(),
                       [](const Task &task) { return opInfo(*task.op).traits != OpTraits::Alias; });
  }

  int64_t slotOf(const Rank &rank, const Segment::Boundary &boundary) const {
    return slotFor(rank.role->cells[boundary.cell].slots, microbatch_ + boundary.shift);
  }

  Labels contentOf(const Rank &rank, const Segment::Boundary &in, const Value &value) const {
    auto found = rank.cells[in.cell].find(slotOf(rank, in));
    bool isThere = found != rank.cells[in.cell].end() && !found->second.empty();
    return isThere ? found->second : missing(value);
  }

  static Labels missing(const Value &value) {
    return Labels(static_cast<size_t>(granules(value.type.bytes())), kMissing);
  }

  void addTask(Rank &rank, Lane &lane, const SegmentRun &run, uint32_t index,
               std::vector<Labels> &values) {
    const Segment &segment = rank.role->segments[run.run.segment];
    const Variant variant = run.run.variant();
    const Op &op = segment.ops[index];
    bool isAlias = opInfo(op).traits == OpTraits::Alias;
    Task &task = lane.tasks.emplace_back();
    task.op = &op;
    task.index = index;
    task.isBackground = run.isBackground;
    task.executes = !isAlias && holds(op.pred, variant);
    task.hasEnded = isAlias;
    if (!isAlias)
      lane.queues[static_cast<size_t>(op.stream)].push_back(index);
    if (op.kind == OpKind::View)
      values[op.results[0]] = slice(rank, segment, op, values);
    else if (op.kind == OpKind::Pack)
      values[op.results[0]] = whole(segment, op, values);
    else if (task.executes)
      addAccesses(rank, segment, task, variant, values);
    else
      leaveOut(segment, op, values);
  }

  Labels slice(const Rank &rank, const Segment &segment, const Op &op,
               const std::vector<Labels> &values) const {
    const Type &type = segment.values[op.results[0]].type;
    int64_t element = members_.positions().begin(op, rank.index);
    int64_t begin = element * dtypeBytes(type.dtype) / kGranule;
    const Labels &from = values[op.operands[0]];
    return Labels(from.begin() + begin, from.begin() + begin + granules(type.bytes()));
  }

  Labels whole(const Segment &segment, const Op &op, const std::vector<Labels> &values) const {
    const Type &type = segment.values[op.results[0]].type;
    Labels labels(static_cast<size_t>(granules(type.bytes())), kPadding);
    size_t part = 0;
    std::vector<int64_t> sizes;
    for (ValueId operand : op.operands)
      sizes.push_back(segment.values[operand].type.numel());
    for (auto [offset, numel] : partsOfPack(plan_, op, sizes)) {
      const Labels &from = values[op.operands[part++]];
      std::copy(from.begin(), from.end(),
                labels.begin() + offset * dtypeBytes(type.dtype) / kGranule);
    }
    return labels;
  }

  static void leaveOut(const Segment &segment, const Op &op, std::vector<Labels> &values) {
    for (ValueId result : op.results)
      values[result] = missing(segment.values[result]);
    for (const Tie &tie : op.ties)
      if (tie.kind == Tie::Else)
        values[op.results[tie.result]] = values[tie.value];
  }

  void addAccesses(const Rank &rank, const Segment &segment, Task &task, Variant variant,
                   std::vector<Labels> &values) {
    const Op &op = *task.op;
    const OpInfo &info = opInfo(op);
    auto read = [&](ValueId id, bool isTaken) {
      const Value &value = segment.values[id];
      task.reads.push_back({place(rank, value.place), values[id], isTaken, &value});
    };
    for (size_t i = 0; i < op.operands.size(); ++i)
      read(op.operands[i], std::find(info.inPlace.begin(), info.inPlace.end(),
                                     static_cast<int8_t>(i)) != info.inPlace.end());
    for (const Tie &tie : op.ties)
      if (tie.kind == Tie::Acc && holds(tie.pred, variant))
        read(tie.value, true);
    for (ValueId result : op.results) {
      const Value &value = segment.values[result];
      values[result] = fresh(value.type);
      task.writes.push_back({place(rank, value.place), values[result], false, &value});
    }
    if (op.kind == OpKind::AllGather)
      keepOwnPart(rank, segment, task, values);
  }

  /// A gather into a buffer that already contains this rank's part does not write that part.
  void keepOwnPart(const Rank &rank, const Segment &segment, Task &task,
                   std::vector<Labels> &values) {
    Access &shard = task.reads[0], &full = task.writes[0];
    int64_t bytes = segment.values[task.op->operands[0]].type.bytes();
    int64_t own = positionIn(task.op->group, rank.index) * bytes;
    bool isInside = shard.at.arena == full.at.arena && own % kGranule == 0 &&
                    bytes % kGranule == 0 && shard.at.begin == full.at.begin + own / kGranule;
    if (!isInside)
      return;
    Labels &labels = values[task.op->results[0]];
    std::copy(shard.labels.begin(), shard.labels.end(), labels.begin() + own / kGranule);
    Access before = full, behind = full;
    before.labels.resize(static_cast<size_t>(own / kGranule));
    int64_t rest = (own + bytes) / kGranule;
    behind.at.begin += rest;
    behind.labels.erase(behind.labels.begin(), behind.labels.begin() + rest);
    task.writes = {before, behind};
  }

  int64_t positionIn(int16_t group, int64_t rank) const {
    std::vector<int64_t> coordinates = coordinatesOf(plan_, rank);
    int64_t position = 0;
    for (uint16_t axis : plan_.groups[static_cast<size_t>(group)].axes)
      position = position * plan_.mesh[axis].size + coordinates[axis];
    return position;
  }

  // ---- schedule ----

  bool isCollective(const Task &task) const {
    return opInfo(*task.op).traits == OpTraits::Collective;
  }

  struct Issue {
    Rank *rank;
    Task *task;
    size_t run; ///< index in the rank's program
  };
  using Communicator = std::pair<int16_t, ChannelId>;

  std::vector<Issue> &issues(int64_t rank, const Task &task) {
    return issued_[{rank, {task.op->group, task.op->channel}}];
  }

  std::vector<int64_t> membersOfTask(const Rank &rank, const Task &task) const {
    return membersOf(plan_, *task.op, members_.of(rank.index, task.op->group), rank.index);
  }

  /// Whether the task is first on its communicator, and all members have issued an op there.
  bool canMeet(Rank &rank, Task &task) {
    std::vector<Issue> &mine = issues(rank.index, task);
    if (mine.empty() || mine.front().task != &task)
      return false;
    std::vector<int64_t> members = membersOfTask(rank, task);
    return !members.empty() && std::ranges::none_of(members, [&](int64_t member) {
      return issues(member, task).empty();
    });
  }

  void addActions(Rank &rank, Lane &lane, std::vector<Action> &actions) {
    if (!lane.isActive)
      return;
    for (size_t s = 0; s < kStreamsMax; ++s) {
      if (lane.heads[s] >= lane.queues[s].size())
        continue;
      Task &task = lane.tasks[lane.queues[s][lane.heads[s]]];
      bool isReady = std::all_of(task.op->waits.begin(), task.op->waits.end(),
                                 [&](uint32_t wait) { return lane.tasks[wait].hasEnded; });
      if (!isReady)
        continue;
      if (!task.hasStarted)
        actions.push_back({&rank, &task, Action::Start});
      else if (!isCollective(task) || task.hasMet)
        actions.push_back({&rank, &task, Action::End});
      else if (canMeet(rank, task))
        actions.push_back({&rank, &task, Action::Meet});
    }
  }

  bool isOfHeldOp(const Action &action) const {
    return action.rank->index == held_.rank &&
           action.rank->laneOf(*action.task).segment == held_.segment &&
           action.task->index == held_.op;
  }
  bool isFreed(const Action &action) const {
    return held_.until != kNone && action.rank->laneOf(*action.task).tasks[held_.until].hasEnded;
  }

  Action choose(const std::vector<Action> &actions) {
    std::vector<const Action *> free;
    for (const Action &action : actions)
      if (!isOfHeldOp(action))
        free.push_back(&action);
      else if (isFreed(action))
        return action;
      else if (action.kind != (held_.isEnd ? Action::End : Action::Start))
        free.push_back(&action);
    if (free.empty())
      return actions[0];
    if (held_.rank < 0)
      return *free[random_() % free.size()];
    // Chooses by rank and task, so that all other ranks progress alike.
    return **std::min_element(free.begin(), free.end(), [](const Action *a, const Action *b) {
      return std::pair(a->rank->index, a->task->index) < std::pair(b->rank->index, b->task->index);
    });
  }

  void perform(const Action &action) {
    Task &task = *action.task;
    if (!task.executes)
      return finish(*action.rank, task);
    switch (action.kind) {
    case Action::Start:
      start(*action.rank, task);
      if (isCollective(task))
        issues(action.rank->index, task).push_back({action.rank, &task, action.rank->at});
      return;
    case Action::Meet:
      return meet(*action.rank, task);
    case Action::End:
      return end(*action.rank, task);
    }
  }

  /// All members meet in the collective. After this, each member may end at its own time.
  void meet(Rank &rank, Task &task) {
    std::vector<Issue> met;
    for (int64_t member : membersOfTask(rank, task)) {
      std::vector<Issue> &queue = issues(member, task);
      met.push_back(queue.front());
      queue.erase(queue.begin());
    }
    for (const Issue &one : met)
      for (const Issue &other : met)
        if (!isSame(*one.rank, *one.task, *other.rank, *other.task))
          problem_ = fmt::format("ranks {} and {} meet in different collectives", one.rank->index,
                                 other.rank->index);
        else if (one.rank->runs[one.run].part != other.rank->runs[other.run].part)
          problem_ = fmt::format("ranks {} and {} meet in different steps", one.rank->index,
                                 other.rank->index);
    for (const Issue &other : met)
      other.task->hasMet = true;
  }

  /// Ranks of one role must meet in the same op, others in ops of one form.
  bool isSame(const Rank &a, const Task &x, const Rank &b, const Task &y) const {
    bool isOfPair = isTransfer(*x.op) && &a != &b;
    if (a.role == b.role)
      return x.op == y.op && !isOfPair;
    bool isByRows = x.op->kind == OpKind::AllToAll && x.op->operands.size() == 2;
    auto alike = [&](ValueId mine, ValueId theirs) {
      const Type &s = a.role->segments[a.main.segment].values[mine].type;
      const Type &t = b.role->segments[b.main.segment].values[theirs].type;
      return s.numel() == t.numel() && s.dtype == t.dtype && (s == t || !isByRows);
    };
    if (isOfPair)
      return isTransfer(*y.op) && x.op->kind != y.op->kind && alike(givenBy(*x.op), givenBy(*y.op));
    return x.op->kind == y.op->kind &&
           x.op->getBool(AttrKey::average) == y.op->getBool(AttrKey::average) &&
           x.op->getInt(AttrKey::block) == y.op->getInt(AttrKey::block) &&
           std::ranges::equal(x.op->operands, y.op->operands, alike) &&
           alike(x.op->results[0], y.op->results[0]);
  }

  void check(Rank &rank, const Access &access, const Task &task) {
    for (size_t i = 0; i < access.labels.size(); ++i)
      if (access.labels[i] != kPadding && cellAt(rank, access.at, i) != access.labels[i] &&
          problem_.empty())
        problem_ = fmt::format("rank {}, op {} ({}) reads '{}' and finds other bytes", rank.index,
                               task.index, opInfo(*task.op).name, access.value->name);
  }

  /// Until its end, the op reads its operands, and its results are half written.
  void start(Rank &rank, Task &task) {
    task.hasStarted = true;
    for (const Access &read : task.reads)
      check(rank, read, task);
    Label unfinished = next_++;
    for (const Access &write : task.writes)
      for (size_t i = 0; i < write.labels.size(); ++i) {
        if (cellAt(rank, write.at, i) == unfinished && problem_.empty())
          problem_ = fmt::format("rank {}, op {}: two results overlap", rank.index, task.index);
        cellAt(rank, write.at, i) = unfinished;
      }
  }

  void end(Rank &rank, Task &task) {
    for (const Access &read : task.reads)
      if (!read.isTaken)
        check(rank, read, task);
    for (const Access &each : task.writes)
      write(rank, each.at, each.labels);
    finish(rank, task);
  }

  void finish(Rank &rank, Task &task) {
    Lane &lane = rank.laneOf(task);
    task.hasEnded = true;
    ++lane.heads[static_cast<size_t>(task.op->stream)];
    for (size_t s = 0; s < kStreamsMax; ++s)
      if (lane.heads[s] < lane.queues[s].size())
        return;
    lane.isActive = false;
    if (&lane == &rank.main)
      readByHost(rank, rank.runs[rank.at++]);
    else
      endBackground(rank);
    if (!rank.main.isActive)
      enter(rank);
  }

  /// At the end of a background segment, its cells must hold what the host will read.
  void endBackground(Rank &rank) {
    for (const Access &out : rank.background.outs)
      for (size_t i = 0; i < out.labels.size(); ++i)
        if (cellAt(rank, out.at, i) != out.labels[i] && problem_.empty())
          problem_ =
              fmt::format("rank {}: '{}' is not there at the end", rank.index, out.value->name);
  }

  const Plan &plan_;
  const Members &members_;
  Held held_;
  Steps steps_;
  std::mt19937_64 random_;
  int64_t microbatch_ = 0; ///< microbatch of the run whose tasks are prepared
  int loops_ = 0; ///< while a rank's program is expanded: number of loops before the current place
  std::vector<Rank> ranks_;
  std::map<std::pair<int64_t, Communicator>, std::vector<Issue>> issued_;
  Label next_ = kFirstFree;
  std::string problem_;
};

} // namespace

std::string findBreak(const Plan &plan, const Options &options) {
  if (std::string problem = findContractBreak(plan); !problem.empty())
    return problem;
  Members members(plan);
  for (uint64_t i = 0; i < static_cast<uint64_t>(std::max(1, options.randomOrders)); ++i) {
    if (std::string problem = Execution(plan, members, {}, options.seed + i).run();
        !problem.empty())
      return problem;
  }
  for (int64_t loop = longestLoop(plan), first = 1; first <= loop + 1; ++first)
    for (int64_t last = first - 1; last <= loop; ++last)
      for (bool isLoaded : {false, true})
        if (std::string problem =
                first > 1 && !isLoaded
                    ? std::string()
                    : Execution(plan, members, {}, options.seed, {first, last, isLoaded}).run();
            !problem.empty())
          return problem;
  // If a wrong read is possible, it happens in an order in which one of two unordered ops runs
  // first. Such orders come from holding back each op in turn, before its start and before its end,
  // and each of two ops that write the same bytes until the other one has ended.
  for (int64_t rank = 0; rank < plan.worldSize(); ++rank) {
    const Role &role = plan.roles[roleOf(plan, rank)];
    for (uint32_t s = 0; s < role.segments.size(); ++s) {
      std::vector<Held> all;
      for (uint32_t op = 0; op < role.segments[s].ops.size(); ++op)
        for (bool isEnd : {false, true})
          all.push_back({rank, s, op, isEnd});
      for (auto [op, other] : rivalsIn(role.segments[s], members.positions(), rank))
        all.push_back({rank, s, op, false, other});
      for (const Held &held : all)
        if (std::string problem = Execution(plan, members, held, options.seed).run();
            !problem.empty())
          return problem;
    }
  }
  return {};
}

} // namespace shardc::plan::oracle
