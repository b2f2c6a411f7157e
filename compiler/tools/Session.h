// Shared by all subcommands: common options, the sources and messages of one compilation, and the
// steps from a recipe to a placed plan.
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

/// The exit status for a status.
ExitStatus exitStatusOf(const Status &status);

/// Options that every subcommand with a recipe takes.
struct CommonOptions {
  CommonOptions();

  config::LoadOptions load;              ///< opens data, if options are in units of epochs
  std::vector<std::string> warningFlags; ///< without the leading -W
  std::string color = "auto";
  std::string diagFormat = "text";
  std::string remarks = "hidden"; ///< in the text form: hidden, counted, lines or full

  /// Adds the options, and a positional argument for the recipe if needed.
  void addTo(cli::Command &app, bool needsRecipe = true);
  /// Adds only the options about messages.
  void addMessageOptions(cli::Command &app);
};

/// Sources and messages of one compilation.
class Session {
public:
  /// The options must outlive the session.
  explicit Session(const CommonOptions &options);
  ~Session();

  SourceManager &sources() { return sources_; }
  const SourceManager &sources() const { return sources_; }
  DiagEngine &diags() { return diags_; }
  const DiagEngine &diags() const { return diags_; }
  /// Prints all messages; kInputErrors if one is an error.
  ExitStatus finish();

private:
  const CommonOptions &options_;
  SourceManager sources_;
  DiagEngine diags_;
  std::unique_ptr<DiagConsumer> consumer_;
};

/// What compile() does besides compiling.
struct CompileOptions {
  passes::PipelineOptions pipeline;
  /// Called with the logical plan of each batch size.
  std::function<void(const plan::Plan &)> afterLower;
  /// Whether an unsupported op is an error (dump, run) or a remark (check).
  bool mustExecute = true;
  /// Whether remarks say how much memory other settings would need. This takes some further
  /// compilations.
  bool advise = false;
  /// Whether a remark says that memory is not checked because the recipe names no device.
  bool saysIfUnchecked = false;
  /// Whether the plan contains its source texts.
  bool keepsSources = true;
  /// Whether the plan carries its specification, so that other programs can prove it again.
  bool keepsSpecification = false;
};

/// A placed plan, with what passes have reported and how long each took.
struct Compiled {
  plan::Plan plan;
  passes::Notes notes;
  std::vector<passes::PassTime> times;
  /// With a batch size ramp: the plans of the smaller sizes, in the order of the run.
  std::vector<Compiled> before;
};

/// Compiles a configuration to a placed and verified plan that fits its device. Empty after an
/// error or if ops are unsupported; both are reported.
std::optional<Compiled> compile(const config::Config &config, SourceManager &sources,
                                DiagEngine &diags, const CommonOptions &common,
                                const CompileOptions &options);

/// The specification of a configuration: what its plan must compute, with the backward pass and
/// 8-bit operands.
plan::Plan specificationOf(const config::Config &config, const SourceManager &sources);

/// Whether the plan obeys all rules and computes its specification. Reports errors if it does not,
/// at the lines of the configuration's recipe.
bool isVerified(const config::Config &config, const SourceManager &sources, const plan::Plan &plan,
                const plan::Plan &specification, DiagEngine &diags);

/// Warns of ops that run on CUDA cores, at their lines, with their share of the predicted step.
void reportSlowKernels(const config::Config &config, const SourceManager &sources,
                       const plan::Plan &plan, DiagEngine &diags);

/// Implements `shardc check`: reads the recipe, compiles as far as possible, and advises. With
/// `mustExecute`, unsupported features are errors. Empty if the recipe cannot be read.
std::optional<config::Config> checkRecipe(Session &session, const CommonOptions &common,
                                          bool mustExecute = false);

/// The predicted step of the slowest role on the plan's device; empty on the host.
std::optional<predict::StepTime> predictedStep(const plan::Plan &plan);

/// Predictions for a run, one per line: memory outside the arenas, and step time. Empty on the
/// host.
std::vector<std::string> predictionText(const plan::Plan &plan);

/// The text of a plan file: for each batch size, a page of comments and the plan.
std::string planText(const Compiled &compiled);

/// The files of the recipe: the recipe itself, the files that it extends, and the overlays.
std::vector<std::string> filesOf(const config::Config &config, const SourceManager &sources);

/// The reason why an output must not be written: it is one of the inputs. Empty if it may be
/// written.
std::string whyKept(const std::string &output, const std::vector<std::string> &inputs);

/// Prints a usage error and returns its exit status.
ExitStatus refuseUsage(const std::string &why);

/// Checks early, for long commands, whether writeOutput() can write to the path. Prints an error if
/// not.
ExitStatus checkOutput(const std::string &path);

/// Replaces a file of a recipe in place. Refuses a link, also of a folder between the recipe that
/// the user named and the file, since a folder of somebody else may have one that leads to any
/// file.
ExitStatus rewriteFile(const std::string &path, std::string_view text, const std::string &user);

/// Writes to a file (atomically) or, for an empty path, to standard output.
ExitStatus writeOutput(const std::string &path, std::string_view text);

} // namespace shardc::tools
