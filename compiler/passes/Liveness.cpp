// Propagates sets of live cells backwards through the graph of segments and variants, until no set
// grows.
#include "compiler/passes/Liveness.h"

#include <algorithm>
#include <map>

#include "compiler/passes/Clocks.h"
#include "compiler/passes/PlanNames.h"
#include "runtime/plan/Variants.h"

namespace shardc::passes {
namespace {

using plan::Tie;

/// A run of a segment in one variant: a node of the program's graph.
struct Node {
  uint32_t segment;
  plan::Variant variant;
  std::vector<size_t> next;
};

class ProgramGraph {
public:
  explicit ProgramGraph(const plan::Role &role) : role_(role) {
    for (const plan::Segment &segment : role.segments)
      variants_.emplace_back(segment);
    walk(role.program, {});
  }
  const std::vector<Node> &nodes() const { return nodes_; }

private:
  using Exits = std::vector<size_t>;

  Exits walk(const std::vector<plan::ProgramNode> &list, Exits from) {
    std::vector<int64_t> counts = plan::namedMicrobatches(role_, list);
    for (const plan::ProgramNode &node : list)
      from = node.kind == plan::ProgramNode::Loop || node.microbatch
                 ? walkNamed(node, counts, std::move(from))
                 : walk(node, std::move(from));
    return from;
  }

  /// Walks a launch that names its microbatch, or a loop of such launches. `counts`: for each
  /// segment, how often it has run before.
  Exits walkNamed(const plan::ProgramNode &node, const std::vector<int64_t> &counts, Exits from) {
    if (node.kind != plan::ProgramNode::Loop)
      return {visit(node, variantOf(node, counts, 0), from)};
    for (int64_t iteration = 0; iteration < node.count;) {
      int64_t alike = iterationsAlike(node, counts, iteration);
      // Two iterations represent all iterations that execute alike: the second follows the first,
      // and each later one follows its predecessor in the same way.
      for (int64_t i = 0; i < std::min<int64_t>(alike, 2); ++i)
        for (const plan::ProgramNode &run : node.children)
          from = run.kind == plan::ProgramNode::Loop
                     ? walkNamed(run, counts, std::move(from))
                     : Exits{visit(run, variantOf(run, counts, iteration + i), from)};
      iteration += alike;
    }
    return from;
  }

  /// The number of iterations, from this one on, in which all launches have the same variants.
  int64_t iterationsAlike(const plan::ProgramNode &loop, const std::vector<int64_t> &counts,
                          int64_t iteration) const {
    int64_t alike = loop.count - iteration;
    for (const plan::ProgramNode &run : loop.children)
      if (run.kind != plan::ProgramNode::Loop)
        alike = std::min(alike, variants_[run.segment].iterationsAlike(*run.microbatch, iteration,
                                                                       counts[run.segment]));
    return alike;
  }

  plan::Variant variantOf(const plan::ProgramNode &run, const std::vector<int64_t> &counts,
                          int64_t iteration) const {
    return variants_[run.segment].of(run.microbatch->at(iteration), counts[run.segment]);
  }

  Exits walk(const plan::ProgramNode &node, Exits from) {
    switch (node.kind) {
    case plan::ProgramNode::Start:
    case plan::ProgramNode::Run:
      return run(node, std::move(from));
    case plan::ProgramNode::Steps: {
      Exits exits = walk(node.children, from);
      walk(node.children, exits); // the back edge from one step to the next
      return exits;
    }
    case plan::ProgramNode::Every: {
      Exits exits = walk(node.children, from);
      exits.insert(exits.end(), from.begin(), from.end());
      return exits;
    }
    case plan::ProgramNode::Loop: // loops do not occur here: their launches name their microbatch
      break;
    }
    return from;
  }

  Exits run(const plan::ProgramNode &node, Exits from) {
    using plan::Variant;
    if (!role_.segments[node.segment].body || node.count == 1)
      return {
          visit(node, role_.segments[node.segment].body ? Variant::Only : Variant::Middle, from)};
    size_t last = visit(node, Variant::First, from);
    if (node.count > 2) {
      last = visit(node, Variant::Middle, {last});
      link(last, last);
    }
    return {visit(node, Variant::Last, {last})};
  }

  size_t visit(const plan::ProgramNode &node, plan::Variant variant, const Exits &from) {
    auto [known, isNew] = indices_.try_emplace({&node, variant}, nodes_.size());
    size_t index = known->second;
    if (isNew)
      nodes_.push_back({node.segment, variant, {}});
    for (size_t n : from)
      link(n, index);
    return index;
  }

  void link(size_t from, size_t to) {
    std::vector<size_t> &next = nodes_[from].next;
    if (std::find(next.begin(), next.end(), to) == next.end())
      next.push_back(to);
  }

  const plan::Role &role_;
  std::vector<plan::VariantTable> variants_; ///< by segment
  std::vector<Node> nodes_;
  std::map<std::pair<const plan::ProgramNode *, plan::Variant>, size_t> indices_;
};

/// A set of cells, 64 in a word: programs have thousands of nodes, and roles hundreds of cells.
using CellSet = std::vector<uint64_t>;

size_t wordsOf(size_t cells) { return (cells + 63) / 64; }

void addCell(CellSet &set, size_t cell) { set[cell / 64] |= uint64_t{1} << cell % 64; }

void addTo(CellSet &set, const CellSet &more) {
  for (size_t w = 0; w < set.size(); ++w)
    set[w] |= more[w];
}

std::vector<uint8_t> flagsOf(const CellSet &set, size_t cells) {
  std::vector<uint8_t> flags(cells);
  for (size_t c = 0; c < cells; ++c)
    flags[c] = set[c / 64] >> c % 64 & 1;
  return flags;
}

/// Cells that a segment reads before it writes them, and cells whose content it replaces.
struct Effect {
  CellSet uses, defines;
};

class EffectFinder {
public:
  EffectFinder(const plan::Role &role, const plan::Segment &segment, plan::Variant variant)
      : role_(role), segment_(segment), variant_(variant), cellOf_(segment.values.size(), kNone),
        same_(segment.values.size()) {
    effect_.uses.assign(wordsOf(role.cells.size()), 0);
    effect_.defines = effect_.uses;
    for (size_t v = 0; v < same_.size(); ++v)
      same_[v] = static_cast<ValueId>(v);
    for (const plan::Segment::Boundary &in : segment.ins)
      cellOf_[in.value] = in.cell;
  }

  Effect run() {
    for (const Op &op : segment_.ops) {
      if (isAlias(op))
        continue;
      if (holds(op.pred, variant_))
        execute(op);
      else
        for (const Tie &tie : op.ties)
          if (tie.kind == Tie::Else)
            same_[op.results[tie.result]] = same_[tie.value];
    }
    for (const plan::Segment::Boundary &out : segment_.outs)
      if (cellOf_[same_[out.value]] != out.cell && isWhole(out.cell))
        addCell(effect_.defines, out.cell);
    return std::move(effect_);
  }

private:
  /// Whether a store replaces the whole content of the cell. A store to a ring replaces one slot,
  /// so only the store of a step's first microbatch counts as replacing all content.
  bool isWhole(uint32_t cell) const { return !role_.cells[cell].isRing() || variant_.isFirst(); }

  void execute(const Op &op) {
    for (ValueId operand : op.operands)
      use(operand);
    for (const Tie &tie : op.ties)
      if (tie.kind == Tie::Acc && holds(tie.pred, variant_))
        use(tie.value);
  }

  void use(ValueId value) {
    value = same_[value];
    if (cellOf_[value] != kNone)
      addCell(effect_.uses, cellOf_[value]);
    uint32_t def = segment_.values[value].def;
    if (def != kNone && isAlias(segment_.ops[def]))
      for (ValueId operand : segment_.ops[def].operands)
        use(operand);
  }

  const plan::Role &role_;
  const plan::Segment &segment_;
  plan::Variant variant_;
  std::vector<uint32_t> cellOf_; ///< by value: the cell that the live-in reads
  std::vector<ValueId> same_;    ///< by value: the value that a skipped op returns
  Effect effect_;
};

/// The effect of each node. Runs of a segment in the same variant share one entry of `known`.
std::vector<const Effect *> effectsOf(const plan::Role &role, const std::vector<Node> &nodes,
                                      std::map<std::pair<uint32_t, plan::Variant>, Effect> &known) {
  std::vector<const Effect *> effects;
  for (const Node &node : nodes) {
    auto [at, isNew] = known.try_emplace({node.segment, node.variant});
    if (isNew)
      at->second = EffectFinder(role, role.segments[node.segment], node.variant).run();
    effects.push_back(&at->second);
  }
  return effects;
}

} // namespace

/// A node is a segment in a variant. in = uses + (out - defines), where out is the union over the
/// successors; the sets are bit vectors with one bit per cell.
std::vector<CellLiveness> cellLiveness(const plan::Role &role) {
  ProgramGraph graph(role);
  const std::vector<Node> &nodes = graph.nodes();
  std::map<std::pair<uint32_t, plan::Variant>, Effect> known;
  std::vector<const Effect *> effects = effectsOf(role, nodes, known);
  const CellSet none(wordsOf(role.cells.size()), 0);
  std::vector<CellSet> in(nodes.size(), none), out = in;
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t n = nodes.size(); n-- > 0;) {
      for (size_t next : nodes[n].next)
        addTo(out[n], in[next]); // sets only grow
      for (size_t w = 0; w < none.size(); ++w) {
        uint64_t needed = effects[n]->uses[w] | (out[n][w] & ~effects[n]->defines[w]);
        changed |= needed != in[n][w];
        in[n][w] = needed;
      }
    }
  }
  std::vector<CellSet> atStart(role.segments.size(), none), atEnd = atStart;
  for (size_t n = 0; n < nodes.size(); ++n) {
    addTo(atStart[nodes[n].segment], in[n]);
    addTo(atEnd[nodes[n].segment], out[n]);
  }
  std::vector<CellLiveness> result;
  for (size_t s = 0; s < role.segments.size(); ++s)
    result.push_back(
        {flagsOf(atStart[s], role.cells.size()), flagsOf(atEnd[s], role.cells.size())});
  return result;
}

} // namespace shardc::passes
