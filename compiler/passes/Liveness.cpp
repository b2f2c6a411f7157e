#include "compiler/passes/Liveness.h"

#include <algorithm>

#include "compiler/passes/Clocks.h"
#include "runtime/plan/Variants.h"

namespace shardc::passes {
namespace {

using plan::kNone;
using plan::Op;
using plan::Tie;
using plan::ValueId;

/// One run of a segment in one variant, as a node of the program's graph.
struct Node {
  uint32_t segment;
  plan::Variant variant;
  const plan::ProgramNode *at;
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
    std::vector<int64_t> counts = plan::namedRuns(role_, list);
    for (const plan::ProgramNode &node : list)
      from = node.kind == plan::ProgramNode::Loop || node.microbatch
                 ? walkNamed(node, counts, std::move(from))
                 : walk(node, std::move(from));
    return from;
  }

  /// A run that names its microbatch, of `counts` for each segment, or a loop of such runs.
  Exits walkNamed(const plan::ProgramNode &node, const std::vector<int64_t> &counts, Exits from,
                  int64_t turn = 0) {
    if (node.kind == plan::ProgramNode::Loop) {
      for (int64_t i = 0; i < node.count; ++i)
        for (const plan::ProgramNode &child : node.children)
          from = walkNamed(child, counts, std::move(from), i);
      return from;
    }
    const plan::VariantTable &variants = variants_[node.segment];
    return {visit(node, variants.of(node.microbatch->at(turn), counts[node.segment]), from)};
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
    case plan::ProgramNode::Loop: // its runs name their microbatch
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
    size_t index = nodes_.size();
    for (size_t n = 0; n < nodes_.size(); ++n)
      if (nodes_[n].at == &node && nodes_[n].variant == variant)
        index = n;
    if (index == nodes_.size())
      nodes_.push_back({node.segment, variant, &node, {}});
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
};

/// Cells that a segment reads before it writes them, and cells to which it gives new content.
struct Effect {
  std::vector<uint8_t> uses, defines;
};

class EffectFinder {
public:
  EffectFinder(const plan::Role &role, const plan::Segment &segment, plan::Variant variant)
      : role_(role), segment_(segment), variant_(variant), cellOf_(segment.values.size(), kNone),
        same_(segment.values.size()) {
    effect_.uses.assign(role.cells.size(), 0);
    effect_.defines.assign(role.cells.size(), 0);
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
        effect_.defines[out.cell] = 1;
    return std::move(effect_);
  }

private:
  /// What is left in a cell replaces all of its content. In a ring it is that of one microbatch,
  /// and of those before only the first one of a step finds none.
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
      effect_.uses[cellOf_[value]] = 1;
    uint32_t def = segment_.values[value].def;
    if (def != kNone && isAlias(segment_.ops[def]))
      for (ValueId operand : segment_.ops[def].operands)
        use(operand);
  }

  const plan::Role &role_;
  const plan::Segment &segment_;
  plan::Variant variant_;
  std::vector<uint32_t> cellOf_; ///< cell whose content a live-in value is
  std::vector<ValueId> same_;    ///< the value that a skipped op's result is
  Effect effect_;
};

} // namespace

std::vector<CellLiveness> cellLiveness(const plan::Role &role) {
  ProgramGraph graph(role);
  const std::vector<Node> &nodes = graph.nodes();
  std::vector<Effect> effects;
  for (const Node &node : nodes)
    effects.push_back(EffectFinder(role, role.segments[node.segment], node.variant).run());
  std::vector<std::vector<uint8_t>> in(nodes.size(), std::vector<uint8_t>(role.cells.size(), 0)),
      out = in;
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t n = nodes.size(); n-- > 0;)
      for (size_t c = 0; c < role.cells.size(); ++c) {
        uint8_t live = 0;
        for (size_t next : nodes[n].next)
          live |= in[next][c];
        auto needed =
            static_cast<uint8_t>(effects[n].uses[c] | (live & (effects[n].defines[c] ^ 1)));
        changed |= live != out[n][c] || needed != in[n][c];
        out[n][c] = live;
        in[n][c] = needed;
      }
  }
  std::vector<CellLiveness> result(role.segments.size());
  for (CellLiveness &liveness : result)
    liveness.atStart = liveness.atEnd = std::vector<uint8_t>(role.cells.size(), 0);
  for (size_t n = 0; n < nodes.size(); ++n)
    for (size_t c = 0; c < role.cells.size(); ++c) {
      result[nodes[n].segment].atStart[c] |= in[n][c];
      result[nodes[n].segment].atEnd[c] |= out[n][c];
    }
  return result;
}

} // namespace shardc::passes
