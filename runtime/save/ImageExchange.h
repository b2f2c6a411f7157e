// Transfers images of ranks' state between the processes of a job over TCP, concurrently with
// training. A rank sends its image to the neighbour that keeps the second copy. At a restart, ranks
// read what they need from the ranks that have it. Connections are authenticated like those between
// ranks of the host backend (docs/adr/0009-job-secret.md): with one code at the beginning, and none
// for the data. Images have checksums of their own.
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
  Nonce nonce{}; ///< part of each greeting's code; new at each start of the job
  std::string pack() const;
  /// InvalidInput if the text is not an address.
  static Result<ImageAddress> unpack(std::string_view text);
};

/// The images that a rank has in memory.
struct HeldImages {
  ImageSlots own, guest; ///< images of the rank itself, and of the rank whose neighbour it is
};

/// Serves images in this rank's memory, and receives those of another rank, in separate threads.
class ImageServer {
public:
  /// Starts to listen on this machine's address. `key` is shared by all ranks of this start.
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
  void admit(Socket socket);
  bool takeImage(const Socket &socket, const ImageInfo &info);
  bool giveImage(const Socket &socket, const ImageId &id);
  void join(bool all);

  Key key_;
  HeldImages held_;
  ImageAddress address_;
  Socket listener_, wakeup_;
  std::atomic<bool> isEnding_{false};
  std::set<uint64_t> greeted_; ///< numbers of the greetings so far; of the accepting thread
  std::mutex mutex_;           ///< guards the guests
  std::list<Guest> guests_;
  std::thread thread_;
};

/// A connection to a rank that serves images. One thread uses it; another one may break it off.
class ImageLink {
public:
  /// Unavailable if the rank does not answer within `seconds`.
  static Result<std::unique_ptr<ImageLink>> open(const ImageAddress &to, const Key &key, int rank,
                                                 double seconds);
  /// Sends a complete image. Unavailable if the other end has closed the connection, refuses the
  /// image, or takes longer than `seconds` for one of the parts in which it is sent.
  Status send(const ImageInfo &info, std::span<const uint8_t> bytes, double seconds);
  /// Requests an image, from which `read` then reads. NotFound if the rank does not have it any
  /// more.
  Result<ImageInfo> find(const ImageId &id, double seconds);
  Status read(int64_t begin, void *to, int64_t bytes, double seconds);
  /// Ends all waits on the connection.
  void breakOff();

private:
  explicit ImageLink(Socket socket) : socket_(std::move(socket)) {}
  Socket socket_;
};

} // namespace shardc::save
