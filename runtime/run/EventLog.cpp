// Encodes TensorBoard's event files: TFRecord framing (length, masked CRC-32C, data, masked
// CRC-32C) around protobuf messages.
#include "runtime/run/EventLog.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <numeric>
#include <unistd.h>

#include "runtime/base/Io.h"
#include "runtime/base/Reports.h"

namespace shardc::run {
namespace {

/// Initial capacity for a group of scalars and its records. It grows if needed.
constexpr size_t kGroupBytes = 4096;
/// Megatron's upper bound of losses whose exponential is logged.
constexpr double kLossMax = 20;

/// Table of CRC-32C by byte: the Castagnoli polynomial, reflected.
constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit)
      value = (value & 1) != 0 ? (value >> 1) ^ 0x82f63b78U : value >> 1;
    table[i] = value;
  }
  return table;
}();

/// TFRecord's checksum: CRC-32C, rotated and offset by a constant.
uint32_t maskedCrc(std::string_view bytes) {
  uint32_t crc = ~0U;
  for (char byte : bytes)
    crc = kCrcTable[(crc ^ static_cast<uint8_t>(byte)) & 0xff] ^ (crc >> 8);
  return std::rotr(~crc, 15) + 0xa282ead8U;
}

/// Encodes protocol buffer fields: a key, which consists of the field's number and wire type, and a
/// value.
enum class Wire : uint8_t { Varint = 0, Fixed64 = 1, Bytes = 2, Fixed32 = 5 };

template <typename T> void addLittleEndian(std::string &out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i)
    out.push_back(static_cast<char>(value >> (8 * i)));
}

void addVarint(std::string &out, uint64_t value) {
  for (; value >= 0x80; value >>= 7)
    out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void addKey(std::string &out, uint32_t field, Wire wire) {
  addVarint(out, field << 3 | static_cast<uint32_t>(wire));
}

void addBytes(std::string &out, uint32_t field, std::string_view bytes) {
  addKey(out, field, Wire::Bytes);
  addVarint(out, bytes.size());
  out += bytes;
}

/// Adds fields 1 and 2 of an Event: seconds since 1970, and the step.
void addHead(std::string &out, int64_t step) {
  double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  addKey(out, 1, Wire::Fixed64);
  addLittleEndian(out, std::bit_cast<uint64_t>(now));
  addKey(out, 2, Wire::Varint);
  addVarint(out, static_cast<uint64_t>(step));
}

void addRecord(std::string &out, std::string_view data) {
  size_t begin = out.size();
  addLittleEndian(out, static_cast<uint64_t>(data.size()));
  addLittleEndian(out, maskedCrc({out.data() + begin, sizeof(uint64_t)}));
  out += data;
  addLittleEndian(out, maskedCrc(data));
}

std::string nameOfFile() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0)
    host = {'h', 'o', 's', 't'};
  auto now = std::chrono::system_clock::now().time_since_epoch();
  return fmt::format("events.out.tfevents.{}.{}.{}.0",
                     std::chrono::duration_cast<std::chrono::seconds>(now).count(), host.data(),
                     ::getpid());
}

} // namespace

Status EventLog::open(const std::string &folder, const EventOptions &options) {
  options_ = options;
  recent_.resize(static_cast<size_t>(std::clamp<int64_t>(options.windowSteps, 1, 1 << 20)));
  for (std::string *bytes : {&records_, &event_, &summary_})
    bytes->reserve(kGroupBytes);
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  path_ = (std::filesystem::path(folder) / nameOfFile()).string();
  file_ = Descriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!isOpen()) {
    int error = failure ? failure.value() : errno;
    return makeStatus(kindOfError(error), "cannot create a file of events in '{}': {}", folder,
                      std::strerror(error))
        .as(report::EventsRefused.info());
  }
  event_.clear();
  addHead(event_, 0);
  addBytes(event_, 3, "brain.Event:2"); // field file_version
  addRecord(records_, event_);
  return write();
}

/// Begins an event that has a summary.
void EventLog::begin(int64_t step) {
  event_.clear();
  summary_.clear();
  addHead(event_, step);
}

/// Adds a value to the summary: a tag of less than 128 bytes (field 1) and a float (field 2).
void EventLog::scalar(std::string_view tag, double value) {
  addKey(summary_, 1, Wire::Bytes);
  addVarint(summary_, 2 + tag.size() + 5); // the keys, the tag's length, the float
  addBytes(summary_, 1, tag);
  addKey(summary_, 2, Wire::Fixed32);
  addLittleEndian(summary_, std::bit_cast<uint32_t>(static_cast<float>(value)));
}

void EventLog::end() {
  addBytes(event_, 5, summary_);
  addRecord(records_, event_);
}

Status EventLog::step(const StepState &state, double seconds,
                      std::span<const NamedValue> reported) {
  if (!isOpen())
    return Status::ok();
  recent_[static_cast<size_t>(steps_++) % recent_.size()] = seconds;
  sinceLogged_ += seconds;
  ++stepsSinceLogged_;
  samplesSinceLogged_ += options_.batchSize;
  if (state.step % options_.interval == 0) {
    begin(state.step);
    training(state, "");
    if (options_.decoupledLr)
      scalar("decoupled-learning-rate", state.decoupledLr);
    for (const NamedValue &each : reported)
      scalar(each.name, each.value);
    if (options_.skippedSamples > 0)
      scalar("skipped-train-samples", static_cast<double>(options_.skippedSamples));
    if (options_.throughput)
      speeds();
    end();
    begin(samplesUpTo(state.step));
    training(state, " vs samples");
    end();
  }
  if (state.step % options_.logInterval == 0)
    times(state.step);
  return write();
}

/// Adds the scalars of each step. `suffix` distinguishes the step number from samples as the
/// x-axis.
void EventLog::training(const StepState &state, std::string_view suffix) {
  auto add = [&](std::string_view name, double value) {
    std::array<char, 64> tag;
    auto made = fmt::format_to_n(tag.data(), tag.size(), "{}{}", name, suffix);
    scalar({tag.data(), std::min(made.size, tag.size())}, value);
  };
  add("learning-rate", state.lr);
  add("batch-size", static_cast<double>(options_.batchSize));
  if (!state.nonfinite)
    add("lm loss", state.loss);
  if (options_.lossScale)
    add("loss-scale", state.lossScale);
  if (options_.ranks)
    add("world-size", static_cast<double>(options_.worldSize));
  if (!state.nonfinite)
    add("grad-norm", state.gradNorm);
}

/// Adds the scalars that depend on step times, averaged since the previous call.
void EventLog::times(int64_t step) {
  double average = sinceLogged_ / static_cast<double>(stepsSinceLogged_);
  double tokens = static_cast<double>(samplesSinceLogged_ * options_.sequenceLength) /
                  static_cast<double>(stepsSinceLogged_);
  double tflops = average > 0 ? tokens * options_.flopsPerToken / average / 1e12 : 0;
  sinceLogged_ = 0;
  stepsSinceLogged_ = samplesSinceLogged_ = 0;
  begin(step);
  if (options_.throughput) {
    scalar("throughput/tflops/device", tflops);
    scalar("throughput/tflops", tflops * static_cast<double>(options_.worldSize));
  }
  if (options_.times)
    scalar("iteration-time", average);
  if (!summary_.empty())
    end();
}

/// Adds batches, samples and tokens per second, once the window is full.
void EventLog::speeds() {
  auto window = static_cast<int64_t>(recent_.size());
  double elapsed = std::accumulate(recent_.begin(), recent_.end(), 0.0);
  if (steps_ < window || elapsed <= 0)
    return;
  double batches = static_cast<double>(window) / elapsed;
  double samples = batches * static_cast<double>(options_.batchSize);
  double tokens = samples * static_cast<double>(options_.sequenceLength);
  auto ranks = static_cast<double>(options_.worldSize);
  scalar("throughput/batches_per_sec", batches);
  scalar("throughput/samples_per_sec", samples);
  scalar("throughput/tokens_per_sec", tokens);
  scalar("throughput/device/batches_per_sec", batches / ranks);
  scalar("throughput/device/samples_per_sec", samples / ranks);
  scalar("throughput/device/tokens_per_sec", tokens / ranks);
}

Status EventLog::evaluated(const StepState &state, std::string_view set) {
  if (!isOpen())
    return Status::ok();
  double perplexity = std::exp(std::min(kLossMax, state.evalLoss));
  auto add = [&](std::string_view what, double value) {
    std::array<char, 256> tag;
    auto made = fmt::format_to_n(tag.data(), tag.size(), "lm loss validation{}{}{}",
                                 set.empty() ? "" : "-", set, what);
    scalar({tag.data(), std::min(made.size, tag.size())}, value);
  };
  begin(state.step);
  add("", state.evalLoss);
  if (options_.perplexity)
    add(" ppl", perplexity);
  end();
  begin(samplesUpTo(state.step));
  add(" vs samples", state.evalLoss);
  if (options_.perplexity)
    add(" ppl vs samples", perplexity);
  end();
  return write();
}

/// Writes a text as a Summary.Value of TensorFlow's summary.proto. Field 1 is the tag. Field 8 is a
/// TensorProto with one string: its fields are 1 (type), 2 (shape) and 8 (strings). Field 9 is the
/// metadata, which names the plugin that shows the text.
void EventLog::text(std::string_view tag, std::string_view markdown) {
  constexpr uint64_t kString = 7; // DT_STRING
  std::string value, tensor, plugin, metadata;
  addKey(tensor, 1, Wire::Varint);
  addVarint(tensor, kString);
  addBytes(tensor, 2, ""); // the shape of a scalar
  addBytes(tensor, 8, markdown);
  addBytes(plugin, 1, "text");
  addBytes(metadata, 1, plugin);
  addBytes(value, 1, tag);
  addBytes(value, 8, tensor);
  addBytes(value, 9, metadata);
  addBytes(summary_, 1, value);
}

Status EventLog::said(int64_t step, std::span<const SaidText> texts) {
  if (!isOpen() || texts.empty())
    return Status::ok();
  auto code = [](std::string_view text) { // indented lines are code, whatever they contain
    std::string lines = "\n\n    ";
    for (char c : text)
      lines += c == '\n' ? std::string("\n    ") : std::string(1, c);
    return lines;
  };
  begin(step);
  for (size_t i = 0; i < texts.size(); ++i)
    text(fmt::format("samples/{}", i + 1),
         fmt::format("prompt{}\n\nmodel{}\n\ndata{}\n", code(texts[i].prompt), code(texts[i].said),
                     code(texts[i].data)));
  end();
  return write();
}

Status EventLog::write() {
  if (!writeFully(file_.fd(), records_)) {
    int error = errno;
    file_.close(); // only one failure is reported; later records would follow a torn one
    return makeStatus(kindOfError(error),
                      "cannot write events to '{}': {}; no more will be written", path_,
                      std::strerror(error))
        .as(report::EventsLost.info());
  }
  records_.clear();
  return Status::ok();
}

} // namespace shardc::run
