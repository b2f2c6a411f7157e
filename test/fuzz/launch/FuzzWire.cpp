// Any bytes as the data of a connection and as the body of each message. An accepted message must
// be written as the same bytes again; all others must be refused.
#include <cstdint>
#include <cstdlib>

#include <sys/socket.h>

#include "runtime/launch/Survey.h"
#include "runtime/launch/Wire.h"

namespace shardc::launch {
namespace {

void expect(bool condition) {
  if (!condition)
    std::abort();
}

template <typename T> void readBody(std::string_view body) {
  if (std::optional<T> value = T::unpack(body))
    expect(value->pack() == body);
}

/// Of another version only the beginning is read.
void readOpenBodies(std::string_view body) {
  if (auto challenge = Challenge::unpack(body); challenge && challenge->version == kProtocolVersion)
    expect(challenge->pack() == body);
  if (auto hello = Hello::unpack(body); hello && hello->version == kProtocolVersion) {
    std::string packed = hello->pack({}, {});
    expect(*Hello::open(packed, {}, {}) == body);
  }
  expect(!Hello::open(body, Key{1}, Nonce{1})); // nobody has guessed it yet
}

/// What relays say: read again as what was written. Ranks may be written in several ways.
void readRelayedBodies(std::string_view body) {
  auto isSame = [body](auto unpack) {
    if (auto value = unpack(body)) {
      std::string packed = value->pack();
      expect(unpack(packed)->pack() == packed);
    }
  };
  constexpr int64_t kRanks = 64;
  isSame([](std::string_view bytes) { return RelayedMessage::unpack(bytes, kRanks); });
  isSame([](std::string_view bytes) { return RelayedWelcome::unpack(bytes, kRanks); });
  isSame([](std::string_view bytes) { return RelayedHellos::unpack(bytes, kRanks); });
  isSame([](std::string_view bytes) { return RelayedParts::unpack(bytes, kRanks); });
  isSame([](std::string_view bytes) { return RankPositions::unpack(bytes, kRanks); });
  isSame([](std::string_view bytes) { return Standing::unpack(bytes, kRanks); });
  isSame([](std::string_view bytes) { return Answer::unpack(bytes, kRanks); });
}

void readStream(std::string_view bytes, bool isSealed) {
  int fds[2];
  expect(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
  Socket writer(fds[0]);
  Wire reader(Socket(fds[1]), kStrangerFrameBytesMax);
  if (isSealed)
    reader.seal(Key{1}, Key{2});
  if (::send(writer.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT) < 0)
    return;
  writer.close();
  for (bool isAlive = true; isAlive;) {
    isAlive = reader.receive();
    while (std::optional<Message> message = reader.next())
      expect(!hasCode(message->kind) && message->body.size() <= kStrangerFrameBytesMax);
  }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  std::string_view bytes(reinterpret_cast<const char *>(data), size);
  for (bool isSealed : {false, true})
    readStream(bytes, isSealed);
  readOpenBodies(bytes);
  readBody<Refusal>(bytes);
  readBody<Welcome>(bytes);
  readBody<RankProgress>(bytes);
  readBody<Failure>(bytes);
  readBody<Abort>(bytes);
  readBody<Ask>(bytes);
  readRelayedBodies(bytes);
  if (auto part = GatherPart::unpack(bytes, 64)) // members may be written in several ways
    expect(GatherPart::unpack(part->pack(), 64)->members == part->members);
  return 0;
}

} // namespace shardc::launch
