#include "runtime/checkpoint/FolderLock.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "runtime/base/Reports.h"
#include "runtime/checkpoint/FileOps.h"

namespace shardc::checkpoint {
namespace {

constexpr size_t kHolderMax = 200; ///< bytes of the holder's name

/// Text such as "process 17 on 'node3'". Unprintable characters of the host name are replaced,
/// since the text may reach a terminal.
std::string ownName() {
  std::array<char, 65> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0)
    host[0] = '?';
  std::ranges::replace_if(
      host, [](char c) { return c != '\0' && (c < ' ' || c > '~'); }, '?');
  return fmt::format("process {} on '{}'", ::getpid(), host.data());
}

/// The holder according to the lock file.
std::string holderIn(int fd) {
  std::array<char, kHolderMax> text{};
  ssize_t size = ::pread(fd, text.data(), text.size(), 0);
  std::string_view name(text.data(), size > 0 ? static_cast<size_t>(size) : 0);
  bool isOurs = name.starts_with("process ") &&
                std::ranges::all_of(name, [](char c) { return c >= ' ' && c <= '~'; });
  return isOurs ? std::string(name) : "another process";
}

/// Writes the holder's name, for messages, but not into a file that has another name as well.
void writeHolder(int fd) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0 || info.st_nlink > 1)
    return;
  std::string name = ownName();
  if (::pwrite(fd, name.data(), name.size(), 0) != static_cast<ssize_t>(name.size()))
    name.clear();
  static_cast<void>(::ftruncate(fd, static_cast<off_t>(name.size())) == 0);
}

/// Whether the path still names the opened file. The previous holder may have removed it before it
/// was locked.
bool isStillThere(int fd, const std::string &path) {
  struct stat opened = {}, named = {};
  return ::fstat(fd, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

} // namespace

Result<FolderLock> FolderLock::take(const std::string &folder, const ReportSink &emit) {
  return takeFile(folder, kLockFile, folder, emit);
}

Result<FolderLock> FolderLock::takeBeside(const std::string &folder, const ReportSink &emit) {
  std::filesystem::path path = std::filesystem::path(folder).lexically_normal();
  if (path.filename().empty())
    path = path.parent_path();
  std::string parent = path.parent_path().empty() ? "." : path.parent_path().string();
  return takeFile(parent, fmt::format(".{}{}", path.filename().string(), kLockFile), folder, emit);
}

Result<FolderLock> FolderLock::takeFile(const std::string &parent, const std::string &name,
                                        const std::string &what, const ReportSink &emit) {
  FolderLock lock;
  lock.path_ = fmt::format("{}/{}", parent, name);
  std::error_code error;
  lock.isFolderNew_ = !std::filesystem::exists(parent, error);
  RETURN_IF_ERROR(makeFolders(parent));
  while (true) {
    Descriptor file(::open(lock.path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (file.isOpen() && ::flock(file.fd(), LOCK_EX | LOCK_NB) == 0) {
      if (!isStillThere(file.fd(), lock.path_))
        continue;
      writeHolder(file.fd());
      lock.file_ = std::move(file);
      return lock;
    }
    int refused = errno;
    if (file.isOpen() && refused == EWOULDBLOCK)
      return makeStatus(report::FolderInUse, what, holderIn(file.fd()));
    if (!file.isOpen() &&
        (refused == EACCES || refused == EROFS || refused == ENOSPC || refused == EDQUOT))
      return makeStatus(report::SaveFolderRefused, "'{}' cannot be written into: {}", parent,
                        std::strerror(refused));
    emit(makeReport(report::CannotLock, lock.path_, std::strerror(refused)));
    return lock;
  }
}

FolderLock &FolderLock::operator=(FolderLock &&other) noexcept {
  std::swap(file_, other.file_);
  std::swap(isFolderNew_, other.isFolderNew_);
  std::swap(path_, other.path_);
  return *this;
}

void FolderLock::release() {
  if (!isHeld())
    return;
  ::unlink(path_.c_str()); // unlinked before it is unlocked, so that others create a new file
  file_.close();
  if (isFolderNew_)
    ::rmdir(path_.substr(0, path_.rfind('/')).c_str()); // does nothing if the folder is not empty
}

} // namespace shardc::checkpoint
