// The server has one thread that accepts connections, and one for each connection that has proved
// that it belongs to the job.
#include "runtime/save/ImageExchange.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>

#include <poll.h>
#include <sys/socket.h>

#include "runtime/base/Crc32.h"
#include "runtime/base/Thread.h"

namespace shardc::save {
namespace {

constexpr double kGreetingSeconds = 10;
constexpr double kIdleSeconds = 24 * 3600; ///< limit for a connection between two uses
constexpr int64_t kPartBytes = 8 << 20;    ///< sent, received and checksummed at a time
constexpr size_t kGuestsMax = 1024;        ///< connections at a time; others wait to be accepted
constexpr size_t kStrangersMax = 128;      ///< without a greeting; the oldest one is closed

/// The first bytes on a connection: they identify the sender and prove that it knows the job's key.
struct Greeting {
  int64_t rank = 0;
  uint64_t number = 0; ///< random number of this connection
  AuthCode code{};
};

struct Request {
  enum Kind : uint64_t { Take = 1, Give };
  uint64_t kind = Take;
  ImageInfo info;
};

/// `isOk` says whether the image was accepted, or exists.
struct Answer {
  uint64_t isOk = 0;
  ImageInfo info;
};

struct Range {
  int64_t begin = 0, bytes = 0;
};

AuthCode codeOf(const Greeting &greeting, const Key &key, const Nonce &nonce) {
  std::string_view what(reinterpret_cast<const char *>(&greeting), offsetof(Greeting, code));
  return authCode(key, {"images", bytesOf(nonce), what});
}

template <typename T> Status sendOne(const Socket &socket, const T &value, double seconds) {
  return sendAll(socket, &value, sizeof value, seconds);
}

template <typename T> Status receiveOne(const Socket &socket, T &value, double seconds) {
  return receiveAll(socket, &value, sizeof value, seconds);
}

/// Calls `use(begin, bytes)` for each part of kPartBytes or less, until one fails.
template <typename Use> Status forParts(int64_t bytes, const Use &use) {
  for (int64_t at = 0; at < bytes; at += kPartBytes)
    RETURN_IF_ERROR(use(at, static_cast<size_t>(std::min(kPartBytes, bytes - at))));
  return Status::ok();
}

} // namespace

std::string ImageAddress::pack() const {
  return fmt::format("{}{} {}", bytesOf(nonce), port, address);
}

Result<ImageAddress> ImageAddress::unpack(std::string_view text) {
  ImageAddress out;
  size_t space = text.find(' ', std::min(text.size(), out.nonce.size()));
  if (space == std::string_view::npos)
    return makeStatus(StatusCode::InvalidInput, "{} bytes are no address of a rank", text.size());
  copyBytes(text.substr(0, out.nonce.size()), out.nonce);
  std::from_chars(text.data() + out.nonce.size(), text.data() + space, out.port);
  out.address = text.substr(space + 1);
  return out;
}

Result<std::unique_ptr<ImageServer>> ImageServer::start(const std::string &address, const Key &key,
                                                        const HeldImages &held) {
  std::unique_ptr<ImageServer> server(new ImageServer(key, held));
  ASSIGN_OR_RETURN(server->listener_, listenOn(address, 0));
  ASSIGN_OR_RETURN(server->wakeup_, makeWakeup());
  server->address_ = {address, portOf(server->listener_), randomBytes32()};
  RETURN_IF_ERROR(startThread(server->thread_, [raw = server.get()] { raw->run(); }));
  return server;
}

ImageServer::~ImageServer() {
  isEnding_ = true;
  if (thread_.joinable()) {
    wake(wakeup_);
    thread_.join();
  }
  join(/*all=*/true);
}

/// Joins threads whose connections have ended, or with `all` all threads.
void ImageServer::join(bool all) {
  std::list<Guest> ended;
  {
    std::lock_guard lock(mutex_);
    for (auto guest = guests_.begin(); guest != guests_.end();) {
      auto next = std::next(guest);
      if (all)
        ::shutdown(guest->socket.fd(), SHUT_RDWR);
      if (all || guest->isDone)
        ended.splice(ended.end(), guests_, guest);
      guest = next;
    }
  }
  for (Guest &guest : ended)
    if (guest.thread.joinable())
      guest.thread.join();
}

namespace {

/// A connection whose greeting has not arrived completely.
struct Stranger {
  Socket socket;
  Greeting greeting;
  size_t received = 0;
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();

  bool isComplete() const { return received == sizeof greeting; }
  /// Receives what has arrived. False if the connection has ended or has taken too long.
  bool receive() {
    char *bytes = reinterpret_cast<char *>(&greeting);
    ssize_t count = ::recv(socket.fd(), bytes + received, sizeof greeting - received, MSG_DONTWAIT);
    received += count > 0 ? static_cast<size_t>(count) : 0;
    bool isLate =
        std::chrono::steady_clock::now() - since > std::chrono::duration<double>(kGreetingSeconds);
    return isComplete() ||
           (!isLate && (count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR))));
  }
};

} // namespace

/// Accepts at most kGuestsMax connections at a time. A thread that cannot start marks its guest as
/// done, and the guest is removed later.
void ImageServer::run() {
  constexpr int kPollMilliseconds = 1000;
  std::list<Stranger> strangers; // the oldest first
  while (!isEnding_) {
    bool isFull = false;
    {
      std::lock_guard lock(mutex_);
      isFull = guests_.size() >= kGuestsMax;
    }
    std::vector<pollfd> entries = {{wakeup_.fd(), POLLIN, 0},
                                   {isFull ? -1 : listener_.fd(), POLLIN, 0}};
    for (const Stranger &stranger : strangers)
      entries.push_back({stranger.socket.fd(), POLLIN, 0});
    ::poll(entries.data(), entries.size(), kPollMilliseconds);
    join(/*all=*/false);
    for (auto stranger = strangers.begin(); stranger != strangers.end() && !isEnding_;) {
      bool isThere = stranger->receive();
      if (isThere && stranger->isComplete()) {
        // A second greeting with the same number is a replay.
        const Greeting &greeting = stranger->greeting;
        if (isSame(greeting.code, codeOf(greeting, key_, address_.nonce)) &&
            greeted_.insert(greeting.number).second)
          admit(std::move(stranger->socket));
        isThere = false;
      }
      stranger = isThere ? std::next(stranger) : strangers.erase(stranger);
    }
    if (isEnding_ || isFull || (entries[1].revents & POLLIN) == 0)
      continue;
    Result<Socket> socket = acceptOne(listener_);
    if (!socket.isOk() || !socket->isOpen())
      continue; // the other end connects again
    if (strangers.size() == kStrangersMax)
      strangers.pop_front();
    strangers.emplace_back().socket = std::move(*socket);
  }
}

void ImageServer::admit(Socket socket) {
  std::lock_guard lock(mutex_);
  Guest &guest = guests_.emplace_back();
  guest.socket = std::move(socket);
  Status started = startThread(guest.thread, [this, &guest] {
    serve(guest.socket);
    ::shutdown(guest.socket.fd(), SHUT_RDWR);
    guest.isDone = true;
  });
  guest.isDone = !started.isOk();
}

void ImageServer::serve(const Socket &socket) {
  Request request;
  while (!isEnding_ && receiveOne(socket, request, kIdleSeconds).isOk())
    if (!(request.kind == Request::Take ? takeImage(socket, request.info)
                                        : giveImage(socket, request.info.id)))
      return;
}

/// Receives an image. False if the connection cannot be used any more.
bool ImageServer::takeImage(const Socket &socket, const ImageInfo &info) {
  const ImageSlots &slots = held_.guest;
  bool fits = slots.isThere() && info.metaBytes >= 0 && info.stateBytes >= 0 &&
              info.metaBytes <= slots.imageBytesMax() &&
              info.stateBytes <= slots.imageBytesMax() - info.metaBytes;
  if (!fits) {
    static_cast<void>(sendOne(socket, Answer{}, kGreetingSeconds));
    return false;
  }
  int slot = slots.next();
  slots.begin(slot);
  uint32_t crc = 0;
  uint8_t *bytes = slots.bytesOf(slot).data();
  Status status = forParts(info.bytes(), [&](int64_t at, size_t count) -> Status {
    RETURN_IF_ERROR(receiveAll(socket, bytes + at, count, kIdleSeconds));
    crc = crc32(crc, bytes + at, count);
    return Status::ok();
  });
  if (!status.isOk())
    return false;
  bool isRight = crc == info.crc;
  if (isRight)
    slots.complete(slot, info);
  return sendOne(socket, Answer{isRight, info}, kGreetingSeconds).isOk();
}

/// Sends requested bytes of the image until the other end closes the connection.
bool ImageServer::giveImage(const Socket &socket, const ImageId &id) {
  const ImageSlots *slots = &held_.own;
  std::optional<int> slot = slots->find(id);
  if (!slot) {
    slots = &held_.guest;
    slot = slots->find(id);
  }
  std::optional<ImageInfo> info = slot ? slots->at(*slot) : std::nullopt;
  if (!sendOne(socket, Answer{info.has_value(), info.value_or(ImageInfo{})}, kGreetingSeconds)
           .isOk() ||
      !info)
    return false;
  Range range;
  while (!isEnding_ && receiveOne(socket, range, kIdleSeconds).isOk()) {
    bool isInside = range.begin >= 0 && range.bytes >= 0 && range.begin <= info->bytes() &&
                    range.bytes <= info->bytes() - range.begin;
    if (!isInside || !sendAll(socket, slots->bytesOf(*slot).data() + range.begin,
                              static_cast<size_t>(range.bytes), kIdleSeconds)
                          .isOk())
      return false;
  }
  return false;
}

Result<std::unique_ptr<ImageLink>> ImageLink::open(const ImageAddress &to, const Key &key, int rank,
                                                   double seconds) {
  ASSIGN_OR_RETURN(Socket socket, connectTo(to.address, to.port, seconds));
  Greeting greeting{rank, 0, {}};
  auto drawn = randomBytes32();
  std::memcpy(&greeting.number, drawn.data(), sizeof greeting.number);
  greeting.code = codeOf(greeting, key, to.nonce);
  RETURN_IF_ERROR(sendOne(socket, greeting, seconds));
  return std::unique_ptr<ImageLink>(new ImageLink(std::move(socket)));
}

Status ImageLink::send(const ImageInfo &info, std::span<const uint8_t> bytes, double seconds) {
  RETURN_IF_ERROR(sendOne(socket_, Request{Request::Take, info}, seconds));
  RETURN_IF_ERROR(forParts(info.bytes(), [&](int64_t at, size_t count) {
    return sendAll(socket_, bytes.data() + at, count, seconds);
  }));
  Answer answer;
  RETURN_IF_ERROR(receiveOne(socket_, answer, seconds));
  if (answer.isOk == 0)
    return makeStatus(StatusCode::Unavailable,
                      "the bytes that arrived are not those that were sent");
  return Status::ok();
}

Result<ImageInfo> ImageLink::find(const ImageId &id, double seconds) {
  Request request{Request::Give, {}};
  request.info.id = id;
  RETURN_IF_ERROR(sendOne(socket_, request, seconds));
  Answer answer;
  RETURN_IF_ERROR(receiveOne(socket_, answer, seconds));
  if (answer.isOk == 0 || answer.info.id != id || answer.info.metaBytes < 0 ||
      answer.info.stateBytes < 0)
    return makeStatus(StatusCode::NotFound, "there is no state of rank {} after step {}", id.owner,
                      id.step);
  return answer.info;
}

Status ImageLink::read(int64_t begin, void *to, int64_t bytes, double seconds) {
  RETURN_IF_ERROR(sendOne(socket_, Range{begin, bytes}, seconds));
  return receiveAll(socket_, to, static_cast<size_t>(bytes), seconds);
}

void ImageLink::breakOff() { ::shutdown(socket_.fd(), SHUT_RDWR); }

} // namespace shardc::save
