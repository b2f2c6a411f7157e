// Wraps POSIX calls for files that are read or written as a whole. runtime/data/DataFile reads
// files that stay open.
#include "runtime/base/Io.h"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <linux/magic.h>
#include <optional>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <utility>

namespace shardc {
namespace {

namespace fs = std::filesystem;

Status syncFolder(const std::string &path) {
  Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.isOpen() || ::fsync(folder.fd()) != 0)
    return systemError("sync", path, errno);
  return Status::ok();
}

/// The target of a path after following links, whether it exists or not.
std::string behindLinks(const std::string &path) {
  constexpr int kLinksMax = 40; // the limit of the Linux kernel
  std::error_code error;
  fs::path at = path;
  for (int i = 0; i < kLinksMax && fs::is_symlink(fs::symlink_status(at, error)); ++i)
    at = at.parent_path() / fs::read_symlink(at, error);
  return at.string();
}

/// Whether a descriptor was passed to this program for reading. Descriptors that the program opened
/// itself have FD_CLOEXEC, and descriptors such as standard output are only for writing.
bool isInput(int fd) {
  int flags = ::fcntl(fd, F_GETFD), mode = ::fcntl(fd, F_GETFL);
  bool isOwn = flags < 0 || (flags & FD_CLOEXEC) != 0;
  return !isOwn && mode >= 0 && (mode & O_ACCMODE) != O_WRONLY;
}

/// The number of a descriptor that a path names. Shells pass such paths for `<(command)`.
std::optional<int> descriptorOf(std::string_view path) {
  if (path == "/dev/stdin" && isInput(STDIN_FILENO))
    return STDIN_FILENO;
  for (std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    unsigned short fd = 0; // opening the path later fails if the descriptor is not open
    const char *end = path.data() + path.size();
    if (!path.starts_with(folder))
      continue;
    auto [stop, error] = std::from_chars(path.data() + folder.size(), end, fd);
    if (error == std::errc() && stop == end && isInput(fd))
      return fd;
  }
  return std::nullopt;
}

/// Writes to the existing file, pipe or device at `path`.
Status writeInPlace(const std::string &path, std::string_view contents) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC));
  if (!file.isOpen())
    return systemError("open", path, errno);
  return writeAll(file.fd(), contents, path);
}

/// Gives a file the owner of the file that it replaces, if the system allows it, and that file's
/// mode.
Status takeMode(int fd, const struct stat &replaced, const std::string &path) {
  bool isOwned = ::fchown(fd, replaced.st_uid, replaced.st_gid) == 0;
  mode_t mode = replaced.st_mode & (isOwned ? 07777 : 0777);
  return ::fchmod(fd, mode) == 0 ? Status::ok() : systemError("set the mode of", path, errno);
}

/// Whether the path is written in place, as pipes and devices are. A link in /proc may also lead to
/// a file without a name.
bool isWrittenInPlace(const std::string &path, const std::string &target) {
  std::error_code error;
  fs::file_status found = fs::status(path, error);
  return fs::exists(found) && (!fs::is_regular_file(found) || !fs::equivalent(path, target, error));
}

} // namespace

/// The temporary file is private until it has the mode of the file that it replaces.
Status replaceFile(const std::string &path, std::string_view contents) {
  std::string temporary = temporaryOf(path);
  struct stat replaced = {};
  bool isReplacing = ::stat(path.c_str(), &replaced) == 0;
  Status status;
  {
    Descriptor file(createNew(temporary, isReplacing ? 0600 : 0644));
    if (!file.isOpen())
      return systemError("create", path, errno);
    status = writeAll(file.fd(), contents, temporary);
    if (status.isOk() && isReplacing)
      status = takeMode(file.fd(), replaced, temporary);
    if (status.isOk() && ::fsync(file.fd()) != 0)
      status = systemError("sync", temporary, errno);
  }
  if (status.isOk() && ::rename(temporary.c_str(), path.c_str()) != 0)
    status = systemError("rename to", path, errno);
  if (!status.isOk()) {
    ::unlink(temporary.c_str());
    return status;
  }
  std::string folder = fs::path(path).parent_path().string();
  return syncFolder(folder.empty() ? "." : folder);
}

bool writeFully(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR)
      continue;
    if (written < 0)
      return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

Status writeAll(int fd, std::string_view contents, const std::string &path) {
  return writeFully(fd, contents) ? Status::ok() : systemError("write", path, errno);
}

std::string temporaryOf(const std::string &path) {
  uint64_t number = 0;
  while (::getrandom(&number, sizeof number, 0) != sizeof number && errno == EINTR)
    ;
  return fmt::format("{}.tmp.{:016x}", path, number);
}

bool isTemporaryOf(std::string_view name, std::string_view of) {
  constexpr std::string_view kEnd = ".tmp";
  if (!name.starts_with(of) || !(name = name.substr(of.size())).starts_with(kEnd))
    return false;
  name.remove_prefix(kEnd.size());
  return name.empty() || (name.size() == 17 && name[0] == '.' &&
                          name.find_first_not_of("0123456789abcdef", 1) == std::string_view::npos);
}

/// An entry of this name is removed first. A link is removed itself, not what it leads to.
int createNew(const std::string &path, unsigned mode) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  int fd = ::open(path.c_str(), kFlags, mode);
  if (fd < 0 && errno == EEXIST && ::unlink(path.c_str()) == 0)
    fd = ::open(path.c_str(), kFlags, mode);
  return fd;
}

/// Looks at the file before it opens it, since to open a device may already act on it, and again
/// afterwards. O_NONBLOCK does not wait for the writer of a pipe that took its place.
Result<Descriptor> openRegular(const std::string &path) {
  Descriptor seen;
  for (int flags : {O_PATH, O_RDONLY | O_NONBLOCK}) {
    Descriptor file(::open(path.c_str(), flags | O_CLOEXEC));
    struct stat info = {};
    if (!file.isOpen() || ::fstat(file.fd(), &info) != 0)
      return systemError("open", path, errno);
    if (!S_ISREG(info.st_mode))
      return makeStatus(StatusCode::InvalidInput, "'{}' is a {}, not a file", path,
                        kindOfFile(info.st_mode));
    RETURN_IF_ERROR(refuseSystemFile(file.fd(), path));
    seen = std::move(file);
  }
  return seen;
}

const char *kindOfFile(unsigned mode) {
  return S_ISDIR(mode)    ? "folder"
         : S_ISLNK(mode)  ? "link"
         : S_ISFIFO(mode) ? "pipe"
         : S_ISSOCK(mode) ? "socket"
                          : "device";
}

StatusCode kindOfError(int error) {
  switch (error) {
  case ENOENT:
    return StatusCode::NotFound;
  case ENOSPC:
  case EDQUOT:
  case EMFILE:
  case ENFILE:
    return StatusCode::Exhausted;
  default:
    return StatusCode::Io;
  }
}

Status systemError(const char *what, const std::string &path, int error) {
  const char *advice = error == EMFILE ? "; raise the limit of open files (ulimit -n)" : "";
  return makeStatus(kindOfError(error), "cannot {} '{}': {}{}", what, path, std::strerror(error),
                    advice);
}

/// The limit of a file applies before it takes memory, and that of a pipe while it is read.
Result<std::string> readOpened(int fd, const std::string &path, uint64_t bytesMax) {
  struct stat info = {};
  bool isLarge = ::fstat(fd, &info) == 0 && static_cast<uint64_t>(info.st_size) > bytesMax;
  std::string contents;
  char buffer[1 << 16];
  while (!isLarge) { // in chunks, since pipes and files of /proc have no known size
    ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      return systemError("read", path, errno);
    if (got == 0)
      return contents;
    contents.append(buffer, static_cast<size_t>(got));
    isLarge = contents.size() > bytesMax;
  }
  return makeStatus(StatusCode::InvalidInput, "'{}' is larger than the limit of {} bytes", path,
                    bytesMax);
}

Result<std::string> readFile(const std::string &path, uint64_t bytesMax) {
  std::optional<int> fd = descriptorOf(path);
  return fd ? readDescriptor(*fd, bytesMax) : readRegular(path, bytesMax);
}

Result<std::string> readRegular(const std::string &path, uint64_t bytesMax) {
  ASSIGN_OR_RETURN(Descriptor file, openRegular(path));
  return readOpened(file.fd(), path, bytesMax);
}

/// The kernel shows the environment of processes and much else as regular files.
Status refuseSystemFile(int fd, const std::string &path) {
  struct statfs system = {};
  if (::fstatfs(fd, &system) != 0)
    return systemError("read", path, errno);
  switch (static_cast<uint32_t>(system.f_type)) {
  case PROC_SUPER_MAGIC:
  case SYSFS_MAGIC:
  case DEBUGFS_MAGIC:
  case TRACEFS_MAGIC:
  case SECURITYFS_MAGIC:
  case CGROUP_SUPER_MAGIC:
  case CGROUP2_SUPER_MAGIC:
    return makeStatus(StatusCode::InvalidInput, "'{}' is a view of the system, not a file", path);
  default:
    return Status::ok();
  }
}

Result<std::string> readSystemFile(const std::string &path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return file.isOpen() ? readOpened(file.fd(), path, uint64_t{64} << 20)
                       : systemError("open", path, errno);
}

Result<std::string> readDescriptor(int fd, uint64_t bytesMax) {
  std::string path = fmt::format("/dev/fd/{}", fd); // to read from the beginning
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.isOpen())
    return systemError("open", path, errno);
  return readOpened(file.fd(), path, bytesMax);
}

Status writeFileAtomic(const std::string &path, std::string_view contents) {
  std::string target = behindLinks(path);
  return isWrittenInPlace(path, target) ? writeInPlace(path, contents)
                                        : replaceFile(target, contents);
}

Status checkWritable(const std::string &path) {
  std::string target = behindLinks(path);
  std::error_code error;
  if (fs::is_directory(path, error))
    return systemError("write", path, EISDIR);
  if (isWrittenInPlace(path, target))
    return ::access(path.c_str(), W_OK) == 0 ? Status::ok() : systemError("write", path, errno);
  std::string temporary = temporaryOf(target);
  Descriptor file(createNew(temporary, 0600));
  if (!file.isOpen())
    return systemError("create", path, errno);
  ::unlink(temporary.c_str());
  return Status::ok();
}

Result<MappedFile> MappedFile::open(const std::string &path) {
  ASSIGN_OR_RETURN(Descriptor file, openRegular(path));
  return ofOpened(file.fd(), path);
}

Result<MappedFile> MappedFile::ofOpened(int fd, const std::string &path) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0)
    return systemError("read", path, errno);
  MappedFile mapped;
  mapped.path_ = path;
  mapped.size_ = static_cast<size_t>(info.st_size);
  if (mapped.size_ == 0)
    return mapped;
  void *data = ::mmap(nullptr, mapped.size_, PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED)
    return systemError("map", path, errno);
  mapped.data_ = static_cast<const uint8_t *>(data);
  return mapped;
}

MappedFile::MappedFile(MappedFile &&other) noexcept { *this = std::move(other); }

MappedFile &MappedFile::operator=(MappedFile &&other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr)
    ::munmap(const_cast<uint8_t *>(data_), size_);
}

} // namespace shardc
