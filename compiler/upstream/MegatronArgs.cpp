// Reads Megatron-LM's command line: finds it among the commands of a script, and interprets the
// launcher's options for nodes and GPUs and Megatron-LM's flags.
#include "compiler/basic/Format.h"
#include "compiler/config/Evaluate.h"
#include "compiler/config/ForeignNames.h"
#include "compiler/upstream/Bridge.h"
#include "compiler/upstream/FlagTable.h"
#include "compiler/upstream/ImportedRecipe.h"
#include "compiler/upstream/Shell.h"
#include "compiler/upstream/Yaml.h"
#include "runtime/base/RecipeVariables.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Regex.h"

namespace shardc::upstream {
namespace {

using config::Opt;
using config::Value;

constexpr Opt kNodes = Opt::ClusterNodes, kPerNode = Opt::ClusterGpusPerNode;

/// What an option of a launcher says: a row of Launchers.def.
struct LauncherRow {
  llvm::StringRef launchers, options, says;
};
constexpr LauncherRow kLaunchers[] = {
#define LAUNCHER(launchers, options, says) {launchers, options, says},
#include "compiler/upstream/Launchers.def"
};

/// The row of an option, or of the launcher itself for `.`; null if there is none.
const LauncherRow *rowOf(llvm::StringRef launcher, llvm::StringRef option) {
  const auto *row = llvm::find_if(kLaunchers, [&](const LauncherRow &one) {
    return isOneOf(one.options, option) &&
           (one.launchers == "*" || isOneOf(one.launchers, launcher));
  });
  return row == std::end(kLaunchers) ? nullptr : row;
}

/// The launcher that a word names, without folder and ending (`mpiexec.hydra`); empty if the table
/// has none.
llvm::StringRef launcherOf(llvm::StringRef word) {
  llvm::StringRef name = llvm::sys::path::filename(word);
  name = name.endswith("sh") ? name : name.split('.').first;
  bool isKnown = llvm::any_of(kLaunchers, [&](auto &row) { return isOneOf(row.launchers, name); });
  return isKnown ? name : "";
}

using Visit =
    llvm::function_ref<void(const LauncherRow *row, llvm::StringRef text, const RanWord &word)>;

/// Calls `visit` with each launcher that has a row for itself, and with each option of a launcher
/// and its value; without a row, with other words or the values of other options. An option belongs
/// to the last launcher before it.
void visitOptions(const std::vector<RanWord> &words, Visit visit) {
  llvm::StringRef launcher;
  for (size_t i = 0; i < words.size(); ++i) {
    llvm::StringRef word = words[i].text;
    if (llvm::StringRef found = launcherOf(word); !found.empty()) {
      launcher = found;
      if (const LauncherRow *row = rowOf(launcher, "."))
        visit(row, launcher, words[i]);
    }
    auto [name, value] = word.split('=');
    bool isJoined = name.size() > 2 && name[0] == '-' && llvm::isDigit(name[2]); // `-N2`
    std::string key = name.take_front(isJoined ? 2 : name.size()).str();
    value = isJoined ? word.substr(2) : value;
    std::replace(key.begin() + std::min<size_t>(key.size(), 2), key.end(), '_', '-');
    const LauncherRow *row = rowOf(launcher, key);
    if (row == nullptr) {
      visit(nullptr, word.startswith("-") ? value : word, words[i]);
      continue;
    }
    bool hasValue = row->says != "Parts" && row->says != "Clean";
    if (value.empty() && hasValue && i + 1 < words.size())
      value = words[++i].text;
    std::string text = value.str();
    if (row->says == "Variable" && !value.contains('=') && i + 1 < words.size())
      text += "=" + words[++i].text;
    visit(row, text, words[i]);
  }
}

/// Reads a number, also as a range of it alone (`4-4`, `4:4`).
bool readCount(llvm::StringRef text, int64_t &number) {
  auto [first, last] = text.trim().split(text.contains('-') ? '-' : ':');
  return (last.empty() || first == last) && !first.getAsInteger(10, number) && number > 0;
}

/// The name of a variable in a container.
llvm::StringRef withoutContainer(llvm::StringRef name) {
  name.consume_front("APPTAINERENV_") || name.consume_front("SINGULARITYENV_");
  return name;
}

/// Whether a variable affects training. Other variables belong to the shell or may contain secrets.
bool belongsToRun(llvm::StringRef name) {
  return useOfVariable(name) == VariableUse::Settable && name != "CUDA_VISIBLE_DEVICES";
}

void readVariable(RecipeBuilder &recipe, llvm::StringRef name,
                  const std::optional<RanWord> &value) {
  name = withoutContainer(name);
  if (!belongsToRun(name)) {
    if (value)
      recipe.leaveOutIdle(("export " + name).str(), "only the shell uses it", value->range);
  } else if (value && value->unknown != nullptr) {
    recipe.askWords((name + "=" + value->text).str(), value->range);
  } else {
    recipe.setVariable(name, value ? Value::ofString(value->text) : Value(),
                       value ? value->range : SourceRange());
  }
}

/// Collects the number and the type of GPUs, and variables.
class Machines {
public:
  Machines(RecipeBuilder &recipe, const ShellRun &run) : recipe_(recipe), run_(run) {}

  Exports variables; ///< of the program that is started; without a value: unset

  void readVariables(const std::vector<RanWord> &words) {
    Exports before;
    visitOptions(words, [&](const LauncherRow *row, llvm::StringRef text, const RanWord &word) {
      llvm::StringRef says = row == nullptr ? "" : row->says;
      auto clean = [&] { // what is for containers gets there anyway
        std::erase_if(variables, [&](const auto &one) {
          return !run_.hasRun && withoutContainer(one.first) == one.first;
        });
      };
      auto take = [&](llvm::StringRef list, char separator, bool isWhole) {
        llvm::SmallVector<llvm::StringRef> parts;
        list.split(parts, separator);
        if (isWhole && llvm::none_of(parts, [](auto part) { return part.trim().lower() == "all"; }))
          clean();
        for (llvm::StringRef part : parts) {
          auto [name, value] = part.trim().split('=');
          VariableUse use = useOfVariable(withoutContainer(name));
          if (!part.contains('=') && before.count(name.str()) > 0)
            variables.insert(*before.find(name.str()));
          else if (part.contains('=') &&
                   (use == VariableUse::Settable || use == VariableUse::Position))
            variables[name.str()] = RanWord{value.str(), word.range, word.unknown};
        }
      };
      if (says == "Clean" || says == "Step")
        before = variables;
      if (says == "Clean")
        clean();
      if (auto job = variables.find("SLURM_EXPORT_ENV");
          says == "Step" && job != variables.end() && job->second)
        take(std::string(job->second->text), ',', true);
      if (says == "StepVariables" && !run_.hasRun)
        variables = before;
      if (says == "Unset" && !run_.hasRun)
        variables[text.str()] = std::nullopt;
      if (says.empty() || says.contains("Variable"))
        take(text,
             says == "VariableList"       ? ';'
             : says.endswith("Variables") ? ','
                                          : '\0',
             says == "StepVariables" || says == "JobVariables");
      if (says == "JobVariables" && !run_.hasRun)
        variables["SLURM_EXPORT_ENV"] = RanWord{text.str(), word.range};
    });
  }

  void read(const std::vector<RanWord> &words) {
    visitOptions(words, [&](const LauncherRow *row, llvm::StringRef text, const RanWord &word) {
      if (row != nullptr)
        readOption(row->says, text, word);
    });
  }

  /// Sets the variables in the recipe, and reads those that start processes. Asks what the words
  /// start if none of them is a launcher.
  void takeVariables(const std::vector<RanWord> &words) {
    auto has = [&](llvm::StringRef names) {
      return llvm::any_of(words, [&](const RanWord &word) {
        return isOneOf(names, llvm::sys::path::filename(word.text));
      });
    };
    const bool isTorchrun = has("torchrun torch.distributed.run");
    if (auto seen = variables.find("CUDA_VISIBLE_DEVICES");
        seen != variables.end() && seen->second && llvm::isDigit(seen->second->text.front()))
      devices_ = std::ranges::count(seen->second->text, ',') + 1;
    for (const auto &[variable, value] : variables)
      if (llvm::StringRef name = variable; !name.consume_front("PET_")) // PET_NNODES is `--nnodes`
        readVariable(recipe_, variable, value);
      else if (isTorchrun && value)
        read({{"torchrun", value->range}, {"--" + name.lower(), value->range}, *value});
    if (auto world = variables.find("WORLD_SIZE");
        world != variables.end() && world->second && !isTorchrun && !has("deepspeed accelerate"))
      read({{"--ntasks", world->second->range}, *world->second});
    if (llvm::none_of(words, [](auto &word) { return !launcherOf(word.text).empty(); }) &&
        !words.empty() && elsewhere_.text.empty())
      elsewhere_ = words.front();
  }

  void finish() {
    constexpr int64_t kGpusOfNodeMax = 8;
    chooseHosts();
    int64_t hosts = static_cast<int64_t>(slotsOf_.size());
    span_ = span_ < 0 ? jobSlots_ : span_;
    if (span_ > 0)
      hosts = (jobSlots_ + span_ - 1) / span_;
    else if (hasSlots_ && hosts > 0)
      span_ = slotsOf_.begin()->second;
    if (tasksPerNode_ > 0) // each has one GPU
      recipe_.set(kPerNode, Value::ofInt(tasksPerNode_), tasksRange_);
    if (span_ > 0 && !recipe_.has(kPerNode))
      recipe_.set(kPerNode, Value::ofInt(all_ > 0 ? std::min(all_, span_) : span_), hostsRange_);
    int64_t nodes = recipe_.getIntOr(kNodes, 0), perNode = times_ * recipe_.getIntOr(kPerNode, 0);
    all_ *= times_;
    if (times_ > 1 && perNode > 0)
      recipe_.set(kPerNode, Value::ofInt(perNode), recipe_.range(kPerNode));
    if (nodes == 0 && hosts > 0 && (all_ == 0 || perNode == 0))
      recipe_.set(kNodes, Value::ofInt(nodes = hosts), hostsRange_);
    if (isScattered_ && chunks_ > 0) { // each on a node of its own
      recipe_.set(kNodes, Value::ofInt(nodes = chunks_), allRange_);
      recipe_.set(kPerNode, Value::ofInt(perNode = all_ / chunks_), allRange_);
    }
    bool isOpen = nodes == 0 && (all_ == 0 || perNode == 0), isParts = !parts_.text.empty();
    const RanWord &known = isParts ? parts_ : elsewhere_;
    if (isParts || (isOpen && (!known.text.empty() || all_ > kGpusOfNodeMax))) {
      std::string what =
          known.text.empty() ? fmt::format("nodes of {} processes", all_) : known.text;
      for (Opt opt : {kNodes, kPerNode})
        if (isParts || !recipe_.has(opt))
          recipe_.setUnknown(opt, what, known.text.empty() ? allRange_ : known.range);
      return;
    }
    if (perNode == 0 && all_ > 0 && all_ % std::max<int64_t>(nodes, 1) == 0)
      recipe_.set(kPerNode, Value::ofInt(all_ / std::max<int64_t>(nodes, 1)), allRange_);
    perNode = recipe_.getIntOr(kPerNode, 0);
    if (nodes > 0 && perNode == 0 && !recipe_.isDoubted(kPerNode))
      recipe_.setUnknown(kPerNode, fmt::format("GPUs of {} nodes", nodes), recipe_.range(kNodes));
    if (nodes > 0 || recipe_.isDoubted(kNodes) || (perNode == 0 && !recipe_.isDoubted(kPerNode)))
      return;
    if (all_ > 1 && perNode > 0 && all_ % perNode != 0)
      recipe_.setUnknown(kNodes, fmt::format("nodes of {} processes", all_), allRange_);
    else
      recipe_.set(kNodes, Value::ofInt(std::max<int64_t>(all_ / std::max<int64_t>(perNode, 1), 1)),
                  recipe_.range(kPerNode));
  }

private:
  void readOption(llvm::StringRef says, llvm::StringRef value, const RanWord &word) {
    llvm::StringRef last = value.substr(value.rfind(':') + 1);
    if (says == "Parts")
      parts_ = word;
    if (says == "Nodes")
      return set(kNodes, value, word.range);
    if (says == "Each" && all_ > 0 && tasksPerNode_ > 0 && all_ % tasksPerNode_ == 0 &&
        !recipe_.has(kNodes))
      recipe_.set(kNodes, Value::ofInt(all_ / tasksPerNode_), allRange_);
    if (says == "PerNode" && readCount(last, tasksPerNode_))
      tasksRange_ = word.range;
    if (says == "Each" || says == "Total")
      tasksPerNode_ = 0; // of programs that start the processes
    if (int64_t each = 0; says == "Each" && !readCount(last, each)) { // for each GPU that it finds
      all_ = 0;
      return devices_ > 0 ? recipe_.set(kPerNode, Value::ofInt(devices_), word.range)
                          : recipe_.setUnknown(kPerNode, last, word.range);
    }
    if (says == "Gpus" || says == "Times")
      readCount(last, says == "Gpus" ? devices_ : times_);
    if (says == "PerNode" || says == "Each" || says == "Gpus")
      return set(kPerNode, last, word.range);
    if (says == "Grid") { // nodes, if there are several, and processes of each
      auto [nodes, each] = value.split('x');
      readOption("Nodes", each.empty() ? "1" : nodes, word);
      return readOption("Each", each.empty() ? nodes : each, word);
    }
    if (says == "Map" && value.startswith("ppr:") && value.contains(":node"))
      return readOption("PerNode", value.split(':').second.split(':').first, word);
    if (says == "Include" || says == "Exclude")
      (says == "Include" ? include_ : exclude_) = {value.str(), word.range};
    if (says == "File")
      readFile(value, word);
    if (says == "Span" && value.contains("span[hosts=1]"))
      span_ = -1, hostsRange_ = word.range; // all of them
    else if (says == "Span" && readCount(value.split("span[ptile=").second.split(']').first, span_))
      hostsRange_ = word.range;
    for (llvm::StringRef part : llvm::split(value, ','))
      if (says == "Gres")
        readDevices(part, word.range);
      else if (says == "Chunks")
        readChunks(part, word.range);
    int64_t number = 0;
    bool isAll = says == "All" || says == "Total", isCount = readCount(last, number);
    if (isAll)
      all_ = isCount ? number : 0, allRange_ = word.range;
    if (says == "Slots")
      jobSlots_ = number;
    bool isElsewhere = says == "Elsewhere" || says == "Slots" || (isAll && !isCount) ||
                       (says == "Hosts" && !readHosts(value, word.range));
    if (isElsewhere)
      elsewhere_ = {value.str(), word.range};
  }

  /// Reads a file of hosts, or the configuration of accelerate.
  void readFile(llvm::StringRef name, const RanWord &word) {
    auto file = llvm::find_if(run_.files, [&](const auto &one) {
      return llvm::sys::path::filename(one.first) == llvm::sys::path::filename(name);
    });
    TreePtr yaml = file == run_.files.end() ? nullptr : readYaml(file->second, word.range);
    bool isYaml = yaml != nullptr && yaml->kind == Tree::Kind::Map;
    if (file == run_.files.end() || (!isYaml && !readHosts(file->second, word.range)))
      elsewhere_ = {name.str(), word.range};
    for (auto [key, says] :
         {std::pair("num_machines", "Nodes"), std::pair("num_processes", "Total")})
      if (const Tree *value = isYaml ? yaml->find(key) : nullptr)
        readOption(says, std::to_string(value->integer), word);
  }

  /// Reads `a:8,b:8`, `a,a,b,b` or `n[01-04],m7`, or the lines `a slots=8` of a file. Returns false
  /// if these are no hosts.
  bool readHosts(llvm::StringRef text, SourceRange range) {
    constexpr int64_t kHostsMax = 100'000;
    llvm::Regex pattern("^[ \t]*([^][{}$,:#[:space:]]*)(\\[([-0-9,]+)\\])?([^][{}$,:#[:space:]]*)"
                        "((:|[^,\n]*[[:space:]]slots=)([0-9]+))?[^],\n{}$[]*(,|\n|$)");
    slotsOf_.clear();
    hasSlots_ = false;
    hostsRange_ = range;
    for (llvm::SmallVector<llvm::StringRef, 9> host; !text.empty();
         text = text.drop_front(host[0].size())) {
      if (!pattern.match(text, &host))
        return false;
      for (llvm::StringRef part : llvm::split(host[3].empty() ? "" : host[3], ',')) {
        int64_t first = 0, last = 0, slots = 0;
        auto [from, to] = part.split('-');
        if (!part.empty() &&
            (from.getAsInteger(10, first) || (to.empty() ? from : to).getAsInteger(10, last) ||
             last - first > kHostsMax))
          return false;
        for (; first <= last && !(host[1] + host[3]).str().empty(); ++first) {
          int64_t &held = slotsOf_[fmt::format(
              "{}{}{}", host[1].str(), part.empty() ? "" : std::to_string(first), host[4].str())];
          hasSlots_ |= readCount(host[7], slots) || held > 0;
          held += std::max<int64_t>(slots, 1);
        }
      }
    }
    return !slotsOf_.empty();
  }

  /// Applies DeepSpeed's --include, `a:0,1@b`, which names GPUs of hosts, and --exclude.
  void chooseHosts() {
    std::map<std::string, int64_t> chosen;
    for (llvm::StringRef part : llvm::split(include_.text, '@'))
      if (auto [name, gpus] = part.split(':'); !name.empty()) {
        chosen[name.str()] =
            gpus.empty() ? slotsOf_[name.str()] : static_cast<int64_t>(gpus.count(',')) + 1;
        hasSlots_ |= !gpus.empty();
        hostsRange_ = include_.range;
      }
    if (!chosen.empty())
      slotsOf_ = std::move(chosen);
    for (llvm::StringRef part : llvm::split(exclude_.text, '@'))
      if (!part.empty() && slotsOf_.erase(part.str()) == 0) // GPUs, or an unknown host
        parts_ = exclude_;
    bool isEven =
        llvm::all_of(slotsOf_, [&](auto &one) { return one.second == slotsOf_.begin()->second; });
    if (hasSlots_ && !isEven && !recipe_.has(kPerNode))
      parts_ = {"hosts with other numbers of GPUs", hostsRange_};
  }

  /// Reads `select=4:ngpus=8:mpiprocs=8` or `nodes=4:ppn=8:gpus=8`. Chunks of one GPU share nodes.
  void readChunks(llvm::StringRef text, SourceRange range) {
    llvm::SmallVector<llvm::StringRef> parts;
    text.split(parts, ':');
    int64_t chunks = 0, gpus = 0;
    isScattered_ |= text.startswith("place=scatter");
    if (text.startswith("num=") && !text.contains("/task"))
      readOption("Gpus", text.substr(4).take_while(llvm::isDigit), {"", range});
    if (text.consume_front("select=") || text.consume_front("nodes="))
      if (text.contains('+') || !readCount(text.split(':').first, chunks))
        elsewhere_ = {text.str(), range};
    for (llvm::StringRef part : parts)
      if (chunks > 0 && (part.consume_front("ngpus=") || part.consume_front("gpus=")))
        readCount(part, gpus);
    if (gpus > 0) {
      all_ = chunks * gpus, allRange_ = range;
      chunks_ = chunks;
    }
    if (gpus > 1)
      set(kPerNode, std::to_string(devices_ = gpus), range);
    else if (chunks > 0 && gpus == 0)
      set(kNodes, std::to_string(chunks), range);
  }

  /// Reads `gpu:8` or `gpu:h100:8`.
  void readDevices(llvm::StringRef value, SourceRange range) {
    llvm::SmallVector<llvm::StringRef> parts;
    value.split(parts, ':');
    if (parts.size() < 2 || parts.front() != "gpu")
      return;
    set(kPerNode, parts.back(), range);
    readCount(parts.back(), devices_);
    if (parts.size() == 3)
      if (std::optional<size_t> gpu =
              config::findEnumerator(config::EnumKind::Gpu, parts[1].lower()))
        recipe_.set(Opt::ClusterGpu, Value::ofIndex(*gpu), range);
  }

  void set(Opt opt, llvm::StringRef text, SourceRange range) {
    if (int64_t number = 0; readCount(text, number))
      recipe_.set(opt, Value::ofInt(number), range);
    else if (!text.empty() && !recipe_.has(opt))
      recipe_.setUnknown(opt, text, range);
  }

  RecipeBuilder &recipe_;
  const ShellRun &run_;
  int64_t all_ = 0, tasksPerNode_ = 0;     ///< of all processes, and of those on a node; 0: unknown
  std::map<std::string, int64_t> slotsOf_; ///< processes of each named host
  bool hasSlots_ = false;                  ///< the names say how many
  int64_t jobSlots_ = 0, span_ = 0;        ///< processes of LSF's job, and of each of its hosts
  int64_t devices_ = 0;                    ///< GPUs of a node; 0: unknown
  int64_t chunks_ = 0;                     ///< of PBS, with GPUs
  bool isScattered_ = false;               ///< no two chunks share a node
  int64_t times_ = 1;                      ///< by which numbers of processes are multiplied
  RanWord include_, exclude_;              ///< hosts, and GPUs of them
  RanWord elsewhere_, parts_; ///< what knows the nodes; what begins another part of a job
  SourceRange allRange_, hostsRange_, tasksRange_;
};

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
      readMachines(others, run_.exported, {});
      return block;
    }
    if (launches.empty()) {
      recipe_.diags().report(diag::ImportNoLaunch, SourceRange(), whyNoLaunch(run_));
      return std::nullopt;
    }
    if (options_.launch > launches.size() || (launches.size() > 1 && options_.launch == 0)) {
      reportSeveral(launches);
      return std::nullopt;
    }
    return splitLauncher(*launches[options_.launch == 0 ? 0 : options_.launch - 1], others);
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
    readMachines(others, exports, {words.begin(), words.begin() + program});
    words.erase(words.begin(), words.begin() + program);
    return words;
  }

  /// Reads directives, other commands, exported variables, and the words before the program.
  void readMachines(const std::vector<const RanCommand *> &others, const Exports &exports,
                    const std::vector<RanWord> &launcher) {
    auto readInto = [&](RecipeBuilder &recipe, const std::vector<RanWord> &directives) {
      Machines machines(recipe, run_);
      machines.readVariables(directives);
      machines.read(directives);
      for (const RanCommand *other : others)
        machines.read(other->words);
      for (const auto &[name, value] : exports)
        machines.variables[name] = value;
      machines.readVariables(launcher);
      machines.takeVariables(launcher);
      machines.read(launcher);
      machines.finish();
    };
    readInto(recipe_, run_.directives);
    const bool isStep =
        llvm::any_of(launcher, [](const RanWord &word) { return launcherOf(word.text) == "srun"; });
    if (isStep || (run_.nodes == 0 && run_.gpusPerNode == 0))
      return;
    SourceManager sources;
    DiagEngine quiet(sources);
    RecipeBuilder alone(quiet); // what the script says without what the user names
    std::vector<RanWord> directives = run_.directives;
    llvm::erase_if(directives, [](const RanWord &word) { return !word.range.isValid(); });
    readInto(alone, directives);
    for (auto [opt, option, named] : {std::tuple(kNodes, "--nodes", run_.nodes),
                                      std::tuple(kPerNode, "--gpus-per-node", run_.gpusPerNode)})
      if (int64_t own = alone.getIntOr(opt, named); named > 0 && own != named)
        recipe_.diags().report(diag::ImportMachines, alone.range(opt), option, named, own,
                               recipe_.getIntOr(opt, own));
  }

  RecipeBuilder &recipe_;
  const ShellRun &run_;
  const ImportOptions &options_;
  BridgeSettings bridge_;
  Flags flags_;
};

} // namespace

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
