#include "runtime/checkpoint/FileOps.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "runtime/base/Io.h"
#include "runtime/checkpoint/Reading.h"

namespace shardc::checkpoint {
namespace {

/// A multiple of all sector sizes. Large enough that the disk stays busy while threads switch, and
/// small enough that three blocks stay in a core's cache until they are written.
constexpr size_t kBlockBytes = size_t{2} << 20;
constexpr size_t kBlockAlignment = 4096;
/// Number of full blocks in memory: one is being written and one waits, while another one is
/// filled.
constexpr size_t kBlocksInFlight = 2;

/// Called before an operation. True, with errno set, if a test wants it to fail.
bool isFaulted(const Observers &observers) {
  int error = observers.faults ? observers.faults->beforeOperation() : 0;
  if (error != 0)
    errno = error;
  return error != 0;
}

/// Enables or disables direct writes, which bypass the page cache. False if the system refuses.
bool setDirect(int fd, bool isDirect) {
  int flags = ::fcntl(fd, F_GETFL);
  return flags >= 0 && ::fcntl(fd, F_SETFL, isDirect ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

Status writeThrough(const Observers &observers, int fd, const std::string &path, const char *data,
                    size_t size, uint64_t at) {
  if (observers.faults) {
    bool isCut = isFaulted(observers);
    int error = errno;
    if (isCut)
      return systemError("write", path, error);
    size_t half = size / 2;
    if (size % kBlockAlignment == 0) // direct writes need whole sectors
      half -= half % kBlockAlignment;
    if (half != 0 && ::pwrite(fd, data, half, static_cast<off_t>(at)) != static_cast<ssize_t>(half))
      return systemError("write", path, errno);
    data += half;
    size -= half;
    at += half;
    if (isFaulted(observers))
      return systemError("write", path, errno);
  }
  while (size != 0) {
    ssize_t written = ::pwrite(fd, data, size, static_cast<off_t>(at));
    if (written < 0 && errno == EINTR)
      continue;
    if (written < 0 && errno == EINVAL && (::fcntl(fd, F_GETFL) & O_DIRECT) != 0 &&
        setDirect(fd, false))
      continue; // the file system refuses direct writes, or the rest of a short write
    if (written < 0)
      return systemError("write", path, errno);
    data += written;
    size -= static_cast<size_t>(written);
    at += static_cast<size_t>(written);
  }
  return Status::ok();
}

/// Writes a full block. If it went to the page cache, starts writing it back, so that the later
/// sync has little left to do.
Status writeBlock(const Observers &observers, int fd, const std::string &path, const char *data,
                  uint64_t at) {
  RETURN_IF_ERROR(writeThrough(observers, fd, path, data, kBlockBytes, at));
  if ((::fcntl(fd, F_GETFL) & O_DIRECT) == 0) // a hint; errors do not matter
    ::sync_file_range(fd, static_cast<off_t>(at), static_cast<off_t>(kBlockBytes),
                      SYNC_FILE_RANGE_WRITE);
  return Status::ok();
}

} // namespace

/// Counts a removal while it is in progress.
class Clearing {
public:
  explicit Clearing(Interruption *interruption) : interruption_(interruption) {
    if (interruption_)
      ++interruption_->endings_;
  }
  ~Clearing() {
    if (interruption_)
      --interruption_->endings_;
  }
  Clearing(const Clearing &) = delete;
  Clearing &operator=(const Clearing &) = delete;

private:
  Interruption *interruption_;
};

Status Interruption::check() {
  if (!isRequested_)
    return Status::ok();
  ++endings_; // never decremented: the save now removes what it has written, then the process ends
  return Status(StatusCode::Aborted, "interrupted");
}

Result<OutputFile> OutputFile::create(const std::string &path, const Observers &observers,
                                      uint64_t bytesExpected) {
  Descriptor file(isFaulted(observers) ? -1 : createNew(path, 0644));
  if (!file.isOpen())
    return systemError("create", path, errno);
  return OutputFile(std::move(file), path, observers, bytesExpected);
}

OutputFile::~OutputFile() {
  while (!pending_.empty())
    static_cast<void>(waitForOne()); // a file that was not closed is discarded
}

Status OutputFile::waitForOne() {
  Pending oldest = std::move(pending_.front());
  pending_.pop_front();
  Status status = oldest.written.get();
  filling_ = std::move(oldest.block);
  return status;
}

Status OutputFile::passOn() {
  if (bytesPassedOn_ == 0) { // small files stay in the page cache
    isDirect_ = setDirect(file_.fd(), true);
    // If allocation fails, writes extend the file, or fail with the reason.
    isCutNeeded_ = isDirect_ && bytesExpected_ > kBlockBytes;
    if (isCutNeeded_)
      static_cast<void>(::fallocate(file_.fd(), 0, 0, static_cast<off_t>(bytesExpected_)));
  }
  auto write = [observers = observers_, fd = file_.fd(), path = path_, data = filling_.get(),
                at = bytesPassedOn_] { return writeBlock(observers, fd, path, data, at); };
  std::future<Status> written;
  try {
    written = std::async(std::launch::async, write);
  } catch (const std::system_error &) { // no thread left: the block is written when it is awaited
    written = std::async(std::launch::deferred, write);
  }
  pending_.push_back({std::move(filling_), std::move(written)});
  bytesPassedOn_ += kBlockBytes;
  filled_ = 0;
  return pending_.size() > kBlocksInFlight ? waitForOne() : Status::ok();
}

Status OutputFile::write(const void *data, size_t size) {
  const char *bytes = static_cast<const char *>(data);
  while (size != 0) {
    if (!filling_) // pages of the block take memory only when they are filled
      filling_.reset(static_cast<char *>(std::aligned_alloc(kBlockAlignment, kBlockBytes)));
    if (!filling_)
      return makeStatus(StatusCode::Exhausted, "no memory to write '{}'", path_);
    size_t piece = std::min(size, kBlockBytes - filled_);
    std::memcpy(filling_.get() + filled_, bytes, piece);
    filled_ += piece;
    bytes += piece;
    size -= piece;
    if (filled_ == kBlockBytes)
      RETURN_IF_ERROR(passOn());
  }
  return Status::ok();
}

Status OutputFile::writeRest() {
  if (filled_ != 0) {
    size_t size = filled_;
    if (isDirect_) {
      size = (filled_ + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
      std::memset(filling_.get() + filled_, 0, size - filled_);
      isCutNeeded_ = true;
    }
    RETURN_IF_ERROR(
        writeThrough(observers_, file_.fd(), path_, filling_.get(), size, bytesPassedOn_));
  }
  if (isCutNeeded_ && (isFaulted(observers_) ||
                       ::ftruncate(file_.fd(), static_cast<off_t>(bytesPassedOn_ + filled_)) != 0))
    return systemError("write", path_, errno);
  return Status::ok();
}

Status OutputFile::close() {
  Block rest = std::move(filling_);
  while (!pending_.empty())
    RETURN_IF_ERROR(waitForOne());
  filling_ = std::move(rest);
  RETURN_IF_ERROR(writeRest());
  if (isSynced_ && (isFaulted(observers_) || ::fsync(file_.fd()) != 0))
    return systemError("sync", path_, errno);
  if (file_.close() != 0)
    return systemError("close", path_, errno);
  return Status::ok();
}

Status putInPlace(const Observers &observers, const std::string &path,
                  const std::function<Status(const std::string &temporary)> &write) {
  std::string temporary = temporaryOf(path);
  Status status = write(temporary);
  if (status.isOk())
    status = renamePath(observers, temporary, path);
  if (!status.isOk())
    static_cast<void>(removeTree(observers, temporary)); // report the first failure instead
  return status;
}

Status putFolder(const Observers &observers, const std::string &out,
                 const std::function<Status(const std::string &staging)> &fill) {
  namespace fs = std::filesystem;
  fs::path path = fs::path(out).lexically_normal();
  if (path.filename().empty())
    path = path.parent_path();
  std::error_code error;
  if (fs::exists(path, error) && !fs::is_empty(path, error))
    return cannotConvert("'{}' exists already; remove it or choose another path", out);
  fs::path parent = path.parent_path().empty() ? fs::path(".") : path.parent_path();
  std::string staging = (parent / fmt::format(".{}.saving", path.filename().string())).string();
  RETURN_IF_ERROR(makeFolders(parent.string()));
  RETURN_IF_ERROR(removeTree(observers, staging)); // of a conversion that was killed
  RETURN_IF_ERROR(makeFolder(observers, staging));
  Status status = fill(staging);
  if (status.isOk())
    status = syncFolder(observers, staging);
  if (status.isOk())
    status = renamePath(observers, staging, path.string());
  if (status.isOk())
    return syncFolder(observers, parent.string());
  static_cast<void>(removeTree(observers, staging)); // report the first failure instead
  return status;
}

namespace {

Status replace(const Observers &observers, const std::string &path, std::string_view contents,
               bool isSynced) {
  return putInPlace(observers, path, [&](const std::string &temporary) -> Status {
    ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(temporary, observers));
    if (!isSynced)
      file.leaveUnsynced();
    RETURN_IF_ERROR(file.write(contents.data(), contents.size()));
    return file.close();
  });
}

} // namespace

Status replaceFile(const Observers &observers, const std::string &path, std::string_view contents) {
  return replace(observers, path, contents, true);
}

Status writeScratch(const Observers &observers, const std::string &path,
                    std::string_view contents) {
  return replace(observers, path, contents, false);
}

Status syncFolder(const Observers &observers, const std::string &path) {
  Descriptor folder(
      isFaulted(observers) ? -1 : ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  bool isDone = folder.isOpen() && ::fsync(folder.fd()) == 0;
  return isDone ? Status::ok() : systemError("sync", path, errno);
}

namespace {

/// Refuses a path through a dangling link. Without this check, the system would report that the
/// file exists.
Status refuseDangling(const std::string &path) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path at;
  for (const fs::path &part : fs::path(path)) {
    at /= part;
    if (fs::is_symlink(fs::symlink_status(at, error)) && !fs::exists(at, error))
      return makeStatus(StatusCode::NotFound, "'{}' is a link to '{}', which does not exist",
                        at.string(), fs::read_symlink(at, error).string());
  }
  return Status::ok();
}

} // namespace

Status makeFolders(const std::string &path) {
  RETURN_IF_ERROR(refuseDangling(path));
  std::error_code error;
  std::filesystem::create_directories(path, error);
  return error ? makeStatus(StatusCode::Io, "cannot create the folder '{}': {}", path,
                            error.message())
               : Status::ok();
}

Status makeFolder(const Observers &observers, const std::string &path) {
  if (isFaulted(observers))
    return systemError("create", path, errno);
  std::error_code error;
  std::filesystem::create_directories(path, error);
  return error ? systemError("create", path, error.value()) : Status::ok();
}

Status renamePath(const Observers &observers, const std::string &from, const std::string &to) {
  if (isFaulted(observers) || ::rename(from.c_str(), to.c_str()) != 0)
    return systemError("rename to", to, errno);
  return Status::ok();
}

Status exchangePaths(const Observers &observers, const std::string &a, const std::string &b) {
  if (isFaulted(observers))
    return systemError("replace", b, errno);
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0)
    return Status::ok();
  if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP)
    return makeStatus(StatusCode::Unavailable, "the file system of '{}' cannot swap folders", b);
  return systemError("replace", b, errno);
}

Status removeTree(const Observers &observers, const std::string &path) {
  if (isFaulted(observers))
    return systemError("remove", path, errno);
  Clearing clearing(observers.interruption);
  std::error_code error;
  std::filesystem::remove_all(path, error);
  return error ? systemError("remove", path, error.value()) : Status::ok();
}

} // namespace shardc::checkpoint
