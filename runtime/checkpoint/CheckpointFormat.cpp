#include "runtime/checkpoint/CheckpointFormat.h"

#include <algorithm>
#include <filesystem>

#include "runtime/base/Json.h"
#include "runtime/base/Reports.h"
#include "runtime/base/UntrustedFolder.h"
#include "runtime/checkpoint/CheckpointReader.h"
#include "runtime/checkpoint/CheckpointWriter.h"
#include "runtime/checkpoint/Reading.h"
#include "runtime/checkpoint/TorchDist.h"

namespace shardc::checkpoint {
namespace fs = std::filesystem;

namespace {

constexpr uint64_t kFormatFileMax = 1 << 20;
constexpr const char *kFormatFile = "metadata.json";

/// Reads the format from `metadata.json`. Of the formats with such a file, only torch_dist is
/// supported.
Result<CheckpointFormat> formatInJson(const UntrustedFolder &in) {
  const std::string &folder = in.path(), path = folder + "/" + kFormatFile;
  ASSIGN_OR_RETURN(std::string text, in.read(kFormatFile, kFormatFileMax));
  nlohmann::json json = parseJson(text);
  if (!json.is_object())
    return notSupported("'{}' is not a JSON object", path);
  std::string backend = "?";
  if (auto found = json.find("sharded_backend"); found != json.end() && found->is_string())
    backend = found->get<std::string>();
  if (backend == "torch_dist")
    return CheckpointFormat::TorchDist;
  return notSupported(
      "'{}' has the sharded backend '{}', which is not supported; load it in Megatron "
      "and save it with --ckpt-format torch_dist",
      folder, backend);
}

/// Whether a key identifies a parameter by number, as in `optimizer.state.12.exp_avg`.
bool isNumbered(std::string_view key) {
  constexpr std::string_view kState = "optimizer.state.";
  if (!key.starts_with(kState))
    return false;
  key.remove_prefix(kState.size());
  return isNumber(key.substr(0, key.find('.')));
}

/// Text about a file or object that only torch_dist checkpoints have; empty if there is none.
std::string signOfTorchDist(const CheckpointReader &reader) {
  if (reader.files().has(kCommonFile))
    return fmt::format("the file '{}'", kCommonFile);
  for (const ObjectMeta &object : reader.metadata().objects)
    if (object.name.starts_with("common_state/shard_") ||
        object.name.find("_extra_state/shard_") != std::string::npos ||
        object.name.starts_with("rng_state/shard_"))
      return fmt::format("the item '{}'", object.name);
  return "";
}

/// Refuses a folder that neither is nor contains a checkpoint, but has parts of one, or a model.
Status refuseRoot(const std::string &root) {
  RETURN_IF_ERROR(refuseUnread(root));
  std::error_code error;
  for (fs::directory_iterator at(root, error), end; !error && at != end; at.increment(error)) {
    fs::path name = at->path().filename();
    if (name.extension() == ".distcp" || name == ".metadata.tmp")
      return CheckpointReader::open(root).status(); // its error says what is missing
    if (name == "adapter_model.safetensors")
      return notSupported("'{}' contains adapters of PEFT, not a checkpoint; 'shardc ckpt import "
                          "peft {} OUT --config BASE' converts them",
                          root, root);
    if (name.extension() == ".safetensors")
      return notSupported(
          "'{}' contains a Hugging Face model, not a checkpoint; 'shardc ckpt import hf "
          "{} OUT' converts it{}",
          root, root,
          fs::exists(fs::path(root) / "config.json") ? ""
                                                     : ", which needs the model's config.json");
  }
  return Status::ok();
}

} // namespace

std::string_view formatName(CheckpointFormat format) {
  switch (format) {
  case CheckpointFormat::FsdpDtensor:
    return "fsdp_dtensor";
  case CheckpointFormat::TorchDcp:
    return "torch_dcp";
  case CheckpointFormat::TorchDist:
    return "torch_dist";
  }
  return "";
}

Status refuseUnread(const std::string &folder) {
  std::error_code error;
  Result<UntrustedFolder> in = UntrustedFolder::open(folder);
  if (in.isOk() && in->has(kFormatFile))
    return formatInJson(*in).status();
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->path().filename().string().starts_with("mp_rank_0"))
      return notSupported(
          "'{}' is a legacy 'torch' checkpoint with one part per rank, which is not "
          "supported; load it in Megatron and save it with --ckpt-format torch_dist",
          folder);
    if (fs::exists(at->path() / ".zarray", error))
      return notSupported(
          "'{}' is a 'zarr' checkpoint with one folder per tensor, which is not "
          "supported; load it in Megatron and save it with --ckpt-format torch_dist",
          folder);
  }
  if (fs::exists(folder + "/__0.metadata", error) && !fs::exists(folder + "/.metadata", error))
    return CheckpointReader::open(folder).status(); // its error says why
  return Status::ok();
}

Status refuseUnreadIn(const std::string &root, const std::optional<SavedIteration> &newest) {
  std::error_code error;
  if (fs::exists(fmt::format("{}/{}", root, kTrackerFile), error))
    return Status::ok(); // the tracker names a checkpoint; opening that reports its format
  for (fs::directory_iterator at(root, error), end; !error && at != end; at.increment(error)) {
    std::optional<int64_t> iteration = iterationOf(at->path().filename().string());
    if (!iteration || (newest && *iteration <= newest->iteration))
      continue;
    if (at->is_symlink(error))
      return notSupported("'{}' is a link; name the folder to which it leads", at->path().string());
    RETURN_IF_ERROR(refuseUnread(at->path().string()));
  }
  return newest ? Status::ok() : refuseRoot(root);
}

Result<CheckpointFormat> detectFormat(const std::string &folder) {
  Result<UntrustedFolder> in = UntrustedFolder::open(folder);
  if (in.isOk() && in->has(kFormatFile))
    return formatInJson(*in);
  RETURN_IF_ERROR(refuseUnread(folder));
  ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::open(folder));
  bool isFsdp = std::ranges::any_of(reader.metadata().tensors, [](const TensorMeta &tensor) {
    return tensor.name.starts_with("model.module.") || tensor.name.starts_with("model0.module.");
  });
  if (std::string sign = signOfTorchDist(reader); !isFsdp && !sign.empty())
    return damaged("'{}' is torch_dist by {}, but has no '{}'; copy that file from another "
                   "torch_dist checkpoint, or write {} into it",
                   folder, sign, kFormatFile,
                   R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1})");
  return isFsdp ? CheckpointFormat::FsdpDtensor : CheckpointFormat::TorchDcp;
}

std::string_view conversionOf(CheckpointFormat from, CheckpointFormat to) {
  if (from == CheckpointFormat::TorchDist && to == CheckpointFormat::FsdpDtensor)
    return "torch-dist-to-fsdp-dtensor";
  if (from == CheckpointFormat::FsdpDtensor && to == CheckpointFormat::TorchDist)
    return "fsdp-dtensor-to-torch-dist";
  return "";
}

Status checkFormat(const std::string &folder, CheckpointFormat needed) {
  ASSIGN_OR_RETURN(CheckpointFormat found, detectFormat(folder));
  if (found == needed)
    return Status::ok();
  std::string_view command = conversionOf(found, needed);
  return notSupported(
      "'{}' is {}; {} is needed; {}", folder, formatName(found), formatName(needed),
      !command.empty() ? fmt::format("'shardc ckpt convert {} {} OUT' converts it", command, folder)
                       : "a run loads it with 'checkpoint.convert_on_load = true'");
}

bool isCheckpoint(const std::string &folder) {
  std::error_code error;
  fs::path path(folder);
  return fs::exists(path / ".metadata", error) || fs::exists(path / "metadata.json", error) ||
         isCheckpointName((path.has_filename() ? path : path.parent_path()).filename().string());
}

Status checkSaveRoot(const std::string &root) {
  std::error_code error;
  if (fs::exists(root, error) && !fs::is_directory(root, error))
    return notSupported("'{}' is not a folder", root);
  for (const char *file : {".metadata", kFormatFile})
    if (fs::exists(fs::path(root) / file, error))
      return notSupported(
          "'{}' is a checkpoint itself; give a folder of checkpoints or a new folder", root);
  return checkOutside(root);
}

Status checkOutside(const std::string &path) {
  std::error_code error;
  fs::path at = fs::weakly_canonical(fs::absolute(path, error), error);
  if (at.filename().empty())
    at = at.parent_path();
  while (at.has_relative_path()) {
    at = at.parent_path();
    // Other programs write files with the second name, too, so its content is checked.
    Result<UntrustedFolder> in = UntrustedFolder::open(at.string());
    bool isDist = in.isOk() && in->has(kFormatFile) && formatInJson(*in).isOk();
    if (fs::exists(at / ".metadata", error) || isDist)
      return notSupported(
          "'{}' is inside the checkpoint '{}', which must not change; choose a path outside it",
          path, at.string());
  }
  return Status::ok();
}

Result<std::string> findCheckpoint(const std::string &path) {
  std::error_code error;
  if (!fs::is_directory(path, error))
    return makeStatus(report::CheckpointNotFound, "'{}' is not a folder", path);
  if (isCheckpoint(path))
    return path;
  ASSIGN_OR_RETURN(std::optional<SavedIteration> saved, latestIteration(path));
  RETURN_IF_ERROR(refuseUnreadIn(path, saved));
  return saved ? saved->folder : path;
}

Status checkOptimizerNames(const CheckpointReader &reader) {
  auto refuse = [&](const std::string &key) {
    return notSupported(
        "'{}' in '{}': MFSDP v2 and torch's own optimizers number optimizer state, and the "
        "checkpoint does not record which parameter a number stands for; save it under Megatron "
        "FSDP v1, or load only the weights",
        key, reader.folder());
  };
  for (const TensorMeta &tensor : reader.metadata().tensors)
    if (isNumbered(tensor.name))
      return refuse(tensor.name);
  for (const ObjectMeta &object : reader.metadata().objects)
    if (isNumbered(object.name))
      return refuse(object.name);
  return Status::ok();
}

} // namespace shardc::checkpoint
