// shardc report: writes one HTML file about a plan, a run of it, or several plans side by side.
// shardc diff: prints what differs between two of them.
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <thread>

#include <fmt/format.h>

#include "compiler/basic/Numbers.h"
#include "compiler/basic/Utf8.h"
#include "compiler/page/OptionsData.h"
#include "compiler/page/Page.h"
#include "compiler/page/RunData.h"
#include "compiler/page/TraceFile.h"
#include "compiler/predict/Transfers.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/FitCheck.h"
#include "compiler/tools/FitSplits.h"
#include "compiler/tools/HostModel.h"
#include "compiler/tools/Session.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Io.h"
#include "runtime/base/Output.h"
#include "runtime/base/Version.h"
#include "runtime/checkpoint/CheckpointFormat.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/Verify.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

struct ReportOptions {
  CommonOptions common;
  std::vector<std::string> inputs, metrics, traces;
  std::string output;
  int64_t seconds = 20;
  int64_t follow = 0; ///< seconds between updates; 0: writes the page once
};

/// The data of one input.
struct Input {
  std::optional<predict::Device> device; ///< the plan's device, if its times are predicted
  plan::Plan plan;
  std::optional<config::Config> config; ///< if the input is a recipe
  page::Subject subject;                ///< points to `plan`
  page::Json data;
};

bool isCompiledPlan(const std::string &path) {
  return std::filesystem::path(path).extension() == ".plan";
}

/// Maximum number of other splits of the same ranks on the page.
constexpr size_t kOtherSplitsMax = 8;

/// The changes that `shardc fit` also tries, then other splits of the ranks, the fastest first.
std::vector<page::Alternative> alternativesOf(const Input &input, const CommonOptions &common,
                                              int64_t seconds) {
  std::vector<page::Alternative> list;
  for (FitChange &change : tryChanges(*input.config, common)) {
    page::Alternative other{std::move(change.what), std::move(change.sets), change.bytes, 0};
    if (std::optional<plan::Plan> plan = planWith(common, other.sets))
      other.seconds = predictedStep(*plan).value_or(predict::StepTime()).step;
    list.push_back(std::move(other));
  }
  if (input.config->derived().worldSize == 1)
    return list;
  auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  Splits splits = trySplits(*input.config, input.plan, common,
                            [&](size_t, size_t) { return std::chrono::steady_clock::now() < end; });
  for (size_t i = 1; i < std::min(splits.all.size(), kOtherSplitsMax + 1); ++i) {
    const Split &split = splits.all[i];
    std::string what = fmt::format("tensor {}, context {}, pipeline {}, data {}", split.tensor,
                                   split.context, split.pipeline, split.data);
    if (input.config->has(config::Opt::ModelNumMoeExperts))
      what += fmt::format(", expert {}", split.expert);
    list.push_back({std::move(what), split.sets, split.bytes, split.seconds});
  }
  return list;
}

/// The recipe that a run kept in the folder of its saves, or in one of them.
bool readSave(Session &session, CommonOptions &common) {
  Result<std::string> save = checkpoint::findCheckpoint(common.load.path);
  Result<bool> kept = save.isOk() ? readKeptRecipe(*save, session.sources(), common.load)
                                  : Result<bool>(save.status());
  if (kept.isOk() && *kept)
    return true;
  session.diags().report(diag::CannotReadFile, SourceRange(),
                         kept.isOk() ? fmt::format("'{}' keeps no recipe of its run", *save)
                                     : kept.status().message());
  return false;
}

/// Compiles a recipe, as `shardc run` would. Other settings are not tried for a save, whose files
/// alone are read.
bool readRecipe(Session &session, CommonOptions &common, int64_t seconds, Input &input) {
  if (std::filesystem::is_directory(common.load.path)) {
    if (!readSave(session, common))
      return false;
    seconds = 0;
  }
  input.config = config::loadConfig(session.sources(), session.diags(), common.load);
  if (!input.config)
    return false;
  std::optional<Compiled> compiled =
      compile(*input.config, session.sources(), session.diags(), common, {});
  if (!compiled)
    return false;
  input.plan = std::move(compiled->plan);
  input.subject.options = page::optionsData(*input.config, session.sources());
  input.subject.memoryBytes = input.config->derived().memoryBytes;
  input.subject.areAlternativesTried = seconds > 0;
  if (seconds > 0)
    input.subject.alternatives = alternativesOf(input, common, seconds);
  return true;
}

/// Plans from files are verified, since programs other than the compiler may have written them.
bool readPlan(Session &session, const std::string &path, Input &input) {
  Result<std::string> text = readFile(path);
  Result<plan::Plan> plan = text.isOk() ? plan::parse(*text, path) : text.status();
  if (!plan.isOk()) {
    session.diags().report(diag::CannotReadPlan, SourceRange(), plan.status().message());
    return false;
  }
  if (plan->level != plan::Level::Placed) {
    session.diags().report(diag::NotAPlacedPlan, SourceRange(), path,
                           std::string(plan::toString(plan->level)));
    return false;
  }
  for (const plan::Finding &finding : plan::verify(*plan))
    session.diags().report(diag::PlanRefused, SourceRange(), plan::ruleId(finding.rule),
                           finding.message);
  input.plan = std::move(*plan);
  input.subject.memoryBytes = input.plan.deviceBytes;
  input.subject.isCompiledPlan = true;
  return !session.diags().hasErrors();
}

std::optional<std::string> readInput(Session &session, const std::string &path) {
  Result<std::string> text = readFile(path);
  if (text.isOk())
    return std::move(*text);
  session.diags().report(diag::CannotReadFile, SourceRange(), text.status().message());
  return std::nullopt;
}

std::optional<page::Metrics> readMetrics(Session &session, const std::string &path) {
  std::optional<std::string> text = readInput(session, path);
  page::Metrics metrics;
  page::MetricsFault fault;
  metrics.name = path;
  if (!text || page::readMetrics(*text, metrics, fault))
    return text ? std::optional(std::move(metrics)) : std::nullopt;
  if (fault.line == 0)
    session.diags().report(diag::MetricsWithoutSteps, SourceRange(), path);
  else
    session.diags().report(diag::MetricsMalformed, SourceRange(), path,
                           static_cast<int64_t>(fault.line), fault.what);
  return std::nullopt;
}

std::optional<page::TracedRun> readTrace(Session &session, const std::string &path,
                                         const Input &input) {
  std::optional<std::string> text = readInput(session, path);
  if (!text)
    return std::nullopt;
  Result<std::vector<trace::Span>> spans = page::readTrace(*text);
  if (!spans.isOk()) {
    session.diags().report(diag::TraceMalformed, SourceRange(), path, spans.status().message());
    return std::nullopt;
  }
  auto count = static_cast<int64_t>(spans->size());
  std::optional<page::TracedRun> traced = page::tracedRunOf(input.plan, std::move(*spans));
  if (traced)
    traced->name = path;
  else
    session.diags().report(diag::TraceOfOtherPlan, SourceRange(), path, count,
                           input.subject.source);
  return traced;
}

/// The title of an input: the name of its file, with a number if several have the same name.
std::string titleOf(const ReportOptions &options, size_t index) {
  auto nameOf = [&](size_t i) {
    std::filesystem::path path = options.inputs[i];
    return (path.has_filename() ? path : path.parent_path()).stem().string(); // of `saves/`, saves
  };
  size_t same = 0, before = 0;
  for (size_t i = 0; i < options.inputs.size(); ++i) {
    same += nameOf(i) == nameOf(index);
    before += i < index && nameOf(i) == nameOf(index);
  }
  return same == 1 ? nameOf(index) : fmt::format("{} ({})", nameOf(index), before + 1);
}

/// Reads one input, and the run that was given for it. Reports errors.
bool readOne(Session &session, CommonOptions &common, const ReportOptions &options, size_t index,
             Input &input) {
  const std::string &path = options.inputs[index];
  input.subject.source = path;
  input.subject.title = titleOf(options, index);
  if (!(isCompiledPlan(path) ? readPlan(session, path, input)
                             : readRecipe(session, common, options.seconds, input)))
    return false;
  page::Subject &subject = input.subject;
  subject.plan = &input.plan;
  subject.deviceBytes = deviceBytesOf(input.plan);
  input.device = predict::plannedDevice(input.plan);
  if (input.device && input.device->isPredicted())
    subject.device = &*input.device;
  std::optional<page::Metrics> metrics;
  std::optional<page::TracedRun> traced;
  if (index < options.metrics.size())
    metrics = readMetrics(session, options.metrics[index]);
  if (index < options.traces.size())
    traced = readTrace(session, options.traces[index], input);
  if (session.diags().hasErrors())
    return false;
  page::Limits limits; // shared, so that a page of several plans is as large as one of one plan
  for (size_t *limit : {&limits.blocks, &limits.exposed, &limits.rects})
    *limit /= options.inputs.size();
  std::optional<page::Prediction> prediction = page::predictionOf(subject);
  input.data = page::planData(subject, prediction, limits);
  if (metrics || traced)
    input.data["run"] = page::runData(subject, prediction, metrics, traced, limits);
  return true;
}

page::Json differences(const std::vector<std::unique_ptr<Input>> &inputs) {
  std::vector<config::Config> configs;
  std::vector<const plan::Plan *> plans;
  for (const std::unique_ptr<Input> &input : inputs) {
    plans.push_back(&input->plan);
    if (input->config)
      configs.push_back(*input->config);
  }
  return configs.size() == inputs.size() ? page::differingOptions(configs)
                                         : page::differingJobs(plans);
}

/// The reason why the requested report is impossible; empty if it is possible.
std::optional<std::string> wrongUse(const ReportOptions &options) {
  for (auto [flag, files] :
       {std::pair{"--metrics", &options.metrics}, {"--trace", &options.traces}})
    if (files->size() > options.inputs.size())
      return fmt::format("'{}' is given {} times for {}; the first is of the first plan, and "
                         "so on",
                         flag, files->size(), formatCount(std::ssize(options.inputs), "plan"));
  std::vector<std::string> given = options.common.load.overlays;
  for (const std::vector<std::string> *files : {&options.inputs, &options.metrics, &options.traces})
    given.insert(given.end(), files->begin(), files->end());
  if (std::string why = whyKept(options.output, given); !why.empty())
    return why;
  if (options.follow > 0 && (options.output.empty() || options.output == "-"))
    return "'--follow' needs a file: -o FILE";
  bool changes = !options.common.load.sets.empty() || !options.common.load.overlays.empty();
  for (const std::string &path : options.inputs)
    if (changes && isCompiledPlan(path))
      return fmt::format("'--set' and '--overlay' change recipes; '{}' is a compiled plan", path);
  return std::nullopt;
}

/// Reads and compiles all inputs.
ExitStatus readAll(const ReportOptions &options, std::vector<std::unique_ptr<Input>> &inputs) {
  ExitStatus status = kFine;
  for (size_t i = 0; i < options.inputs.size(); ++i) {
    CommonOptions common = options.common;
    common.load.path = options.inputs[i];
    Session session(common);
    inputs.push_back(std::make_unique<Input>());
    bool isRead = readOne(session, common, options, i, *inputs.back());
    ExitStatus finished = session.finish();
    status = std::max(status, isRead ? finished : kInputErrors);
  }
  return status;
}

/// The value of a number in a recipe or a figure.
std::optional<double> numberOf(std::string text) {
  llvm::erase_value(text, '_');
  double value = 0;
  return llvm::StringRef(text).getAsDouble(value) ? std::nullopt : std::optional(value);
}

/// The figures of a plan, and those of its run at the last step.
std::vector<std::pair<std::string, std::string>> figuresOf(const Input &input) {
  std::vector<std::pair<std::string, std::string>> figures = {
      {"bytes of a device", std::to_string(input.subject.deviceBytes)}};
  if (std::optional<predict::StepTime> time = predictedStep(input.plan))
    figures.emplace_back("predicted seconds of a step", fmt::format("{:.4g}", time->step));
  if (input.data.contains("run") && input.data["run"].contains("metrics"))
    for (const page::Json &series : input.data["run"]["metrics"]["series"])
      figures.emplace_back(fmt::format("{} at the last step", series["name"].get<std::string>()),
                           fmt::format("{:.6g}", series["points"].back().back().get<double>()));
  return figures;
}

/// Prints the settings and figures that differ between two plans and their runs, with per cent
/// where both are numbers.
int runDiff(const ReportOptions &options) {
  if (options.inputs.size() != 2)
    return refuseUsage("two recipes, compiled plans or folders of saves are compared");
  if (std::optional<std::string> wrong = wrongUse(options))
    return refuseUsage(*wrong);
  std::vector<std::unique_ptr<Input>> inputs;
  if (ExitStatus status = readAll(options, inputs); status != kFine)
    return status;
  std::vector<std::array<std::string, 4>> lines = {
      {"", inputs[0]->subject.title, inputs[1]->subject.title, "change"}};
  auto add = [&](const std::string &what, const std::string &a, const std::string &b) {
    std::optional<double> from = numberOf(a), to = numberOf(b);
    const bool areNumbers = from && to && *from != 0;
    if (a != b)
      lines.push_back(
          {what, a, b,
           areNumbers ? fmt::format("{:+.1f} %", 100 * (*to - *from) / std::abs(*from)) : ""});
  };
  for (const page::Json &row : differences(inputs))
    add(row["path"], row["values"][0], row["values"][1]);
  const auto others = figuresOf(*inputs[1]);
  for (const auto &[what, value] : figuresOf(*inputs[0])) {
    auto other = std::ranges::find(others, what, &std::pair<std::string, std::string>::first);
    add(printable(what), value, other == others.end() ? "none" : other->second);
  }
  std::array<size_t, 4> widths = {};
  for (const auto &line : lines)
    for (size_t c = 0; c < line.size(); ++c)
      widths[c] = std::max(widths[c], line[c].size());
  for (const auto &[what, a, b, change] : lines)
    printOut("{}\n", llvm::StringRef(fmt::format("{:{}}  {:>{}}  {:>{}}  {:>{}}", what, widths[0],
                                                 a, widths[1], b, widths[2], change, widths[3]))
                         .rtrim()
                         .str());
  return kFine;
}

/// Reads and compiles all inputs before it writes, so that one that fails leaves no file.
int writeReport(const ReportOptions &options) {
  if (ExitStatus written = checkOutput(options.output); written != kFine)
    return written;
  std::vector<std::unique_ptr<Input>> inputs;
  if (ExitStatus status = readAll(options, inputs); status != kFine)
    return status;
  page::Json plans = page::Json::array();
  for (const std::unique_ptr<Input> &input : inputs)
    plans.push_back(std::move(input->data));
  page::Json data = {{"format", 1}, {"version", versionText()}, {"plans", std::move(plans)}};
  if (inputs.size() > 1)
    data["differences"] = differences(inputs);
  if (options.follow > 0)
    data["reload_s"] = options.follow;
  return writeOutput(options.output, page::htmlPage(data));
}

void addRuns(cli::Command &command, ReportOptions &options) {
  command.option("recipe", options.inputs, "recipes, compiled plans, and folders of saves")
      .required();
  options.common.addTo(command, /*needsRecipe=*/false);
  command
      .option("--metrics", options.metrics,
              "metrics of a run; the first is of the first plan, and so on")
      .repeatableOneByOne();
}

/// With --follow, writes the page again and again until the command is stopped; the page reloads
/// itself.
int runReport(const ReportOptions &options) {
  if (std::optional<std::string> wrong = wrongUse(options))
    return refuseUsage(*wrong);
  int status = writeReport(options);
  while (status == kFine && options.follow > 0) {
    std::this_thread::sleep_for(std::chrono::seconds(options.follow));
    status = writeReport(options);
  }
  return status;
}

} // namespace

void addReport(cli::Command &app, int &status) {
  auto options = std::make_shared<ReportOptions>();
  cli::Command &command = app.addCommand("report", "write an HTML page about plans and their runs")
                              .alsoCalled({"html", "view", "visualize", "dashboard"});
  addRuns(command, *options);
  command.option("-o", options->output, "file to write; default: standard output");
  command
      .option("--trace", options->traces,
              "trace of a run; the first is of the first plan, and so on")
      .repeatableOneByOne();
  command
      .option("--seconds", options->seconds,
              "time for compiling other splits of the ranks of a recipe; 0 compiles no changes")
      .nonNegative()
      .showsDefault();
  command
      .option("--follow", options->follow,
              "seconds after which the page of a run that goes on is written and loaded again")
      .positive();
  command.onUse([options, &status] { status = runReport(*options); });
  auto compared = std::make_shared<ReportOptions>();
  compared->seconds = 0;
  cli::Command &diff = app.addCommand("diff", "print what differs between two plans and their runs")
                           .alsoCalled({"compare"});
  addRuns(diff, *compared);
  diff.onUse([compared, &status] { status = runDiff(*compared); });
}

} // namespace shardc::tools
