// A folder from an untrusted source. Names in it open only regular files inside it, and no links
// are followed, so that no name can reach another file of this machine. The path of the folder
// itself is the user's and may contain links.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/Io.h"

namespace shardc {

class UntrustedFolder {
public:
  /// NotFound if nothing is there, InvalidInput if it is not a folder, Io with the system's reason.
  static Result<UntrustedFolder> open(const std::string &path);
  UntrustedFolder(UntrustedFolder &&other) noexcept;
  UntrustedFolder &operator=(UntrustedFolder &&other) noexcept;
  ~UntrustedFolder();

  const std::string &path() const { return path_; }

  /// Maps a file; `name` may lead into folders of the folder (`recipe/a.recipe`). NotFound if it is
  /// not there. InvalidInput for a link, on the way too, for what is not a regular file, and for
  /// names that lead out (`..`, absolute ones).
  Result<MappedFile> map(const std::string &name) const;
  /// Reads a file whole; as `map`, and InvalidInput beyond `bytesMax`.
  Result<std::string> read(const std::string &name, uint64_t bytesMax) const;
  /// A file's size in bytes, without opening it; the failures of `map`.
  Result<uint64_t> sizeOf(const std::string &name) const;
  /// Whether anything has that name, a link that leads nowhere too.
  bool has(const std::string &name) const;

  /// What is in the folder, or in the folder `inner` of it: names, sorted.
  struct Entry {
    std::string name;
    bool isFolder = false; ///< otherwise a file, or something that `map` refuses
  };
  Result<std::vector<Entry>> list(const std::string &inner = "") const;

  /// For tests: leaves out openat2, as a kernel before Linux 5.6 does.
  static void setWithoutOpenat2(bool isWithout);

private:
  UntrustedFolder(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  int fd_ = -1;
  std::string path_;
};

} // namespace shardc
