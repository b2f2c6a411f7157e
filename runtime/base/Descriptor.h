// A file descriptor with an owner.
#pragma once

#include <fcntl.h>
#include <unistd.h>
#include <utility>

namespace shardc {

/// A descriptor that is closed on destruction. Move-only.
class Descriptor {
public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor &&other) noexcept : fd_(other.release()) {}
  Descriptor &operator=(Descriptor &&other) noexcept {
    Descriptor old(std::exchange(fd_, other.release()));
    return *this;
  }
  ~Descriptor() { close(); }

  int fd() const { return fd_; }
  bool isOpen() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  /// Returns what close(2) does: 0, or -1 with errno set.
  int close() { return isOpen() ? ::close(release()) : 0; }

private:
  int fd_ = -1;
};

/// Sets the ends of a new pipe. False, with errno set, if the system refuses.
inline bool makePipe(Descriptor &reading, Descriptor &writing) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return false;
  reading = Descriptor(ends[0]), writing = Descriptor(ends[1]);
  return true;
}

} // namespace shardc
