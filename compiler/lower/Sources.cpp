// Collects the files and settings from which a configuration was read, each of them once.
#include "compiler/lower/Sources.h"

#include <filesystem>
#include <optional>

#include "compiler/basic/Library.h"

namespace shardc::lower {
namespace {

namespace fs = std::filesystem;

using config::Origin;
using config::SourceUse;
using plan::Source;

Source::Kind kindOf(const SourceUse &use) {
  if (use.origin == Origin::CommandLine)
    return Source::Setting;
  if (use.isExtended)
    return Source::Base;
  return use.origin == Origin::Overlay ? Source::Overlay : Source::Recipe;
}

/// The absolute path of the file, without `.` and `..`.
fs::path wholePath(llvm::StringRef name) {
  std::error_code error;
  fs::path path = fs::absolute(name.str(), error);
  return (error ? fs::path(name.str()) : path).lexically_normal();
}

/// The common prefix of both paths.
fs::path sharedPart(const fs::path &a, const fs::path &b) {
  fs::path shared;
  for (auto x = a.begin(), y = b.begin(); x != a.end() && y != b.end() && *x == *y; ++x, ++y)
    shared /= *x;
  return shared;
}

} // namespace

std::vector<Source> sourcesOf(const config::Config &config, const SourceManager &sources) {
  std::optional<fs::path> folder;
  for (const SourceUse &use : config.sources())
    if (kindOf(use) != Source::Setting && !isLibraryName(sources.name(use.buffer))) {
      fs::path parent = wholePath(sources.name(use.buffer)).parent_path();
      folder = folder ? sharedPart(*folder, parent) : parent;
    }
  std::vector<Source> all;
  for (const SourceUse &use : config.sources()) {
    Source source{kindOf(use), "", sources.text(use.buffer).str()};
    if (isLibraryName(sources.name(use.buffer)))
      source.name = sources.name(use.buffer).str();
    else if (source.kind != Source::Setting)
      source.name =
          wholePath(sources.name(use.buffer)).lexically_relative(*folder).generic_string();
    all.push_back(std::move(source));
  }
  return all;
}

} // namespace shardc::lower
