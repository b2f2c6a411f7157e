// Converts settings of Megatron-Bridge's configuration, given by dotted path, to options of a
// recipe.
#pragma once

#include "compiler/upstream/RecipeBuilder.h"
#include "llvm/ADT/StringMap.h"

namespace shardc::upstream {

class BridgeSettings {
public:
  /// `isComplete`: the input contains all fields, including those that have no effect.
  BridgeSettings(RecipeBuilder &recipe, bool isComplete)
      : recipe_(recipe), isComplete_(isComplete) {}

  /// Applies one setting. A map is split into its fields. A call of `kUnknownCall` marks the
  /// setting, or all settings of a section, as unknown.
  void set(llvm::StringRef path, const Tree &value);
  /// Whether the path begins with a section of Bridge's configuration.
  static bool isPath(llvm::StringRef path);

  /// Does what a run of Megatron-Bridge does first: copies the fields of mixed_precision over those
  /// of the same name in other sections.
  void copyPrecision();
  /// Applies what follows from several settings together; call it last.
  void finish();

private:
  void forget(llvm::StringRef path, llvm::StringRef what, SourceRange range);
  void setMap(llvm::StringRef path, const Tree &map);
  void setLeaf(llvm::StringRef path, const Tree &value);
  bool setSpecial(llvm::StringRef path, const Tree &value);
  void setPreset(const Tree &value);
  void setFamily(const Tree &provider);
  void setUnknownRest(llvm::StringRef section, const Tree &what);
  bool refuseForeign(llvm::StringRef name, SourceRange range);
  void noteForeign(llvm::StringRef path, const Tree &value);
  void setFrozen();
  void switchOverlap();

  // Fine-tuning (BridgeTuning.cpp).
  void setDataClass(const Tree &map);
  bool setAdapters(const Tree &map); ///< returns false if recipes have no such adapters
  void setAllLinear(SourceRange range);
  bool setAdapterField(llvm::StringRef path, const Tree &value);
  /// Reads a setting for tokenizing or packing rows. Returns false for other settings.
  bool setRows(llvm::StringRef path, const Tree &value);
  std::string sftCommand(bool isValidation);
  bool evaluates() const;
  void askForPacks();
  void finishTuning();

  RecipeBuilder &recipe_;
  bool isComplete_;
  Tree tokenizer_; ///< name of the tokenizer; none if not given
  std::optional<int64_t> tokenizerVocab_;
  bool addsEod_ = false; ///< the tokenizer has a token more than its size
  bool freezesModel_ = false;
  std::optional<bool> freezesMtp_; ///< empty if the model's class has no switch for it
  SourceRange freezeRange_;
  llvm::StringMap<std::string> rows_;         ///< fields of the data for fine-tuning
  std::optional<SourceRange> rowsRange_;      ///< where the input sets them; empty if it does not
  std::optional<SourceRange> sharedAdapters_; ///< where the input requests share_expert_adapters
  std::optional<SourceRange> precisionClass_; ///< where the input has a MixedPrecisionConfig
  std::optional<SourceRange> allLinear_;      ///< where it adapts all linear layers
  std::optional<SourceRange> adapters_;       ///< where the input sets fields of adapters
  size_t numSettings_ = 0;
};

/// Whether `word` is a Hydra override: `a.b=value`, with an optional prefix `+` or `++`, or `~a.b`.
bool isOverride(llvm::StringRef word);
/// Applies an override; returns false if `word` is none.
bool readOverride(llvm::StringRef word, SourceRange range, BridgeSettings &settings);

} // namespace shardc::upstream
