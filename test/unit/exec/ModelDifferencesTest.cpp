// Differences between a run's model and the model of a checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/save/ModelDifferences.h"

namespace shardc::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// The options that have another value in a checkpoint with these arguments.
std::vector<std::string> differing(const plan::Plan &plan, checkpoint::PlainEntries args,
                                   bool hasOutput, int64_t rows) {
  checkpoint::RunState state;
  state.args = std::move(args);
  std::vector<save::ModelDifference> found = save::modelDifferences(plan.job, state);
  save::addDroppedTensors(plan.job, state, hasOutput, rows, found);
  std::vector<std::string> lines;
  for (const save::ModelDifference &one : found)
    lines.push_back(fmt::format("{}: {}, {}", one.option, one.saved, one.ours));
  return lines;
}

TEST(ModelDifferences, ReadsTheNamesOfMegatronAndComparesValues) {
  plan::Plan plan;
  plan.job.put("model.position_embedding_type", std::string("rope"));
  plan.job.put("model.vocab_size", int64_t{200});
  plan.job.put("model.share_embeddings_and_output_weights", true);
  EXPECT_THAT(differing(plan,
                        {{"norm_epsilon", 1e-6},
                         {"rotary_base", int64_t{10000}},
                         {"use_rope_scaling", true},
                         {"untie_embeddings_and_output_weights", true},
                         {"window_size", checkpoint::PlainTuple{{int64_t{3}, int64_t{0}}}},
                         {"seq_len_interpolation_factor", 2.0}},
                        /*hasOutput=*/true, /*rows=*/256),
              ElementsAre("model.layernorm_epsilon: 1e-06, 1e-05",
                          "model.rope_scaling: true, false", "model.window_size: [3, 0], not set",
                          "model.seq_len_interpolation_factor: 2, 1",
                          "model.share_embeddings_and_output_weights: false, true"));
  // Missing arguments are not compared. Rows within one padding step may be padding.
  EXPECT_THAT(differing(plan, {}, false, 256), IsEmpty());
  EXPECT_THAT(differing(plan, {{"make_vocab_size_divisible_by", int64_t{8}}}, false, 256),
              ElementsAre("model.vocab_size: 256 rows of embeddings, 200"));
  EXPECT_THAT(differing(plan, {{"vocab_size", int64_t{257}}}, false, 384),
              ElementsAre("model.vocab_size: 257, 200"));
  // A parameter that only the run has is a missing tensor; one that only the checkpoint has would
  // be dropped.
  plan.job.put("model.add_qkv_bias", true);
  EXPECT_THAT(differing(plan, {{"add_qkv_bias", false}, {"qk_layernorm", true}}, false, 0),
              ElementsAre("model.qk_layernorm: true, false"));
}

TEST(ModelDifferences, WhatACheckpointOfNamedLayersDoesNotSayIsNotSet) {
  plan::Plan plan;
  plan.job.put("model.softmax_scale", 0.5);
  plan.job.put("model.final_logit_softcapping", 30.0);
  EXPECT_THAT(
      differing(plan, {{"scale_embeddings", true}, {"post_mlp_layernorm", true}}, false, 0),
      ElementsAre("model.post_mlp_layernorm: true, false", "model.scale_embeddings: true, false"));
  EXPECT_THAT(
      differing(plan, {{"num_layers", int64_t{2}}, {"attn_logit_softcapping", 50.0}}, false, 0),
      ElementsAre("model.softmax_scale: not set, 0.5", "model.attn_logit_softcapping: 50, not set",
                  "model.final_logit_softcapping: not set, 30"));
  plan.job = plan::Job();
  plan.job.put("model.position_embedding_type", std::string("rope"));
  plan.job.put("model.seq_len_interpolation_factor", 2.0);
  const char *megatrons = "rotary_seq_len_interpolation_factor";
  EXPECT_THAT(differing(plan, {{"num_layers", int64_t{2}}, {megatrons, 2.0}}, false, 0), IsEmpty());
  EXPECT_THAT(differing(plan, {{"num_layers", int64_t{2}}, {megatrons, {}}}, false, 0),
              ElementsAre("model.seq_len_interpolation_factor: not set, 2"));
}

TEST(ModelDifferences, WhatShapesDoNotShowOfExpertsAndLatentAttention) {
  const checkpoint::PlainEntries args = {{"moe_router_topk", int64_t{4}},
                                         {"moe_router_score_function", "sigmoid"},
                                         {"moe_router_num_groups", {}},
                                         {"moe_router_group_topk", int64_t{2}},
                                         {"moe_router_topk_scaling_factor", 2.5},
                                         {"rope_type", "rope"},
                                         {"mscale", 0.707},
                                         {"mscale_all_dim", 0.0},
                                         {"glu_linear_offset", 0.0},
                                         {"seq_len_interpolation_factor", {}},
                                         {"window_attn_skip_freq", int64_t{2}}};
  plan::Plan plan;
  EXPECT_THAT(differing(plan, args, false, 0), IsEmpty());
  plan.job.put("model.num_moe_experts", int64_t{8});
  plan.job.put("model.multi_latent_attention", true);
  EXPECT_THAT(differing(plan, args, false, 0),
              ElementsAre("model.rope_type: rope, yarn", "model.mscale: 0.707, 1",
                          "model.moe_router_topk: 4, 2",
                          "model.moe_router_score_function: sigmoid, softmax",
                          "model.moe_router_group_topk: 2, not set",
                          "model.moe_router_topk_scaling_factor: 2.5, not set"));
}

} // namespace
} // namespace shardc::test
