// The final steps of all importers: findings about the whole input, and the text of the recipe.
#pragma once

#include "compiler/upstream/Import.h"
#include "compiler/upstream/RecipeBuilder.h"

namespace shardc::upstream {

/// Arguments of Megatron-LM that can only be interpreted together with others.
struct MegatronFacts {
  /// Notes an argument by the attribute that holds it; returns false for arguments of other kinds.
  bool note(llvm::StringRef attribute, const Tree &value);

  bool isWhole = false; ///< the input is a complete launch command, not only some flags
  bool groupsQueries = false;
  std::optional<SourceRange> noPositions;      ///< location of --no-position-embedding
  std::optional<SourceRange> recomputesLayers; ///< location of --checkpoint-activations
  int64_t layersPerVirtualStage = 0;           ///< 0 if not given
  Tree paddedVocab;                            ///< value of --padded-vocab-size; none if not given
  bool addsEod = false; ///< NullTokenizer has a token more than the flag says
  Tree tokenizer; ///< determines the vocabulary size; none if not given
};

/// Sets the options that follow from the facts, and asks for an unknown vocabulary size. For a
/// complete launch command, also sets the defaults of Megatron-LM's command line.
void applyMegatronFacts(RecipeBuilder &recipe, const MegatronFacts &facts);

/// Checks the size and the encoding of the input; reports an error and returns false if they are
/// invalid.
bool checkInput(BufferId input, DiagEngine &diags);

/// The formatted recipe; empty if there were errors or if the input contains no settings.
std::optional<std::string> printRecipe(RecipeBuilder &recipe, const ImportOptions &options,
                                       DiagEngine &diags);

} // namespace shardc::upstream
