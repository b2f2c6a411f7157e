#include "compiler/tools/SamplePlan.h"

#include "compiler/lower/Lower.h"
#include "runtime/plan/Text.h"

namespace shardc::tools {

std::vector<std::string> oneRankSettings() {
  return {"cluster.gpu=host", "cluster.nodes=1", "cluster.gpus_per_node=1",
          "model.tensor_model_parallel_size=1", "model.pipeline_model_parallel_size=1",
          "model.context_parallel_size=1", "model.expert_model_parallel_size=1",
          "model.expert_tensor_parallel_size=1", "model.sequence_parallel=false",
          // Options that divide the model among stages, slices and instances are reset.
          "model.virtual_pipeline_model_parallel_size=none",
          "model.pipeline_schedule=one_forward_one_backward",
          "model.microbatch_group_size_per_vp_stage=none",
          "model.pipeline_model_parallel_layout=none",
          "model.num_layers_in_first_pipeline_stage=none",
          "model.num_layers_in_last_pipeline_stage=none",
          "model.account_for_embedding_in_pipeline_split=false",
          "model.account_for_loss_in_pipeline_split=false", "model.cp_comm_type=none",
          "model.hierarchical_context_parallel_sizes=none", "model.tp_comm_overlap=false",
          "ddp.num_distributed_optimizer_instances=1", "ddp.outer_dp_sharding_strategy=no_shard",
          "ddp.keep_frozen=never"};
}

std::optional<std::string> sampleText(const config::Config &config, const CommonOptions &common,
                                      DiagEngine &diags) {
  using config::Opt;
  if (!config.has(Opt::ValidationSamples) || config.getInt(Opt::ValidationSamples) == 0 ||
      !config.has(Opt::ValidationEvalInterval))
    return "";
  config::LoadOptions load = common.load;
  for (std::string &setting : oneRankSettings())
    load.sets.push_back(std::move(setting));
  SourceManager sources;
  DiagEngine own(sources);
  std::optional<config::Config> one = config::loadConfig(sources, own, load);
  std::string why;
  for (const Diagnostic &diagnostic : own.pending())
    if (diagnostic.severity == Severity::Error && why.empty())
      why = diagnostic.text + " [" + diagnostic.id + "]";
  if (!one || !why.empty()) {
    diags.report(diag::SamplesNoPlan, config.range(Opt::ValidationSamples), why);
    return std::nullopt;
  }
  return plan::print(lower::lowerForward(*one, sources, 1));
}

} // namespace shardc::tools
