// Turns the rows of Optimizers.def into tables at compile time.
#include "runtime/plan/Optimizers.h"

#include <algorithm>
#include <array>

namespace shardc::plan {
namespace {

DType f32(const Job::Optimizer &) { return DType::F32; }

DType momentType(Job::FloatType type) {
  switch (type) {
  case Job::FloatType::Fp32:
    return DType::F32;
  case Job::FloatType::Bf16:
    return DType::BF16;
  case Job::FloatType::Fp16:
    return DType::F16;
  case Job::FloatType::Fp8:
    return DType::F8E4M3;
  }
  return DType::F32;
}

template <Job::FloatType Job::Optimizer::*field> DType ofField(const Job::Optimizer &job) {
  return momentType(job.*field);
}

struct MomentRow {
  Optimizer optimizer;
  Moment moment;
};
#define ofField(member) ofField<&Job::Optimizer::member>
constexpr MomentRow kMomentRows[] = {
#define MOMENT(optimizer, cell, prefix, name, type)                                                \
  {Optimizer::optimizer, {CellKind::cell, prefix, name, type}},
#include "runtime/plan/Optimizers.def"
};
#undef ofField

constexpr size_t kMomentCount = std::size(kMomentRows);
constexpr std::array<Moment, kMomentCount> kMomentList = [] {
  std::array<Moment, kMomentCount> moments{};
  for (size_t i = 0; i < kMomentCount; ++i)
    moments[i] = kMomentRows[i].moment;
  return moments;
}();

/// Finds the rows of one optimizer, which are adjacent in the table.
constexpr std::span<const Moment> momentsOf(Optimizer optimizer) {
  size_t first = 0;
  while (first < kMomentCount && kMomentRows[first].optimizer != optimizer)
    ++first;
  size_t end = first;
  while (end < kMomentCount && kMomentRows[end].optimizer == optimizer)
    ++end;
  return std::span(kMomentList).subspan(first, end - first);
}

constexpr OptimizerInfo kOptimizerInfos[] = {
#define OPTIMIZER(enumerator, word, op, rate, gbs)                                                 \
  {word, OpKind::op, momentsOf(Optimizer::enumerator)},
#include "runtime/plan/Optimizers.def"
};

} // namespace

const OptimizerInfo &optimizerInfo(Optimizer optimizer) {
  return kOptimizerInfos[static_cast<size_t>(optimizer)];
}

std::optional<Optimizer> findOptimizer(std::string_view word) {
  const OptimizerInfo *found = std::ranges::find(kOptimizerInfos, word, &OptimizerInfo::word);
  if (found == std::end(kOptimizerInfos))
    return std::nullopt;
  return static_cast<Optimizer>(found - kOptimizerInfos);
}

std::optional<Optimizer> optimizerOf(const Job &job) {
  if (job.optimizer.optimizer == Job::OptimizerKind::DistMuon)
    return Optimizer::Muon; // an older upstream name for Muon with a distributed optimizer
  std::optional<Optimizer> found = findOptimizer(job.text(JobField::optimizer_optimizer));
  return found == Optimizer::Sgd && job.optimizer.sgdMomentum > 0 ? Optimizer::SgdMomentum : found;
}

std::optional<Optimizer> optimizerOf(const Plan &plan, const Block &block) {
  const ParamClass &own = plan.classOf(block);
  return own.optimizer ? own.optimizer : optimizerOf(plan.job);
}

int64_t granuleOf(const Param &param, std::optional<Optimizer> optimizer) {
  if (!optimizer || !needsMatrices(*optimizer))
    return param.rowSize();
  return param.isStacked() ? param.type.numel() / param.type.shape[0] : param.type.numel();
}

void set(Op &op, const Scalar &scalar) {
  if (attrInfo(scalar.key).type == AttrInfo::Float)
    op.set(scalar.key, scalar.value);
  else
    op.set(scalar.key, static_cast<int64_t>(scalar.value));
}

std::vector<Scalar> scalarsOf(Optimizer optimizer, const Job &job) {
  std::vector<Scalar> scalars;
#define SCALAR(name, attribute, field)                                                             \
  if (optimizer == Optimizer::name)                                                                \
    scalars.push_back({AttrKey::attribute, static_cast<double>(job.optimizer.field)});
#include "runtime/plan/Optimizers.def"
  return scalars;
}

} // namespace shardc::plan
