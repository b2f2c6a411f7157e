// shardc export: prints a recipe as Megatron-LM's command line or as Megatron-Bridge's overrides.
#include "compiler/upstream/Export.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/Session.h"
#include "runtime/base/CommandLine.h"

namespace shardc::tools {
namespace {

struct ExportCommand {
  CommonOptions common;
  std::string format;
  std::string output;
};

/// The export must stay as upstream would run it, so rules that only concern shardc's own execution
/// are left out (`isForUpstream`), and diagnostics of the recipe decide whether the target can
/// express it.
int runExport(const ExportCommand &command) {
  Session session(command.common);
  config::LoadOptions load = command.common.load;
  load.isForUpstream = true;
  std::optional<config::Config> config =
      config::loadConfig(session.sources(), session.diags(), load);
  if (!config) {
    session.finish();
    return kInputErrors;
  }
  if (std::string why = whyKept(command.output, filesOf(*config, session.sources())); !why.empty())
    return refuseUsage(why);
  bool isArgs = command.format == "megatron-args";
  upstream::ExportTarget target =
      isArgs ? upstream::ExportTarget::MegatronArgs : upstream::ExportTarget::BridgeOverrides;
  std::vector<std::string> fired;
  for (const Diagnostic &diagnostic : session.diags().pending())
    fired.push_back(diagnostic.id);
  upstream::judgeExport(*config, fired, target, session.diags());
  std::string text = isArgs ? upstream::exportMegatronArgs(*config, session.diags())
                            : upstream::exportBridgeOverrides(*config, session.diags());
  ExitStatus status = session.finish();
  return status == kFine ? writeOutput(command.output, text) : status;
}

} // namespace

void addExport(cli::Command &app, int &status) {
  auto options = std::make_shared<ExportCommand>();
  cli::Command &command = app.addCommand(
      "export", "write a recipe as Megatron-LM's arguments or Megatron-Bridge's overrides");
  command.option("form", options->format, "what to write")
      .required()
      .oneOf({"megatron-args", "bridge-overrides"});
  options->common.addTo(command);
  command.option("-o,--output", options->output, "output file; default: standard output");
  command.onUse([options, &status] { status = runExport(*options); });
}

} // namespace shardc::tools
