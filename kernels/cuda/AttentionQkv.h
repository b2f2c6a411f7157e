// attention_qkv and attention_qkv_bwd as sequences of other ops, for the kernels that need queries,
// keys and values apart: split_qkv, attention, attention_bwd and merge_qkv, with the parts in
// scratch.
#pragma once

#include "kernels/api/Kernel.h"

namespace shardc::kernels::cuda {

/// The shapes and types of q, k and v in a call's packed qkv (or of their gradients). Addresses are
/// null.
struct QkvParts {
  Tensor q, k, v;

  QkvParts(const Tensor &qkv, const Attrs &attrs);
};

/// The calls that make up attention_qkv. The caller sets their workspaces.
struct AttentionQkvCalls {
  Call split, attention;

  AttentionQkvCalls(const Call &call, const QkvParts &parts);
};

/// The calls that make up attention_qkv_bwd. The caller sets their workspaces.
struct AttentionQkvBwdCalls {
  Call split, attention, merge;

  AttentionQkvBwdCalls(const Call &call, const QkvParts &parts, const QkvParts &gradients);
};

} // namespace shardc::kernels::cuda
