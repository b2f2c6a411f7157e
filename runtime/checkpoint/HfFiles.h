// The files that describe a Hugging Face model beside its weights: configuration, tokenizer, chat
// template. An import keeps them in the checkpoint, a run carries them into the checkpoints that it
// saves, and an export writes them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/CheckpointReader.h"
#include "runtime/checkpoint/CheckpointWriter.h"

namespace shardc::checkpoint {

/// The folder in a checkpoint for them.
inline constexpr const char *kHfFolder = "huggingface";

struct HfModelFile {
  std::string name; ///< without a folder
  std::string contents;
};

/// Those in a folder, in the order of their names: not the tables of other weights, and no adapter.
Result<std::vector<HfModelFile>> hfFilesIn(const std::string &folder);
/// Those that a checkpoint keeps; none if no import or run has put them there.
Result<std::vector<HfModelFile>> hfFilesOf(const CheckpointReader &checkpoint);
/// Keeps them in a checkpoint that is being saved.
Status addHfFiles(std::span<const HfModelFile> files, const SaveTarget &out);

} // namespace shardc::checkpoint
