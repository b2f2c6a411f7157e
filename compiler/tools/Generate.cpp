// shardc generate: lets a model continue a text, to see what it has learned. The model is a
// checkpoint, of adapters too, or the folder of a Hugging Face model; it is compiled for one rank
// of the host.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>

#include <fmt/format.h>

#include "compiler/lower/Lower.h"
#include "compiler/tools/CkptTools.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/ImportHf.h"
#include "compiler/tools/Session.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Io.h"
#include "runtime/base/Json.h"
#include "runtime/base/Output.h"
#include "runtime/checkpoint/CheckpointFormat.h"
#include "runtime/checkpoint/ModelWeights.h"
#include "runtime/checkpoint/PeftLayers.h"
#include "runtime/checkpoint/RunState.h"
#include "runtime/generate/Generator.h"
#include "runtime/tokenize/RowProcess.h"
#include "runtime/tokenize/TokenizerFiles.h"
#include "llvm/ADT/SmallVector.h"

namespace shardc::tools {
namespace {

namespace fs = std::filesystem;
using checkpoint::ModelWeights;

struct GenerateCommand {
  CommonOptions common;
  std::string model, prompt, base, tokenizer, chatTemplate, date, python = "python3";
  std::string temperature = "0";
  int64_t tokens = 64, seed = 1234;
  bool isChat = false;
};

bool exists(const std::string &path) {
  std::error_code error;
  return fs::exists(path, error);
}

/// Words of a line that a run wrote for a shell: plain ones and those in single quotes.
std::vector<std::string> wordsOf(std::string_view line) {
  std::vector<std::string> words(1);
  bool isQuoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\'')
      isQuoted = !isQuoted;
    else if (isQuoted || (line[i] != ' ' && line[i] != '\n' && line[i] != '\\'))
      words.back() += line[i];
    else if (line[i] == '\\' && i + 1 < line.size())
      words.back() += line[++i];
    else if (!words.back().empty())
      words.emplace_back();
  }
  if (words.back().empty())
    words.pop_back();
  return words;
}

/// Where a model lies, and the files of Hugging Face beside it.
struct ModelPlace {
  std::string folder;   ///< a checkpoint, or a folder of Hugging Face
  std::string hfFolder; ///< with config.json; empty if there is none
  bool isHf = false;
};

Result<ModelPlace> findModel(const std::string &path) {
  if (exists(path + "/config.json") && !checkpoint::isCheckpoint(path))
    return ModelPlace{path, path, true};
  ModelPlace place;
  ASSIGN_OR_RETURN(place.folder, checkpoint::findCheckpoint(path));
  std::string kept = fmt::format("{}/{}", place.folder, checkpoint::kHfFolder);
  place.hfFolder = exists(kept + "/config.json") ? kept : "";
  return place;
}

/// What the model is trained or loaded as, on one rank of the host.
void setOneRank(config::LoadOptions &load, const std::vector<std::string> &asked) {
  for (const char *set :
       {"cluster.gpu=host", "cluster.nodes=1", "cluster.gpus_per_node=1",
        "model.tensor_model_parallel_size=1", "model.pipeline_model_parallel_size=1",
        "model.context_parallel_size=1", "model.expert_model_parallel_size=1",
        "model.expert_tensor_parallel_size=1", "model.sequence_parallel=false"})
    load.sets.emplace_back(set);
  load.sets.insert(load.sets.end(), asked.begin(), asked.end());
}

/// The adapters of a checkpoint whose model is known from config.json.
Status addAdapters(const std::string &folder, std::vector<std::string> &sets) {
  ASSIGN_OR_RETURN(checkpoint::SavedParams saved, checkpoint::SavedParams::open(folder));
  std::vector<std::string> names = saved.names();
  if (std::ranges::none_of(
          names, [](const std::string &n) { return n.find(".adapter.") != std::string::npos; }))
    return Status::ok();
  ASSIGN_OR_RETURN(checkpoint::PeftSettings peft, checkpoint::readPeftSettings(saved.reader()));
  auto list = [](const std::vector<std::string> &words) { return toText(nlohmann::json(words)); };
  sets.push_back("peft.scheme=" + peft.scheme);
  sets.push_back(fmt::format("peft.rank={}", peft.rank));
  sets.push_back(fmt::format("peft.alpha={}", peft.alpha));
  sets.push_back(fmt::format("peft.rslora={}", peft.isRslora));
  if (!peft.targets.empty())
    sets.push_back("peft.targets=" + list(peft.targets));
  if (!peft.exclude.empty())
    sets.push_back("peft.exclude=" + list(peft.exclude));
  return Status::ok();
}

/// The configuration of the model: by the recipe that its run kept, or by config.json.
Result<std::optional<config::Config>> configOf(const ModelPlace &place,
                                               const GenerateCommand &command, Session &session) {
  config::LoadOptions load;
  std::string recipes = fmt::format("{}/{}/", place.folder, checkpoint::kRecipeFolder);
  constexpr uint64_t kBytesMax = 16 << 20;
  if (!place.isHf && exists(recipes + "command.txt")) {
    ASSIGN_OR_RETURN(std::string line, readFile(recipes + "command.txt", kBytesMax));
    std::vector<std::string> words = wordsOf(line); // shardc run RECIPE [--set ... --overlay ...]
    for (size_t i = 2; i < words.size(); ++i)
      if (words[i] == "--set" && i + 1 < words.size())
        load.sets.push_back(words[++i]);
      else if (words[i] == "--overlay" && i + 1 < words.size())
        load.overlays.push_back(recipes + words[++i]);
      else
        load.path = recipes + words[i];
    setOneRank(load, command.common.load.sets);
    return config::loadConfig(session.sources(), session.diags(), load);
  }
  if (place.hfFolder.empty())
    return makeStatus(StatusCode::InvalidInput,
                      "'{}' keeps neither the recipe of its run nor a config.json; 'shardc ckpt "
                      "export hf' makes a model with one",
                      place.folder);
  const std::string path = place.hfFolder + "/config.json";
  ASSIGN_OR_RETURN(std::string text, readFile(path, kBytesMax));
  BufferId input = session.sources().addBuffer(path, text);
  upstream::ImportOptions options;
  options.name = "model";
  DiagEngine quiet(session.sources()); // what an import leaves open does not matter here
  config::registerGroups(quiet);
  std::optional<std::string> recipe = importHf(input, {}, options, quiet);
  if (!recipe)
    recipe = importHf(input, {}, options, session.diags());
  if (!recipe)
    return std::optional<config::Config>();
  if (!place.isHf)
    RETURN_IF_ERROR(addAdapters(place.folder, load.sets));
  setOneRank(load, command.common.load.sets);
  return config::loadConfig(session.sources(), session.diags(),
                            session.sources().addBuffer("imported.recipe", *recipe), load);
}

/// The weights of a model: where one source has no tensor, the next one is asked.
class Weights {
public:
  Status add(const std::string &folder) {
    ASSIGN_OR_RETURN(ModelWeights opened, ModelWeights::open(folder, reportCkpt));
    sources_.push_back(std::move(opened));
    return Status::ok();
  }
  bool isEmpty() const { return sources_.empty(); }

  Status read(const std::string &name, const plan::Type &type, void *dst) const {
    for (const ModelWeights &source : sources_) {
      std::optional<checkpoint::Shape> shape = source.shapeOf(name);
      if (!shape)
        continue;
      checkpoint::Shape own(type.shape.begin(), type.shape.begin() + type.rank);
      bool isTable = name == "embedding.word_embeddings.weight" || name == "output_layer.weight";
      checkpoint::Shape wanted = own;
      if (isTable && !shape->empty()) // each pads the vocabulary in its own way
        wanted[0] = std::min(own[0], (*shape)[0]), (*shape)[0] = wanted[0];
      if (*shape != wanted)
        return makeStatus(StatusCode::InvalidInput, "'{}' is {} in '{}'; the model needs {}", name,
                          checkpoint::shapeText(*shape), source.folder(),
                          checkpoint::shapeText(own));
      std::vector<float> values(static_cast<size_t>(checkpoint::elementCount(wanted).value_or(0)));
      RETURN_IF_ERROR(source.read(name, checkpoint::Box::whole(wanted), values.data()));
      checkpoint::convertElements(checkpoint::Element::F32,
                                  reinterpret_cast<const uint8_t *>(values.data()),
                                  checkpoint::elementOf(type.dtype), static_cast<uint8_t *>(dst),
                                  static_cast<int64_t>(values.size()));
      return Status::ok();
    }
    return makeStatus(StatusCode::InvalidInput, "'{}' has no tensor '{}', which the model needs",
                      sources_.front().folder(), name);
  }

private:
  std::vector<ModelWeights> sources_;
};

Status openWeights(const ModelPlace &place, const GenerateCommand &command, const plan::Plan &plan,
                   Weights &weights) {
  RETURN_IF_ERROR(weights.add(place.folder));
  if (!plan.job.peft.scheme)
    return Status::ok();
  std::string base = command.base;
  if (base.empty()) {
    ASSIGN_OR_RETURN(checkpoint::SavedParams saved, checkpoint::SavedParams::open(place.folder));
    base = checkpoint::peftBaseOf(saved.reader());
  }
  if (base.empty())
    base = plan.job.checkpoint.pretrainedCheckpoint;
  if (base.empty())
    return makeStatus(StatusCode::InvalidInput,
                      "'{}' has adapters and does not say for which weights; name them with --base",
                      place.folder);
  return weights.add(base);
}

/// Tokens that end a text.
std::vector<int32_t> endsOf(const std::string &hfFolder, std::optional<int32_t> ofTokenizer) {
  std::vector<int32_t> ends;
  if (ofTokenizer)
    ends.push_back(*ofTokenizer);
  constexpr uint64_t kBytesMax = 16 << 20;
  for (const char *file : {"/generation_config.json", "/config.json"}) {
    Result<std::string> text = hfFolder.empty() ? Result<std::string>(std::string("{}"))
                                                : readFile(hfFolder + file, kBytesMax);
    nlohmann::json said = text.isOk() ? parseJson(*text) : nlohmann::json();
    if (!said.is_object() || !said.contains("eos_token_id"))
      continue;
    const nlohmann::json &found = said["eos_token_id"];
    for (const nlohmann::json &each : found.is_array() ? found : nlohmann::json::array({found}))
      if (each.is_number_integer())
        ends.push_back(each.get<int32_t>());
  }
  return ends;
}

/// Text to tokens and back; without a tokenizer the numbers of tokens stand for it.
class Speech {
public:
  Status open(const GenerateCommand &command, const ModelPlace &place) {
    std::string path = command.tokenizer.empty() ? place.hfFolder : command.tokenizer;
    if (path == "none")
      return Status::ok();
    if (path.empty())
      return makeStatus(
          StatusCode::InvalidInput,
          "'{}' keeps no tokenizer; name one with --tokenizer, or 'none' for a prompt "
          "of the numbers of tokens",
          place.folder);
    ASSIGN_OR_RETURN(tokenize::TokenizerFiles files, tokenize::findTokenizer(path));
    process_.emplace();
    RETURN_IF_ERROR(
        process_->startPrompts(command.python, files.path, command.chatTemplate, command.date));
    ASSIGN_OR_RETURN(tokenize::RowFacts facts, process_->meet());
    end_ = facts.endId;
    return Status::ok();
  }
  std::optional<int32_t> end() const { return end_; }

  Result<std::vector<int32_t>> tokensOf(const std::string &prompt, bool isChat) {
    if (process_)
      return process_->tokensOf(prompt, isChat);
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

  /// Prints the text that the last token adds. Holds back the bytes of an incomplete character.
  Status say(const std::vector<int32_t> &tokens, bool isLast) {
    if (!process_) {
      printOut("{}{}", tokens.size() > 1 ? " " : "", tokens.back());
      std::fflush(stdout);
      return Status::ok();
    }
    ASSIGN_OR_RETURN(std::vector<std::string> texts, process_->textsOf(std::span(&tokens, 1)));
    constexpr std::string_view kIncomplete = "\xEF\xBF\xBD";
    if (!isLast && texts[0].ends_with(kIncomplete))
      return Status::ok();
    printOut("{}", texts[0].substr(std::min(said_, texts[0].size())));
    std::fflush(stdout);
    said_ = texts[0].size();
    return Status::ok();
  }

private:
  std::optional<tokenize::RowProcess> process_;
  std::optional<int32_t> end_;
  size_t said_ = 0; ///< bytes
};

Status speak(const GenerateCommand &command, double temperature, const ModelPlace &place,
             const config::Config &config, const SourceManager &sources) {
  Speech speech;
  RETURN_IF_ERROR(speech.open(command, place));
  ASSIGN_OR_RETURN(std::vector<int32_t> next, speech.tokensOf(command.prompt, command.isChat));
  if (next.empty())
    return makeStatus(StatusCode::InvalidInput, "the prompt has no token");
  const plan::Plan one = lower::lowerForward(config, sources, 1);
  const auto vocabulary = one.job.model.vocabSize;
  for (int32_t token : next)
    if (vocabulary > 0 && token >= vocabulary)
      return makeStatus(StatusCode::InvalidInput, "token {} is not in the vocabulary of {}", token,
                        vocabulary);
  int64_t most = config.getIntOr(config::Opt::ModelMaxPositionEmbeddings, INT64_MAX);
  Weights weights;
  RETURN_IF_ERROR(openWeights(place, command, one, weights));
  generate::Generator generator;
  RETURN_IF_ERROR(generator.load(one, [&](const std::string &name, const plan::Type &type,
                                          void *dst) { return weights.read(name, type, dst); }));
  const std::vector<int32_t> ends = endsOf(place.hfFolder, speech.end());
  std::vector<int32_t> made;
  for (int64_t i = 0; i < command.tokens; ++i) {
    if (generator.position() + static_cast<int64_t>(next.size()) > most)
      return makeStatus(StatusCode::InvalidInput,
                        "the text is longer than the {} positions that the model knows", most);
    std::vector<float> scores;
    if (next.size() == 1) {
      ASSIGN_OR_RETURN(scores, generator.scores(one, next));
    } else {
      plan::Plan all = lower::lowerForward(config, sources, static_cast<int64_t>(next.size()));
      ASSIGN_OR_RETURN(scores, generator.scores(all, next));
    }
    int32_t token = generate::chooseToken(scores, temperature, command.seed, generator.position());
    if (std::ranges::find(ends, token) != ends.end())
      break;
    made.push_back(token);
    RETURN_IF_ERROR(speech.say(made, i + 1 == command.tokens));
    next.assign(1, token);
  }
  printOut("\n");
  return Status::ok();
}

int runGenerate(const GenerateCommand &command) {
  ::signal(SIGPIPE, SIG_IGN); // a process that has ended is an error, not the end
  double temperature = 0;
  if (llvm::StringRef(command.temperature).getAsDouble(temperature) || !(temperature >= 0) ||
      !std::isfinite(temperature))
    return refuseUsage("'--temperature' is '" + command.temperature +
                       "'; it needs to be a number of 0 or more");
  Result<ModelPlace> place = findModel(command.model);
  if (!place.isOk())
    return finishCkpt(place.status());
  Session session(command.common);
  if (ExitStatus status = session.applyFlags(); status != kFine)
    return status;
  Result<std::optional<config::Config>> config = configOf(*place, command, session);
  if (!config.isOk())
    return finishCkpt(config.status());
  if (ExitStatus status = session.finish(); status != kFine || !*config)
    return status == kFine ? kInputErrors : status;
  if (std::vector<lower::Missing> missing = lower::findMissing(**config); !missing.empty())
    return finishCkpt(makeStatus(StatusCode::InvalidInput, "the model needs {}, which shardc lacks",
                                 missing.front().what));
  return finishCkpt(speak(command, temperature, *place, **config, session.sources()));
}

} // namespace

void addGenerate(cli::Command &app, int &status) {
  auto options = std::make_shared<GenerateCommand>();
  cli::Command &command = app.addCommand("generate", "let a model continue a text, on the host");
  options->common.remarks = "hidden";
  options->common.addMessageOptions(command);
  command
      .option("model", options->model,
              "a checkpoint, a folder of such, or the folder of a Hugging Face model")
      .required();
  command.option("prompt", options->prompt, "the text").required();
  command.option("--tokens", options->tokens, "tokens to generate, at most").positive();
  command.option("--temperature", options->temperature,
                 "of the softmax that tokens are drawn by; 0: the likeliest one");
  command.option("--seed", options->seed, "of the draws");
  command.flag("--chat", options->isChat,
               "take the prompt as a user's message, by the chat template");
  command.option("--base", options->base,
                 "for adapters, the weights; default: those that their run was for");
  command.option("--tokenizer", options->tokenizer,
                 "folder or tokenizer.json, or 'none' for numbers; default: the model's");
  command.option("--template", options->chatTemplate, "chat template; default: the tokenizer's");
  command.option("--date", options->date, "YYYY-MM-DD that templates may state; default: today");
  command.option("--set", options->common.load.sets, "path=value, over the model's recipe")
      .repeatableOneByOne();
  command.option("--python", options->python, "Python with the package 'tokenizers'");
  command.onUse([options, &status] { status = runGenerate(*options); });
}

} // namespace shardc::tools
