// TCP between the processes of a job: listening, connecting with retries, and transferring whole
// blocks. Supports IPv4 and IPv6. Every wait has a time limit.
#pragma once

#include <cstddef>
#include <string>

#include "runtime/base/Descriptor.h"
#include "runtime/base/Status.h"

namespace shardc {

using Socket = Descriptor;

/// Makes port 0 of listenOn choose a free one of these. Called before any process or thread starts.
void limitPorts(int first, int last);
/// Listens on one of this machine's addresses; port 0 chooses any free port. Exhausted if the port
/// is in use, NotFound if the name has no address, Io if this process cannot open another socket,
/// Unavailable if the address does not belong to this machine.
Result<Socket> listenOn(const std::string &address, int port);
/// Connects within `seconds`, and retries while nobody listens. NotFound or Unavailable with the
/// last reason; Exhausted at once if this process cannot open another socket.
Result<Socket> connectTo(const std::string &address, int port, double seconds);
/// Accepts a waiting connection; returns a closed socket if there is none. Does not wait. Exhausted
/// if this process has no descriptors left; the connection then stays in the queue.
Result<Socket> acceptOne(const Socket &listener);

/// A counter (eventfd(2)) that one thread polls for reading and that others raise with `wake`.
/// Exhausted if this process has no descriptors left.
Result<Socket> makeWakeup();
/// Ends the poll of the thread that waits for `wakeup`. Does not block; signal handlers may call
/// it.
void wake(const Socket &wakeup);
/// Resets the counter, so that the next poll waits again.
void clearWakeup(const Socket &wakeup);

/// The port of a socket on this machine, or -1.
int portOf(const Socket &socket);
/// This machine's address as the other end of the connection sees it, in numeric form; empty if
/// unknown.
std::string ownAddressOf(const Socket &socket);
/// The address of the other end, in numeric form; empty if unknown.
std::string otherAddressOf(const Socket &socket);
/// Formats an endpoint, such as `[::1]:80` or `10.0.0.1:80`.
std::string endpoint(const std::string &address, int port);

/// Sends or receives exactly this many bytes within `seconds`. Unavailable if the other end has
/// closed the connection or is too slow.
Status sendAll(const Socket &socket, const void *data, size_t bytes, double seconds);
Status receiveAll(const Socket &socket, void *data, size_t bytes, double seconds);

} // namespace shardc
