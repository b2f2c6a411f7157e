// TensorBoard's event files, read back according to the format's description.
#include <bit>
#include <cmath>
#include <filesystem>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/Io.h"
#include "runtime/run/EventLog.h"

namespace shardc::run {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// CRC-32C bit by bit.
uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0U;
  for (char byte : bytes) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit)
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78U : 0);
  }
  return ~crc;
}

uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8U; }

template <typename T> T take(std::string_view &bytes) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i)
    value |= static_cast<T>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  bytes.remove_prefix(sizeof(T));
  return value;
}

uint64_t takeVarint(std::string_view &bytes) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    auto byte = static_cast<uint8_t>(bytes.front());
    bytes.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80)
      return value;
  }
}

/// The fields of a message. A repeated field has its last value; numbers are text.
std::map<uint64_t, std::vector<std::string>> fieldsOf(std::string_view bytes) {
  std::map<uint64_t, std::vector<std::string>> fields;
  while (!bytes.empty()) {
    uint64_t key = takeVarint(bytes);
    auto &values = fields[key >> 3];
    switch (key & 7) {
    case 0:
      values.push_back(std::to_string(takeVarint(bytes)));
      break;
    case 1:
      values.push_back(std::to_string(std::bit_cast<double>(take<uint64_t>(bytes))));
      break;
    case 2: {
      uint64_t size = takeVarint(bytes);
      values.emplace_back(bytes.substr(0, size));
      bytes.remove_prefix(size);
      break;
    }
    case 5:
      values.push_back(std::to_string(std::bit_cast<float>(take<uint32_t>(bytes))));
      break;
    default:
      ADD_FAILURE() << "wire type " << (key & 7);
      return fields;
    }
  }
  return fields;
}

/// The events of a file, one line for each: "3: lm loss=2.5 ...".
std::vector<std::string> eventsOf(const std::string &path) {
  std::string file = *readFile(path);
  std::string_view left = file;
  std::vector<std::string> events;
  while (!left.empty()) {
    std::string_view length = left.substr(0, 8);
    auto size = take<uint64_t>(left);
    EXPECT_EQ(take<uint32_t>(left), masked(crc32c(length)));
    std::string_view data = left.substr(0, size);
    left.remove_prefix(size);
    EXPECT_EQ(take<uint32_t>(left), masked(crc32c(data)));
    auto event = fieldsOf(data);
    EXPECT_GT(std::stod(event[1].at(0)), 1.6e9) << "seconds since 1970";
    std::string line = event[2].at(0) + ":";
    for (const std::string &version : event[3])
      line += " version " + version;
    for (const std::string &summary : event[5]) {
      auto values = fieldsOf(summary);
      for (const std::string &value : values[1]) {
        auto fields = fieldsOf(value);
        line += " " + fields[1].at(0) + "=";
        line += fields[8].empty() ? fields[2].at(0) : fieldsOf(fields[8].at(0))[8].at(0);
      }
    }
    events.push_back(line);
  }
  return events;
}

class EventLogTest : public testing::Test {
protected:
  std::string folder = testing::TempDir() + "events" + std::to_string(::getpid());
  ~EventLogTest() override { std::filesystem::remove_all(folder); }

  std::string onlyFile() const {
    std::vector<std::string> paths;
    for (const auto &entry : std::filesystem::directory_iterator(folder))
      paths.push_back(entry.path().string());
    EXPECT_EQ(paths.size(), 1U);
    EXPECT_THAT(paths.at(0), HasSubstr("/events.out.tfevents."));
    return paths.at(0);
  }
};

StepState stateOf(int64_t step, double loss, bool isSkipped = false) {
  StepState state{};
  state.step = step;
  state.loss = loss;
  state.lr = 0.25F;
  state.gradNorm = 1.5F;
  state.lossScale = 8;
  state.nonfinite = isSkipped ? 1 : 0;
  state.evalLoss = 30;
  return state;
}

TEST(EventFormat, TestsChecksum) { EXPECT_EQ(crc32c("123456789"), 0xe3069283U); }

TEST_F(EventLogTest, HasMegatronsNames) {
  EventLog log;
  ASSERT_TRUE(log.open(folder, {.logInterval = 2, .batchSize = 4, .ranks = true}).isOk());
  ASSERT_TRUE(log.step(stateOf(1, 2.5), 0.5).isOk());
  ASSERT_TRUE(log.step(stateOf(2, 2, /*isSkipped=*/true), 0.5).isOk());
  ASSERT_TRUE(log.evaluated(stateOf(2, 2)).isOk());
  EXPECT_THAT(eventsOf(onlyFile()),
              ElementsAre("0: version brain.Event:2",
                          "1: learning-rate=0.250000 batch-size=4.000000 lm loss=2.500000 "
                          "loss-scale=8.000000 world-size=1.000000 grad-norm=1.500000",
                          "4: learning-rate vs samples=0.250000 batch-size vs samples=4.000000 "
                          "lm loss vs samples=2.500000 loss-scale vs samples=8.000000 "
                          "world-size vs samples=1.000000 grad-norm vs samples=1.500000",
                          "2: learning-rate=0.250000 batch-size=4.000000 loss-scale=8.000000 "
                          "world-size=1.000000",
                          "8: learning-rate vs samples=0.250000 batch-size vs samples=4.000000 "
                          "loss-scale vs samples=8.000000 world-size vs samples=1.000000",
                          "2: lm loss validation=30.000000",
                          "8: lm loss validation vs samples=30.000000"));
}

/// Times are averages over the steps since the last event; speeds are averages over a full window.
TEST_F(EventLogTest, HasTimesAndSpeeds) {
  EventOptions options{.interval = 10,
                       .logInterval = 2,
                       .windowSteps = 3,
                       .batchSize = 4,
                       .sequenceLength = 8,
                       .worldSize = 2,
                       .flopsPerToken = 1e12,
                       .lossScale = false,
                       .perplexity = true,
                       .times = true,
                       .throughput = true};
  EventLog log;
  ASSERT_TRUE(log.open(folder, options).isOk());
  double seconds = 0;
  for (int64_t step = 7; step <= 10; ++step)
    ASSERT_TRUE(log.step(stateOf(step, 2), seconds += 1).isOk());
  ASSERT_TRUE(log.evaluated(stateOf(10, 2)).isOk());
  std::vector<std::string> events = eventsOf(onlyFile());
  ASSERT_EQ(events.size(), 7U);
  EXPECT_EQ(events[1], "8: throughput/tflops/device=21.333334 throughput/tflops=42.666668 "
                       "iteration-time=1.500000");
  EXPECT_THAT(events[2],
              HasSubstr("throughput/batches_per_sec=0.333333 throughput/samples_per_sec=1.333333 "
                        "throughput/tokens_per_sec=10.666667 "
                        "throughput/device/batches_per_sec=0.166667"));
  EXPECT_THAT(events[4], HasSubstr("iteration-time=3.500000"));
  // Megatron bounds the loss by 20 before it takes the exponential.
  EXPECT_EQ(events[5], "10: lm loss validation=30.000000 lm loss validation ppl=" +
                           std::to_string(static_cast<float>(std::exp(20.0))));
}

/// What a model says is a block of code, whatever it contains.
TEST_F(EventLogTest, HasTexts) {
  EventLog log;
  ASSERT_TRUE(log.open(folder, {}).isOk());
  ASSERT_TRUE(log.said(4, std::vector<SaidText>{{"a\n# b", "c", "d"}, {"e", "", "f"}}).isOk());
  EXPECT_THAT(eventsOf(onlyFile()),
              ElementsAre("0: version brain.Event:2",
                          "4: samples/1=prompt\n\n    a\n    # b\n\nmodel\n\n    c\n\ndata\n\n"
                          "    d\n samples/2=prompt\n\n    e\n\nmodel\n\n    \n\ndata\n\n    f\n"));
}

TEST_F(EventLogTest, FailuresAreToldOnce) {
  EventLog log;
  Status refused = log.open("/dev/null/events", {});
  EXPECT_THAT(refused.message(), HasSubstr("cannot create a file of events in '/dev/null/events': "
                                           "Not a directory"));
  EXPECT_TRUE(log.step(stateOf(1, 2), 1).isOk()) << "a log that is not open takes nothing";
}

} // namespace
} // namespace shardc::run
