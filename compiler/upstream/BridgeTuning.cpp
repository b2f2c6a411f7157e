// Reads fine-tuning settings of Megatron-Bridge: adapters, and the rows to be packed.
#include "compiler/basic/Format.h"
#include "compiler/config/Evaluate.h"
#include "compiler/upstream/Bridge.h"
#include "compiler/upstream/FlagTable.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSwitch.h"

namespace shardc::upstream {
namespace {

using config::Opt;
using config::Value;

/// Fields of the classes of fine-tuning data that select the rows or control packing.
constexpr llvm::StringLiteral kRowFields =
    "dataset_root hf_dataset hf_validation_dataset hf_test_dataset hf_output_root hf_rewrite "
    "hf_validation_proportion memmap_workers do_validation do_test max_train_samples "
    "preprocessing dataset_kwargs packed_sequence_specs offline_packing_specs "
    "enable_offline_packing";

/// Maps a field, by the last part of its path, to an option of `shardc data sft`; `{}` is replaced
/// by the field's value.
struct RowOption {
  llvm::StringRef field;
  llvm::StringRef value; ///< if not empty, only this value adds the option
  llvm::StringRef option;
};
constexpr RowOption kRowOptions[] = {
    {"prompt_column", "", "--prompt-key={}"},
    {"completion_column", "", "--completion-key={}"},
    {"label_key", "", "--completion-key={}"},
    {"prompt_template", "", "--prompt-template='{}'"},
    {"separator", "", "--separator='{}'"},
    {"truncation_method", "left", "--cut=left"},
    {"loss_mode", "full", "--mask=full"},
    {"loss_mode", "last_turn", "--mask=last_turn"},
    {"chat_loss_mode", "full", "--mask=full"},
    {"chat_loss_mode", "last_turn", "--mask=last_turn"},
    {"answer_only_loss", "false", "--mask=full"},
    {"add_bos", "true", "--add-bos"},
    {"add_eos", "false", "--no-add-eos"},
    {"enable_offline_packing", "true", "--pack=first_fit"},
    {"enable_offline_packing", "false", "--pack=none"},
};

/// Fields that do not change the tokens of a pack: derived sizes, paths, and numbers of processes.
constexpr llvm::StringLiteral kIdleRowFields =
    "pad_to_max_length pad_seq_length_to_mult pad_seq_to_mult pad_cu_seqlens "
    "packed_sequence_size num_tokenizer_workers memmap_workers index_mapping_dir hf_output_root "
    "hf_rewrite get_attention_mask_from_fusion dataset_name do_validation do_test "
    "hf_validation_proportion packed_val_data_path tokenizer_model_name dataset_root chat "
    "use_hf_tokenizer_chat_template strip_whitespace packed_train_data_path add_sep hf_dataset";

} // namespace

void BridgeSettings::setDataClass(const Tree &map) {
  llvm::StringRef name = map.callName();
  if (name == "GPTSFTDatasetConfig" || name == "FinetuningDatasetConfig") { // up to version 0.4
    rows_.clear();
    rowsRange_ = map.range;
  } else if (name.contains("Mock")) {
    recipe_.setEnum(Opt::DatasetKind, config::DatasetKind::Synthetic, map.range);
  } else if (!name.empty() && name != "GPTDatasetConfig") {
    recipe_.setUnknownData(fmt::format("the data of {}", name.str()), map.range);
  }
}

bool BridgeSettings::setAdapters(const Tree &map) {
  llvm::StringRef name = map.callName();
  using config::PeftScheme;
  auto scheme = llvm::StringSwitch<std::optional<PeftScheme>>(name)
                    .Cases("LoRA", "VLMLoRA", PeftScheme::Lora)
                    .Case("CanonicalLoRA", PeftScheme::CanonicalLora)
                    .Case("DoRA", PeftScheme::Dora)
                    .Default(std::nullopt);
  if (name.empty())
    return true;
  if (!scheme) {
    recipe_.diags().report(diag::ImportValue, map.range, "peft",
                           "LoRA, DoRA or CanonicalLoRA in a recipe", name);
    return false;
  }
  recipe_.setEnum(Opt::PeftScheme, *scheme, map.range);
  sharedAdapters_ = map.range;
  if (*scheme == PeftScheme::Dora && map.find("alpha") == nullptr)
    recipe_.set(Opt::PeftAlpha, Value::ofFloat(64), map.range);
  const Tree *targets = map.find("target_modules"), *excluded = map.find("exclude_modules");
  if (targets == nullptr && excluded != nullptr && !excluded->saysNothing())
    setAllLinear(map.range);
  else if (targets == nullptr && *scheme == PeftScheme::CanonicalLora)
    recipe_.set(
        Opt::PeftTargets,
        config::parseTableValue("[linear_q, linear_k, linear_v, linear_proj, linear_fc1_up, "
                                "linear_fc1_gate, linear_fc2]",
                                config::info(Opt::PeftTargets)),
        map.range);
  return true;
}

/// Without targets, Megatron-Bridge adapts all linear layers that are not excluded.
void BridgeSettings::setAllLinear(SourceRange range) {
  recipe_.set(Opt::PeftTargets, Value::ofList({Value::ofString("all-linear")}), range);
  allLinear_ = range;
}

/// Handles adapter fields that have no option. Returns false for all other fields.
bool BridgeSettings::setAdapterField(llvm::StringRef path, const Tree &value) {
  if (path == "peft" && (value.isNone() || value.isWord())) {
    if (value.isNone() || value.text == "none")
      recipe_.clear(Opt::PeftScheme);
    else
      recipe_.read(Opt::PeftScheme, value, path);
    return true;
  }
  if (!path.consume_front("peft."))
    return false;
  if (path == "share_expert_adapters") {
    sharedAdapters_ = value.saysNothing() ? std::nullopt : std::optional(value.range);
    return true;
  }
  // The only values that recipes support, and two fields that only change communication.
  if ((path == "dropout_position" && value.isWord() && value.text == "pre") ||
      (path == "lora_B_init_method" && value.isWord() && value.text == "zero") ||
      path == "a2a_experimental" || path == "sequence_parallel_input_regather")
    return true;
  if (path.startswith("freeze_vision_")) { // a recipe has no such part
    if (value.saysNothing())
      recipe_.leaveOut(fmt::format("peft.{} = {}", path.str(), describe(value)), value.range);
    return true;
  }
  adapters_ = value.range;
  if (path == "target_modules" && value.saysNothing()) {
    setAllLinear(value.range);
    return true;
  }
  std::string whole = ("peft." + path).str();
  return value.saysNothing() && findBridgePath(whole).empty() &&
         findName(NameKind::FixedField, whole) == nullptr;
}

bool BridgeSettings::setRows(llvm::StringRef path, const Tree &value) {
  if (!path.consume_front("dataset."))
    return false;
  if (path == "seed" && rowsRange_) {
    recipe_.read(Opt::DatasetRandomSeed, value, "dataset.seed");
    return true;
  }
  if (!isOneOf(kRowFields, path.split('.').first))
    return false;
  rowsRange_ = value.range;
  if (value.kind == Tree::Kind::Map) {
    if (value.call == kUnknownCall)
      recipe_.leaveOut(fmt::format("dataset.{} = {}", path.str(), describe(value)), value.range);
    for (const auto &[field, inner] : value.entries)
      setRows(("dataset." + path + "." + field).str(), *inner);
    return true;
  }
  llvm::StringRef field = lastPart(path);
  std::string text = describe(value);
  bool isOption =
      llvm::any_of(kRowOptions, [&](const RowOption &row) { return row.field == field; });
  if (isOption || isOneOf(kIdleRowFields, field))
    rows_[field] = value.isNone() ? "" : text;
  else if (!value.saysNothing())
    recipe_.leaveOut(fmt::format("dataset.{} = {}", path.str(), text), value.range);
  return true;
}

/// Describes how to create the packs for training or validation: a `shardc data` command that packs
/// like Megatron-Bridge.
std::string BridgeSettings::sftCommand(bool isValidation) {
  std::string packs =
      rows_.lookup(isValidation ? "packed_val_data_path" : "packed_train_data_path");
  if (!packs.empty())
    return fmt::format("packs that 'shardc data pack {}' makes", packs);
  std::string root = rows_.lookup("dataset_root"), named = rows_.lookup("dataset_name");
  std::string input = !root.empty() ? root + (isValidation ? "/validation" : "/training")
                                    : named + (isValidation ? "-validation" : "");
  input += ".jsonl";
  std::string length = rows_.lookup("packed_sequence_size");
  if (length.empty() && recipe_.isSet(Opt::DatasetSeqLength))
    length = toRecipeText(recipe_, Opt::DatasetSeqLength);
  std::string command = "shardc data sft " + input + " --tokenizer=" +
                        (tokenizer_.text.empty() ? "TOKENIZER" : tokenizer_.text) +
                        (length.empty() ? "" : " --length=" + length);
  for (const RowOption &row : kRowOptions) {
    std::string value = rows_.lookup(row.field);
    if (row.value.empty() ? !value.empty() : value == row.value)
      command += " " + fmt::format(fmt::runtime(row.option.str()), value);
  }
  std::string share = isValidation ? rows_.lookup("hf_validation_proportion") : "";
  return fmt::format("packs that '{}' makes{}", command,
                     share.empty() ? "" : ", of a share of " + share + " of the rows");
}

bool BridgeSettings::evaluates() const {
  return recipe_.has(Opt::ValidationEvalInterval) &&
         recipe_.getIntOr(Opt::ValidationEvalIters, 1) != 0 &&
         rows_.lookup("do_validation") != "false";
}

/// Asks for the packs, for training alone or also for validation.
void BridgeSettings::askForPacks() {
  constexpr Opt kTrain = Opt::DatasetTrainDataPath, kValid = Opt::DatasetValidDataPath;
  if (evaluates() && !recipe_.has(Opt::DatasetDataPath)) {
    if (!recipe_.has(kTrain))
      recipe_.ask(sftCommand(false), kTrain, *rowsRange_);
    if (!recipe_.has(kValid))
      recipe_.ask(sftCommand(true), kValid, *rowsRange_);
    return recipe_.clear(Opt::DatasetSplit);
  }
  if (!recipe_.has(Opt::DatasetDataPath) && !recipe_.has(kTrain))
    recipe_.ask(sftCommand(false), Opt::DatasetDataPath, *rowsRange_);
  if (!evaluates() && recipe_.has(Opt::ValidationEvalInterval)) {
    recipe_.meant("Megatron-Bridge does not evaluate without validation data or iterations",
                  recipe_.range(Opt::ValidationEvalInterval));
    recipe_.set(Opt::ValidationEvalInterval, Value(), recipe_.range(Opt::ValidationEvalInterval));
  }
  if (!recipe_.isSet(Opt::DatasetSplit) && !recipe_.has(kTrain))
    recipe_.set(Opt::DatasetSplit, Value::ofString("1,0,0"), *rowsRange_);
}

void BridgeSettings::finishTuning() {
  if (rowsRange_) {
    recipe_.setEnum(Opt::DatasetKind, config::DatasetKind::Packed, *rowsRange_);
    askForPacks();
    // Without this, shardc would compute the loss per token for packed data.
    recipe_.setUpstreamDefault(Opt::ModelCalculatePerTokenLoss, Value::ofBool(false));
  }
  std::string excluded = toRecipeText(recipe_, Opt::PeftExclude);
  if (allLinear_ && excluded.find("output_layer") == std::string::npos)
    recipe_.leaveOut("an adapter of the output layer, which Megatron-Bridge adds without targets",
                     *allLinear_);
  constexpr Opt kBase = Opt::CheckpointPretrainedCheckpoint;
  if ((rowsRange_ || recipe_.has(Opt::PeftScheme)) && !recipe_.has(kBase))
    recipe_.ask("the weights that the training begins with", kBase,
                rowsRange_ ? *rowsRange_ : recipe_.range(Opt::PeftScheme));
  if (adapters_ && !recipe_.isSet(Opt::PeftScheme))
    recipe_.ask("the kind of adapters ('peft' has no '_target_')", Opt::PeftScheme, *adapters_);
  if (sharedAdapters_ && recipe_.has(Opt::ModelNumMoeExperts) && recipe_.has(Opt::PeftScheme))
    recipe_.leaveOut("peft.share_expert_adapters = true (each expert has an adapter of its own)",
                     *sharedAdapters_);
}

} // namespace shardc::upstream
