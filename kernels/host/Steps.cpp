#include "kernels/host/Steps.h"

#include <array>

#include "kernels/host/Registry.h"
#include "kernels/host/Rows.h"
#include "runtime/plan/AttrFields.h"
#include "runtime/plan/FactorExtents.h"
#include "runtime/plan/OpTypes.h"
#include "runtime/plan/Steps.h"

namespace shardc::kernels {
namespace {

using plan::AttrKey;
using plan::FactorAtom;
using plan::FactorValue;
using plan::OpStep;
using plan::OpSteps;

/// The calls of an op's steps. Without a workspace, addresses of values between them are null.
class StepCalls {
public:
  StepCalls(KernelFinder find, plan::OpKind kind, const Call &call)
      : find_(find), kind_(kind), call_(call), attrs_(call.attrs),
        row_(plan::stepsOf(kind, call.inCount, call.outCount)) {
    if (!check())
      return;
    for (int i = 0; i < call.inCount; ++i)
      values_[static_cast<size_t>(i)] = call.in[i];
    for (int r = 0; r < call.outCount; ++r)
      values_[row_->results[static_cast<size_t>(r)]] = call.out[r];
    needed_ = plan::neededSteps(*row_, call.outCount);
    for (size_t s = 0; s < row_->steps.size() && !refusal_; ++s)
      if (needed_.hasStep(s))
        addStep(row_->steps[s]);
  }

  const char *refusal() const { return refusal_; }
  size_t bytes() const { return used_ + inner_ + (used_ + inner_ > 0 ? kAlign : 0); }
  /// Runs the steps. Each has the same workspace, behind the values between them.
  void run() {
    for (size_t s = 0; s < count_; ++s) {
      calls_[s].workspace = address(used_);
      kernels_[s]->run(calls_[s]);
    }
  }
  /// Null, or why a kernel refuses its step.
  const char *refusalOfKernels() const {
    const char *reason = refusal_;
    for (size_t s = 0; s < count_ && !reason; ++s)
      reason = kernels_[s]->accepts ? kernels_[s]->accepts(calls_[s]) : nullptr;
    return reason;
  }

private:
  static constexpr size_t kAlign = 256; ///< what libraries of devices need

  bool refuse(const char *reason) {
    refusal_ = reason;
    return false;
  }

  /// Checks what no step checks: numbers of values, what the op's own row says, and the shared
  /// buffers.
  bool check() {
    const plan::OpInfo &info = plan::opInfo(kind_);
    const plan::OpFactors &factors = plan::factorsOf(kind_);
    if (!row_)
      return refuse("wrong number of operands or results");
    uint32_t accumulates = 0; // sums over rows
    for (size_t r = 0; r < call_.outCount; ++r)
      if (!factors.result(r).has(factors.operand(0).atoms[0].factor))
        accumulates |= uint32_t{1} << r;
    if (const char *reason = host::refusalOfRow(kind_, call_, accumulates))
      return refuse(reason);
    int q = plan::positionOf(info.results, "q"), t = plan::positionOf(info.results, "t");
    if (q >= 0 && t >= 0 && t < call_.outCount && call_.out[q].dtype != call_.out[t].dtype)
      return refuse("numbers and transposed numbers differ in type");
    if (call_.attrs.transposed && !info.attrs.has(AttrKey::transposed))
      return refuse("the result is never transposed");
    for (size_t r = 0; r < call_.outCount; ++r)
      if (int scale = info.scaleOf[r];
          scale >= 0 && scale < call_.outCount && call_.out[scale].dtype != DType::F32)
        return refuse("a scale is not f32");
    const plan::FactorExtents extents = extentsOf(kind_, call_);
    for (size_t f = 0; f < factors.factorCount; ++f) // steps may have no value that gives them
      if (std::optional<AttrKey> key = factors.attrOf[f]; key && plan::attrOf(attrs_, *key) == 0)
        plan::setAttr(attrs_, *key, extents.of(static_cast<plan::FactorId>(f)));
    return true;
  }

  void addStep(const OpStep &row) {
    const plan::OpInfo &info = plan::opInfo(row.kind);
    const Kernel *kernel = find_(info.name);
    if (!kernel)
      return void(refuse("the backend has no kernel of a step"));
    kernels_[count_] = kernel;
    Call &step = calls_[count_];
    step = call_;
    step.attrs = attrs_;
    step.inCount = step.outCount = 0;
    for (const OpStep::Set &set : row.set)
      plan::setAttr(step.attrs, set.key,
                    set.from ? plan::attrOf(call_.attrs, *set.from) : set.value);
    const bool isOfGroup = info.takesIndex() && (!plan::factorsOf(row.kind).hasShares() ||
                                                 plan::factorsOf(kind_).hasShares());
    if (!isOfGroup)
      step.index = 0, step.groupSize = 1;
    takeOperands(row, info, step);
    addResults(row, info, step);
    if (refusal_)
      return;
    step.workspaceBytes = kernel->workspaceBytes ? kernel->workspaceBytes(step) : 0;
    inner_ = std::max(inner_, step.workspaceBytes);
    ++count_;
  }

  void takeOperands(const OpStep &row, const plan::OpInfo &info, Call &step) {
    const bool isList = info.operandsMax == plan::kAnyNumber;
    Tensor *to = isList ? lists_[count_].data() : step.in;
    int count = 0;
    for (uint8_t value : row.operands)
      if (values_[value].rank != 0) {
        to[count] = values_[value];
        to[count++].accumulate = false;
      }
    if (isList)
      step.list = to, step.listCount = count;
    else
      step.inCount = static_cast<uint8_t>(count);
  }

  /// Adds the results of the op, and room for those that only steps use.
  void addResults(const OpStep &row, const plan::OpInfo &info, Call &step) {
    for (size_t r = 0; r < row.results.size(); ++r)
      if (r < info.resultsMin || needed_.hasValue(row.results[r]))
        step.outCount = static_cast<uint8_t>(r + 1);
    for (size_t r = 0; r < step.outCount; ++r)
      step.out[r] = values_[row.results[r]];
    const plan::FactorExtents extents = extentsOf(row.kind, step);
    for (size_t r = 0; r < step.outCount && !refusal_; ++r) {
      Tensor &result = step.out[r];
      if (result.rank != 0)
        continue;
      result.dtype = typeBetween(row.kind, r, step, row_->isWide(row.results[r]));
      result.accumulate = false;
      shape(plan::factorsOf(row.kind), r, extents, step);
      if (const char *reason = host::checkTensor(result))
        return void(refuse(reason));
      result.data = address(used_);
      auto bytes = static_cast<size_t>(result.numel() * dtypeBytes(result.dtype));
      used_ += (bytes + kAlign - 1) / kAlign * kAlign;
      values_[row.results[r]] = result;
    }
  }

  /// The element type of a value between steps: f32 if the row says so, the type that the step's op
  /// always gives, or else the type of the op's data: of its first result in such a type, of a
  /// product's result, or of its first operand.
  DType typeBetween(plan::OpKind kind, size_t r, const Call &step, bool isWide) const {
    const plan::ValueType &type = plan::typesOf(kind).result(r);
    if (isWide)
      return DType::F32;
    if (type.numbers == plan::ValueType::Exact && type.like < 0)
      return type.dtype;
    if (type.like >= 0 && type.isLikeOperand)
      return step.in[type.like].dtype;
    const plan::OpTypes &own = plan::typesOf(kind_);
    for (size_t of = 0; of < call_.outCount; ++of)
      if (own.result(of).numbers == plan::ValueType::Data)
        return call_.out[of].dtype;
    return call_.in[0].dtype;
  }

  /// Sets the shape of a result by the extents of its factors. If the row's first dimension stands
  /// for several ones of the first operand, it also does so for the result.
  static void shape(const plan::OpFactors &factors, size_t r, const plan::FactorExtents &extents,
                    Call &step) {
    Tensor &result = step.out[r];
    const FactorValue &row = factors.result(r), &from = factors.operand(0);
    result.rank = row.dimCount;
    std::ranges::copy(extents.shapeOf(row), result.shape);
    const Tensor &x = step.in[0];
    const int more = x.rank - from.dimCount;
    const bool isLike = row.beginsWithFactor() && from.beginsWithFactor() && !row.transposedBy &&
                        row.atoms[0].factor == from.atoms[0].factor &&
                        !(from.transposedBy && plan::attrOf(step.attrs, *from.transposedBy) != 0);
    if (more <= 0 || !isLike || row.dimCount + more > 4)
      return;
    std::copy_backward(result.shape + 1, result.shape + row.dimCount,
                       result.shape + row.dimCount + more);
    std::copy_n(x.shape, more + 1, result.shape);
    result.rank = static_cast<uint8_t>(row.dimCount + more);
  }

  /// The place in the workspace, whose start is aligned first; null without a workspace.
  void *address(size_t offset) const {
    auto begin = reinterpret_cast<uintptr_t>(call_.workspace);
    if (begin == 0)
      return nullptr;
    return reinterpret_cast<void *>((begin + kAlign - 1) / kAlign * kAlign + offset);
  }

  KernelFinder find_;
  plan::OpKind kind_;
  const Call &call_;
  Attrs attrs_; ///< of the call, and those that are extents of its values
  const OpSteps *row_;
  const char *refusal_ = nullptr;
  plan::NeededSteps needed_;
  std::array<Tensor, plan::kValuesOfStepsMax> values_{}; ///< rank 0: not there
  std::array<Call, plan::kStepsMax> calls_;
  std::array<std::array<Tensor, 2>, plan::kStepsMax> lists_;
  std::array<const Kernel *, plan::kStepsMax> kernels_{};
  size_t count_ = 0, used_ = 0, inner_ = 0;
};

} // namespace

void runSteps(KernelFinder find, plan::OpKind kind, const Call &call) {
  StepCalls(find, kind, call).run();
}

const char *refusalOfSteps(KernelFinder find, plan::OpKind kind, const Call &call) {
  return StepCalls(find, kind, call).refusalOfKernels();
}

size_t bytesOfSteps(KernelFinder find, plan::OpKind kind, const Call &call) {
  return StepCalls(find, kind, call).bytes();
}

namespace host {

#define FUSED(op, ...) const Kernel k##op = StepsKernel<findHostKernel, plan::OpKind::op>::kKernel;
#include "runtime/plan/Ops.def"

} // namespace host
} // namespace shardc::kernels
