// Distinguishes the processes of this machine from those of others, finds the process that holds a
// port here, and ends a rank that does not respond.
#pragma once

#include <string>

#include <sys/types.h>

#include "runtime/launch/Wire.h"

namespace shardc::launch {

/// Two processes with the same text can name each other by process number: same boot, same
/// namespace.
std::string machineId();
/// The machine's name, for people.
std::string hostName();

/// This process, as rank or relay of a job.
Hello ownHello(std::string job, int64_t rank, int64_t worldSize);

/// The process that listens on a TCP port of this machine, as text: "process 71 (shardc-run) of
/// user ann". Less if the system says less; empty if it says nothing.
std::string portHolder(int port);

/// One end of a connection, as the system's tables of connections write it: empty if it is unknown.
std::string ownEndOf(const Socket &socket);
std::string otherEndOf(const Socket &socket);

/// Ends a process of this machine at once, stopped or not, if it is a rank of the job that meets at
/// `server`, an end of a connection: it runs the same program as this one and is connected to
/// there. Its parent is ended too, if that runs the program and is stopped. Whatever else is named,
/// by mistake or not, stays as it is.
void endRank(pid_t process, const std::string &server);

} // namespace shardc::launch
