// The parameters of a model with Megatron-Core's names, shapes and row layouts, and their indices
// for each layer.
#pragma once

#include <vector>

#include "compiler/config/Config.h"
#include "runtime/plan/Plan.h"

namespace shardc::lower {

/// Indices in Plan::params; -1 if the model has no such parameter.
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
/// unit, with its parameters one after the other. shard-units replaces this layout.
ParamTable makeParamTable(const config::Config &config, plan::Plan &plan);

} // namespace shardc::lower
