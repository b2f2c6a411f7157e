#include "compiler/tools/CheckpointSettings.h"

#include <map>
#include <memory>

#include <fmt/format.h>

#include "compiler/tools/StoredArgs.h"
#include "compiler/upstream/Import.h"
#include "runtime/checkpoint/CheckpointView.h"

namespace shardc::tools {
namespace {

using checkpoint::PlainEntries;
using checkpoint::PlainValue;
using config::CheckpointSettings;
using config::Config;
using config::Opt;
using config::Value;

const PlainValue *find(const PlainEntries &entries, std::string_view name) {
  for (const auto &[entry, value] : entries)
    if (entry == name)
      return &value;
  return nullptr;
}

/// Converts the saved schedule to options of a recipe.
class Schedule {
public:
  Schedule(const PlainEntries &entries, CheckpointSettings &settings)
      : entries_(entries), settings_(settings) {}

  void read() {
    takeNumber("max_lr", Opt::OptimizerLr);
    takeNumber("min_lr", Opt::OptimizerMinLr);
    takeWord("lr_decay_style", Opt::SchedulerLrDecayStyle);
    takeSamples("lr_warmup_steps", Opt::SchedulerLrWarmupSamples);
    takeSamples("lr_decay_steps", Opt::SchedulerLrDecaySamples);
    settings_.schedule.push_back({Opt::SchedulerLrWarmupFraction, Value()}); // in lr_warmup_steps
    const PlainValue *style = find(entries_, "wd_incr_style");
    const std::string *word = style != nullptr ? style->as<std::string>() : nullptr;
    if (word == nullptr || *word == "constant") {
      takeNumber("start_wd", Opt::OptimizerWeightDecay);
      settings_.schedule.push_back({Opt::SchedulerStartWeightDecay, Value()});
      settings_.schedule.push_back({Opt::SchedulerEndWeightDecay, Value()});
    } else {
      takeNumber("start_wd", Opt::SchedulerStartWeightDecay);
      takeNumber("end_wd", Opt::SchedulerEndWeightDecay);
    }
    takeWord("wd_incr_style", Opt::SchedulerWeightDecayIncrStyle);
  }

private:
  void takeNumber(std::string_view name, Opt opt) {
    const PlainValue *value = find(entries_, name);
    if (std::optional<double> number = value != nullptr ? value->number() : std::nullopt)
      settings_.schedule.push_back({opt, Value::ofFloat(*number)});
  }

  void takeSamples(std::string_view name, Opt opt) {
    const PlainValue *value = find(entries_, name);
    std::optional<int64_t> samples = value != nullptr ? value->wholeNumber() : std::nullopt;
    if (samples && *samples >= 0)
      settings_.schedule.push_back({opt, Value::ofInt(*samples)});
  }

  void takeWord(std::string_view name, Opt opt) {
    const PlainValue *value = find(entries_, name);
    const std::string *word = value != nullptr ? value->as<std::string>() : nullptr;
    if (word == nullptr)
      return;
    if (std::optional<size_t> index =
            config::findEnumerator(config::info(opt).type.enumKind, *word))
      settings_.schedule.push_back({opt, Value::ofIndex(*index)});
    else
      settings_.problem = fmt::format("'{}' has the {} '{}', which shardc does not know",
                                      settings_.folder, name, *word);
  }

  const PlainEntries &entries_;
  CheckpointSettings &settings_;
};

void readSchedule(CheckpointSettings &settings) {
  Result<checkpoint::CheckpointView> view = checkpoint::CheckpointView::open(settings.folder);
  Result<checkpoint::RunState> state = !view.isOk() ? Result<checkpoint::RunState>(view.status())
                                       : view->torchDist() != nullptr
                                           ? checkpoint::readRunState(*view->torchDist())
                                           : checkpoint::readRunState(view->reader());
  if (!state.isOk())
    settings.problem = state.status().message();
  else if (state->scheduler.empty())
    settings.problem = fmt::format("'{}' has no schedule", settings.folder);
  else
    Schedule(state->scheduler, settings).read();
}

/// A checkpoint that cannot be read is not an error here: the problem is kept, and a rule reports
/// it where options need the checkpoint.
CheckpointSettings readSettings(const Config &config, const std::string &path) {
  CheckpointSettings settings;
  Result<std::string> folder = checkpoint::findCheckpoint(path);
  if (!folder.isOk()) {
    settings.problem = folder.status().message();
    return settings;
  }
  settings.folder = *folder;
  if (config.isOn(Opt::CheckpointUseCheckpointArgs)) {
    Result<upstream::TreePtr> args = readStoredArgs(*folder);
    if (args.isOk())
      upstream::readCheckpointArgs(**args, settings);
    else
      settings.problem = args.status().message();
  }
  if (config.isOn(Opt::SchedulerUseCheckpointOptParamScheduler))
    readSchedule(settings);
  return settings;
}

} // namespace

config::CheckpointReader makeCheckpointReader() {
  auto known = std::make_shared<std::map<std::string, CheckpointSettings>>();
  return [known](const Config &config) {
    Opt from =
        config.has(Opt::CheckpointLoad) ? Opt::CheckpointLoad : Opt::CheckpointPretrainedCheckpoint;
    std::string path = config.getStringOr(from, "");
    if (path.empty())
      return CheckpointSettings();
    if (config.has(Opt::CheckpointCkptStep))
      path += fmt::format("/iter_{:07}", config.getInt(Opt::CheckpointCkptStep));
    std::string key = fmt::format("{} {} {}", config.isOn(Opt::CheckpointUseCheckpointArgs),
                                  config.isOn(Opt::SchedulerUseCheckpointOptParamScheduler), path);
    auto [at, isNew] = known->try_emplace(key);
    if (isNew)
      at->second = readSettings(config, path);
    return at->second;
  };
}

} // namespace shardc::tools
