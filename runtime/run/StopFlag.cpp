#include "runtime/run/StopFlag.h"

#include <cstring>

#include "runtime/base/Reports.h"
#include "runtime/plan/Builder.h"

namespace shardc::run {

Status StopFlag::prepare(exec::Executable &executable) {
  uint32_t stop = plan::findCell(executable.role(), plan::CellKind::Stop);
  if (stop == plan::kNone)
    return Status::ok();
  const plan::Cell &cell = executable.role().cells[stop];
  ASSIGN_OR_RETURN(source_, executable.device(0).allocate(hal::MemoryKind::Host, cell.type.bytes(),
                                                          "stop request"));
  std::memset(source_->data(), 1, static_cast<size_t>(cell.type.bytes()));
  for (size_t r = 0; r < executable.rankCount(); ++r) {
    const plan::Role &role = executable.roleOf(r);
    uint32_t index = plan::findCell(role, plan::CellKind::Stop);
    if (index == plan::kNone || role.cells[index].type != cell.type)
      return makeStatus(report::PlanCannotRun, "role '{}' has no stop flag like that of role '{}'",
                        role.name, executable.role().name);
    ASSIGN_OR_RETURN(uint8_t * address, executable.arenas(r).resolve(role.cells[index].place,
                                                                     cell.type.bytes(), "@stop"));
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
