// Allocates the arenas of one rank and turns places of the plan into addresses. It checks that
// every place lies inside its arena.
#include "runtime/exec/Arenas.h"

#include <utility>

#include "runtime/base/Reports.h"

namespace shardc::exec {
namespace {

/// Arena sym is registered with NCCL only if the job uses registered buffers. Otherwise its memory
/// is of the same kind as that of arena work.
hal::MemoryKind kindOf(plan::Arena arena, bool registers) {
  switch (arena) {
  case plan::Arena::State:
    return hal::MemoryKind::State;
  case plan::Arena::Work:
    return hal::MemoryKind::Work;
  case plan::Arena::Sym:
    return registers ? hal::MemoryKind::Sym : hal::MemoryKind::Work;
  case plan::Arena::Host:
    return hal::MemoryKind::Host;
  }
  return hal::MemoryKind::Work;
}

} // namespace

Result<Arenas> Arenas::allocate(const plan::Role &role, hal::Device &device, GroupIndices indices,
                                bool registers, std::unique_ptr<hal::Buffer> state) {
  Arenas arenas;
  arenas.indices_ = std::move(indices);
  for (int a = 0; a < plan::kArenaCount; ++a) {
    auto arena = static_cast<plan::Arena>(a);
    if (arena == plan::Arena::State && state) {
      if (state->bytes() != role.arenaBytes[a])
        return makeStatus(report::PlanCannotRun, "the state has {} bytes; arena {} has {}",
                          state->bytes(), plan::toString(arena), role.arenaBytes[a]);
      arenas.buffers_[a] = std::move(state);
      continue;
    }
    ASSIGN_OR_RETURN(
        arenas.buffers_[a],
        device.allocate(kindOf(arena, registers), role.arenaBytes[a], plan::toString(arena)));
  }
  return arenas;
}

/// An offset has a part that depends on the microbatch (slots of a ring) and a part that depends on
/// the rank's index in `place.group`. The comparison `bytes > size - offset` cannot overflow, since
/// `offset` is at most `size` there.
Result<uint8_t *> Arenas::resolve(const plan::Place &place, int64_t bytes, std::string_view what,
                                  int64_t microbatch) const {
  if (!place.placed)
    return makeStatus(report::PlanCannotRun, "{} has no address", what);
  int64_t offset = place.offsetFor(microbatch) + place.coef * indices_.of(place.group);
  int64_t size = this->bytes(place.arena);
  if (offset < 0 || bytes < 0 || offset > size || bytes > size - offset)
    return makeStatus(report::PlanCannotRun,
                      "{}: bytes {} to {} do not lie in arena {} of {} bytes", what, offset,
                      offset + bytes, plan::toString(place.arena), size);
  return base(place.arena) + offset;
}

} // namespace shardc::exec
