// Converts settings of Megatron-Bridge's configuration, by dotted path, for the recipe.
#pragma once

#include "compiler/upstream/RecipeBuilder.h"

namespace shardc::upstream {

/// A call that stands for a value which cannot be known; its argument says why.
inline constexpr llvm::StringLiteral kUnknownCall = "shardc.unknown";
/// A field of a section, whose value says what its other fields depend on.
inline constexpr llvm::StringLiteral kUnknownRest = "_unknown_";

class BridgeSettings {
public:
  /// `isComplete` if the input names every field, whether it matters or not.
  BridgeSettings(RecipeBuilder &recipe, bool isComplete)
      : recipe_(recipe), isComplete_(isComplete) {}

  /// One setting; maps are taken apart.
  void set(llvm::StringRef path, const Tree &value);
  /// A setting, or all of a section, depends on what the input does not show.
  void forget(llvm::StringRef path, llvm::StringRef what, SourceRange range);
  /// The same for all settings so far.
  void forgetAll(llvm::StringRef what, SourceRange range);
  /// Whether the dotted path begins with a section of Bridge's configuration.
  static bool isPath(llvm::StringRef path);
  /// Sections of Bridge's configuration that recipes do not have.
  static llvm::ArrayRef<llvm::StringLiteral> foreignSections();

  /// Conclusions from all settings together.
  void finish();

private:
  void setMap(llvm::StringRef path, const Tree &map, unsigned depth);
  void setLeaf(llvm::StringRef path, const Tree &value);
  bool setSpecial(llvm::StringRef path, const Tree &value);
  void setPreset(const Tree &value);
  void setFamily(const Tree &provider);
  /// Values that leave a field as if it were not there.
  static bool saysNothing(const Tree &value);
  void setUnknownRest(llvm::StringRef section, const Tree &what);
  void setVariables(const Tree &map);
  void noteForeign(llvm::StringRef path, const Tree &value);
  void setFrozen();

  // Fine-tuning (BridgeTuning.cpp).
  void setDataClass(const Tree &map);
  bool setAdapters(const Tree &map); ///< false if no recipe has such adapters
  bool setAdapterField(llvm::StringRef path, const Tree &value);
  /// Reads a setting of how rows become tokens and packs; false if the path is another setting.
  bool setRows(llvm::StringRef path, const Tree &value);
  std::string sftCommand();
  void finishTuning();

  RecipeBuilder &recipe_;
  bool isComplete_;
  std::string tokenizer_;
  SourceRange tokenizerRange_;
  std::optional<int64_t> tokenizerVocab_;
  bool freezesModel_ = false;
  std::optional<bool> freezesMtp_; ///< none: the model's class does not tell it apart
  SourceRange freezeRange_;
  std::string rowsOf_;                      ///< the class of the data for fine-tuning
  std::map<std::string, std::string> rows_; ///< its fields that become options of 'data sft'
  std::optional<SourceRange> rowsRange_;
  std::optional<SourceRange> sharedAdapters_; ///< of share_expert_adapters
  size_t numSettings_ = 0;
};

/// One override, `a.b=value`, with the marks that Hydra puts before it; false if it is none.
bool readOverride(llvm::StringRef word, SourceRange range, BridgeSettings &settings);

} // namespace shardc::upstream
