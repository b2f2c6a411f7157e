#include "runtime/checkpoint/ModelWeights.h"

#include <filesystem>

#include "runtime/checkpoint/CheckpointFormat.h"
#include "runtime/checkpoint/Reading.h"

namespace shardc::checkpoint {

Result<ModelWeights> ModelWeights::open(const std::string &folder, const ReportSink &emit) {
  ModelWeights base;
  base.folder_ = folder;
  std::error_code error;
  if (std::filesystem::exists(folder + "/config.json", error) && !isCheckpoint(folder)) {
    ASSIGN_OR_RETURN(base.model_, HfWeights::open(folder, {}, emit));
    return base;
  }
  ASSIGN_OR_RETURN(std::string in, findCheckpoint(folder));
  ASSIGN_OR_RETURN(SavedParams opened, SavedParams::open(in, emit));
  base.saved_.emplace(std::move(opened));
  return base;
}

Result<NestedScales> ModelWeights::nestedScales(const plan::Plan &plan,
                                                const plan::Param &param) const {
  return checkpoint::nestedScales(model_.get(), plan, param, [&](const Box &box, float *dst) {
    return read(param.name, box, Element::F32, dst);
  });
}

} // namespace shardc::checkpoint
