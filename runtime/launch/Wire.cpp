// A frame has a header of four 32-bit words (magic number, kind, size, reserved), the body, and for
// most kinds an authentication code over the frame's number, its kind and its body.
#include "runtime/launch/Wire.h"

#include <cerrno>
#include <cstring>

#include <sys/socket.h>

namespace shardc::launch {
namespace {

constexpr uint32_t kMagic = 0x43445253; // "SRDC"

struct FrameHead {
  uint32_t magic, kind, bytes, reserved;
};

size_t codeBytes(uint32_t kind) {
  return hasCode(static_cast<MessageKind>(kind)) ? sizeof(AuthCode) : 0;
}

size_t wholeBytes(const FrameHead &head) { return sizeof head + head.bytes + codeBytes(head.kind); }

bool isOurs(const FrameHead &head, size_t bytesMax) {
  return head.magic == kMagic && head.kind >= 1 &&
         head.kind <= static_cast<uint32_t>(MessageKind::kLast) && head.bytes <= bytesMax;
}

/// Returns the authentication code of a frame. It covers the frame's number, so that a repeated
/// frame does not match.
AuthCode codeOf(const Key &key, uint64_t number, MessageKind kind, std::string_view body) {
  std::string head = Packer().number(number).number(static_cast<uint64_t>(kind)).take();
  return authCode(key, {"frame", head, body});
}

/// Members at equal distances. A group of a mesh consists of few of these runs.
struct Run {
  int64_t first, step, count;
};

std::vector<Run> runsOf(const std::vector<int> &members) {
  std::vector<Run> runs;
  for (int64_t member : members) {
    Run *last = runs.empty() ? nullptr : &runs.back();
    if (last && last->count == 1)
      last->step = member - last->first;
    if (last && member == last->first + last->count * last->step && last->step != 0)
      ++last->count;
    else
      runs.push_back({member, 0, 1});
  }
  return runs;
}

} // namespace

Packer &Packer::append(uint64_t value) {
  for (int i = 0; i < 8; ++i)
    bytes_.push_back(static_cast<char>(value >> (8 * i)));
  return *this;
}

Packer &Packer::text(std::string_view value) {
  number(value.size());
  bytes_.append(value);
  return *this;
}

Packer &Packer::reports(std::span<const Report> values) {
  number(values.size());
  for (const Report &report : values)
    text(packReport(report));
  return *this;
}

uint64_t Unpacker::number() {
  if (!isOk_ || left_.size() < 8) {
    isOk_ = false;
    return 0;
  }
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i)
    value |= static_cast<uint64_t>(static_cast<uint8_t>(left_[i])) << (8 * i);
  left_.remove_prefix(8);
  return value;
}

std::string Unpacker::text() {
  uint64_t size = number();
  if (!isOk_ || size > left_.size()) {
    isOk_ = false;
    return "";
  }
  std::string value(left_.substr(0, size));
  left_.remove_prefix(size);
  return value;
}

std::vector<Report> Unpacker::reports() {
  std::vector<Report> values;
  for (uint64_t left = bounded(kReportsMax); left > 0 && isOk_; --left) {
    std::optional<Report> report = unpackReport(text());
    isOk_ = isOk_ && report;
    if (isOk_)
      values.push_back(std::move(*report));
  }
  return values;
}

uint64_t Unpacker::bounded(uint64_t most) {
  uint64_t value = number();
  isOk_ = isOk_ && value <= most;
  return isOk_ ? value : 0;
}

void Packer::fitting(std::vector<Report> values) {
  values.resize(std::min(values.size(), kReportsMax));
  size_t left = kBlobBytesMax;
  for (Report &report : values) {
    report.text.resize(std::min(report.text.size(), left));
    left -= report.text.size();
  }
  reports(values);
}

Packer &Packer::ranks(const std::vector<int> &values) {
  std::vector<Run> runs = runsOf(values);
  number(runs.size());
  for (const Run &run : runs)
    number(run.first).number(run.step).number(run.count);
  return *this;
}

void Unpacker::ranks(std::vector<int> &values, int64_t most, std::vector<bool> &isThere) {
  for (auto left = bounded(static_cast<uint64_t>(most)); left > 0 && isOk_; --left) {
    Run run = {};
    field(run.first, most);
    run.step = static_cast<int64_t>(number());
    field(run.count, most);
    check(-most < run.step && run.step < most);
    for (int64_t rank = run.first; run.count > 0 && isOk_; --run.count, rank += run.step) {
      check(0 <= rank && rank < most && !isThere[static_cast<size_t>(rank)]);
      if (!isOk_)
        return;
      isThere[static_cast<size_t>(rank)] = true;
      values.push_back(static_cast<int>(rank));
    }
  }
}

std::string Hello::pack(const Key &secret, const Nonce &challenge) const {
  std::string body = packed(*this);
  body += bytesOf(authCode(secret, {"hello", bytesOf(challenge), body}));
  return body;
}

std::optional<std::string_view> Hello::open(std::string_view body, const Key &secret,
                                            const Nonce &challenge) {
  AuthCode code;
  if (body.size() < code.size())
    return std::nullopt;
  std::string_view opened = body.substr(0, body.size() - code.size());
  copyBytes(body.substr(opened.size()), code);
  bool isRight = isSame(code, authCode(secret, {"hello", bytesOf(challenge), opened}));
  return isRight ? std::optional(opened) : std::nullopt;
}

WireKeys::WireKeys(const Key &secret, const Nonce &challenge, const Nonce &hello)
    : toServer(deriveKey(secret, {"to hub", bytesOf(challenge), bytesOf(hello)})),
      toRank(deriveKey(secret, {"to rank", bytesOf(challenge), bytesOf(hello)})) {}

void Wire::introduce(const Hello &own, const Key &secret, const Nonce &challenge) {
  queue(MessageKind::Hello, own.pack(secret, challenge));
  WireKeys keys(secret, challenge, own.nonce);
  seal(keys.toServer, keys.toRank);
}

void Wire::queue(MessageKind kind, std::string_view body) {
  FrameHead head = {kMagic, static_cast<uint32_t>(kind), static_cast<uint32_t>(body.size()), 0};
  std::string_view code;
  AuthCode bytes;
  if (hasCode(kind)) {
    SHARDC_CHECK(keys_, "a message of kind {} is sent without keys", head.kind);
    bytes = codeOf(keys_->sending, keys_->sent++, kind, body);
    code = bytesOf(bytes);
  }
  unsent_.append(reinterpret_cast<const char *>(&head), sizeof head);
  unsent_.append(body).append(code);
  ++traffic_.sentFrames;
}

bool Wire::flush() {
  while (isOpen() && !unsent_.empty()) {
    ssize_t sent = ::send(fd(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      unsent_.erase(0, static_cast<size_t>(sent));
      traffic_.sentBytes += static_cast<uint64_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return true;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return isOpen();
}

bool Wire::receive() {
  char buffer[1 << 16];
  while (isOpen()) {
    ssize_t got = ::recv(fd(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (got > 0) {
      unread_.append(buffer, static_cast<size_t>(got));
      traffic_.readBytes += static_cast<uint64_t>(got);
      FrameHead head;
      if (unread_.size() >= sizeof head) {
        std::memcpy(&head, unread_.data(), sizeof head);
        if (!isOurs(head, bytesMax_))
          return false;
        if (unread_.size() >= wholeBytes(head))
          return true; // the caller takes this message before more is read
      }
      continue;
    }
    if (got < 0 && errno == EINTR)
      continue;
    return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }
  return false;
}

std::optional<Message> Wire::next() {
  FrameHead head;
  if (!isOpen() || unread_.size() < sizeof head)
    return std::nullopt;
  std::memcpy(&head, unread_.data(), sizeof head);
  if (!isOurs(head, bytesMax_) || unread_.size() < wholeBytes(head))
    return std::nullopt;
  Message message{static_cast<MessageKind>(head.kind), unread_.substr(sizeof head, head.bytes)};
  if (hasCode(message.kind)) {
    AuthCode code;
    copyBytes(std::string_view(unread_).substr(sizeof head + head.bytes, code.size()), code);
    if (!keys_ ||
        !isSame(code, codeOf(keys_->reading, keys_->read++, message.kind, message.body))) {
      close();
      return std::nullopt;
    }
  }
  unread_.erase(0, wholeBytes(head));
  ++traffic_.readFrames;
  return message;
}

} // namespace shardc::launch
