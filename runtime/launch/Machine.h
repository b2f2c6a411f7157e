// What tells this machine's processes from another's, and how one that does not answer is ended.
#pragma once

#include <string>

#include <sys/types.h>

namespace shardc::launch {

/// Two processes with the same text can name each other by process number: same boot, same
/// namespace.
std::string machineId();
/// The machine's name, for people.
std::string hostName();
/// Ends a process of this machine at once, stopped or not, if it runs the same program as this one.
void endProcess(pid_t process);
/// The same, only if it is stopped.
void endIfStopped(pid_t process);

} // namespace shardc::launch
