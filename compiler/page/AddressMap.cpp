#include "compiler/page/AddressMap.h"

#include <algorithm>
#include <map>
#include <optional>

#include "llvm/ADT/StringExtras.h"

#include "compiler/passes/Liveness.h"

namespace shardc::page {
namespace {

using plan::kNone;

void addRuns(const std::vector<plan::ProgramNode> &nodes, std::vector<uint32_t> &segments) {
  for (const plan::ProgramNode &node : nodes) {
    if (node.kind == plan::ProgramNode::Run &&
        std::find(segments.begin(), segments.end(), node.segment) == segments.end())
      segments.push_back(node.segment);
    if (node.kind == plan::ProgramNode::Loop)
      addRuns(node.children, segments);
  }
}

/// The segments of a training step, each once, in the order in which they first run.
std::vector<uint32_t> segmentsOfStep(const plan::Role &role) {
  std::vector<uint32_t> segments;
  for (const plan::ProgramNode &node : role.program)
    if (node.kind == plan::ProgramNode::Steps)
      addRuns(node.children, segments);
  return segments;
}

const plan::Segment::Boundary *findCell(const std::vector<plan::Segment::Boundary> &list,
                                        uint32_t cell) {
  auto at = std::find_if(list.begin(), list.end(),
                         [&](const plan::Segment::Boundary &b) { return b.cell == cell; });
  return at == list.end() ? nullptr : &*at;
}

class MapBuilder {
public:
  explicit MapBuilder(const plan::Role &role) : role_(role), open_(role.cells.size()) {}

  AddressMap build() {
    std::vector<passes::CellLiveness> liveness = passes::cellLiveness(role_);
    plan::MemoryByPurpose memory = plan::memoryByPurpose(role_);
    uint32_t at = 0;
    for (uint32_t s : segmentsOfStep(role_)) {
      const plan::Segment &segment = role_.segments[s];
      auto ops = static_cast<uint32_t>(segment.ops.size());
      map_.segments.push_back({segment.name, at, at + ops});
      if (memory.peakSegment == s)
        map_.peakAt = at + memory.peakOp;
      lives_ = plan::bufferLives(role_, segment);
      for (plan::ValueId value = 0; value < lives_.size(); ++value)
        if (lives_[value].value == value)
          addValue(segment, lives_[value], at);
      for (uint32_t c = 0; c < role_.cells.size(); ++c)
        addCell(segment, liveness[s], c, at);
      at += ops;
    }
    return std::move(map_);
  }

private:
  void addValue(const plan::Segment &segment, const plan::BufferLife &life, uint32_t at) {
    if (life.isCell || life.first == kNone)
      return;
    const plan::Value &value = segment.values[life.value];
    if (!value.place.placed)
      return;
    map_.rects.push_back({value.place.arena, value.place.offset, life.bytes, at + life.first,
                          at + life.last + 1, life.purpose, false, value.name,
                          std::string(plan::opInfo(segment.ops[life.first]).name)});
  }

  void addCell(const plan::Segment &segment, const passes::CellLiveness &live, uint32_t c,
               uint32_t at) {
    const plan::Cell &cell = role_.cells[c];
    const plan::Segment::Boundary *in = findCell(segment.ins, c);
    const plan::Segment::Boundary *out = findCell(segment.outs, c);
    if (!cell.place.placed || (!live.atStart[c] && !live.atEnd[c] && !in && !out))
      return;
    auto ops = static_cast<uint32_t>(segment.ops.size());
    uint32_t begin = 0, end = ops;
    if (!live.atStart[c] && out && lives_[out->value].first != kNone)
      begin = lives_[out->value].first;
    if (!live.atEnd[c] && in)
      end = std::min(ops, lives_[in->value].last + 1);
    extend(c, at + begin, at + std::max(end, begin));
  }

  /// Adds the cell's time in a segment. If it directly continues the cell's last rect, that rect
  /// grows.
  void extend(uint32_t c, uint32_t begin, uint32_t end) {
    const plan::Cell &cell = role_.cells[c];
    std::optional<size_t> &last = open_[c];
    if (last && map_.rects[*last].end == begin) {
      map_.rects[*last].end = end;
      return;
    }
    last = map_.rects.size();
    map_.rects.push_back({cell.place.arena, cell.place.offset, cell.bytes(), begin, end,
                          cell.purpose, true, cell.name, ""});
  }

  const plan::Role &role_;
  std::vector<std::optional<size_t>> open_; ///< by cell: index of its last rect
  std::vector<plan::BufferLife> lives_;     ///< by value of the current segment
  AddressMap map_;
};

/// Keeps the `rectsMax` rects with the largest area (bytes times ops).
void keepLargest(AddressMap &map, size_t rectsMax) {
  if (map.rects.size() <= rectsMax)
    return;
  auto area = [](const Rect &rect) {
    return static_cast<double>(rect.bytes) * (rect.end - rect.begin);
  };
  std::stable_sort(map.rects.begin(), map.rects.end(),
                   [&](const Rect &a, const Rect &b) { return area(a) > area(b); });
  map.omitted = map.rects.size() - rectsMax;
  for (size_t i = rectsMax; i < map.rects.size(); ++i)
    map.omittedBytes = std::max(map.omittedBytes, map.rects[i].bytes);
  map.rects.resize(rectsMax);
}

} // namespace

AddressMap addressMapOf(const plan::Role &role, size_t rectsMax) {
  AddressMap map = MapBuilder(role).build();
  keepLargest(map, rectsMax);
  std::stable_sort(map.rects.begin(), map.rects.end(),
                   [](const Rect &a, const Rect &b) { return a.bytes > b.bytes; });
  return map;
}

std::string patternOf(const std::string &name) {
  std::string out;
  for (char c : name)
    if (!llvm::isDigit(c) ||
        (out.size() > 1 && llvm::isAlnum(out.back()) && llvm::isAlnum(out[out.size() - 2])))
      out += c;
    else if (out.empty() || out.back() != '*')
      out += '*';
  return out;
}

namespace {

struct BufferWords {
  const char *part, *words;
};

/// Descriptions of activations by a part of their name; the first row that matches is used.
constexpr BufferWords kBufferWords[] = {
    {".fc", "MLP activations"},
    {".act", "MLP activations"},
    {".attn", "attention activations"},
    {".qkv", "attention activations"},
    {".q", "attention activations"},
    {".k", "attention activations"},
    {".v", "attention activations"},
    {".proj", "attention activations"},
    {".norm", "norms"},
    {".rstd", "norms"},
    {".mid", "residual stream"},
    {".out", "residual stream"},
    {"logit", "logits and loss"},
    {"loss", "logits and loss"},
    {"embed", "embeddings"},
    {"token", "batch"},
    {"label", "batch"},
    {"doc", "batch"},
};

/// The description of a purpose; for activations, `kBufferWords` has more specific ones.
const char *purposeWords(plan::Purpose purpose) {
  switch (purpose) {
  case plan::Purpose::Params:
    return "weights";
  case plan::Purpose::Grads:
    return "gradients";
  case plan::Purpose::MasterParams:
    return "master weights";
  case plan::Purpose::OptimizerState:
    return "optimizer state";
  case plan::Purpose::Comm:
    return "communication buffers";
  case plan::Purpose::Data:
    return "batch";
  default:
    return "activations";
  }
}

} // namespace

std::string wordsOf(const Holder &holder) {
  std::string_view name = holder.pattern;
  if (name.starts_with("W."))
    return "gathered weights";
  if (name.starts_with("G."))
    return "gradients before their reduction";
  if (holder.purpose != plan::Purpose::Activations)
    return purposeWords(holder.purpose);
  std::string before = name.starts_with("d.") ? "gradients of " : "";
  for (const BufferWords &row : kBufferWords)
    if (name.find(row.part) != std::string_view::npos)
      return before + row.words;
  return before + purposeWords(holder.purpose);
}

/// Sums the buffers at the peak and the cells by the pattern of their names, in which numbers of
/// layers are replaced. The list is sorted by bytes.
std::vector<Holder> holdersOf(const plan::Role &role) {
  std::map<std::tuple<bool, plan::Purpose, std::string>, Holder> byPattern;
  auto add = [&](const std::string &name, plan::Purpose purpose, bool isKept, int64_t bytes) {
    std::string pattern = patternOf(name);
    Holder &holder = byPattern[{isKept, purpose, pattern}];
    holder.pattern = pattern;
    holder.purpose = purpose;
    holder.isKept = isKept;
    ++holder.count;
    holder.bytes += bytes;
  };
  std::vector<bool> isNested = plan::nestedCells(role);
  for (size_t c = 0; c < role.cells.size(); ++c)
    if (!isNested[c])
      add(role.cells[c].name, role.cells[c].purpose, true,
          role.cells[c].slots * role.cells[c].type.bytes());
  if (plan::MemoryByPurpose memory = plan::memoryByPurpose(role); memory.peakSegment != kNone) {
    const plan::Segment &segment = role.segments[memory.peakSegment];
    std::vector<plan::BufferLife> lives = plan::bufferLives(role, segment);
    for (plan::ValueId value = 0; value < lives.size(); ++value) {
      const plan::BufferLife &life = lives[value];
      bool isLive =
          life.first != kNone && life.first <= memory.peakOp && memory.peakOp <= life.last;
      // Values that share a buffer are counted once, under the name of the largest.
      if (life.value == value && !life.isCell && isLive)
        add(segment.values[value].name, life.purpose, false, life.bytes);
    }
  }
  std::vector<Holder> list;
  for (auto &[key, holder] : byPattern)
    list.push_back(std::move(holder));
  std::stable_sort(list.begin(), list.end(),
                   [](const Holder &a, const Holder &b) { return a.bytes > b.bytes; });
  return list;
}

} // namespace shardc::page
