// The parts of the interface that are the same for all backends.
#include "runtime/hal/Backend.h"

#include <algorithm>

namespace shardc::hal {

std::string_view toString(MemoryKind kind) {
  switch (kind) {
  case MemoryKind::State:
    return "state";
  case MemoryKind::Work:
    return "work";
  case MemoryKind::Sym:
    return "sym";
  case MemoryKind::Host:
    return "host";
  }
  return "";
}

/// Refuses empty channels, ranks that do not exist, and ranks that are named twice. NCCL would hang
/// on the last.
Status checkMembers(const ChannelDesc &desc, int worldSize) {
  if (desc.members.empty())
    return makeStatus(StatusCode::InvalidInput, "channel '{}' has no members", desc.name);
  for (auto here = desc.members.begin(); here != desc.members.end(); ++here) {
    if (*here < 0 || *here >= worldSize)
      return makeStatus(StatusCode::InvalidInput, "channel '{}': rank {} is not one of {} ranks",
                        desc.name, *here, worldSize);
    if (std::find(desc.members.begin(), here, *here) != here)
      return makeStatus(StatusCode::InvalidInput, "channel '{}': rank {} is a member twice",
                        desc.name, *here);
  }
  return Status::ok();
}

Status checkTypes(const Collective &desc) {
  const DType in = desc.inType, out = desc.outType;
  const bool sums = isSum(desc.kind), isMax = desc.kind == CollectiveKind::AllReduceMax;
  bool canAdd =
      (isComputeType(in) && isComputeType(out)) || (in == DType::F64 && out == DType::F64);
  constexpr StatusCode kCode = StatusCode::InvalidInput;
  if (!sums && in != out)
    return makeStatus(kCode, "{} does not convert between types", toString(desc.kind));
  if ((sums || isMax) && !canAdd)
    return makeStatus(kCode, "{} cannot {} {} into {}", toString(desc.kind),
                      isMax ? "compare" : "sum", dtypeName(in), dtypeName(out));
  if (desc.squares && (desc.kind != CollectiveKind::ReduceScatter || out == DType::F64))
    return makeStatus(kCode, "{} of {} does not sum squares", toString(desc.kind), dtypeName(in));
  return Status::ok();
}

/// Checks the shape of an exchange of counted rows: the buffer has `rows` rows in `slots` slots,
/// each member has the same number of slots, and each slot the same number of rows.
Status checkCounted(const Collective &desc, int members) {
  const CountedRows &counted = desc.counted;
  if (desc.kind != CollectiveKind::AllToAll)
    return makeStatus(StatusCode::InvalidInput, "{} of counted rows", toString(desc.kind));
  constexpr int64_t kMost = int64_t{1} << 30; // keeps the bytes of the counts from overflowing
  bool isInRange = counted.slots > 0 && counted.slots < kMost && counted.groups >= 0 &&
                   counted.groups < kMost && counted.rows > 0;
  if (!isInRange || counted.slots % members != 0 || counted.rows % counted.slots != 0 ||
      members * desc.count % counted.rows != 0)
    return makeStatus(StatusCode::InvalidInput, "{} elements of {} members as {} rows in {} slots",
                      desc.count, members, counted.rows, counted.slots);
  return Status::ok();
}

Status Stream::gathers(Channel &channel, std::span<const Part> parts) {
  for (const Part &part : parts)
    RETURN_IF_ERROR(collective(channel, *part.desc, part.label));
  return Status::ok();
}

} // namespace shardc::hal
