#include "compiler/predict/InFlight.h"

#include <algorithm>
#include <map>

#include "runtime/plan/Variants.h"

namespace shardc::predict {
namespace {

/// A body that reads what another one leaves in a buffer, of the microbatch `shift` after its own.
struct Reader {
  uint32_t segment;
  int64_t shift;
};

/// What a body leaves in a buffer for later passes of the microbatch.
struct Left {
  int64_t bytes = 0;
  std::vector<Reader> readers;
};

/// What each segment leaves in buffers.
std::vector<std::vector<Left>> leftBy(const plan::Role &role) {
  std::vector<std::vector<Reader>> readers(role.cells.size());
  for (uint32_t s = 0; s < role.segments.size(); ++s)
    for (const plan::Segment::Boundary &in : role.segments[s].ins)
      if (role.segments[s].body && (in.shift == 0 || in.shift == role.segments[s].shift))
        readers[in.cell].push_back({s, in.shift});
  std::vector<std::vector<Left>> left(role.segments.size());
  for (uint32_t s = 0; s < role.segments.size(); ++s)
    for (const plan::Segment::Boundary &out : role.segments[s].outs) {
      const plan::Cell &cell = role.cells[out.cell];
      if (cell.kind != plan::CellKind::Buffer || !role.segments[s].body || out.shift != 0)
        continue;
      Left each{cell.type.bytes(), readers[out.cell]};
      std::erase_if(each.readers,
                    [&](const Reader &reader) { return reader.segment == s && reader.shift == 0; });
      if (!each.readers.empty())
        left[s].push_back(std::move(each));
    }
  return left;
}

std::vector<KeptRun> runsOf(const plan::Role &role) {
  std::vector<KeptRun> runs;
  for (const plan::ProgramNode &top : role.program)
    if (top.kind == plan::ProgramNode::Steps)
      plan::forEachRun(top.children, [&](const plan::ProgramNode &node, int64_t iteration) {
        for (int64_t i = 0; i < node.count && role.segments[node.segment].body; ++i)
          runs.push_back({node.segment, node.microbatch ? node.microbatch->at(iteration) : i});
        return true;
      });
  return runs;
}

bool isBackward(const plan::Role &role, const Reader &reader) {
  return role.segments[reader.segment].kind == plan::SegmentKind::Backward || reader.shift != 0;
}

} // namespace

std::vector<KeptRun> keptInStep(const plan::Role &role) {
  const std::vector<std::vector<Left>> left = leftBy(role);
  std::vector<KeptRun> runs = runsOf(role);
  std::map<std::pair<uint32_t, int64_t>, size_t> indexOf;
  for (size_t i = 0; i < runs.size(); ++i)
    indexOf[{runs[i].segment, runs[i].microbatch}] = i;
  std::vector<KeptRun> change(runs.size() + 1); // before each run
  for (size_t i = 0; i < runs.size(); ++i) {
    size_t passEnd = i;
    for (const Left &each : left[runs[i].segment]) {
      size_t last = i;
      for (const Reader &reader : each.readers) {
        auto found = indexOf.find({reader.segment, runs[i].microbatch - reader.shift});
        if (found == indexOf.end())
          continue;
        last = std::max(last, found->second);
        if (isBackward(role, reader) && !isBackward(role, {runs[i].segment, 0}))
          passEnd = std::max(passEnd, found->second);
      }
      change[i].bytes += each.bytes;
      change[last + 1].bytes -= each.bytes;
    }
    change[i].passes += passEnd > i ? 1 : 0;
    change[passEnd + 1].passes -= passEnd > i ? 1 : 0;
  }
  KeptRun now{};
  for (size_t i = 0; i < runs.size(); ++i) {
    runs[i].bytes = now.bytes += change[i].bytes;
    runs[i].passes = now.passes += change[i].passes;
  }
  return runs;
}

} // namespace shardc::predict
