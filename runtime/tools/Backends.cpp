#include "runtime/tools/Backends.h"

#include <fmt/format.h>

#include "runtime/base/CommandLine.h"
#include "runtime/base/Version.h"

namespace shardc::tools {

#define BACKEND(object) extern const BackendEntry object;
#include "runtime/tools/BuiltBackends.def"

namespace {

constexpr const BackendEntry *kBackends[] = {
#define BACKEND(object) &object,
#include "runtime/tools/BuiltBackends.def"
};

} // namespace

std::vector<std::string> backendNames() {
  std::vector<std::string> names;
  for (const BackendEntry *backend : kBackends)
    names.emplace_back(backend->name);
  return names;
}

const BackendEntry *findBackend(std::string_view name) {
  for (const BackendEntry *backend : kBackends)
    if (backend->name == name)
      return backend;
  return nullptr;
}

std::string versionLines() {
  std::vector<std::string> libraries = {
      fmt::format("fmt {}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100),
      fmt::format("CLI11 {}", cli::libraryVersion())};
  for (const BackendEntry *backend : kBackends)
    if (std::string versions = backend->libraryVersions(); !versions.empty())
      libraries.push_back(std::move(versions));
  return fmt::format("shardc-run {}\nbackends: {}\nlibraries: {}", versionText(),
                     fmt::join(backendNames(), ", "), fmt::join(libraries, ", "));
}

} // namespace shardc::tools
