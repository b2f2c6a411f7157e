#include "compiler/upstream/ImportedRecipe.h"

#include "compiler/basic/Format.h"
#include "compiler/basic/Utf8.h"
#include "compiler/config/Effect.h"
#include "compiler/config/Evaluate.h"
#include "compiler/parse/Format.h"
#include "compiler/upstream/FlagTable.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/Twine.h"

namespace shardc::upstream {
namespace {

using config::Opt;
using config::Value;

void completeQueryGroups(RecipeBuilder &recipe, const MegatronFacts &facts) {
  Opt groups = Opt::ModelNumQueryGroups;
  if (facts.groupsQueries && !recipe.has(groups) && !recipe.isDoubted(groups))
    recipe.set(groups, Value::ofInt(1), {});
  // If the input is only a part of a launch command, the missing flag may be in the rest.
  if (facts.groupsQueries || !recipe.has(groups) || !facts.isWhole)
    return;
  recipe.leaveOutIdle(fmt::format("--num-query-groups {}", recipe.getInt(groups)),
                      "upstream ignores it without --group-query-attention", recipe.range(groups));
  recipe.clear(groups);
}

/// Handles --no-position-embedding, an old flag. Upstream accepts it only with rotary positions,
/// where it has no effect.
void completePositions(RecipeBuilder &recipe, const MegatronFacts &facts) {
  Opt type = Opt::ModelPositionEmbeddingType;
  if (!facts.noPositions || recipe.isDoubted(type))
    return;
  if (recipe.is(type, config::PositionEmbedding::Rope))
    return recipe.leaveOutIdle("--no-position-embedding",
                               "upstream ignores it beside rotary positions", *facts.noPositions);
  recipe.setEnum(type, config::PositionEmbedding::NoPosition, *facts.noPositions);
  recipe.meant("upstream refuses '--no-position-embedding' without rotary positions; a recipe has "
               "'position_embedding_type = none'",
               *facts.noPositions);
}

void completeVirtualStages(RecipeBuilder &recipe, const MegatronFacts &facts) {
  if (facts.layersPerVirtualStage < 1)
    return;
  int64_t layers = recipe.getIntOr(Opt::ModelNumLayers, 0);
  int64_t stages = recipe.getIntOr(Opt::ModelPipelineModelParallelSize, 1);
  int64_t chunk = facts.layersPerVirtualStage;
  bool isOpen = recipe.isDoubted(Opt::ModelPipelineModelParallelSize);
  if (isOpen || stages < 1 || layers % stages != 0 || (layers / stages) % chunk != 0 || layers == 0)
    recipe.ask(fmt::format("--num-layers-per-virtual-pipeline-stage {}", chunk),
               Opt::ModelVirtualPipelineModelParallelSize, {});
  else
    recipe.set(Opt::ModelVirtualPipelineModelParallelSize, Value::ofInt(layers / stages / chunk),
               {});
}

void completeNullTokenizer(RecipeBuilder &recipe, const MegatronFacts &facts) {
  if (!facts.addsEod || !recipe.has(Opt::ModelVocabSize))
    return;
  const SourceRange range = recipe.range(Opt::ModelVocabSize);
  recipe.set(Opt::ModelVocabSize, Value::ofInt(recipe.getInt(Opt::ModelVocabSize) + 1), range);
  recipe.meant("NullTokenizer has one token more, which ends documents", range);
}

/// Uses the padded vocabulary size if the input does not determine the size otherwise.
void completePaddedVocabulary(RecipeBuilder &recipe, const MegatronFacts &facts) {
  bool isOpen = !recipe.has(Opt::ModelVocabSize) && !recipe.isDoubted(Opt::ModelVocabSize);
  if (!isOpen || facts.paddedVocab.integer < 1)
    return;
  recipe.set(Opt::ModelVocabSize, Value::ofInt(facts.paddedVocab.integer), facts.paddedVocab.range);
  recipe.meant("only the padded size of the vocabulary is known; it is used as the size",
               facts.paddedVocab.range);
}

/// Replaces an old flag that recomputes MoE layers by an entry in the list of modules. Another one
/// recomputes each layer alone.
void completeRecomputation(RecipeBuilder &recipe, const MegatronFacts &facts) {
  if (facts.recomputesLayers && !recipe.isSet(Opt::ModelRecomputeMethod))
    recipe.setEnum(Opt::ModelRecomputeMethod, config::RecomputeMethod::Uniform,
                   *facts.recomputesLayers);
  if (facts.recomputesLayers && !recipe.isSet(Opt::ModelRecomputeNumLayers))
    recipe.set(Opt::ModelRecomputeNumLayers, Value::ofInt(1), *facts.recomputesLayers);
  Opt older = Opt::ModelMoeLayerRecompute, modules = Opt::ModelRecomputeModules;
  if (!recipe.isOn(older) ||
      recipe.is(Opt::ModelRecomputeGranularity, config::RecomputeGranularity::Full))
    return; // upstream refuses this combination, and so does a rule
  recipe.setEnum(Opt::ModelRecomputeGranularity, config::RecomputeGranularity::Selective,
                 recipe.range(older));
  Value::List list;
  if (recipe.has(modules))
    list = recipe.getList(modules);
  else
    list.push_back(Value::ofEnum(config::RecomputeModule::CoreAttn)); // upstream's default
  Value experts = Value::ofEnum(config::RecomputeModule::Moe);
  if (!llvm::is_contained(list, experts))
    list.push_back(experts);
  recipe.set(modules, Value::ofList(std::move(list)), recipe.range(older));
  recipe.clear(older);
}

/// Sets sizes whose default in Megatron-LM differs from that in recipes.
void completeSizes(RecipeBuilder &recipe) {
  int64_t hidden = recipe.getIntOr(Opt::ModelHiddenSize, 0);
  bool isSwiglu = recipe.isOn(Opt::ModelGatedLinearUnit) &&
                  recipe.is(Opt::ModelActivationFunc, config::Activation::Silu);
  if (isSwiglu && !recipe.has(Opt::ModelFfnHiddenSize) && hidden > 0 && hidden < (int64_t{1} << 50))
    recipe.setUpstreamDefault(Opt::ModelFfnHiddenSize, Value::ofInt(swigluWidth(hidden)));
  if (isSwiglu && !recipe.has(Opt::ModelFfnHiddenSize) && recipe.isDoubted(Opt::ModelHiddenSize) &&
      !recipe.isDoubted(Opt::ModelFfnHiddenSize))
    recipe.doubt("--swiglu, whose width follows from --hidden-size", Opt::ModelFfnHiddenSize, {});
}

/// Moves values of the flags that YaRN and multi-latent attention share to YaRN's options.
void completeYarn(RecipeBuilder &recipe, bool isWhole) {
  if (recipe.isOn(Opt::ModelMultiLatentAttention) ||
      !recipe.is(Opt::ModelPositionEmbeddingType, config::PositionEmbedding::Yarn))
    return;
  if (isWhole)
    recipe.setUpstreamDefault(Opt::ModelYarnRotaryScalingFactor, Value::ofFloat(1));
  for (auto [flag, yarn] : kSharedWithYarn)
    if (recipe.isSet(flag)) {
      recipe.set(yarn, Value(recipe[flag].value), recipe.range(flag));
      recipe.clear(flag);
    }
}

void completeFsdp(RecipeBuilder &recipe) {
  if (recipe.isOn(Opt::DistUseMegatronFsdp) && !recipe.has(Opt::CheckpointCkptFormat))
    recipe.meant(
        "Megatron-LM refuses FSDP without '--ckpt-format fsdp_dtensor'; a recipe uses that "
        "format by default",
        recipe.range(Opt::DistUseMegatronFsdp));
}

} // namespace

bool MegatronFacts::note(llvm::StringRef attribute, const Tree &value) {
  bool isNumber = value.kind == Tree::Kind::Int;
  if (attribute == "checkpoint_activations" &&
      (value.isNone() || value.boolean)) // sets an option too
    recomputesLayers = value.range;
  if (attribute == "group_query_attention")
    groupsQueries = value.isNone() || value.boolean;
  else if (attribute == "no_position_embedding")
    noPositions = value.range;
  else if (attribute == "num_layers_per_virtual_pipeline_stage" && isNumber)
    layersPerVirtualStage = value.integer;
  else if (attribute == "padded_vocab_size" && isNumber)
    paddedVocab = value;
  else // each layer has experts, as in recipes by default
    return attribute == "moe_layer_freq" && isNumber && value.integer == 1;
  return true;
}

void applyMegatronFacts(RecipeBuilder &recipe, const MegatronFacts &facts) {
  completeQueryGroups(recipe, facts);
  completePositions(recipe, facts);
  completeVirtualStages(recipe, facts);
  completeNullTokenizer(recipe, facts);
  completePaddedVocabulary(recipe, facts);
  completeRecomputation(recipe, facts);
  completeYarn(recipe, facts.isWhole);
  // The preset sets these options and related ones.
  if (recipe.has(Opt::MixedPrecisionPreset)) {
    recipe.clear(Opt::ModelBf16);
    recipe.clear(Opt::ModelFp16);
  }
  if (!facts.isWhole)
    return;
  recipe.askVocabulary(facts.tokenizer);
  completeSizes(recipe);
  completeFsdp(recipe);
  RecipeBuilder filledIn = recipe; // with the paths that the user will fill in
  for (const config::OptionInfo &option : config::options())
    if (option.type.type == config::ValueType::String && recipe.isDoubted(option.opt))
      filledIn.set(option.opt, Value::ofString(""), {});
  const config::Config whole = filledIn.withDefaults();
  for (const config::OptionInfo &option : config::options())
    if (std::optional<Value> value = cliDefault(filledIn, option.opt);
        value && hasEffect(whole, option))
      recipe.setUpstreamDefault(option.opt, *value);
  if (recipe.isDoubted(Opt::ModelTensorModelParallelSize) ||
      recipe.isDoubted(Opt::ModelMakeVocabSizeDivisibleBy)) // they decide whether it is padded
    recipe.setUpstreamDefault(Opt::ModelMaskPaddedVocab, Value::ofBool(false));
}

bool checkInput(BufferId input, DiagEngine &diags) {
  llvm::StringRef text = diags.sources().text(input);
  SourceRange begin(diags.sources().loc(input, 0));
  if (text.size() > kInputBytesMax) {
    diags.report(diag::ImportTooLarge, begin, text.size(), kInputBytesMax);
    return false;
  }
  if (std::optional<size_t> bad = findInvalidUtf8(text)) {
    diags.report(diag::NotUtf8, SourceRange(diags.sources().loc(input, *bad)), *bad);
    return false;
  }
  return true;
}

std::optional<std::string> printRecipe(RecipeBuilder &recipe, const ImportOptions &options,
                                       DiagEngine &diags) {
  recipe.finishUnknown();
  if (diags.hasErrors())
    return std::nullopt;
  if (recipe.isEmpty()) {
    diags.report(diag::ImportNothing, SourceRange());
    return std::nullopt;
  }
  std::string text = recipe.print(options.name, options.source);
  SourceManager sources;
  DiagEngine quiet(sources);
  std::optional<std::string> formatted = formatRecipe(sources.addBuffer("<imported>", text), quiet);
  // Formatting fails only if the text cannot be a recipe, for example if it is too long.
  if (!formatted)
    diags.report(diag::ImportMalformed, SourceRange(),
                 "the recipe would exceed the limits of a recipe");
  return formatted;
}

std::string recipeNameOf(llvm::StringRef path) {
  llvm::StringRef stem = path.substr(path.rfind('/') + 1);
  stem = stem.substr(0, stem.find('.'));
  std::string name;
  for (char c : stem)
    name += llvm::isAlnum(c) ? c : '_';
  bool isWord = name == "none" || name == "true" || name == "false";
  if (isWord || name.empty() || llvm::isDigit(name.front()) ||
      name.find_first_not_of('_') == name.npos)
    name = "imported_" + name;
  while (name.size() > 1 && name.back() == '_')
    name.pop_back();
  return name;
}

} // namespace shardc::upstream
