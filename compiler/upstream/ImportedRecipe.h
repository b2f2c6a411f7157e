// The last steps of all importers: findings about the whole input, and the recipe's
// text.
#pragma once

#include "compiler/upstream/Import.h"
#include "compiler/upstream/RecipeBuilder.h"

namespace shardc::upstream {

/// Facts that follow from several of Megatron-LM's arguments together.
struct MegatronFacts {
  bool isWhole = false; ///< a launch line rather than some flags
  bool groupsQueries = false;
  SourceRange queryGroups;                ///< of --num-query-groups
  std::optional<SourceRange> noPositions; ///< of --no-position-embedding
  std::optional<int64_t> layersPerVirtualStage;
  std::optional<int64_t> moeLayerEvery; ///< --moe-layer-freq N
  std::optional<int64_t> paddedVocab;   ///< --padded-vocab-size
  SourceRange paddedVocabRange;
  std::string tokenizer; ///< what vocabulary is hidden behind; empty if none was named
  SourceRange tokenizerRange;
};

/// Applies the facts: sizes that follow from each other, vocabularies that are not known, and where
/// the input is a whole launch line, the defaults of Megatron-LM's command line.
void applyMegatronFacts(RecipeBuilder &recipe, const MegatronFacts &facts);

/// Whether the text can be read at all: size and encoding; reports otherwise.
bool checkInput(BufferId input, DiagEngine &diags);

/// The formatted recipe; nothing if there were errors or nothing was understood.
std::optional<std::string> printRecipe(RecipeBuilder &recipe, const ImportOptions &options,
                                       DiagEngine &diags);

} // namespace shardc::upstream
