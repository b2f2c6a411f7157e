// Cases of attention on whole sequences and on slices, of attention sinks, and of their gradients.
#pragma once

#include "kernels/bench/CaseBuilder.h"

namespace shardc::kernels::bench {

void makeAttention(Builder &b);
void makeAttentionBwd(Builder &b);
void makeAttentionQkv(Builder &b);
void makeAttentionQkvBwd(Builder &b);
void makeAttentionPart(Builder &b);
void makeAttentionPartBwd(Builder &b);
void makeAttentionJoin(Builder &b);
void makeAttentionSink(Builder &b);
void makeAttentionSinkBwd(Builder &b);

} // namespace shardc::kernels::bench
