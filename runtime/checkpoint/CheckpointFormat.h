// Detects the kind of checkpoint in a folder, and the newest checkpoint in a folder of checkpoints.
// Unreadable kinds are named, with a way to convert them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/Status.h"

namespace shardc::checkpoint {

class CheckpointReader;
struct SavedIteration;

enum class CheckpointFormat : uint8_t { FsdpDtensor, TorchDcp, TorchDist };

/// The name that `checkpoint.ckpt_format` has for it: `fsdp_dtensor`.
std::string_view formatName(CheckpointFormat format);

/// The format of a checkpoint's folder. NotFound if it is not a checkpoint. InvalidInput, with a
/// way to convert it, for formats that are not read: zarr, legacy torch, one metadata file per
/// rank.
Result<CheckpointFormat> detectFormat(const std::string &folder);

/// InvalidInput, with a way to convert it, if the folder's content has a format that is not read.
/// Ok for anything else, including an empty folder.
Status refuseUnread(const std::string &folder);
/// The same for three cases that a search would silently skip: a folder of checkpoints without a
/// tracker file, checkpoints in it after the newest complete one, and a folder that holds parts of
/// a checkpoint or a model of safetensors.
Status refuseUnreadIn(const std::string &root, const std::optional<SavedIteration> &newest);

/// InvalidInput, with both formats and a way to convert, if the folder has another format than the
/// caller needs; also errors of detectFormat.
Status checkFormat(const std::string &folder, CheckpointFormat needed);
/// The command that makes one format of another, `torch-dist-to-fsdp-dtensor`; empty if none does.
std::string_view conversionOf(CheckpointFormat from, CheckpointFormat to);

/// Whether a folder is a checkpoint, not one of checkpoints: it holds metadata, or is called
/// `iter_<digits>` or `release`, also if it is not there.
bool isCheckpoint(const std::string &folder);
/// InvalidInput if checkpoints cannot be saved in a folder because it is a file, or one of them, or
/// lies inside of one: a checkpoint that holds others would be taken for the newest of them.
Status checkSaveRoot(const std::string &root);
/// InvalidInput if a path lies inside of a checkpoint, wherever links on the way lead. The path
/// itself may be one, and need not be there.
Status checkOutside(const std::string &path);
/// The checkpoint that a path means: the folder itself, or the newest one in a folder of
/// checkpoints. Paths that are neither come back as they are; opening them says why.
Result<std::string> findCheckpoint(const std::string &path);

/// InvalidInput if the optimizer's state is kept by the numbers of parameters, not by their names:
/// so does torch's own optimizer, which MFSDP v2 and `fully_shard` save. Nothing in the file says
/// which parameter a number is.
Status checkOptimizerNames(const CheckpointReader &reader);

} // namespace shardc::checkpoint
