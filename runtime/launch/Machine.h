// Distinguishes the processes of this machine from those of others, finds the process that occupies
// a port here, and ends a rank that does not respond.
#pragma once

#include <string>

#include <sys/types.h>

#include "runtime/launch/Wire.h"

namespace shardc::launch {

/// Identifies the machine. Two processes with equal texts can refer to each other by process id:
/// they share the boot and the process namespace.
std::string machineId();
/// The machine's name, for messages.
std::string hostName();

/// Returns the hello of this process, as a rank or relay of a job.
Hello ownHello(std::string job, int64_t rank, int64_t worldSize);

/// Describes the process that listens on a TCP port of this machine, such as "process 71
/// (shardc-run) of user ann". Contains only what the system reveals; empty if that is nothing.
std::string portHolder(int port);

/// An end of a connection, in the notation of the system's tables of connections; empty if it is
/// unknown.
std::string ownEndOf(const Socket &socket);
std::string otherEndOf(const Socket &socket);

/// Kills a process of this machine at once, stopped or not, if it is a rank of the job that meets
/// at `server` (one end of a connection): it runs the same program as this process and is connected
/// to that address. Also kills its parent if the parent runs the program and is stopped. Any other
/// process is left alone, even if `process` names it by mistake.
void endRank(pid_t process, const std::string &server);

} // namespace shardc::launch
