// A folder from an untrusted source. Names in it open only regular files inside it, and no links
// are followed, so that no name can reach another file of this machine. The path of the folder
// itself is the user's and may contain links.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/Io.h"

namespace shardc {

/// How names are followed: in one call of the kernel, where it has one (openat2), or part by part.
enum class NameWalk : uint8_t { AtOnce, ByParts };

class UntrustedFolder {
public:
  /// NotFound if nothing is there, InvalidInput if it is not a folder, Io with the system's reason.
  static Result<UntrustedFolder> open(const std::string &path, NameWalk walk = NameWalk::AtOnce);
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

  /// Lists the folder, or its folder `inner`: names, sorted.
  struct Entry {
    std::string name;
    bool isFolder = false; ///< otherwise a file, or something that `map` refuses
  };
  Result<std::vector<Entry>> list(const std::string &inner = "") const;

private:
  UntrustedFolder(int fd, std::string path, NameWalk walk)
      : fd_(fd), path_(std::move(path)), walk_(walk) {}

  int fd_ = -1;
  std::string path_;
  NameWalk walk_ = NameWalk::AtOnce;
};

} // namespace shardc
