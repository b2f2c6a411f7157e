// Cases of routers' ops. The number of experts is the model's number of heads.
#pragma once

#include "kernels/bench/CaseBuilder.h"

namespace shardc::kernels::bench {

void makeRouterTopk(Builder &b);
void makeRouterSinkhorn(Builder &b);
void makeRouterTopkBwd(Builder &b);
void makeRouterDrop(Builder &b);
void makeExpertLoad(Builder &b);
void makeRouterLoss(Builder &b);
void makeRouterLossBwd(Builder &b);
void makeRouterZLoss(Builder &b);
void makeRouterZLossBwd(Builder &b);
void makeTally(Builder &b);
void makeRoll(Builder &b);
void makeTokenCount(Builder &b);
void makeRunningMean(Builder &b);
void makeExpertBiasUpdate(Builder &b);

} // namespace shardc::kernels::bench
