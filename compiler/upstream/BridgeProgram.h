// The programs in Python that imports run: one that stands in for the packages which a program of
// Megatron-Bridge's configuration imports, and those that read texts; and their tables.
#pragma once

#include <string>

#include "llvm/ADT/StringRef.h"

namespace shardc::upstream {

/// bridge_standin.py, bridge_reader.py, shell_reader.py or shell_words.py, whose heads say how they
/// are called. The second needs the first beside it, and the third the fourth.
std::string pythonProgram(llvm::StringRef name);

/// The sections, their fields, the sections of classes, and upstream's functions, as JSON.
std::string bridgeTables();

} // namespace shardc::upstream
