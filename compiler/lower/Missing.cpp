// What a configuration asks for and no op expresses. What is not named here has to compile, and its
// plan has to run: test/random/run.py holds that on random recipes.
#include "compiler/config/Evaluate.h"
#include "compiler/lower/Lower.h"

namespace shardc::lower {
namespace {

using config::Config;
using config::Opt;

/// Options that change what a model computes or how it learns, and that no op knows yet.
constexpr std::pair<Opt, const char *> kForeign[] = {
    {Opt::ModelFp8, "fp8 products"},
    {Opt::ModelFp4, "fp4 products"},
    {Opt::ModelPeft, "adapters"},
    {Opt::ModelMegatronMimo, "models of several modules"},
    {Opt::ModelMtpNumLayers, "layers that predict further tokens"},
    {Opt::ModelSoftmaxType, "attention sinks"},
    {Opt::ModelQkL2Norm, "an L2 norm on query and key"},
    {Opt::ModelQkClip, "clipping of query and key"},
    {Opt::ModelAttentionOutputGate, "gated attention output"},
    {Opt::ModelNoRopeFreq, "layers without rotary positions"},
    {Opt::ModelMropeSection, "rotary positions of several axes"},
    {Opt::ModelLinearAttentionFreq, "linear attention"},
    {Opt::ModelExperimentalAttentionVariant, "other kinds of attention"},
    {Opt::ModelIsHybridModel, "layers of several kinds"},
    {Opt::ModelEnableMhcConnections, "several residual streams"},
    {Opt::ModelApplyResidualConnectionPostLayernorm, "residuals behind norms"},
    {Opt::ModelLayernormZeroCenteredGamma, "zero-centred norm weights"},
    {Opt::ModelGluLinearOffset, "an offset in the gated unit"},
    {Opt::ModelActivationFuncClampValue, "clamped activations"},
    {Opt::ModelUseMup, "scaling by width"},
    {Opt::OptimizerDecoupledLr, "learning rates of single weights"},
    {Opt::TrainRampupBatchSize, "growing batches"},
};

/// What tells more about the options that findMissing names, and what can only be asked for
/// together with them.
constexpr llvm::StringLiteral kPlanned[] = {
    "ddp.outer_dp_sharding_strategy",
    "model.account_for_",
    "model.cpu_offloading_",
    "model.dsa_",
    "model.expert_model_parallel_size",
    "model.fp4",
    "model.fp4_",
    "model.fp8_",
    "model.kv_lora_rank",
    "model.linear_",
    "model.mhc_",
    "model.moe_",
    "model.mtp_",
    "model.mup_",
    "model.num_layers_in_",
    "model.peft",
    "model.q_lora_rank",
    "model.qk_clip_",
    "model.qk_head_dim",
    "model.qk_pos_emb_head_dim",
    "model.sequence_parallel",
    "model.v_head_dim",
    "model.virtual_pipeline_model_parallel_size",
    "model.window_attn_skip_freq",
    "model.yarn_",
    "optimizer.adaptive_muon_",
    "optimizer.decoupled_min_lr",
    "optimizer.exp_avg_dtype",
    "optimizer.exp_avg_sq_dtype",
    "optimizer.muon_",
};

/// Whether the option is anything else than what it is by default.
bool asksFor(const Config &config, Opt option) {
  if (!config.has(option) || config[option].from.origin == config::Origin::Default)
    return false;
  const config::OptionInfo &info = config::info(option);
  return !info.hasDefault() ||
         config[option].value != config::parseTableValue(info.defaultText, info);
}

} // namespace

std::vector<Missing> findMissing(const Config &config) {
  const config::Derived &d = config.derived();
  std::vector<Missing> missing;
  auto need = [&](bool asked, const char *what, Opt option) {
    if (asked)
      missing.push_back({what, option});
  };
  using config::Activation;
  auto activation = config.getEnumOr(Opt::ModelActivationFunc, Activation::Gelu);
  need(d.tensorParallel > 1, "tensor-parallel partitioning", Opt::ModelTensorModelParallelSize);
  need(d.pipelineParallel > 1, "pipeline-parallel partitioning",
       Opt::ModelPipelineModelParallelSize);
  need(d.contextParallel > 1, "context-parallel partitioning", Opt::ModelContextParallelSize);
  need(d.expertParallel > 1, "expert-parallel partitioning", Opt::ModelExpertModelParallelSize);
  need(d.dataParallelOuter > 1, "collectives between optimizer instances",
       Opt::DdpNumDistributedOptimizerInstances);
  need(config.has(Opt::ModelNumMoeExperts), "moe_router", Opt::ModelNumMoeExperts);
  need(d.gated ? activation != Activation::Silu : activation != Activation::Gelu,
       d.gated ? "a gated activation other than swiglu" : "an activation other than gelu",
       Opt::ModelActivationFunc);
  need(config.isOn(Opt::ModelQkLayernorm), "qk_layernorm", Opt::ModelQkLayernorm);
  need(config.is(Opt::ModelPositionEmbeddingType, config::PositionEmbedding::Yarn), "yarn",
       Opt::ModelPositionEmbeddingType);
  need(config.has(Opt::ModelSeqLenInterpolationFactor), "interpolation of positions",
       Opt::ModelSeqLenInterpolationFactor);
  need(config.isOn(Opt::ModelMultiLatentAttention), "latent attention",
       Opt::ModelMultiLatentAttention);
  need(config.isOn(Opt::ModelFp16), "loss scaling", Opt::ModelFp16);
  need(dtypeBytes(d.params) < 2, "weights in fp8", Opt::ModelParamsDtype);
  need(d.params == DType::F16 && !config.isOn(Opt::ModelFp16), "weights in fp16",
       Opt::ModelParamsDtype);
  need(config.isOn(Opt::ModelCpuOffloading), "activation offload", Opt::ModelCpuOffloading);
  need(config.has(Opt::ModelWindowSize), "sliding-window attention", Opt::ModelWindowSize);
  for (const auto &[option, what] : kForeign)
    need(asksFor(config, option), what, option);
  using config::OptimizerKind;
  auto optimizer = config.getEnumOr(Opt::OptimizerOptimizer, OptimizerKind::Adam);
  need(optimizer != OptimizerKind::Adam && optimizer != OptimizerKind::Sgd,
       "an update rule other than adam and sgd", Opt::OptimizerOptimizer);
  // Optimizers update weights and moments in fp32, and gradients are fp32 or bf16.
  need(d.master != DType::F32, "master weights in another type than fp32",
       Opt::DdpMegatronFsdpMainParamsDtype);
  need(d.mainGrads == DType::F16, "gradients in fp16", Opt::DdpMegatronFsdpMainGradsDtype);
  need(d.wire == DType::F16 && d.mainGrads != DType::F16, "reductions in fp16",
       Opt::DdpMegatronFsdpGradCommDtype);
  need(d.expAvg != DType::F32, "moments in another type than fp32", Opt::OptimizerExpAvgDtype);
  need(d.expAvgSq != DType::F32, "moments in another type than fp32", Opt::OptimizerExpAvgSqDtype);
  return missing;
}

llvm::ArrayRef<llvm::StringLiteral> plannedPaths() { return kPlanned; }

} // namespace shardc::lower
