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
  if (std::optional<T> value = unpacked<T>(body))
    expect(packed(*value) == body);
}

/// Of other protocol versions, only the beginning is read.
void readOpenBodies(std::string_view body) {
  if (auto challenge = unpacked<Challenge>(body);
      challenge && challenge->version == kProtocolVersion)
    expect(packed(*challenge) == body);
  if (auto hello = unpacked<Hello>(body); hello && hello->version == kProtocolVersion) {
    std::string packed = hello->pack({}, {});
    expect(*Hello::open(packed, {}, {}) == body);
  }
  expect(!Hello::open(body, Key{1}, Nonce{1})); // the input cannot contain the right code
}

/// Messages of relays must be read as they were written. The input may write ranks in several ways.
void readRelayedBodies(std::string_view body) {
  auto isSame = [body](auto unpack) {
    if (auto value = unpack(body)) {
      std::string again = packed(*value);
      expect(packed(*unpack(again)) == again);
    }
  };
  constexpr int64_t kRanks = 64;
  isSame([](std::string_view bytes) { return unpacked<RelayedMessage>(bytes, kRanks); });
  isSame([](std::string_view bytes) { return unpacked<RelayedWelcome>(bytes, kRanks); });
  isSame([](std::string_view bytes) { return unpacked<RelayedHellos>(bytes, kRanks); });
  isSame([](std::string_view bytes) { return unpacked<RelayedParts>(bytes, kRanks); });
  isSame([](std::string_view bytes) { return unpacked<Standing>(bytes, kRanks); });
  isSame([](std::string_view bytes) { return unpacked<Answer>(bytes, kRanks); });
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
  if (auto part = unpacked<GatherPart>(bytes, 64)) // members may be written in several ways
    expect(unpacked<GatherPart>(packed(*part), 64)->members == part->members);
  return 0;
}

} // namespace shardc::launch
