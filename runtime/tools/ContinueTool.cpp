#include "runtime/tools/ContinueTool.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <optional>
#include <thread>

#include "runtime/base/ExitStatus.h"
#include "runtime/base/Io.h"
#include "runtime/base/Json.h"
#include "runtime/base/Output.h"
#include "runtime/checkpoint/WeightSources.h"
#include "runtime/data/ByteTokenizer.h"
#include "runtime/generate/Generator.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/Text.h"
#include "runtime/tokenize/RowProcess.h"
#include "runtime/tools/Backends.h"
#include "runtime/tools/Variables.h"
#include "runtime/verify/Verify.h"

namespace shardc::tools {
namespace {

/// The settings, as `shardc generate` writes them.
struct Settings {
  std::vector<std::string> weights; ///< folders
  std::string tokenizer;            ///< empty: numbers stand for tokens; "bytes": they are bytes
  std::string python;
  std::vector<int32_t> prompt, ends;
  int64_t tokens = 0, seed = 0;
  double temperature = 0;

  static Result<Settings> read(const std::string &path) {
    ASSIGN_OR_RETURN(std::string text, readFile(path, plan::limits::kTextBytesMax));
    const nlohmann::json json = parseJson(text);
    try {
      return of(json);
    } catch (const nlohmann::json::exception &) { // a setting is missing or has another type
      return makeStatus(StatusCode::InvalidInput, "'{}' has no settings of 'shardc generate'",
                        path);
    }
  }

private:
  static Settings of(const nlohmann::json &json) {
    Settings settings;
    for (const nlohmann::json &folder : json.at("weights"))
      settings.weights.push_back(folder.get<std::string>());
    settings.tokenizer = json.at("tokenizer").get<std::string>();
    settings.python = json.at("python").get<std::string>();
    for (const nlohmann::json &token : json.at("prompt"))
      settings.prompt.push_back(token.get<int32_t>());
    for (const nlohmann::json &token : json.at("ends"))
      settings.ends.push_back(token.get<int32_t>());
    settings.tokens = json.at("tokens").get<int64_t>();
    settings.seed = json.at("seed").get<int64_t>();
    settings.temperature = json.at("temperature").get<double>();
    return settings;
  }
};

/// Prints tokens as text, or as numbers without a tokenizer.
class Printer {
public:
  Status open(const Settings &settings) {
    isBytes_ = settings.tokenizer == "bytes";
    if (settings.tokenizer.empty() || isBytes_)
      return Status::ok();
    process_.emplace();
    RETURN_IF_ERROR(process_->startText(settings.python, settings.tokenizer));
    return process_->meet().status();
  }

  /// Prints the text that the last token adds. Bytes of an incomplete character are held back.
  Status print(const std::vector<int32_t> &tokens, bool isLast) {
    if (isBytes_) {
      printBytes(tokens, isLast);
      return Status::ok();
    }
    if (!process_) {
      printOut("{}{}", tokens.size() > 1 ? " " : "", tokens.back());
      std::fflush(stdout);
      return Status::ok();
    }
    ASSIGN_OR_RETURN(std::vector<std::string> texts, process_->textsOf(std::span(&tokens, 1)));
    constexpr std::string_view kIncomplete = "\xEF\xBF\xBD";
    if (!isLast && texts[0].ends_with(kIncomplete))
      return Status::ok();
    printOut("{}", plan::printableLines(texts[0].substr(std::min(printed_, texts[0].size()))));
    std::fflush(stdout);
    printed_ = texts[0].size();
    return Status::ok();
  }

private:
  /// Bytes of characters beyond ASCII wait for the next one of ASCII. Other tokens have no text.
  void printBytes(const std::vector<int32_t> &tokens, bool isLast) {
    constexpr int32_t kAsciiMax = 127;
    if (!isLast && tokens.back() > kAsciiMax)
      return;
    std::string text;
    for (; printed_ < tokens.size(); ++printed_)
      if (int32_t token = tokens[printed_]; token < data::kByteEndToken)
        text += static_cast<char>(token);
    printOut("{}", plan::printableLines(text));
    std::fflush(stdout);
  }

  std::optional<tokenize::RowProcess> process_;
  bool isBytes_ = false;
  size_t printed_ = 0; ///< bytes so far
};

Result<std::vector<plan::Plan>> readPlans(const std::string &path) {
  ASSIGN_OR_RETURN(std::string text, readFile(path, plan::limits::kTextBytesMax));
  ASSIGN_OR_RETURN(std::vector<plan::Plan> plans, plan::parseJob(text, path));
  for (const plan::Plan &plan : plans)
    RETURN_IF_ERROR(plan::verified(plan));
  return plans;
}

using Clock = std::chrono::steady_clock;

double secondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Status speak(const RunToolOptions &options, const BackendEntry &entry, const Settings &settings,
             const std::vector<plan::Plan> &plans) {
  Clock::time_point begin = Clock::now();
  std::unique_ptr<BackendSession> session =
      entry.beginSession(plans.front(), options, options.console.sink());
  ASSIGN_OR_RETURN(std::unique_ptr<hal::Backend> backend, session->makeBackend(nullptr));
  ASSIGN_OR_RETURN(auto generator, generate::Generator::create(*backend, entry.findKernel));
  Printer printer;
  RETURN_IF_ERROR(printer.open(settings));
  ASSIGN_OR_RETURN(auto weights, checkpoint::WeightSources::open(settings.weights, plans.front(),
                                                                 options.console.sink()));
  constexpr int kThreadsMax = 8; // more are not faster where they share memory and files
  const int threads = std::min(static_cast<int>(std::thread::hardware_concurrency()), kThreadsMax);
  RETURN_IF_ERROR(generator->load(
      plans.front(),
      [&](const std::string &name, const plan::Type &type, int64_t first, int64_t count,
          void *dst) { return weights->read(name, type, first, count, dst); },
      threads));
  const double loading = secondsSince(begin);
  begin = Clock::now();
  double reading = 0; // of the prompt, with the first token
  generate::Continuation how{.one = plans.front(),
                             .ofRows = nullptr,
                             .tokensMax = settings.tokens,
                             .ends = settings.ends,
                             .temperature = settings.temperature,
                             .seed = settings.seed,
                             .made = [&](const std::vector<int32_t> &made, bool isLast) {
                               if (made.size() == 1)
                                 reading = secondsSince(begin);
                               return printer.print(made, isLast);
                             }};
  if (plans.size() > 1)
    how.ofRows = [&](int64_t) { return plans.back(); };
  ASSIGN_OR_RETURN(std::vector<int32_t> made,
                   generate::continueText(*generator, settings.prompt, how));
  printOut("\n");
  if (options.timings && made.size() > 1)
    printError("loading {:.2f} s, prompt of {} tokens {:.3f} s, then {:.2f} tokens/s\n", loading,
               settings.prompt.size(), reading,
               static_cast<double>(made.size() - 1) / (secondsSince(begin) - reading));
  return Status::ok();
}

int finish(const RunToolOptions &options, const Status &status) {
  if (!status.isOk())
    options.console.emit(status.report());
  bool isOfInput =
      status.code() == StatusCode::InvalidInput || status.code() == StatusCode::NotFound;
  return status.isOk() ? 0 : isOfInput ? kInputStatus : kFailureStatus;
}

} // namespace

int continueText(const RunToolOptions &options) {
  ::signal(SIGPIPE, SIG_IGN); // if the tokenizer has ended, writing to it is an error, not the end
  Result<Settings> settings = Settings::read(options.continueWith);
  if (!settings.isOk())
    return finish(options, settings.status());
  Result<std::vector<plan::Plan>> plans = readPlans(options.planPath);
  if (!plans.isOk())
    return finish(options, plans.status());
  int devices = 0;
  const BackendEntry *entry = chooseBackend(options.backend, devices);
  if (!entry->traits.computes)
    return finish(options,
                  makeStatus(StatusCode::InvalidInput, "backend {} computes nothing", entry->name));
  if (Status status = setVariables(plans->front(), entry, options); !status.isOk())
    return finish(options, status);
  return finishOutput("shardc-run", finish(options, speak(options, *entry, *settings, *plans)));
}

} // namespace shardc::tools
