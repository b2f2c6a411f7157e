// attention_qkv and attention_qkv_bwd as the ops that they are made of: calls of split_qkv,
// attention, attention_bwd and merge_qkv on parts in scratch. Any backend's kernels may run them.
#pragma once

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

/// Null, or why the call of attention_qkv (or its gradient) is not sound.
const char *checkAttentionQkv(const Call &call, bool backward);

/// The parts of a call's qkv, or of its gradient: q, k, v without an address.
struct QkvParts {
  Tensor q, k, v;

  QkvParts(const Tensor &qkv, const Attrs &attrs);
};

/// The calls that a call of attention_qkv is made of; workspaces are to be set.
struct AttentionQkvCalls {
  Call split, attention;

  AttentionQkvCalls(const Call &call, const QkvParts &parts);
};

/// The calls that a call of attention_qkv_bwd is made of; workspaces are to be set.
struct AttentionQkvBwdCalls {
  Call split, attention, merge;

  AttentionQkvBwdCalls(const Call &call, const QkvParts &parts, const QkvParts &gradients);
};

} // namespace shardc::kernels::host
