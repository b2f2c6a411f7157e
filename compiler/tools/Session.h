// Shared by all subcommands: the common options, the sources and messages of one compilation, and
// the steps from a recipe to a placed plan.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compiler/config/Steps.h"
#include "compiler/diag/Engine.h"
#include "compiler/passes/Pipeline.h"
#include "compiler/predict/StepTime.h"
#include "runtime/base/Status.h"

namespace shardc::cli {
class Command;
}

namespace shardc::tools {

/// Exit statuses of all tools.
enum ExitStatus : int { kFine = 0, kInputErrors = 1, kUsage = 2, kRunFailed = 3 };

/// That of a tool whose work ended so.
ExitStatus exitStatusOf(const Status &status);

/// Options that every subcommand with a recipe takes.
struct CommonOptions {
  CommonOptions();

  config::LoadOptions load;              ///< opens data, if options count in passes over them
  std::vector<std::string> warningFlags; ///< without the leading -W
  std::string color = "auto";
  std::string diagFormat = "text";
  std::string remarks = "hidden"; ///< in the text form: hidden, counted, lines or full

  /// Adds them, and the recipe as positional argument where the command needs one.
  void addTo(cli::Command &app, bool needsRecipe = true);
  /// Only those about messages.
  void addMessageOptions(cli::Command &app);
};

/// Sources and messages of one compilation.
class Session {
public:
  explicit Session(const CommonOptions &options);
  ~Session();

  SourceManager &sources() { return sources_; }
  const SourceManager &sources() const { return sources_; }
  DiagEngine &diags() { return diags_; }
  const DiagEngine &diags() const { return diags_; }
  /// kUsage if a -W flag names no group, with a message on standard error.
  ExitStatus applyFlags();
  /// Shows everything; kInputErrors if there was an error.
  ExitStatus finish();

private:
  const CommonOptions &options_;
  SourceManager sources_;
  DiagEngine diags_;
  std::unique_ptr<DiagConsumer> consumer_;
};

struct CompileOptions {
  passes::PipelineOptions pipeline;
  /// Called with the logical plan that lowering made, of each batch size.
  std::function<void(const plan::Plan &)> afterLower;
  /// Whether an op that does not exist yet is an error (to dump or run) or a remark (to check).
  bool mustExecute = true;
  /// Whether remarks say what other settings would take; costs a few more compilations.
  bool advise = false;
  /// Whether a remark says that memory is not checked, for lack of a device.
  bool saysIfUnchecked = false;
  /// Whether the plan carries the texts that it was made from.
  bool keepsSources = true;
};

struct Compiled {
  plan::Plan plan;
  passes::Notes notes;
  std::vector<passes::PassTime> times;
  /// Where the global batch grows: the plans of the smaller ones, in the order of the run.
  std::vector<Compiled> before;
};

/// From a configuration to a placed and verified plan that fits its device. Nothing after an error,
/// or where ops are missing; both are reported.
std::optional<Compiled> compile(const config::Config &config, SourceManager &sources,
                                DiagEngine &diags, const CommonOptions &common,
                                const CompileOptions &options);

/// All that `shardc check` does with a recipe: reads it, compiles what can be compiled, and
/// advises. What cannot be compiled is an error with `mustExecute`. Nothing if it cannot be read.
std::optional<config::Config> checkRecipe(Session &session, const CommonOptions &common,
                                          bool mustExecute = false);

/// The step of the slowest role, predicted for the plan's device; nothing on the host.
std::optional<predict::StepTime> predictedStep(const plan::Plan &plan);

/// What is predicted of a run on the plan's device, a line each: memory beside the arenas, and the
/// step's time. Empty on the host.
std::vector<std::string> predictionText(const plan::Plan &plan);

/// The plan file's text: comment page, then the plan; for each batch size.
std::string planText(const Compiled &compiled);

/// The files of the recipe: it, what it extends, and the overlays.
std::vector<std::string> filesOf(const config::Config &config, const SourceManager &sources);

/// Why an output must not be written, if so: its file is one of those that the command reads.
std::string whyKept(const std::string &output, const std::vector<std::string> &inputs);

/// The end of a command line that asks for something wrong: prints the reason.
ExitStatus refuseUsage(const std::string &why);

/// Whether writeOutput could write there, for commands that take long; prints why not.
ExitStatus checkOutput(const std::string &path);

/// Writes to a file (atomically) or, for an empty path, to standard output.
ExitStatus writeOutput(const std::string &path, std::string_view text);

} // namespace shardc::tools
