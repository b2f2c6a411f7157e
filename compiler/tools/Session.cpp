#include "compiler/tools/Session.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "compiler/basic/Numbers.h"
#include "compiler/basic/ShellWord.h"
#include "compiler/basic/Utf8.h"
#include "compiler/config/BatchRamp.h"
#include "compiler/diag/Consumers.h"
#include "compiler/lower/Lower.h"
#include "compiler/lower/Sources.h"
#include "compiler/model/OpCost.h"
#include "compiler/predict/DeviceTable.h"
#include "compiler/predict/InFlight.h"
#include "compiler/predict/Kernels.h"
#include "compiler/predict/Overheads.h"
#include "compiler/predict/SaveTime.h"
#include "compiler/predict/Transfers.h"
#include "compiler/tools/Advice.h"
#include "compiler/tools/CheckpointSettings.h"
#include "compiler/tools/DataLengths.h"
#include "compiler/tools/FitCheck.h"
#include "compiler/tools/Pager.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Io.h"
#include "runtime/base/RecipeVariables.h"
#include "runtime/base/Report.h"
#include "runtime/base/Reports.h"
#include "runtime/base/Utf8.h"
#include "runtime/plan/HostCells.h"
#include "runtime/plan/JobFacts.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/Verify.h"
#include "runtime/verify/spec/Specification.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

/// The command that lists the remarks of the same recipe with the same settings.
std::string explainCommand(const config::LoadOptions &load) {
  if (load.path.empty())
    return "";
  std::string command = "shardc explain " + shellQuoted(load.path) + " adjustments";
  for (const std::string &overlay : load.overlays)
    command += " --overlay " + shellQuoted(overlay);
  for (const std::string &set : load.sets)
    command += " --set " + shellQuoted(withoutSecrets(set));
  for (const std::string &name : load.allowedVariables)
    command += " --allow-env " + shellQuoted(name);
  return command;
}

std::unique_ptr<DiagConsumer> makeConsumer(const SourceManager &sources,
                                           const CommonOptions &options) {
  if (options.diagFormat == "json")
    return makeJsonConsumer(sources, llvm::outs(), options.load.path);
  if (options.diagFormat == "sarif")
    return makeSarifConsumer(sources, llvm::outs(), options.load.path);
  ColorMode color = options.color == "always"  ? ColorMode::Always
                    : options.color == "never" ? ColorMode::Never
                                               : ColorMode::Auto;
  RemarkMode remarks = options.remarks == "full"      ? RemarkMode::Full
                       : options.remarks == "lines"   ? RemarkMode::Lines
                       : options.remarks == "counted" ? RemarkMode::Counted
                                                      : RemarkMode::Hidden;
  return makeTextConsumer(sources, llvm::errs(),
                          {color, remarks, options.load.path, explainCommand(options.load)});
}

/// Reports features without an op. Returns whether there are any.
bool reportMissing(const config::Config &config, DiagEngine &diags, bool isError) {
  std::vector<lower::Missing> missing = lower::findMissing(config);
  for (const lower::Missing &item : missing) {
    llvm::StringRef path = config::info(item.option).path;
    std::string value = config::toRecipeText(config, item.option);
    if (isError)
      diags.report(diag::MissingOp, config.range(item.option), path, value, item.what);
    else
      diags.report(diag::ChecksOnly, config.range(item.option), path, value, item.what);
  }
  return !missing.empty();
}

/// The place in the recipe to which a location of the plan refers.
SourceRange rangeAt(const config::Config &config, const SourceManager &sources,
                    const plan::Loc *loc) {
  for (const config::SourceUse &use : config.sources()) {
    bool isOfLoc = loc && sources.name(use.buffer).endswith(loc->file);
    if (SourceLoc begin =
            isOfLoc ? sources.lineBegin(use.buffer, static_cast<unsigned>(loc->line)) : SourceLoc();
        begin.isValid()) {
      size_t at = sources.offset(begin) + static_cast<size_t>(loc->column) - 1;
      return sources.range(use.buffer, at, at);
    }
  }
  return {};
}

} // namespace

/// An incorrect plan is a fault of the compiler; it is never run.
bool isVerified(const config::Config &config, const SourceManager &sources, const plan::Plan &plan,
                const plan::Plan &specification, DiagEngine &diags) {
  std::vector<plan::Finding> findings = plan::verify(plan);
  if (findings.empty()) {
    plan::spec::Comparison compared = plan::spec::compare(specification, plan);
    if (compared.difference)
      findings.push_back(std::move(*compared.difference));
  }
  for (const plan::Finding &finding : findings) {
    auto report =
        diags.report(diag::PlanRefused, rangeAt(config, sources, plan::locAt(plan, finding.at)),
                     plan::ruleId(finding.rule), finding.message);
    if (!finding.note.empty())
      report.note(DiagInfo{Severity::Note, "plan-refused", "", "{0}"},
                  rangeAt(config, sources, plan::locAt(plan, finding.noteAt)),
                  {DiagArg(finding.note)});
  }
  return findings.empty();
}

ExitStatus exitStatusOf(const Status &status) {
  bool isInput = status.code() == StatusCode::InvalidInput || status.code() == StatusCode::NotFound;
  return status.isOk() ? kFine : isInput ? kInputErrors : kRunFailed;
}

CommonOptions::CommonOptions() {
  load.measure = makeDataMeter();
  load.readCheckpoint = makeCheckpointReader();
}

void CommonOptions::addTo(cli::Command &app, bool needsRecipe) {
  if (needsRecipe)
    app.option("recipe", load.path, "recipe file").required();
  app.option("--set", load.sets, "path=value; overrides everything else").repeatableOneByOne();
  app.option("--overlay", load.overlays, "recipe that overrides settings of the recipe")
      .repeatableOneByOne();
  app.option("--allow-env", load.allowedVariables,
             "variable that section 'env' may set although it could load code")
      .repeatableOneByOne();
  addMessageOptions(app);
}

void CommonOptions::addMessageOptions(cli::Command &app) {
  app.option("-W", warningFlags, "-W<group>, -Wno-<group>, -Werror, -Werror=<group>")
      .repeatableOneByOne()
      .checked([](const std::string &flag) {
        SourceManager sources;
        DiagEngine diags(sources);
        config::registerGroups(diags);
        Status status = diags.flags().apply("-W" + flag);
        return status.isOk() ? "" : "names an " + status.message();
      });
  app.flag("--remarks{lines}", remarks,
           "show remarks, one line each; --remarks=full adds source lines and notes")
      .oneOf({"lines", "full"});
  app.option("--color", color, "colour of messages").oneOf({"auto", "always", "never"});
  app.option("--diag-format", diagFormat, "form of messages").oneOf({"text", "json", "sarif"});
}

Session::Session(const CommonOptions &options)
    : options_(options), diags_(sources_), consumer_(makeConsumer(sources_, options)) {
  config::registerGroups(diags_);
  for (const std::string &flag : options.warningFlags)
    static_cast<void>(diags_.flags().apply("-W" + flag)); // the command line was checked
  diags_.addConsumer(*consumer_);
  if (options.diagFormat != "text")
    diags_.setErrorLimit(0); // a program reads all messages
}

Session::~Session() = default;

ExitStatus Session::finish() {
  diags_.finish();
  llvm::outs().flush();
  std::fflush(stdout);
  return diags_.hasErrors() ? kInputErrors : kFine;
}

namespace {

/// Ops of one kind, from one place of the recipe, that run on CUDA cores.
struct SlowOps {
  const plan::Segment *segment; ///< of the first one
  const plan::Op *first;
  double seconds = 0; ///< of a step, on the role that spends most
};

/// Forward ops and their gradients together.
std::map<std::pair<std::string_view, uint32_t>, SlowOps> slowOpsOf(const predict::Device &device,
                                                                   const plan::Plan &plan) {
  std::map<std::pair<std::string_view, uint32_t>, SlowOps> all;
  for (const plan::Role &role : plan.roles) {
    std::vector<std::vector<double>> times;
    std::map<std::pair<std::string_view, uint32_t>, double> seconds;
    for (size_t s = 0; s < role.segments.size(); ++s)
      for (size_t i = 0; i < role.segments[s].ops.size(); ++i) {
        const plan::Op &op = role.segments[s].ops[i];
        if (!predict::isSlow(device, role.segments[s], op))
          continue;
        if (times.empty())
          times = predict::opSeconds(device, plan, role);
        std::string_view name = plan::opInfo(op).name;
        std::pair key{name.substr(0, name.find("_bwd")), op.loc};
        seconds[key] += i < times[s].size() ? times[s][i] : 0;
        all.try_emplace(key, SlowOps{&role.segments[s], &op});
      }
    for (const auto &[key, own] : seconds)
      all[key].seconds = std::max(all[key].seconds, own);
  }
  return all;
}

} // namespace

/// One warning for each kind of op and place, with the reason why faster kernels do not serve it.
void reportSlowKernels(const config::Config &config, const SourceManager &sources,
                       const plan::Plan &plan, DiagEngine &diags) {
  std::optional<predict::Device> device = predict::plannedDevice(plan);
  if (!device || device->isHost())
    return;
  double step = 0;
  for (const auto &[key, slow] : slowOpsOf(*device, plan)) {
    if (step == 0)
      step = predict::slowestOf(predict::predictSteps(*device, plan)).step;
    SourceRange place = key.second < plan.locs.size()
                            ? rangeAt(config, sources, &plan.locs[key.second])
                            : config.range(config::Opt::ClusterGpu);
    const double unit = step < 1 ? 1e-3 : 1;
    DiagBuilder report = diags.report(
        diag::SlowKernels, place, std::string(plan::opInfo(*slow.first).name), device->name.str(),
        fmt::format("{:.{}f} of {:.{}f} {}", slow.seconds / unit, step / unit < 10 ? 1 : 0,
                    step / unit, step / unit < 10 ? 1 : 0, step < 1 ? "ms" : "s"));
    const PathGroup group = info(predict::pathOf(*device, *slow.segment, *slow.first)).group;
    for (size_t p = 1; p < kKernelPathCount; ++p)
      if (const KernelPathInfo &row = info(static_cast<KernelPath>(p)); row.group == group)
        if (const char *why = predict::pathRefusalOf(row.path, *device, *slow.segment, *slow.first))
          report.note(diag::NotByKernels, SourceRange(), row.text, why);
  }
}

namespace {

/// Compiles the plan of one batch size. If the compiler chooses what is recomputed, uses the choice
/// `recomputeLayers` of another batch size, if given.
Compiled makePlan(const config::Config &config, SourceManager &sources,
                  const CompileOptions &options,
                  const std::vector<std::string> &recomputeLayers = {}) {
  Compiled compiled;
  compiled.plan = lower::lower(config, sources);
  if (!recomputeLayers.empty())
    compiled.plan.job.put(plan::JobField::model_recomputeLayers, recomputeLayers);
  if (options.afterLower)
    options.afterLower(compiled.plan);
  compiled.times = passes::runPipeline(compiled.plan, options.pipeline, compiled.notes);
  if (options.keepsSources)
    compiled.plan.sources = lower::sourcesOf(config, sources);
  if (std::optional<predict::Device> device = predict::plannedDevice(compiled.plan))
    predict::notePredictions(*device, compiled.plan);
  return compiled;
}

/// Reports an error and returns false if state is saved in several pieces although saves in memory
/// or staging need a single one.
bool reportPieces(const config::Config &config, const plan::Plan &plan, DiagEngine &diags) {
  const auto &options = plan.job.checkpoint;
  if (options.inMemoryInterval == 0 && options.snapshotStagingBytes <= 0)
    return true;
  for (const plan::Role &role : plan.roles) {
    int64_t pieces =
        std::ranges::count(role.segments, plan::SegmentKind::Snapshot, &plan::Segment::kind);
    if (pieces <= 1)
      continue;
    std::string bytes = plan::formatBytes(plan::snapshotBytes(role)),
                limit = plan::formatBytes(options.snapshotLimitBytes);
    if (options.inMemoryInterval > 0)
      diags.report(diag::MemorySavesInPieces, config.range(config::Opt::CheckpointInMemoryInterval),
                   bytes, limit, pieces);
    else
      diags.report(diag::StagingInPieces, config.range(config::Opt::CheckpointSnapshotStaging),
                   bytes, limit, pieces);
    return false;
  }
  return true;
}

/// Whether the plan fits and is correct. The size is checked first, because its message lists
/// solutions. `phase`: the configuration of the plan's batch size. Stores the specification in the
/// plan if it is to be kept.
bool isAccepted(const config::Config &config, const config::Config &phase,
                const SourceManager &sources, plan::Plan &plan, DiagEngine &diags,
                const CommonOptions &common, bool keepsSpecification) {
  if (!reportFit(config, plan, diags, common) || !reportPieces(config, plan, diags))
    return false;
  const plan::Plan specification = specificationOf(phase, sources);
  if (!isVerified(phase, sources, plan, specification, diags))
    return false;
  if (keepsSpecification)
    plan.specification = plan::spec::packed(specification);
  return true;
}

/// Checks all plans of the job, which continue with each other's state.
bool areAccepted(const config::Config &config, const SourceManager &sources, Compiled &compiled,
                 DiagEngine &diags, const CommonOptions &common, bool keepsSpecification) {
  if (!isAccepted(config, config, sources, compiled.plan, diags, common, keepsSpecification))
    return false;
  if (compiled.before.empty())
    return true;
  std::vector<plan::Plan> plans;
  for (const config::BatchPhase &phase : config.derived().phases) {
    if (phase == config.derived().phase)
      continue;
    plan::Plan &smaller = compiled.before[plans.size()].plan;
    if (!isAccepted(config, config::atPhase(config, phase), sources, smaller, diags, common,
                    keepsSpecification))
      return false;
    plans.push_back(smaller);
  }
  plans.push_back(compiled.plan);
  Status status = plan::checkPhases(plans);
  if (!status.isOk())
    diags.report(diag::PlanRefused, SourceRange(), "plan-job", status.message());
  return status.isOk();
}

} // namespace

plan::Plan specificationOf(const config::Config &config, const SourceManager &sources) {
  plan::Plan plan = lower::lower(config, sources);
  passes::Notes notes;
  for (passes::PassId pass : {passes::PassId::Backward, passes::PassId::Quantize})
    passes::runPass(pass, plan, notes);
  return plan;
}

std::optional<Compiled> compile(const config::Config &config, SourceManager &sources,
                                DiagEngine &diags, const CommonOptions &common,
                                const CompileOptions &options) {
  if (reportMissing(config, diags, options.mustExecute))
    return std::nullopt;
  // Plans of smaller batch sizes recompute the same layers as that of the largest one.
  std::optional<Compiled> largest;
  std::vector<std::string> recomputed;
  if (config.derived().phases.size() > 1 && choosesRecompute(config)) {
    largest = makePlan(config, sources, options);
    recomputed = largest->plan.job.model.recomputeLayers;
  }
  std::vector<Compiled> before;
  for (const config::BatchPhase &phase : config.derived().phases)
    if (phase != config.derived().phase)
      before.push_back(makePlan(config::atPhase(config, phase), sources, options, recomputed));
  Compiled compiled = largest ? std::move(*largest) : makePlan(config, sources, options);
  compiled.before = std::move(before);
  for (const passes::Note &note : compiled.notes)
    diags.report(DiagInfo{Severity::Remark, note.id, note.id, "{0}"}, SourceRange(),
                 {DiagArg(note.text)});
  if (options.advise)
    reportAdvice(config, compiled.plan, diags, common);
  if (options.saysIfUnchecked && !config.derived().gpu)
    diags.report(diag::MemoryNotChecked, SourceRange(),
                 plan::formatBytes(deviceBytesOf(compiled.plan)));
  reportSlowKernels(config, sources, compiled.plan, diags);
  if (!areAccepted(config, sources, compiled, diags, common, options.keepsSpecification))
    return std::nullopt;
  return compiled;
}

std::optional<config::Config> checkRecipe(Session &session, const CommonOptions &common,
                                          bool mustExecute) {
  std::optional<config::Config> config =
      config::loadConfig(session.sources(), session.diags(), common.load);
  if (!config)
    return std::nullopt;
  CompileOptions options;
  options.mustExecute = mustExecute;
  options.advise = options.saysIfUnchecked = true;
  compile(*config, session.sources(), session.diags(), common, options);
  return config;
}

/// Memory and multiprocessors of each communicator, as text.
static std::string channelsText(const plan::Plan &plan, const predict::Overheads &memory) {
  std::string text;
  for (size_t i = 0; i < plan.channels.size(); ++i) {
    const plan::Channel &channel = plan.channels[i];
    if (memory.channels[i] == 0)
      continue;
    text += fmt::format("{}{} by {}: {}, {}", text.empty() ? "channels: " : "; ", channel.name,
                        plan::toString(channel.transport), plan::formatBytes(memory.channels[i]),
                        channel.multiprocessors == 0
                            ? "no multiprocessors"
                            : "up to " + formatCount(channel.multiprocessors, "multiprocessor"));
  }
  return text.empty() ? "channels: none" : text;
}

/// Memory outside the arenas, as one line per role. Adjacent roles with equal memory share a line.
static std::vector<std::string> outsideText(const predict::Device &device, const plan::Plan &plan) {
  std::vector<std::string> texts, lines;
  for (const plan::Role &role : plan.roles) {
    predict::Overheads memory = predict::overheadsOf(device, plan, role);
    texts.push_back(
        fmt::format("{}, of which workspaces {}, communicators {}, receive buffers {}, "
                    "context {}",
                    plan::formatBytes(memory.total()), plan::formatBytes(memory.workspaces),
                    plan::formatBytes(memory.communicators),
                    plan::formatBytes(memory.receiveBuffers), plan::formatBytes(memory.context)));
  }
  for (size_t begin = 0, end = 0; begin < texts.size(); begin = end) {
    while (end < texts.size() && texts[end] == texts[begin])
      ++end;
    std::string of;
    if (plan.roles.size() > 1)
      of = end - begin == 1
               ? fmt::format(" of {}", plan.roles[begin].name)
               : fmt::format(" of {} to {}", plan.roles[begin].name, plan.roles[end - 1].name);
    lines.push_back(fmt::format("outside the arenas{}: {}", of, texts[begin]));
  }
  return lines;
}

/// The time for which each role of a pipeline waits for others, and what it keeps most, as text.
static std::string stagesText(const plan::Plan &plan, const std::vector<predict::StepTime> &times) {
  std::string text = "waiting for other stages: ";
  for (size_t r = 0; r < times.size(); ++r)
    text += fmt::format("{}{} {} ({:.0f} %)", r == 0 ? "" : ", ", plan.roles[r].name,
                        formatDuration(times[r].waiting), 100 * times[r].waiting / times[r].step);
  predict::KeptRun most{};
  size_t keeper = 0;
  for (size_t r = 0; r < plan.roles.size(); ++r)
    for (const predict::KeptRun &run : predict::keptInStep(plan.roles[r]))
      if (run.bytes > most.bytes)
        most = run, keeper = r;
  return most.bytes == 0
             ? text
             : fmt::format("{}; {} keeps most at once, {} of {} forward passes", text,
                           plan.roles[keeper].name, plan::formatBytes(most.bytes), most.passes);
}

std::optional<predict::StepTime> predictedStep(const plan::Plan &plan) {
  std::optional<predict::Device> device = predict::plannedDevice(plan);
  if (!device || !device->isPredicted())
    return std::nullopt;
  return predict::slowestOf(predict::predictSteps(*device, plan));
}

namespace {

/// The device memory and link time of saves in memory, as text; empty if the job has no such saves.
std::string memorySavesText(const predict::Device &device, const plan::Plan &plan) {
  int64_t interval = plan.job.checkpoint.inMemoryInterval;
  const plan::Role &role = *std::ranges::max_element(plan.roles, {}, plan::snapshotBytes);
  int64_t bytes = plan::snapshotBytes(role), staged = plan::stagedBytes(role);
  if (interval == 0 || bytes == 0)
    return "";
  predict::SaveTime time = predict::saveTimeOf(device, plan, role);
  std::string text = fmt::format("saves in memory: every {} steps {} of a rank go to the host, "
                                 "which takes {} beside compute",
                                 interval, plan::formatBytes(bytes), formatDuration(time.copying));
  if (staged > 0)
    text += fmt::format("; {} of them are staged on the device in {}", plan::formatBytes(staged),
                        formatDuration(time.staging));
  return text + (time.waiting > 0
                     ? fmt::format("; the next update waits {}", formatDuration(time.waiting))
                     : "; no update waits");
}

} // namespace

std::vector<std::string> predictionText(const plan::Plan &plan) {
  std::optional<predict::Device> planned = predict::plannedDevice(plan);
  if (!planned || !planned->isPredicted())
    return {};
  const predict::Device &device = *planned;
  std::vector<predict::StepTime> times = predict::predictSteps(device, plan);
  predict::StepTime time = predict::slowestOf(times);
  int64_t sequences = plan::batchSizesOf(plan.job, /*isEval=*/false).global;
  double tokens = static_cast<double>(sequences * plan.job.model.seqLength) /
                  static_cast<double>(plan.worldSize());
  std::vector<std::string> lines;
  if (!device.isHost()) {
    std::vector<std::string> outside = outsideText(device, plan);
    lines.insert(lines.end(), outside.begin(), outside.end());
    lines.push_back(channelsText(plan, predict::overheadsOf(device, plan)));
  }
  lines.push_back(fmt::format("predicted step: {}, {} tokens/s per device; communication takes {}, "
                              "of which {} is exposed",
                              formatDuration(time.step), formatNumber(tokens / time.step),
                              formatDuration(time.transfers), formatDuration(time.exposed)));
  if (std::string kernels = predict::kernelsText(device, plan); !kernels.empty())
    lines.push_back(std::move(kernels));
  if (times.size() > 1)
    lines.push_back(stagesText(plan, times));
  if (std::string copies = memorySavesText(device, plan); !copies.empty())
    lines.push_back(std::move(copies));
  return lines;
}

namespace {

/// The steps of the run for which the plan is used, if the batch size grows.
std::string stepsText(const plan::Plan &plan) {
  const plan::Job::Derived &d = plan.job.derived;
  return fmt::format("steps up to {}: {} samples each, the first of them after {} samples",
                     plan::lastStepOf(plan), d.stepSamples, d.samplesBefore);
}

/// The command that prints the ops of one layer, for readers who start there; empty if the plan has
/// no layers.
std::string firstView(const plan::Plan &plan, const plan::Role &role) {
  for (const plan::Segment &segment : role.segments)
    for (const plan::Op &op : segment.ops) {
      if (!segment.body || op.unit < 0)
        continue;
      const std::string &unit = plan.units[static_cast<size_t>(op.unit)].name;
      if (unit.starts_with("layers."))
        return fmt::format("one layer: shardc dump-plan RECIPE --segment={} --unit={}",
                           segment.name, unit);
    }
  return "";
}

} // namespace

std::string planText(const Compiled &compiled) {
  std::string text;
  for (const Compiled &smaller : compiled.before)
    text += planText(smaller);
  const plan::Role &role = predict::largestRole(compiled.plan);
  model::OpCost cost = model::costOfStep(compiled.plan, role);
  std::vector<std::string> more = {fmt::format(
      "a step of a rank: {} TFLOP, of which the model's are {}; {} GB of memory traffic",
      formatNumber(cost.flops * 1e-12),
      formatNumber(model::modelFlopsOfStep(compiled.plan, role) * 1e-12),
      formatNumber(cost.bytes * 1e-9))};
  if (std::optional<predict::Device> device = predict::plannedDevice(compiled.plan)) {
    if (!device->isHost())
      more.push_back(fmt::format("device {}: {} of memory, {} TFLOP/s in bf16, {} GB/s{}",
                                 device->name.str(), plan::formatBytes(device->memoryBytes),
                                 formatNumber(device->sustained.bf16Tflops),
                                 formatNumber(device->sustained.memoryGBs),
                                 device->rates      ? " (with measured rates)"
                                 : device->measured ? ""
                                                    : " (figures not measured)"));
    for (std::string &line : predictionText(compiled.plan))
      more.push_back(std::move(line));
  }
  if (compiled.plan.job.derived.stepSamples > 0)
    more.push_back(stepsText(compiled.plan));
  for (const passes::Note &note : compiled.notes)
    more.push_back(note.text);
  if (std::string view = firstView(compiled.plan, role); !view.empty())
    more.push_back(std::move(view));
  return text + plan::print(compiled.plan, plan::summary(compiled.plan, more));
}

std::vector<std::string> filesOf(const config::Config &config, const SourceManager &sources) {
  std::vector<std::string> files;
  for (const config::SourceUse &source : config.sources())
    if (sources.isFile(source.buffer))
      files.push_back(sources.name(source.buffer).str());
  return files;
}

std::string whyKept(const std::string &output, const std::vector<std::string> &inputs) {
  std::error_code error;
  for (const std::string &input : inputs)
    if (!output.empty() && output != "-" && std::filesystem::equivalent(output, input, error) &&
        std::filesystem::is_regular_file(output, error))
      return "'" + output + "' is an input of this command; write to another file";
  return "";
}

ExitStatus refuseUsage(const std::string &why) {
  llvm::errs() << "shardc: error: " << why << "\n";
  return kUsage;
}

static bool isStdout(const std::string &path) { return path.empty() || path == "-"; }

static ExitStatus finishWrite(const Status &status) {
  if (status.isOk())
    return kFine;
  llvm::errs() << "shardc: " << lineOf(status.report()) << "\n";
  return kRunFailed;
}

ExitStatus checkOutput(const std::string &path) {
  return isStdout(path) ? kFine : finishWrite(checkWritable(path));
}

ExitStatus rewriteFile(const std::string &path, std::string_view text, const std::string &user) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path file = fs::absolute(path, error), parent = fs::absolute(user, error).parent_path();
  fs::path real = fs::canonical(parent, error) / file.lexically_relative(parent);
  if (fs::is_symlink(file, error) || fs::canonical(file, error) != real.lexically_normal())
    return finishWrite(makeStatus(StatusCode::InvalidInput,
                                  "'{}' is a link; name the file that it leads to", path));
  return finishWrite(writeFileAtomic(path, text));
}

ExitStatus writeOutput(const std::string &path, std::string_view text) {
  if (isStdout(path))
    return showText(::isatty(STDOUT_FILENO) == 1 ? escapeControls(text, "\n\t") : std::string(text))
               ? kFine // finishOutput() reports the error
               : kRunFailed;
  return finishWrite(writeFileAtomic(path, text));
}

} // namespace shardc::tools
