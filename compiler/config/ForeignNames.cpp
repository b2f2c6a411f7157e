#include "compiler/config/ForeignNames.h"

#include <algorithm>

#include "compiler/basic/Format.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringMap.h"

namespace shardc::config {

std::string foldName(llvm::StringRef name) {
  std::string folded = name.ltrim('-').str();
  std::replace(folded.begin(), folded.end(), '-', '_');
  return folded;
}

namespace {

constexpr llvm::StringLiteral kMegatronLm = "Megatron-LM";

/// Fields of Hugging Face's models that equal an option of section `model`.
struct ModelField {
  llvm::StringRef field, option;
};

constexpr ModelField kModelFields[] = {
#define HF_COPY(architectures, field, option, type, fallback) {field, option},
#include "runtime/checkpoint/HfFields.def"
};

/// A synonym of a flag of Megatron-LM.
struct OtherFlag {
  llvm::StringRef other, flag;
};

constexpr OtherFlag kOtherFlags[] = {
#define FLAG_ALIAS(other, flag) {other, flag},
#include "compiler/upstream/UpstreamFlags.def"
};

/// A flag of Megatron-LM that sets an option to a fixed value.
struct SettingFlag {
  llvm::StringRef flag;
  Opt option;
  llvm::StringRef value;
};

constexpr SettingFlag kSettingFlags[] = {
#define FLAG_SETS(flag, option, value) {flag, Opt::option, value},
#include "compiler/upstream/UpstreamFlags.def"
};

// Advice that several names of ForeignNames.def share.
constexpr char kStateStays[] =
    "remove it: the state stays on the GPUs; 'shardc fit' lists what saves memory";
constexpr char kModelFolder[] =
    "'shardc import hf FOLDER' makes the recipe and the weights of a model";
constexpr char kRecomputation[] =
    "write 'model.recompute_granularity = full', 'selective' or 'auto'";
constexpr char kZeroStages[] =
    "write 'ddp.data_parallel_sharding_strategy = optim' for stage 1, 'optim_grads' for 2, "
    "'optim_grads_params' for 3";
constexpr char kAccumulation[] =
    "set 'train.global_batch_size' to 'train.micro_batch_size' * data-parallel size * "
    "accumulation steps";
constexpr char kAnyLayout[] =
    "remove it: runs of any layout load a checkpoint; 'checkpoint.ckpt_format' chooses its form";
constexpr char kSftLength[] =
    "set 'model.seq_length', and make the data with 'shardc data sft --length' of the same value";
constexpr char kAnswers[] =
    "'shardc data sft --mask=assistant' counts answers only, '--mask=full' everything";
constexpr char kSplit[] =
    "write the shares of training, validation and test, as in 'dataset.split = \"95,5,0\"'";
constexpr char kDataRanks[] =
    "remove it: the data-parallel size is the number of GPUs / (tensor * pipeline * context)";
constexpr char kTokenized[] =
    "give the folder to 'shardc data tokenize --tokenizer', which writes tokens before the run";
constexpr char kPreset[] = "write 'mixed_precision = bf16_mixed', or another preset";
constexpr char kUnit[] = "remove it: each layer is a unit of FSDP";
constexpr char kPacked[] =
    "remove it: 'shardc data sft' packs rows, each of which attends to itself only";
constexpr char kAttention[] = "remove it, or set 'model.attention_backend'";
constexpr char kChosen[] = "remove it: the kernels are chosen";
constexpr char kCompiled[] = "remove it: a recipe is always compiled";
constexpr char kPlanned[] = "remove it: memory is planned before the run";
constexpr char kNoSearch[] = "a run keeps its saves; 'checkpoint.keep' says how many";
constexpr char kNotHere[] = "shardc has no such method";
constexpr char kRowKeys[] =
    "'shardc data sft' finds the form of rows; '--prompt-key' and '--completion-key' name keys";
constexpr char kTemplate[] = "'shardc data sft --template' names a chat template";
constexpr char kData[] = "write the data to a file, and name it in 'dataset.data_path'";
constexpr char kPacksBefore[] = "'shardc data sft' makes packs before the run";
constexpr char kProcesses[] = "'shardc data sft --processes' is alike";
constexpr char kInOrder[] = "remove it: 'dataset.random_seed' gives the order of samples";
constexpr char kLoader[] = "remove it: the number of a step says which samples it has";
constexpr char kWorkers[] = "'dataset.num_workers' is alike";
constexpr char kTokenizer[] = "remove it: the tokenizer's folder says it";
constexpr char kNewTokens[] = "remove it: the vocabulary is that of the imported folder";
constexpr char kFrozen[] = "'model.freeze' lists what is not trained";
constexpr char kAdapterFolder[] = "'shardc ckpt import peft' and 'merge' make weights of adapters";
constexpr char kRandom[] =
    "remove it: without 'checkpoint.pretrained_checkpoint', weights begin at random";
constexpr char kFolders[] = "remove it: 'shardc import hf' reads a folder, and 'shardc ckpt export "
                            "hf' writes one, which other programs upload";
constexpr char kExports[] = "'shardc ckpt export hf' writes the folder of a model";
constexpr char kNoServer[] = "remove it: 'shardc ckpt export hf' writes folders that servers read";
constexpr char kGenerates[] = "'shardc generate' lets a model continue texts";
constexpr char kNoRewards[] =
    "shardc trains on given answers, without rewards and without answers of the model";
constexpr char kHarness[] =
    "docs/examples/lm_eval_shardc.py lets lm-evaluation-harness score a model";
constexpr char kTextOnly[] = "remove it: models read text alone";
constexpr char kOtherTrainer[] = "remove it: it chooses another program to train with";
constexpr char kLauncher[] = "remove it: the launcher sets it";
constexpr char kSignal[] = "remove it: a run saves before it ends by a signal; "
                           "'checkpoint.save_interval' saves between";
constexpr char kTrackers[] =
    "give each line of metrics to a program with '--metrics=\"| PROGRAM\"'";
constexpr char kTensorboard[] = "set 'logger.tensorboard_dir'";
constexpr char kTrace[] = "'shardc run --trace=FILE' shows where the time of a step goes";
constexpr char kMetrics[] = "remove it: 'shardc run --metrics=FILE' writes what was measured";
constexpr char kPrints[] = "set 'logger.log_interval' to a number of steps";
constexpr char kValidates[] =
    "remove it: validation measures the loss, in the precision of training";
constexpr char kPlan[] = "remove it: the plan knows what each rank computes";
constexpr char kRowsOfRank[] = "remove it: a rank reads its rows";
constexpr char kRing[] = "set 'model.cp_comm_type'";
constexpr char kFp8[] =
    "write 'mixed_precision = bf16_with_mxfp8_mixed', or another preset with fp8";
constexpr char kGathers[] = "remove it: the plan places the gathers";
constexpr char kSaves[] = "set 'checkpoint.save' and 'checkpoint.save_interval'";

struct ForeignTables {
  std::vector<ForeignName> names;
  llvm::StringMap<size_t> byName, bySection;

  ForeignTables() {
    using enum Opt;
    llvm::StringRef program;
#define FOREIGN_PROGRAM(name) program = name;
#define FOREIGN(names, what)                                                                       \
  for (llvm::StringRef name : llvm::split(names, ' '))                                             \
    add(name, program, what);
#define FOREIGN_VALUE(names, words, advice)
#include "compiler/config/ForeignNames.def"
#define FOREIGN_PROGRAM(name) program = name;
#define FOREIGN(names, what)
#define FOREIGN_VALUE(names, words, advice) addValue(names, program, {words, advice});
#include "compiler/config/ForeignNames.def"
    for (const ModelField &field : kModelFields)
      if (std::optional<Opt> opt = findOption(("model." + field.option).str()))
        addUnlessOwn(field.field, "Hugging Face", *opt);
    addFlags();
  }

  void addValue(llvm::StringRef some, llvm::StringRef program, const ForeignValue &value) {
    for (llvm::StringRef name : llvm::split(some, ' ')) {
      add(name, program, std::nullopt);
      ForeignName &foreign = names[byName[name]];
      if (foreign.values.empty())
        foreign.other = foreign.advice;
      foreign.values.push_back(value);
      if (!foreign.option)
        foreign.advice += fmt::format("{}for {}: {}", foreign.advice.empty() ? "" : "; ",
                                      value.words, value.advice);
    }
  }

  void addFlags() {
    llvm::StringMap<Opt> byFlag;
    for (const OptionInfo &option : options())
      if (!option.flag.empty()) {
        byFlag.try_emplace(option.flag, option.opt);
        addFlag(option.flag, option);
      }
    for (const OtherFlag &flag : kOtherFlags)
      if (auto found = byFlag.find(flag.flag); found != byFlag.end())
        addFlag(flag.other, info(found->second));
    for (const SettingFlag &flag : kSettingFlags)
      addUnlessOwn(foldName(flag.flag), kMegatronLm, {}, assignment(info(flag.option), flag.value));
  }

  void addFlag(llvm::StringRef flag, const OptionInfo &option) {
    if (option.flagNegates)
      addUnlessOwn(foldName(flag), kMegatronLm, {}, assignment(option, "false"));
    else
      addUnlessOwn(foldName(flag), kMegatronLm, option.opt);
  }

  static std::string assignment(const OptionInfo &option, llvm::StringRef value) {
    return fmt::format("write '{} = {}'", option.path, value);
  }

  /// Adds a name, unless one of our own options has that name.
  void addUnlessOwn(llvm::StringRef name, llvm::StringRef program, std::optional<Opt> opt,
                    std::string advice = {}) {
    for (const OptionInfo &option : options())
      if (option.name == name)
        return;
    add(name, program, opt, std::move(advice));
  }

  void add(llvm::StringRef name, llvm::StringRef program, std::optional<Opt> opt,
           std::string advice = {}) {
    if (byName.try_emplace(name, names.size()).second)
      names.push_back({name.str(), program, opt, std::nullopt, std::move(advice), {}, {}});
  }

  void add(llvm::StringRef name, llvm::StringRef program, const char *advice) {
    add(name, program, std::nullopt, advice);
  }

  void add(llvm::StringRef name, llvm::StringRef program, Section section) {
    bySection.try_emplace(name, names.size());
    names.push_back({name.str(), program, std::nullopt, section, {}, {}, {}});
  }
};

const ForeignTables &foreignTables() {
  static const ForeignTables kForeignTables;
  return kForeignTables;
}

const ForeignName *findIn(const llvm::StringMap<size_t> &index, llvm::StringRef name) {
  auto found = index.find(foldName(name));
  return found == index.end() ? nullptr : &foreignTables().names[found->second];
}

} // namespace

llvm::ArrayRef<ForeignName> foreignNames() { return foreignTables().names; }

const ForeignName *findForeignPath(llvm::StringRef path) {
  return findIn(foreignTables().byName, path);
}

const ForeignName *findForeignName(llvm::StringRef path) {
  llvm::StringRef name = path.substr(path.rfind('.') + 1);
  for (llvm::StringRef part : {path, name})
    if (const ForeignName *found = findForeignPath(part))
      return found;
  for (const ForeignName &each : foreignTables().names)
    if (llvm::StringRef begin = each.name; begin.consume_back("*"))
      if (llvm::StringRef(foldName(name)).startswith(begin))
        return &each;
  return nullptr;
}

const ForeignName *findForeignSection(llvm::StringRef name) {
  return findIn(foreignTables().bySection, name);
}

llvm::StringRef nameInSection(const OptionInfo &option) {
  if (option.name != option.path)
    return option.name;
  for (const AliasInfo &alias : aliases())
    if (alias.targets.size() == 1 && alias.targets.front() == option.opt &&
        alias.path.startswith((option.path + ".").str()))
      return alias.path.split('.').second;
  return option.name;
}

std::string describeForeignName(const ForeignName &foreign) {
  const bool isMany = llvm::StringRef(foreign.name).endswith("*");
  if (!foreign.option && !foreign.section)
    return fmt::format("'{}' {} {}'s name{}; {}", foreign.name, isMany ? "are" : "is",
                       foreign.program, isMany ? "s" : "", foreign.advice);
  return fmt::format("'{}' is {}'s name of '{}'", foreign.name, foreign.program,
                     foreign.option ? info(*foreign.option).path : info(*foreign.section).name);
}

} // namespace shardc::config
