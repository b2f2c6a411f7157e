#include "compiler/tools/ForeignProgram.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/Io.h"
#include "runtime/base/UntrustedFolder.h"

namespace shardc::tools {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr rlim_t kFileBytesMax = rlim_t{64} << 20;
constexpr int kNotStarted = 126; ///< exit status if the program did not start

/// System folders that a program needs. The sandbox shows them read-only and hides everything else.
constexpr const char *kSystemFolders[] = {"/usr",    "/bin", "/sbin", "/lib", "/lib32", "/lib64",
                                          "/libx32", "/etc", "/opt",  "/nix", "/gnu"};

bool writeSmall(const char *path, const std::string &text) {
  int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  bool isWritten = fd >= 0 && ::write(fd, text.data(), text.size()) == ssize_t(text.size());
  if (fd >= 0)
    ::close(fd);
  return isWritten;
}

/// Moves this process into new namespaces, and the processes that it starts into a new PID
/// namespace. The user is root inside, and has no privileges outside.
bool enterNamespaces() {
  uid_t user = ::geteuid();
  gid_t group = ::getegid();
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC |
                CLONE_NEWUTS) != 0)
    return false;
  writeSmall("/proc/self/setgroups", "deny"); // does not exist in old kernels
  return writeSmall("/proc/self/uid_map", "0 " + std::to_string(user) + " 1") &&
         writeSmall("/proc/self/gid_map", "0 " + std::to_string(group) + " 1") &&
         ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

bool bindFolder(const std::string &path, const std::string &root,
                unsigned long recursion = MS_REC) {
  std::error_code error;
  fs::create_directories(root + path, error);
  return ::mount(path.c_str(), (root + path).c_str(), nullptr, MS_BIND | recursion, nullptr) == 0;
}

/// Mounts a folder of the machine read-only in the new root. A link is copied.
bool showFolder(const std::string &path, const std::string &root) {
  std::error_code error;
  fs::file_status status = fs::symlink_status(path, error);
  if (status.type() == fs::file_type::symlink) {
    fs::copy_symlink(path, root + path, error);
    return !error;
  }
  if (status.type() != fs::file_type::directory)
    return true;
  struct {
    uint64_t set, clear, propagation, userns;
  } readOnly = {1 /* MOUNT_ATTR_RDONLY */, 0, 0, 0};
  constexpr unsigned kRecursive = 0x8000; // AT_RECURSIVE
  constexpr long kMountSetattr = 442;     // the same number on all architectures
  return bindFolder(path, root) && ::syscall(kMountSetattr, AT_FDCWD, (root + path).c_str(),
                                             kRecursive, &readOnly, sizeof(readOnly)) == 0;
}

/// Replaces the root of the file system by an empty one in memory, with the program's folder at its
/// own path and with the system folders.
bool changeRoot(const std::string &folder) {
  std::string root = folder + "/root", proc = root + "/proc";
  if (::mkdir(root.c_str(), 0755) != 0 ||
      ::mount("none", root.c_str(), "tmpfs", 0, "mode=755,size=256m") != 0)
    return false;
  for (const char *path : kSystemFolders)
    if (!showFolder(path, root))
      return false;
  std::error_code error;
  fs::create_directories(root + "/tmp", error);
  fs::create_directories(proc, error);
  bool isShown = (::mount("proc", proc.c_str(), "proc", 0, nullptr) == 0 ||
                  bindFolder("/proc", root)) && // for containers that cover parts of /proc
                 bindFolder("/dev", root) &&
                 bindFolder(folder, root, /*recursion=*/0);
  return isShown && ::chdir(root.c_str()) == 0 && ::syscall(SYS_pivot_root, ".", ".") == 0 &&
         ::umount2(".", MNT_DETACH) == 0;
}

void limitResources(unsigned seconds) {
  auto limit = [](auto which, rlim_t value) {
    rlimit both{value, value};
    ::setrlimit(which, &both);
  };
  limit(RLIMIT_FSIZE, kFileBytesMax);
  limit(RLIMIT_CPU, seconds);
  limit(RLIMIT_CORE, 0);
}

int statusOf(int waited) {
  return WIFSIGNALED(waited) ? 128 + WTERMSIG(waited) : WEXITSTATUS(waited);
}

/// Starts the program. Waits for it and for all processes that it leaves behind. Returns its exit
/// status.
int superviseProgram(const std::string &path, char *const *argv, char *const *environment,
                     const std::string &workingFolder) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  pid_t program = ::fork();
  if (program == 0) {
    if (::chdir(workingFolder.c_str()) == 0)
      ::execve(path.c_str(), argv, environment);
    ::dprintf(STDERR_FILENO, "%s: %s\n", path.c_str(), std::strerror(errno));
    ::_exit(kNotStarted);
  }
  int status = kNotStarted, waited = 0;
  pid_t ended = 0;
  while ((ended = ::waitpid(-1, &waited, 0)) > 0 || errno == EINTR)
    if (ended == program)
      status = statusOf(waited);
  return status;
}

/// A program with its arguments and environment in the form that execve needs, and its folder.
class Run {
public:
  Run(const ForeignProgram &program, std::string folder)
      : program_(program), folder_(std::move(folder)), words_(program.command) {
    variables_.push_back("SHARDC_FOLDER=" + folder_);
    for (const auto &[name, value] : program.environment)
      variables_.push_back(name + "=" + value);
    for (std::string &word : words_)
      argv_.push_back(word.data());
    for (std::string &variable : variables_)
      environment_.push_back(variable.data());
    argv_.push_back(nullptr);
    environment_.push_back(nullptr);
  }

  Status prepare() const {
    std::error_code error;
    for (const std::string &inner : {program_.workingFolder, program_.resultFolder})
      fs::create_directories(folder_ + "/" + inner, error);
    for (const auto &[path, text] : program_.files) {
      fs::path whole = fs::path(folder_) / path;
      fs::create_directories(whole.parent_path(), error);
      RETURN_IF_ERROR(writeFileAtomic(whole.string(), text));
      fs::permissions(whole, fs::perms::owner_all, error);
    }
    return Status::ok();
  }

  /// Returns false if namespaces are requested and the system does not support them.
  Result<bool> start(bool closesOff, ForeignResult &result) {
    int output[2], ready[2];
    if (::pipe2(output, O_CLOEXEC) != 0)
      return makeStatus(StatusCode::Exhausted, "cannot make a pipe: {}", std::strerror(errno));
    if (::pipe2(ready, O_CLOEXEC) != 0) {
      ::close(output[0]);
      ::close(output[1]);
      return makeStatus(StatusCode::Exhausted, "cannot make a pipe: {}", std::strerror(errno));
    }
    pid_t child = ::fork();
    if (child == 0)
      ::_exit(become(closesOff, output[1], ready[1]));
    ::close(output[1]);
    ::close(ready[1]);
    char byte = 0;
    bool isReady = child > 0 && ::read(ready[0], &byte, 1) == 1;
    ::close(ready[0]);
    Status read = isReady ? readOutput(output[0], result.output) : Status::ok();
    ::close(output[0]);
    if (child < 0)
      return makeStatus(StatusCode::Exhausted, "cannot start a process: {}", std::strerror(errno));
    if (!read.isOk() || !isReady)
      ::kill(-child, SIGKILL);
    int waited = 0;
    while (::waitpid(child, &waited, 0) < 0 && errno == EINTR)
      ;
    RETURN_IF_ERROR(read);
    result.status = statusOf(waited);
    result.isClosedOff = closesOff;
    return isReady;
  }

private:
  /// Runs in the new process and returns its exit status.
  int become(bool closesOff, int output, int ready) {
    ::setsid(); // detaches from the terminal, in a process group that can be killed
    int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::dup2(null, STDIN_FILENO);
    ::dup2(output, STDOUT_FILENO);
    ::dup2(output, STDERR_FILENO);
    if (closesOff && !enterNamespaces())
      return kNotStarted;
    pid_t child = closesOff ? ::fork() : 0; // the first process of the PID namespace
    if (child != 0) {
      ::close(ready);
      int waited = 0;
      while (::waitpid(child, &waited, 0) < 0 && errno == EINTR)
        ;
      return statusOf(waited);
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (closesOff && !changeRoot(folder_))
      return kNotStarted;
    if (::write(ready, "1", 1) != 1)
      return kNotStarted;
    limitResources(program_.secondsMax);
    return superviseProgram(program_.command.front(), argv_.data(), environment_.data(),
                            folder_ + "/" + program_.workingFolder);
  }

  /// Reads until all processes have closed the pipe.
  Status readOutput(int fd, std::string &text) const {
    auto end = Clock::now() + std::chrono::seconds(program_.secondsMax);
    char buffer[1 << 14];
    while (true) {
      auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
      pollfd waiting{fd, POLLIN, 0};
      int ready = left.count() > 0 ? ::poll(&waiting, 1, static_cast<int>(left.count())) : 0;
      if (ready < 0 && errno == EINTR)
        continue;
      if (ready <= 0)
        return makeStatus(StatusCode::Exhausted, "it ran for more than {} s", program_.secondsMax);
      ssize_t count = ::read(fd, buffer, sizeof buffer);
      if (count <= 0)
        return Status::ok();
      text.append(buffer, static_cast<size_t>(count));
      if (text.size() > program_.outputBytesMax)
        return makeStatus(StatusCode::Exhausted, "it printed more than {} bytes",
                          program_.outputBytesMax);
    }
  }

  const ForeignProgram &program_;
  std::string folder_;
  std::vector<std::string> words_, variables_;
  std::vector<char *> argv_, environment_;
};

/// Reads the result files. The program may have created links and pipes, which are not followed.
Status readResults(const ForeignProgram &program, ForeignResult &result) {
  ASSIGN_OR_RETURN(UntrustedFolder folder,
                   UntrustedFolder::open(result.folder + "/" + program.resultFolder));
  ASSIGN_OR_RETURN(std::vector<UntrustedFolder::Entry> entries, folder.list());
  size_t left = program.outputBytesMax;
  for (const UntrustedFolder::Entry &entry : entries) {
    if (entry.isFolder)
      continue;
    ASSIGN_OR_RETURN(std::string text, folder.read(entry.name, left));
    left -= text.size();
    result.results[entry.name] = std::move(text);
  }
  return Status::ok();
}

/// Tries the sandbox first, if it is wanted. A system that does not support it runs the program
/// without.
Status runIn(const ForeignProgram &program, ForeignResult &result) {
  Run run(program, result.folder);
  RETURN_IF_ERROR(run.prepare());
  bool isStarted = false;
  if (program.closesOff) {
    ASSIGN_OR_RETURN(isStarted, run.start(/*closesOff=*/true, result));
  }
  if (!isStarted) {
    result.output.clear();
    ASSIGN_OR_RETURN(isStarted, run.start(/*closesOff=*/false, result));
  }
  if (!isStarted)
    return makeStatus(StatusCode::Unavailable, "cannot start '{}'", program.command.front());
  return readResults(program, result);
}

} // namespace

Result<ForeignResult> runForeign(const ForeignProgram &program) {
  std::error_code error;
  std::string pattern = (fs::temp_directory_path(error) / "shardc-import-XXXXXX").string();
  if (error || ::mkdtemp(pattern.data()) == nullptr)
    return makeStatus(StatusCode::Io, "cannot make a temporary folder: {}", std::strerror(errno));
  ForeignResult result;
  result.folder = pattern;
  Status status = runIn(program, result);
  fs::remove_all(result.folder, error);
  if (!status.isOk())
    return status;
  return result;
}

} // namespace shardc::tools
