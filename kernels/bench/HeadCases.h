// Cases of ops on heads of queries and keys.
#pragma once

#include "kernels/bench/CaseBuilder.h"

namespace shardc::kernels::bench {

void makePreferenceLoss(Builder &b);
void makeScalePositions(Builder &b);
void makeRmsNormPart(Builder &b);
void makeRmsNormPartBwd(Builder &b);
void makeL2Norm(Builder &b);
void makeL2NormBwd(Builder &b);
void makeSplitQkvNormRope(Builder &b);
void makeMergeQkvNormRope(Builder &b);
void makeJoinColumns(Builder &b);
void makeDequantize(Builder &b);
void makeDequantizeNested(Builder &b);
void makeMatMulAdd(Builder &b);
void makeExpandParts(Builder &b);
void makeContractParts(Builder &b);
void makeAdapterSquares(Builder &b);
void makeScaleColumns(Builder &b);
void makeScaleColumnsBwd(Builder &b);

} // namespace shardc::kernels::bench
