// Options that change training and are not executed: a value that is not the default is refused,
// and the rows that are only checked do not say that they change it.
#include <map>
#include <regex>

#include <gtest/gtest.h>

#include "compiler/config/Evaluate.h"
#include "test/unit/config/Cases.h"

namespace shardc::config::test {
namespace {

std::vector<std::string> valuesOf(const OptionInfo &option) {
  switch (option.type.type) {
  case ValueType::Bool:
    return {"true", "false"};
  case ValueType::Enum: {
    std::vector<std::string> words;
    for (llvm::StringRef word : enumSpellings(option.type.enumKind))
      words.push_back('"' + word.str() + '"');
    return words;
  }
  case ValueType::Int:
    return {"3", "7"};
  case ValueType::Float:
    return {"0.5"};
  case ValueType::Duration:
    return {"7"};
  case ValueType::IntList:
    return {"[1]"};
  case ValueType::StringList:
    return {"[\"x\"]"};
  default:
    return {"\"x\""};
  }
}

bool isRefused(const OptionInfo &option, const std::string &value) {
  auto loaded = loadBody(option.path.str() + " = " + value);
  const Diagnostic *found = loaded->find("option-not-executed");
  return found != nullptr && found->severity == Severity::Error &&
         found->text.find("'" + option.path.str() + "'") != std::string::npos;
}

TEST(NotExecuted, AnotherValueThanTheDefaultIsRefused) {
  for (const OptionInfo &option : options()) {
    if (option.status != OptionStatus::NotExecuted)
      continue;
    bool isOnceRefused = false;
    for (const std::string &value : valuesOf(option))
      isOnceRefused |= isRefused(option, value);
    EXPECT_TRUE(isOnceRefused) << option.path.str();
    if (option.hasDefault()) {
      EXPECT_FALSE(isRefused(option, option.defaultText.str())) << option.path.str();
    }
  }
}

TEST(NotExecuted, UpstreamMayBeAskedForThem) {
  LoadOptions options;
  options.isForUpstream = true;
  EXPECT_FALSE(
      loadBody("train.rampup_batch_size = [4, 4, 80]", options)->has("option-not-executed"));
}

/// Rows that are only checked and whose text has a word of training, with the reason that they do
/// not change it.
const std::map<std::string, std::vector<const char *>> &reviewed() {
  static const std::map<std::string, std::vector<const char *>> kReviewed = {
      {"shardc's numbers are those that it asks for, or are at least as good",
       {
           "model.apply_query_key_layer_scaling",
           "model.attention_softmax_in_fp32",
           "model.perform_initialization",
           "model.use_cpu_initialization",
           "model.init_model_with_meta_device",
           "ddp.check_for_nan_in_grad",
           "train.exit_signal_handler",
           "rerun_state_machine.check_for_nan_in_loss",
           "train.exit_signal_handler_for_dataloader",
           "train.exit_signal_handler_for_training",
       }},
      {"it sets how or when something is computed, stored or sent, not what",
       {"model.masked_softmax_fusion",
        "model.batch_p2p_comm",
        "model.batch_p2p_sync",
        "model.wgrad_deferral_limit",
        "model.tp_comm_overlap_rs_dgrad",
        "model.tp_comm_bulk_wgrad",
        "model.tp_comm_bulk_dgrad",
        "model.disable_parameter_transpose_cache",
        "model.num_microbatches_with_partial_activation_checkpoints",
        "model.overlap_moe_expert_parallel_comm",
        "model.delay_wgrad_compute",
        "model.overlap_dispatch_backward_with_experts_wgrad",
        "model.gtp_remat_opt_in_modules",
        "dist.align_grad_reduce",
        "ddp.megatron_fsdp_use_decoupled_grad",
        "optimizer.reuse_grad_buf_for_mxfp8_param_ag",
        "optimizer.pin_cpu_grads",
        "optimizer.store_param_remainders",
        "optimizer.use_precision_aware_optimizer",
        "model.use_te_rng_tracker",
        "rng.te_rng_tracker",
        "comm_overlap.batch_p2p_comm",
        "comm_overlap.wgrad_deferral_limit",
        "comm_overlap.overlap_moe_expert_parallel_comm",
        "comm_overlap.delay_wgrad_compute",
        "train.manual_gc_eval",
        "dataset.persistent_workers",
        "dataset.create_attention_mask",
        "model.use_fused_weighted_squared_relu"}},
      {"it gives details of an option that is refused",
       {"model.batch_invariant_backend", "rerun_state_machine.spiky_loss_factor",
        "rerun_state_machine.error_injection_type"}},
      {"what it sets is judged at the option that it is copied to",
       {"mixed_precision.fp32", "mixed_precision.fp8_dot_product_attention",
        "mixed_precision.fp8_multi_head_attention", "mixed_precision.fp8_param",
        "mixed_precision.fp4", "mixed_precision.fp4_recipe", "mixed_precision.fp4_param",
        "mixed_precision.fp4_param_gather", "optimizer.fp8_recipe"}},
      {"it is about inference, or about what is logged",
       {
           "model.inference_rng_tracker",
           "model.inference_sampling_seed",
           "model.inference_moe_disable_fused_quant_kernels",
           "optimizer.log_num_zeros_in_grad",
           "rng.inference_rng_tracker",
           "logger.log_num_zeros_in_grad",
           "logger.log_loss_scale_to_tensorboard",
           "logger.log_validation_ppl_to_tensorboard",
           "logger.moe_routing_trace_dump_weights",
       }},
  };
  return kReviewed;
}

TEST(NotExecuted, WhatIsCheckedDoesNotSayThatItChangesTraining) {
  const std::regex words(
      "skip|evaluat|decay|weights|batch|exit|epoch|threshold|loss|stop|seed|spik|"
      "inject|quantis|random|fp32|fp8|fp4|samples|gradients|softmax|initialis|"
      "shuffle|mask");
  std::map<std::string, bool> left; // reviewed rows that were not met yet
  for (const auto &[reason, paths] : reviewed())
    for (const char *path : paths)
      left[path] = true;
  for (const OptionInfo &option : options()) {
    if (option.status != OptionStatus::CheckedOnly || !std::regex_search(option.doc.str(), words))
      continue;
    auto found = left.find(option.path.str());
    EXPECT_TRUE(found != left.end()) << option.path.str() << ": " << option.doc.str();
    if (found != left.end())
      left.erase(found);
  }
  for (const auto &[path, isLeft] : left)
    ADD_FAILURE() << path << " is not a row that is only checked and has such a word";
}

} // namespace
} // namespace shardc::config::test
