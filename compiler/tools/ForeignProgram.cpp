#include "compiler/tools/ForeignProgram.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "compiler/tools/Confinement.h"
#include "runtime/base/Io.h"
#include "runtime/base/UntrustedFolder.h"

namespace shardc::tools {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// Gives the folder to the user who runs a sandboxed program for root. Where that is impossible,
/// the sandbox cannot be entered either, which it reports.
void giveAway(const std::string &folder) {
  std::error_code error;
  bool isGiven = ::lchown(folder.c_str(), kNobody, kNobody) == 0;
  for (const fs::path &inner : fs::recursive_directory_iterator(folder, error))
    isGiven = isGiven && ::lchown(inner.c_str(), kNobody, kNobody) == 0;
}

/// A program in its folder, which is started by this program's own image (runConfined).
class Run {
public:
  Run(const ForeignProgram &program, std::string folder)
      : program_(program), folder_(std::move(folder)) {
    Confinement confinement{.folder = folder_,
                            .workingFolder = program.workingFolder,
                            .resultFolder = program.resultFolder,
                            .secondsMax = program.secondsMax,
                            .closesOff = program.closesOff,
                            .command = program.command,
                            .environment = {"SHARDC_FOLDER=" + folder_}};
    for (const auto &[name, value] : program.environment)
      confinement.environment.push_back(name + "=" + value);
    words_ = argumentsOf(confinement);
    argv_ = pointersOf(words_);
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
    if (program_.closesOff && ::geteuid() == 0)
      giveAway(folder_);
    return Status::ok();
  }

  /// Returns false if the program is to be sandboxed and the system does not support that.
  Result<bool> start(ForeignResult &result) {
    Descriptor output, itsOutput, ready, itsReady;
    if (!makePipe(output, itsOutput) || !makePipe(ready, itsReady))
      return makeStatus(StatusCode::Exhausted, "cannot make a pipe: {}", std::strerror(errno));
    pid_t child = ::fork();
    if (child == 0)
      become(itsOutput.fd(), itsReady.fd());
    itsOutput.close();
    itsReady.close();
    char byte = 0;
    bool isReady = child > 0 && ::read(ready.fd(), &byte, 1) == 1;
    Status read = isReady ? readOutput(output.fd(), result.output) : Status::ok();
    output.close();
    if (child < 0)
      return makeStatus(StatusCode::Exhausted, "cannot start a process: {}", std::strerror(errno));
    if (child > 0 && (!read.isOk() || !isReady))
      ::kill(child, SIGTERM); // ends all others as well
    int waited = 0;
    while (::waitpid(child, &waited, 0) < 0 && errno == EINTR)
      ;
    RETURN_IF_ERROR(read);
    result.status = statusOf(waited);
    return isReady;
  }

private:
  /// Turns the new process into the first one of the program, with an empty environment.
  [[noreturn]] void become(int output, int ready) {
    ::setsid(); // detaches from the terminal
    ::dup2(output, STDOUT_FILENO);
    ::dup2(output, STDERR_FILENO);
    ::dup2(ready, kReadyDescriptor);
    ::fcntl(kReadyDescriptor, F_SETFD, 0);
    ::close(STDIN_FILENO);
    char *none = nullptr;
    if (::open("/dev/null", O_RDONLY) == STDIN_FILENO)
      ::execve("/proc/self/exe", argv_.data(), &none);
    ::_exit(1);
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
  std::vector<std::string> words_;
  std::vector<char *> argv_;
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

Status runIn(const ForeignProgram &program, ForeignResult &result) {
  Run run(program, result.folder);
  RETURN_IF_ERROR(run.prepare());
  ASSIGN_OR_RETURN(bool isStarted, run.start(result));
  if (!isStarted && program.closesOff)
    return makeStatus(StatusCode::Unavailable,
                      "this system gives it no namespaces of its own, so it would have your files "
                      "and the network; '--unconfined' runs it so");
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
