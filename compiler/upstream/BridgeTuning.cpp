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
    "hf_validation_proportion tokenizer_model_name dataset_root chat "
    "use_hf_tokenizer_chat_template strip_whitespace packed_train_data_path add_sep hf_dataset";

bool isOneOf(llvm::StringRef words, llvm::StringRef word) {
  return llvm::is_contained(llvm::split(words, ' '), word);
}

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
                    .Case("LoRA", PeftScheme::Lora)
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
  bool hasTargets = targets != nullptr && !targets->saysNothing();
  llvm::StringRef text;
  if (!hasTargets && excluded != nullptr && !excluded->saysNothing())
    text = "[all-linear]";
  else if (targets == nullptr && *scheme == PeftScheme::CanonicalLora)
    text = "[linear_q, linear_k, linear_v, linear_proj, linear_fc1_up, linear_fc1_gate, "
           "linear_fc2]";
  if (!text.empty())
    recipe_.set(Opt::PeftTargets, config::parseTableValue(text, config::info(Opt::PeftTargets)),
                map.range);
  return true;
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
  return value.saysNothing() && findBridgePath(("peft." + path).str()).empty();
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

/// Describes how to create the packs: a `shardc data` command that packs like Megatron-Bridge.
std::string BridgeSettings::sftCommand() {
  if (std::string packs = rows_.lookup("packed_train_data_path"); !packs.empty())
    return fmt::format("packs that 'shardc data pack {}' makes", packs);
  std::string root = rows_.lookup("dataset_root"), named = rows_.lookup("dataset_name");
  std::string input = !root.empty() ? root + "/training.jsonl" : named + ".jsonl";
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
  return fmt::format("packs that '{}' makes", command);
}

void BridgeSettings::finishTuning() {
  if (rowsRange_) {
    recipe_.setEnum(Opt::DatasetKind, config::DatasetKind::Packed, *rowsRange_);
    if (!recipe_.has(Opt::DatasetDataPath))
      recipe_.ask(sftCommand(), Opt::DatasetDataPath, *rowsRange_);
    if (!recipe_.isSet(Opt::DatasetSplit))
      recipe_.set(Opt::DatasetSplit, Value::ofString("1,0,0"), *rowsRange_);
    // Without this, shardc would compute the loss per token for packed data.
    recipe_.setUpstreamDefault(Opt::ModelCalculatePerTokenLoss, Value::ofBool(false));
  }
  if (sharedAdapters_ && recipe_.has(Opt::ModelNumMoeExperts) && recipe_.has(Opt::PeftScheme))
    recipe_.leaveOut("peft.share_expert_adapters = true (each expert has an adapter of its own)",
                     *sharedAdapters_);
}

} // namespace shardc::upstream
