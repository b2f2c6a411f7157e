// Recipes that come with the programs. Their names begin with `shardc:`, as in
// `shardc:llama3/llama3_8b.recipe`, and mean the same in every folder: the rest of the name is a
// path in `share/shardc/recipes` beside the folder of the running program. SourceManager::loadFile
// reads them under these names, as text without a file, since nothing writes them.
#pragma once

#include <string>

#include "llvm/ADT/StringRef.h"

namespace shardc {

inline constexpr llvm::StringLiteral kLibraryPrefix = "shardc:";

/// Whether the name is one of a recipe that comes with the programs.
inline bool isLibraryName(llvm::StringRef name) { return name.startswith(kLibraryPrefix); }

/// The name without `.` and `..`: `shardc:a/../b.recipe` is `shardc:b.recipe`.
std::string normalLibraryName(llvm::StringRef name);

/// The name of the file that a library recipe calls `base`, relative to its own folder.
std::string besideInLibrary(llvm::StringRef name, llvm::StringRef base);

/// The path of the file with such a name; any other name is returned unchanged.
std::string filePathOf(llvm::StringRef name);

/// The path of the data of an installed recipe: in the working folder, otherwise beside the
/// installed documentation, on which such recipes train.
std::string dataPathOf(llvm::StringRef path);

} // namespace shardc
