// A line of text that a process of a machine has for others of it, under a name: a socket in the
// system's table of names (unix(7), abstract), which is gone with the process. Whoever knows the
// name can take it, so it is no secret, and who reads it must not trust it.
#pragma once

#include <string>

#include "runtime/base/Socket.h"

namespace shardc {

/// Unavailable where the name is taken, Exhausted where there are no descriptors; up to 100
/// characters.
Result<Socket> publish(const std::string &name);
/// Gives the text to all that have asked since. Does not wait. Exhausted where there are no
/// descriptors.
Status answerAll(const Socket &published, const std::string &text);
/// The text that is published; empty where nobody has the name, or it does not answer within the
/// time. Exhausted where there are no descriptors.
Result<std::string> findPublished(const std::string &name, double seconds);

} // namespace shardc
