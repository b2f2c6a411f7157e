// attention_qkv and attention_qkv_bwd as sequences of other ops: calls of split_qkv, attention,
// attention_bwd and merge_qkv on parts in scratch. The kernels of any backend can run them.
#pragma once

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

/// Null, or the reason why the call of attention_qkv (or its gradient) is invalid.
const char *checkAttentionQkv(const Call &call, bool backward);

/// The types of q, k and v that a call's packed qkv (or its gradient) consists of. Their addresses
/// are null.
struct QkvParts {
  Tensor q, k, v;

  QkvParts(const Tensor &qkv, const Attrs &attrs);
};

/// The calls for a call of attention_qkv; the caller sets their workspaces.
struct AttentionQkvCalls {
  Call split, attention;

  AttentionQkvCalls(const Call &call, const QkvParts &parts);
};

/// The calls for a call of attention_qkv_bwd; the caller sets their workspaces.
struct AttentionQkvBwdCalls {
  Call split, attention, merge;

  AttentionQkvBwdCalls(const Call &call, const QkvParts &parts, const QkvParts &gradients);
};

} // namespace shardc::kernels::host
