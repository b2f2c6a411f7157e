#include "runtime/checkpoint/NestedScales.h"

#include <algorithm>

#include "runtime/checkpoint/HfConvert.h"

namespace shardc::checkpoint {
namespace {

/// For each row of the weight, the matrix of a Hugging Face model that it is part of.
std::vector<int> matricesOfRows(const plan::Plan &plan, const plan::Param &param, int64_t rows) {
  const plan::Job::Model &model = plan.job.model;
  std::vector<int> matrices(static_cast<size_t>(rows), 0);
  const int64_t groups = model.numQueryGroups > 0 ? model.numQueryGroups : model.numAttentionHeads,
                heads = model.numAttentionHeads * (model.attentionOutputGate ? 2 : 1);
  if (param.name.ends_with("self_attention.linear_qkv.weight") && groups > 0 &&
      rows % (heads + 2 * groups) == 0) {
    const int64_t head = rows / (heads + 2 * groups), queries = heads / groups * head;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t at = row % (queries + 2 * head);
      matrices[static_cast<size_t>(row)] = at < queries ? 0 : at < queries + head ? 1 : 2;
    }
  }
  if (param.name.ends_with("linear_fc1.weight") && model.gatedLinearUnit)
    std::fill(matrices.begin() + rows / 2, matrices.end(), 1);
  return matrices;
}

} // namespace

Result<NestedScales> nestedScales(const ParamSource &source, const plan::Plan &plan,
                                  const plan::Param &param) {
  if (const HfWeights *model = source.model()) {
    ASSIGN_OR_RETURN(std::optional<NestedScales> stored, model->nestedScales(param.name));
    if (stored)
      return std::move(*stored);
  }
  const plan::Type &type = param.wholeType(); // no stack: experts are not stored in 4 bits
  const int64_t rows = type.shape[0], columns = type.shape[1] * numbersIn(type.dtype);
  std::vector<float> scales;
  RETURN_IF_ERROR(readInPieces(
      Box::whole({rows, columns}),
      [&](const Box &box, float *dst) { return source.read(param.name, box, Element::F32, dst); },
      [&](const Box &, std::span<const float> numbers) {
        for (size_t i = 0; i < numbers.size(); i += Nf4Block::kNumbers)
          scales.push_back(nf4ScaleOf(&numbers[i]));
        return Status::ok();
      }));
  NestedScales nested(rows, columns);
  const std::vector<int> matrices = matricesOfRows(plan, param, rows);
  const auto blocks = static_cast<size_t>(columns / Nf4Block::kNumbers);
  for (int matrix = 0; matrix <= std::ranges::max(matrices); ++matrix) {
    std::vector<float> own;
    for (size_t row = 0; row < matrices.size(); ++row)
      if (matrices[row] == matrix)
        own.insert(own.end(), &scales[row * blocks], &scales[row * blocks] + blocks);
    const Nf4Scales made = toNf4Scales(own);
    int64_t from = 0;
    for (size_t row = 0; row < matrices.size(); ++row)
      if (matrices[row] == matrix)
        nested.setRow(static_cast<int64_t>(row), made, from++);
  }
  nested.divisors = std::move(scales);
  return nested;
}

} // namespace shardc::checkpoint
