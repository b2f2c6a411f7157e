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

Status Stream::gathers(Channel &channel, std::span<const Part> parts) {
  for (const Part &part : parts)
    RETURN_IF_ERROR(collective(channel, *part.desc, part.label));
  return Status::ok();
}

} // namespace shardc::hal
