#include "kernels/bench/AttentionCases.h"

#include <cmath>

namespace shardc::kernels::bench {
namespace {

/// Returns, for each position of a sample, the first position of its document.
std::vector<int32_t> documentsOf(const Model &m) {
  std::vector<int32_t> begins(static_cast<size_t>(m.positions));
  uint32_t state = 3; // of a random number generator
  for (int64_t begin = 0, end = 0; begin < m.positions; begin = end) {
    state = state * 1664525 + 1013904223;
    int64_t length = m.document > 0    ? m.document
                     : m.document == 0 ? m.positions
                                       : 16 + (state >> 8) % 1485;
    end = std::min(begin + length, m.positions);
    std::fill(begins.begin() + begin, begins.begin() + end, static_cast<int32_t>(begin));
  }
  return begins;
}

/// Mean number of keys that a query sees.
double seenInDocuments(const Model &m) {
  double seen = 0;
  std::vector<int32_t> begins = documentsOf(m);
  for (size_t i = 0; i < begins.size(); ++i)
    seen += static_cast<double>(i) - begins[i] + 1;
  return seen / static_cast<double>(m.positions);
}

/// Adds queries, keys and values, and the attributes of attention. Counts the arithmetic of
/// `ofKeys` products along the channels of keys and `ofValues` products along those of values, for
/// visible pairs only.
void attentionOperands(Builder &b, double ofKeys, double ofValues) {
  const Model &m = b.model;
  b.attrs().causal = true;
  b.attrs().window = m.window;
  b.attrs().scale = 1 / std::sqrt(static_cast<double>(m.channels));
  b.data({m.batch, m.positions, m.heads, m.channels});
  b.data({m.batch, m.positions, m.groups, m.channels});
  b.data({m.batch, m.positions, m.groups, m.values()});
  b.attrs().reset_mask = m.document != 0;
  double seen = static_cast<double>(m.window < 0 ? m.positions : 2 * (m.window + 1)) / 2;
  if (m.document != 0)
    seen = seenInDocuments(m);
  b.flops(m.rows() * m.heads, 1, m.channels, ofKeys * seen);
  b.flops(m.rows() * m.heads, 1, m.values(), ofValues * seen);
}

void giveOutput(Builder &b) {
  const Model &m = b.model;
  b.toData({m.batch, m.positions, m.attended()}).toFloats({m.batch, m.heads, m.positions});
}

/// Adds the gradient of the output, which is the first operand.
void takeGradient(Builder &b) { b.data({b.model.batch, b.model.positions, b.model.attended()}); }

void takeOutput(Builder &b) {
  const Model &m = b.model;
  b.data({m.batch, m.positions, m.attended()}).ones({m.batch, m.heads, m.positions});
}

void giveGradients(Builder &b) {
  const Model &m = b.model;
  b.toData({m.batch, m.positions, m.heads, m.channels});
  b.toData({m.batch, m.positions, m.groups, m.channels});
  b.toData({m.batch, m.positions, m.groups, m.values()});
}

void attentionQkvAttrs(Builder &b, double products) {
  const Model &m = b.model;
  b.attrs().causal = true;
  b.attrs().scale = 1 / std::sqrt(static_cast<double>(m.channels));
  b.attrs().num_heads = m.heads, b.attrs().num_groups = m.groups, b.attrs().head_dim = m.channels;
  b.flops(m.rows() * m.heads, m.positions, m.channels, products / 2);
}

/// Adds operands of attention between slices of half a sequence. Keys are the second half.
void sliceOperands(Builder &b, double ofKeys, double ofValues) {
  b.attrs().positions = 2 * b.model.positions;
  attentionOperands(b, ofKeys, ofValues);
}

void sliceWords(Builder &b) {
  const Model &m = b.model;
  for (int i = 0; i < 2; ++i)
    b.ids({m.batch, m.positions}, 2 * m.positions);
  for (int i = 0; i < 2; ++i)
    b.ids({m.batch, m.positions}, 1);
  b.samples();
}

} // namespace

void makeAttention(Builder &b) {
  attentionOperands(b, 1, 1);
  b.words({b.model.batch, b.model.positions}, documentsOf(b.model)).samples();
  giveOutput(b);
}

void makeAttentionBwd(Builder &b) {
  takeGradient(b);
  attentionOperands(b, 3, 2);
  takeOutput(b);
  b.words({b.model.batch, b.model.positions}, documentsOf(b.model)).samples();
  giveGradients(b);
}

void makeAttentionQkv(Builder &b) {
  const Model &m = b.model;
  attentionQkvAttrs(b, 2);
  b.data({m.batch, m.positions, m.qkv()}).ids({m.batch, m.positions}, 1).samples();
  b.toData({m.batch, m.positions, m.hidden()}).toFloats({m.batch, m.heads, m.positions});
}

void makeAttentionQkvBwd(Builder &b) {
  const Model &m = b.model;
  attentionQkvAttrs(b, 5);
  b.data({m.batch, m.positions, m.hidden()}).data({m.batch, m.positions, m.qkv()});
  b.data({m.batch, m.positions, m.hidden()}).ones({m.batch, m.heads, m.positions});
  b.ids({m.batch, m.positions}, 1).samples().toData({m.batch, m.positions, m.qkv()});
}

void makeAttentionPart(Builder &b) {
  sliceOperands(b, 1, 1);
  sliceWords(b);
  giveOutput(b);
}

void makeAttentionPartBwd(Builder &b) {
  takeGradient(b);
  sliceOperands(b, 3, 2);
  takeOutput(b);
  sliceWords(b);
  giveGradients(b);
}

void makeAttentionJoin(Builder &b) {
  const Model &m = b.model;
  for (int i = 0; i < 2; ++i)
    b.data({m.batch, m.positions, m.hidden()}).floats({m.batch, m.heads, m.positions});
  b.toData({m.batch, m.positions, m.hidden()}).toFloats({m.batch, m.heads, m.positions});
}

void makeAttentionSink(Builder &b) {
  const Model &m = b.model;
  b.data({m.batch, m.positions, m.hidden()}).floats({m.batch, m.heads, m.positions});
  b.data({m.heads}).toData({m.batch, m.positions, m.hidden()});
  b.toFloats({m.batch, m.heads, m.positions});
}

void makeAttentionSinkBwd(Builder &b) {
  const Model &m = b.model;
  b.data({m.batch, m.positions, m.hidden()}).data({m.batch, m.positions, m.hidden()});
  b.ones({m.batch, m.heads, m.positions}).data({m.heads}).toFloats({m.heads});
}

} // namespace shardc::kernels::bench
