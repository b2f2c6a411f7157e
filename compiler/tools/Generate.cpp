// shardc generate: lets a model continue texts, to see what it has learned. shardc score: says how
// likely texts are to it. The model is a checkpoint, possibly one of adapters, or the folder of a
// Hugging Face model. Its forward body is compiled for one rank, and shardc-run executes it.
#include <algorithm>
#include <csignal>

#include "compiler/lower/Lower.h"
#include "compiler/tools/CkptTools.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/HostModel.h"
#include "compiler/tools/Runner.h"
#include "compiler/tools/Session.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Io.h"
#include "runtime/base/Json.h"
#include "runtime/base/Reports.h"
#include "runtime/base/UntrustedFolder.h"
#include "runtime/checkpoint/ParamSource.h"
#include "runtime/data/ByteTokenizer.h"
#include "runtime/plan/Text.h"
#include "runtime/tokenize/RowProcess.h"
#include "runtime/tokenize/TokenizerFiles.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"

namespace shardc::tools {
namespace {

using nlohmann::json;

struct GenerateCommand {
  CommonOptions common;
  std::string program;
  std::string backend; ///< chosen by shardc-run if empty
  std::string model, prompt, file, base, tokenizer, chatTemplate, date, python = "python3";
  std::string temperature, topK, topP, minP, repetitionPenalty; ///< empty: not asked
  std::vector<std::string> stops;
  int64_t tokens = 64, seed = 1234, samples = 1, together = 1;
  bool isChat = false, timings = false;
  bool scores = false; ///< shardc score
};

/// The tokenizer's file; "bytes" for the byte tokenizer, with which a model learns plain text;
/// empty if numbers stand for tokens.
Result<std::string> tokenizerOf(const GenerateCommand &command, const ModelPlace &place,
                                const config::Config &config) {
  std::string path = command.tokenizer.empty() ? place.hfFolder : command.tokenizer;
  if (path == "none")
    return std::string();
  if (path == "bytes" ||
      (path.empty() && config.is(config::Opt::DatasetKind, config::DatasetKind::Text)))
    return std::string("bytes");
  if (path.empty())
    return makeStatus(
        StatusCode::InvalidInput,
        "'{}' keeps no tokenizer; name one with --tokenizer, 'bytes' if it was trained "
        "on bytes, or 'none' for a prompt of the numbers of tokens",
        place.folder);
  ASSIGN_OR_RETURN(tokenize::TokenizerFiles files, tokenize::findTokenizer(path));
  return files.path;
}

/// Converts prompts and texts to tokens.
class PromptReader {
public:
  explicit PromptReader(const GenerateCommand &command) : command_(command) {}

  Status open(const std::string &tokenizer) {
    tokenizer_ = tokenizer;
    if (!isOfFile())
      return Status::ok();
    RETURN_IF_ERROR(
        process_.startPrompts(command_.python, tokenizer, command_.chatTemplate, command_.date));
    ASSIGN_OR_RETURN(tokenize::RowFacts facts, process_.meet());
    end_ = facts.endId;
    begin_ = facts.beginId;
    return Status::ok();
  }

  /// The token that ends texts; none if the tokenizer has none.
  std::optional<int32_t> end() const {
    return tokenizer_ == "bytes" ? std::optional(data::kByteEndToken) : end_;
  }

  /// The token before a text that the tokenizer begins with none, as the harness has it.
  std::optional<int32_t> begin() const { return begin_ ? begin_ : end(); }

  /// The tokens of a row's prompt.
  Result<std::vector<int32_t>> read(const json &row, bool isChat) {
    if (isOfFile())
      return process_.tokensOf(row, isChat);
    if (isChat || !row.contains("prompt") || !row["prompt"].is_string())
      return makeStatus(StatusCode::InvalidInput,
                        "a conversation needs a tokenizer with a chat template; {} has none",
                        tokenizer_.empty() ? "'--tokenizer=none'" : "the tokenizer of bytes");
    const std::string text = row["prompt"].get<std::string>();
    std::vector<int32_t> tokens;
    if (tokenizer_.empty())
      return readNumbers(text);
    for (char c : text)
      tokens.push_back(static_cast<uint8_t>(c));
    return tokens;
  }

private:
  bool isOfFile() const { return !tokenizer_.empty() && tokenizer_ != "bytes"; }

  static Result<std::vector<int32_t>> readNumbers(const std::string &prompt) {
    std::vector<int32_t> tokens;
    llvm::SmallVector<llvm::StringRef> words;
    llvm::StringRef(prompt).split(words, ' ', -1, false);
    for (llvm::StringRef word : words)
      if (int32_t token = 0; word.getAsInteger(10, token) || token < 0)
        return makeStatus(StatusCode::InvalidInput, "'{}' is not a token number", word.str());
      else
        tokens.push_back(token);
    return tokens;
  }

  const GenerateCommand &command_;
  std::string tokenizer_;
  tokenize::RowProcess process_;
  std::optional<int32_t> begin_, end_;
};

/// The rows of a file: a JSON object on each line, or a text on each line, which is a prompt.
Result<std::vector<json>> readRows(const std::string &path) {
  ASSIGN_OR_RETURN(const std::string text, readFile(path));
  std::vector<json> rows;
  llvm::SmallVector<llvm::StringRef> lines;
  llvm::StringRef(text).split(lines, '\n', -1, false);
  for (llvm::StringRef line : lines) {
    json row = parseJson(line.trim().str());
    if (!row.is_object() && line.ltrim().startswith("{"))
      return makeStatus(StatusCode::InvalidInput, "'{}' is not JSON: {}", path,
                        shortened(line.str()));
    rows.push_back(row.is_object() ? std::move(row) : json{{"prompt", line.rtrim("\r").str()}});
  }
  if (rows.empty())
    return makeStatus(StatusCode::InvalidInput, "'{}' has no line", path);
  return rows;
}

/// A row of `shardc score`: `text` as a whole, or what follows `context`. As in the language model
/// evaluation harness, blanks at the end of the context belong to what follows.
Result<json> scoredRow(const json &row, PromptReader &reader) {
  auto textOf = [&](const char *key) {
    return row.contains(key) && row[key].is_string() ? std::optional(row[key].get<std::string>())
                                                     : std::nullopt;
  };
  const std::optional<std::string> text = textOf("text"), next = textOf("continuation");
  std::string context = textOf("context").value_or("");
  if (text.has_value() == next.has_value())
    return makeStatus(StatusCode::InvalidInput,
                      "a row needs a 'text', or a 'continuation' with its 'context': {}",
                      shortened(toText(row)));
  auto tokensOf = [&](const std::string &of) { return reader.read({{"prompt", of}}, false); };
  llvm::StringRef kept = llvm::StringRef(context).rtrim();
  ASSIGN_OR_RETURN(std::vector<int32_t> tokens, tokensOf(context + text.value_or(*next)));
  ASSIGN_OR_RETURN(std::vector<int32_t> given, tokensOf(kept.str()));
  if (given.empty() && reader.begin()) {
    given = {*reader.begin()};
    tokens.insert(tokens.begin(), given.front());
  }
  if (tokens.empty())
    return makeStatus(StatusCode::InvalidInput, "a row has no token: {}", shortened(toText(row)));
  return json{{"shown", row}, {"tokens", tokens}, {"given", std::min(given.size(), tokens.size())}};
}

/// A setting that says how tokens are drawn: an option, and a key of generation_config.json.
struct SamplingSetting {
  const char *option, *key;
  double otherwise, least, most;
  std::string GenerateCommand::*text;
};
constexpr double kAny = std::numeric_limits<int32_t>::max();
constexpr SamplingSetting kSampling[] = {
    {"--temperature", "temperature", 0, 0, kAny, &GenerateCommand::temperature},
    {"--top-k", "top_k", 0, 0, kAny, &GenerateCommand::topK},
    {"--top-p", "top_p", 1, 0, 1, &GenerateCommand::topP},
    {"--min-p", "min_p", 0, 0, 1, &GenerateCommand::minP},
    {"--repetition-penalty", "repetition_penalty", 1, 1e-3, kAny,
     &GenerateCommand::repetitionPenalty}};

/// Empty if the value is in the setting's range.
std::string whyRefused(const SamplingSetting &setting, const std::string &name, double value,
                       const std::string &shown) {
  if (value >= setting.least && value <= setting.most)
    return {};
  return fmt::format("'{}' is '{}'; it needs to be a number {}", name, shown,
                     setting.most < kAny ? fmt::format("from {} to {}", setting.least, setting.most)
                                         : fmt::format("of {} or more", setting.least));
}

/// The settings that the command's options ask for.
ExitStatus readSampling(const GenerateCommand &command, json &asked) {
  asked = json::object();
  for (const SamplingSetting &setting : kSampling) {
    const std::string &text = command.*setting.text;
    double number = -1;
    if (text.empty())
      continue;
    if (llvm::StringRef(text).getAsDouble(number))
      number = -1;
    if (std::string why = whyRefused(setting, setting.option, number, text); !why.empty())
      return refuseUsage(why);
    asked[setting.key] = number;
  }
  return kFine;
}

/// What generation_config.json says about drawing tokens, as transformers takes it; the command's
/// options replace it. A setting that would change the texts and is not executed is reported.
Result<json> samplingOf(const std::string &folder, const json &asked) {
  constexpr uint64_t kBytesMax = 1 << 20;
  constexpr llvm::StringLiteral kNotExecuted =
      "num_beams num_beam_groups penalty_alpha no_repeat_ngram_size encoder_repetition_penalty "
      "bad_words_ids force_words_ids sequence_bias typical_p top_h epsilon_cutoff eta_cutoff "
      "suppress_tokens begin_suppress_tokens forced_bos_token_id forced_eos_token_id "
      "exponential_decay_length_penalty guidance_scale min_length min_new_tokens stop_strings";
  json said = json::object(), sampling;
  if (!folder.empty())
    if (Result<std::string> text =
            UntrustedFolder::readIn(folder, "generation_config.json", kBytesMax);
        text.isOk())
      if (json read = parsePythonJson(*text); read.is_object())
        said = std::move(read);
  const bool draws = said.value("do_sample", json()) == true;
  for (const SamplingSetting &setting : kSampling) {
    const bool isUsed = draws || setting.text == &GenerateCommand::repetitionPenalty;
    const json found = isUsed ? said.value(setting.key, json()) : json();
    if (std::string why =
            whyRefused(setting, setting.key,
                       found.is_number() ? found.get<double>() : setting.otherwise, toText(found));
        !why.empty())
      return makeStatus(StatusCode::InvalidInput, "generation_config.json: {}", why);
    sampling[setting.key] = found.is_number() ? found : json(setting.otherwise);
  }
  for (auto [key, value] : {std::pair("temperature", 1), std::pair("top_k", 50)})
    if (draws && !said.value(key, json()).is_number())
      sampling[key] = value; // what transformers takes
  if (draws)
    reportCkpt(makeReport(report::SamplingByConfig, toText(sampling)));
  for (llvm::StringRef key : llvm::split(kNotExecuted, ' '))
    if (const json value = said.value(key.str(), json());
        !value.is_null() && value != 0 && value != 1 && value != json::array())
      reportCkpt(makeReport(report::SamplingNotExecuted, key.str(), toText(value)));
  sampling.update(asked);
  return sampling;
}

/// The plans and settings with which shardc-run works.
struct Request {
  std::string plans;
  json settings; ///< see runtime/tools/ContinueTool.cpp
};

Result<Request> requestOf(const GenerateCommand &command, const json &sampling,
                          const ModelPlace &place, const config::Config &config,
                          const SourceManager &sources) {
  ASSIGN_OR_RETURN(std::string tokenizer, tokenizerOf(command, place, config));
  std::vector<json> rows = {{{"prompt", command.prompt}}};
  if (!command.file.empty()) {
    ASSIGN_OR_RETURN(rows, readRows(command.file));
  }
  PromptReader reader(command);
  RETURN_IF_ERROR(reader.open(tokenizer));
  size_t longest = 1;
  for (json &row : rows) {
    if (command.scores) {
      ASSIGN_OR_RETURN(row, scoredRow(row, reader));
    } else {
      ASSIGN_OR_RETURN(std::vector<int32_t> tokens, reader.read(row, command.isChat));
      row = {{"shown", row}, {"tokens", tokens}, {"given", 0}};
    }
    longest = std::max(longest, row["tokens"].size());
  }
  std::vector<plan::Plan> plans = forwardPlans(config, sources, static_cast<int64_t>(longest));
  const int64_t together = std::min(command.together, std::ssize(rows) * command.samples);
  if (together > 1)
    plans.push_back(forwardPlan(config, sources, 1, together));
  ASSIGN_OR_RETURN(std::vector<std::string> folders, weightFolders(place, command.base, plans[0]));
  Request request;
  for (const plan::Plan &plan : plans)
    request.plans += plan::print(plan);
  request.settings = sampling;
  request.settings.update({{"weights", folders},
                           {"tokenizer", tokenizer},
                           {"python", command.python},
                           {"rows", rows},
                           {"ends", tokenize::endsOfTexts(place.hfFolder, reader.end())},
                           {"stops", command.stops},
                           {"tokens", command.tokens},
                           {"samples", command.samples},
                           {"together", together},
                           {"scores", command.scores},
                           {"lines", !command.file.empty() || command.samples > 1},
                           {"seed", command.seed}});
  return request;
}

/// Lets shardc-run do the work, in the place of this process.
int runRequest(const GenerateCommand &command, const Request &request) {
  std::optional<std::string> plans = pathOfText(request.plans),
                             settings = pathOfText(toText(request.settings));
  if (!plans || !settings)
    return finishCkpt(systemError("pass the plans to", "shardc-run", errno));
  std::vector<std::string> arguments = {*plans, "--continue=" + *settings};
  passOn(arguments, "--backend", command.backend);
  for (const std::string &name : command.common.load.allowedVariables)
    passOn(arguments, "--allow-env", name);
  passOnFlag(arguments, "--timings", command.timings);
  return become(findRunner(command.program), std::move(arguments));
}

/// The command's settings, after that of the type in which a Hugging Face model computes: the type
/// of its weights if that is bf16, otherwise fp32.
Result<std::vector<std::string>> settingsOf(const GenerateCommand &command,
                                            const ModelPlace &place) {
  std::vector<std::string> sets;
  if (place.isHf) {
    ASSIGN_OR_RETURN(auto weights,
                     checkpoint::ParamSource::openModel(place.folder, [](const Report &) {}));
    if (weights->typeOf("") == checkpoint::Element::BF16)
      sets.emplace_back("mixed_precision=bf16_mixed");
  }
  const std::vector<std::string> &asked = command.common.load.sets;
  sets.insert(sets.end(), asked.begin(), asked.end());
  return sets;
}

int runGenerate(const GenerateCommand &command) {
  ::signal(SIGPIPE, SIG_IGN); // if the tokenizer has ended, writing to it is an error, not the end
  json asked;
  if (ExitStatus status = readSampling(command, asked); status != kFine)
    return status;
  if (!command.scores && command.prompt.empty() == command.file.empty())
    return refuseUsage("found " + std::string(command.file.empty() ? "no prompt" : "two prompts") +
                       "; needed is a text or --prompts=FILE");
  if (std::ranges::find(command.stops, "") != command.stops.end())
    return refuseUsage("'--stop' is empty");
  Result<ModelPlace> place = findModel(command.model);
  if (!place.isOk())
    return finishCkpt(place.status());
  Session session(command.common);
  Result<std::vector<std::string>> sets = settingsOf(command, *place);
  if (!sets.isOk())
    return finishCkpt(sets.status());
  Result<std::optional<config::Config>> config = configOf(*place, *sets, session);
  if (!config.isOk())
    return finishCkpt(config.status());
  if (ExitStatus status = session.finish(); status != kFine || !*config)
    return status == kFine ? kInputErrors : status;
  if (std::vector<lower::Missing> missing = lower::findMissing(**config); !missing.empty())
    return finishCkpt(makeStatus(StatusCode::InvalidInput, "the model needs {}, which shardc lacks",
                                 missing.front().what));
  if (command.together > 1 && (*config)->has(config::Opt::ModelMoeExpertCapacityFactor))
    return finishCkpt(makeStatus(StatusCode::InvalidInput,
                                 "'--batch-size' is {}; needed is 1, since tokens of a batch take "
                                 "the places of the model's experts from each other",
                                 command.together));
  Result<json> sampling = samplingOf(command.scores ? "" : place->hfFolder, asked);
  if (!sampling.isOk())
    return finishCkpt(sampling.status());
  Result<Request> request = requestOf(command, *sampling, *place, **config, session.sources());
  return request.isOk() ? runRequest(command, *request) : finishCkpt(request.status());
}

/// Adds the options of both commands.
void addModelOptions(cli::Command &command, GenerateCommand &options) {
  command.option("--base", options.base,
                 "for adapters, the weights; default: those that their run was for");
  command
      .option("--backend", options.backend,
              "where the model runs; default: on a GPU if there is one, otherwise on the host")
      .oneOf({"host", "cuda"});
  command.option("--tokenizer", options.tokenizer,
                 "folder or tokenizer.json, 'bytes', or 'none' for numbers; default: the model's");
  command
      .option(
          "--allow-env", options.common.load.allowedVariables,
          "variable that section 'env' of the model's recipe may set although it could load code")
      .repeatableOneByOne();
  command.option("--set", options.common.load.sets, "path=value, over the model's recipe")
      .repeatableOneByOne();
  command.option("--python", options.python, "Python with the package 'tokenizers'");
}

constexpr const char *kModelAbout =
    "a checkpoint, a folder of such, or the folder of a Hugging Face model";

} // namespace

void addGenerate(cli::Command &app, int &status, const char *program) {
  auto options = std::make_shared<GenerateCommand>();
  options->program = program;
  cli::Command &command =
      app.addCommand("generate", "let a model continue texts, on a GPU or on the host");
  options->common.remarks = "hidden";
  options->common.addMessageOptions(command);
  command.option("model", options->model, kModelAbout).required();
  command.option("prompt", options->prompt, "the text");
  command.option("--prompts", options->file,
                 "file with a prompt on each line: a text, or JSON with 'prompt' or 'messages'; a "
                 "line of JSON is printed for each text");
  command.option("--tokens", options->tokens, "tokens to generate, at most").positive();
  command
      .option("--samples", options->samples,
              "texts for each prompt, the second drawn with the next seed, and so on")
      .positive();
  command
      .option("--batch-size", options->together,
              "texts that are continued together; in 16 bits, a text's scores depend on it")
      .positive();
  command.option("--temperature", options->temperature,
                 "of the softmax that tokens are drawn by; 0: the likeliest one; default: as the "
                 "model's generation_config.json says, otherwise 0");
  command.option("--top-k", options->topK, "draw one of so many likeliest tokens; 0: of all");
  command.option("--top-p", options->topP,
                 "draw one of the likeliest tokens that have this probability together");
  command.option("--min-p", options->minP,
                 "draw no token with less than this part of the likeliest one's probability");
  command.option("--repetition-penalty", options->repetitionPenalty,
                 "by which scores of earlier tokens are divided, or multiplied if negative");
  command.option("--stop", options->stops, "text that ends a text and is not part of it")
      .repeatableOneByOne();
  command.option("--seed", options->seed, "of the draws");
  command.flag("--chat", options->isChat,
               "take the prompt as a user's message, by the chat template");
  command.flag("--timings", options->timings, "print how long loading and the tokens took");
  command.option("--template", options->chatTemplate, "chat template; default: the tokenizer's");
  command.option("--date", options->date, "YYYY-MM-DD that templates may state; default: today");
  addModelOptions(command, *options);
  command.onUse([options, &status] { status = runGenerate(*options); });
}

void addScore(cli::Command &app, int &status, const char *program) {
  auto options = std::make_shared<GenerateCommand>();
  options->program = program;
  options->scores = true;
  cli::Command &command =
      app.addCommand("score", "print how likely texts are to a model, on a GPU or on the host");
  options->common.remarks = "hidden";
  options->common.addMessageOptions(command);
  command.option("model", options->model, kModelAbout).required();
  command
      .option("rows", options->file,
              "file with a line of JSON for each text: 'text', or 'context' and 'continuation'")
      .required();
  addModelOptions(command, *options);
  command.onUse([options, &status] { status = runGenerate(*options); });
}

} // namespace shardc::tools
