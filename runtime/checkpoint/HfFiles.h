// The files of a Hugging Face model other than weights: configuration, tokenizer, chat template. An
// import stores them in the checkpoint, a run copies them to the checkpoints that it saves, and an
// export writes them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/CheckpointReader.h"
#include "runtime/checkpoint/CheckpointWriter.h"

namespace shardc::checkpoint {

/// The folder in a checkpoint that contains these files.
inline constexpr const char *kHfFolder = "huggingface";

/// One such file in memory.
struct HfModelFile {
  std::string name; ///< file name, of an additional template with its folder
  std::string contents;
};

/// These files of a folder, sorted by name. Indices of other weight formats and adapters are left
/// out.
Result<std::vector<HfModelFile>> hfFilesIn(const std::string &folder);
/// These files of a checkpoint; empty if no import or run has stored any.
Result<std::vector<HfModelFile>> hfFilesOf(const CheckpointReader &checkpoint);
/// Refuses a folder with an adapter: the library would load the adapter as well, which makes it
/// another model.
Status refuseAdapter(const std::string &folder);
/// Sets `tie_word_embeddings` to false in the `config.json` among the files.
void untie(std::span<HfModelFile> files);
/// Adds the files to a checkpoint that is being saved.
Status addHfFiles(std::span<const HfModelFile> files, const SaveTarget &out);

} // namespace shardc::checkpoint
