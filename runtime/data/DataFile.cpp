// Wraps POSIX calls. Each failure becomes a Status that names the file, and calls that a signal
// interrupted are repeated.
#include "runtime/data/DataFile.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "runtime/base/Io.h"
#include "runtime/base/Reports.h"

namespace shardc::data {
namespace {

constexpr size_t kWriteBufferBytes = size_t{1} << 20;

Status writeAll(int fd, std::string_view bytes, const std::string &path) {
  while (!bytes.empty()) {
    ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR)
      continue;
    if (written < 0)
      return systemError("write", path);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return Status::ok();
}

Status syncFolderOf(const std::string &path) {
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty())
    folder = ".";
  int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0)
    return systemError("open", folder);
  Status status = ::fsync(fd) == 0 ? Status::ok() : systemError("sync", folder);
  ::close(fd);
  return status;
}

Status endedEarly(int fd, const std::string &path, uint64_t size, uint64_t needed) {
  struct stat info = {};
  uint64_t now = ::fstat(fd, &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
  return makeStatus(report::DataChanged,
                    "'{}' has {} bytes, but had {} when it was opened and {} are needed; it was "
                    "changed while in use",
                    path, now, size, needed);
}

/// Reads exactly out.size() bytes; a file that ended earlier has shrunk since it was opened, which
/// is an error.
Status readFully(int fd, const std::string &path, uint64_t size, uint64_t offset,
                 std::span<uint8_t> out) {
  size_t done = 0;
  while (done < out.size()) {
    ssize_t got =
        ::pread(fd, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      return systemError("read", path);
    if (got == 0)
      return endedEarly(fd, path, size, offset + out.size());
    done += static_cast<size_t>(got);
  }
  return Status::ok();
}

} // namespace

Status systemError(const char *what, const std::string &path) {
  return shardc::systemError(what, path, errno);
}

/// Keeps the size at opening. Only regular files are accepted, since pread needs positions.
Result<DataFile> DataFile::open(const std::string &path) {
  DataFile file;
  file.path_ = path;
  ASSIGN_OR_RETURN(file.fd_, openRegular(path));
  struct stat info = {};
  if (::fstat(file.fd_, &info) != 0)
    return systemError("read", path);
  file.size_ = static_cast<uint64_t>(info.st_size);
  return file;
}

DataFile::DataFile(DataFile &&other) noexcept { *this = std::move(other); }

DataFile &DataFile::operator=(DataFile &&other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

DataFile::~DataFile() {
  if (fd_ >= 0)
    ::close(fd_);
}

Status DataFile::readAt(uint64_t offset, std::span<uint8_t> out) const {
  return readFully(fd_, path_, size_, offset, out);
}

/// Opens the file for this read only, for sources with more files than a process may hold open.
/// `size` is the size when the source was opened; another size means that the file was changed.
Status readFileAt(const std::string &path, uint64_t size, uint64_t offset, std::span<uint8_t> out) {
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return systemError("open", path);
  Status status;
  struct stat info = {};
  if (::fstat(fd, &info) != 0)
    status = systemError("read", path);
  else if (static_cast<uint64_t>(info.st_size) != size)
    status =
        makeStatus(report::DataChanged,
                   "'{}' has {} bytes, but had {} when it was opened; it was changed while in use",
                   path, static_cast<uint64_t>(info.st_size), size);
  else
    status = readFully(fd, path, size, offset, out);
  ::close(fd);
  return status;
}

/// Creates the temporary file beside `path`. A rename moves it there only on commit, so readers
/// never see a partial file.
Result<StagedFile> StagedFile::create(const std::string &path) {
  StagedFile file;
  file.path_ = path;
  file.temporary_ = temporaryOf(path);
  file.fd_ = createNew(file.temporary_, 0644);
  if (file.fd_ < 0) {
    Status status = systemError("create", file.temporary_);
    file.temporary_.clear();
    return status;
  }
  file.buffer_.reserve(kWriteBufferBytes);
  return file;
}

StagedFile::StagedFile(StagedFile &&other) noexcept { *this = std::move(other); }

StagedFile &StagedFile::operator=(StagedFile &&other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  std::swap(temporary_, other.temporary_);
  std::swap(buffer_, other.buffer_);
  return *this;
}

StagedFile::~StagedFile() { discard(); }

void StagedFile::discard() {
  if (fd_ >= 0)
    ::close(std::exchange(fd_, -1));
  if (!temporary_.empty())
    ::unlink(std::exchange(temporary_, {}).c_str());
}

Status StagedFile::append(std::string_view bytes) {
  SHARDC_CHECK(fd_ >= 0, "append to a file that is closed");
  if (buffer_.size() + bytes.size() > kWriteBufferBytes)
    RETURN_IF_ERROR(flush());
  if (bytes.size() >= kWriteBufferBytes)
    return writeAll(fd_, bytes, temporary_);
  buffer_.append(bytes);
  return Status::ok();
}

Status StagedFile::flush() {
  RETURN_IF_ERROR(writeAll(fd_, buffer_, temporary_));
  buffer_.clear();
  return Status::ok();
}

Status StagedFile::sync() {
  SHARDC_CHECK(fd_ >= 0, "sync of a file that is closed");
  RETURN_IF_ERROR(flush());
  if (::fsync(fd_) != 0)
    return systemError("sync", temporary_);
  // A failed close may be the first sign of a failed write on network file systems.
  if (::close(std::exchange(fd_, -1)) != 0)
    return systemError("close", temporary_);
  return Status::ok();
}

Status StagedFile::commit() {
  SHARDC_CHECK(fd_ < 0 && !temporary_.empty(), "commit without sync");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    return systemError("rename to", path_);
  temporary_.clear();
  return syncFolderOf(path_);
}

} // namespace shardc::data
