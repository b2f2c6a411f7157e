// The Python programs that importers run, and the tables that these programs need. One program
// replaces the packages that a Megatron-Bridge configuration imports; the others parse Python and
// shell scripts.
#pragma once

#include <string>

#include "llvm/ADT/StringRef.h"

namespace shardc::upstream {

/// The text of bridge_standin.py, bridge_reader.py or shell_reader.py. Their heads describe how to
/// call them. bridge_reader.py needs bridge_standin.py in the same folder.
std::string pythonProgram(llvm::StringRef name);

/// The tables as JSON: sections with their fields, the classes of sections, and the settings of
/// upstream's recipe functions.
std::string bridgeTables();

} // namespace shardc::upstream
