// What tells this machine's processes from another's, who holds a port here, and how a rank that
// does not answer is ended.
#pragma once

#include <string>

#include <sys/types.h>

#include "runtime/base/Socket.h"

namespace shardc::launch {

/// Two processes with the same text can name each other by process number: same boot, same
/// namespace.
std::string machineId();
/// The machine's name, for people.
std::string hostName();

/// Who listens on a TCP port of this machine, as words: "process 71 (shardc-run) of user ann". Less
/// where the system tells less; empty where it tells nothing.
std::string portHolder(int port);

/// One end of a connection, as the system's tables of connections write it: empty if it cannot be
/// told.
std::string ownEndOf(const Socket &socket);
std::string otherEndOf(const Socket &socket);

/// Ends a process of this machine at once, stopped or not, if it is a rank of the job that meets at
/// `hub`, an end of a connection: it runs the same program as this one and is connected to there.
/// Its parent is ended too, if that runs the program and is stopped. Whatever else is named, by
/// mistake or not, stays as it is.
void endRank(pid_t process, const std::string &hub);

} // namespace shardc::launch
