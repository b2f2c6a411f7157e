// shardc dump-plan: prints the plan of a recipe, after all passes or after any of them.
#include <fmt/format.h>

#include "compiler/basic/Suggest.h"
#include "compiler/lower/Lower.h"
#include "compiler/model/ScheduleFile.h"
#include "compiler/passes/PipelineStages.h"
#include "compiler/predict/Transfers.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/ElasticPlans.h"
#include "compiler/tools/PlanJson.h"
#include "compiler/tools/PlanTrace.h"
#include "compiler/tools/SamplePlan.h"
#include "compiler/tools/Session.h"
#include "runtime/base/CommandLine.h"
#include "runtime/plan/Text.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

struct DumpOptions {
  CommonOptions common;
  std::string output;
  std::string emit = "text";
  std::string segment, unit;
  std::vector<std::string> printAfter, disabled, enabled;
  bool printAfterAll = false;
  bool timePasses = false;
  bool isSpecification = false;
  ElasticOption elastic;

  bool prints(std::string_view step) const {
    return printAfterAll ||
           std::find(printAfter.begin(), printAfter.end(), step) != printAfter.end();
  }
};

/// The steps that --print-after accepts: those of the configuration, lowering, and all passes.
std::vector<std::string> stepNames() {
  std::vector<std::string> names = {"resolve", "defaults", "adjust", "validate", "lower"};
  for (passes::PassId id : passes::allPasses())
    names.emplace_back(passes::passInfo(id).flag);
  return names;
}

/// Text that tells plans of different batch sizes apart.
std::string sizeText(const plan::Plan &plan) {
  int64_t samples = plan.job.derived.stepSamples;
  return samples > 0 ? fmt::format(", steps of {} samples", samples) : "";
}

void printStep(std::string_view step, const std::string &text) {
  llvm::outs() << "// after " << llvm::StringRef(step.data(), step.size()) << "\n" << text;
}

/// The ops of the selected segment or unit, one per line.
std::string selectedOps(const plan::Plan &plan, const DumpOptions &options) {
  std::string text;
  for (const plan::Role &role : plan.roles)
    for (const plan::Segment &segment : role.segments) {
      if (!options.segment.empty() && segment.name != options.segment)
        continue;
      for (uint32_t i = 0; i < segment.ops.size(); ++i) {
        int32_t unit = segment.ops[i].unit;
        if (!options.unit.empty() &&
            (unit < 0 || plan.units[static_cast<size_t>(unit)].name != options.unit))
          continue;
        text +=
            fmt::format("{}.{}: {}\n", role.name, segment.name, plan::printOp(plan, segment, i));
      }
    }
  return text;
}

void printTimes(const std::vector<passes::PassTime> &times) {
  double total = 0;
  for (const passes::PassTime &time : times)
    total += time.ms;
  llvm::errs() << fmt::format("{:<22} {:>9} {:>6}\n", "pass", "ms", "share");
  for (const passes::PassTime &time : times)
    llvm::errs() << fmt::format("{:<22} {:>9.3f} {:>5.1f}%\n", passes::passInfo(time.id).flag,
                                time.ms, 100 * time.ms / total);
  llvm::errs() << fmt::format("{:<22} {:>9.3f}\n", "total", total);
}

/// Whether `name` is empty or a name in the plan; otherwise prints an error.
bool isKnown(const char *what, const std::string &name, const std::vector<llvm::StringRef> &known) {
  if (name.empty() || llvm::is_contained(known, name))
    return true;
  llvm::errs() << "shardc: error: the plan has no " << what << " '" << name << "'; ";
  if (Suggestion near = suggest(name, known); !near.names.empty())
    llvm::errs() << "did you mean " << quotedList(near.names) << "?\n";
  else
    llvm::errs() << "it has " << quotedList(known) << "\n";
  return false;
}

bool areSelectorsKnown(const plan::Plan &plan, const DumpOptions &options) {
  std::vector<llvm::StringRef> segments, units;
  for (const plan::Role &role : plan.roles)
    for (const plan::Segment &segment : role.segments)
      segments.push_back(segment.name);
  for (const plan::Unit &unit : plan.units)
    units.push_back(unit.name);
  return isKnown("segment", options.segment, segments) && isKnown("unit", options.unit, units);
}

/// The selected ops of each plan.
std::string selectedText(const Compiled &compiled, const DumpOptions &options) {
  if (compiled.before.empty())
    return selectedOps(compiled.plan, options);
  std::string text;
  auto add = [&](const plan::Plan &plan) {
    text += "// the plan" + sizeText(plan) + "\n" + selectedOps(plan, options);
  };
  for (const Compiled &smaller : compiled.before)
    add(smaller.plan);
  add(compiled.plan);
  return text;
}

/// One JSON document: the plan, or a list of plans if there are several.
std::string jsonText(const Compiled &compiled) {
  if (compiled.before.empty())
    return planJson(compiled.plan);
  std::string text = "[";
  for (const Compiled &smaller : compiled.before)
    text += planJson(smaller.plan) + ",\n";
  return text + planJson(compiled.plan) + "]\n";
}

ExitStatus emit(const Compiled &compiled, const DumpOptions &options) {
  if (!areSelectorsKnown(compiled.plan, options))
    return kUsage;
  if (!options.segment.empty() || !options.unit.empty())
    return writeOutput(options.output, selectedText(compiled, options));
  if (options.emit == "trace") {
    std::optional<predict::Device> device = predict::plannedDevice(compiled.plan);
    if (!device || !device->isPredicted()) {
      llvm::errs() << "shardc: error: '--emit=trace' shows the predicted step, but no step is "
                      "predicted on the host; set 'cluster.gpu' to a GPU\n";
      return kUsage;
    }
    return writeOutput(options.output, planTrace(*device, compiled.plan));
  }
  if (options.emit == "schedule") {
    const plan::Job &job = compiled.plan.job;
    if (job.model.pipelineModelParallelSize == 1) {
      llvm::errs() << "shardc: error: '--emit=schedule' shows the passes of pipeline stages; the "
                      "plan has one stage\n";
      return kUsage;
    }
    return writeOutput(options.output, model::writeSchedule(passes::passOrderOf(job)));
  }
  return writeOutput(options.output,
                     options.emit == "json" ? jsonText(compiled) : planText(compiled));
}

bool isWholeText(const DumpOptions &options) {
  return options.emit == "text" && options.segment.empty() && options.unit.empty();
}

/// The text that follows the recipe's plans in a file: the plans for fewer ranks, and the plan that
/// continues texts. Nothing after an error.
std::optional<std::string> furtherText(const config::Config &config, const DumpOptions &options,
                                       CompileOptions compileOptions, DiagEngine &diags) {
  compileOptions.afterLower = nullptr;
  compileOptions.pipeline.after = nullptr;
  std::optional<std::vector<Compiled>> smaller =
      compileSizes(config, options.elastic.sizes, options.common, diags, compileOptions);
  if (!smaller)
    return std::nullopt;
  std::string text;
  for (const Compiled &each : *smaller)
    text += planText(each);
  if (!isWholeText(options))
    return text;
  std::optional<std::string> samples = sampleText(config, options.common, diags);
  return samples ? std::optional(text + *samples) : std::nullopt;
}

/// Checks that plans of several sizes are written as text, because runs read them as text.
bool isElasticText(const DumpOptions &options) {
  const bool isText = isWholeText(options);
  if (!options.elastic.sizes.empty() && !isText)
    llvm::errs()
        << "shardc: error: '--elastic' writes whole plans as text; it cannot be given with "
           "'--emit', '--segment' or '--unit'\n";
  return options.elastic.sizes.empty() || isText;
}

/// Writes the specification: what every plan of the recipe must compute.
ExitStatus emitSpecification(const config::Config &config, const SourceManager &sources,
                             const DumpOptions &options) {
  if (std::vector<lower::Missing> missing = lower::findMissing(config); !missing.empty())
    return refuseUsage("no op of plans is " + missing.front().what);
  return writeOutput(options.output, plan::print(specificationOf(config, sources)));
}

/// Compiles the recipe with hooks that print the plan after the chosen steps. With a specification,
/// only the configuration is compiled.
int runDumpPlan(DumpOptions &options) {
  if (ExitStatus status = options.elastic.read(); status != kFine)
    return status;
  if (!isElasticText(options))
    return kUsage;
  Session session(options.common);
  if (ExitStatus status = session.applyFlags(); status != kFine)
    return status;
  auto afterStep = [&](config::Step step, const config::Config &config) {
    if (std::string_view name(config::stepName(step).data(), config::stepName(step).size());
        options.prints(name))
      printStep(name, config::printRecipe(config));
  };
  std::optional<config::Config> config =
      config::loadConfig(session.sources(), session.diags(), options.common.load, afterStep);
  if (!config)
    return session.finish();
  if (std::string why = whyKept(options.output, filesOf(*config, session.sources())); !why.empty())
    return refuseUsage(why);
  if (options.isSpecification) {
    ExitStatus status = session.finish();
    return status == kFine ? emitSpecification(*config, session.sources(), options) : status;
  }
  CompileOptions compileOptions;
  // Printed plans are for people, so only plans in files contain the recipe and the specification.
  compileOptions.keepsSources = compileOptions.keepsSpecification =
      !options.output.empty() && options.output != "-";
  for (const std::string &flag : options.disabled)
    compileOptions.pipeline.disabled.push_back(*passes::findPass(flag));
  for (const std::string &flag : options.enabled)
    compileOptions.pipeline.enabled.push_back(*passes::findPass(flag));
  compileOptions.afterLower = [&](const plan::Plan &plan) {
    if (options.prints("lower"))
      printStep("lower" + sizeText(plan), plan::print(plan));
  };
  compileOptions.pipeline.after = [&](passes::PassId id, const plan::Plan &plan) {
    if (options.prints(passes::passInfo(id).flag))
      printStep(std::string(passes::passInfo(id).flag) + sizeText(plan), plan::print(plan));
  };
  std::optional<Compiled> compiled =
      compile(*config, session.sources(), session.diags(), options.common, compileOptions);
  std::optional<std::string> further;
  if (compiled)
    further = furtherText(*config, options, compileOptions, session.diags());
  if (ExitStatus status = session.finish(); status != kFine || !further)
    return status == kFine ? kInputErrors : status;
  if (options.timePasses)
    printTimes(compiled->times);
  bool dumped = options.printAfterAll || !options.printAfter.empty();
  if (dumped && options.output.empty())
    return kFine;
  return further->empty() ? emit(*compiled, options)
                          : writeOutput(options.output, planText(*compiled) + *further);
}

} // namespace

void addDumpPlan(cli::Command &app, int &status) {
  auto options = std::make_shared<DumpOptions>();
  cli::Command &command = app.addCommand("dump-plan", "compile a recipe and print its plan")
                              .alsoCalled({"compile", "plan", "build"});
  options->common.addTo(command);
  std::vector<std::string> optional, onRequest;
  for (passes::PassId id : passes::allPasses()) {
    if (passes::isOptional(id))
      optional.emplace_back(passes::passInfo(id).flag);
    if (passes::isOnRequest(id))
      onRequest.emplace_back(passes::passInfo(id).flag);
  }
  command.option("-o", options->output, "file to write; default: standard output");
  command.option("--emit", options->emit, "form of the plan")
      .oneOf({"text", "json", "trace", "schedule"});
  command.option("--segment", options->segment, "print only the ops of this segment");
  command.option("--unit", options->unit, "print only the ops of this unit");
  command.option("--disable-pass", options->disabled, "skip a fusion").repeatable().oneOf(optional);
  command.option("--enable-pass", options->enabled, "run a pass that only runs on request")
      .repeatable()
      .oneOf(onRequest);
  command.option("--print-after", options->printAfter, "print the plan after this step")
      .repeatable()
      .oneOf(stepNames());
  command.flag("--print-after-all", options->printAfterAll, "print the plan after every step");
  command.flag(
      "--specification", options->isSpecification,
      "print what the plan has to compute instead: the recipe before it is divided among ranks");
  options->elastic.addTo(command);
  command.flag("--time-passes", options->timePasses,
               "print the time of each pass on standard error");
  command.onUse([options, &status] { status = runDumpPlan(*options); });
}

} // namespace shardc::tools
