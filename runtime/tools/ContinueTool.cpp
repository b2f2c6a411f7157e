// shardc-run --continue: lets a model continue texts.
#include "runtime/tools/Commands.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "runtime/base/ExitStatus.h"
#include "runtime/base/Io.h"
#include "runtime/base/Json.h"
#include "runtime/base/Output.h"
#include "runtime/base/Seconds.h"
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

/// The settings, as `shardc generate` and `shardc score` write them.
struct Settings {
  struct Row {
    nlohmann::json shown; ///< what the line of output has besides the result
    std::vector<int32_t> tokens;
    size_t given = 0; ///< tokens that are not scored
  };
  std::vector<std::string> weights; ///< folders
  std::string tokenizer;            ///< empty: numbers stand for tokens; "bytes": they are bytes
  std::string python;
  std::vector<Row> rows;
  std::vector<int32_t> ends;
  std::vector<std::string> stops; ///< texts that end a text and are not part of it
  int64_t tokens = 0, samples = 1;
  size_t together = 1; ///< texts at once
  generate::Sampling sampling;
  bool scores = false;  ///< the rows' tokens, instead of continuing them
  bool isLines = false; ///< prints a line of JSON for each text

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
    json.at("weights").get_to(settings.weights);
    json.at("tokenizer").get_to(settings.tokenizer);
    json.at("python").get_to(settings.python);
    for (const nlohmann::json &row : json.at("rows"))
      settings.rows.push_back({row.at("shown"), row.at("tokens").get<std::vector<int32_t>>(),
                               row.at("given").get<size_t>()});
    json.at("ends").get_to(settings.ends);
    json.at("stops").get_to(settings.stops);
    json.at("tokens").get_to(settings.tokens);
    json.at("samples").get_to(settings.samples);
    json.at("together").get_to(settings.together);
    json.at("scores").get_to(settings.scores);
    json.at("lines").get_to(settings.isLines);
    generate::Sampling &sampling = settings.sampling;
    json.at("seed").get_to(sampling.seed);
    json.at("temperature").get_to(sampling.temperature);
    json.at("top_k").get_to(sampling.topK);
    json.at("top_p").get_to(sampling.topP);
    json.at("min_p").get_to(sampling.minP);
    json.at("repetition_penalty").get_to(sampling.repetitionPenalty);
    return settings;
  }
};

/// Converts tokens to text, or to numbers without a tokenizer.
class Detokenizer {
public:
  Status open(const Settings &settings) {
    isBytes_ = settings.tokenizer == "bytes";
    if (settings.tokenizer.empty() || isBytes_ || settings.scores)
      return Status::ok();
    process_.emplace();
    RETURN_IF_ERROR(process_->startText(settings.python, settings.tokenizer));
    return process_->meet().status();
  }

  /// The text so far, without the bytes of an incomplete character unless `isLast`.
  Result<std::string> textOf(const std::vector<int32_t> &tokens, bool isLast) {
    if (!process_)
      return isBytes_ ? bytesOf(tokens, isLast) : fmt::format("{}", fmt::join(tokens, " "));
    ASSIGN_OR_RETURN(std::vector<std::string> texts, process_->textsOf(std::span(&tokens, 1)));
    constexpr std::string_view kIncomplete = "\xEF\xBF\xBD";
    while (!isLast && texts[0].ends_with(kIncomplete))
      texts[0].resize(texts[0].size() - kIncomplete.size());
    return std::move(texts[0]);
  }

private:
  /// Bytes of characters beyond ASCII wait for the next one of ASCII.
  static std::string bytesOf(std::span<const int32_t> tokens, bool isLast) {
    constexpr int32_t kAsciiMax = 127;
    while (!isLast && !tokens.empty() && tokens.back() > kAsciiMax)
      tokens = tokens.first(tokens.size() - 1);
    return data::bytesOf(tokens);
  }

  std::optional<tokenize::RowProcess> process_;
  bool isBytes_ = false;
};

/// One text while it is made: what of it is printed, and whether a stop ends it.
class Answer {
public:
  Answer(const Settings &settings, Detokenizer &detokenizer, const Settings::Row &row,
         int64_t sample)
      : settings_(settings), detokenizer_(detokenizer), row_(row), sample_(sample) {}

  /// Returns whether the text goes on.
  Result<bool> take(const std::vector<int32_t> &tokens, bool isLast) {
    if (settings_.isLines && settings_.stops.empty() && !isLast)
      return true;
    ASSIGN_OR_RETURN(text_, detokenizer_.textOf(tokens, isLast));
    size_t end = std::string::npos;
    for (const std::string &stop : settings_.stops)
      end = std::min(end, text_.find(stop));
    isStopped_ = end != std::string::npos;
    if (isStopped_)
      text_.resize(end);
    const size_t shown = text_.size() - (isLast || isStopped_ ? 0 : heldBack());
    if (!settings_.isLines && shown > printed_) {
      printOut("{}",
               plan::printableLines(std::string_view(text_).substr(printed_, shown - printed_)));
      std::fflush(stdout);
      printed_ = shown;
    }
    return !isStopped_;
  }

  /// Prints what is left of the text, or makes its line.
  Status end(const std::vector<int32_t> &tokens) {
    if (!isStopped_ && std::ssize(tokens) < settings_.tokens)
      RETURN_IF_ERROR(take(tokens, true).status());
    if (settings_.isLines) {
      nlohmann::json line = row_.shown;
      line["generated"] = text_;
      line["tokens"] = tokens.size();
      line["ended_by"] = isStopped_                               ? "stop"
                         : std::ssize(tokens) == settings_.tokens ? "length"
                                                                  : "token";
      if (settings_.samples > 1)
        line["sample"] = sample_;
      end_ = toText(line, -1, /*isAscii=*/true);
    }
    end_ += '\n';
    return Status::ok();
  }

  bool hasEnded() const { return !end_.empty(); }
  void print() const { printOut("{}", end_); }

private:
  /// The bytes at the end of the text that may become a stop.
  size_t heldBack() const {
    size_t most = 0;
    for (const std::string &stop : settings_.stops)
      for (size_t part = most + 1; part < stop.size(); ++part)
        if (text_.ends_with(std::string_view(stop).substr(0, part)))
          most = part;
    return most;
  }

  const Settings &settings_;
  Detokenizer &detokenizer_;
  const Settings::Row &row_;
  const int64_t sample_;
  std::string text_;
  std::string end_; ///< what is printed at last; empty: not ended
  bool isStopped_ = false;
  size_t printed_ = 0; ///< bytes
};

Result<std::vector<plan::Plan>> readPlans(const std::string &path) {
  ASSIGN_OR_RETURN(std::string text, readFile(path, plan::limits::kTextBytesMax));
  ASSIGN_OR_RETURN(std::vector<plan::Plan> plans, plan::parseJob(text, path));
  for (const plan::Plan &plan : plans)
    RETURN_IF_ERROR(plan::verified(plan));
  return plans;
}

/// A backend's model with its weights, and the time that they took.
struct LoadedModel {
  std::unique_ptr<BackendSession> session;
  std::unique_ptr<hal::Backend> backend;
  std::unique_ptr<generate::Generator> generator;
  double seconds = 0;
};

Result<LoadedModel> load(const RunToolOptions &options, const BackendEntry &entry,
                         const Settings &settings, const plan::Plan &plan) {
  const auto begin = std::chrono::steady_clock::now();
  LoadedModel model;
  struct Told {
    std::mutex mutex;
    std::set<std::string> texts;
  };
  // Standard output is for the texts. Each layer may report the same.
  const ReportSink sink = [&options, told = std::make_shared<Told>()](const Report &report) {
    std::lock_guard lock(told->mutex);
    if (report.severity >= Severity::Warning && told->texts.insert(report.text).second)
      options.console.emit(report);
  };
  model.session = entry.beginSession(plan, options, sink);
  ASSIGN_OR_RETURN(model.backend, model.session->makeBackend(nullptr));
  ASSIGN_OR_RETURN(model.generator, generate::Generator::create(*model.backend, entry.findKernel));
  ASSIGN_OR_RETURN(auto weights, checkpoint::WeightSources::open(settings.weights, plan, sink));
  constexpr int kThreadsMax = 8; // more are not faster where they share memory and files
  const int threads = std::min(static_cast<int>(std::thread::hardware_concurrency()), kThreadsMax);
  RETURN_IF_ERROR(model.generator->load(
      plan,
      [&](const std::string &name, const plan::Type &type, int64_t first, int64_t count,
          void *dst) { return weights->read(name, type, first, count, dst); },
      threads));
  model.seconds = secondsSince(begin);
  return model;
}

/// Prints the log-probability of the tokens that are not given, and whether each is the likeliest.
Status scoreRow(generate::Generator &generator, const Settings::Row &row,
                const std::vector<plan::Plan> &plans) {
  ASSIGN_OR_RETURN(auto scored, generator.scoreAll(plans, row.tokens));
  nlohmann::json line = row.shown;
  double sum = 0;
  bool isLikeliest = true;
  const size_t first = std::max<size_t>(row.given, 1); // nothing is before the first token
  for (size_t i = first; i < row.tokens.size(); ++i) {
    sum += scored[i - 1].logProbability;
    isLikeliest &= scored[i - 1].isLikeliest;
  }
  line["log_probability"] = sum;
  line["is_likeliest"] = isLikeliest;
  line["tokens"] = row.tokens.size() - first;
  printOut("{}\n", toText(line, -1, /*isAscii=*/true));
  return Status::ok();
}

/// Prints what each row becomes, and each sample of it, in their order.
Status continueRows(const RunToolOptions &options, const LoadedModel &model,
                    const Settings &settings, Detokenizer &detokenizer,
                    const generate::Continuation &how) {
  std::vector<generate::BegunText> texts;
  std::vector<Answer> answers;
  for (const Settings::Row &row : settings.rows)
    for (int64_t sample = 0; sample < settings.samples; ++sample) {
      texts.push_back({.prompt = row.tokens, .seed = sample});
      answers.emplace_back(settings, detokenizer, row, sample);
    }
  size_t printed = 0;
  auto printEnded = [&] {
    while (printed < texts.size() && answers[printed].hasEnded())
      answers[printed++].print();
  };
  for (size_t i = 0; i < texts.size(); ++i) {
    texts[i].take = [&answer = answers[i]](const std::vector<int32_t> &made, bool isLast) {
      return answer.take(made, isLast);
    };
    texts[i].end = [&, i]() -> Status {
      RETURN_IF_ERROR(answers[i].end(texts[i].made));
      printEnded();
      return Status::ok();
    };
  }
  ASSIGN_OR_RETURN(generate::ContinuedRate rate,
                   generate::continueTexts(*model.generator, texts, how));
  if (options.timings && rate.spoken > 0)
    printError("loading {:.2f} s, prompt of {} tokens {:.3f} s, then {:.2f} tokens/s\n",
               model.seconds, rate.read, rate.reading,
               static_cast<double>(rate.spoken) / rate.speaking);
  return Status::ok();
}

Status speak(const RunToolOptions &options, const BackendEntry &entry, const Settings &settings,
             const std::vector<plan::Plan> &plans) {
  Detokenizer detokenizer;
  RETURN_IF_ERROR(detokenizer.open(settings));
  ASSIGN_OR_RETURN(LoadedModel model, load(options, entry, settings, plans.front()));
  if (!settings.scores) {
    generate::Continuation how{.plans = plans,
                               .together = settings.together,
                               .tokensMax = settings.tokens,
                               .ends = settings.ends,
                               .sampling = settings.sampling};
    return continueRows(options, model, settings, detokenizer, how);
  }
  for (const Settings::Row &row : settings.rows)
    RETURN_IF_ERROR(scoreRow(*model.generator, row, plans));
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
