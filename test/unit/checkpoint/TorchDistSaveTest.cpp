// The items that Megatron-Core's loaders need of a torch_dist checkpoint in addition to parameters:
// extra states of modules, and the common state in the form that each optimizer merges.
// test/interop compares both with Megatron-Core itself.
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/checkpoint/PickleReader.h"
#include "runtime/checkpoint/TensorRecord.h"
#include "runtime/checkpoint/TorchDist.h"

namespace shardc::checkpoint {
namespace {

using ::testing::UnorderedElementsAre;

/// Keys that a loader requests in addition to the parameters.
std::vector<std::string> extraStates(const std::vector<std::string> &params,
                                     bool numbered = false) {
  std::vector<ParamForm> forms;
  for (const std::string &param : params)
    forms.push_back({param, {4, 2}, Element::F32});
  auto items = extraStateItems(params, torchDistLayout(forms, numbered));
  EXPECT_TRUE(items.isOk()) << items.status().message();
  std::vector<std::string> names;
  for (const BytesItem &item : *items)
    names.push_back(item.name);
  return names;
}

TEST(TorchDistSave, ModulesHaveTheirExtraState) {
  EXPECT_THAT(
      extraStates({"embedding.word_embeddings.weight",
                   "decoder.layers.0.self_attention.linear_qkv.weight",
                   "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight",
                   "decoder.layers.1.self_attention.linear_qkv.weight",
                   "decoder.layers.1.self_attention.linear_qkv.layer_norm_weight",
                   "decoder.final_layernorm.weight", "output_layer.weight"}),
      UnorderedElementsAre("decoder.layers.self_attention.linear_qkv._extra_state/shard_0_2",
                           "decoder.layers.self_attention.linear_qkv._extra_state/shard_1_2",
                           "decoder.layers.self_attention.core_attention._extra_state/shard_0_2",
                           "decoder.layers.self_attention.core_attention._extra_state/shard_1_2",
                           "decoder.final_layernorm._extra_state/shard_0_1"));
  EXPECT_THAT(
      extraStates({"decoder.layers.0.mlp.linear_fc1.weight", "decoder.layers.1.mlp.router.weight",
                   "decoder.layers.1.mlp.router.expert_bias",
                   "decoder.layers.1.mlp.experts.linear_fc1.weight0",
                   "decoder.layers.1.mlp.experts.linear_fc1.weight1", "mtp.layers.0.enorm.weight"}),
      UnorderedElementsAre("decoder.layers.0.mlp.linear_fc1._extra_state/shard_0_1",
                           "decoder.layers.1.mlp.experts.experts.linear_fc1._extra_state/shard_0_2",
                           "decoder.layers.1.mlp.experts.experts.linear_fc1._extra_state/shard_1_2",
                           "mtp.layers.0.enorm._extra_state/shard_0_1"));
  EXPECT_THAT(extraStates({"decoder.layers.0.mlp.experts.linear_fc2.weight0"}),
              UnorderedElementsAre(
                  "decoder.layers.mlp.experts.experts.linear_fc2._extra_state/shard_0.0_1.1"));
  EXPECT_THAT(extraStates({"decoder.layers.0.mlp.experts.linear_fc2.weight0"}, /*numbered=*/true),
              UnorderedElementsAre(
                  "decoder.layers.0.mlp.experts.experts.linear_fc2._extra_state/shard_0_1"));
}

/// The optimizer's part of a common state, as Python prints it; tensors are shown as their classes.
std::string optimizerText(const TorchDistOptimizer &optimizer) {
  TorchDistCommon common = torchDistCommon(RunState(), optimizer);
  auto archive = ArchiveReader::open(
      {reinterpret_cast<const uint8_t *>(common.file.data()), common.file.size()});
  EXPECT_TRUE(archive.isOk() && archive->prefix() == "common");
  auto pickle = readPickle(archive->find("data.pkl")->data, PickleContext::BytesItem);
  EXPECT_TRUE(pickle.isOk()) << pickle.status().message();
  const PyGraph &graph = pickle->graph;
  std::string text;
  std::function<void(PyId)> add = [&](PyId id) {
    std::span<const PyId> items =
        graph.is(id, PyKind::Dict) ? graph.items(id) : std::span<const PyId>();
    for (size_t i = 0; i < items.size(); i += 2) {
      std::string key = graph.is(items[i], PyKind::Int)
                            ? std::to_string(graph.integer(items[i]))
                            : std::string(graph.asText(items[i]).value_or("?"));
      if (key == "lr")
        return;
      text += key + (graph.is(items[i + 1], PyKind::Dict) ? "{" : " ");
      add(items[i + 1]);
      if (graph.is(items[i + 1], PyKind::Dict))
        text += "}";
      if (auto step = tensorOf(*archive, graph, items[i + 1]); step.isOk())
        text += fmt::format("= {} ", *reinterpret_cast<const float *>(step->origin()));
    }
  };
  add(graph.lookup(pickle->root, "optimizer"));
  return text;
}

// `moe_layer_freq` in a checkpoint may be a list, a number, or a text as in older checkpoints of
// shardc.
TEST(TorchDistSave, LayersOfAListAreNumbered) {
  auto has = [](PlainValue pattern) { return numbersLayers({{"moe_layer_freq", pattern}}); };
  EXPECT_TRUE(has(PlainItems{1, 1, 1}));
  EXPECT_FALSE(has(PlainValue(1)));
  EXPECT_FALSE(has(PlainItems{"1", "1", "1"}));
  EXPECT_FALSE(numbersLayers({}));
}

// The common state has the form that each of Megatron's optimizers merges with its own request.
TEST(TorchDistSave, EachOptimizerHasItsOwnForm) {
  GroupMeta group;
  group.step = 7;
  EXPECT_EQ(optimizerText({{group}}), "optimizer{param_groups }param_state_sharding_type ");
  EXPECT_EQ(optimizerText({{group}, false, false, false}), "state{}param_groups ");
  EXPECT_EQ(optimizerText({{group}, false, false, true}), "state{common_step = 7 }param_groups ");
  EXPECT_EQ(optimizerText({{group}, false, true, true}),
            "optimizer{state{common_step = 7 }param_groups }");
  EXPECT_EQ(optimizerText({}), "");
  GroupMeta divided = group;
  divided.isExpertParallel = true;
  EXPECT_EQ(optimizerText({{group, divided}, false, false, true}),
            "0{state{common_step = 7 }param_groups }1{state{common_step = 7 }param_groups }");
  // The optimizers: Muon, the one for divided experts, and the one for all other parameters.
  GroupMeta matrices = group, experts = divided, rest = group;
  matrices.momentum = experts.momentum = 0.95;
  rest.isOfRest = true;
  EXPECT_EQ(optimizerText({{matrices, experts, rest}, false, false, true}),
            "0{state{}param_groups }1{state{}param_groups }"
            "2{state{common_step = 7 }param_groups }");
}

} // namespace
} // namespace shardc::checkpoint
