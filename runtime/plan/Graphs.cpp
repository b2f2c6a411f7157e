// Counts the CUDA graphs of a role and their nodes, per segment, variant and ring slot.
#include "runtime/plan/Execution.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "runtime/base/NewtonSchulz.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Variants.h"

namespace shardc::plan {
namespace {

// Upper bound: graphs of up to 1,500 nodes, together with all libraries, took 2 to 10 MiB
// (docs/benchmarks/cuda-checks.md).
constexpr int64_t kBytesPerNode = 4 << 10;
// Upper bound: each node takes one call of the CUDA runtime, and some calls for the events around
// it, of 0.5 to 4.3 us each.
constexpr double kSecondsPerNode = 20e-6;

/// The number of chunks of an op that processes `chunk_rows` rows of its first operand at a time.
int64_t chunksOf(const Segment &segment, const Op &op) {
  int64_t rows = op.getInt(AttrKey::chunk_rows);
  if (rows <= 0 || op.operands.empty())
    return 1;
  const Type &type = segment.values[op.operands[0]].type;
  int64_t all = type.rank == 0 ? 1 : type.numel() / std::max<int64_t>(type.shape[type.rank - 1], 1);
  return std::max<int64_t>((all + rows - 1) / rows, 1);
}

/// Kernels that quantise both operands of a product to 8 bits: two for row lists, and per operand
/// one for amaxes and one for codes.
constexpr int64_t kNodesOfQuantising = 6;

/// Upper bound of the graph nodes for one batch of matrices in Muon: the momentum, the first
/// factor, the update, squares if it updates whole matrices, and three products per iteration. A
/// library may clear counters before each product. Two of the products may be divided into five
/// strips, each followed by a copy.
int64_t nodesOfBatch(const Op &op) {
  const int64_t ofProduct = op.getBool(AttrKey::symmetric) ? 11 : 2;
  if (op.kind == OpKind::MuonUpdate)
    return 1;
  if (op.kind == OpKind::MuonSums) // a fill, and either squares and their sums or a product
    return ofProduct + 1;
  if (op.kind == OpKind::MuonStep) // a rounding, a fill and two products
    return 2 * ofProduct + 2;
  if (op.getBool(AttrKey::divided))
    return 2;
  bool takesWhole = op.operands.size() > operandIndex<OpKind::Muon>("u");
  int64_t ofStep = op.getBool(AttrKey::symmetric) ? 24 : 6;
  return (takesWhole ? 4 : 3) + op.getInt(AttrKey::ns_steps) * ofStep;
}

bool isOfMuon(OpKind kind) {
  return kind == OpKind::Muon || kind == OpKind::MuonUpdate || kind == OpKind::MuonSums ||
         kind == OpKind::MuonStep;
}

/// Counts the nodes of a plan's ops.
class Nodes {
public:
  explicit Nodes(const Plan &plan) : plan_(plan), paramsOf_(plan.blocks.size()) {
    for (const Param &param : plan.params)
      if (auto block = static_cast<size_t>(param.block);
          block < paramsOf_.size() && param.init != InitKind::Zeros)
        paramsOf_[block].push_back(&param);
  }

  int64_t of(const Segment &segment, const Variant &variant) const {
    int64_t nodes = 0;
    for (const Op &op : segment.ops)
      if (opInfo(op).traits != OpTraits::Alias && holds(op.pred, variant))
        nodes += of(segment, op) * chunksOf(segment, op);
    return nodes;
  }

private:
  int64_t of(const Segment &segment, const Op &op) const {
    const OpInfo &info = opInfo(op);
    int64_t nodes = info.nodes + (op.getInt(AttrKey::fp8_recipe) != 0 ? kNodesOfQuantising : 0);
    if (isOfMuon(op.kind))
      nodes += nodesOfBatch(op) * batches(op.getInt(AttrKey::block), elementsOfMuon(segment, op));
    if (info.tensorNodes > 0 && !op.results.empty())
      nodes += info.tensorNodes *
               filledTensors(op.getInt(AttrKey::block), segment.values[op.results[0]].type.numel());
    return nodes;
  }

  /// The number of elements of the largest operand: that of the part whose matrices are updated.
  static int64_t elementsOfMuon(const Segment &segment, const Op &op) {
    int64_t elements = 0;
    for (ValueId operand : op.operands)
      elements = std::max(elements, segment.values[operand].type.numel());
    return elements;
  }

  /// Upper bound of the batches of matrices in a part of the block. Each shape may end with a batch
  /// that is not full.
  int64_t batches(int64_t block, int64_t partElements) const {
    int64_t count = 2 * (partElements / kNsBatchElements);
    for (const Param &param : plan_.params) {
      if (param.block != block)
        continue;
      int64_t stacked = param.isStacked() ? param.type.shape[0] : 1;
      int64_t each = std::max<int64_t>(1, static_cast<int64_t>(param.turns.size()));
      if (!param.turns.empty() && param.turns[0] < 0) // each head may end a batch
        each *= param.type.shape[param.rowDim()] / -param.turns[0] + 1;
      count += each * (stacked / kNsBatchMatrices + 1);
    }
    return count;
  }

  /// The number of tensors with nonzero initial values in that part of the block that has the most
  /// of them. Counting stops at the number of nodes that a rank may capture.
  int64_t filledTensors(int64_t block, int64_t partElements) const {
    if (block < 0 || block >= static_cast<int64_t>(paramsOf_.size()) || partElements <= 0)
      return 0;
    std::map<int64_t, int64_t> more; // by index of the part: tensors more than in the part before
    int64_t counted = 0;
    for (const Param *param : paramsOf_[static_cast<size_t>(block)]) {
      int64_t tensors = param->isStacked() ? param->type.shape[0] : 1;
      int64_t numel = tensors > 0 ? param->type.numel() / tensors : 0;
      for (int64_t t = 0; numel > 0 && t < tensors && counted <= limits::kGraphNodesMax; ++t) {
        int64_t begin = param->offset + t * numel;
        ++more[begin / partElements];
        --more[(begin + numel - 1) / partElements + 1];
        ++counted;
      }
    }
    int64_t most = 0, here = 0;
    for (const auto &[part, change] : more)
      most = std::max(most, here += change);
    return most;
  }

  const Plan &plan_;
  std::vector<std::vector<const Param *>> paramsOf_; ///< by block, without zero-initialised ones
};

} // namespace

int64_t GraphNeed::bytes() const { return nodes * kBytesPerNode; }
double GraphNeed::seconds() const { return static_cast<double>(nodes) * kSecondsPerNode; }

GraphNeed graphsOf(const Plan &plan, const Role &role) {
  GraphNeed need;
  const Nodes ofPlan(plan);
  std::vector<std::vector<SegmentInstance>> instances = instancesOfProgram(role);
  for (size_t s = 0; s < instances.size(); ++s) {
    const Segment &segment = role.segments[s];
    if (segment.before != kNone)
      continue; // background segments are not captured
    std::map<Variant, int64_t> nodes;
    for (const SegmentInstance &instance : instances[s]) {
      auto [at, isNew] = nodes.try_emplace(instance.variant);
      if (isNew)
        at->second = ofPlan.of(segment, instance.variant);
      need.nodes += at->second;
      ++need.graphs;
    }
  }
  return need;
}

std::optional<GraphNeed> graphsBeyondLimit(const Plan &plan, const Role &role) {
  if (std::ranges::none_of(role.cells, &Cell::isRing))
    return std::nullopt;
  GraphNeed need = graphsOf(plan, role);
  return need.nodes > limits::kGraphNodesMax ? std::optional(need) : std::nullopt;
}

std::string toString(const GraphNeed &need) {
  return fmt::format("{} graphs with {} nodes, about {} and {:.2g} s to capture", need.graphs,
                     need.nodes, formatBytes(need.bytes()), need.seconds());
}

} // namespace shardc::plan
