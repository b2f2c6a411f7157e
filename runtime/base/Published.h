// Lets a process publish a line of text under a name, for other processes on the machine. The name
// is an abstract socket (unix(7)), which disappears with the process. Any process that knows the
// name can take it, so the text is not secret and readers must not trust it.
#pragma once

#include <string>

#include "runtime/base/Socket.h"

namespace shardc {

/// Publishes a name of up to 100 characters. Unavailable if it is taken, Exhausted if there are no
/// descriptors left.
Result<Socket> publish(const std::string &name);
/// Sends the text to all processes that have asked. Does not wait. Exhausted if there are no
/// descriptors left.
Status answerAll(const Socket &published, const std::string &text);
/// The published text. Empty if no process has published the name, or if its owner does not answer
/// within `seconds`. Exhausted if there are no descriptors left.
Result<std::string> findPublished(const std::string &name, double seconds);

} // namespace shardc
