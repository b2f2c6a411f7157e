// A small plan with state to save: one block with three parameters.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/plan/Plan.h"
#include "runtime/save/StateLayout.h"

namespace shardc::test {

inline const std::string kFc1 = "decoder.layers.0.mlp.linear_fc1.weight";
inline const std::string kNorm = "decoder.layers.0.mlp.linear_fc1.layer_norm_weight";
inline const std::string kWords = "embedding.word_embeddings.weight";

inline plan::Param param(const std::string &name, plan::Type type, int64_t offset) {
  plan::Param param;
  param.name = name;
  param.type = type;
  param.block = 0;
  param.offset = offset;
  return param;
}

/// A cell of the only block.
inline plan::Cell cell(plan::CellKind kind, const std::string &name, DType dtype, int64_t numel) {
  plan::Cell cell;
  cell.name = name;
  cell.kind = kind;
  cell.of = 0;
  cell.type = plan::Type::of(dtype, {numel});
  return cell;
}

/// One block of 48 elements: words [3, 4] at 0, a norm [4] at 12, a gated layer [6, 4] at 16, and
/// padding.
inline plan::Plan makePlan(int64_t dp, bool isSharded = true) {
  plan::Plan plan;
  plan.name = "test";
  plan.mesh = {{"dp", dp}};
  plan.groups = {{"dp", {0}}};
  plan.kindGroup(plan::GroupKind::Data) = 0;
  int64_t shard = isSharded ? 48 / dp : 48;
  plan.blocks.push_back({"all", -1, 48, shard, 0, shard, 0});
  plan.params = {param(kWords, plan::Type::of(DType::BF16, {3, 4}), 0),
                 param(kNorm, plan::Type::of(DType::BF16, {4}), 12),
                 param(kFc1, plan::Type::of(DType::BF16, {6, 4}), 16)};
  plan.params[1].wdMult = 0;
  plan::Role role;
  role.name = "all";
  using enum plan::CellKind;
  role.cells = {cell(Weight, "w.all", DType::BF16, shard),
                cell(Master, "master.all", DType::F32, shard),
                cell(FirstMoment, "m.all", DType::F32, shard),
                cell(SecondMoment, "v.all", DType::F32, shard)};
  plan.roles = {role};
  plan.job = {{"checkpoint.ckpt_format", std::string("fsdp_dtensor")},
              {"ddp.use_megatron_fsdp", true},
              {"model.gated_linear_unit", true},
              {"model.num_layers", int64_t{1}},
              {"model.vocab_size", int64_t{3}},
              {"optimizer.adam_beta1", 0.8},
              {"optimizer.lr", 0.5},
              {"optimizer.weight_decay", 0.25},
              {"train.global_batch_size", int64_t{6}}};
  return plan;
}

inline void set(plan::Plan &plan, const std::string &path, const plan::JobValue &value) {
  plan.job.put(path, value);
}

/// The pieces of the state that a rank holds, or that it saves.
inline std::vector<save::StatePiece> piecesOf(const plan::Plan &plan, int64_t dp,
                                              bool toSave = false) {
  auto layout = save::StateLayout::create(plan);
  EXPECT_TRUE(layout.isOk()) << layout.status().message();
  auto pieces = toSave ? layout->piecesToSave(dp) : layout->pieces(dp);
  EXPECT_TRUE(pieces.isOk()) << pieces.status().message();
  return pieces.isOk() ? *pieces : std::vector<save::StatePiece>();
}

} // namespace shardc::test
