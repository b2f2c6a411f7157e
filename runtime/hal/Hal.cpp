#include "runtime/hal/Backend.h"

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

Status Stream::gathers(Channel &channel, std::span<const Part> parts) {
  for (const Part &part : parts)
    RETURN_IF_ERROR(collective(channel, *part.desc, part.label));
  return Status::ok();
}

} // namespace shardc::hal
