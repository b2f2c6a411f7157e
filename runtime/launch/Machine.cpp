// Reads /proc, which has the processes, their sockets and their states.
#include "runtime/launch/Machine.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <functional>
#include <sstream>
#include <vector>

#include <fmt/format.h>
#include <netinet/in.h>
#include <pwd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/base/Io.h"

namespace shardc::launch {
namespace {

constexpr const char *kListening = "0A"; ///< a state in the tables of connections

std::string linkTarget(const std::string &path) {
  std::array<char, 4096> buffer;
  ssize_t bytes = ::readlink(path.c_str(), buffer.data(), buffer.size());
  return bytes > 0 ? std::string(buffer.data(), static_cast<size_t>(bytes)) : std::string();
}

/// Returns the whole text of a file in /proc, whose reported size is 0; empty if it cannot be read.
std::string procText(const std::string &path) {
  Result<std::string> text = readSystemFile(path);
  return text.isOk() ? *text : std::string();
}

/// A row of a table of TCP connections in /proc.
struct TcpConnection {
  std::string own, other, state, inode;
  long user = -1;
};

/// Calls `see` for each TCP connection in the network namespace of a process, until `see` returns
/// true.
void forConnections(const std::string &process,
                    const std::function<bool(const TcpConnection &)> &see) {
  for (const char *table : {"tcp", "tcp6"}) {
    std::istringstream lines(procText(fmt::format("/proc/{}/net/{}", process, table)));
    std::string line;
    std::getline(lines, line); // the column headings
    while (std::getline(lines, line)) {
      std::istringstream words(line);
      std::string number, queues, timer, retransmits, timeout;
      TcpConnection row;
      words >> number >> row.own >> row.other >> row.state >> queues >> timer >> retransmits >>
          row.user >> timeout >> row.inode;
      if (words && see(row))
        return;
    }
  }
}

/// Returns the inodes of the sockets that a process has open.
std::vector<std::string> socketsOf(const std::string &process) {
  std::vector<std::string> inodes;
  std::error_code error;
  for (std::filesystem::directory_iterator at(fmt::format("/proc/{}/fd", process), error), end;
       !error && at != end; at.increment(error)) {
    std::string target = linkTarget(at->path());
    if (target.starts_with("socket:["))
      inodes.push_back(target.substr(8, target.size() - 9));
  }
  return inodes;
}

/// Whether one of the process's sockets is connected to `end`.
bool isConnectedTo(pid_t process, const std::string &end) {
  if (end.empty())
    return false;
  std::string name = std::to_string(process);
  std::vector<std::string> sockets = socketsOf(name);
  bool isFound = false;
  forConnections(name, [&](const TcpConnection &row) {
    isFound = row.other == end && std::ranges::find(sockets, row.inode) != sockets.end();
    return isFound;
  });
  return isFound;
}

/// An end of a connection as `/proc/net/tcp` has it: the address as hexadecimal words in the order
/// of bytes in memory, then the port.
std::string endText(int (*get)(int, sockaddr *, socklen_t *), const Socket &socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  if (get(socket.fd(), reinterpret_cast<sockaddr *>(&address), &size) != 0)
    return "";
  if (address.ss_family == AF_INET) {
    const auto &v4 = reinterpret_cast<const sockaddr_in &>(address);
    return fmt::format("{:08X}:{:04X}", v4.sin_addr.s_addr, ntohs(v4.sin_port));
  }
  if (address.ss_family != AF_INET6)
    return "";
  const auto &v6 = reinterpret_cast<const sockaddr_in6 &>(address);
  const auto *words = v6.sin6_addr.s6_addr32;
  return fmt::format("{:08X}{:08X}{:08X}{:08X}:{:04X}", words[0], words[1], words[2], words[3],
                     ntohs(v6.sin6_port));
}

/// The state and the parent from /proc/PID/stat. They follow the process name, which may contain
/// any character.
struct ProcessState {
  char state = '?';
  pid_t parent = 0;
  bool isStopped() const { return state == 'T' || state == 't'; }
};

ProcessState stateOf(pid_t process) {
  std::string stat = procText(fmt::format("/proc/{}/stat", process));
  size_t name = stat.rfind(") ");
  ProcessState found;
  if (name != std::string::npos)
    std::istringstream(stat.substr(name + 2)) >> found.state >> found.parent;
  return found;
}

bool runsThisProgram(pid_t process) {
  std::string theirs = linkTarget(fmt::format("/proc/{}/exe", process));
  return !theirs.empty() && theirs == linkTarget("/proc/self/exe");
}

std::string userName(long user) {
  std::array<char, 4096> buffer;
  passwd entry = {}, *found = nullptr;
  if (::getpwuid_r(static_cast<uid_t>(user), &entry, buffer.data(), buffer.size(), &found) == 0 &&
      found)
    return found->pw_name;
  return std::to_string(user);
}

/// Returns the process that has the socket open, among those that this process may inspect.
std::string processWith(const std::string &inode) {
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc", error), end; !error && at != end;
       at.increment(error)) {
    std::string name = at->path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos)
      continue;
    std::vector<std::string> sockets = socketsOf(name);
    if (std::ranges::find(sockets, inode) == sockets.end())
      continue;
    std::string command = procText(fmt::format("/proc/{}/comm", name));
    return fmt::format("process {} ({})", name, command.substr(0, command.find('\n')));
  }
  return "a process";
}

} // namespace

std::string hostName() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

std::string machineId() {
  std::string boot = procText("/proc/sys/kernel/random/boot_id");
  return fmt::format("{} {} {}", hostName(), boot.substr(0, boot.find('\n')),
                     linkTarget("/proc/self/ns/pid"));
}

Hello ownHello(std::string job, int64_t rank, int64_t worldSize) {
  Hello own;
  own.job = std::move(job);
  own.nonce = randomBytes32();
  own.rank = rank;
  own.worldSize = worldSize;
  own.pid = ::getpid();
  own.machine = machineId();
  own.host = hostName();
  return own;
}

std::string portHolder(int port) {
  std::string suffix = fmt::format(":{:04X}", port), text;
  forConnections("self", [&](const TcpConnection &row) {
    if (row.state != kListening || !row.own.ends_with(suffix))
      return false;
    text = fmt::format("{} of user {}", processWith(row.inode), userName(row.user));
    return true;
  });
  return text;
}

std::string ownEndOf(const Socket &socket) { return endText(::getsockname, socket); }

std::string otherEndOf(const Socket &socket) { return endText(::getpeername, socket); }

void endRank(pid_t process, const std::string &server) {
  if (process <= 1 || process == ::getpid() || !runsThisProgram(process) ||
      !isConnectedTo(process, server))
    return;
  pid_t parent = stateOf(process).parent;
  ::kill(process, SIGKILL);
  if (parent > 1 && parent != ::getpid() && stateOf(parent).isStopped() && runsThisProgram(parent))
    ::kill(parent, SIGKILL);
}

} // namespace shardc::launch
