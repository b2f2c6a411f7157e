#include "runtime/checkpoint/FileOps.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

namespace shardc::checkpoint {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

std::atomic<FileFault::Kind> faultKind{FileFault::Kind::None};
std::atomic<int64_t> faultAt{0};
std::atomic<int64_t> operations{0};

Status systemError(const char *what, const std::string &path, int error) {
  StatusCode code = error == ENOENT                      ? StatusCode::NotFound
                    : error == ENOSPC || error == EDQUOT ? StatusCode::Exhausted
                                                         : StatusCode::Io;
  return makeStatus(code, "cannot {} '{}': {}", what, path, std::strerror(error));
}

/// Counts an operation; true if the test wants it to fail, with errno set. A crash is a crash.
bool isFaulted() {
  int64_t number = operations.fetch_add(1, std::memory_order_relaxed);
  FileFault::Kind kind = faultKind.load(std::memory_order_relaxed);
  if (kind == FileFault::Kind::None || number < faultAt.load(std::memory_order_relaxed))
    return false;
  if (kind == FileFault::Kind::Crash)
    ::_exit(137);
  errno = kind == FileFault::Kind::DiskFull ? ENOSPC : EACCES;
  return true;
}

} // namespace

void setFileFault(FileFault fault) {
  faultKind = fault.kind;
  faultAt = fault.operation;
  operations = 0;
}

int64_t fileOperationsDone() { return operations; }

Result<OutputFile> OutputFile::create(const std::string &path) {
  int fd = isFaulted() ? -1 : ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0)
    return systemError("create", path, errno);
  return OutputFile(fd, path);
}

OutputFile::OutputFile(OutputFile &&other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)),
      buffer_(std::move(other.buffer_)) {}

OutputFile::~OutputFile() {
  if (fd_ >= 0)
    ::close(fd_);
}

Status OutputFile::writeThrough(const char *data, size_t size) {
  bool isCut = isFaulted();
  if (isCut || faultKind.load(std::memory_order_relaxed) != FileFault::Kind::None) {
    // Under a fault plan writes go out in halves, so that files are also cut in the middle.
    int error = errno;
    if (isCut)
      return systemError("write", path_, error);
    size_t half = size / 2;
    if (half != 0 && ::write(fd_, data, half) != static_cast<ssize_t>(half))
      return systemError("write", path_, errno);
    data += half;
    size -= half;
    if (isFaulted())
      return systemError("write", path_, errno);
  }
  while (size != 0) {
    ssize_t written = ::write(fd_, data, size);
    if (written < 0 && errno == EINTR)
      continue;
    if (written < 0)
      return systemError("write", path_, errno);
    data += written;
    size -= static_cast<size_t>(written);
  }
  return Status::ok();
}

Status OutputFile::flush() {
  if (buffer_.empty())
    return Status::ok();
  Status status = writeThrough(buffer_.data(), buffer_.size());
  buffer_.clear();
  return status;
}

Status OutputFile::write(const void *data, size_t size) {
  if (buffer_.size() + size >= kBufferBytes)
    RETURN_IF_ERROR(flush());
  if (size >= kBufferBytes)
    return writeThrough(static_cast<const char *>(data), size);
  buffer_.append(static_cast<const char *>(data), size);
  return Status::ok();
}

Status OutputFile::close() {
  RETURN_IF_ERROR(flush());
  if (isFaulted() || ::fsync(fd_) != 0)
    return systemError("sync", path_, errno);
  int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0)
    return systemError("close", path_, errno);
  return Status::ok();
}

Status replaceFile(const std::string &path, std::string_view contents) {
  std::string temporary = path + ".tmp";
  ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(temporary));
  RETURN_IF_ERROR(file.write(contents.data(), contents.size()));
  RETURN_IF_ERROR(file.close());
  return renamePath(temporary, path);
}

Status syncFolder(const std::string &path) {
  int fd = isFaulted() ? -1 : ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int error = errno;
  if (fd >= 0) {
    error = ::fsync(fd) == 0 ? 0 : errno;
    ::close(fd);
  }
  return fd >= 0 && error == 0 ? Status::ok() : systemError("sync", path, error);
}

Status makeFolders(const std::string &path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  return error
             ? makeStatus(StatusCode::Io, "cannot make the folder '{}': {}", path, error.message())
             : Status::ok();
}

Status makeFolder(const std::string &path) {
  if (isFaulted())
    return systemError("create", path, errno);
  std::error_code error;
  std::filesystem::create_directories(path, error);
  return error ? systemError("create", path, error.value()) : Status::ok();
}

Status renamePath(const std::string &from, const std::string &to) {
  if (isFaulted() || ::rename(from.c_str(), to.c_str()) != 0)
    return systemError("rename to", to, errno);
  return Status::ok();
}

Status exchangePaths(const std::string &a, const std::string &b) {
  if (isFaulted())
    return systemError("replace", b, errno);
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0)
    return Status::ok();
  if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP)
    return makeStatus(StatusCode::Unavailable, "the file system of '{}' cannot swap folders", b);
  return systemError("replace", b, errno);
}

Status removeTree(const std::string &path) {
  if (isFaulted())
    return systemError("remove", path, errno);
  std::error_code error;
  std::filesystem::remove_all(path, error);
  return error ? systemError("remove", path, error.value()) : Status::ok();
}

} // namespace shardc::checkpoint
