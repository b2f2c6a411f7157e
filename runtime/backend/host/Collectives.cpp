// The reference for all backends: sums are added in rank order in fp32 (f64 operands in double),
// then divided, then added to the old content if asked.
#include "runtime/backend/host/Collectives.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "kernels/host/Convert.h"
#include "runtime/base/DType.h"

namespace shardc::host {
namespace {

using hal::Collective;
using hal::CollectiveKind;
using Members = std::span<const Collective *const>;

using kernels::Tensor;

/// Elements per block of a sum, so that the sum stays in the first-level cache.
constexpr int64_t kBlock = 1024;

Tensor operandOf(const Collective &member) {
  return {.data = const_cast<void *>(member.in), .dtype = member.inType};
}
Tensor resultOf(const Collective &member) {
  return {.data = member.out, .dtype = member.outType, .accumulate = member.accumulate};
}

/// Sums elements [begin, begin+n) of all members in rank order into `sum`.
void sumBlock(Members members, int64_t begin, int64_t n, float *sum) {
  float buffer[kBlock];
  for (size_t m = 0; m < members.size(); ++m) {
    const float *values = kernels::host::readF32(operandOf(*members[m]), begin, n, buffer);
    for (int64_t i = 0; i < n; ++i)
      sum[i] = m == 0 ? values[i] : sum[i] + values[i];
  }
  if (members[0]->average) {
    float size = static_cast<float>(members.size());
    for (int64_t i = 0; i < n; ++i)
      sum[i] /= size;
  }
}

double sumDouble(Members members, int64_t i) {
  double sum = static_cast<const double *>(members[0]->in)[i];
  for (size_t m = 1; m < members.size(); ++m)
    sum += static_cast<const double *>(members[m]->in)[i];
  return members[0]->average ? sum / static_cast<double>(members.size()) : sum;
}

void gatherPart(Members members, int part) {
  const Collective &mine = *members[part];
  int64_t bytes = mine.count * dtypeBytes(mine.inType);
  auto *out = static_cast<uint8_t *>(mine.out);
  for (size_t m = 0; m < members.size(); ++m)
    if (out + bytes * m != members[m]->in) // a shard may already lie in its own slot
      std::memcpy(out + bytes * m, members[m]->in, static_cast<size_t>(bytes));
}

double squaresOf(const Collective &mine) {
  double sum = 0;
  float buffer[kBlock];
  for (const ElementRange &range : mine.valid)
    for (int64_t at = range.begin; at < range.end; at += kBlock) {
      const int64_t n = std::min(kBlock, range.end - at);
      const float *values = kernels::host::readF32(resultOf(mine), at, n, buffer);
      for (int64_t i = 0; i < n; ++i)
        sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
  return sum;
}

/// Sums the part of one member: elements [count · part, count · (part + 1)) of every member's
/// input.
void reduceScatterPart(Members members, int part) {
  const Collective &mine = *members[part];
  int64_t begin = mine.count * part;
  if (mine.inType == DType::F64) {
    auto *out = static_cast<double *>(mine.out);
    for (int64_t i = 0; i < mine.count; ++i)
      out[i] = sumDouble(members, begin + i) + (mine.accumulate ? out[i] : 0.0);
    return;
  }
  float sum[kBlock];
  for (int64_t at = 0; at < mine.count; at += kBlock) {
    int64_t n = std::min(kBlock, mine.count - at);
    sumBlock(members, begin + at, n, sum);
    kernels::host::writeF32(resultOf(mine), at, n, sum);
  }
  if (mine.squares)
    *mine.squares = squaresOf(mine);
}

/// Sums one of `size` equal parts of the elements, and writes the sums to the results of all
/// members.
void allReducePart(Members members, int part) {
  int64_t count = members[0]->count, size = static_cast<int64_t>(members.size());
  int64_t begin = count * part / size, end = count * (part + 1) / size;
  if (members[0]->inType == DType::F64) {
    for (int64_t i = begin; i < end; ++i) {
      double sum = sumDouble(members, i);
      for (const Collective *member : members)
        static_cast<double *>(member->out)[i] = sum;
    }
    return;
  }
  float sum[kBlock];
  for (int64_t at = begin; at < end; at += kBlock) {
    int64_t n = std::min(kBlock, end - at);
    sumBlock(members, at, n, sum);
    for (const Collective *member : members)
      kernels::host::writeF32(resultOf(*member), at, n, sum);
  }
}

/// Copies the sender's data to the receiver.
void receivePart(Members members, int part) {
  const Collective &mine = *members[static_cast<size_t>(part)];
  if (mine.kind != CollectiveKind::Recv)
    return;
  const Collective &other = *members[static_cast<size_t>(1 - part)];
  std::memcpy(mine.out, other.in, static_cast<size_t>(mine.count * dtypeBytes(mine.outType)));
}

/// Checks a transfer: one of two members must send, and the other one receive.
Status checkTransfer(Members members) {
  const Collective &first = *members[0], &other = *members.back();
  if (members.size() > 2)
    return makeStatus(StatusCode::InvalidInput, "{} of {} members; it needs two",
                      hal::toString(first.kind), members.size());
  bool isPair = members.size() == 1 || (isPointToPoint(other.kind) && first.kind != other.kind);
  if (!isPair || first.count != other.count || first.inType != other.inType)
    return makeStatus(StatusCode::InvalidInput, "members disagree: {} of {} {} and {} of {} {}",
                      hal::toString(first.kind), first.count, dtypeName(first.inType),
                      hal::toString(other.kind), other.count, dtypeName(other.inType));
  return Status::ok();
}

/// The larger one; NaN if either is NaN.
template <typename T> T larger(T a, T b) {
  return toFloat(b) > toFloat(a) || std::isnan(toFloat(b)) ? b : a;
}
template <> double larger(double a, double b) { return b > a || std::isnan(b) ? b : a; }

template <typename T> void maxPart(Members members, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    T most = static_cast<const T *>(members[0]->in)[i];
    for (const Collective *member : members)
      most = larger(most, static_cast<const T *>(member->in)[i]);
    for (const Collective *member : members)
      static_cast<T *>(member->out)[i] = most;
  }
}

void allReduceMaxPart(Members members, int part) {
  int64_t count = members[0]->count, size = static_cast<int64_t>(members.size());
  int64_t begin = count * part / size, end = count * (part + 1) / size;
  if (members[0]->inType == DType::F64)
    maxPart<double>(members, begin, end);
  else if (members[0]->inType == DType::BF16)
    maxPart<BF16>(members, begin, end);
  else if (members[0]->inType == DType::F16)
    maxPart<F16>(members, begin, end);
  else
    maxPart<float>(members, begin, end);
}

void allToAllPart(Members members, int part) {
  const Collective &mine = *members[static_cast<size_t>(part)];
  int64_t bytes = mine.count * dtypeBytes(mine.inType);
  auto *out = static_cast<uint8_t *>(mine.out);
  for (size_t m = 0; m < members.size(); ++m)
    std::memcpy(out + bytes * static_cast<int64_t>(m),
                static_cast<const uint8_t *>(members[m]->in) + bytes * part,
                static_cast<size_t>(bytes));
}

void shiftPart(Members members, int part) {
  const Collective &mine = *members[static_cast<size_t>(part)];
  int64_t from = memberBehind(part, -mine.by, static_cast<int64_t>(members.size()));
  std::memcpy(mine.out, members[static_cast<size_t>(from)]->in,
              static_cast<size_t>(mine.count * dtypeBytes(mine.inType)));
}

} // namespace

/// Members must agree on kind, count, types, average and shift. Types must be those for which there
/// is an implementation here.
Status checkMembers(Members members) {
  const Collective &first = *members[0];
  constexpr StatusCode kCode = StatusCode::InvalidInput;
  if (isPointToPoint(first.kind))
    return checkTransfer(members);
  for (const Collective *member : members)
    if (member->kind != first.kind || member->count != first.count ||
        member->inType != first.inType || member->outType != first.outType ||
        member->average != first.average || member->by != first.by)
      return makeStatus(kCode, "members disagree: {} of {} {} elements and {} of {} {} elements",
                        hal::toString(first.kind), first.count, dtypeName(first.inType),
                        hal::toString(member->kind), member->count, dtypeName(member->inType));
  return hal::checkTypes(first);
}

void runPart(Members members, int part) {
  switch (members[0]->kind) {
  case CollectiveKind::AllGather:
    return gatherPart(members, part);
  case CollectiveKind::ReduceScatter:
    return reduceScatterPart(members, part);
  case CollectiveKind::AllReduce:
    return allReducePart(members, part);
  case CollectiveKind::Send:
  case CollectiveKind::Recv:
    return receivePart(members, part);
  case CollectiveKind::AllReduceMax:
    return allReduceMaxPart(members, part);
  case CollectiveKind::AllToAll:
    return allToAllPart(members, part);
  case CollectiveKind::Shift:
    return shiftPart(members, part);
  }
}

int64_t bytesTouched(Members members) {
  const Collective &first = *members[0];
  int64_t size = static_cast<int64_t>(members.size());
  int64_t each = first.count * dtypeBytes(first.inType);
  return hasParts(first.kind)         ? each * size * size
         : isPointToPoint(first.kind) ? each
                                      : each * size;
}

} // namespace shardc::host
