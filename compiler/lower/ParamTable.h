// The parameters of a model under Megatron-Core's names, shapes and row layouts, and what a layer
// finds them by.
#pragma once

#include <vector>

#include "compiler/config/Config.h"
#include "runtime/plan/Plan.h"

namespace shardc::lower {

/// Indices in Plan::params; -1 where the model has no such parameter.
struct NormParams {
  int weight = -1, bias = -1;
};

struct LayerParams {
  NormParams attentionNorm, mlpNorm;
  int qkv = -1, qkvBias = -1, proj = -1, projBias = -1;
  int fc1 = -1, fc1Bias = -1, fc2 = -1, fc2Bias = -1;
};

struct ParamTable {
  int wordEmbeddings = -1, positionEmbeddings = -1;
  std::vector<LayerParams> layers;
  NormParams finalNorm;
  int output = -1; ///< the word embeddings if they are tied
};

/// Fills plan.units (embedding, layers.N, head), plan.params and plan.blocks: one block for each
/// unit, with its parameters one behind the other. shard-units lays them out anew for the ranks.
ParamTable makeParamTable(const config::Config &config, plan::Plan &plan);

} // namespace shardc::lower
