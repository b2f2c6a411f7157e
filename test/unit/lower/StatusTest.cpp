// Tests that the status of an option in Options.def matches the effect of the option in the code.
// An option is
// clang-format off
//   executed  if some value of it changes the lowered plan, or if passes or the runtime read it
//             from the plan's job;
//   planned   if it is not executed, and findMissing refuses a value of it, or it only refines an
//             option that findMissing refuses;
//   checked   otherwise; if values other than the default are errors, it is not executed.
// clang-format on
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>

#include <gtest/gtest.h>

#include "compiler/config/Evaluate.h"
#include "compiler/config/Steps.h"
#include "compiler/lower/Lower.h"
#include "runtime/base/Io.h"
#include "runtime/plan/Text.h"
#include "test/unit/support/Long.h"

namespace shardc::lower {
namespace {

using config::Opt;
using config::OptionInfo;
using config::OptionStatus;
using config::ValueType;

/// Recipes in which options are tried. Together, they cover every path through lowering.
constexpr const char *kContexts[] = {
    // GPT with dropout and learned positions, on one rank.
    R"(model gpt { num_layers = 2  hidden_size = 32  num_attention_heads = 4  seq_length = 8
                   vocab_size = 61 }
       cluster { gpu = host  gpus_per_node = 1 }
       train { micro_batch_size = 2  global_batch_size = 8  train_iters = 10 }
       optimizer.lr = 1e-3)",
    // Llama with grouped queries and windows, sharded in two instances, in bf16, on GPUs.
    R"(model llama { num_layers = 2  hidden_size = 32  num_attention_heads = 4  num_query_groups = 2
                     seq_length = 8  vocab_size = 61  rope_scaling = true
                     rope_scaling_factor = 8.0  window_size = [3, 0] }
       cluster { gpu = h200  gpus_per_node = 8 }
       train { micro_batch_size = 1  global_batch_size = 16  train_iters = 10 }
       optimizer { lr = 1e-3 }
       dist.use_megatron_fsdp = true
       ddp { data_parallel_sharding_strategy = optim_grads_params
             num_distributed_optimizer_instances = 2 }
       mixed_precision = bf16_mixed)",
    // Recomputation, evaluation, documents, a schedule with all its parts, and bf16 without a
    // preset.
    R"(model gpt { num_layers = 2  hidden_size = 32  num_attention_heads = 4  seq_length = 8
                   vocab_size = 61  bf16 = true  params_dtype = bf16
                   recompute_granularity = full  recompute_method = uniform
                   recompute_num_layers = 1 }
       cluster { gpu = host  gpus_per_node = 4 }
       train { micro_batch_size = 1  global_batch_size = 8  train_iters = 100 }
       validation { eval_iters = 2  eval_interval = 5 }
       scheduler { lr_decay_style = WSD  lr_wsd_decay_iters = 20  lr_warmup_iters = 5 }
       optimizer { lr = 1e-3  optimizer = sgd }
       ddp.use_distributed_optimizer = true
       dataset synthetic { eod_token = 0 })",
    // Muon with grouped queries.
    R"(model llama { num_layers = 1  hidden_size = 32  num_attention_heads = 4  num_query_groups = 2
                     seq_length = 8  vocab_size = 61 }
       cluster { gpu = host  gpus_per_node = 1 }
       train { micro_batch_size = 1  global_batch_size = 2  train_iters = 10 }
       optimizer { lr = 1e-3  optimizer = muon })",
    // Adapters, with weights whose rows consist of whole blocks of 4-bit numbers.
    R"(model llama { num_layers = 1  hidden_size = 64  num_attention_heads = 4  seq_length = 8
                     vocab_size = 61  ffn_hidden_size = 128 }
       cluster { gpu = host  gpus_per_node = 1 }
       train { micro_batch_size = 1  global_batch_size = 2  train_iters = 10 }
       dataset synthetic {}
       peft lora { rank = 2 }
       optimizer { lr = 1e-3 })",
    // Pairs of preferred and rejected answers.
    R"(model llama { num_layers = 1  hidden_size = 32  num_attention_heads = 4  seq_length = 8
                     vocab_size = 61 }
       cluster { gpu = host  gpus_per_node = 1 }
       train { micro_batch_size = 1  global_batch_size = 2  train_iters = 10 }
       dataset synthetic {}
       preference simpo {}
       optimizer { lr = 1e-3 })",
    // PyTorch FSDP2, lengths in samples.
    R"(model llama { num_layers = 4  hidden_size = 32  num_attention_heads = 4  seq_length = 8
                     vocab_size = 61 }
       cluster { gpu = host  gpus_per_node = 2  nodes = 2 }
       train { micro_batch_size = 1  global_batch_size = 8  train_samples = 800 }
       optimizer { lr = 1e-3 }
       scheduler { lr_decay_style = WSD  lr_wsd_decay_samples = 16 }
       dist.use_torch_fsdp2 = true)",
    // fp16 with a loss scale, multi-token prediction, and options from a checkpoint.
    R"(model llama { num_layers = 1  hidden_size = 32  num_attention_heads = 4  seq_length = 8
                     vocab_size = 61  mtp_num_layers = 1 }
       cluster { gpu = host  gpus_per_node = 2 }
       train { micro_batch_size = 1  global_batch_size = 4  train_iters = 10 }
       optimizer { lr = 1e-3 }
       checkpoint.use_checkpoint_args = true
       mixed_precision = fp16_mixed)",
    // Norms on queries and keys; the length of the run is left open.
    R"(model llama { num_layers = 1  hidden_size = 32  num_attention_heads = 4  seq_length = 8
                     vocab_size = 61  qk_layernorm = true }
       cluster { gpu = host  gpus_per_node = 1 }
       train { micro_batch_size = 1  global_batch_size = 4 }
       optimizer { lr = 1e-3 })",
    // A length in samples, a batch of the usual size, and saves.
    R"(model llama { num_layers = 1  hidden_size = 32  num_attention_heads = 4  seq_length = 8
                     vocab_size = 61 }
       cluster { gpu = host  gpus_per_node = 1 }
       train { micro_batch_size = 1  train_samples = 40 }
       checkpoint { save = "saved" }
       optimizer { lr = 1e-3 })",
    // Products of layers in fp8.
    R"(model llama { num_layers = 3  hidden_size = 32  num_attention_heads = 4  seq_length = 16
                     vocab_size = 61 }
       cluster { gpu = host  gpus_per_node = 2 }
       train { micro_batch_size = 1  global_batch_size = 4  train_iters = 10 }
       optimizer { lr = 1e-3 }
       ddp.use_megatron_fsdp = true
       mixed_precision bf16_mixed { fp8 = hybrid  fp8_recipe = tensorwise })",
    // Experts on other ranks, with all options that balance them.
    R"(model mixtral { num_layers = 2  hidden_size = 32  num_attention_heads = 4
                       num_query_groups = 2  seq_length = 8  vocab_size = 61
                       expert_model_parallel_size = 2
                       ffn_hidden_size = 16  num_moe_experts = 4  moe_router_topk = 2
                       moe_router_score_function = sigmoid  moe_router_enable_expert_bias = true
                       moe_aux_loss_coeff = [0.1]  moe_z_loss_coeff = 0.01
                       moe_expert_capacity_factor = 0.75 }
       cluster { gpu = host  gpus_per_node = 2 }
       train { micro_batch_size = 2  global_batch_size = 4  train_iters = 10 }
       optimizer { lr = 1e-3 })",
    // Experts that tokens choose by groups, and a shared expert, in bf16.
    R"(model qwen3_moe { num_layers = 2  hidden_size = 32  num_attention_heads = 4
                         num_query_groups = 2  seq_length = 8  vocab_size = 61
                         ffn_hidden_size = 48  moe_ffn_hidden_size = 16  num_moe_experts = 8
                         moe_router_topk = 2  moe_router_num_groups = 2  moe_router_group_topk = 1
                         moe_shared_expert_intermediate_size = 24  moe_aux_loss_coeff = [0.0] }
       cluster { gpu = host  gpus_per_node = 2 }
       train { micro_batch_size = 1  global_batch_size = 4  train_iters = 10 }
       optimizer { lr = 1e-3 }
       mixed_precision = bf16_mixed)",
    // Layers without rotary embeddings and with scaled queries, layers with chunks, a shared
    // expert.
    R"(model llama4 { num_layers = 2  hidden_size = 32  num_attention_heads = 4
                      num_query_groups = 2  kv_channels = 8  seq_length = 8  vocab_size = 61
                      ffn_hidden_size = 48  moe_ffn_hidden_size = 16  num_moe_experts = 4
                      moe_shared_expert_intermediate_size = 24  moe_aux_loss_coeff = [0.0]
                      no_rope_freq = [2]  attention_chunk_size = 3  attn_floor_scale = 2 }
       cluster { gpu = host  gpus_per_node = 2 }
       train { micro_batch_size = 1  global_batch_size = 4  train_iters = 10 }
       optimizer { lr = 1e-3 })",
    // Gated delta nets in every second layer, and gated attention.
    R"(model qwen3_next { num_layers = 2  hidden_size = 32  num_attention_heads = 4  kv_channels = 8
                          seq_length = 8  vocab_size = 61  linear_attention_freq = [2]
                          num_moe_experts = 4  moe_router_topk = 2  moe_ffn_hidden_size = 16
                          moe_shared_expert_intermediate_size = 16  linear_num_key_heads = 2
                          linear_num_value_heads = 4  linear_key_head_dim = 8
                          linear_value_head_dim = 8 }
       cluster { gpu = host  gpus_per_node = 1 }
       train { micro_batch_size = 1  global_batch_size = 4  train_iters = 10 }
       optimizer { lr = 1e-3 })",
    // Layers of a linear attention that no option names.
    R"(model llama { num_layers = 2  hidden_size = 32  num_attention_heads = 4  seq_length = 8
                     vocab_size = 61  linear_attention_freq = [2]  linear_num_key_heads = 2
                     linear_num_value_heads = 4  linear_key_head_dim = 8
                     linear_value_head_dim = 8 }
       cluster { gpu = host  gpus_per_node = 1 }
       train { micro_batch_size = 1  global_batch_size = 4  train_iters = 10 }
       optimizer { lr = 1e-3 })",
    // Mamba-2 mixers, attention, a feed-forward layer and experts, one part a layer.
    R"(model nemotron_h { num_layers = 4  hidden_size = 32  num_attention_heads = 4  kv_channels = 8
                          num_query_groups = 2  seq_length = 8  vocab_size = 61
                          hybrid_layer_pattern = "M*-E"  num_moe_experts = 4
                          moe_router_topk = 2  moe_ffn_hidden_size = 16  mamba_num_groups = 2
                          mamba_head_dim = 8  mamba_state_dim = 8 }
       cluster { gpu = host  gpus_per_node = 1 }
       train { micro_batch_size = 1  global_batch_size = 4  train_iters = 10 }
       optimizer { lr = 1e-3 })",
    // A short convolution in every second layer.
    R"(model lfm2 { num_layers = 2  hidden_size = 32  num_attention_heads = 4  num_query_groups = 2
                    seq_length = 8  vocab_size = 61  short_conv_freq = [2] }
       cluster { gpu = host  gpus_per_node = 1 }
       train { micro_batch_size = 1  global_batch_size = 4  train_iters = 10 }
       optimizer { lr = 1e-3 })",
    // Latent attention.
    R"(model llama { num_layers = 1  hidden_size = 32  num_attention_heads = 4  seq_length = 8
                     vocab_size = 61  multi_latent_attention = true  mscale_all_dim = 0.5
                     qk_layernorm = true }
       cluster { gpu = host  gpus_per_node = 1 }
       train { micro_batch_size = 1  global_batch_size = 4  train_iters = 10 }
       optimizer { lr = 1e-3 })",
    // YaRN.
    R"(model llama { num_layers = 1  hidden_size = 32  num_attention_heads = 4  seq_length = 8
                     vocab_size = 61  position_embedding_type = yarn
                     yarn_rotary_scaling_factor = 4.0  yarn_mscale = 1.0
                     yarn_mscale_all_dim = 0.25 }
       cluster { gpu = host  gpus_per_node = 1 }
       train { micro_batch_size = 1  global_batch_size = 4  train_iters = 10 }
       optimizer { lr = 1e-3 })",
    // Two pipeline stages on four ranks.
    R"(model llama { num_layers = 2  hidden_size = 32  num_attention_heads = 4  seq_length = 8
                     vocab_size = 61  pipeline_model_parallel_size = 2 }
       cluster { gpu = host  gpus_per_node = 4 }
       train { micro_batch_size = 1  global_batch_size = 8  train_iters = 10 }
       optimizer { lr = 1e-3 })",
    // Gated units with a clamp and an offset.
    R"(model llama { num_layers = 1  hidden_size = 32  num_attention_heads = 4  seq_length = 8
                     vocab_size = 61  activation_func = quick_gelu }
       cluster { gpu = host  gpus_per_node = 1 }
       train { micro_batch_size = 1  global_batch_size = 4  train_iters = 10 }
       optimizer { lr = 1e-3 })",
    // The first layers on the host.
    R"(model llama { num_layers = 3  hidden_size = 32  num_attention_heads = 4  seq_length = 8
                     vocab_size = 61  cpu_offloading = true  cpu_offloading_num_layers = 2 }
       cluster { gpu = host  gpus_per_node = 1 }
       train { micro_batch_size = 1  global_batch_size = 4  train_iters = 10 }
       optimizer { lr = 1e-3 })",
    // Modules of all layers on the host.
    R"(model llama { num_layers = 3  hidden_size = 32  num_attention_heads = 4  seq_length = 8
                     vocab_size = 61  fine_grained_activation_offloading = true
                     offload_modules = [attn_norm, core_attn] }
       env.NVTE_CPU_OFFLOAD_V1 = 1
       cluster { gpu = host  gpus_per_node = 1 }
       train { micro_batch_size = 1  global_batch_size = 4  train_iters = 10 }
       optimizer { lr = 1e-3 })",
};

/// Options that refine features of findMissing, that are valid only together with such features, or
/// that rules refuse. An entry is a path, or the beginning of a path if it ends with an underscore.
constexpr llvm::StringLiteral kPlanned[] = {
    "ddp.megatron_fsdp_main_params_dtype",
    "dist.eval_context_parallel_size",
    "model.dsa_",
    "model.fp4",
    "model.fp4_",
    "model.fp8_",
    "model.gdp_",
    "model.hybrid_context_parallel",
    "model.linear_",
    "model.max_seqlen_per_dp_cp_rank",
    "model.mhc_",
    "model.moe_token_dropping",
    "model.mup_",
    "model.qk_clip_",
    "optimizer.adaptive_muon_",
    "optimizer.soap_",
};

/// The options into which others are copied.
std::vector<config::CopiedField> copies() {
  std::vector<config::CopiedField> all = config::copiedFields().vec();
  all.push_back({Opt::CheckpointNonPersistentSaveInterval, Opt::CheckpointInMemoryInterval});
  return all;
}

/// Values of an option's type, as recipe text.
std::vector<std::string> candidatesByType(const OptionInfo &option) {
  auto enumerators = [&](const char *before, const char *behind) {
    std::vector<std::string> values;
    for (llvm::StringRef word : config::enumSpellings(option.type.enumKind))
      values.push_back(before + ("\"" + word.str() + "\"") + behind);
    return values;
  };
  switch (option.type.type) {
  case ValueType::Bool:
    return {"true", "false"};
  case ValueType::Int:
    return {"1", "2", "4", "3", "8", "64", "0", "1000"};
  case ValueType::Float:
    return {"0.5", "0.0", "1.0", "2.0", "1e-4"};
  case ValueType::String:
    return {"\"x\"", "\"2\"", "\"1,1,0\"", "\"f.txt\""};
  case ValueType::Size:
    return {"64KiB", "80GiB", "2"};
  case ValueType::Duration:
    return {"30", "1"};
  case ValueType::Enum:
    return enumerators("", "");
  case ValueType::IntList:
    return {"[1, 1]", "[1]", "[2, 1]", "[1, 0]", "[2, 2, 4]", "[4, 4, 8]"};
  case ValueType::FloatList:
    return {"[0.5]"};
  case ValueType::StringList:
    return {"[\"x\"]", "[\"dp_cp\"]"};
  case ValueType::EnumList:
    return enumerators("[", "]");
  case ValueType::Blend:
    return {"[\"x\"]"};
  }
  return {};
}

std::vector<std::string> candidates(const OptionInfo &option) {
  if (option.opt == Opt::ClusterRates) // the file must exist
    return {"\"" SHARDC_SOURCE_DIR "/test/driver/Inputs/host.jsonl\""};
  std::vector<std::string> values = candidatesByType(option);
  if (option.opt == Opt::ModelHybridLayerPattern)
    values.push_back("\"MM*-\"");
  if (option.opt == Opt::TrainStepBatchSizeSchedule)
    values.push_back("\"0:4 64:8\"");
  if (option.opt == Opt::PeftExclude)
    values.push_back("[\"linear_proj\"]");
  if (option.opt == Opt::PeftModulesToSave)
    values.push_back("[\"norm\"]");
  for (const config::ShorthandInfo &shorthand : config::shorthands())
    if (shorthand.option == option.opt)
      values.push_back(shorthand.word.str());
  return values;
}

/// One recipe on its way to a plan.
struct Tried {
  std::string plan; ///< empty if it is refused
  std::set<Opt> missing;
};

/// The plan's text without the job's options, whose effect shows where they are read, and without
/// locations in the recipe.
std::string planText(plan::Plan plan) {
  for (size_t i = 0; i < plan::kJobFields; ++i) {
    auto field = static_cast<plan::JobField>(i);
    std::string_view path = plan::jobInfo(field).path;
    bool isMade = field == plan::JobField::model_offloadLayers; // from other options
    if (!isMade && (!path.starts_with("derived.") || path.starts_with("derived.loc.")))
      plan.job.unset(field);
  }
  plan.job.environment.clear();
  plan.locs.clear();
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments)
      for (plan::Op &op : segment.ops)
        op.loc = plan::kNone;
  return plan::print(plan, {});
}

/// Options with which passes over data find lengths and checkpoints.
config::LoadOptions withData() {
  config::LoadOptions options;
  options.measure = [](const config::Config &) { return config::DataLengths{100, 30, ""}; };
  options.readCheckpoint = [](const config::Config &) {
    config::CheckpointSettings saved;
    saved.folder = "saved";
    saved.model = {{Opt::ModelHiddenDropout, config::Value::ofFloat(0.25)}};
    saved.parallel = {{Opt::ModelTensorModelParallelSize, config::Value::ofInt(2)}};
    saved.schedule = {{Opt::SchedulerLrDecaySamples, config::Value::ofInt(24)}};
    return saved;
  };
  return options;
}

Tried attempt(const std::string &body, const std::string &set) {
  SourceManager sources;
  DiagEngine diags(sources);
  diags.setErrorLimit(0);
  config::LoadOptions options = withData();
  if (!set.empty())
    options.sets = {set};
  BufferId buffer = sources.addBuffer("r.recipe", "recipe r {\n" + body + "\n}\n");
  std::optional<config::Config> config = config::loadConfig(sources, diags, buffer, options);
  Tried tried;
  if (!config)
    return tried;
  for (const Missing &item : findMissing(*config))
    tried.missing.insert(item.option);
  if (tried.missing.empty())
    tried.plan = planText(lower(*config, sources));
  return tried;
}

bool isWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// Adds each word of the code, and each `a.b` and `a->b` as "a.b".
void addNames(const std::string &code, std::set<std::string> &names) {
  std::string object;
  for (size_t at = 0; at < code.size();) {
    if (!isWord(code[at])) {
      object.clear();
      ++at;
      continue;
    }
    size_t end = at;
    while (end < code.size() && isWord(code[end]))
      ++end;
    std::string word = code.substr(at, end - at);
    names.insert(word);
    if (!object.empty())
      names.insert(object + "." + word);
    size_t dot = code.compare(end, 1, ".") == 0 ? 1 : code.compare(end, 2, "->") == 0 ? 2 : 0;
    object = dot > 0 ? word : "";
    at = end + dot;
  }
}

/// All names in the code that runs after lowering.
std::set<std::string> namesBehindLowering() {
  std::set<std::string> names;
  namespace fs = std::filesystem;
  for (const char *folder : {"compiler/passes", "compiler/predict", "compiler/model", "runtime"})
    for (const auto &entry :
         fs::recursive_directory_iterator(std::string(SHARDC_SOURCE_DIR "/") + folder)) {
      fs::path kind = entry.path().extension();
      if (kind != ".cpp" && kind != ".h" && kind != ".cu")
        continue;
      Result<std::string> text = readFile(entry.path().string());
      EXPECT_TRUE(text.isOk());
      addNames(*text, names);
    }
  // Fields that rows of Optimizers.def name; the code that reads them does not contain their names.
  auto addField = [&](std::string field) {
    constexpr std::string_view kOfField = "ofField(";
    if (field.starts_with(kOfField))
      field = field.substr(kOfField.size(), field.size() - kOfField.size() - 1);
    names.insert("optimizer." + field);
  };
#define MOMENT(optimizer, cell, prefix, name, type) addField(#type);
#define SCALAR(optimizer, attribute, field) addField(#field);
#include "runtime/plan/Optimizers.def"
  return names;
}

class Judge {
public:
  Judge() : names_(namesBehindLowering()) {
    for (size_t i = 0; i < plan::kJobFields; ++i) {
      const plan::JobFieldInfo &field = plan::jobInfo(static_cast<plan::JobField>(i));
      std::string member(field.member), enumerator = member; // of JobField
      std::replace(enumerator.begin(), enumerator.end(), '.', '_');
      if (names_.count(member) != 0 || names_.count(enumerator) != 0)
        read_.emplace(field.path);
    }
    for (const char *context : kContexts) {
      bases_.push_back(attempt(context, ""));
      EXPECT_FALSE(bases_.back().plan.empty()) << context;
    }
  }

  OptionStatus of(const OptionInfo &option) const {
    std::string path = option.path.str();
    bool isRead = read_.count(path) != 0;
    for (auto [field, copy] : copies())
      isRead |= field == option.opt && read_.count(config::info(copy).path.str()) != 0;
    if (option.opt == Opt::ModelPipelineScheduleCsv) // the job has the text of the file
      isRead |= read_.count("derived.pass_order") != 0;
    // The runtime passes every variable of the job on to NCCL, CUDA and other libraries.
    bool isVariable =
        option.section == config::Section::Env && names_.count("job.environment") != 0;
    if (isRead || isVariable)
      return OptionStatus::Executed;
    bool isMissing = false;
    // An option that should have no effect is tried in a quarter of the contexts, different for
    // each option.
    bool isAbsent =
        option.status == OptionStatus::CheckedOnly || option.status == OptionStatus::NotExecuted;
    size_t stride = isAbsent && !test::isLong() ? 4 : 1;
    for (size_t i = static_cast<size_t>(option.opt) % stride; i < std::size(kContexts); i += stride)
      for (const std::string &value : candidates(option)) {
        Tried tried = attempt(kContexts[i], path + " = " + value);
        if (!tried.plan.empty() && tried.plan != bases_[i].plan)
          return OptionStatus::Executed;
        isMissing |= tried.missing.count(option.opt) != 0;
      }
    return isMissing || tellsMoreOfMissing(option.path) ? OptionStatus::Planned
                                                        : OptionStatus::CheckedOnly;
  }

private:
  static bool tellsMoreOfMissing(llvm::StringRef path) {
    for (llvm::StringLiteral planned : kPlanned)
      if (path == planned || (planned.endswith("_") && path.startswith(planned)))
        return true;
    return false;
  }

  std::set<std::string> names_; ///< in the code
  std::set<std::string> read_;  ///< paths of the job's fields that the code names
  std::vector<Tried> bases_;
};

const char *nameOf(OptionStatus status) {
  return status == OptionStatus::Executed  ? "Executed"
         : status == OptionStatus::Planned ? "Planned"
                                           : "CheckedOnly";
}

TEST(Status, IsWhatTheCodeDoes) {
  Judge judge;
  for (const OptionInfo &option : config::options()) {
    OptionStatus status = judge.of(option);
    bool isRefused =
        status == OptionStatus::CheckedOnly && option.status == OptionStatus::NotExecuted;
    EXPECT_TRUE(status == option.status || isRefused)
        << option.path.str() << " is " << nameOf(option.status) << " in Options.def and "
        << nameOf(status) << " in fact";
  }
}

/// All values outside a section whose fields are copied into others; empty for other sections.
std::string valuesOutside(const config::Config &config, config::Section section) {
  std::string text;
  if (section == config::Section::MixedPrecision || section == config::Section::CommOverlap)
    for (const OptionInfo &option : config::options())
      if (option.section != section && option.status != OptionStatus::CheckedOnly)
        text += config.has(option.opt) ? config::toRecipeText(config, option.opt) + "\n" : "\n";
  return text;
}

/// The effects of one more option in a recipe.
struct Outcome {
  config::Value value;  ///< of the option
  std::string others;   ///< see valuesOutside
  std::string plan;     ///< with the job's options; empty if the recipe is refused
  bool isNamed = false; ///< some message names the option
};

Outcome outcomeOf(const std::string &body, const OptionInfo &option, const std::string &value) {
  SourceManager sources;
  DiagEngine diags(sources);
  diags.setErrorLimit(0);
  config::LoadOptions options = withData();
  if (!value.empty())
    options.sets = {option.path.str() + " = " + value};
  Outcome out;
  BufferId buffer = sources.addBuffer("r.recipe", "recipe r {\n" + body + "\n}\n");
  std::optional<config::Config> config = config::loadConfig(
      sources, diags, buffer, options, [&](config::Step, const config::Config &now) {
        out.value = now[option.opt].value;
        out.others = valuesOutside(now, option.section);
      });
  // Messages about a copied field name the copy.
  std::string named = out.others.empty() ? option.path.str() : "." + option.name.str();
  for (const Diagnostic &message : diags.pending())
    out.isNamed |=
        message.text.find(named) != std::string::npos || message.severity == Severity::Error;
  if (!config)
    return out;
  std::vector<Missing> missing = findMissing(*config);
  out.isNamed |= !missing.empty(); // `check` and `run` report these
  if (missing.empty()) {
    plan::Plan plan = lower(*config, sources);
    plan.locs.clear();
    out.plan = plan::print(plan, {});
  }
  return out;
}

/// Whether the recipe means the same without the option. This is so if rules derive the value, if
/// the options to which it is copied have the value, if plans leave it out, or if shardc supports
/// no other value.
bool isMeantAnyway(const OptionInfo &option, const Outcome &base, const Outcome &tried) {
  bool isLeftOut = false;
  for (size_t i = 0; i < plan::kJobFields; ++i)
    isLeftOut |= plan::jobInfo(static_cast<plan::JobField>(i)).path == option.path.str();
  return tried.value == base.value || (!base.others.empty() && tried.others == base.others) ||
         isLeftOut || option.status == OptionStatus::NotExecuted;
}

/// Sets each option to each value of its type. Either the plan differs, or a message says why not.
/// Options that refine a feature that cannot be compiled yet have no effect upstream either, unless
/// the option of the feature is set.
TEST(Status, NoOptionIsIgnoredInSilence) {
  size_t contexts = test::isLong() ? std::size(kContexts) : 1;
  for (size_t i = 0; i < contexts; ++i)
    for (const OptionInfo &option : config::options()) {
      if (option.status == OptionStatus::Planned)
        continue;
      Outcome base = outcomeOf(kContexts[i], option, "");
      for (const std::string &value : candidates(option)) {
        Outcome tried = outcomeOf(kContexts[i], option, value);
        if (isMeantAnyway(option, base, tried))
          continue;
        EXPECT_TRUE(tried.isNamed || tried.plan != base.plan)
            << option.path.str() << " = " << value << " changes nothing in recipe " << i
            << ", and no message says so";
      }
    }
}

TEST(Status, PlannedPathsAreOptions) {
  for (llvm::StringLiteral planned : kPlanned) {
    bool isPath = llvm::any_of(config::options(), [&](const OptionInfo &option) {
      return option.path == planned || (planned.endswith("_") && option.path.startswith(planned));
    });
    EXPECT_TRUE(isPath) << planned.str();
  }
}

} // namespace
} // namespace shardc::lower
