#include "runtime/launch/Wire.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <sys/socket.h>

namespace shardc::launch {
namespace {

constexpr uint64_t kCountMax = kRanksMax;
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

/// Over the frame's number as well: one that was sent before has another.
AuthCode codeOf(const Key &key, uint64_t number, MessageKind kind, std::string_view body) {
  std::string head = Packer().number(number).number(static_cast<uint64_t>(kind)).take();
  return authCode(key, {"frame", head, body});
}

} // namespace

Packer &Packer::number(uint64_t value) {
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

std::string Challenge::pack() const { return Packer().number(version).text(bytesOf(nonce)).take(); }

std::optional<Challenge> Challenge::unpack(std::string_view body) {
  Unpacker in(body);
  Challenge challenge;
  challenge.version = static_cast<uint32_t>(in.bounded(UINT32_MAX));
  if (in.hasFailed())
    return std::nullopt;
  if (challenge.version != kProtocolVersion)
    return challenge; // the rest may be in another form
  bool isNonce = copyBytes(in.text(), challenge.nonce);
  return isNonce && in.isComplete() ? std::optional(challenge) : std::nullopt;
}

std::string Hello::text() const {
  return Packer()
      .number(version)
      .text(job)
      .text(bytesOf(nonce))
      .number(static_cast<uint64_t>(rank))
      .number(static_cast<uint64_t>(worldSize))
      .number(planHash)
      .number(static_cast<uint64_t>(pid))
      .number(static_cast<uint64_t>(relayPort))
      .text(machine)
      .text(host)
      .text(gpu)
      .reports(problems)
      .take();
}

std::string Hello::pack(const Key &secret, const Nonce &challenge) const {
  std::string body = text();
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

std::optional<Hello> Hello::unpack(std::string_view opened) {
  Unpacker in(opened);
  Hello hello;
  hello.version = static_cast<uint32_t>(in.bounded(UINT32_MAX));
  hello.job = in.text();
  if (in.hasFailed())
    return std::nullopt;
  if (hello.version != kProtocolVersion)
    return hello; // the rest may be in another form
  bool isNonce = copyBytes(in.text(), hello.nonce);
  hello.rank = static_cast<int64_t>(in.bounded(kCountMax));
  hello.worldSize = static_cast<int64_t>(in.bounded(kCountMax));
  hello.planHash = in.number();
  hello.pid = static_cast<int64_t>(in.bounded(INT32_MAX));
  hello.relayPort = static_cast<int64_t>(in.bounded(UINT16_MAX));
  hello.machine = in.text();
  hello.host = in.text();
  hello.gpu = in.text();
  hello.problems = in.reports();
  return isNonce && in.isComplete() ? std::optional(hello) : std::nullopt;
}

WireKeys::WireKeys(const Key &secret, const Nonce &challenge, const Nonce &hello)
    : toServer(deriveKey(secret, {"to hub", bytesOf(challenge), bytesOf(hello)})),
      toRank(deriveKey(secret, {"to rank", bytesOf(challenge), bytesOf(hello)})) {}

std::string Refusal::pack() const { return Packer().number(reason).take(); }

std::optional<Refusal> Refusal::unpack(std::string_view body) {
  Unpacker in(body);
  Refusal refusal;
  refusal.reason = static_cast<Reason>(in.bounded(kLast));
  return in.isComplete() ? std::optional(refusal) : std::nullopt;
}

std::string Welcome::pack() const {
  return Packer()
      .text(bytesOf(nonce))
      .number(static_cast<uint64_t>(rank))
      .number(static_cast<uint64_t>(worldSize))
      .number(static_cast<uint64_t>(localSize))
      .number(isSpeaker)
      .number(static_cast<uint64_t>(attempt))
      .number(static_cast<uint64_t>(savedStep + 1))
      .take();
}

std::optional<Welcome> Welcome::unpack(std::string_view body) {
  Unpacker in(body);
  Welcome welcome;
  bool isNonce = copyBytes(in.text(), welcome.nonce);
  welcome.rank = static_cast<int64_t>(in.bounded(kCountMax));
  welcome.worldSize = static_cast<int64_t>(in.bounded(kCountMax));
  welcome.localSize = static_cast<int64_t>(in.bounded(1 << 20));
  welcome.isSpeaker = in.bounded(1) != 0;
  welcome.attempt = static_cast<int64_t>(in.bounded(INT32_MAX));
  welcome.savedStep = static_cast<int64_t>(in.bounded(INT64_MAX)) - 1;
  return isNonce && in.isComplete() ? std::optional(welcome) : std::nullopt;
}

std::string RankProgress::pack() const {
  Packer out;
  out.number(steps).number(isAsked).number(activity).number(phase).number(words.size());
  for (uint32_t word : words)
    out.number(word);
  return out.take();
}

std::optional<RankProgress> RankProgress::unpack(std::string_view body) {
  Unpacker in(body);
  RankProgress position;
  position.steps = in.number();
  position.isAsked = in.bounded(1) != 0;
  position.activity = in.number();
  position.phase = static_cast<uint32_t>(in.bounded(UINT32_MAX));
  uint64_t count = in.bounded(kWordsMax);
  for (uint64_t i = 0; i < count; ++i)
    position.words.push_back(static_cast<uint32_t>(in.bounded(UINT32_MAX)));
  return in.isComplete() ? std::optional(position) : std::nullopt;
}

Failure Failure::of(const Status &status, int exitStatus) {
  return {.code = status.code(), .exitStatus = exitStatus, .reports = {status.report()}};
}

std::string Failure::pack() const {
  std::vector<Report> fitting;
  size_t left = kBlobBytesMax;
  for (const Report &report : std::span(reports).first(std::min(reports.size(), kReportsMax))) {
    fitting.push_back(report);
    fitting.back().text.resize(std::min(report.text.size(), left));
    left -= fitting.back().text.size();
  }
  return Packer()
      .number(static_cast<uint64_t>(code))
      .number(static_cast<uint64_t>(exitStatus))
      .number(isTold)
      .reports(fitting)
      .take();
}

std::optional<Failure> Failure::unpack(std::string_view body) {
  Unpacker in(body);
  Failure failure;
  failure.code = static_cast<StatusCode>(in.bounded(static_cast<uint64_t>(StatusCode::Internal)));
  failure.exitStatus = static_cast<int>(in.bounded(255));
  failure.isTold = in.bounded(1) != 0;
  failure.reports = in.reports();
  return in.isComplete() ? std::optional(failure) : std::nullopt;
}

std::string Abort::pack() const {
  Packer out;
  out.number(static_cast<uint64_t>(exitStatus)).number(silent.size());
  for (const Process &process : silent)
    out.text(process.machine).number(static_cast<uint64_t>(process.pid));
  return out.take();
}

std::optional<Abort> Abort::unpack(std::string_view body) {
  Unpacker in(body);
  Abort abort;
  abort.exitStatus = static_cast<int>(in.bounded(255));
  uint64_t count = in.bounded(1 << 20);
  for (uint64_t i = 0; i < count && !in.hasFailed(); ++i) {
    Process process;
    process.machine = in.text();
    process.pid = static_cast<int64_t>(in.bounded(INT32_MAX));
    abort.silent.push_back(std::move(process));
  }
  return in.isComplete() ? std::optional(abort) : std::nullopt;
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
          return true; // the caller takes it before more is read
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
