#include "runtime/base/UntrustedFolder.h"

#include <algorithm>
#include <cerrno>
#include <dirent.h>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace shardc {
namespace {

constexpr int kReading = O_RDONLY | O_NONBLOCK; ///< does not wait for the writer of a pipe

/// Whether each part of the name is an entry of the folder before it, not `.`, `..` or empty.
bool staysBeneath(std::string_view name) {
  if (name.find('\0') != std::string_view::npos)
    return false;
  while (true) {
    size_t end = name.find('/');
    std::string_view part = name.substr(0, end);
    if (part.empty() || part == "." || part == "..")
      return false;
    if (end == std::string_view::npos)
      return true;
    name.remove_prefix(end + 1);
  }
}

/// Opens each part of the path relative to the folder before it, and never resolves a link or `..`.
int openBeneath(int folder, std::string_view name, int flags) {
  Descriptor inner;
  while (true) {
    size_t end = name.find('/');
    std::string part(name.substr(0, end));
    bool isLast = end == std::string_view::npos;
    int from = inner.isOpen() ? inner.fd() : folder;
    int fd = ::openat(from, part.c_str(),
                      O_NOFOLLOW | O_CLOEXEC | (isLast ? flags : O_PATH | O_DIRECTORY));
    if (isLast || fd < 0)
      return fd;
    inner = Descriptor(fd);
    name.remove_prefix(end + 1);
  }
}

/// Opens what a link in a snapshot of Hugging Face's cache leads to: a file in `blobs` of the same
/// cache entry, `models--NAME/snapshots/REVISION/../../blobs/FILE`. -1 for all other links.
int openBlob(int folder, const std::string &path, const std::string &name, int flags) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path snapshots = fs::canonical(path, error).parent_path();
  char text[512];
  ssize_t length = ::readlinkat(folder, name.c_str(), text, sizeof text);
  std::string_view target(text, length > 0 ? static_cast<size_t>(length) : 0);
  constexpr std::string_view kBlobs = "../../blobs/";
  std::string blob(target.substr(std::min(target.size(), kBlobs.size())));
  bool isCache = snapshots.filename() == "snapshots" &&
                 snapshots.parent_path().filename().string().find("--") != std::string::npos;
  if (!isCache || name.find('/') != std::string::npos || !target.starts_with(kBlobs) ||
      target.size() == sizeof text || blob.find('/') != std::string::npos || !staysBeneath(blob))
    return -1;
  Descriptor entry(::openat(folder, "../..", O_PATH | O_DIRECTORY | O_CLOEXEC));
  return entry.isOpen() ? openBeneath(entry.fd(), "blobs/" + blob, flags) : -1;
}

Status refuse(const std::string &path, const char *kind) {
  return makeStatus(StatusCode::InvalidInput,
                    "'{}' is a {}, not a file; only regular files in the folder itself are "
                    "accepted",
                    path, kind);
}

/// Opens a regular file, or refers to one with O_PATH. The error says what the entry is if it is
/// not a regular file.
Result<Descriptor> openRegular(int folder, const std::string &in, const std::string &name,
                               int flags, struct stat &info) {
  std::string path = in + "/" + name;
  if (!staysBeneath(name))
    return makeStatus(StatusCode::InvalidInput, "'{}' points outside the folder '{}'", name, in);
  if ((flags & O_PATH) == 0) // to open a device may already act on it
    RETURN_IF_ERROR(openRegular(folder, in, name, O_PATH, info).status());
  Descriptor file(openBeneath(folder, name, flags));
  int error = errno;
  bool isLink = file.isOpen() ? ::fstat(file.fd(), &info) == 0 && S_ISLNK(info.st_mode)
                              : error == ELOOP; // O_PATH opens the link itself
  if (isLink)
    if (Descriptor blob(openBlob(folder, in, name, flags)); blob.isOpen())
      file = std::move(blob);
  if (!file.isOpen()) {
    if ((error == ELOOP || error == EXDEV || error == ENOTDIR) &&
        name.find('/') != std::string::npos)
      return makeStatus(StatusCode::InvalidInput,
                        "'{}' is not in the folder itself: a part of its path is a link or a file",
                        path);
    if (error == ELOOP)
      return refuse(path, "link");
    return systemError("open", path, error);
  }
  if (::fstat(file.fd(), &info) != 0)
    return systemError("read", path, errno);
  if (!S_ISREG(info.st_mode))
    return refuse(path, kindOfFile(info.st_mode));
  RETURN_IF_ERROR(refuseSystemFile(file.fd(), path));
  return file;
}

} // namespace

Result<UntrustedFolder> UntrustedFolder::open(const std::string &path) {
  Descriptor opened(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!opened.isOpen() && errno == ENOTDIR)
    return makeStatus(StatusCode::InvalidInput, "'{}' is not a folder", path);
  if (!opened.isOpen())
    return systemError("open", path, errno);
  return UntrustedFolder(std::move(opened), path);
}

Result<UntrustedFolder> UntrustedFolder::folder(const std::string &name) const {
  std::string path = path_ + "/" + name;
  if (!staysBeneath(name))
    return makeStatus(StatusCode::InvalidInput, "'{}' points outside the folder '{}'", name, path_);
  Descriptor opened(openBeneath(folder_.fd(), name, O_PATH | O_DIRECTORY));
  if (!opened.isOpen() && (errno == ELOOP || errno == EXDEV || errno == ENOTDIR))
    return makeStatus(StatusCode::InvalidInput, "'{}' is a link or not a folder", path);
  if (!opened.isOpen())
    return systemError("open", path, errno);
  return UntrustedFolder(std::move(opened), std::move(path));
}

Result<MappedFile> UntrustedFolder::map(const std::string &name) const {
  struct stat info = {};
  ASSIGN_OR_RETURN(Descriptor file, openRegular(folder_.fd(), path_, name, kReading, info));
  return MappedFile::ofOpened(file.fd(), path_ + "/" + name);
}

Result<std::string> UntrustedFolder::readIn(const std::string &folder, const std::string &name,
                                            uint64_t bytesMax) {
  ASSIGN_OR_RETURN(UntrustedFolder opened, open(folder));
  return opened.read(name, bytesMax);
}

Result<std::string> UntrustedFolder::read(const std::string &name, uint64_t bytesMax) const {
  struct stat info = {};
  ASSIGN_OR_RETURN(Descriptor file, openRegular(folder_.fd(), path_, name, kReading, info));
  return readOpened(file.fd(), path_ + "/" + name, bytesMax);
}

Result<uint64_t> UntrustedFolder::sizeOf(const std::string &name) const {
  struct stat info = {};
  ASSIGN_OR_RETURN(Descriptor file,
                   openRegular(folder_.fd(), path_, name, O_PATH | O_NOFOLLOW, info));
  return static_cast<uint64_t>(info.st_size);
}

bool UntrustedFolder::has(const std::string &name) const {
  struct stat info = {};
  return staysBeneath(name) &&
         ::fstatat(folder_.fd(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0;
}

Result<std::vector<UntrustedFolder::Entry>> UntrustedFolder::list(const std::string &inner) const {
  if (!inner.empty()) {
    ASSIGN_OR_RETURN(UntrustedFolder opened, folder(inner));
    return opened.list();
  }
  Descriptor opened(::openat(folder_.fd(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  std::unique_ptr<DIR, int (*)(DIR *)> folder(opened.isOpen() ? ::fdopendir(opened.fd()) : nullptr,
                                              ::closedir);
  if (!folder)
    return systemError("list", path_, errno);
  opened.release(); // the list closes it
  std::vector<Entry> entries;
  errno = 0;
  while (const dirent *found = ::readdir(folder.get())) {
    std::string name = found->d_name;
    struct stat info = {};
    if (name == "." || name == ".." ||
        ::fstatat(::dirfd(folder.get()), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0)
      continue; // removed meanwhile
    entries.push_back({std::move(name), S_ISDIR(info.st_mode)});
    errno = 0;
  }
  if (errno != 0)
    return systemError("list", path_, errno);
  std::ranges::sort(entries, {}, &Entry::name);
  return entries;
}

Result<std::vector<std::string>> UntrustedFolder::listBelow(int levels,
                                                            const std::string &inner) const {
  std::vector<std::string> names;
  ASSIGN_OR_RETURN(std::vector<Entry> entries, list(inner));
  for (const Entry &entry : entries) {
    std::string name = inner.empty() ? entry.name : inner + "/" + entry.name;
    if (!entry.isFolder) {
      names.push_back(std::move(name));
    } else if (levels > 0 && !entry.name.starts_with('.')) {
      ASSIGN_OR_RETURN(std::vector<std::string> more, listBelow(levels - 1, name));
      names.insert(names.end(), more.begin(), more.end());
    }
  }
  return names;
}

} // namespace shardc
