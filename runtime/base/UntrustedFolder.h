// A folder from an untrusted source. Names in it can only open regular files inside it, and links
// are not followed, so that no name leads to another file of this machine. Only in a snapshot of
// Hugging Face's cache, links to `blobs` of the same cache entry are followed. The path of the
// folder itself comes from the user and may contain links.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/Io.h"

namespace shardc {

/// An open descriptor of the folder, so that a later rename of its path changes nothing. Move-only.
class UntrustedFolder {
public:
  /// NotFound if nothing is there, InvalidInput if it is not a folder, Io with the system's reason.
  static Result<UntrustedFolder> open(const std::string &path);

  const std::string &path() const { return path_; }

  /// Opens a subfolder. Fails like `open`, and with InvalidInput for links, also on the way.
  Result<UntrustedFolder> folder(const std::string &name) const;

  /// Maps a file. `name` may lead into subfolders (`recipe/a.recipe`). NotFound if it does not
  /// exist. InvalidInput for links, also on the way, for anything but regular files, and for names
  /// that lead outside (`..` or absolute).
  Result<MappedFile> map(const std::string &name) const;
  /// `read` in the folder with this path.
  static Result<std::string> readIn(const std::string &folder, const std::string &name,
                                    uint64_t bytesMax);

  /// Reads a whole file. Fails like `map`, and with InvalidInput if the file is larger than
  /// `bytesMax`.
  Result<std::string> read(const std::string &name, uint64_t bytesMax) const;
  /// A file's size in bytes, without opening the file. Fails like `map`.
  Result<uint64_t> sizeOf(const std::string &name) const;
  /// Whether an entry has this name, even if it is a dangling link.
  bool has(const std::string &name) const;

  /// An entry of the folder or of its subfolder `inner`. Lists are sorted by name.
  struct Entry {
    std::string name;
    bool isFolder = false; ///< otherwise a file, or an entry that `map` refuses
  };
  Result<std::vector<Entry>> list(const std::string &inner = "") const;
  /// The names of all entries but folders, also of those in subfolders down to this level, sorted
  /// within each folder. Hidden subfolders are left out.
  Result<std::vector<std::string>> listBelow(int levels, const std::string &inner = "") const;

private:
  UntrustedFolder(Descriptor folder, std::string path)
      : folder_(std::move(folder)), path_(std::move(path)) {}

  Descriptor folder_;
  std::string path_;
};

} // namespace shardc
