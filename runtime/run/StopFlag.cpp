#include "runtime/run/StopFlag.h"

#include <cstring>

#include "runtime/plan/Builder.h"

namespace shardc::run {

Status StopFlag::prepare(exec::Executable &executable) {
  const plan::Role &role = executable.role();
  uint32_t stop = plan::findCell(role, plan::CellKind::Stop);
  if (stop == plan::kNone)
    return Status::ok();
  const plan::Cell &cell = role.cells[stop];
  ASSIGN_OR_RETURN(source_, executable.device(0).allocate(hal::MemoryKind::Host, cell.type.bytes(),
                                                          "stop request"));
  std::memset(source_->data(), 1, static_cast<size_t>(cell.type.bytes()));
  for (size_t r = 0; r < executable.rankCount(); ++r) {
    ASSIGN_OR_RETURN(uint8_t * address,
                     executable.arenas(r).resolve(cell.place, cell.type.bytes(), "@stop"));
    addresses_.push_back(address);
    RETURN_IF_ERROR(executable.computeStream(r).fill(address, 0, cell.type.bytes(), "clear @stop"));
  }
  return Status::ok();
}

Status StopFlag::set(exec::Executable &executable) {
  for (size_t r = 0; r < addresses_.size(); ++r)
    RETURN_IF_ERROR(executable.computeStream(r).copy(addresses_[r], source_->data(),
                                                     source_->bytes(), "set @stop"));
  return Status::ok();
}

} // namespace shardc::run
