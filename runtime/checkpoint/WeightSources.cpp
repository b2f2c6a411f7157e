#include "runtime/checkpoint/WeightSources.h"

#include <algorithm>

#include "runtime/checkpoint/BaseRecord.h"

namespace shardc::checkpoint {

Result<std::unique_ptr<WeightSources>> WeightSources::open(const std::vector<std::string> &folders,
                                                           const plan::Plan &plan,
                                                           const ReportSink &emit) {
  std::unique_ptr<WeightSources> sources(new WeightSources(plan));
  for (const std::string &folder : folders) {
    ASSIGN_OR_RETURN(auto opened, ParamSource::openModel(folder, emit));
    if (!sources->sources_.empty() && sources->sources_.front()->checkpoint())
      RETURN_IF_ERROR(warnOfOtherBase(sources->sources_.front()->reader(), *opened, emit));
    sources->sources_.push_back(std::move(opened));
  }
  return sources;
}

const plan::Param *WeightSources::nestedParam(const std::string &name) const {
  if (plan_.job.peft.quantize != plan::Job::WeightFormat::Nf4Double)
    return nullptr;
  auto found = std::ranges::find_if(plan_.params, [&](const plan::Param &param) {
    return param.name == name && isRecord(param.type.dtype);
  });
  return found == plan_.params.end() ? nullptr : &*found;
}

/// Threads read parts of few tensors at a time, so the scales of two are kept.
Result<WeightSources::Scales> WeightSources::scalesOf(const ParamSource &source,
                                                      const plan::Param &param) const {
  std::lock_guard lock(mutex_);
  for (const auto &[of, scales] : scales_)
    if (of == &param)
      return scales;
  ASSIGN_OR_RETURN(NestedScales made, nestedScales(source, plan_, param));
  scales_.emplace_back(&param, std::make_shared<const NestedScales>(std::move(made)));
  if (scales_.size() > 2)
    scales_.pop_front();
  return scales_.back().second;
}

Status WeightSources::read(const std::string &name, const plan::Type &type, int64_t first,
                           int64_t count, void *dst) const {
  const Element element = elementOf(type.dtype);
  for (const auto &source : sources_) {
    const std::string_view tensor = source == sources_.back() ? source->tensorOf(name) : name;
    std::optional<Shape> shape = source->shapeOf(tensor);
    if (!shape)
      continue;
    Shape own(type.shape.begin(), type.shape.begin() + type.rank);
    Shape wanted = own;
    if (isTable(name) && !shape->empty()) // each source pads the vocabulary differently
      wanted[0] = std::min(own[0], (*shape)[0]), (*shape)[0] = wanted[0];
    if (*shape != wanted)
      return makeStatus(StatusCode::InvalidInput, "'{}' is {} in '{}'; the model needs {}", name,
                        shapeText(*shape), source->folder(), shapeText(own));
    Box rows = clearPadding(Box::rows(own, first, count), wanted[0], element, dst);
    if (rows.isEmpty())
      return Status::ok();
    RETURN_IF_ERROR(source->read(tensor, rows, element, dst));
    if (const plan::Param *param = nestedParam(name)) {
      ASSIGN_OR_RETURN(Scales scales, scalesOf(*source, *param));
      scales->round(static_cast<float *>(dst), first, count);
    }
    return Status::ok();
  }
  return makeStatus(StatusCode::InvalidInput, "'{}' has no tensor '{}', which the model needs",
                    sources_.front()->folder(), name);
}

Result<std::map<std::string, std::string>> WeightSources::fingerprints() const {
  using Found = std::optional<std::pair<Shape, ReadBox>>;
  return fingerprintsOf(plan_, [&](const plan::Param &, const std::string &name) -> Found {
    for (const auto &source : sources_)
      if (std::optional<Shape> shape = source->shapeOf(name))
        return std::pair(*shape, ReadBox([&source, name](const Box &box, Element type, void *to) {
          return source->read(name, box, type, to);
        }));
    return std::nullopt;
  });
}

} // namespace shardc::checkpoint
