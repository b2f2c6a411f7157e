#include "runtime/run/NonFinite.h"

#include <cmath>

#include "runtime/exec/Ranges.h"
#include "runtime/plan/Coordinates.h"
#include "runtime/plan/Text.h"

namespace shardc::run {
namespace {

template <typename T> int64_t findIn(const void *data, int64_t begin, int64_t end) {
  const T *values = static_cast<const T *>(data);
  for (int64_t i = begin; i < end; ++i)
    if (!std::isfinite(toFloat(values[i])))
      return i;
  return -1;
}

int64_t findInDoubles(const void *data, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i)
    if (!std::isfinite(static_cast<const double *>(data)[i]))
      return i;
  return -1;
}

std::string spell(double value) {
  return std::isnan(value)   ? "nan"
         : std::isinf(value) ? (value < 0 ? "-inf" : "inf")
                             : fmt::format("{}", value);
}

} // namespace

int64_t findNonFinite(DType type, const void *data, int64_t begin, int64_t end) {
  switch (type) {
  case DType::F64:
    return findInDoubles(data, begin, end);
  case DType::F32:
    return findIn<float>(data, begin, end);
  case DType::BF16:
    return findIn<BF16>(data, begin, end);
  case DType::F16:
    return findIn<F16>(data, begin, end);
  default:
    return -1;
  }
}

std::string elementText(DType type, const void *data, int64_t index) {
  switch (type) {
  case DType::F64:
    return spell(static_cast<const double *>(data)[index]);
  case DType::F32:
    return spell(static_cast<const float *>(data)[index]);
  case DType::BF16:
    return spell(toFloat(static_cast<const BF16 *>(data)[index]));
  case DType::F16:
    return spell(toFloat(static_cast<const F16 *>(data)[index]));
  default:
    return "?";
  }
}

Status NonFiniteFinder::beforeSegment(const Position &position) {
  return rows_.beforeSegment(position);
}

Status NonFiniteFinder::afterOp(const Position &position) {
  const plan::Op &op = executable_.segment(position.segment).ops[position.op];
  const exec::BoundSegment *bound = executable_.bound(position.segment, position.instance);
  if (bound->ops[position.op].kind == exec::BoundOp::Nothing)
    return Status::ok();
  RETURN_IF_ERROR(rows_.afterOp(position));
  for (size_t rank : executable_.ranksOf(position.segment))
    for (plan::ValueId result : op.results)
      RETURN_IF_ERROR(checkResult(position, rank, op, result));
  return Status::ok();
}

Status NonFiniteFinder::checkResult(const Position &position, size_t rank, const plan::Op &op,
                                    plan::ValueId id) {
  const plan::Segment &segment = executable_.segment(position.segment);
  const plan::Value &value = segment.values[id];
  DType type = value.type.dtype;
  if (type != DType::F64 && !isComputeType(type))
    return Status::ok();
  const exec::Arenas &arenas = executable_.arenas(rank);
  ASSIGN_OR_RETURN(uint8_t * address, arenas.resolve(value.place, value.type.bytes(), value.name,
                                                     position.instance.slot));
  copy_.resize(static_cast<size_t>(value.type.bytes()));
  RETURN_IF_ERROR(executable_.readBeside(rank, address, value.type.bytes(), copy_.data()));
  int64_t numel = value.type.numel(), found = -1;
  int32_t block = exec::blockOf(executable_.plan(), op, 0, numel);
  if (block < 0) {
    for (const ElementRange &part : rows_.elementsOf(position.segment, rank, id))
      if (found < 0)
        found = findNonFinite(type, copy_.data(), part.begin, part.end);
  } else { // padding of a block may have any value
    int64_t begin = exec::pieceBegin(executable_.plan().blocks[block], numel, arenas.indices());
    for (const exec::ParamPiece &part : exec::paramPieces(executable_.plan(), block, begin, numel))
      if (found < 0)
        found = findNonFinite(type, copy_.data(), part.begin, part.end);
  }
  if (found < 0)
    return Status::ok();
  std::string where;
  if (op.loc != plan::kNone) {
    const plan::Loc &loc = executable_.plan().locs[op.loc];
    where = fmt::format(" ({}:{}:{})", plan::printable(loc.file), loc.line, loc.column);
  }
  std::string microbatch =
      segment.body ? fmt::format(", microbatch {}", position.params.microbatch) : std::string();
  return makeStatus(StatusCode::Numeric,
                    "step {}, rank {}{}, segment {}{}: element {} of %{}, made by '{}'{}, is {}",
                    step_, executable_.worldRank(rank),
                    plan::stageOf(executable_.plan(), executable_.roleIndexOf(rank)),
                    plan::printable(segment.name), microbatch, found, plan::printable(value.name),
                    plan::opInfo(op).name, where, elementText(type, copy_.data(), found));
}

} // namespace shardc::run
