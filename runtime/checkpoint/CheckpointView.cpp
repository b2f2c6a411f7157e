#include "runtime/checkpoint/CheckpointView.h"

#include <algorithm>

#include "runtime/base/Reports.h"

namespace shardc::checkpoint {
namespace {

std::string viewName(const std::string &name, ParamPart part) {
  return part == ParamPart::Weight ? name : fmt::format("{}.{}", name, momentName(part));
}

std::vector<ViewTensor> paramsOf(const FsdpCheckpoint &fsdp) {
  std::vector<ViewTensor> list;
  for (const std::string &name : fsdp.names())
    for (ParamPart part : kParamParts) {
      std::optional<Shape> shape = fsdp.shapeOf(name, part);
      std::optional<Element> type = fsdp.typeOf(name, part);
      if (!shape || !type)
        continue;
      list.push_back({viewName(name, part), *type, *shape,
                      [&fsdp, name, part](const Box &box, Element to, void *dst) {
                        return fsdp.read(name, part, box, to, dst);
                      }});
    }
  return list;
}

std::vector<ViewTensor> paramsOf(const TorchDistCheckpoint &dist) {
  std::vector<ViewTensor> list;
  for (const auto &[key, param] : dist.params()) {
    const auto &[name, stored] = key;
    auto read = [&dist, owner = key](const Box &box, Element to, void *dst) {
      return dist.read(owner.first, owner.second, box, to, dst);
    };
    if (stored == StoredPart::Weight && dist.find(name, StoredPart::Master) != nullptr)
      continue;
    ParamPart part = stored == StoredPart::ExpAvg     ? ParamPart::ExpAvg
                     : stored == StoredPart::ExpAvgSq ? ParamPart::ExpAvgSq
                     : stored == StoredPart::Momentum ? ParamPart::Momentum
                                                      : ParamPart::Weight;
    list.push_back({viewName(name, part), param.tensor->type, param.shape(), read});
  }
  return list;
}

} // namespace

struct CheckpointView::State {
  CheckpointFormat format = CheckpointFormat::TorchDcp;
  std::optional<CheckpointReader> plain;
  std::optional<FsdpCheckpoint> fsdp;
  std::optional<TorchDistCheckpoint> dist;
};

CheckpointView::CheckpointView(std::unique_ptr<State> state) : state_(std::move(state)) {}
CheckpointView::CheckpointView(CheckpointView &&) noexcept = default;
CheckpointView::~CheckpointView() = default;

Result<CheckpointView> CheckpointView::open(const std::string &folder, Verify verify,
                                            const ReportSink &emit) {
  auto state = std::make_unique<State>();
  ASSIGN_OR_RETURN(state->format, detectFormat(folder));
  if (state->format == CheckpointFormat::TorchDist) {
    Result<TorchDistCheckpoint> whole = TorchDistCheckpoint::open(folder, false, verify, emit);
    if (whole.isOk()) {
      state->dist.emplace(std::move(*whole));
      return CheckpointView(std::move(state));
    }
    ASSIGN_OR_RETURN(TorchDistCheckpoint weights,
                     TorchDistCheckpoint::open(folder, true, verify, emit));
    if (emit)
      emit(makeReport(report::OptimizerLeftOut, whole.status().message()));
    state->dist.emplace(std::move(weights));
    return CheckpointView(std::move(state));
  }
  ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::open(folder, verify, emit));
  if (state->format == CheckpointFormat::FsdpDtensor) {
    ASSIGN_OR_RETURN(FsdpCheckpoint fsdp, FsdpCheckpoint::open(std::move(reader)));
    state->fsdp.emplace(std::move(fsdp));
  } else {
    state->plain.emplace(std::move(reader));
  }
  return CheckpointView(std::move(state));
}

CheckpointFormat CheckpointView::format() const { return state_->format; }

const CheckpointReader &CheckpointView::reader() const {
  return state_->dist   ? state_->dist->reader()
         : state_->fsdp ? state_->fsdp->reader()
                        : *state_->plain;
}

const FsdpCheckpoint *CheckpointView::fsdp() const {
  return state_->fsdp ? &*state_->fsdp : nullptr;
}

const TorchDistCheckpoint *CheckpointView::torchDist() const {
  return state_->dist ? &*state_->dist : nullptr;
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
  std::vector<ViewTensor> list = state_->fsdp   ? paramsOf(*state_->fsdp)
                                 : state_->dist ? paramsOf(*state_->dist)
                                                : std::vector<ViewTensor>();
  std::ranges::sort(list, {}, &ViewTensor::name);
  return list;
}

} // namespace shardc::checkpoint
