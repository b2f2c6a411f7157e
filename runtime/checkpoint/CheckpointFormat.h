// Detects the format of a checkpoint, and the newest checkpoint in a folder of checkpoints. Errors
// for formats that cannot be read name the format and a way to convert it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/Status.h"

namespace shardc::checkpoint {

class CheckpointReader;
struct SavedIteration;

/// The formats that can be read: Megatron FSDP's `fsdp_dtensor`, torch's own DCP, and
/// Megatron-Core's `torch_dist`.
enum class CheckpointFormat : uint8_t { FsdpDtensor, TorchDcp, TorchDist };

/// The name of the format in `checkpoint.ckpt_format`, such as `fsdp_dtensor`.
std::string_view formatName(CheckpointFormat format);

/// The format of a checkpoint folder. NotFound if the folder is not a checkpoint. InvalidInput,
/// with a way to convert it, for formats that cannot be read: zarr, legacy torch, one metadata file
/// per rank.
Result<CheckpointFormat> detectFormat(const std::string &folder);

/// InvalidInput, with a way to convert it, if the folder has a checkpoint in a format that cannot
/// be read. Ok for anything else, including an empty folder.
Status refuseUnread(const std::string &folder);
/// Also refuses three cases that a search would silently skip: a folder of checkpoints without a
/// tracker file, checkpoints after the newest complete one, and a folder with parts of a checkpoint
/// or with a model in safetensors.
Status refuseUnreadIn(const std::string &root, const std::optional<SavedIteration> &newest);

/// InvalidInput, with both formats and a way to convert, if the folder has another format than
/// `needed`. Errors of detectFormat are returned as well.
Status checkFormat(const std::string &folder, CheckpointFormat needed);
/// The command that converts one format to another, such as `torch-dist-to-fsdp-dtensor`; empty if
/// there is none.
std::string_view conversionOf(CheckpointFormat from, CheckpointFormat to);

/// Whether a folder is a single checkpoint, not a folder of checkpoints: it contains metadata, or
/// its name is `iter_<digits>` or `release`, even if it does not exist.
bool isCheckpoint(const std::string &folder);
/// InvalidInput if checkpoints cannot be saved in a folder because it is a file, is a checkpoint,
/// or lies inside one. A checkpoint that contains others would be mistaken for the newest of them.
Status checkSaveRoot(const std::string &root);
/// InvalidInput if a path lies inside a checkpoint after resolving all links on the way. The path
/// itself may be a checkpoint, and need not exist.
Status checkOutside(const std::string &path);
/// The checkpoint to which a path refers: the folder itself, or the newest checkpoint in a folder
/// of checkpoints. Other paths are returned unchanged; opening them reports why they are wrong.
Result<std::string> findCheckpoint(const std::string &path);

/// InvalidInput if the optimizer state is stored by numbers of parameters instead of names. torch's
/// own optimizer does that under MFSDP v2 and `fully_shard`. No file says which parameter has which
/// number.
Status checkOptimizerNames(const CheckpointReader &reader);

} // namespace shardc::checkpoint
