// shardc export: a recipe as Megatron-LM's command line or Megatron-Bridge's overrides.
#include <CLI/CLI.hpp>

#include "compiler/import/Export.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/Session.h"

namespace shardc::tools {
namespace {

struct ExportCommand {
  CommonOptions common;
  std::string format;
  std::string output;
};

int runExport(const ExportCommand &command) {
  Session session(command.common);
  if (ExitStatus status = session.applyFlags(); status != kFine)
    return status;
  std::optional<config::Config> config =
      config::loadConfig(session.sources(), session.diags(), command.common.load);
  if (!config) {
    session.finish();
    return kInputErrors;
  }
  bool isArgs = command.format == "megatron-args";
  importer::ExportTarget target =
      isArgs ? importer::ExportTarget::MegatronArgs : importer::ExportTarget::BridgeOverrides;
  std::vector<std::string> fired;
  for (const Diagnostic &diagnostic : session.diags().pending())
    fired.push_back(diagnostic.id);
  importer::judgeExport(*config, fired, target, session.diags());
  std::string text = isArgs ? importer::exportMegatronArgs(*config, session.diags())
                            : importer::exportBridgeOverrides(*config, session.diags());
  ExitStatus status = session.finish();
  return status == kFine ? writeOutput(command.output, text) : status;
}

} // namespace

void addExport(CLI::App &app, int &status) {
  auto options = std::make_shared<ExportCommand>();
  CLI::App *command = app.add_subcommand(
      "export", "write a recipe as Megatron-LM's arguments or Megatron-Bridge's overrides");
  command->add_option("form", options->format, "what to write")
      ->required()
      ->check(CLI::IsMember({"megatron-args", "bridge-overrides"}));
  options->common.addTo(*command);
  command->add_option("-o,--output", options->output, "output file; default: standard output");
  command->callback([options, &status] { status = runExport(*options); });
}

} // namespace shardc::tools
