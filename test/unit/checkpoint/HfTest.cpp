// Hugging Face models of every family: imported, compared with Megatron's layout, and exported
// again without a difference.
#include <gtest/gtest.h>

#include "runtime/checkpoint/HfConvert.h"
#include "runtime/checkpoint/SafeTensors.h"
#include "test/unit/checkpoint/TestFiles.h"

namespace shardc::checkpoint {
namespace {

/// A hub's folder; element i of a tensor is i plus a number of the tensor's own.
class Hub {
public:
  Hub(std::string folder, std::string config) : folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_);
    putContents(folder_ + "/config.json", config);
    putContents(folder_ + "/tokenizer.json", "{}");
  }

  void add(const std::string &name, Shape shape) {
    std::vector<float> values(static_cast<size_t>(*elementCount(shape)));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = next_ + static_cast<float>(i);
    next_ += 1000;
    addValues(name, std::move(shape), std::move(values));
  }
  void addCopy(const std::string &name, Shape shape, const std::string &of) {
    addValues(name, std::move(shape), values_.at(of));
  }
  void addBytes(const std::string &name, Element type, Shape shape, std::string bytes) {
    sources_.push_back({name, type, std::move(shape), [bytes](ByteSink &sink) {
                          return sink.write(bytes.data(), bytes.size());
                        }});
  }
  const std::string &finish() {
    EXPECT_OK(writeSafeTensors(folder_ + "/model.safetensors", sources_));
    return folder_;
  }
  const std::vector<float> &operator[](const std::string &name) const { return values_.at(name); }

private:
  void addValues(const std::string &name, Shape shape, std::vector<float> values) {
    addBytes(name, Element::F32, std::move(shape),
             {reinterpret_cast<const char *>(values.data()), values.size() * 4});
    values_[name] = std::move(values);
  }

  std::string folder_;
  float next_ = 0;
  std::map<std::string, std::vector<float>> values_;
  std::vector<SafeTensorSource> sources_;
};

constexpr int64_t kHidden = 8, kFfn = 6, kVocab = 10;

std::string configOf(const std::string &type, int64_t heads, int64_t groups,
                     const std::string &more = "") {
  return fmt::format(R"({{"model_type": "{}", "num_hidden_layers": 2, "hidden_size": {}, )"
                     R"("num_attention_heads": {}, )"
                     R"("num_key_value_heads": {}, "intermediate_size": {}, "vocab_size": {}{}}})",
                     type, kHidden, heads, groups, kFfn, kVocab, more);
}

void addAttention(Hub &hub, const std::string &layer, int64_t heads, int64_t groups,
                  int64_t headDim, bool hasBias, bool hasNorm) {
  for (const auto &[part, count] :
       {std::pair("q", heads), std::pair("k", groups), std::pair("v", groups)}) {
    hub.add(fmt::format("{}.self_attn.{}_proj.weight", layer, part), {count * headDim, kHidden});
    if (hasBias)
      hub.add(fmt::format("{}.self_attn.{}_proj.bias", layer, part), {count * headDim});
  }
  for (const char *part : {"q", "k"})
    if (hasNorm)
      hub.add(fmt::format("{}.self_attn.{}_norm.weight", layer, part), {headDim});
  hub.add(layer + ".self_attn.o_proj.weight", {kHidden, heads * headDim});
  hub.add(layer + ".input_layernorm.weight", {kHidden});
  hub.add(layer + ".post_attention_layernorm.weight", {kHidden});
}

void addEnds(Hub &hub, bool isTied) {
  hub.add("model.embed_tokens.weight", {kVocab, kHidden});
  hub.add("model.norm.weight", {kHidden});
  if (!isTied)
    hub.add("lm_head.weight", {kVocab, kHidden});
}

void addMlp(Hub &hub, const std::string &block, int64_t ffn) {
  hub.add(block + ".gate_proj.weight", {ffn, kHidden});
  hub.add(block + ".up_proj.weight", {ffn, kHidden});
  hub.add(block + ".down_proj.weight", {kHidden, ffn});
}

Result<FsdpCheckpoint> importOf(const std::string &hub, const std::string &root,
                                const HfImportOptions &options = {},
                                std::vector<std::string> *unused = nullptr) {
  RETURN_IF_ERROR(importHf(hub, {root, "ckpt"}, options, {}, unused));
  ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::open(root + "/ckpt"));
  return FsdpCheckpoint::open(std::move(reader));
}

std::vector<float> paramOf(const FsdpCheckpoint &checkpoint, const std::string &name) {
  std::optional<Shape> shape = checkpoint.shapeOf(name, ParamPart::Weight);
  EXPECT_TRUE(shape.has_value()) << name;
  std::vector<float> values(static_cast<size_t>(*elementCount(*shape)));
  EXPECT_OK(
      checkpoint.read(name, ParamPart::Weight, Box::whole(*shape), Element::F32, values.data()));
  return values;
}

/// Expects that the export has all tensors of the hub's model, bitwise equal, except `leftOut`.
void expectSame(const std::string &hub, const std::string &exported,
                const std::set<std::string> &leftOut = {}) {
  Result<SafeTensorsModel> before = SafeTensorsModel::open(hub),
                           after = SafeTensorsModel::open(exported);
  ASSERT_TRUE(before.isOk() && after.isOk()) << after.status().message();
  EXPECT_EQ(before->names().size(), after->names().size() + leftOut.size());
  for (const auto &[name, file] : before->names()) {
    if (leftOut.contains(name))
      continue;
    ASSERT_NE(after->find(name), nullptr) << name;
    EXPECT_EQ(before->find(name)->shape, after->find(name)->shape) << name;
    std::span<const uint8_t> a = before->bytes(name), b = after->bytes(name);
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << name;
  }
  EXPECT_TRUE(std::filesystem::exists(exported + "/config.json"));
  EXPECT_TRUE(std::filesystem::exists(exported + "/tokenizer.json"));
}

void roundTrip(const TempFolder &folder, const std::string &hub,
               const std::set<std::string> &leftOut = {}) {
  HfExportOptions options;
  options.weightType = Element::F32;
  ASSERT_OK(exportHf(folder / "ckpt", hub, folder / "out", options));
  expectSame(hub, folder / "out", leftOut);
}

TEST(HfImport, QueryKeyValueAreInterleavedByGroup) {
  for (const auto &[heads, groups] : {std::pair<int64_t, int64_t>(4, 4), {4, 2}, {4, 1}}) {
    TempFolder folder;
    Hub hub(folder / "hub", configOf("llama", heads, groups));
    addEnds(hub, false);
    for (int i = 0; i < 2; ++i) {
      std::string layer = fmt::format("model.layers.{}", i);
      addAttention(hub, layer, heads, groups, 2, false, false);
      addMlp(hub, layer + ".mlp", kFfn);
    }
    HfImportOptions options;
    options.pieceBytes = 100;
    Result<FsdpCheckpoint> checkpoint = importOf(hub.finish(), folder.path(), options);
    ASSERT_TRUE(checkpoint.isOk()) << checkpoint.status().message();
    std::vector<float> fused = paramOf(*checkpoint,
                                       "decoder.layers.1.self_attention.linear_qkv.weight"),
                       expected;
    auto rows = [&](const char *part, int64_t first, int64_t count) {
      const std::vector<float> &from =
          hub[fmt::format("model.layers.1.self_attn.{}_proj.weight", part)];
      expected.insert(expected.end(), from.begin() + first * 2 * kHidden,
                      from.begin() + (first + count) * 2 * kHidden);
    };
    for (int64_t group = 0; group < groups; ++group) {
      rows("q", group * heads / groups, heads / groups);
      rows("k", group, 1);
      rows("v", group, 1);
    }
    EXPECT_EQ(fused, expected);
    roundTrip(folder, folder / "hub");
  }
}

TEST(HfImport, GatesStandBeforeUpProjectionsAndVocabularyIsPadded) {
  TempFolder folder;
  Hub hub(folder / "hub", configOf("qwen2", 4, 2, R"(, "tie_word_embeddings": true)"));
  addEnds(hub, true);
  hub.addCopy("lm_head.weight", {kVocab, kHidden}, "model.embed_tokens.weight");
  for (int i = 0; i < 2; ++i) {
    std::string layer = fmt::format("model.layers.{}", i);
    addAttention(hub, layer, 4, 2, 2, true, false);
    addMlp(hub, layer + ".mlp", kFfn);
  }
  hub.add("model.layers.0.self_attn.rotary_emb.inv_freq", {1});
  hub.add("surprise", {1});
  std::vector<std::string> unused;
  Result<FsdpCheckpoint> checkpoint = importOf(hub.finish(), folder.path(), {}, &unused);
  ASSERT_TRUE(checkpoint.isOk()) << checkpoint.status().message();
  EXPECT_EQ(unused, std::vector<std::string>{"surprise"});
  EXPECT_NE(
      checkpoint->reader().findTensor("model.module.decoder.layers.0.mlp.linear_fc1.weight_w"),
      nullptr);
  std::vector<float> fc1 = paramOf(*checkpoint, "decoder.layers.0.mlp.linear_fc1.weight"),
                     expected = hub["model.layers.0.mlp.gate_proj.weight"];
  const std::vector<float> &up = hub["model.layers.0.mlp.up_proj.weight"];
  expected.insert(expected.end(), up.begin(), up.end());
  EXPECT_EQ(fc1, expected);
  EXPECT_EQ(checkpoint->shapeOf("embedding.word_embeddings.weight", ParamPart::Weight),
            (Shape{128, kHidden}));
  EXPECT_EQ(paramOf(*checkpoint, "embedding.word_embeddings.weight")[kVocab * kHidden], 0.0f);
  EXPECT_FALSE(checkpoint->shapeOf("output_layer.weight", ParamPart::Weight));
  roundTrip(folder, folder / "hub",
            {"lm_head.weight", "surprise", "model.layers.0.self_attn.rotary_emb.inv_freq"});
}

TEST(HfImport, MixtralAndQwenExperts) {
  for (const char *type : {"mixtral", "qwen3_moe"}) {
    TempFolder folder;
    bool isMixtral = std::string(type) == "mixtral";
    Hub hub(folder / "hub",
            configOf(type, 4, 2, R"(, "num_experts": 3, "num_local_experts": 3, "head_dim": 3)"));
    addEnds(hub, false);
    for (int i = 0; i < 2; ++i) {
      std::string layer = fmt::format("model.layers.{}", i);
      addAttention(hub, layer, 4, 2, 3, false, !isMixtral);
      std::string block = layer + (isMixtral ? ".block_sparse_moe" : ".mlp");
      hub.add(block + ".gate.weight", {3, kHidden});
      for (int expert = 0; expert < 3; ++expert) {
        std::string one = fmt::format("{}.experts.{}", block, expert);
        if (!isMixtral) {
          addMlp(hub, one, kFfn);
          continue;
        }
        hub.add(one + ".w1.weight", {kFfn, kHidden});
        hub.add(one + ".w3.weight", {kFfn, kHidden});
        hub.add(one + ".w2.weight", {kHidden, kFfn});
      }
    }
    Result<FsdpCheckpoint> checkpoint = importOf(hub.finish(), folder.path());
    ASSERT_TRUE(checkpoint.isOk()) << checkpoint.status().message();
    EXPECT_EQ(
        checkpoint->shapeOf("decoder.layers.1.mlp.experts.linear_fc1.weight2", ParamPart::Weight),
        (Shape{2 * kFfn, kHidden}));
    EXPECT_EQ(paramOf(*checkpoint, "decoder.layers.1.mlp.experts.linear_fc2.weight2"),
              hub[isMixtral ? "model.layers.1.block_sparse_moe.experts.2.w2.weight"
                            : "model.layers.1.mlp.experts.2.down_proj.weight"]);
    roundTrip(folder, folder / "hub");
  }
}

TEST(HfImport, ExpertsInOneTensor) {
  TempFolder folder;
  Hub hub(folder / "hub", configOf("qwen3_moe", 4, 2, R"(, "num_experts": 3)"));
  addEnds(hub, false);
  for (int i = 0; i < 2; ++i) {
    std::string layer = fmt::format("model.layers.{}", i);
    addAttention(hub, layer, 4, 2, 2, false, true);
    hub.add(layer + ".mlp.gate.weight", {3, kHidden});
    hub.add(layer + ".mlp.experts.gate_up_proj", {3, 2 * kFfn, kHidden});
    hub.add(layer + ".mlp.experts.down_proj", {3, kHidden, kFfn});
  }
  Result<FsdpCheckpoint> checkpoint = importOf(hub.finish(), folder.path());
  ASSERT_TRUE(checkpoint.isOk()) << checkpoint.status().message();
  std::vector<float> fc1 = paramOf(*checkpoint, "decoder.layers.1.mlp.experts.linear_fc1.weight2");
  const std::vector<float> &all = hub["model.layers.1.mlp.experts.gate_up_proj"];
  EXPECT_EQ(fc1, std::vector<float>(all.begin() + 2 * 2 * kFfn * kHidden, all.end()));
  std::vector<float> fc2 = paramOf(*checkpoint, "decoder.layers.0.mlp.experts.linear_fc2.weight1");
  EXPECT_EQ(fc2[0], hub["model.layers.0.mlp.experts.down_proj"][kHidden * kFfn]);
}

/// Fp8 weights whose shape is not a multiple of the blocks of scales.
void addFp8(Hub &hub, const std::string &name, int64_t rows, int64_t columns) {
  std::string bytes;
  for (int64_t i = 0; i < rows * columns; ++i)
    bytes.push_back(static_cast<char>(0x38 + i % 2 * 8)); // 1 and 2
  hub.addBytes(name, Element::F8E4M3, {rows, columns}, bytes);
  std::vector<float> scales;
  for (int64_t i = 0; i < (rows + 127) / 128 * ((columns + 127) / 128); ++i)
    scales.push_back(static_cast<float>(i + 1) * 0.5f);
  hub.addBytes(name + "_scale_inv", Element::F32, {(rows + 127) / 128, (columns + 127) / 128},
               {reinterpret_cast<const char *>(scales.data()), scales.size() * 4});
}

TEST(HfImport, DeepseekWithLatentAttentionFp8AndPredictors) {
  TempFolder folder;
  Hub hub(folder / "hub",
          configOf("deepseek_v3", 4, 4,
                   R"(, "q_lora_rank": 4, "n_routed_experts": 2, "n_shared_experts": 1, )"
                   R"("moe_intermediate_size": 5, "first_k_dense_replace": 1, )"
                   R"("num_nextn_predict_layers": 1)"));
  addEnds(hub, false);
  for (int i = 0; i < 3; ++i) {
    std::string layer = fmt::format("model.layers.{}", i), attention = layer + ".self_attn.";
    hub.add(layer + ".input_layernorm.weight", {kHidden});
    hub.add(layer + ".post_attention_layernorm.weight", {kHidden});
    hub.add(attention + "q_a_proj.weight", {4, kHidden});
    hub.add(attention + "q_a_layernorm.weight", {4});
    hub.add(attention + "q_b_proj.weight", {12, 4});
    hub.add(attention + "kv_a_proj_with_mqa.weight", {6, kHidden});
    hub.add(attention + "kv_a_layernorm.weight", {4});
    hub.add(attention + "kv_b_proj.weight", {16, 4});
    hub.add(attention + "o_proj.weight", {kHidden, 8});
    if (i == 0) {
      addMlp(hub, layer + ".mlp", kFfn);
      continue;
    }
    hub.add(layer + ".mlp.gate.weight", {2, kHidden});
    hub.add(layer + ".mlp.gate.e_score_correction_bias", {2});
    for (int expert = 0; expert < 2; ++expert)
      addMlp(hub, fmt::format("{}.mlp.experts.{}", layer, expert), 5);
    addMlp(hub, layer + ".mlp.shared_experts", 5);
  }
  for (const char *name : {"enorm", "hnorm", "shared_head.norm"})
    hub.add(fmt::format("model.layers.2.{}.weight", name), {kHidden});
  addFp8(hub, "model.layers.2.eh_proj.weight", 130, 200);
  hub.addCopy("model.layers.2.embed_tokens.weight", {kVocab, kHidden}, "model.embed_tokens.weight");
  hub.addCopy("model.layers.2.shared_head.head.weight", {kVocab, kHidden}, "lm_head.weight");
  std::vector<std::string> unused;
  Result<FsdpCheckpoint> checkpoint = importOf(hub.finish(), folder.path(), {}, &unused);
  ASSERT_TRUE(checkpoint.isOk()) << checkpoint.status().message();
  EXPECT_TRUE(unused.empty());
  std::vector<float> proj = paramOf(*checkpoint, "mtp.layers.0.eh_proj.weight");
  EXPECT_EQ(proj[0], 0.5f);
  EXPECT_EQ(proj[1], 1.0f);
  EXPECT_EQ(proj[128], 1.0f);             // second block of columns
  EXPECT_EQ(proj[128 * 200 + 2], 1.5f);   // second block of rows
  EXPECT_EQ(proj[129 * 200 + 199], 4.0f); // the corner: 2 x 2.0
  EXPECT_EQ(paramOf(*checkpoint, "mtp.layers.0.transformer_layer.mlp.router.expert_bias"),
            hub["model.layers.2.mlp.gate.e_score_correction_bias"]);
  EXPECT_EQ(paramOf(*checkpoint, "mtp.layers.0.final_layernorm.weight"),
            hub["model.layers.2.shared_head.norm.weight"]);
  EXPECT_TRUE(
      checkpoint->shapeOf("decoder.layers.0.mlp.linear_fc1.layer_norm_weight", ParamPart::Weight)
          .has_value());
  EXPECT_TRUE(checkpoint->shapeOf("decoder.layers.1.pre_mlp_layernorm.weight", ParamPart::Weight)
                  .has_value());
}

TEST(HfImport, Gpt2IsTransposed) {
  for (const char *root : {"", "transformer."}) {
    TempFolder folder;
    Hub hub(folder / "hub",
            R"({"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 10})");
    auto add = [&](const std::string &name, Shape shape) {
      hub.add(root + name, std::move(shape));
    };
    add("wte.weight", {kVocab, kHidden});
    add("wpe.weight", {16, kHidden});
    for (const char *norm : {"h.0.ln_1", "h.0.ln_2", "ln_f"})
      for (const char *kind : {"weight", "bias"})
        add(fmt::format("{}.{}", norm, kind), {kHidden});
    for (const auto &[name, in, out] :
         {std::tuple("attn.c_attn", 8, 24), std::tuple("attn.c_proj", 8, 8),
          std::tuple("mlp.c_fc", 8, 32), std::tuple("mlp.c_proj", 32, 8)}) {
      add(fmt::format("h.0.{}.weight", name), {in, out});
      add(fmt::format("h.0.{}.bias", name), {out});
    }
    add("h.0.attn.bias", {1});
    Result<FsdpCheckpoint> checkpoint = importOf(hub.finish(), folder.path());
    ASSERT_TRUE(checkpoint.isOk()) << checkpoint.status().message();
    std::vector<float> fused =
        paramOf(*checkpoint, "decoder.layers.0.self_attention.linear_qkv.weight");
    const std::vector<float> &joined = hub[std::string(root) + "h.0.attn.c_attn.weight"];
    for (int64_t head = 0; head < 2; ++head)
      for (int64_t part = 0; part < 3; ++part)
        for (int64_t row = 0; row < 4; ++row)
          for (int64_t column = 0; column < 8; ++column)
            ASSERT_EQ(fused[static_cast<size_t>(((head * 3 + part) * 4 + row) * 8 + column)],
                      joined[static_cast<size_t>(column * 24 + part * 8 + head * 4 + row)]);
    EXPECT_EQ(checkpoint->shapeOf("decoder.layers.0.mlp.linear_fc1.weight", ParamPart::Weight),
              (Shape{32, 8}));
    EXPECT_NE(
        checkpoint->reader().findTensor("model.module.decoder.layers.0.mlp.linear_fc1.weight"),
        nullptr); // no gate
    if (std::string(root).empty())
      roundTrip(folder, folder / "hub", {"h.0.attn.bias"});
  }
}

/// The configuration of a small llama in which one line is replaced, or added, as a test requests.
std::string configWith(const std::string &key, const std::string &value) {
  std::string text = configOf("llama", 4, 2), line = fmt::format(R"("{}": )", key);
  size_t at = text.find(line);
  if (at == std::string::npos)
    return fmt::format("{}, {}{}}}", text.substr(0, text.size() - 1), line, value);
  size_t begin = at + line.size();
  return text.replace(begin, text.find_first_of(",}", begin) - begin, value);
}

TEST(HfImport, FieldsOfTheConfigurationAreHeldToTheirTypes) {
  for (const char *key : {"num_hidden_layers", "hidden_size", "num_attention_heads", "head_dim",
                          "num_key_value_heads", "intermediate_size", "vocab_size"})
    for (const char *value : {"\"2\"", "2.0", "true", "[2]", "-1", "1e300", "18446744073709551615"})
      EXPECT_FAILS(parseHfConfig(configWith(key, value), "c").status(),
                   fmt::format("'c': {} is ", key));
  EXPECT_FAILS(parseHfConfig(configWith("tie_word_embeddings", "1"), "c").status(),
               "'c': tie_word_embeddings is 1; true or false is needed");
  EXPECT_FAILS(parseHfConfig(configWith("model_type", "7"), "c").status(),
               "'c' has the model type 7; supported are gpt2, ");
  EXPECT_FAILS(parseHfConfig(configWith("vocab_size", "\"\\u001b[31m\""), "c").status(),
               // Control characters are escaped, because a terminal shows the message.
               "vocab_size is \"\\u001b[31m\"");
  for (const char *key : {"head_dim", "num_key_value_heads", "tie_word_embeddings"})
    EXPECT_OK(parseHfConfig(configWith(key, "null"), "c").status());
}

TEST(HfImport, WhatIsMissingIsListed) {
  TempFolder folder;
  Hub hub(folder / "hub", configOf("llama", 4, 2));
  addEnds(hub, false);
  Result<FsdpCheckpoint> checkpoint = importOf(hub.finish(), folder.path());
  EXPECT_FAILS(Status(checkpoint.status()), "does not contain");
  EXPECT_FAILS(Status(checkpoint.status()), "\n  model.layers.0.input_layernorm.weight");
  EXPECT_FALSE(std::filesystem::exists(folder / "ckpt"));
  putContents(folder / "hub/config.json", R"({"model_type": "bert"})");
  EXPECT_FAILS(importOf(folder / "hub", folder.path()).status(),
               R"(has the model type "bert"; supported are gpt2, llama, )");
  putContents(folder / "hub/config.json", configOf("llama", 4, 3));
  EXPECT_FAILS(importOf(folder / "hub", folder.path()).status(), "4 heads are not divisible by 3");
}

} // namespace
} // namespace shardc::checkpoint
