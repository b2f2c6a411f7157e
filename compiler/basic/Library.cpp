#include "compiler/basic/Library.h"

#include <algorithm>
#include <filesystem>

namespace shardc {
namespace fs = std::filesystem;

std::string normalLibraryName(llvm::StringRef name) {
  fs::path path = name.drop_front(kLibraryPrefix.size()).str();
  // Treats the library as the root of a file system, so that `..` cannot leave it.
  path = ("/" / path.relative_path()).lexically_normal().relative_path();
  return kLibraryPrefix.str() + path.generic_string();
}

std::string besideInLibrary(llvm::StringRef name, llvm::StringRef base) {
  fs::path path = name.drop_front(kLibraryPrefix.size()).str();
  path.replace_filename(base.str());
  return normalLibraryName(kLibraryPrefix.str() + path.generic_string());
}

std::string filePathOf(llvm::StringRef name) {
  if (!isLibraryName(name))
    return name.str();
  std::error_code error;
  fs::path program = fs::read_symlink("/proc/self/exe", error);
  fs::path folder = program.parent_path().parent_path() / "share/shardc/recipes";
  return (folder / normalLibraryName(name).substr(kLibraryPrefix.size())).string();
}

std::string dataPathOf(llvm::StringRef path) {
  std::error_code error;
  fs::path file = path.str();
  if (file.is_absolute() || fs::exists(file, error))
    return path.str();
  fs::path program = fs::read_symlink("/proc/self/exe", error);
  fs::path installed = program.parent_path().parent_path() / "share/doc/shardc" / file;
  return fs::exists(installed, error) ? installed.string() : path.str();
}

std::vector<std::string> recipesBelow(const std::string &folder, std::error_code &error,
                                      size_t maxEntries) {
  std::vector<std::string> names;
  for (auto at = fs::recursive_directory_iterator(
           folder, fs::directory_options::skip_permission_denied, error);
       !error && at != fs::recursive_directory_iterator() && maxEntries-- > 0;
       at.increment(error)) {
    const fs::path &path = at->path();
    std::error_code ignored;
    if (path.filename() == "overlays" || path.filename().native().front() == '.')
      at.disable_recursion_pending();
    else if (path.extension() == ".recipe" && !at->is_symlink(ignored))
      names.push_back(path.lexically_relative(folder).generic_string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool beginsAsRecipe(llvm::StringRef text) {
  text.consume_front("\xEF\xBB\xBF");
  while (true) {
    text = text.ltrim();
    if (text.startswith("//") || text.startswith("#"))
      text = text.drop_front(std::min(text.find('\n'), text.size()));
    else if (text.startswith("/*"))
      text = text.drop_front(std::min(text.find("*/"), text.size() - 2) + 2);
    else
      return text.startswith("recipe");
  }
}

} // namespace shardc
