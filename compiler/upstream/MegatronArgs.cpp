// Reads Megatron-LM's command line: finds it among the commands of a script, and interprets its
// flags.
#include "compiler/basic/Format.h"
#include "compiler/config/Evaluate.h"
#include "compiler/config/ForeignNames.h"
#include "compiler/upstream/Bridge.h"
#include "compiler/upstream/FlagTable.h"
#include "compiler/upstream/ImportedRecipe.h"
#include "compiler/upstream/LaunchMachines.h"
#include "compiler/upstream/Shell.h"
#include "compiler/upstream/Yaml.h"
#include "llvm/Support/Path.h"

namespace shardc::upstream {
namespace {

using config::Opt;
using config::Value;

bool isKnownFlag(llvm::StringRef word) {
  llvm::StringRef name = word.split('=').first;
  return isFlag(name) && (!findFlag(name).empty() || findName(NameKind::IdleFlag, name) != nullptr);
}

bool hasFlag(const std::vector<RanWord> &words) {
  return llvm::any_of(words, [](const RanWord &word) { return isKnownFlag(word.text); });
}

/// Whether words name a training: by a flag that only a training has, or by the program's name.
bool nameTraining(const std::vector<RanWord> &words) {
  return llvm::any_of(words, [](const RanWord &word) {
    llvm::StringRef text = word.text;
    return findName(NameKind::TrainingFlag, canonicalFlag(text.split('=').first)) != nullptr ||
           (text.endswith(".py") && text.substr(text.rfind('/') + 1).contains("train"));
  });
}

/// Reads the flags and their values in order.
class Flags {
public:
  Flags(RecipeBuilder &recipe, BridgeSettings &bridge, const ShellRun &run)
      : recipe_(recipe), bridge_(bridge), run_(run) {}

  MegatronFacts facts;

  void read(const std::vector<RanWord> &words) {
    readAll(words);
    for (const RanWord &word : words)
      if (word.unknown != nullptr)
        doubt(*word.unknown, word.range);
  }

private:
  void readAll(const std::vector<RanWord> &words) {
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
        values.push_back({given.str(), words[i].range, words[i].unknown});
      size_t end = i + 1;
      while (end < words.size() && !isFlag(words[end].text) && !isGiven)
        values.push_back(words[end++]);
      readFlag(name, words[i].range, values);
      i = end;
    }
  }

  /// Marks all settings as undecided that an unknown part of the command may contain, even if other
  /// parts set them.
  void doubt(const ShellUnknown &unknown, SourceRange range) {
    if (unknown.cause.isValid())
      recipe_.diags().report(diag::ImportUndecided, unknown.cause, unknown.shown);
    for (const std::string &flag : unknown.flags) {
      if (flag == "--group-query-attention")
        facts.groupsQueries = false;
      for (const FlagEffect &effect : findFlag(flag))
        recipe_.doubt(flag, effect.opt, range);
    }
  }

  /// Reads a word that belongs to no flag: an override of Megatron-Bridge or an argument of the
  /// script.
  void readLoose(const RanWord &word) {
    bool isProgram = llvm::StringRef(word.text).endswith(".py");
    if (word.unknown != nullptr && !isProgram)
      return recipe_.askWords(word.text, word.range);
    if (!isProgram && !word.text.empty() && !readOverride(word.text, word.range, bridge_))
      recipe_.leaveOut(word.text, word.range);
  }

  void readFlag(llvm::StringRef name, SourceRange range, std::vector<RanWord> &values) {
    takeOverrides(values);
    llvm::StringRef flag = canonicalFlag(name);
    if (readSpecial(flag, range, values))
      return;
    llvm::ArrayRef<FlagEffect> effects = findFlag(flag);
    if (effects.empty()) {
      std::string text = name.str();
      const UpstreamName *idle = findName(NameKind::IdleFlag, flag);
      for (const RanWord &value : values)
        if (value.unknown != nullptr && (idle != nullptr || &value != &values.front()))
          readLoose(value); // it may hold more settings
        else
          text += " " + value.text;
      if (idle != nullptr)
        return recipe_.leaveOutIdle(text, idle->text, range);
      if (const UpstreamName *other = findName(NameKind::OtherFlag, flag))
        return recipe_.leaveToUser(text, other->text, range);
      if (std::optional<llvm::StringRef> meant = misspeltFlag(flag))
        return recipe_.leaveOutMisspelt(name, text, *meant, range);
      return recipe_.leaveOut(text, range);
    }
    for (const FlagEffect &effect : effects)
      apply(effect, flag, range, values);
    if (llvm::none_of(effects, takesValue))
      for (const RanWord &value : values)
        readLoose(value);
  }

  static bool takesValue(const FlagEffect &effect) {
    return effect.fixed.empty() && config::info(effect.opt).type.type != config::ValueType::Bool;
  }

  /// Applies overrides of the form `a.b=c` that follow a flag; they are not its values.
  void takeOverrides(std::vector<RanWord> &values) {
    while (!values.empty() && values.back().unknown == nullptr &&
           readOverride(values.back().text, values.back().range, bridge_))
      values.pop_back();
  }

  void apply(const FlagEffect &effect, llvm::StringRef flag, SourceRange range,
             const std::vector<RanWord> &values) {
    const config::OptionInfo &option = config::info(effect.opt);
    if (!effect.fixed.empty())
      return recipe_.set(effect.opt, config::parseTableValue(effect.fixed, option), range);
    if (!takesValue(effect))
      return recipe_.setBool(effect.opt, !effect.negates, range);
    if (values.empty() && option.type.isList()) // a program may make the list
      return recipe_.doubt(flag, effect.opt, range);
    if (values.empty()) {
      recipe_.diags().report(diag::ImportEmpty, range, flag, emptyVariable(run_, flag));
      return;
    }
    bool isScalar = !option.type.isList();
    TreePtr tree = isScalar ? textOf(values.front()) : listOf(range, values);
    recipe_.read(effect.opt, *tree, flag);
    for (size_t i = 1; i < values.size() && isScalar; ++i)
      readLoose(values[i]);
    if (!isScalar)
      askUnknown(values);
  }

  /// Asks for unknown words in a list, which may hold more settings, but for those behind weights.
  void askUnknown(const std::vector<RanWord> &values) {
    for (size_t i = 1; i < values.size(); ++i)
      if (double weight = 0; values[i].unknown && !readNumber(values[i - 1].text, weight))
        readLoose(values[i]);
  }

  static TreePtr textOf(const RanWord &word) {
    auto tree = std::make_shared<Tree>(*makeText(word.text, word.range));
    tree->isUnknown = word.unknown != nullptr;
    return tree;
  }

  static TreePtr listOf(SourceRange range, const std::vector<RanWord> &values) {
    if (values.size() == 1)
      return textOf(values.front());
    auto list = std::make_shared<Tree>();
    list->kind = Tree::Kind::List;
    list->range = values.empty() ? range : values.front().range;
    for (const RanWord &value : values) {
      list->items.push_back(textOf(value));
      list->isUnknown |= value.unknown != nullptr;
    }
    return list;
  }

  bool readSpecial(llvm::StringRef flag, SourceRange range, const std::vector<RanWord> &values) {
    if (flag == "--data-path") // the last one counts
      for (Opt before : {Opt::DatasetDataPath, Opt::DatasetBlend})
        recipe_.clear(before);
    if (choosesForeignData(flag))
      recipe_.setUnknownData(fmt::format("the data of {}", flag.str()), range);
    if (flag == "--num-layers-per-virtual-pipeline-stage" && !values.empty() &&
        values.front().unknown != nullptr) {
      recipe_.doubt(flag, Opt::ModelVirtualPipelineModelParallelSize, range);
      return true;
    }
    const bool isKnown = values.size() == 1 && values.front().unknown == nullptr;
    TreePtr value = makeScalar(isKnown ? values.front().text : "", range);
    if (facts.note(config::foldName(flag), *value))
      return true;
    if (flag == "--data-path" && values.size() > 1) {
      readBlend(values);
      return true;
    }
    bool isTokenizer =
        flag == "--tokenizer-model" || flag == "--vocab-file" || flag == "--tokenizer-type";
    facts.addsEod |= isTokenizer && !values.empty() && values.front().text == "NullTokenizer";
    if (isTokenizer && !values.empty() && !llvm::StringRef(values.front().text).startswith("Null"))
      facts.tokenizer = *makeText(values.front().text, range);
    return false;
  }

  /// Reads the paths, of which each may have a weight before it, as Megatron-LM does. An unknown
  /// value may be several words.
  void readBlend(const std::vector<RanWord> &values) {
    double weight = 0;
    TreePtr tree = listOf(values.front().range, values);
    bool isWeighted = tree->isUnknown || values.size() % 2 == 0;
    for (size_t i = 0; i < (tree->isUnknown ? 1 : values.size()); i += 2)
      isWeighted = isWeighted && readNumber(values[i].text, weight);
    recipe_.read(isWeighted ? Opt::DatasetBlend : Opt::DatasetDataPath, *tree, "--data-path");
    askUnknown(values);
  }

  RecipeBuilder &recipe_;
  BridgeSettings &bridge_;
  const ShellRun &run_;
};

class ArgsImporter {
public:
  ArgsImporter(RecipeBuilder &recipe, const ShellRun &run, const ImportOptions &options)
      : recipe_(recipe), run_(run), options_(options), bridge_(recipe, /*isComplete=*/false),
        flags_(recipe, bridge_, run) {}

  void import() {
    std::optional<std::vector<RanWord>> flags = findFlags();
    if (!flags)
      return;
    flags_.read(*flags);
    bridge_.finish();
    flags_.facts.isWhole |= recipe_.has(Opt::ModelNumLayers);
    applyMegatronFacts(recipe_, flags_.facts);
  }

private:
  /// The flags of the script: those of its only launch, otherwise those in lines or variables that
  /// consist of flags. Reports an error and returns empty if there are several launches or no
  /// flags.
  std::optional<std::vector<RanWord>> findFlags() {
    std::vector<const RanCommand *> launches, others;
    std::vector<RanWord> block;
    for (const RanCommand &command : run_.commands) {
      std::vector<RanWord> words = cleanWords(command.words);
      if (!words.empty() && (isFlag(words.front().text) || isOverride(words.front().text)))
        block.insert(block.end(), words.begin(), words.end());
      else if (!startsTraining(command))
        others.push_back(&command);
      else if (isOther(command, launches))
        launches.push_back(&command);
    }
    llvm::erase_if(others, [&](const RanCommand *other) {
      return !launches.empty() && !startsScript(*other);
    });
    if (launches.empty() && !block.empty()) {
      readMachines(recipe_, run_, others, run_.exported, {});
      return block;
    }
    if (launches.empty()) {
      recipe_.diags().report(diag::ImportNoLaunch, SourceRange(), whatElse(others));
      return std::nullopt;
    }
    if (options_.launch > launches.size() || (launches.size() > 1 && options_.launch == 0)) {
      reportSeveral(launches);
      return std::nullopt;
    }
    return splitLauncher(*launches[options_.launch == 0 ? 0 : options_.launch - 1], others);
  }

  /// What a script without a launch of Megatron-LM does.
  std::string whatElse(const std::vector<const RanCommand *> &commands) const {
    for (const ForeignForm &form : kForeignForms)
      for (const RanCommand *command : commands)
        for (const RanWord &word : command->words)
          if (isOneOf(form.words, llvm::sys::path::filename(word.text)))
            return fmt::format("; '{}' is for {}, whose configuration files 'shardc import {} "
                               "FILE' reads",
                               word.text, form.program, form.name);
    return run_.hasRun ? "" : " that its text shows; '--run' runs it";
  }

  void reportSeveral(const std::vector<const RanCommand *> &launches) {
    DiagBuilder report = recipe_.diags().report(diag::ImportSeveral, launches.front()->range,
                                                static_cast<int64_t>(launches.size()));
    for (size_t i = 0; i < launches.size(); ++i)
      report.note(diag::ImportLaunchHere, launches[i]->range, static_cast<int64_t>(i + 1));
  }

  /// Whether the program's arguments, machines or variables differ from those of all earlier
  /// launches. A script may repeat the same launch once per node.
  static bool isOther(const RanCommand &command, const std::vector<const RanCommand *> &launches) {
    auto settingsOf = [](const RanCommand &one) {
      std::vector<RanWord> words = cleanWords(one.words);
      const auto program = words.begin() + static_cast<std::ptrdiff_t>(programOf(words));
      std::vector<std::string> settings;
      visitOptions({words.begin(), program},
                   [&](const LauncherRow *row, llvm::StringRef text, const RanWord &) {
                     if (row == nullptr ? text.contains('=') && belongsToRun(text.split('=').first)
                                        : row->says != "Hosts" && row->says != "File" &&
                                              row->says != "Elsewhere")
                       settings.push_back((row == nullptr ? text : row->says + text).str());
                   });
      for (const auto &[name, value] : one.environment)
        if (belongsToRun(name) && value)
          settings.push_back(name + "=" + value->text);
      for (auto word = program; word != words.end(); ++word)
        settings.push_back(word->text);
      return settings;
    };
    return llvm::none_of(launches, [&, own = settingsOf(command)](const RanCommand *launch) {
      return settingsOf(*launch) == own;
    });
  }

  /// Whether a command without flags of Megatron-LM starts a script, such as one with the launch.
  static bool startsScript(const RanCommand &command) {
    return llvm::any_of(command.words, [](const RanWord &word) {
      return isOneOf("sh sbatch slurm", llvm::StringRef(word.text).rsplit('.').second) ||
             word.text == "$0" || word.text == "sbatch";
    });
  }

  /// The index of the program in the words, or of the first flag if there is no program.
  static size_t programOf(const std::vector<RanWord> &words) {
    for (size_t i = words.size(); i-- > 0;)
      if (llvm::StringRef(words[i].text).endswith(".py"))
        return i;
    // After `python -m module`, skip the launcher's own flags.
    size_t at = 0;
    while (at < words.size() && !isKnownFlag(words[at].text) && !isOverride(words[at].text))
      ++at;
    return at;
  }

  /// Gives the words before the program to the launcher and returns the rest, which are flags.
  std::vector<RanWord> splitLauncher(const RanCommand &command,
                                     const std::vector<const RanCommand *> &others) {
    std::vector<RanWord> words = cleanWords(command.words);
    size_t program = programOf(words);
    bool isNamed = program < words.size() && llvm::StringRef(words[program].text).endswith(".py");
    flags_.facts.isWhole = isNamed && hasFlag(words);
    Exports exports = run_.hasRun ? run_.exported : Exports();
    for (const auto &[name, value] : command.environment)
      exports[name] = value;
    readMachines(recipe_, run_, others, exports, {words.begin(), words.begin() + program});
    words.erase(words.begin(), words.begin() + program);
    return words;
  }

  RecipeBuilder &recipe_;
  const ShellRun &run_;
  const ImportOptions &options_;
  BridgeSettings bridge_;
  Flags flags_;
};

} // namespace

bool startsTraining(const RanCommand &command) {
  std::vector<RanWord> words = cleanWords(command.words);
  return (hasFlag(words) && nameTraining(words)) ||
         llvm::any_of(words, [](const RanWord &word) { return isOverride(word.text); });
}

std::optional<std::string> importMegatronRun(const ShellRun &run, const ImportOptions &options,
                                             DiagEngine &diags) {
  RecipeBuilder recipe(diags);
  ArgsImporter(recipe, run, options).import();
  return printRecipe(recipe, options, diags);
}

std::optional<std::string> importMegatronArgs(BufferId input, llvm::StringRef commands,
                                              const ImportOptions &options, DiagEngine &diags) {
  std::optional<ShellRun> run = shellRunOf(input, commands, diags);
  if (run)
    run->files = options.files;
  return run ? importMegatronRun(*run, options, diags) : std::nullopt;
}

} // namespace shardc::upstream
