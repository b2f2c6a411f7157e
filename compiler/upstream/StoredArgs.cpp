// Imports the arguments stored in a checkpoint of Megatron-LM: all attributes, including defaults.
#include "compiler/basic/Format.h"
#include "compiler/config/Evaluate.h"
#include "compiler/upstream/FlagTable.h"
#include "compiler/upstream/ImportedRecipe.h"

namespace shardc::upstream {
namespace {

using config::Opt;
using config::Value;

/// Maximum number of attributes without counterpart that the recipe lists.
constexpr size_t kListedMax = 400;

class StoredArgs {
public:
  StoredArgs(RecipeBuilder &recipe, const Tree &args) : recipe_(recipe), args_(args) {}

  void read() {
    for (const auto &[attribute, value] : args_.entries)
      if (!value->isNone() && !readSpecial(attribute, *value) && !readOption(attribute, *value))
        noteForeign(attribute, *value);
    facts_.isWhole = true;
    if (recipe_.has(Opt::TrainStepBatchSizeSchedule)) // the stored size is the schedule's last
      recipe_.clear(Opt::TrainGlobalBatchSize);
    if (recipe_.has(Opt::TrainTrainSamples)) // the number of steps follows from them
      recipe_.clear(Opt::TrainTrainIters);
    // Checkpoints of shardc do not contain this switch.
    facts_.groupsQueries |=
        args_.find("group_query_attention") == nullptr && args_.find("num_query_groups") != nullptr;
    applyMegatronFacts(recipe_, facts_);
  }

  /// Imports a Hugging Face model.
  void importHub(llvm::StringRef family) {
    recipe_.set(Opt::ModelFamily, config::parseTableValue(family, config::info(Opt::ModelFamily)),
                {});
    for (const auto &[attribute, value] : args_.entries)
      if (std::optional<Opt> opt = config::findOption("model." + attribute)) {
        if (value->isNone())
          recipe_.set(*opt, Value(), {});
        else
          recipe_.read(*opt, *value, attribute);
      }
    completeLength();
    completeBalance();
    recipe_.dropIdle();
    recipe_.dropDefaults();
  }

private:
  /// Sets a sequence length and asks for it, since a model does not determine it.
  void completeLength() {
    constexpr int64_t kLength = 4096;
    int64_t most = recipe_.getIntOr(Opt::ModelMaxPositionEmbeddings, 0);
    bool isLearned =
        recipe_.is(Opt::ModelPositionEmbeddingType, config::PositionEmbedding::LearnedAbsolute);
    if (!isLearned)
      recipe_.clear(Opt::ModelMaxPositionEmbeddings);
    if (most > 0)
      recipe_.set(Opt::ModelSeqLength, Value::ofInt(std::min(most, kLength)), {});
    recipe_.ask(most > 0 ? fmt::format("the length of sequences; the model has at most {}", most)
                         : std::string("the length of sequences"),
                Opt::ModelSeqLength, {});
  }

  /// Sets the weight of the balance loss to 0 and asks for it, since each training chooses its own.
  void completeBalance() {
    if (!recipe_.has(Opt::ModelNumMoeExperts))
      return;
    recipe_.set(Opt::ModelMoeAuxLossCoeff, Value::ofList({Value::ofFloat(0)}), {});
    recipe_.ask("the weight of a loss that balances experts", Opt::ModelMoeAuxLossCoeff, {});
  }

  bool readSpecial(llvm::StringRef attribute, const Tree &value) {
    if (attribute == "params_dtype" || attribute == "iteration" || attribute == "rank" ||
        attribute == "add_position_embedding" || attribute == "local_rank" ||
        attribute == "consumed_train_samples" || attribute == "skipped_train_samples" ||
        attribute == "consumed_valid_samples")
      return true; // derived from other attributes, or state of the run
    if (attribute != "world_size" || value.kind != Tree::Kind::Int)
      return facts_.note(attribute, value);
    setWorld(value.integer);
    return true;
  }

  void setWorld(int64_t ranks) {
    constexpr int64_t kGpusPerNode = 8;
    bool isSmall = ranks <= kGpusPerNode || ranks % kGpusPerNode != 0;
    recipe_.set(Opt::ClusterNodes, Value::ofInt(isSmall ? 1 : ranks / kGpusPerNode), {});
    recipe_.set(Opt::ClusterGpusPerNode, Value::ofInt(isSmall ? ranks : kGpusPerNode), {});
    if (ranks > kGpusPerNode)
      recipe_.ask(fmt::format("{} ranks on an unknown number of nodes", ranks), Opt::ClusterNodes,
                  {});
  }

  bool readOption(llvm::StringRef attribute, const Tree &value) {
    bool given = true, wasRead = false;
    llvm::StringRef flag = flagOfAttribute(attribute, given);
    for (const FlagEffect &effect : findFlag(flag))
      apply(effect, attribute, value, value.boolean == given);
    if (!flag.empty())
      return true;
    // If no flag belongs to the attribute, it may have the name of an option.
    for (const config::OptionInfo &option : config::options())
      if (option.name == attribute &&
          (!option.flag.empty() || option.section == config::Section::Model)) {
        recipe_.read(option.opt, value, attribute);
        wasRead = true;
      }
    return wasRead;
  }

  /// Reads the value of an option. For a boolean attribute, sets what its flag sets if `isGiven`,
  /// or the opposite.
  void apply(const FlagEffect &effect, llvm::StringRef attribute, const Tree &value, bool isGiven) {
    const config::OptionInfo &option = config::info(effect.opt);
    if (value.kind != Tree::Kind::Bool)
      recipe_.read(effect.opt, value, attribute);
    else if (!effect.fixed.empty() && isGiven)
      recipe_.set(effect.opt, config::parseTableValue(effect.fixed, option), args_.range);
    else if (effect.fixed.empty() && option.type.type == config::ValueType::Bool)
      recipe_.setBool(effect.opt, isGiven != effect.negates, args_.range);
  }

  /// Lists an attribute without counterpart, unless its value is false or empty.
  void noteForeign(llvm::StringRef attribute, const Tree &value) {
    if (value.saysNothing())
      return;
    std::string text = fmt::format("{} = {}", attribute.str(), describe(value));
    if (choosesForeignData(attribute))
      recipe_.setUnknownData(fmt::format("the data of {}", text), args_.range);
    if (++numForeign_ <= kListedMax)
      recipe_.leaveOut(text, args_.range);
  }

  RecipeBuilder &recipe_;
  const Tree &args_;
  MegatronFacts facts_;
  size_t numForeign_ = 0;
};

} // namespace

std::optional<std::string> importStoredArgs(const Tree &args, const ImportOptions &options,
                                            DiagEngine &diags) {
  RecipeBuilder recipe(diags);
  StoredArgs(recipe, args).read();
  recipe.dropIdle();
  recipe.dropDefaults();
  return printRecipe(recipe, options, diags);
}

void readCheckpointArgs(const Tree &args, config::CheckpointSettings &settings) {
  SourceManager sources;
  DiagEngine quiet(sources); // values that cannot be read are ignored
  RecipeBuilder recipe(quiet);
  StoredArgs(recipe, args).read();
  for (const config::OptionInfo &option : config::options())
    if (const UpstreamName *row = findName(NameKind::CheckpointArg, option.path);
        row != nullptr && recipe.isSet(option.opt))
      (row->text == "parallel" ? settings.parallel : settings.model)
          .push_back({option.opt, recipe[option.opt].value, row->text != "unless_given"});
}

std::optional<std::string> importHubArgs(const Tree &args, llvm::StringRef family,
                                         const ImportOptions &options, DiagEngine &diags) {
  RecipeBuilder recipe(diags);
  StoredArgs(recipe, args).importHub(family);
  return printRecipe(recipe, options, diags);
}

} // namespace shardc::upstream
