// Recipes that come with the programs. Their names begin with `shardc:`, as in
// `shardc:llama3/llama3_8b.recipe`, and do not depend on the working folder: the rest of the name
// is a path in `share/shardc/recipes`, next to the folder of the running program.
// SourceManager::loadFile reads them as text without a file, because they must not be written.
#pragma once

#include <string>
#include <system_error>
#include <vector>

#include "llvm/ADT/StringRef.h"

namespace shardc {

inline constexpr llvm::StringLiteral kLibraryPrefix = "shardc:";

/// Whether the name is that of a recipe that comes with the programs.
inline bool isLibraryName(llvm::StringRef name) { return name.startswith(kLibraryPrefix); }

/// Removes `.` and `..` from the name: `shardc:a/../b.recipe` becomes `shardc:b.recipe`.
std::string normalLibraryName(llvm::StringRef name);

/// The name of the file `base`, relative to the folder of the library recipe `name`.
std::string besideInLibrary(llvm::StringRef name, llvm::StringRef base);

/// The path of the file with a library name. Returns any other name unchanged.
std::string filePathOf(llvm::StringRef name);

/// The path of the data that an installed recipe names: in the working folder if it exists there,
/// otherwise next to the installed documentation, which such recipes use as data.
std::string dataPathOf(llvm::StringRef path);

/// Paths of the recipes below a folder relative to it, sorted, without overlays, links and hidden
/// folders. Looks at no more than `maxEntries` files.
std::vector<std::string> recipesBelow(const std::string &folder, std::error_code &error,
                                      size_t maxEntries = SIZE_MAX);

/// Whether the first word of a text after comments is `recipe`.
bool beginsAsRecipe(llvm::StringRef text);

} // namespace shardc
