#include "compiler/passes/RunOrder.h"

#include <algorithm>

#include "runtime/plan/Variants.h"

namespace shardc::passes {

using plan::Pred;
using plan::ProgramNode;

Pred Runs::like(const Pred &pred) const {
  auto only = [&](int64_t number) {
    return number == 0           ? Pred::First
           : number == count - 1 ? Pred::Last
                                 : Pred::within(number, number);
  };
  auto except = [&](int64_t number) {
    return number == 0           ? Pred::NotFirst
           : number == count - 1 ? Pred::NotLast
                                 : Pred::notWithin(number, number);
  };
  switch (pred.kind) {
  case Pred::Kind::First:
    return only(first);
  case Pred::Kind::NotFirst:
    return except(first);
  case Pred::Kind::Last:
    return last == count - 1 ? Pred::Last : only(last);
  case Pred::Kind::NotLast:
    return last == count - 1 ? Pred::NotLast : except(last);
  default:
    return pred;
  }
}

RunOrder::RunOrder(const plan::Role &role) : bodies_(role.segments.size()) {
  for (Body &body : bodies_)
    body.runs.count = 0;
  follow(role.program);
  for (Body &body : bodies_)
    if (body.runs.count == 0) // as in a program without steps, which tests of passes have
      body.runs = {};
}

/// Follows one step: no body runs in more than one of the program's parts.
void RunOrder::follow(const std::vector<ProgramNode> &nodes) {
  plan::forEachRun(nodes, [&](const ProgramNode &node, int64_t iteration) {
    Body &body = bodies_[node.segment];
    for (int64_t i = 0; i < node.count; ++i) {
      body.runs.last = node.microbatch ? node.microbatch->at(iteration) : i;
      body.end = count_++;
      if (body.runs.count++ == 0)
        body.runs.first = body.runs.last, body.begin = body.end;
    }
    return true;
  });
  for (const ProgramNode &node : nodes)
    if (node.kind == ProgramNode::Steps || node.kind == ProgramNode::Every)
      follow(node.children);
}

bool RunOrder::begins(uint32_t segment, const std::vector<uint32_t> &among) const {
  return std::ranges::all_of(
      among, [&](uint32_t each) { return bodies_[segment].begin <= bodies_[each].begin; });
}

bool RunOrder::ends(uint32_t segment, const std::vector<uint32_t> &among) const {
  return std::ranges::all_of(
      among, [&](uint32_t each) { return bodies_[segment].end >= bodies_[each].end; });
}

} // namespace shardc::passes
