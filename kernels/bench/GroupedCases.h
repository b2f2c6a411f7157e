// Cases of ops on groups of rows. The number of groups is the model's number of key-value heads.
#pragma once

#include "kernels/bench/CaseBuilder.h"

namespace shardc::kernels::bench {

void makeMakeRuns(Builder &b);
void makeDispatch(Builder &b);
void makeCombine(Builder &b);
void makeCombineBwd(Builder &b);
void makeScaleRows(Builder &b);
void makeDotRows(Builder &b);
void makeGroupedBias(Builder &b);
void makeGroupedBiasBwd(Builder &b);
void makeGroupedBiasDot(Builder &b);
void makeGroupedMatMul(Builder &b);
void makeGroupedMatMulBias(Builder &b);
void makeGroupedMatMulDelayed(Builder &b);
void makeGroupedMatMulScaled(Builder &b);
void makeGroupedMatMulBwd(Builder &b);
void makeGroupedMatMulBwdSquares(Builder &b);
void makeGroupedMatMulBwdDelayed(Builder &b);

} // namespace shardc::kernels::bench
