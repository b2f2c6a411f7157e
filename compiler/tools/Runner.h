// Commands that another program, mostly shardc-run, carries out in this process's place.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compiler/tools/Session.h"

namespace shardc::tools {

/// Path of shardc-run, which is in this program's folder. `program`: the name by which this program
/// was started.
std::string findRunner(const std::string &program);

/// Replaces this process by the program. Returns only if that fails.
ExitStatus become(const std::string &program, std::vector<std::string> arguments);

/// Passes an option on to another program, if it was given.
void passOn(std::vector<std::string> &arguments, const std::string &option,
            const std::string &value);
void passOn(std::vector<std::string> &arguments, const std::string &option, int64_t value);
void passOnFlag(std::vector<std::string> &arguments, const std::string &flag, bool isGiven);

/// A file descriptor that holds the text and survives exec; -1 on failure.
int makeTextFd(const std::string &text);

/// A path from which the text can be read after this process was replaced by another program.
std::optional<std::string> pathOfText(const std::string &text);

} // namespace shardc::tools
