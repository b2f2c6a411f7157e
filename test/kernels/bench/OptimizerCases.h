// Cases of optimizers, and of the op that draws initial weights.
#pragma once

#include "test/kernels/bench/CaseBuilder.h"

namespace shardc::kernels::bench {

void makeAdamW(Builder &b);
void makeSgd(Builder &b);
void makeSgdMomentum(Builder &b);
void makeLion(Builder &b);
void makeMuon(Builder &b);
/// Muon with symmetric products.
void makeMuonOfHalves(Builder &b);
void makeMuonOfLayer(Builder &b);
/// Muon with the updates of two ranks. A rank's block has twice the size of its shard.
void makeMuonOfParts(Builder &b);
void makeMuonUpdate(Builder &b);
void makeMuonSums(Builder &b);
void makeMuonStep(Builder &b);
void makeMuonDivided(Builder &b);
void makeInitBlock(Builder &b);
/// AdamW with master weights in halves: bf16 weights and remainders.
void makeAdamWOfHalves(Builder &b);
void makeInitBlockOfHalves(Builder &b);

} // namespace shardc::kernels::bench
