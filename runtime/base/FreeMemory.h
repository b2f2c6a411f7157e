// The memory of the machine.
#pragma once

#include <cstdint>

namespace shardc {

/// Bytes that this process can still allocate: the system's available memory, limited by the
/// process's control group.
int64_t machineBytesFree();

} // namespace shardc
