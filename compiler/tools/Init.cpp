// shardc init: asks what to train, and writes a commented recipe for it. It does not ask for values
// that flags give. The layout of the ranks comes from `shardc tune`.
#include <cmath>
#include <filesystem>
#include <iostream>
#include <limits>
#include <numeric>
#include <utility>

#include "compiler/basic/Format.h"
#include "compiler/basic/Library.h"
#include "compiler/basic/Numbers.h"
#include "compiler/basic/Suggest.h"
#include "compiler/config/Effect.h"
#include "compiler/lower/Family.h"
#include "compiler/parse/Format.h"
#include "compiler/predict/DeviceTable.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/DataLengths.h"
#include "compiler/tools/Session.h"
#include "runtime/base/CommandLine.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kGpusPerNode = 8;
constexpr char kMeasure[] = "shardc:overlays/measure.recipe"; // few steps that save nothing

struct InitOptions {
  std::string model, gpu, gpus, goal, weights, output;
  std::vector<std::string> data;
  bool force = false, keepsLayout = false;
};

/// Asks on standard error and reads a line from standard input; empty at the end of input.
std::optional<std::string> askLine(llvm::StringRef question) {
  llvm::errs() << question << ": ";
  std::string line;
  if (!std::getline(std::cin, line))
    return std::nullopt;
  return llvm::StringRef(line).trim().str();
}

/// Names of the recipes that come with the program, such as `llama3/llama3_8b`.
std::vector<std::string> libraryModels() {
  std::error_code ignored; // then none is listed
  std::vector<std::string> models = recipesBelow(filePathOf(kLibraryPrefix), ignored);
  for (std::string &model : models)
    model = fs::path(model).replace_extension().string();
  return models;
}

/// The recipe to extend, and the settings that give it another size.
struct Base {
  std::string path, sizes;
};

std::optional<config::Config> load(const std::string &path, std::vector<std::string> sets = {}) {
  SourceManager sources;
  DiagEngine diags(sources);
  config::LoadOptions load;
  load.path = path;
  load.sets = std::move(sets);
  return config::loadConfig(sources, diags, load);
}

/// Settings that give the base's form a number of parameters near `wanted`. Layers become more as
/// they become wider, as in published models: 10 of 768, 32 of 4,096, 80 of 8,192. Empty if none is
/// near.
std::string scaled(const std::string &base, const config::Config &config, double wanted) {
  using config::Opt;
  const int64_t hidden = config.getInt(Opt::ModelHiddenSize);
  const int64_t heads = config.getInt(Opt::ModelNumAttentionHeads);
  const int64_t groups = config.getIntOr(Opt::ModelNumQueryGroups, heads);
  const int64_t ffn = config.getIntOr(Opt::ModelFfnHiddenSize, 4 * hidden);
  std::string nearest;
  double least = std::numeric_limits<double>::infinity();
  for (int64_t width = 256; width <= 16'384; width += width < 2048 ? 256 : 1024) {
    const int64_t count = width / (width < 2048 ? 64 : 128);
    const std::vector<std::string> sets = {
        fmt::format("num_layers={}", std::max<int64_t>(width / (64 + width / 64), 2)),
        fmt::format("hidden_size={}", width),
        fmt::format("num_attention_heads={}", count),
        fmt::format("num_query_groups={}",
                    std::gcd(count, std::max<int64_t>(count * groups / heads, 1))),
        fmt::format("kv_channels={}", width / count),
        fmt::format("ffn_hidden_size={}", (width * ffn / hidden + 255) / 256 * 256)};
    std::vector<std::string> ofModel = sets;
    for (std::string &set : ofModel)
      set.insert(0, "model.");
    std::optional<config::Config> other = load(base, std::move(ofModel));
    if (!other)
      continue;
    const auto parameters = static_cast<double>(lower::countParameters(*other));
    if (const double away = std::abs(std::log(parameters / wanted)); away < least) {
      least = away;
      nearest = "  model { " + llvm::join(sets, " ") +
                fmt::format(" }} // {} parameters\n", formatNumber(parameters));
    }
    if (parameters > 2 * wanted)
      break;
  }
  constexpr double kNear = 0.3; // no width gives less than 256 or more than 16,384
  return least < kNear ? nearest : "";
}

/// The model of a family and a size, such as `llama 13b`: the recipe of that size that comes with
/// the program, or else the nearest one with other sizes. Empty if the words are no size.
std::optional<Base> sizedBase(llvm::StringRef words, const std::vector<std::string> &models) {
  const size_t blank = words.find_last_of(" -_/");
  llvm::StringRef family = blank == words.npos ? "llama" : words.take_front(blank).trim();
  const std::string size = words.drop_front(blank == words.npos ? 0 : blank + 1).lower();
  double wanted = 0;
  if (size.empty() || llvm::StringRef(size).drop_back().getAsDouble(wanted) || wanted <= 0 ||
      (size.back() != 'm' && size.back() != 'b'))
    return std::nullopt;
  wanted *= size.back() == 'm' ? 1e6 : 1e9;
  std::optional<Base> nearest;
  std::optional<config::Config> form;
  double least = 0;
  for (const std::string &model : models) {
    llvm::StringRef name = llvm::StringRef(model).rsplit('/').second;
    if (!name.startswith_insensitive(family) || llvm::StringRef(model).startswith("debug") ||
        !llvm::StringRef("bm").contains(name.back())) // a layout of another recipe
      continue;
    std::string path = kLibraryPrefix.str() + model + ".recipe";
    if (name.endswith("_" + llvm::join(llvm::split(size, '.'), "_")))
      return Base{path, ""};
    std::optional<config::Config> config = load(path);
    if (!config || config->has(config::Opt::ModelNumMoeExperts))
      continue;
    const double parameters = static_cast<double>(lower::countParameters(*config));
    const double away = std::abs(std::log(parameters / wanted));
    if (!nearest || away < least) {
      nearest = Base{path, ""};
      form = std::move(config);
      least = away;
    }
  }
  constexpr double kSame = 0.15; // models of 33 billion are also called 30B
  if (nearest && least > kSame)
    if (nearest->sizes = scaled(nearest->path, *form, wanted); nearest->sizes.empty())
      return std::nullopt;
  return nearest;
}

/// The recipe to extend: one that comes with the program, a file, or a size of a family.
std::optional<Base> baseOf(const std::string &model) {
  std::error_code error;
  if (fs::path(model).extension() == ".recipe" && fs::exists(model, error))
    return Base{fs::absolute(model).string(), ""};
  std::vector<std::string> models = libraryModels();
  if (llvm::is_contained(models, model))
    return Base{kLibraryPrefix.str() + model + ".recipe", ""};
  if (std::optional<Base> sized = sizedBase(model, models))
    return sized;
  llvm::SmallVector<llvm::StringRef> known(models.begin(), models.end());
  Suggestion near = suggest(model, known);
  llvm::errs() << "shardc: error: no recipe is called '" << model << "'"
               << (near.names.empty()
                       ? "; 'shardc recipes' lists them, and 'shardc import hf' makes "
                         "one of a model of Hugging Face"
                       : "; did you mean " + quotedList(near.names) + "?")
               << "\n";
  return std::nullopt;
}

config::DatasetKind kindOf(const std::vector<std::string> &data) {
  return config::dataKindOf(data.front()).value_or(config::DatasetKind::Text);
}

std::string quoted(const std::string &text) {
  return config::toRecipeText(config::Value::ofString(text), {config::ValueType::String});
}

class Writer {
public:
  Writer(const InitOptions &options, Base base, int64_t gpus)
      : options_(options), base_(std::move(base)), gpus_(gpus),
        name_(fs::path(options.output).stem().string()) {}

  /// The text of the recipe, without a layout or with the one that tune found.
  std::string text(llvm::StringRef layout) const {
    std::string out =
        fmt::format("// Written by 'shardc init'. 'shardc explain {} SECTION' shows every value.\n"
                    "recipe {} extends {}{} {{\n",
                    options_.output, recipeName(), quoted(base_.path),
                    options_.goal == "measure" ? ", " + quoted(kMeasure) : "");
    out += base_.sizes;
    int64_t perNode = std::min(gpus_, kGpusPerNode);
    out += fmt::format("  cluster {{ gpu = {}  nodes = {}  gpus_per_node = {} }}\n", options_.gpu,
                       gpus_ / perNode, perNode);
    if (batch_ > 0)
      out +=
          fmt::format("  train {{ global_batch_size = {} }} // a multiple of the GPUs\n", batch_);
    return out + data() + goal() + layout.str() + "}\n";
  }

  /// Takes what the written recipe says of the base and the data: if the global batch cannot be
  /// divided among all ranks, the next larger one that can, and a split that the data have. Returns
  /// whether the text changes.
  bool adapt(const config::Config &config) {
    const int64_t batch = config.derived().globalBatch;
    if (batch > 0 && batch % gpus_ != 0)
      batch_ = (batch / gpus_ + 1) * gpus_;
    std::string split = options_.data.empty() ? split_ : splitThatFits(config).value_or(split_);
    return std::exchange(split_, split) != split || batch_ > 0;
  }

private:
  std::string recipeName() const {
    std::string name = name_;
    for (char &c : name)
      if (!llvm::isAlnum(c))
        c = '_';
    return name.empty() || llvm::isDigit(name[0]) ? "r_" + name : name;
  }

  std::string data() const {
    if (options_.data.empty())
      return "  dataset synthetic { } // random tokens: for measurements alone\n";
    std::string paths;
    for (const std::string &path : options_.data)
      paths += (paths.empty() ? "" : ", ") + quoted(path);
    const config::DatasetKind kind = kindOf(options_.data);
    return fmt::format("  dataset {} {{ data_path = [{}]  split = \"{}\" }}{}\n{}",
                       config::spelling(kind), paths, split_,
                       kind != config::DatasetKind::Text
                           ? ""
                           : " // bytes; 'shardc data tokenize' makes tokens of a model",
                       split_ != "100,0,0" ? ""
                                           : "  validation { eval_iters = 0 } // the data are "
                                             "too few to divide\n");
  }

  std::string goal() const {
    if (options_.goal == "measure")
      return "";
    std::string save = fmt::format("    save = {} // with checkpoint.load = this "
                                   "folder, a run continues\n"
                                   "    keep = 3 // of the newest saves\n",
                                   quoted("checkpoints/" + name_));
    if (options_.goal == "pretrain")
      return "  checkpoint {\n" + save + "  }\n";
    return fmt::format(
        "  optimizer {{ lr = 1e-5  min_lr = 1e-6 }} // a tenth of pretraining, or less\n"
        "  checkpoint {{\n{}    pretrained_checkpoint = {} // as 'shardc ckpt "
        "import hf' writes it\n    finetune = true // from step 1, with a new optimizer\n"
        "  }}\n",
        save, quoted(options_.weights));
  }

  const InitOptions &options_;
  Base base_;
  int64_t gpus_;
  std::string name_;
  int64_t batch_ = 0;
  std::string split_ = "95,5,0"; ///< of the data, for training, validation and test
};

/// Asks for values that no flag gave. Returns false, after a message, if the input ends.
bool askForRest(InitOptions &options) {
  struct Question {
    std::string *answer;
    const char *flag, *text, *otherwise;
  };
  std::string data;
  const bool asksData = options.data.empty() && options.goal != "measure";
  const Question questions[] = {
      {&options.model, "--model",
       "model (such as llama3/llama3_8b or 'llama 100m'; 'shardc recipes' lists them)", ""},
      {&options.gpu, "--gpu", "kind of GPU (h100, h200, ..., or host)", ""},
      {&options.gpus, "--gpus", "number of GPUs [8]", "8"},
      {asksData ? &data : nullptr, "--data=FILE' or '--goal=measure",
       "data: files with blanks between (empty: measure speed)", ""},
  };
  for (const Question &question : questions) {
    if (!question.answer || !question.answer->empty())
      continue;
    std::optional<std::string> answer = askLine(question.text);
    if (!answer) {
      llvm::errs() << "\nshardc: error: no answer; '" << question.flag << "' gives it\n";
      return false;
    }
    *question.answer = answer->empty() ? question.otherwise : *answer;
  }
  llvm::SmallVector<llvm::StringRef> files;
  llvm::StringRef(data).split(files, ' ', -1, /*KeepEmpty=*/false);
  for (llvm::StringRef file : files)
    options.data.push_back(file.str());
  if (options.goal.empty())
    options.goal = options.data.empty()      ? "measure"
                   : options.weights.empty() ? "pretrain"
                                             : "finetune";
  return true;
}

/// The reason why the answers contradict each other; empty if they do not.
std::string wrongAnswers(const InitOptions &options, int64_t &gpus) {
  std::error_code error;
  if (fs::path(options.output).extension() != ".recipe")
    return "'" + options.output + "' does not end in '.recipe'";
  if (!options.force && fs::exists(options.output, error))
    return "'" + options.output + "' exists; '--force' replaces it";
  if (options.model.empty())
    return "no model is named; 'shardc recipes' lists them";
  if (!llvm::is_contained(predict::deviceNames(), llvm::StringRef(options.gpu)))
    return fmt::format("the kind of GPU is '{}'; it must be one of {}", options.gpu,
                       quotedList(predict::deviceNames(), 64));
  if (llvm::StringRef(options.gpus).getAsInteger(10, gpus) || gpus < 1 ||
      (gpus > kGpusPerNode && gpus % kGpusPerNode != 0))
    return fmt::format("the number of GPUs is '{}'; it must be from 1 to {}, or a multiple of {}",
                       options.gpus, kGpusPerNode, kGpusPerNode);
  for (const std::string &path : options.data)
    if (!fs::exists(path, error) && !fs::exists(path + ".bin", error))
      return "there are no data '" + path + "'";
  if (options.goal != "measure" && options.data.empty())
    return "'--goal=" + options.goal + "' needs '--data'";
  if ((options.goal == "finetune") == options.weights.empty())
    return options.weights.empty() ? "'--goal=finetune' needs '--weights=CHECKPOINT'"
                                   : "'--weights' is for '--goal=finetune'";
  if (options.goal == "finetune" && kindOf(options.data) == config::DatasetKind::Text)
    return fmt::format(
        "'--goal=finetune' needs tokens of the weights' tokenizer, and '{}' is text; 'shardc data "
        "sft' makes packs of conversations, and 'shardc data tokenize' makes tokens of text",
        options.data.front());
  return "";
}

/// The lines inside the braces of tune's overlay, without its heading.
std::string layoutOf(llvm::StringRef overlay) {
  auto [heading, rest] = overlay.split('\n');
  llvm::StringRef body = rest.split('\n').second.rtrim();
  body.consume_back("}");
  return fmt::format("  // The layout that 'shardc tune' found. {}\n{}", heading.ltrim("/ "), body);
}

/// Writes the recipe in the form of `shardc fmt`.
ExitStatus writeRecipe(const std::string &path, const std::string &text) {
  SourceManager sources;
  DiagEngine diags(sources);
  std::optional<std::string> formatted = formatRecipe(sources.addBuffer(path, text), diags);
  return writeOutput(path, formatted ? *formatted : text);
}

/// Writes the recipe first with the layout of its base, then adapts the batch and the split,
/// then searches a layout and writes the recipe again. Each state is a usable recipe, so an
/// interruption leaves one.
ExitStatus runInit(InitOptions &options) {
  if (!askForRest(options))
    return kUsage;
  int64_t gpus = 0;
  if (std::string why = wrongAnswers(options, gpus); !why.empty())
    return refuseUsage(why);
  std::optional<Base> base = baseOf(options.model);
  if (!base)
    return kInputErrors;
  Writer writer(options, *base, gpus);
  if (ExitStatus status = writeRecipe(options.output, writer.text("")); status != kFine)
    return status;
  if (std::optional<config::Config> config = load(options.output); config && writer.adapt(*config))
    if (ExitStatus status = writeRecipe(options.output, writer.text("")); status != kFine)
      return status;
  bool isHost = options.gpu == "host";
  if (!isHost && !options.keepsLayout) {
    std::optional<std::string> overlay = tunedLayout(options.output);
    if (!overlay)
      llvm::errs() << "shardc: no layout was found; '" << options.output
                   << "' has the one of its base. 'shardc fit' says what would fit\n";
    else if (ExitStatus status = writeRecipe(options.output, writer.text(layoutOf(*overlay)));
             status != kFine)
      return status;
  }
  llvm::errs() << "wrote '" << options.output << "'; next: shardc check " << options.output
               << " && shardc run " << options.output << "\n";
  return kFine;
}

} // namespace

void addInit(cli::Command &app, int &status) {
  auto options = std::make_shared<InitOptions>();
  options->output = "mine.recipe";
  cli::Command &command =
      app.addCommand("init", "write a recipe: asks for model, GPUs and data, and tunes the layout")
          .alsoCalled({"new", "create"});
  command.option(
      "--model,model", options->model,
      "recipe to extend, such as llama3/llama3_8b, or family and size, such as 'llama 100m'");
  command.option("--gpu", options->gpu, "kind of GPU, or host");
  command.option("--gpus", options->gpus, "number of GPUs: up to 8, or a multiple of 8");
  command.option("--data", options->data, "files, or prefixes of indexed files").repeatable();
  command
      .option("--goal", options->goal,
              "default: pretrain with data, finetune with weights, measure without data")
      .oneOf({"pretrain", "finetune", "measure"});
  command.option("--weights", options->weights, "checkpoint from which finetuning starts");
  command.option("-o,--output", options->output, "the recipe that is written").showsDefault();
  command.flag("--keep-layout", options->keepsLayout, "leave the layout of the base as it is");
  command.flag("--force", options->force, "replace a recipe that exists");
  command.onUse([options, &status] { status = runInit(*options); });
}

} // namespace shardc::tools
