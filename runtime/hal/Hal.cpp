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

std::string_view toString(CollectiveKind kind) {
  switch (kind) {
  case CollectiveKind::AllGather:
    return "all_gather";
  case CollectiveKind::ReduceScatter:
    return "reduce_scatter";
  case CollectiveKind::AllReduce:
    return "all_reduce";
  }
  return "";
}

} // namespace shardc::hal
