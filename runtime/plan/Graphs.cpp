// Counts the graphs of a role and their nodes, by segment, variant and slot.
#include "runtime/plan/Execution.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "runtime/plan/Limits.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Variants.h"

namespace shardc::plan {
namespace {

// docs/benchmarks/cuda-checks.md: graphs of up to 1,500 nodes and all libraries took 2 to 10 MiB.
constexpr int64_t kBytesPerNode = 4 << 10;
// A call of the runtime for each node, and some for the events around it, 0.5 to 4.3 us each.
constexpr double kSecondsPerNode = 20e-6;

/// Of an op that works on so many rows of its first operand at a time.
int64_t chunksOf(const Segment &segment, const Op &op) {
  int64_t rows = op.getInt(AttrKey::chunk_rows);
  if (rows <= 0 || op.operands.empty())
    return 1;
  const Type &type = segment.values[op.operands[0]].type;
  int64_t all = type.rank == 0 ? 1 : type.numel() / std::max<int64_t>(type.shape[type.rank - 1], 1);
  return std::max<int64_t>((all + rows - 1) / rows, 1);
}

/// Kernels that bring both factors of a product to 8 bits: two lists of rows, and of each factor
/// magnitudes and codes.
constexpr int64_t kNodesOfFactors = 6;

int64_t nodesOf(const Op &op) {
  return opInfo(op).nodes + (op.getInt(AttrKey::fp8_recipe) != 0 ? kNodesOfFactors : 0);
}

int64_t nodesOf(const Segment &segment, const Variant &variant) {
  int64_t nodes = 0;
  for (const Op &op : segment.ops)
    if (opInfo(op).traits != OpTraits::Alias && holds(op.pred, variant))
      nodes += nodesOf(op) * chunksOf(segment, op);
  return nodes;
}

} // namespace

int64_t GraphNeed::bytes() const { return nodes * kBytesPerNode; }
double GraphNeed::seconds() const { return static_cast<double>(nodes) * kSecondsPerNode; }

GraphNeed graphsOf(const Role &role) {
  GraphNeed need;
  std::vector<std::vector<SegmentInstance>> instances = instancesOfProgram(role);
  for (size_t s = 0; s < instances.size(); ++s) {
    const Segment &segment = role.segments[s];
    if (segment.before != kNone)
      continue; // is not captured
    std::map<Variant, int64_t> nodes;
    for (const SegmentInstance &instance : instances[s]) {
      auto [at, isNew] = nodes.try_emplace(instance.variant);
      if (isNew)
        at->second = nodesOf(segment, instance.variant);
      need.nodes += at->second;
      ++need.graphs;
    }
  }
  return need;
}

std::optional<GraphNeed> graphsBeyondLimit(const Role &role) {
  if (std::ranges::none_of(role.cells, &Cell::isRing))
    return std::nullopt;
  GraphNeed need = graphsOf(role);
  return need.nodes > limits::kGraphNodesMax ? std::optional(need) : std::nullopt;
}

std::string toString(const GraphNeed &need) {
  return fmt::format("{} graphs with {} nodes, about {} and {:.2g} s to capture", need.graphs,
                     need.nodes, formatBytes(need.bytes()), need.seconds());
}

} // namespace shardc::plan
