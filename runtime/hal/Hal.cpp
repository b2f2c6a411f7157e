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

} // namespace shardc::hal
