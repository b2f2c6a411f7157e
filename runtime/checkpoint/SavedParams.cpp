#include "runtime/checkpoint/SavedParams.h"

#include <set>

namespace shardc::checkpoint {

Result<SavedParams> SavedParams::open(const std::string &folder, ReportSink emit) {
  ASSIGN_OR_RETURN(CheckpointFormat format, detectFormat(folder));
  if (format == CheckpointFormat::TorchDist) {
    // Only the optimizer state contains masters. If it cannot be read because the file does not
    // describe its layout, only the weights are opened.
    Result<TorchDistCheckpoint> whole =
        TorchDistCheckpoint::open(folder, /*weightsOnly=*/false, Verify::Touched, emit);
    if (whole.isOk())
      return SavedParams(std::move(*whole));
    ASSIGN_OR_RETURN(
        TorchDistCheckpoint weights,
        TorchDistCheckpoint::open(folder, /*weightsOnly=*/true, Verify::Touched, std::move(emit)));
    return SavedParams(std::move(weights));
  }
  ASSIGN_OR_RETURN(CheckpointReader reader,
                   CheckpointReader::open(folder, Verify::Touched, std::move(emit)));
  ASSIGN_OR_RETURN(FsdpCheckpoint fsdp, FsdpCheckpoint::open(std::move(reader)));
  return SavedParams(std::move(fsdp));
}

const CheckpointReader &SavedParams::reader() const {
  return fsdp() != nullptr ? fsdp()->reader() : dist().reader();
}

std::vector<std::string> SavedParams::names() const {
  if (fsdp() != nullptr)
    return fsdp()->names();
  std::set<std::string> names;
  for (const auto &[key, param] : dist().params())
    if (key.second == StoredPart::Weight || key.second == StoredPart::Master)
      names.insert(key.first);
  return {names.begin(), names.end()};
}

StoredPart SavedParams::partOf(std::string_view name) const {
  return dist().find(name, StoredPart::Master) != nullptr ? StoredPart::Master : StoredPart::Weight;
}

std::optional<Shape> SavedParams::shapeOf(std::string_view name) const {
  if (fsdp() != nullptr)
    return fsdp()->shapeOf(name, ParamPart::Weight);
  const StoredParam *param = dist().find(name, partOf(name));
  return param != nullptr ? std::optional(param->shape()) : std::nullopt;
}

std::optional<Element> SavedParams::typeOf(std::string_view name) const {
  if (fsdp() != nullptr)
    return fsdp()->typeOf(name, ParamPart::Weight);
  const StoredParam *param = dist().find(name, partOf(name));
  return param != nullptr ? std::optional(param->tensor->type) : std::nullopt;
}

Status SavedParams::read(std::string_view name, const Box &box, Element type, void *dst) const {
  return fsdp() != nullptr ? fsdp()->read(name, ParamPart::Weight, box, type, dst)
                           : dist().read(name, partOf(name), box, type, dst);
}

} // namespace shardc::checkpoint
