#include "runtime/checkpoint/WeightSources.h"

#include <algorithm>

namespace shardc::checkpoint {

Result<WeightSources> WeightSources::open(const std::vector<std::string> &folders,
                                          const ReportSink &emit) {
  WeightSources sources;
  for (const std::string &folder : folders) {
    ASSIGN_OR_RETURN(ModelWeights opened, ModelWeights::open(folder, emit));
    sources.sources_.push_back(std::move(opened));
  }
  return sources;
}

Status WeightSources::read(const std::string &name, const plan::Type &type, int64_t first,
                           int64_t count, void *dst) const {
  const Element element = elementOf(type.dtype);
  for (const ModelWeights &source : sources_) {
    std::optional<Shape> shape = source.shapeOf(name);
    if (!shape)
      continue;
    Shape own(type.shape.begin(), type.shape.begin() + type.rank);
    bool isTable = name == "embedding.word_embeddings.weight" || name == "output_layer.weight";
    Shape wanted = own;
    if (isTable && !shape->empty()) // each source pads the vocabulary differently
      wanted[0] = std::min(own[0], (*shape)[0]), (*shape)[0] = wanted[0];
    if (*shape != wanted)
      return makeStatus(StatusCode::InvalidInput, "'{}' is {} in '{}'; the model needs {}", name,
                        shapeText(*shape), source.folder(), shapeText(own));
    Box rows = clearPadding(Box::rows(own, first, count), wanted[0], element, dst);
    return rows.isEmpty() ? Status::ok() : source.read(name, rows, element, dst);
  }
  return makeStatus(StatusCode::InvalidInput, "'{}' has no tensor '{}', which the model needs",
                    sources_.front().folder(), name);
}

} // namespace shardc::checkpoint
