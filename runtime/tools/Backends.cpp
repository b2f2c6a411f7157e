#include "runtime/tools/Backends.h"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

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

/// Counts devices in a child process: a process that has used GPUs cannot start processes that use
/// them.
int countDevices(const BackendEntry &entry) {
  if (!entry.countDevices)
    return 0;
  std::fflush(nullptr);
  pid_t child = ::fork();
  if (child == 0)
    ::_exit(std::clamp(entry.countDevices(), 0, 255));
  int status = 0;
  return child > 0 && ::waitpid(child, &status, 0) == child && WIFEXITED(status)
             ? WEXITSTATUS(status)
             : 0;
}

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

const BackendEntry *chooseBackend(const std::string &wanted, int &devices) {
  for (const std::string &name : backendNames()) {
    const BackendEntry *entry = findBackend(name);
    if (!wanted.empty() ? name == wanted : entry->countDevices != nullptr)
      if (devices = countDevices(*entry); devices > 0 || !wanted.empty())
        return entry;
  }
  return findBackend("host");
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
