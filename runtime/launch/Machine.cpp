#include "runtime/launch/Machine.h"

#include <array>
#include <csignal>

#include <fmt/format.h>
#include <unistd.h>

#include "runtime/base/Io.h"

namespace shardc::launch {
namespace {

std::string linkTarget(const std::string &path) {
  std::array<char, 4096> buffer;
  ssize_t bytes = ::readlink(path.c_str(), buffer.data(), buffer.size());
  return bytes > 0 ? std::string(buffer.data(), static_cast<size_t>(bytes)) : std::string();
}

} // namespace

std::string hostName() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

std::string machineId() {
  Result<std::string> boot = readFile("/proc/sys/kernel/random/boot_id", 4096);
  return fmt::format("{} {} {}", hostName(), boot.isOk() ? boot->substr(0, boot->find('\n')) : "",
                     linkTarget("/proc/self/ns/pid"));
}

void endProcess(pid_t process) {
  if (process <= 1 || process == ::getpid())
    return;
  std::string theirs = linkTarget(fmt::format("/proc/{}/exe", process));
  if (!theirs.empty() && theirs == linkTarget("/proc/self/exe")) // numbers are used again
    ::kill(process, SIGKILL);
}

void endIfStopped(pid_t process) {
  Result<std::string> stat = readFile(fmt::format("/proc/{}/stat", process), 4096);
  size_t name = stat.isOk() ? stat->rfind(") ") : std::string::npos;
  if (name != std::string::npos && (stat->at(name + 2) == 'T' || stat->at(name + 2) == 't'))
    endProcess(process);
}

} // namespace shardc::launch
