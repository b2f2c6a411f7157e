// The limits on extents keep products of two sizes within 63 bits, so kernels need no checks for
// overflow.
#include "kernels/host/Check.h"

#include <span>

#include "kernels/host/Ranges.h"
#include "runtime/plan/AttrFields.h"
#include "runtime/plan/FactorExtents.h"
#include "runtime/plan/OpTypes.h"

namespace shardc::kernels {
namespace {

using plan::AttrKey;
using plan::FactorValue;

plan::Type typeOf(const Tensor &tensor) {
  plan::Type type;
  type.dtype = tensor.dtype, type.rank = tensor.rank;
  std::copy_n(tensor.shape, tensor.rank, type.shape.begin());
  return type;
}

/// The attributes that the factors depend on. Refilled for each call, so that calls do not
/// allocate.
const plan::Op &opWith(plan::OpKind kind, const plan::OpFactors &factors, const Attrs &attrs) {
  thread_local plan::Op op;
  op.kind = kind;
  op.attrs.clear();
  auto add = [&](std::optional<AttrKey> key) {
    if (key)
      op.attrs.push_back({*key, {.i = plan::attrOf(attrs, *key)}});
  };
  std::ranges::for_each(factors.attrOf, add);
  for (const FactorValue &value : factors.operands())
    add(value.transposedBy);
  for (const FactorValue &value : factors.results())
    add(value.transposedBy);
  add(factors.reversedBy);
  return op;
}

} // namespace

plan::FactorExtents extentsOf(plan::OpKind kind, const Call &call) {
  std::array<plan::Type, kOperandsMax + kResultsMax> types;
  std::array<const plan::Type *, kOperandsMax + kResultsMax> all{};
  for (size_t i = 0; i < call.inCount; ++i)
    types[i] = typeOf(call.in[i]), all[i] = &types[i];
  for (size_t r = 0; r < call.outCount; ++r)
    if (size_t at = kOperandsMax + r; call.out[r].rank != 0)
      types[at] = typeOf(call.out[r]), all[at] = &types[at];
  const plan::OpFactors &factors = plan::factorsOf(kind);
  std::span<const plan::Type *const> values = all;
  return {factors, opWith(kind, factors, call.attrs), values.first(call.inCount),
          values.subspan(kOperandsMax, call.outCount), call.groupSize};
}

namespace host {

const char *checkTensor(const Tensor &tensor) {
  constexpr int64_t extentMax = int64_t{1} << 31, numelMax = int64_t{1} << 40;
  SHARDC_REQUIRE(tensor.rank >= 1 && tensor.rank <= 4, "a tensor's rank is not 1 to 4");
  int64_t numel = 1;
  for (int d = 0; d < tensor.rank; ++d) {
    SHARDC_REQUIRE(tensor.shape[d] > 0, "an extent is not positive");
    SHARDC_REQUIRE(tensor.shape[d] < extentMax, "an extent is 2^31 or more");
    SHARDC_REQUIRE(numel < numelMax / tensor.shape[d], "a tensor has 2^40 elements or more");
    numel *= tensor.shape[d];
  }
  return nullptr;
}

const char *checkArity(const Call &call, Arity arity) {
  SHARDC_REQUIRE(call.inCount >= arity.inMin && call.inCount <= arity.inMax,
                 "wrong number of operands");
  SHARDC_REQUIRE(call.outCount >= arity.outMin && call.outCount <= arity.outMax,
                 "wrong number of results");
  for (int i = 0; i < call.inCount; ++i)
    SHARDC_REQUIRE_OK(checkTensor(call.in[i]));
  for (int i = 0; i < call.outCount; ++i) {
    SHARDC_REQUIRE_OK(checkTensor(call.out[i]));
    SHARDC_REQUIRE(!call.out[i].accumulate || (arity.accumulates >> i & 1),
                   "a result that cannot accumulate is asked to");
  }
  return nullptr;
}

const char *checkRanges(const Call &call, int64_t index, const Tensor &shard) {
  SHARDC_REQUIRE(call.rangesCount == 0 || call.ranges, "ranges are counted but not given");
  if (call.rangesOf)
    SHARDC_REQUIRE(0 <= call.rangesOf[index] && call.rangesOf[index] <= call.rangesOf[index + 1] &&
                       call.rangesOf[index + 1] <= call.rangesCount,
                   "the bounds of an operand's ranges are not in order");
  for (const ParamRange &range : rangesOfShard(call, index))
    SHARDC_REQUIRE(0 <= range.begin && range.begin <= range.end && range.end <= shard.numel(),
                   "a parameter's range is not inside its shard");
  return nullptr;
}

namespace {

/// Null, or why the tensor does not have the type of its row. `like` is null if the call lacks the
/// value whose type it must have. `isMoved`: the kernel does not compute with its numbers.
const char *checkType(const plan::ValueType &needed, const Tensor &tensor, const Tensor *like,
                      bool isMoved) {
  const bool isData =
      needed.numbers == plan::ValueType::Data || needed.numbers == plan::ValueType::Float;
  SHARDC_REQUIRE(!isData || isMoved || host::isData(tensor), "a number is not f32, bf16 or f16");
  SHARDC_REQUIRE(needed.like < 0 || like, "a value is missing whose type another one must have");
  const plan::Type type = typeOf(tensor), of = like ? typeOf(*like) : plan::Type{};
  SHARDC_REQUIRE(plan::fits(needed, type, like ? &of : nullptr),
                 "an operand or result does not have the type of the op's row");
  return nullptr;
}

/// Null, or why a value does not have dimensions of its row, besides that leading ones may be one
/// of the row. Indices and statistics have each of them, and a vector beside matrices has one.
const char *checkRank(const FactorValue &value, const plan::ValueType &type, const Tensor &tensor,
                      bool isOfMatrices) {
  const bool isExact = type.numbers == plan::ValueType::Exact;
  SHARDC_REQUIRE(!isExact || tensor.rank >= value.dimCount,
                 "an operand or result has fewer dimensions than the op's row");
  SHARDC_REQUIRE(value.dimCount != 1 || tensor.rank == 1 || !isOfMatrices ||
                     (isExact && type.dtype != DType::I64),
                 "an operand or result has more dimensions than the op's row");
  return nullptr;
}

/// Null, or why a result that the op updates in place is not its operand.
const char *checkInPlace(const plan::OpInfo &info, const Call &call) {
  for (int r = 0; r < call.outCount; ++r)
    if (int i = info.inPlace[static_cast<size_t>(r)]; i >= 0 && i < call.inCount)
      SHARDC_REQUIRE(call.in[i].data == call.out[r].data && call.in[i].dtype == call.out[r].dtype &&
                         sameShape(call.in[i], call.out[r]),
                     "a result does not have type, shape and buffer of its operand");
  return nullptr;
}

} // namespace

const char *refusalOfRow(OpKind kind, const Call &call, uint32_t accumulates) {
  const plan::OpInfo &info = plan::opInfo(kind);
  const plan::OpTypes &types = plan::typesOf(kind);
  const plan::OpFactors &factors = plan::factorsOf(kind);
  const bool isList = info.operandsMax == plan::kAnyNumber;
  SHARDC_REQUIRE_OK(checkArity(call, {isList ? 0 : info.operandsMin, isList ? 0 : info.operandsMax,
                                      info.resultsMin, info.resultsMax, accumulates}));
  auto likeOf = [&](const plan::ValueType &type) -> const Tensor * {
    const bool isThere =
        type.like >= 0 && type.like < (type.isLikeOperand ? call.inCount : call.outCount);
    return isThere ? (type.isLikeOperand ? call.in : call.out) + type.like : nullptr;
  };
  int matrices = 0, values = 0, rows = 0; // rows: matrices of one row, as vectors
  auto check = [&](const plan::ValueType &type, const FactorValue &value, const Tensor &tensor) {
    // An op whose result has the type of an operand moves its numbers.
    const bool isMoved = call.outCount > 0 && likeOf(types.result(0)) == &tensor;
    SHARDC_REQUIRE_OK(checkType(type, tensor, likeOf(type), isMoved));
    if (value.form != FactorValue::Dims)
      return static_cast<const char *>(nullptr);
    ++values, matrices += value.dimCount > 1, rows += value.dimCount > 1 && tensor.rank == 1;
    return checkRank(value, type, tensor, matrices > 0);
  };
  for (size_t i = 0; i < call.inCount; ++i)
    SHARDC_REQUIRE_OK(check(types.operand(i), factors.operand(i), call.in[i]));
  for (size_t r = 0; r < call.outCount; ++r)
    SHARDC_REQUIRE_OK(check(types.result(r), factors.result(r), call.out[r]));
  SHARDC_REQUIRE(rows == 0 || rows == values,
                 "an operand or result has fewer dimensions than the op's row");
  SHARDC_REQUIRE(!extentsOf(kind, call).fault(),
                 "extents of operands and results do not fit each other");
  return checkInPlace(info, call);
}

} // namespace host
} // namespace shardc::kernels
