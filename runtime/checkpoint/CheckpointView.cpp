#include "runtime/checkpoint/CheckpointView.h"

#include <algorithm>

namespace shardc::checkpoint {

Result<CheckpointView> CheckpointView::open(const std::string &folder, Verify verify,
                                            const ReportSink &emit) {
  CheckpointView view;
  ASSIGN_OR_RETURN(view.format_, detectFormat(folder));
  if (view.format_ == CheckpointFormat::TorchDcp) {
    ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::open(folder, verify, emit));
    view.plain_.emplace(std::move(reader));
  } else {
    ASSIGN_OR_RETURN(view.params_, ParamSource::openCheckpoint(folder, emit, verify, emit));
  }
  return view;
}

std::vector<ViewTensor> CheckpointView::tensors() const {
  std::vector<ViewTensor> list;
  const CheckpointReader &from = reader();
  for (const TensorMeta &tensor : from.metadata().tensors)
    list.push_back({tensor.name, tensor.type, tensor.shape,
                    [&from, &tensor](const Box &box, Element to, void *dst) {
                      return from.read(tensor.name, box, to, dst);
                    }});
  std::ranges::sort(list, {}, &ViewTensor::name);
  return list;
}

std::vector<ViewTensor> CheckpointView::params() const {
  std::vector<ViewTensor> list;
  for (const std::string &name : params_ ? params_->names() : std::vector<std::string>())
    for (ParamPart part : kParamParts) {
      std::optional<Shape> shape = params_->shapeOf(name, part);
      std::optional<Element> type = params_->typeOf(name, part);
      if (!shape || !type)
        continue;
      bool isWeight = part == ParamPart::Weight;
      list.push_back({isWeight ? name : fmt::format("{}.{}", name, momentName(part)), *type, *shape,
                      [from = params_.get(), name, part](const Box &box, Element to, void *dst) {
                        return from->read(name, part, box, to, dst, false);
                      }});
    }
  std::ranges::sort(list, {}, &ViewTensor::name);
  return list;
}

} // namespace shardc::checkpoint
