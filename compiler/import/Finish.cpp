#include "compiler/import/Finish.h"

#include "compiler/basic/Format.h"
#include "compiler/basic/Utf8.h"
#include "compiler/config/Evaluate.h"
#include "compiler/import/FlagTable.h"
#include "compiler/parse/Format.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/Twine.h"

namespace shardc::importer {
namespace {

using config::Opt;
using config::Value;

/// A pattern of layers is not written out for models with more layers than this.
constexpr int64_t kLayersMax = 100'000;

void finishQueryGroups(Draft &draft, const MegatronFacts &facts) {
  Opt groups = Opt::ModelNumQueryGroups;
  if (facts.groupsQueries && !draft.has(groups))
    draft.set(groups, Value::ofInt(1), {});
  if (facts.groupsQueries || !draft.has(groups))
    return;
  // Part of a launch line may rely on the rest of it.
  if (!facts.isWhole)
    return;
  draft.leaveOutIdle(fmt::format("--num-query-groups {}", *draft.integer(groups)),
                     "upstream ignores it without --group-query-attention", facts.queryGroups);
  draft.clear(groups);
}

void finishVirtualStages(Draft &draft, const MegatronFacts &facts) {
  if (!facts.layersPerVirtualStage || *facts.layersPerVirtualStage < 1)
    return;
  int64_t layers = draft.integer(Opt::ModelNumLayers).value_or(0);
  int64_t stages = draft.integer(Opt::ModelPipelineModelParallelSize).value_or(1);
  int64_t chunk = *facts.layersPerVirtualStage;
  if (stages < 1 || layers % stages != 0 || (layers / stages) % chunk != 0 || layers == 0)
    draft.ask(fmt::format("--num-layers-per-virtual-pipeline-stage {}", chunk),
              Opt::ModelVirtualPipelineModelParallelSize, {});
  else
    draft.set(Opt::ModelVirtualPipelineModelParallelSize, Value::ofInt(layers / stages / chunk),
              {});
}

/// Every n-th layer is one of experts, the first of each n.
void finishExpertLayers(Draft &draft, const MegatronFacts &facts) {
  if (!facts.moeLayerEvery || *facts.moeLayerEvery <= 1)
    return;
  int64_t layers = draft.integer(Opt::ModelNumLayers).value_or(0);
  if (layers < 1 || layers > kLayersMax)
    return draft.ask(fmt::format("--moe-layer-freq {}", *facts.moeLayerEvery),
                     Opt::ModelMoeLayerFreq, {});
  Value::List list;
  for (int64_t i = 0; i < layers; ++i)
    list.push_back(Value::ofInt(i % *facts.moeLayerEvery == 0 ? 1 : 0));
  draft.set(Opt::ModelMoeLayerFreq, Value::ofList(std::move(list)), {});
}

void finishVocabulary(Draft &draft, const MegatronFacts &facts) {
  if (!draft.has(Opt::ModelVocabSize) && !facts.tokenizer.empty())
    draft.ask(fmt::format("the vocabulary of {}", facts.tokenizer), Opt::ModelVocabSize,
              facts.tokenizerRange);
}

/// Data given by path is always Megatron's indexed kind, whatever its name.
void finishData(Draft &draft) {
  for (Opt paths : {Opt::DatasetDataPath, Opt::DatasetTrainDataPath, Opt::DatasetBlend})
    if (draft.has(paths) && !draft.has(Opt::DatasetKind))
      draft.setEnum(Opt::DatasetKind, config::DatasetKind::Indexed, draft.range(paths));
}

/// Sizes that Megatron-LM derives otherwise than a recipe does.
void finishSizes(Draft &draft) {
  std::optional<int64_t> hidden = draft.integer(Opt::ModelHiddenSize);
  bool isSwiglu = draft.isOn(Opt::ModelGatedLinearUnit) &&
                  draft.is(Opt::ModelActivationFunc, config::Activation::Silu);
  if (isSwiglu && !draft.has(Opt::ModelFfnHiddenSize) && hidden && *hidden > 0 &&
      *hidden < (int64_t{1} << 50))
    draft.setUpstreamDefault(Opt::ModelFfnHiddenSize, Value::ofInt(swigluWidth(*hidden)));
}

void finishFsdp(Draft &draft) {
  if (draft.isOn(Opt::DistUseMegatronFsdp) && !draft.has(Opt::CheckpointCkptFormat))
    draft.meant("Megatron-LM refuses FSDP without '--ckpt-format fsdp_dtensor'; a recipe uses that "
                "format by default",
                draft.range(Opt::DistUseMegatronFsdp));
}

} // namespace

void finishMegatron(Draft &draft, const MegatronFacts &facts) {
  finishQueryGroups(draft, facts);
  finishVirtualStages(draft, facts);
  finishExpertLayers(draft, facts);
  finishData(draft);
  // The preset says it, with what belongs to it.
  if (draft.has(Opt::MixedPrecisionPreset)) {
    draft.clear(Opt::ModelBf16);
    draft.clear(Opt::ModelFp16);
  }
  if (!facts.isWhole)
    return;
  finishVocabulary(draft, facts);
  finishSizes(draft);
  finishFsdp(draft);
  auto get = [&](Opt opt) { return draft.get(opt); };
  for (const CliDefault &row : cliDefaults())
    if (row.matters(get))
      draft.setUpstreamDefault(row.opt, config::parseTableValue(row.value, config::info(row.opt)));
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

std::optional<std::string> finishRecipe(const Draft &draft, const ImportOptions &options,
                                        DiagEngine &diags) {
  if (diags.hasErrors())
    return std::nullopt;
  if (draft.isEmpty()) {
    diags.report(diag::ImportNothing, SourceRange());
    return std::nullopt;
  }
  std::string text = draft.print(options.name, options.source);
  SourceManager sources;
  DiagEngine quiet(sources);
  std::optional<std::string> formatted = formatRecipe(sources.addBuffer("<imported>", text), quiet);
  // Only a text that cannot be a recipe, such as one that is too long, is not formatted.
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
  if (name.empty() || llvm::isDigit(name.front()) || name.find_first_not_of('_') == name.npos)
    name = "imported_" + name;
  while (name.size() > 1 && name.back() == '_')
    name.pop_back();
  return name;
}

} // namespace shardc::importer
