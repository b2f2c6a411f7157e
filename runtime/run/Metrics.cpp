// Lines are appended, so a file may have several runs. If a line cannot be written, no further
// lines are, since a gap would not be visible.
#include "runtime/run/Metrics.h"

#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <iterator>
#include <spawn.h>
#include <string_view>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/Io.h"
#include "runtime/base/Json.h"
#include "runtime/base/RecipeVariables.h"
#include "runtime/base/Reports.h"

namespace shardc::run {
namespace {

constexpr uint64_t kTextMax = 256 << 20; ///< largest file whose end is repaired

/// Builds one line. Allocates only for long lines, since a run may report hundreds of losses.
class Line {
public:
  template <typename... Args> Line &add(fmt::format_string<Args...> text, Args &&...args) {
    fmt::format_to(std::back_inserter(buffer_), text, std::forward<Args>(args)...);
    return *this;
  }
  /// Adds a number. JSON has no infinities and NaNs, so they become null.
  template <typename T> Line &number(std::string_view name, T value) {
    return std::isfinite(value) ? add(",\"{}\":{}", name, value) : add(",\"{}\":null", name);
  }
  const char *data() const { return buffer_.data(); }
  size_t size() const { return buffer_.size(); }

private:
  fmt::basic_memory_buffer<char, 1024> buffer_;
};

/// Removes a partial line that a full disk has left at the end, so that no line is appended to it.
void dropTornLine(const std::string &path) {
  Result<MappedFile> file = MappedFile::open(path); // to read its last line
  if (!file.isOk() || file->bytes().size() > kTextMax)
    return; // a pipe, a device, or too large
  std::string_view text(reinterpret_cast<const char *>(file->bytes().data()), file->bytes().size());
  size_t end = text.rfind('\n');
  if (end != std::string_view::npos && text.substr(end + 1).starts_with('{')) [[maybe_unused]]
    int status = ::truncate(path.c_str(), static_cast<off_t>(end + 1));
}

/// Starts `sh -c command` with `input` as its standard input. The program gets its own process
/// group, so that Ctrl-C, which ends the run after its step, does not end the program before it has
/// read the last lines. Returns 0 or an error number.
int startProgram(const std::string &command, int input, pid_t &program) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  if (int error = ::posix_spawn_file_actions_init(&actions); error != 0)
    return error;
  if (int error = ::posix_spawnattr_init(&attributes); error != 0) {
    ::posix_spawn_file_actions_destroy(&actions);
    return error;
  }
  ::posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  sigset_t none, usual;
  sigemptyset(&none);
  sigemptyset(&usual);
  for (int signal : {SIGPIPE, SIGINT, SIGTERM})
    sigaddset(&usual, signal);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &usual);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                              POSIX_SPAWN_SETPGROUP);
  std::string shell = "/bin/sh", option = "-c", text = command;
  char *arguments[] = {shell.data(), option.data(), text.data(), nullptr};
  int error =
      ::posix_spawn(&program, shell.c_str(), &actions, &attributes, arguments, helperEnvironment());
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  return error;
}

} // namespace

std::optional<std::string> metricsCommand(const std::string &path) {
  return path.starts_with('|') ? std::optional(path.substr(1)) : std::nullopt;
}

MetricsWriter::~MetricsWriter() { [[maybe_unused]] Status status = finish(); }

Status MetricsWriter::finish() {
  file_.close();
  int status = 0;
  while (program_ > 0 && ::waitpid(program_, &status, 0) < 0 && errno == EINTR)
    continue;
  if (std::exchange(program_, 0) == 0 || status == 0)
    return Status::ok();
  std::string how = WIFSIGNALED(status) ? fmt::format("by signal {}", WTERMSIG(status))
                                        : fmt::format("with status {}", WEXITSTATUS(status));
  return makeStatus(report::MetricsLost, "the command of --metrics, '{}', ended {}", path_, how);
}

Status MetricsWriter::start(const std::string &command) {
  Descriptor input;
  int error = makePipe(input, file_) ? 0 : errno;
  if (error == 0)
    error = startProgram(command, input.fd(), program_);
  if (error == 0)
    return Status::ok();
  file_.close();
  program_ = 0;
  return makeStatus(kindOfError(error), "cannot start '{}' for metrics: {}", command,
                    std::strerror(error))
      .as(report::MetricsRefused.info());
}

Status MetricsWriter::open(const std::string &path) {
  path_ = path;
  if (std::optional<std::string> command = metricsCommand(path))
    return start(*command);
  // O_APPEND, since supervisors append lines, too.
  file_ = Descriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (isOpen()) {
    dropTornLine(path);
    return Status::ok();
  }
  int error = errno;
  return makeStatus(kindOfError(error), "cannot create '{}' for metrics: {}", path,
                    std::strerror(error))
      .as(report::MetricsRefused.info());
}

void MetricsWriter::clear() {
  if (isOpen()) // a pipe keeps nothing
      [[maybe_unused]]
    int status = ::ftruncate(file_.fd(), 0);
}

Status MetricsWriter::step(const StepState &state, const Speed &speed, const MetricsFields &fields,
                           std::span<const NamedValue> reported) {
  Line line;
  line.add("{{\"step\":{}", state.step).number("loss", state.loss).number("lr", state.lr);
  line.number("grad_norm", state.gradNorm)
      .add(",\"tokens\":{}", static_cast<int64_t>(state.totalTokens));
  if (fields.lossScale)
    line.number("loss_scale", static_cast<double>(state.lossScale));
  if (fields.skipped)
    line.add(",\"skipped\":{}", state.skip != 0 ? 1 : 0);
  if (fields.decoupledLr)
    line.number("decoupled_lr", state.decoupledLr);
  if (fields.weightDecay)
    line.number("weight_decay", state.weightDecay);
  for (const NamedValue &each : reported)
    line.number(each.name, each.value);
  line.number("tokens_per_s", speed.tokensPerSecond);
  if (speed.modelTflops > 0)
    line.number("model_tflops", speed.modelTflops);
  if (speed.utilization > 0)
    line.number("mfu", speed.utilization);
  if (speed.host.work >= 0)
    line.number("host_ms", speed.host.work * 1e3).number("host_wait_ms", speed.host.waited * 1e3);
  line.add("}}\n");
  return write(line.data(), line.size());
}

Status MetricsWriter::skipped(const StepState &state) {
  Line line;
  line.add("{{\"step\":{},\"skipped\":1}}\n", state.step);
  return write(line.data(), line.size());
}

Status MetricsWriter::restored(int64_t step, double secondsLost) {
  Line line;
  line.add("{{\"step\":{},\"from_memory\":1", step).number("seconds_lost", secondsLost).add("}}\n");
  return write(line.data(), line.size());
}

Status MetricsWriter::evaluated(const StepState &state, std::string_view set, bool isTest) {
  Line line;
  line.add("{{\"step\":{}", state.step);
  line.number(isTest ? "test_loss" : "eval_loss", state.evalLoss);
  if (!isTest && !set.empty())
    line.add(",\"set\":{}", toText(nlohmann::json(set)));
  line.add("}}\n");
  return write(line.data(), line.size());
}

Status MetricsWriter::said(int64_t step, int64_t number, const SaidText &text) {
  auto quoted = [](const std::string &each) { return toText(nlohmann::json(each)); };
  Line line;
  line.add("{{\"step\":{},\"sample\":{},\"prompt\":{},\"said\":{},\"data\":{}}}\n", step, number,
           quoted(text.prompt), quoted(text.said), quoted(text.data));
  return write(line.data(), line.size());
}

Status MetricsWriter::write(const char *line, size_t bytes) {
  if (!isOpen() || writeFully(file_.fd(), {line, bytes}))
    return Status::ok();
  int error = errno;
  file_.close(); // only one failure is reported; later lines would leave a gap in the file
  return makeStatus(kindOfError(error), "cannot write metrics to '{}': {}; no more will be written",
                    path_, std::strerror(error))
      .as(report::MetricsLost.info());
}

} // namespace shardc::run
