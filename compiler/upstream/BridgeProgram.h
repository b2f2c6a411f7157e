// What a program of Megatron-Bridge's configuration runs with: a script that stands in for the
// packages which the program imports, and the tables that the script reads.
#pragma once

#include <string>

namespace shardc::upstream {

/// The script; its head says how it is called.
std::string bridgeStandin();

/// The fields of each section, the sections of classes, and upstream's functions, as JSON.
std::string bridgeTables();

} // namespace shardc::upstream
