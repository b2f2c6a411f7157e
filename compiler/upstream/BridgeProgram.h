// What reads a program of Megatron-Bridge's configuration: a script that stands in for the packages
// which the program imports, another that reads the text, and the tables of both.
#pragma once

#include <string>

namespace shardc::upstream {

/// The scripts, bridge_standin.py and bridge_reader.py; their heads say how they are called. The
/// second needs the first beside it.
std::string bridgeStandin();
std::string bridgeReader();

/// The sections, their fields, the sections of classes, and upstream's functions, as JSON.
std::string bridgeTables();

} // namespace shardc::upstream
