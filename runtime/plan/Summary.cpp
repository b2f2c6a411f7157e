// Adds up the resources of a plan: buffers by their live ranges, traffic of collectives, and
// executions of segments.
#include "runtime/plan/Summary.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>
#include <tuple>

#include <fmt/format.h>

namespace shardc::plan {
namespace {

/// Values of a segment that share one buffer, joined by ties, in-place operands, views and packs.
class Buffers {
public:
  explicit Buffers(const Segment &segment) : parent_(segment.values.size()) {
    std::iota(parent_.begin(), parent_.end(), 0u);
    for (const Op &op : segment.ops)
      joinOp(op);
  }

  ValueId find(ValueId value) {
    while (parent_[value] != value)
      value = parent_[value] = parent_[parent_[value]];
    return value;
  }

private:
  void join(ValueId a, ValueId b) { parent_[find(a)] = find(b); }

  void joinOp(const Op &op) {
    const OpInfo &info = opInfo(op);
    if (info.traits == OpTraits::Alias)
      for (ValueId operand : op.operands)
        join(operand, op.results[0]);
    for (size_t r = 0; r < op.results.size(); ++r)
      if (int operand = inPlaceOperand(op, r);
          operand >= 0 && static_cast<size_t>(operand) < op.operands.size())
        join(op.results[r], op.operands[static_cast<size_t>(operand)]);
    for (const Tie &tie : op.ties)
      if (tie.result < op.results.size())
        join(op.results[tie.result], tie.value);
  }

  std::vector<ValueId> parent_;
};

/// Places of cells, for lookup.
using CellPlaces = std::set<std::tuple<Arena, int64_t, int64_t>>;

CellPlaces placesOf(const Role &role) {
  CellPlaces places;
  for (const Cell &cell : role.cells)
    if (cell.place.placed)
      places.emplace(cell.arena, cell.place.offset, cell.type.bytes());
  return places;
}

/// True for a value that needs no additional bytes: it is a cell's content, or a rank's own slot in
/// a complete block.
bool isWithinCell(const CellPlaces &cells, const Value &value) {
  if (value.def == kNone || value.place.coef != 0 || value.place.slots > 1)
    return true;
  return value.place.placed &&
         cells.count({value.place.arena, value.place.offset, value.type.bytes()}) > 0;
}

/// The span of each buffer: from the first op that defines a value in it to the last op that uses
/// one. Buffers in cells exist outside of the segment too.
std::vector<BufferLife> spansOf(const CellPlaces &cells, const Segment &segment) {
  Buffers buffers(segment);
  std::vector<BufferLife> spans(segment.values.size());
  for (ValueId id = 0; id < segment.values.size(); ++id) {
    const Value &value = segment.values[id];
    BufferLife &span = spans[buffers.find(id)];
    if (value.type.bytes() > span.bytes) {
      span.value = id;
      span.bytes = value.type.bytes();
      span.purpose = value.purpose;
    }
    span.isCell = span.isCell || isWithinCell(cells, value);
    if (value.def != kNone) {
      span.first = std::min(span.first, value.def);
      span.last = std::max(span.last, value.def);
    }
  }
  for (uint32_t i = 0; i < segment.ops.size(); ++i)
    for (ValueId operand : segment.ops[i].operands) {
      BufferLife &span = spans[buffers.find(operand)];
      span.last = std::max(span.last, i);
    }
  for (const Segment::Boundary &out : segment.outs)
    spans[buffers.find(out.value)].isCell = true;
  return spans;
}

/// Replaces the peak in `memory` by that of the segment if the segment's is larger.
void addPeak(const CellPlaces &cells, const Segment &segment, uint32_t segmentIndex,
             MemoryByPurpose &memory) {
  using Bytes = std::array<int64_t, kPurposeCount>;
  std::vector<Bytes> changes(segment.ops.size() + 1); // change of live bytes when the op starts
  for (const BufferLife &span : spansOf(cells, segment)) {
    if (span.isCell || span.first == kNone)
      continue;
    changes[span.first][static_cast<size_t>(span.purpose)] += span.bytes;
    changes[span.last + 1][static_cast<size_t>(span.purpose)] -= span.bytes;
  }
  Bytes now{};
  int64_t best = memory.transientTotal();
  for (uint32_t op = 0; op < segment.ops.size(); ++op) {
    int64_t sum = 0;
    for (size_t p = 0; p < now.size(); ++p)
      sum += now[p] += changes[op][p];
    if (sum <= best)
      continue;
    best = sum;
    memory.transient = now;
    memory.peakSegment = segmentIndex;
    memory.peakOp = op;
  }
}

/// Adds bytes · times to the sum. The result saturates at the largest integer, which only malformed
/// plans reach.
int64_t addTimes(int64_t sum, int64_t bytes, int64_t times) {
  int64_t product = 0;
  if (__builtin_mul_overflow(bytes, times, &product) || __builtin_add_overflow(sum, product, &sum))
    return INT64_MAX;
  return sum;
}

/// The bytes that one member sends for a gathered or reduced buffer of `full` bytes.
int64_t sentBytes(CollectiveKind kind, int64_t full, int64_t members) {
  int64_t others = full / members * (members - 1);
  if (hasParts(kind))
    return others;
  if (kind == CollectiveKind::Recv || (kind == CollectiveKind::Shift && members <= 1))
    return 0;
  bool isReduced = kind == CollectiveKind::AllReduce || kind == CollectiveKind::AllReduceMax;
  return isReduced ? 2 * others : full; // a reduce-scatter, then an all-gather
}

void addOpTraffic(const Plan &plan, const Segment &segment, const Op &op, int64_t times,
                  std::vector<TrafficRow> &rows) {
  const std::optional<CollectiveInfo> &collective = opInfo(op).collective;
  bool isGiven = collective && isPointToPoint(collective->kind);
  if (!collective || op.group < 0 || times == 0 ||
      (!isGiven && (op.operands.empty() || op.results.empty())))
    return;
  const Type &operand = segment.values[isGiven ? wholeOf(op) : op.operands[0]].type;
  int64_t members = plan.membersOf(op);
  int64_t full = segment.values[wholeOf(op)].type.bytes();
  int64_t sent = sentBytes(collective->kind, full, members);
  auto row = std::find_if(rows.begin(), rows.end(), [&](const TrafficRow &r) {
    return r.kind == op.kind && r.group == op.group && r.dtype == operand.dtype;
  });
  if (row == rows.end())
    row = rows.insert(rows.end(), TrafficRow{op.kind, op.group, operand.dtype});
  row->calls = addTimes(row->calls, 1, times);
  row->fullBytes = addTimes(row->fullBytes, full, times);
  row->sentBytes = addTimes(row->sentBytes, sent, times);
}

/// The segments that the nodes run, in order of their first run.
std::vector<size_t> segmentsInOrder(const std::vector<ProgramNode> &nodes) {
  std::vector<size_t> segments;
  auto add = [&](size_t segment) {
    if (std::ranges::find(segments, segment) == segments.end())
      segments.push_back(segment);
  };
  for (const ProgramNode &node : nodes) {
    if (node.kind == ProgramNode::Loop)
      for (size_t segment : segmentsInOrder(node.children))
        add(segment);
    else if (node.kind == ProgramNode::Run)
      add(node.segment);
  }
  return segments;
}

const std::vector<ProgramNode> *stepsOf(const Role &role) {
  for (const ProgramNode &node : role.program)
    if (node.kind == ProgramNode::Steps)
      return &node.children;
  return nullptr;
}

/// Makes user text safe for one comment line: it must not end the comment or send control
/// characters to a terminal.
std::string oneLine(std::string_view text) {
  std::string out(text);
  std::replace_if(
      out.begin(), out.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, ' ');
  return out;
}

/// Collects comment lines.
class Page {
public:
  template <typename... Args> void line(fmt::format_string<Args...> text, Args &&...args) {
    out_ += "// " + oneLine(fmt::format(text, std::forward<Args>(args)...));
    while (out_.back() == ' ')
      out_.pop_back();
    out_ += '\n';
  }
  std::string take() { return std::move(out_); }

private:
  std::string out_;
};

void describeJob(Page &page, const Plan &plan) {
  std::string strategy = plan.job.text(JobField::ddp_dataParallelShardingStrategy);
  page.line("{}", plan.name);
  if (!strategy.empty())
    page.line("strategy   {}", strategy);
  std::string mesh;
  for (const MeshAxis &axis : plan.mesh)
    mesh += fmt::format("{}{} = {}", mesh.empty() ? "" : ", ", axis.name, axis.size);
  page.line("mesh       {}; {} ranks", mesh, plan.worldSize());
  int64_t elements = 0, tensors = 0;
  for (const Param &param : plan.params) {
    elements += param.wholeType().numel();
    tensors += param.tensorCount();
  }
  page.line("parameters {} in {} tensors, {} units", elements, tensors, plan.units.size());
}

void describeMemory(Page &page, const Plan &plan, const Role &role) {
  MemoryByPurpose memory = memoryByPurpose(role);
  page.line("  memory per rank           kept           at the peak of a segment         both");
  for (int p = 0; p < kPurposeCount; ++p) {
    auto i = static_cast<size_t>(p);
    if (memory.cells[i] != 0 || memory.transient[i] != 0)
      page.line("    {:<16} {:>16}   {:>16}   {:>10}", toString(static_cast<Purpose>(p)),
                memory.cells[i], memory.transient[i],
                formatBytes(memory.cells[i] + memory.transient[i]));
  }
  page.line("    {:<16} {:>16}   {:>16}   {:>10}", "sum", memory.cellsTotal(),
            memory.transientTotal(), formatBytes(memory.cellsTotal() + memory.transientTotal()));
  if (memory.peakSegment != kNone)
    page.line("    peak in segment {} at op {}", role.segments[memory.peakSegment].name,
              memory.peakOp);
  if (plan.level != Level::Placed)
    return;
  int64_t device = 0;
  for (Arena arena : {Arena::State, Arena::Work, Arena::Sym, Arena::Host}) {
    int64_t bytes = role.arenaBytes[static_cast<size_t>(arena)];
    device += arena == Arena::Host ? 0 : bytes;
    page.line("    arena {:<10} {:>16}   {:>16}", toString(arena), bytes, formatBytes(bytes));
  }
  const auto &derived = plan.job.derived;
  bool isPredicted = derived.memoryContextBytes > 0 && role.besideBytes.front() >= 0;
  if (isPredicted) {
    int64_t beside = std::accumulate(role.besideBytes.begin(), role.besideBytes.end(),
                                     derived.memoryContextBytes + derived.memoryLibrariesBytes);
    page.line("    {:<16} {:>16}   {:>16}", "beside arenas", beside, formatBytes(beside));
    device += beside;
  }
  if (plan.deviceBytes > 0)
    page.line("    {} of {} on the device", formatBytes(device), formatBytes(plan.deviceBytes));
}

void describeRole(Page &page, const Plan &plan, const Role &role) {
  page.line("role {}: {}", role.name, role.why);
  describeMemory(page, plan, role);
  page.line("  traffic of a step            calls        full bytes        sent bytes");
  for (const TrafficRow &row : trafficOfStep(plan, role))
    page.line("    {:<15} {:<5} {:<3} {:>6}  {:>16}  {:>16}   {:>10}", opInfo(row.kind).name,
              plan.groups[static_cast<size_t>(row.group)].name, dtypeName(row.dtype), row.calls,
              row.fullBytes, row.sentBytes, formatBytes(row.sentBytes));
  for (const Segment &segment : role.segments) {
    std::array<int64_t, kStreamsMax> ops{};
    for (const Op &op : segment.ops)
      ++ops[op.stream];
    std::string streams;
    for (size_t s = 0; s < plan.streams.size() && s < ops.size(); ++s)
      if (ops[s] > 0)
        streams += fmt::format(", {} {}", plan.streams[s].name, ops[s]);
    std::string kind = segment.body ? "; a microbatch's body" : "";
    if (segment.before < role.segments.size())
      kind += fmt::format("; beside all up to {}", role.segments[segment.before].name);
    page.line("  segment {:<10} {:>6} ops{}{}", segment.name, segment.ops.size(), streams, kind);
  }
}

} // namespace

std::vector<BufferLife> bufferLives(const Role &role, const Segment &segment) {
  std::vector<BufferLife> ofRoots = spansOf(placesOf(role), segment);
  Buffers buffers(segment);
  std::vector<BufferLife> lives;
  for (ValueId id = 0; id < segment.values.size(); ++id)
    lives.push_back(ofRoots[buffers.find(id)]);
  return lives;
}

std::vector<bool> nestedCells(const Role &role) {
  std::vector<uint32_t> order(role.cells.size());
  std::iota(order.begin(), order.end(), 0u);
  auto key = [&](uint32_t c) {
    const Cell &cell = role.cells[c];
    return std::tuple(cell.place.arena, cell.place.offset, -cell.bytes(), c);
  };
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return key(a) < key(b); });
  std::vector<bool> isNested(role.cells.size());
  std::array<int64_t, kArenaCount> end{}; // end of all earlier cells, which begin no later
  for (uint32_t c : order) {
    const Cell &cell = role.cells[c];
    if (!cell.place.placed)
      continue;
    int64_t &last = end[static_cast<size_t>(cell.place.arena)];
    int64_t mine = cell.place.offset + cell.bytes();
    isNested[c] = mine <= last;
    last = std::max(last, mine);
  }
  return isNested;
}

int64_t MemoryByPurpose::cellsTotal() const {
  return std::accumulate(cells.begin(), cells.end(), int64_t{0});
}

int64_t MemoryByPurpose::transientTotal() const {
  return std::accumulate(transient.begin(), transient.end(), int64_t{0});
}

/// Cells inside other cells count once.
MemoryByPurpose memoryByPurpose(const Role &role) {
  MemoryByPurpose memory;
  std::vector<bool> isNested = nestedCells(role);
  for (size_t c = 0; c < role.cells.size(); ++c)
    if (!isNested[c])
      memory.cells[static_cast<size_t>(role.cells[c].purpose)] +=
          role.cells[c].slots * role.cells[c].type.bytes();
  CellPlaces places = placesOf(role);
  for (uint32_t i = 0; i < role.segments.size(); ++i)
    addPeak(places, role.segments[i], i, memory);
  return memory;
}

/// The number of microbatches below `count` that the predicate contains.
int64_t timesWithin(const Pred &pred, int64_t count) {
  int64_t behind = std::min(pred.end(), count - 1) - pred.begin, width = pred.last - pred.begin + 1;
  if (behind < 0)
    return 0;
  int64_t periods = pred.period > 0 ? behind / pred.period : 0;
  return periods * width + std::min(behind - periods * pred.period + 1, width);
}

int64_t timesOf(const Pred &pred, int64_t count) {
  switch (pred.kind) {
  case Pred::Kind::Always:
    return count;
  case Pred::Kind::First:
  case Pred::Kind::Last:
    return std::min<int64_t>(count, 1);
  case Pred::Kind::NotFirst:
  case Pred::Kind::NotLast:
    return std::max<int64_t>(count - 1, 0);
  case Pred::Kind::Within:
    return timesWithin(pred, count);
  case Pred::Kind::NotWithin:
    return count - timesWithin(pred, count);
  }
  return count;
}

std::vector<int64_t> runsOf(const Role &role, const std::vector<ProgramNode> &nodes) {
  std::vector<int64_t> runs(role.segments.size());
  for (const ProgramNode &node : nodes) {
    if (node.kind == ProgramNode::Loop)
      for (std::vector<int64_t> inside = runsOf(role, node.children); int64_t & count : runs)
        count = addTimes(count, inside[static_cast<size_t>(&count - runs.data())], node.count);
    else if (node.kind == ProgramNode::Run)
      runs[node.segment] = addTimes(runs[node.segment], 1, node.count);
  }
  return runs;
}

/// Counts each collective as often as a step executes it: per microbatch in bodies, as far as its
/// predicate holds.
std::vector<TrafficRow> trafficOfStep(const Plan &plan, const Role &role) {
  std::vector<TrafficRow> rows;
  const std::vector<ProgramNode> *steps = stepsOf(role);
  if (steps == nullptr)
    return rows;
  std::vector<int64_t> runs = runsOf(role, *steps);
  for (size_t s : segmentsInOrder(*steps)) {
    const Segment &segment = role.segments[s];
    for (const Op &op : segment.ops)
      addOpTraffic(plan, segment, op, segment.body ? timesOf(op.pred, runs[s]) : runs[s], rows);
  }
  return rows;
}

std::string formatBytes(int64_t bytes, int digits) {
  static constexpr std::string_view kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024)
    return fmt::format("{} B", bytes);
  double scaled = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; scaled >= 1024 && unit + 1 < std::size(kUnits); ++unit)
    scaled /= 1024;
  return fmt::format("{:.{}f} {}", scaled, digits, kUnits[unit]);
}

std::pair<std::string, std::string> formatBytesApart(int64_t a, int64_t b) {
  constexpr int kDigitsMax = 10; // enough for one byte of a tebibyte
  int digits = 1;
  while (a != b && digits < kDigitsMax && formatBytes(a, digits) == formatBytes(b, digits))
    ++digits;
  return {formatBytes(a, digits), formatBytes(b, digits)};
}

std::string summary(const Plan &plan, std::span<const std::string> more) {
  Page page;
  describeJob(page, plan);
  for (const Role &role : plan.roles)
    describeRole(page, plan, role);
  for (const std::string &text : more)
    page.line("{}", text);
  return page.take();
}

} // namespace shardc::plan
