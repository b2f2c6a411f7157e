// A line of text that a process of a machine has for others of it, under a name: a socket in the
// system's table of names (unix(7), abstract), which is gone with the process. Whoever knows the
// name can take it, so it is no secret, and who reads it must not trust it.
#pragma once

#include <string>

#include "runtime/base/Socket.h"

namespace shardc {

/// Publishes a name of up to 100 characters. Unavailable if it is taken, Exhausted without
/// descriptors.
Result<Socket> publish(const std::string &name);
/// Sends the text to all who have asked. Does not wait. Exhausted without descriptors.
Status answerAll(const Socket &published, const std::string &text);
/// The published text; empty if no process has published the name, or if its owner does not answer
/// in time. Exhausted without descriptors.
Result<std::string> findPublished(const std::string &name, double seconds);

} // namespace shardc
