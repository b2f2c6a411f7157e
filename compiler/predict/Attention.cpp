#include "compiler/predict/Attention.h"

namespace shardc::predict {

using plan::OpKind;
using Key = plan::AttrKey;

bool isAttentionBwd(OpKind kind) { return plan::opInfo(kind).work.isGradient; }

const plan::Type &keysOf(const plan::Segment &segment, const plan::Op &op) {
  return segment.values[op.operands[static_cast<size_t>(plan::opInfo(op).keys)]].type;
}

const plan::Type &valuesOf(const plan::Segment &segment, const plan::Op &op) {
  return segment.values[op.operands[static_cast<size_t>(plan::opInfo(op).values)]].type;
}

const plan::Type &queriesOf(const plan::Segment &segment, const plan::Op &op) {
  return segment.values[op.operands[static_cast<size_t>(plan::opInfo(op).queries)]].type;
}

/// Reads the properties from the op's attributes and the shapes of its operands, for separate and
/// for packed queries, keys and values.
AttentionKind attentionKindOf(const plan::Segment &segment, const plan::Op &op) {
  const plan::Type &q = queriesOf(segment, op);
  AttentionKind kind;
  kind.type = q.dtype;
  kind.drops = op.getFloat(Key::p) > 0;
  kind.hasDocuments = op.getBool(Key::reset_mask);
  kind.hasWindow = op.getInt(Key::window) >= 0;
  kind.hasChunks = op.getInt(Key::chunk) > 0;
  kind.isCapped = op.getFloat(Key::soft_cap) > 0;
  kind.packed = plan::opInfo(op).hasPackedHeads;
  kind.hasSlices = plan::opInfo(op).hasSlices;
  kind.isCausal = op.getBool(Key::causal);
  kind.hasAllKeys = kind.hasSlices && keysOf(segment, op).shape[1] > q.shape[1];
  kind.hasUnknownOrder = kind.hasSlices && op.getBool(Key::causal) && op.getInt(Key::slices) == 0;
  if (kind.packed) {
    kind.heads = op.getInt(Key::num_heads);
    kind.groups = op.getInt(Key::num_groups);
    kind.channels = kind.values = op.getInt(Key::head_dim);
  } else {
    kind.heads = q.shape[2];
    kind.groups = keysOf(segment, op).shape[2];
    kind.channels = q.shape[3];
    kind.values = valuesOf(segment, op).shape[3];
  }
  return kind;
}

} // namespace shardc::predict
