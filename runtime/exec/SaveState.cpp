#include "runtime/exec/SaveState.h"

#include <cmath>
#include <map>

#include "runtime/base/Json.h"
#include "runtime/exec/ModelFlops.h"

namespace shardc::exec {
namespace {

using checkpoint::PlainEntries;
using checkpoint::PlainItems;
using checkpoint::PlainValue;

PlainValue plainValue(const plan::JobValue &value) {
  if (const auto *list = std::get_if<std::vector<std::string>>(&value)) {
    PlainItems items;
    for (const std::string &item : *list)
      items.emplace_back(item);
    return items;
  }
  return std::visit(
      [](const auto &v) -> PlainValue {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::vector<std::string>>)
          return {};
        else
          return PlainValue(v);
      },
      value);
}

/// Steps between evaluations in the program; 0 if it has none.
int64_t evaluationInterval(const std::vector<plan::ProgramNode> &nodes) {
  for (const plan::ProgramNode &node : nodes) {
    if (node.kind == plan::ProgramNode::Every)
      return node.count;
    if (int64_t found = evaluationInterval(node.children); found > 0)
      return found;
  }
  return 0;
}

PlainEntries schedulerOf(const plan::Plan &plan, const Progress &progress) {
  int64_t batch = plan.jobInt("train.global_batch_size", 1); // upstream counts samples
  double decay = plan.jobFloat("optimizer.weight_decay", 0);
  return {
      {"max_lr", plan.jobFloat("optimizer.lr", 0)},
      {"lr_warmup_steps", plan.jobInt("derived.lr_warmup_iters", 0) * batch},
      {"num_steps", progress.applied * batch},
      {"lr_decay_style", plan.jobString("scheduler.lr_decay_style", "linear")},
      {"lr_decay_steps", plan.jobInt("derived.lr_decay_iters", 0) * batch},
      {"min_lr", plan.jobFloat("optimizer.min_lr", 0)},
      {"start_wd", decay},
      {"end_wd", decay},
      {"wd_incr_style", "constant"},
      {"wd_incr_steps", plan.jobInt("train.train_iters", 0) * batch},
  };
}

/// A plan has durations in milliseconds, arguments have them in the unit of their name.
PlainValue argumentOf(std::string_view name, const plan::JobValue &value) {
  const int64_t *milliseconds = std::get_if<int64_t>(&value);
  int64_t unit = name.ends_with("_minutes") || name.ends_with("_in_mins") ? 60'000
                 : name.ends_with("_seconds_after_init")                  ? 1'000
                                                                          : 1;
  if (!milliseconds || unit == 1)
    return plainValue(value);
  if (*milliseconds % unit == 0)
    return *milliseconds / unit;
  return static_cast<double>(*milliseconds) / static_cast<double>(unit);
}

/// Options by the last segment of their paths, which is what Megatron calls them.
PlainEntries argumentsOf(const plan::Plan &plan) {
  std::map<std::string, PlainValue> args;
  for (std::string_view section : {"train.", "optimizer.", "scheduler.", "ddp.", "dist.", "model."})
    for (const auto &[path, value] : plan.job)
      if (path.starts_with(section))
        args[path.substr(section.size())] = argumentOf(path, value);
  args["swiglu"] = plan.jobBool("model.gated_linear_unit", false);
  args["add_position_embedding"] =
      plan.jobString("model.position_embedding_type", "") == "learned_absolute";
  args["padded_vocab_size"] = plan.jobInt("derived.padded_vocab_size", 0);
  args["tokenizer_type"] = plan.jobString("dataset.tokenizer", "none");
  args["ckpt_format"] = plan.jobString("checkpoint.ckpt_format", "");
  args["seed"] = plan.jobInt("rng.seed", 0);
  args["no_save_optim"] = !plan.jobBool("checkpoint.save_optim", true); // loaders do not ask for it
  args["no_save_rng"] = !plan.jobBool("checkpoint.save_rng", true);
  return {args.begin(), args.end()};
}

/// JSON, which YAML contains.
std::string scalarText(const plan::JobValue &value) {
  return std::visit([](const auto &v) { return toText(nlohmann::json(v)); }, value);
}

} // namespace

Progress progressAfter(const plan::Plan &plan, const Progress &begin, const StepState &state) {
  Progress now = begin;
  int64_t batch = plan.jobInt("train.global_batch_size", 1);
  int64_t samples = (state.step - begin.step) * batch;
  now.step = state.step;
  now.applied = state.applied;
  now.lr = state.lr;
  now.consumedTrainSamples += samples;
  if (int64_t interval = plan.roles.empty() ? 0 : evaluationInterval(plan.roles[0].program))
    now.consumedValidSamples += (state.step / interval - begin.step / interval) *
                                plan.jobInt("validation.eval_iters", 0) * batch;
  now.floatingPointOperations += static_cast<double>(samples) *
                                 static_cast<double>(plan.jobInt("model.seq_length", 0)) *
                                 modelFlopsPerToken(plan);
  return now;
}

checkpoint::RunState runStateOf(const plan::Plan &plan, const Progress &progress) {
  checkpoint::RunState state;
  state.iteration = progress.step;
  state.args = argumentsOf(plan);
  if (plan.jobBool("checkpoint.save_optim", true))
    state.scheduler = schedulerOf(plan, progress);
  state.consumedTrainSamples = progress.consumedTrainSamples;
  state.consumedValidSamples = progress.consumedValidSamples;
  state.floatingPointOperations = progress.floatingPointOperations;
  return state;
}

checkpoint::GroupMeta groupMetaOf(const plan::Plan &plan, size_t index, const Progress &progress) {
  const plan::Param &param = plan.params[index];
  checkpoint::GroupMeta meta;
  meta.lrMult = param.lrMult;
  meta.weightDecayMult = param.wdMult;
  meta.defaultConfig = param.lrMult == 1 && param.wdMult == 1;
  meta.maxLr = plan.jobFloat("optimizer.lr", 0);
  meta.minLr = plan.jobFloat("optimizer.min_lr", 0);
  meta.lr = static_cast<double>(progress.lr) * param.lrMult;
  meta.beta1 = plan.jobFloat("optimizer.adam_beta1", meta.beta1);
  meta.beta2 = plan.jobFloat("optimizer.adam_beta2", meta.beta2);
  meta.eps = plan.jobFloat("optimizer.adam_eps", meta.eps);
  meta.weightDecay = plan.jobFloat("optimizer.weight_decay", 0) * param.wdMult;
  meta.step = progress.updatesOf(index);
  return meta;
}

checkpoint::FsdpPrecision fsdpPrecisionOf(const plan::Plan &plan) {
  bool isHalf = plan.jobBool("model.bf16", false);
  return isHalf ? checkpoint::FsdpPrecision::Half : checkpoint::FsdpPrecision::Fp32;
}

std::string runConfigText(const plan::Plan &plan) {
  std::map<std::string, std::string> sections;
  for (const auto &[path, value] : plan.job) {
    size_t dot = path.find('.');
    std::string section = path.substr(0, dot);
    std::string name = dot == std::string::npos ? "kind" : path.substr(dot + 1);
    sections[section] += fmt::format("  {}: {}\n", name, scalarText(value));
  }
  std::string text;
  for (const auto &[section, lines] : sections)
    text += fmt::format("{}:\n{}", section, lines);
  return text;
}

} // namespace shardc::exec
