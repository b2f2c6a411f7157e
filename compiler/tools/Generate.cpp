// shardc generate: lets a model continue a text, to see what it has learned. The model is a
// checkpoint, possibly one of adapters, or the folder of a Hugging Face model. It is compiled for
// one rank of the host.
#include <algorithm>
#include <cmath>
#include <csignal>

#include "compiler/lower/Lower.h"
#include "compiler/tools/CkptTools.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/HostModel.h"
#include "compiler/tools/Session.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Output.h"
#include "runtime/generate/Generator.h"
#include "runtime/tokenize/RowProcess.h"
#include "runtime/tokenize/TokenizerFiles.h"
#include "llvm/ADT/SmallVector.h"

namespace shardc::tools {
namespace {

struct GenerateCommand {
  CommonOptions common;
  std::string model, prompt, base, tokenizer, chatTemplate, date, python = "python3";
  std::string temperature = "0";
  int64_t tokens = 64, seed = 1234;
  bool isChat = false;
};

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

  /// Prints the text that the last token adds. Bytes of an incomplete character are held back.
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
  size_t said_ = 0; ///< bytes printed so far
};

Status speak(const GenerateCommand &command, double temperature, const ModelPlace &place,
             const config::Config &config, const SourceManager &sources) {
  Speech speech;
  RETURN_IF_ERROR(speech.open(command, place));
  ASSIGN_OR_RETURN(std::vector<int32_t> prompt, speech.tokensOf(command.prompt, command.isChat));
  const plan::Plan one = lower::lowerForward(config, sources, 1);
  ASSIGN_OR_RETURN(HostWeights weights, openWeights(place, command.base, one));
  generate::Generator generator;
  RETURN_IF_ERROR(generator.load(one, [&](const std::string &name, const plan::Type &type,
                                          void *dst) { return weights.read(name, type, dst); }));
  generate::Continuation how{
      .one = one,
      .ofRows = [&](int64_t rows) { return lower::lowerForward(config, sources, rows); },
      .tokensMax = command.tokens,
      .ends = tokenize::endsOfTexts(place.hfFolder, speech.end()),
      .temperature = temperature,
      .seed = command.seed,
      .made = [&](const std::vector<int32_t> &made,
                  bool isLast) { return speech.say(made, isLast); }};
  RETURN_IF_ERROR(generate::continueText(generator, prompt, how).status());
  printOut("\n");
  return Status::ok();
}

int runGenerate(const GenerateCommand &command) {
  ::signal(SIGPIPE, SIG_IGN); // if the tokenizer has ended, writing to it is an error, not the end
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
  Result<std::optional<config::Config>> config =
      configOf(*place, command.common.load.sets, session);
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
