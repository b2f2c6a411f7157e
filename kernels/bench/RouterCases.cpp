#include "kernels/bench/RouterCases.h"

namespace shardc::kernels::bench {
namespace {

/// Sets the router's attributes. It has as many groups of experts as attention has groups of heads.
void setRouter(Builder &b) {
  Attrs &attrs = b.attrs();
  attrs.topk = 2, attrs.score = 1; // sigmoid
  attrs.expert_groups = b.model.groups, attrs.group_topk = 2;
  attrs.scale = 1.5;
}

} // namespace

void makeRouterTopk(Builder &b) {
  const Model &m = b.model;
  setRouter(b);
  b.floats({m.rows(), m.heads}).floats({m.heads});
  b.to(DType::I32, {m.rows(), 2}).toFloats({m.rows(), 2});
}

/// Chooses all experts, so that the result shows how a change in one row affects the order in other
/// rows.
void makeRouterSinkhorn(Builder &b) {
  const Model &m = b.model;
  b.attrs().topk = m.heads, b.attrs().pre_softmax = true;
  b.floats({m.rows(), m.heads}).to(DType::I32, {m.rows(), m.heads}).toFloats({m.rows(), m.heads});
}

void makeRouterTopkBwd(Builder &b) {
  const Model &m = b.model;
  setRouter(b);
  b.floats({m.rows(), 2}).floats({m.rows(), m.heads}).ids({m.rows(), 2}, m.heads);
  b.toFloats({m.rows(), m.heads});
}

/// The capacity is smaller than the number of rows.
void makeRouterDrop(Builder &b) {
  const Model &m = b.model;
  b.attrs().experts = m.heads, b.attrs().capacity_factor = 0.75;
  b.ids({m.rows(), 3}, m.heads).floats({m.rows(), 3}).to(DType::I32, {m.rows(), 3});
}

void makeExpertLoad(Builder &b) {
  const Model &m = b.model;
  b.ids({m.rows(), 3}, m.heads).toFloats({m.batch, m.heads});
}

void makeRouterLoss(Builder &b) {
  const Model &m = b.model;
  b.attrs().score = 1, b.attrs().scale = 0.5; // sigmoid
  b.floats({m.rows(), m.heads}).floats({m.batch, m.heads}).toFloats({m.rows()});
}

void makeRouterLossBwd(Builder &b) {
  const Model &m = b.model;
  b.attrs().score = 1, b.attrs().scale = 0.5;
  b.floats({m.rows(), m.heads}).floats({m.batch, m.heads}).state();
  b.toFloats({m.rows(), m.heads});
}

void makeRouterZLoss(Builder &b) {
  b.floats({b.model.rows(), b.model.heads}).toFloats({b.model.rows()});
}

void makeRouterZLossBwd(Builder &b) {
  b.floats({b.model.rows(), b.model.heads}).state().toFloats({b.model.rows(), b.model.heads});
}

void makeTally(Builder &b) {
  const Model &m = b.model;
  b.attrs().slots = 4, b.attrs().slot = 1, b.attrs().scale = 0.5;
  b.floats({m.rows(), m.heads}).ones({1}).toFloats({4, m.heads});
}

void makeRoll(Builder &b) {
  const Model &m = b.model;
  b.attrs().by = 1;
  b.floats({m.batch, m.positions}).toFloats({m.batch, m.positions});
}

void makeTokenCount(Builder &b) { b.ones({b.model.batch, b.model.positions}).toFloats({1}); }

void makeRunningMean(Builder &b) { b.floats({1, b.model.heads}).toFloats({1, b.model.heads}); }

/// One call updates the biases of several layers.
void makeExpertBiasUpdate(Builder &b) {
  const Model &m = b.model;
  b.attrs().rate = 0.125, b.attrs().experts = b.model.heads;
  b.floats({m.rows(), m.heads}).floats({m.rows(), m.heads}).update(0);
}

} // namespace shardc::kernels::bench
