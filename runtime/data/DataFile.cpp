// Wraps POSIX calls. Each failure becomes a Status that names the file, and calls that a signal
// interrupted are repeated.
#include "runtime/data/DataFile.h"

#include <cerrno>
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

Status syncFolderOf(const std::string &path) {
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty())
    folder = ".";
  Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened.isOpen())
    return systemError("open", folder);
  return ::fsync(opened.fd()) == 0 ? Status::ok() : systemError("sync", folder);
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
  ASSIGN_OR_RETURN(file.file_, openRegular(path));
  struct stat info = {};
  if (::fstat(file.file_.fd(), &info) != 0)
    return systemError("read", path);
  file.size_ = static_cast<uint64_t>(info.st_size);
  return file;
}

Status DataFile::readAt(uint64_t offset, std::span<uint8_t> out) const {
  return readFully(file_.fd(), path_, size_, offset, out);
}

Status readFileAt(const std::string &path, uint64_t size, uint64_t offset, std::span<uint8_t> out) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.isOpen())
    return systemError("open", path);
  struct stat info = {};
  if (::fstat(file.fd(), &info) != 0)
    return systemError("read", path);
  if (static_cast<uint64_t>(info.st_size) != size)
    return makeStatus(
        report::DataChanged,
        "'{}' has {} bytes, but had {} when it was opened; it was changed while in use", path,
        static_cast<uint64_t>(info.st_size), size);
  return readFully(file.fd(), path, size, offset, out);
}

/// Creates the temporary file beside `path`. A rename moves it there only on commit, so readers
/// never see a partial file.
Result<StagedFile> StagedFile::create(const std::string &path) {
  StagedFile file;
  file.path_ = path;
  file.temporary_ = temporaryOf(path);
  file.file_ = Descriptor(createNew(file.temporary_, 0644));
  if (!file.file_.isOpen()) {
    Status status = systemError("create", file.temporary_);
    file.temporary_.clear();
    return status;
  }
  file.buffer_.reserve(kWriteBufferBytes);
  return file;
}

StagedFile::StagedFile(StagedFile &&other) noexcept { *this = std::move(other); }

StagedFile &StagedFile::operator=(StagedFile &&other) noexcept {
  std::swap(file_, other.file_);
  std::swap(path_, other.path_);
  std::swap(temporary_, other.temporary_);
  std::swap(buffer_, other.buffer_);
  return *this;
}

StagedFile::~StagedFile() { discard(); }

void StagedFile::discard() {
  file_.close();
  if (!temporary_.empty())
    ::unlink(std::exchange(temporary_, {}).c_str());
}

Status StagedFile::append(std::string_view bytes) {
  SHARDC_CHECK(file_.isOpen(), "append to a file that is closed");
  if (buffer_.size() + bytes.size() > kWriteBufferBytes)
    RETURN_IF_ERROR(flush());
  if (bytes.size() >= kWriteBufferBytes)
    return writeAll(file_.fd(), bytes, temporary_);
  buffer_.append(bytes);
  return Status::ok();
}

Status StagedFile::flush() {
  RETURN_IF_ERROR(writeAll(file_.fd(), buffer_, temporary_));
  buffer_.clear();
  return Status::ok();
}

Status StagedFile::sync() {
  SHARDC_CHECK(file_.isOpen(), "sync of a file that is closed");
  RETURN_IF_ERROR(flush());
  if (::fsync(file_.fd()) != 0)
    return systemError("sync", temporary_);
  // A failed close may be the first sign of a failed write on network file systems.
  if (file_.close() != 0)
    return systemError("close", temporary_);
  return Status::ok();
}

Status StagedFile::commit() {
  SHARDC_CHECK(!file_.isOpen() && !temporary_.empty(), "commit without sync");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    return systemError("rename to", path_);
  temporary_.clear();
  return syncFolderOf(path_);
}

} // namespace shardc::data
