// Cases of gated activations, with the width of the model's feed-forward layers.
#pragma once

#include "kernels/bench/CaseBuilder.h"

namespace shardc::kernels::bench {

void makeSwiGlu(Builder &b);
void makeSwiGluBwd(Builder &b);
void makeQuickGeGlu(Builder &b);
void makeQuickGeGluBwd(Builder &b);
void makeWeightedSwiGlu(Builder &b);
void makeWeightedSwiGluBwd(Builder &b);
void makeWeightedQuickGeGlu(Builder &b);
void makeWeightedQuickGeGluBwd(Builder &b);

} // namespace shardc::kernels::bench
