// shardc generate: lets a model continue a text, to see what it has learned. The model is a
// checkpoint, possibly one of adapters, or the folder of a Hugging Face model. Its forward body is
// compiled for one rank, and shardc-run executes it.
#include <algorithm>
#include <cmath>
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
#include "runtime/checkpoint/ParamSource.h"
#include "runtime/data/ByteTokenizer.h"
#include "runtime/plan/Text.h"
#include "runtime/tokenize/RowProcess.h"
#include "runtime/tokenize/TokenizerFiles.h"
#include "llvm/ADT/SmallVector.h"

namespace shardc::tools {
namespace {

struct GenerateCommand {
  CommonOptions common;
  std::string program;
  std::string backend; ///< chosen by shardc-run if empty
  std::string model, prompt, base, tokenizer, chatTemplate, date, python = "python3";
  std::string temperature = "0";
  int64_t tokens = 64, seed = 1234;
  bool isChat = false, timings = false;
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

Result<std::vector<int32_t>> readNumbers(const std::string &prompt) {
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

/// The plans and settings with which shardc-run continues the text.
struct Request {
  std::string plans;
  nlohmann::json settings; ///< see runtime/tools/ContinueTool.cpp
};

Result<Request> requestOf(const GenerateCommand &command, double temperature,
                          const ModelPlace &place, const config::Config &config,
                          const SourceManager &sources) {
  ASSIGN_OR_RETURN(std::string tokenizer, tokenizerOf(command, place, config));
  std::vector<int32_t> prompt;
  std::optional<int32_t> end;
  if (tokenizer.empty()) {
    ASSIGN_OR_RETURN(prompt, readNumbers(command.prompt));
  } else if (tokenizer == "bytes") {
    for (char c : command.prompt)
      prompt.push_back(static_cast<uint8_t>(c));
    end = data::kByteEndToken;
  } else {
    tokenize::RowProcess process;
    RETURN_IF_ERROR(
        process.startPrompts(command.python, tokenizer, command.chatTemplate, command.date));
    ASSIGN_OR_RETURN(tokenize::RowFacts facts, process.meet());
    end = facts.endId;
    ASSIGN_OR_RETURN(prompt, process.tokensOf(command.prompt, command.isChat));
  }
  const plan::Plan one = lower::lowerForward(config, sources, 1);
  ASSIGN_OR_RETURN(std::vector<std::string> folders, weightFolders(place, command.base, one));
  Request request;
  request.plans = plan::print(one);
  if (prompt.size() > 1)
    request.plans += plan::print(lower::lowerForward(config, sources, std::ssize(prompt)));
  request.settings = {{"weights", folders},
                      {"tokenizer", tokenizer},
                      {"python", command.python},
                      {"prompt", prompt},
                      {"ends", tokenize::endsOfTexts(place.hfFolder, end)},
                      {"tokens", command.tokens},
                      {"temperature", temperature},
                      {"seed", command.seed}};
  return request;
}

/// Lets shardc-run continue the text, in the place of this process.
int continueText(const GenerateCommand &command, const Request &request) {
  std::optional<std::string> plans = pathOfText(request.plans),
                             settings = pathOfText(toText(request.settings));
  if (!plans || !settings)
    return finishCkpt(systemError("pass the plans to", "shardc-run", errno));
  std::vector<std::string> arguments = {*plans, "--continue=" + *settings};
  if (!command.backend.empty())
    arguments.push_back("--backend=" + command.backend);
  for (const std::string &name : command.common.load.allowedVariables)
    arguments.push_back("--allow-env=" + name);
  if (command.timings)
    arguments.push_back("--timings");
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
  Result<Request> request = requestOf(command, temperature, *place, **config, session.sources());
  return request.isOk() ? continueText(command, *request) : finishCkpt(request.status());
}

} // namespace

void addGenerate(cli::Command &app, int &status, const char *program) {
  auto options = std::make_shared<GenerateCommand>();
  options->program = program;
  cli::Command &command =
      app.addCommand("generate", "let a model continue a text, on a GPU or on the host");
  options->common.remarks = "hidden";
  options->common.addMessageOptions(command);
  command
      .option("model", options->model,
              "a checkpoint, a folder of such, or the folder of a Hugging Face model")
      .required();
  command.option("prompt", options->prompt, "the text").required();
  command
      .option("--backend", options->backend,
              "where the model runs; default: on a GPU if there is one, otherwise on the host")
      .oneOf({"host", "cuda"});
  command.option("--tokens", options->tokens, "tokens to generate, at most").positive();
  command.option("--temperature", options->temperature,
                 "of the softmax that tokens are drawn by; 0: the likeliest one");
  command.option("--seed", options->seed, "of the draws");
  command.flag("--chat", options->isChat,
               "take the prompt as a user's message, by the chat template");
  command.flag("--timings", options->timings, "print how long loading and the tokens took");
  command.option("--base", options->base,
                 "for adapters, the weights; default: those that their run was for");
  command.option("--tokenizer", options->tokenizer,
                 "folder or tokenizer.json, 'bytes', or 'none' for numbers; default: the model's");
  command.option("--template", options->chatTemplate, "chat template; default: the tokenizer's");
  command.option("--date", options->date, "YYYY-MM-DD that templates may state; default: today");
  command
      .option(
          "--allow-env", options->common.load.allowedVariables,
          "variable that section 'env' of the model's recipe may set although it could load code")
      .repeatableOneByOne();
  command.option("--set", options->common.load.sets, "path=value, over the model's recipe")
      .repeatableOneByOne();
  command.option("--python", options->python, "Python with the package 'tokenizers'");
  command.onUse([options, &status] { status = runGenerate(*options); });
}

} // namespace shardc::tools
