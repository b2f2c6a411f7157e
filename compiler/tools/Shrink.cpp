// shardc shrink: writes a small copy of a recipe, with fewer ranks and smaller sizes.
#include <filesystem>

#include "compiler/basic/Library.h"
#include "compiler/shrink/Shrink.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/Session.h"
#include "runtime/base/CommandLine.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

namespace fs = std::filesystem;

struct ShrinkCommand {
  CommonOptions common;
  int64_t ranks = 0;
  std::string output;
  std::string name;
  bool flat = false, force = false;
};

bool goesToStdout(const ShrinkCommand &command) {
  return command.output.empty() || command.output == "-";
}

/// The path by which a recipe in `folder` refers to the file `path`; empty if no relative path
/// exists.
std::optional<std::string> nameFrom(const fs::path &folder, const std::string &path) {
  if (isLibraryName(path))
    return path;
  std::error_code error;
  // Resolves links, because relative paths start at the folder that contains the copy.
  fs::path from = fs::weakly_canonical(folder.empty() ? "." : folder, error);
  fs::path to = error ? fs::path() : fs::weakly_canonical(path, error);
  fs::path relative = error ? fs::path() : to.lexically_relative(from);
  if (relative.empty())
    return std::nullopt;
  std::string name = relative.generic_string();
  return isLibraryName(name) ? "./" + name : name;
}

/// The files that the copy extends: the recipe and its overlays. None if the copy must be
/// self-contained, as on standard output, which is in no folder.
std::vector<std::string> basesOf(const ShrinkCommand &command) {
  std::vector<std::string> files = {command.common.load.path}, bases;
  files.insert(files.end(), command.common.load.overlays.begin(),
               command.common.load.overlays.end());
  if (command.flat)
    return {};
  for (const std::string &file : files) {
    if (goesToStdout(command) && !isLibraryName(file))
      return {};
    std::optional<std::string> name = nameFrom(fs::path(command.output).parent_path(), file);
    if (!name)
      return {};
    bases.push_back(*name);
  }
  return bases;
}

/// The reason why the output must not be written; empty if it may. The inputs of the copy are never
/// overwritten.
std::string refusal(const ShrinkCommand &command, const Session &session,
                    const config::Config &config) {
  std::error_code error;
  if (goesToStdout(command) || !fs::exists(command.output, error))
    return "";
  if (std::string why = whyKept(command.output, filesOf(config, session.sources())); !why.empty())
    return why;
  bool isFile = fs::is_regular_file(command.output, error);
  return isFile && !command.force ? "'" + command.output + "' exists; '--force' replaces it" : "";
}

int runShrink(const ShrinkCommand &command) {
  Session session(command.common);
  const config::LoadOptions &load = command.common.load;
  std::optional<config::Config> config =
      config::loadConfig(session.sources(), session.diags(), load);
  if (!config)
    return session.finish();
  if (std::string why = refusal(command, session, *config); !why.empty()) {
    session.finish();
    return refuseUsage(why);
  }
  std::optional<shrink::SmallCopy> copy =
      shrink::makeSmallCopy(*config, load, command.ranks, session.diags());
  if (ExitStatus status = session.finish(); status != kFine || !copy)
    return status == kFine ? kInputErrors : status;
  shrink::TextOptions options;
  options.bases = basesOf(command);
  options.name =
      command.name.empty() ? config->name() + "_on_" + std::to_string(command.ranks) : command.name;
  return writeOutput(command.output, shrink::textOf(*config, *copy, options));
}

} // namespace

void addShrink(cli::Command &app, int &status) {
  auto options = std::make_shared<ShrinkCommand>();
  cli::Command &command =
      app.addCommand("shrink", "write a small copy of a recipe: fewer ranks, smaller sizes");
  options->common.remarks = "hidden"; // remarks would be about the recipe, not about the copy
  options->common.addTo(command);
  command.option("--ranks", options->ranks, "number of ranks of the copy").required().positive();
  command.option("-o,--output", options->output,
                 "output file of the copy; default: standard output");
  command.option("--name", options->name, "name of the copy");
  command.flag("--flat", options->flat, "write every setting instead of extending the recipe");
  command.flag("--force", options->force, "replace the output file if it exists");
  command.onUse([options, &status] { status = runShrink(*options); });
}

} // namespace shardc::tools
