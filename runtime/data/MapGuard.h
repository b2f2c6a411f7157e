// Copies out of memory maps whose file may shrink or whose disk may fail meanwhile. The kernel
// answers such an access by SIGBUS; here it becomes a false.
#pragma once

#include <cstddef>

namespace shardc::data {

/// memcpy from a map; false if the bytes could not be read. Safe from several threads at once;
/// allocates nothing. The first call installs a handler of SIGBUS that passes on all that is not
/// its own.
bool copyFromMap(void *to, const void *from, size_t bytes);

} // namespace shardc::data
