#include "runtime/tokenize/PythonProcess.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <iterator>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/Io.h"
#include "runtime/base/RecipeVariables.h"
#include "runtime/base/Reports.h"
#include "runtime/base/Utf8.h"

namespace shardc::tokenize {
namespace {

template <typename T> void appendNumber(std::string &out, T value) {
  out.append(reinterpret_cast<const char *>(&value), sizeof(T));
}

/// Much larger than a batch's texts or tokens. An answer of our script cannot be larger.
constexpr uint64_t kPayloadBytesMax = uint64_t{1} << 35;
constexpr size_t kReadStepBytes = size_t{64} << 20;

/// Begins each script. `-B` writes no compiled modules beside packages. `-I` leaves out the working
/// folder, where another person's `json.py` may lie; this adds the user's own packages and the
/// absolute paths of PYTHONPATH again.
constexpr const char *kPaths = R"(import os, site, sys
sys.path[:0] = filter(os.path.isabs, os.environ.get("PYTHONPATH", "").split(os.pathsep))
if sys.prefix == sys.base_prefix and not os.environ.get("PYTHONNOUSERSITE"):
    site.addsitedir(site.getusersitepackages())
del os, site, sys
)";

/// The variables that Python needs to start and to find its packages: paths and the language.
/// Others, such as tokens of services, are kept from a process that reads files of strangers.
constexpr std::string_view kVariables[] = {
    "CONDA_PREFIX",     "HOME",           "LANG",
    "LC_ALL",           "LC_CTYPE",       "PATH",
    "PYENV_ROOT",       "PYENV_VERSION",  "PYTHONPATH",
    "PYTHONNOUSERSITE", "TMPDIR",         "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",  "PYTHONUSERBASE", "SHARDC_TEST_PACKAGE"};

std::vector<char *> variablesOf(char **environment) {
  std::vector<char *> kept;
  for (char **variable = environment; variable && *variable; ++variable) {
    std::string_view text = *variable;
    if (std::ranges::find(kVariables, text.substr(0, text.find('='))) != std::end(kVariables))
      kept.push_back(*variable);
  }
  kept.push_back(nullptr);
  return kept;
}

} // namespace

/// Starts the script with pipes to its standard input and output; its messages go to our standard
/// error. posix_spawn is used since other threads may be running.
Status PythonProcess::start(const std::string &python, const char *script,
                            const std::vector<std::string> &arguments) {
  python_ = python;
  Descriptor to, from; // its own ends
  if (!makePipe(to, input_) || !makePipe(output_, from))
    return makeStatus(StatusCode::Exhausted, "cannot make a pipe: {}", std::strerror(errno));
  std::vector<std::string> words = {python, "-I", "-B", "-c", std::string(kPaths) + script};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char *> argv;
  for (std::string &word : words)
    argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, to.fd(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, from.fd(), STDOUT_FILENO);
  // In a process group of its own: Ctrl-C ends this program, and the process notices the end of its
  // input.
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t pid = -1;
  std::vector<char *> variables = variablesOf(helperEnvironment());
  int error =
      ::posix_spawnp(&pid, python.c_str(), &actions, &attributes, argv.data(), variables.data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0)
    return makeStatus(StatusCode::Unavailable,
                      "cannot start '{}': {}; a tokenizer.json is read with Python's package "
                      "'tokenizers': install Python 3, or name it with --python=PROGRAM",
                      python, std::strerror(error));
  pid_ = pid;
  return Status::ok();
}

PythonProcess::~PythonProcess() {
  input_.close();
  output_.close();
  kill();
  if (pid_t pid = pid_.exchange(-1); pid > 0)
    ::waitpid(pid, nullptr, 0);
}

void PythonProcess::kill() {
  if (pid_t pid = pid_; pid > 0)
    ::kill(pid, SIGKILL);
}

Status PythonProcess::ended() {
  int status = 0;
  kill(); // otherwise ended() could wait for a process that closed its output but did not end
  pid_t pid = pid_.exchange(-1);
  if (pid <= 0 || ::waitpid(pid, &status, 0) != pid)
    return makeStatus(StatusCode::Io, "the process of '{}' that encodes texts is gone", python_);
  std::string how = WTERMSIG(status) == SIGXCPU ? "at its limit of processor time"
                    : WIFSIGNALED(status)       ? fmt::format("by signal {}", WTERMSIG(status))
                                          : fmt::format("with status {}", WEXITSTATUS(status));
  return makeStatus(StatusCode::Io, "the process of '{}' that encodes texts ended early, {}",
                    python_, how);
}

Status PythonProcess::refusal(char kind, const std::string &answer, const std::string &name) const {
  if (kind == 'M')
    return makeStatus(StatusCode::Unavailable,
                      "a package of Python is missing ({}): tokenizers, chat templates and Parquet "
                      "files need 'tokenizers', 'jinja2' and 'pyarrow'; install it with '{} -m pip "
                      "install', or name a Python that has it with --python=PROGRAM",
                      escapeControls(answer), python_);
  return makeStatus(report::DataRefused, "'{}': {}", name,
                    kind == 'E' ? escapeControls(answer) : "the process answers out of turn");
}

Status PythonProcess::ask(std::span<const std::string_view> texts) {
  size_t bytes = sizeof(uint32_t) * (texts.size() + 1);
  for (std::string_view text : texts)
    bytes += text.size();
  request_.clear();
  request_.reserve(bytes + sizeof(uint64_t));
  appendNumber(request_, static_cast<uint64_t>(bytes));
  appendNumber(request_, static_cast<uint32_t>(texts.size()));
  for (std::string_view text : texts)
    appendNumber(request_, static_cast<uint32_t>(text.size()));
  for (std::string_view text : texts)
    request_ += text;
  return writeFully(input_.fd(), request_) ? Status::ok() : ended();
}

Status PythonProcess::readFully(char *out, size_t bytes) {
  while (bytes > 0) {
    ssize_t got = ::read(output_.fd(), out, bytes);
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0)
      return ended();
    out += got;
    bytes -= static_cast<size_t>(got);
  }
  return Status::ok();
}

/// Reads one answer: a letter for its kind, the number of bytes in 8 bytes, and the payload.
/// `payload` grows in steps, so that a wrong size does not allocate memory.
Result<char> PythonProcess::readAnswer(std::string &payload) {
  std::array<char, 9> head;
  RETURN_IF_ERROR(readFully(head.data(), head.size()));
  uint64_t bytes = 0;
  std::memcpy(&bytes, head.data() + 1, sizeof(bytes));
  if (std::strchr("HTSRMEN", head[0]) == nullptr || head[0] == 0 || bytes > kPayloadBytesMax)
    return makeStatus(StatusCode::Io,
                      "'{}' answers in a form that is not that of the script it was given",
                      python_);
  payload.clear(); // grows with the received bytes, whatever size was announced
  while (payload.size() < bytes) {
    size_t before = payload.size();
    payload.resize(std::min<uint64_t>(bytes, before + kReadStepBytes));
    RETURN_IF_ERROR(readFully(payload.data() + before, payload.size() - before));
  }
  return head[0];
}

} // namespace shardc::tokenize
