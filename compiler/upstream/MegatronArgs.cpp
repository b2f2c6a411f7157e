// Reads Megatron-LM's command line: finds it among a script's commands, and interprets its
// launcher's settings of the machines and its flags.
#include "compiler/basic/Format.h"
#include "compiler/config/Evaluate.h"
#include "compiler/upstream/Bridge.h"
#include "compiler/upstream/FlagTable.h"
#include "compiler/upstream/ImportedRecipe.h"
#include "compiler/upstream/Pattern.h"
#include "compiler/upstream/ReadValue.h"
#include "compiler/upstream/Shell.h"
#include "llvm/ADT/StringExtras.h"

namespace shardc::upstream {
namespace {

using config::Opt;
using config::Value;

bool isFlag(llvm::StringRef word) {
  return word.startswith("--") && word.size() > 2 && llvm::isAlpha(word[2]);
}

bool isKnownFlag(llvm::StringRef word) {
  llvm::StringRef name = word.split('=').first;
  return isFlag(name) && (!findFlag(name).empty() || !idleReason(name).empty());
}

/// Whether a blank ends a flag's name inside of one word: `"--lr 3e-4"`. Behind `=` blanks belong
/// to the value.
bool holdsFlagAndValue(llvm::StringRef word) {
  size_t end = word.find_first_of("= \t\n");
  return isFlag(word) && end != llvm::StringRef::npos && word[end] != '=';
}

/// Words as programs would see them if quotes had done what was meant: an element such as
/// `"--lr 3e-4"` is two words, and quotes inside of quotes are none.
std::vector<RanWord> cleanWords(const std::vector<RanWord> &words) {
  std::vector<RanWord> clean;
  for (const RanWord &word : words) {
    llvm::SmallVector<llvm::StringRef> parts;
    if (holdsFlagAndValue(word.text))
      llvm::SplitString(word.text, parts, " \t\n");
    else
      parts.push_back(word.text);
    for (llvm::StringRef part : parts) {
      bool isQuoted = part.size() > 1 && part.front() == part.back() &&
                      (part.front() == '\'' || part.front() == '"');
      clean.push_back({(isQuoted ? part.drop_front().drop_back() : part).str(), word.range});
    }
  }
  return clean;
}

size_t countFlags(const std::vector<RanWord> &words) {
  return llvm::count_if(words, [](const RanWord &word) { return isKnownFlag(word.text); });
}

/// Everything that the machines' number and kind come from: options of launchers and of #SBATCH.
class Machines {
public:
  explicit Machines(RecipeBuilder &recipe) : recipe_(recipe) {}

  void read(const std::vector<RanWord> &words) {
    for (size_t i = 0; i < words.size(); ++i) {
      auto [name, value] = llvm::StringRef(words[i].text).split('=');
      bool isApart = value.empty() && i + 1 < words.size();
      std::string key = name.str();
      std::replace(key.begin() + std::min<size_t>(key.size(), 2), key.end(), '_', '-');
      if (key.size() > 2 && key[0] == '-' && key[1] == 'N' && llvm::isDigit(key[2]))
        set(nodes_, key.substr(2), words[i].range);
      else
        readOption(key, isApart ? llvm::StringRef(words[i + 1].text) : value, words[i].range);
    }
  }

  void finish() {
    if (perNode_.value == 0 && all_.value > 0 && nodes_.value > 0 && all_.value % nodes_.value == 0)
      perNode_ = {all_.value / nodes_.value, all_.range};
    else if (perNode_.value == 0 && all_.value > 0 && nodes_.value == 0)
      perNode_ = all_;
    if (nodes_.value == 0 && perNode_.value > 0)
      nodes_ = {1, perNode_.range};
    if (nodes_.value > 0)
      recipe_.set(Opt::ClusterNodes, Value::ofInt(nodes_.value), nodes_.range);
    if (perNode_.value > 0)
      recipe_.set(Opt::ClusterGpusPerNode, Value::ofInt(perNode_.value), perNode_.range);
    for (const auto &[text, opt, range] : open_)
      if (!recipe_.has(opt))
        recipe_.ask(text, opt, range);
  }

private:
  struct Number {
    int64_t value = 0;
    SourceRange range;
  };

  void readOption(llvm::StringRef key, llvm::StringRef value, SourceRange range) {
    if (key == "--nnodes" || key == "--nodes" || key == "-N")
      set(nodes_, value, range, Opt::ClusterNodes);
    else if (key == "--nproc-per-node" || key == "--gpus-per-node" || key == "--ntasks-per-node")
      set(perNode_, value.substr(value.find(':') + 1), range, Opt::ClusterGpusPerNode);
    else if (key == "-np" || key == "-n" || key == "--ntasks" || key == "--gpus")
      set(all_, value, range);
    else if (key == "--gres")
      readDevices(value, range);
  }

  /// `gpu:8` or `gpu:h100:8`.
  void readDevices(llvm::StringRef value, SourceRange range) {
    llvm::SmallVector<llvm::StringRef> parts;
    value.split(parts, ':');
    if (parts.size() < 2 || parts.front() != "gpu")
      return;
    set(perNode_, parts.back(), range, Opt::ClusterGpusPerNode);
    if (parts.size() == 3)
      if (std::optional<size_t> gpu =
              config::findEnumerator(config::EnumKind::Gpu, parts[1].lower()))
        recipe_.set(Opt::ClusterGpu, Value::ofIndex(*gpu), range);
  }

  void set(Number &number, llvm::StringRef text, SourceRange range,
           std::optional<Opt> opt = std::nullopt) {
    int64_t value = 0;
    if (!text.trim().getAsInteger(10, value) && value > 0)
      number = {value, range};
    else if (opt && !text.empty())
      open_.push_back({text.str(), *opt, range});
  }

  struct Open {
    std::string text;
    Opt opt;
    SourceRange range;
  };

  RecipeBuilder &recipe_;
  Number nodes_, perNode_, all_;
  std::vector<Open> open_;
};

/// Flags with their values, one after the other.
class Flags {
public:
  Flags(RecipeBuilder &recipe, BridgeSettings &bridge) : recipe_(recipe), bridge_(bridge) {}

  MegatronFacts facts;

  void read(const std::vector<RanWord> &words) {
    for (size_t i = 0; i < words.size();) {
      if (!isFlag(words[i].text)) {
        readLoose(words[i]);
        ++i;
        continue;
      }
      auto [name, given] = llvm::StringRef(words[i].text).split('=');
      bool isGiven = name.size() < words[i].text.size();
      std::vector<RanWord> values;
      if (isGiven)
        values.push_back({given.str(), words[i].range});
      size_t end = i + 1;
      while (end < words.size() && !isFlag(words[end].text) && !isGiven)
        values.push_back(words[end++]);
      readFlag(name, words[i].range, values);
      i = end;
    }
  }

private:
  /// A word that belongs to no flag: an override of Megatron-Bridge, or something of the script's.
  void readLoose(const RanWord &word) {
    bool isProgram = llvm::StringRef(word.text).endswith(".py");
    if (!isProgram && !word.text.empty() && !readOverride(word.text, word.range, bridge_))
      recipe_.leaveOut(word.text, word.range);
  }

  void readFlag(llvm::StringRef name, SourceRange range, std::vector<RanWord> &values) {
    takeOverrides(name, values);
    llvm::StringRef flag = canonicalFlag(name);
    if (readSpecial(flag, range, values))
      return;
    llvm::ArrayRef<FlagEffect> effects = findFlag(flag);
    if (effects.empty()) {
      std::string text = name.str();
      for (const RanWord &value : values)
        text += " " + value.text;
      llvm::StringRef why = idleReason(flag);
      if (std::optional<llvm::StringRef> meant = misspeltFlag(flag); meant && why.empty())
        return recipe_.leaveOutMisspelt(name, text, *meant, range);
      return why.empty() ? recipe_.leaveOut(text, range) : recipe_.leaveOutIdle(text, why, range);
    }
    for (const FlagEffect &effect : effects)
      apply(effect, flag, range, values);
  }

  /// `a.b=c` after a flag is not its value.
  void takeOverrides(llvm::StringRef name, std::vector<RanWord> &values) {
    while (!values.empty() && !findFlag(name).empty() &&
           BridgeSettings::isPath(llvm::StringRef(values.back().text).split('=').first) &&
           readOverride(values.back().text, values.back().range, bridge_))
      values.pop_back();
  }

  void apply(const FlagEffect &effect, llvm::StringRef flag, SourceRange range,
             const std::vector<RanWord> &values) {
    const config::OptionInfo &option = config::info(effect.opt);
    if (!effect.fixed.empty())
      return recipe_.set(effect.opt, config::parseTableValue(effect.fixed, option), range);
    if (option.type.type == config::ValueType::Bool) {
      recipe_.setBool(effect.opt, !effect.negates, range);
      for (const RanWord &value : values)
        recipe_.leaveOut(value.text, value.range);
      return;
    }
    bool isScalar = !option.type.isList() && !values.empty();
    TreePtr tree =
        isScalar ? makeText(values.front().text, values.front().range) : listOf(range, values);
    recipe_.read(effect.opt, *tree, flag);
    for (size_t i = 1; i < values.size() && isScalar; ++i)
      readLoose(values[i]);
  }

  static TreePtr listOf(SourceRange range, const std::vector<RanWord> &values) {
    if (values.size() == 1)
      return makeText(values.front().text, values.front().range);
    auto list = std::make_shared<Tree>();
    list->kind = Tree::Kind::List;
    list->range = values.empty() ? range : values.front().range;
    for (const RanWord &value : values)
      list->items.push_back(makeText(value.text, value.range));
    return list;
  }

  bool readSpecial(llvm::StringRef flag, SourceRange range, const std::vector<RanWord> &values) {
    if (flag == "--group-query-attention") {
      facts.groupsQueries = true;
      return true;
    }
    if (flag == "--num-query-groups")
      facts.queryGroups = range;
    if (choosesForeignData(flag)) {
      facts.foreignData = flag;
      facts.foreignDataRange = range;
    }
    std::optional<int64_t> number;
    int64_t parsed = 0;
    if (values.size() == 1 && readInteger(values.front().text, parsed))
      number = parsed;
    if (flag == "--num-layers-per-virtual-pipeline-stage" && number) {
      facts.layersPerVirtualStage = number;
      return true;
    }
    if (flag == "--padded-vocab-size" && number) {
      facts.paddedVocab = number;
      facts.paddedVocabRange = range;
      return true;
    }
    if (flag == "--moe-layer-freq" && number) {
      facts.moeLayerEvery = number;
      return true;
    }
    if (flag == "--data-path" && values.size() > 1) {
      readBlend(values);
      return true;
    }
    bool isTokenizer =
        flag == "--tokenizer-model" || flag == "--vocab-file" || flag == "--tokenizer-type";
    if (isTokenizer && !values.empty() &&
        !llvm::StringRef(values.front().text).startswith("Null")) {
      facts.tokenizer = values.front().text;
      facts.tokenizerRange = range;
    }
    return false;
  }

  void readBlend(const std::vector<RanWord> &values) {
    double weight = 0;
    TreePtr tree = listOf(values.front().range, values);
    bool isWeighted = readNumber(values.front().text, weight);
    recipe_.read(isWeighted ? Opt::DatasetBlend : Opt::DatasetDataPath, *tree, "--data-path");
  }

  RecipeBuilder &recipe_;
  BridgeSettings &bridge_;
};

/// Variables that say something about a run; others belong to the shell, or are secrets.
bool belongsToRun(llvm::StringRef name) {
  for (llvm::StringRef prefix : {"CUDA_", "NCCL_", "NVTE_", "TORCH_", "PYTORCH_", "CUBLAS",
                                 "NVSHMEM_", "UCX_", "OMP_", "TOKENIZERS_"})
    if (name.startswith(prefix))
      return name != "CUDA_VISIBLE_DEVICES";
  return false;
}

class ArgsImporter {
public:
  ArgsImporter(RecipeBuilder &recipe, const ShellRun &run)
      : recipe_(recipe), run_(run), bridge_(recipe, /*isComplete=*/false), flags_(recipe, bridge_),
        machines_(recipe) {}

  void import() {
    machines_.read(run_.directives);
    std::vector<RanWord> flags = findFlags();
    readVariables();
    flags_.read(flags);
    machines_.finish();
    bridge_.finish();
    flags_.facts.isWhole |= recipe_.has(Opt::ModelNumLayers);
    applyMegatronFacts(recipe_, flags_.facts);
  }

private:
  /// The flags of the command with the most of them; of the lines that are flags alone; or of the
  /// arrays that are.
  std::vector<RanWord> findFlags() {
    const RanCommand *best = nullptr;
    size_t most = 0;
    std::vector<RanWord> block;
    for (const RanCommand &command : run_.commands) {
      std::vector<RanWord> words = cleanWords(command.words);
      if (!words.empty() && (isFlag(words.front().text) || isOverride(words.front().text))) {
        block.insert(block.end(), words.begin(), words.end());
        continue;
      }
      // srun, bash -c and their like hand the same flags on; the program's own line is the last.
      size_t count = countFlags(words) + countOverrides(words);
      if (count > 0 && count >= most) {
        best = &command;
        most = count;
      }
      if (count == 0 || best != &command)
        readLauncher(command);
    }
    if (best != nullptr)
      return splitLauncher(*best);
    return block.empty() ? flagsOfArrays() : block;
  }

  static bool isOverride(llvm::StringRef word) {
    auto [path, value] = word.ltrim("+~").split('=');
    return word.contains('=') && BridgeSettings::isPath(path);
  }
  static size_t countOverrides(const std::vector<RanWord> &words) {
    return llvm::count_if(words, [](const RanWord &word) { return isOverride(word.text); });
  }

  /// For example srun around a script: it describes only the machines.
  void readLauncher(const RanCommand &command) {
    llvm::StringRef name = command.words.front().text;
    if (name == "srun" || name == "mpirun" || name == "torchrun" || name == "sbatch")
      machines_.read(command.words);
  }

  /// The words before the program are the launcher's, the rest are flags.
  std::vector<RanWord> splitLauncher(const RanCommand &command) {
    std::vector<RanWord> words = cleanWords(command.words);
    environment_ = command.environment;
    size_t program = words.size();
    for (size_t i = 0; i < words.size(); ++i)
      if (llvm::StringRef(words[i].text).endswith(".py"))
        program = i;
    if (program == words.size()) // `python -m module`: the launcher's own flags are not Megatron's
      program = programWithoutFile(words);
    else
      flags_.facts.isWhole = countFlags(words) > 0;
    std::vector<RanWord> launcher(words.begin(), words.begin() + program);
    for (const RanWord &word : launcher)
      if (auto [name, value] = llvm::StringRef(word.text).split('=');
          word.text.find('=') != std::string::npos && belongsToRun(name))
        environment_.emplace_back(name.str(), value.str());
    machines_.read(launcher);
    words.erase(words.begin(), words.begin() + program);
    return words;
  }

  static size_t programWithoutFile(const std::vector<RanWord> &words) {
    size_t at = 0;
    while (at < words.size() && !isKnownFlag(words[at].text) && !isOverride(words[at].text))
      ++at;
    return at;
  }

  std::vector<RanWord> flagsOfArrays() const {
    std::vector<RanWord> flags;
    for (const RanArray &array : run_.arrays) {
      std::vector<RanWord> words;
      for (const RanWord &word : array.words) {
        llvm::SmallVector<llvm::StringRef> parts;
        if (array.isArray)
          parts.push_back(word.text);
        else // as the shell splits it without quotes
          llvm::SplitString(word.text, parts, " \t\n");
        for (llvm::StringRef part : parts)
          words.push_back({part.str(), word.range});
      }
      words = cleanWords(words);
      if (!words.empty() && isFlag(words.front().text) && countFlags(words) > 0)
        flags.insert(flags.end(), words.begin(), words.end());
    }
    return flags;
  }

  void readVariables() {
    for (const auto &[name, variable] : run_.exported) {
      if (belongsToRun(name))
        recipe_.setVariable(name, variable.value ? Value::ofString(*variable.value) : Value(),
                            variable.range);
      else if (variable.value)
        recipe_.leaveOutIdle("export " + name, "only the shell uses it", variable.range);
    }
    for (const auto &[name, value] : environment_)
      if (belongsToRun(name))
        recipe_.setVariable(name, Value::ofString(value), {});
  }

  RecipeBuilder &recipe_;
  const ShellRun &run_;
  BridgeSettings bridge_;
  Flags flags_;
  Machines machines_;
  std::vector<std::pair<std::string, std::string>> environment_;
};

} // namespace

std::optional<std::string> importMegatronArgs(BufferId input, const ImportOptions &options,
                                              DiagEngine &diags) {
  if (!checkInput(input, diags))
    return std::nullopt;
  const SourceManager &sources = diags.sources();
  ShellText text{sources.text(input), sources.loc(input, 0), {}};
  std::optional<ShellRun> run = runShell(text, options.variables, diags);
  if (!run)
    return std::nullopt;
  RecipeBuilder recipe(diags);
  ArgsImporter(recipe, *run).import();
  return printRecipe(recipe, options, diags);
}

} // namespace shardc::upstream
