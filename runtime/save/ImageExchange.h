// Images of ranks' state between the processes of a job, over TCP and beside training: a rank sends
// its image to the neighbour that keeps the second copy, and at a restart ranks read what they need
// from the ranks that have it. Connections are authenticated as those between ranks of the host
// backend are (docs/adr/0009-job-secret.md): one code at their beginning, none for the data. The
// bytes of an image have a checksum of their own.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "runtime/base/Hmac.h"
#include "runtime/base/Socket.h"
#include "runtime/save/StateImages.h"

namespace shardc::save {

/// The address at which a rank serves images.
struct ImageAddress {
  std::string address;
  int port = 0;
  Nonce nonce{}; ///< of this start
  std::string pack() const;
  /// InvalidInput if the text is none.
  static Result<ImageAddress> unpack(std::string_view text);
};

/// What a rank has in memory.
struct HeldImages {
  ImageSlots own, guest; ///< of itself, and of the rank whose neighbour it is
};

/// Serves images of this rank's memory, and takes those of another, in threads of its own.
class ImageServer {
public:
  /// Listens on this machine's address. All ranks of this start share `key`.
  static Result<std::unique_ptr<ImageServer>> start(const std::string &address, const Key &key,
                                                    const HeldImages &held);
  ~ImageServer();
  ImageServer(const ImageServer &) = delete;
  ImageServer &operator=(const ImageServer &) = delete;

  const ImageAddress &address() const { return address_; }

private:
  struct Guest {
    Socket socket;
    std::thread thread;
    std::atomic<bool> isDone{false};
  };

  ImageServer(const Key &key, const HeldImages &held) : key_(key), held_(held) {}
  void run();
  void serve(const Socket &socket);
  bool isGreeted(const Socket &socket);
  bool takeImage(const Socket &socket, const ImageInfo &info);
  bool giveImage(const Socket &socket, const ImageId &id);
  void join(bool all);

  Key key_;
  HeldImages held_;
  ImageAddress address_;
  Socket listener_, wakeup_;
  std::atomic<bool> isEnding_{false};
  std::mutex mutex_; ///< of what is below
  std::set<uint64_t> greeted_;
  std::list<Guest> guests_;
  std::thread thread_;
};

/// A connection to a rank that serves images. One thread uses it, another may break it.
class ImageLink {
public:
  /// Unavailable if the rank does not answer within `seconds`.
  static Result<std::unique_ptr<ImageLink>> open(const ImageAddress &to, const Key &key, int rank,
                                                 double seconds);
  /// Sends an image that is complete here. Unavailable if the other end is gone, is late by
  /// `seconds` with a part, or has refused it.
  Status send(const ImageInfo &info, std::span<const uint8_t> bytes, double seconds);
  /// Asks for an image, from which `read` takes bytes. NotFound if the rank has it no longer.
  Result<ImageInfo> find(const ImageId &id, double seconds);
  Status read(int64_t begin, void *to, int64_t bytes, double seconds);
  /// Whatever waits ends.
  void breakOff();

private:
  explicit ImageLink(Socket socket) : socket_(std::move(socket)) {}
  Socket socket_;
};

} // namespace shardc::save
