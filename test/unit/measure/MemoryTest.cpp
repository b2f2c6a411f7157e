// The memory test finds a byte that reads back differently, and reports nothing for working memory.
#include <cstring>

#include <gtest/gtest.h>

#include "runtime/backend/host/Options.h"
#include "runtime/measure/MemoryTest.h"

namespace shardc::measure {
namespace {

constexpr int64_t kBlock = int64_t{16} << 20;

/// A stream that copies synchronously. One bit at `badAt` of the tested memory stays 0.
class BadStream final : public hal::Stream {
public:
  explicit BadStream(int64_t badAt) : badAt_(badAt) {}

  Status copy(void *to, const void *from, int64_t bytes, const char *) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    auto *first = static_cast<uint8_t *>(to);
    if (base_ == nullptr) // the first copy goes to the beginning of the tested memory
      base_ = first;
    if (int64_t at = badAt_ - (first - base_); badAt_ >= 0 && at >= 0 && at < bytes)
      first[at] &= 0xfe;
    return Status::ok();
  }
  Status launch(kernels::KernelFn, kernels::Call &, const char *) override { return no(); }
  Status fill(void *, uint8_t, int64_t, const char *) override { return no(); }
  Status collective(hal::Channel &, const hal::Collective &, const char *) override { return no(); }
  Status record(hal::Event &) override { return no(); }
  Status wait(hal::Event &) override { return no(); }
  Status beginCapture() override { return no(); }
  Result<std::unique_ptr<hal::Graph>> endCapture() override { return no(); }
  void abandonCapture() override {}
  Status launch(hal::Graph &, const hal::LaunchParams &) override { return no(); }

private:
  static Status no() { return Status(StatusCode::Internal, "a memory test only copies"); }
  int64_t badAt_;
  uint8_t *base_ = nullptr;
};

class BadDevice final : public hal::Device {
public:
  BadDevice(hal::Device &real, int64_t badAt) : real_(real), badAt_(badAt) {}

  int rank() const override { return 0; }
  Result<std::unique_ptr<hal::Buffer>> allocate(hal::MemoryKind kind, int64_t bytes,
                                                std::string_view name) override {
    return real_.allocate(kind, bytes, name);
  }
  Result<std::unique_ptr<hal::Stream>> createStream(std::string_view, hal::StreamUse) override {
    return std::unique_ptr<hal::Stream>(new BadStream(badAt_));
  }
  Result<std::unique_ptr<hal::Event>> createEvent() override { return real_.createEvent(); }
  int64_t bytesFree(hal::MemoryKind kind) const override { return real_.bytesFree(kind); }
  int64_t allocationCount() const override { return 0; }

private:
  hal::Device &real_;
  int64_t badAt_;
};

MemoryFindings findingsWith(int64_t badAt) {
  auto backend = host::makeBackend({});
  EXPECT_TRUE(backend.isOk());
  BadDevice device(*(*backend)->devices().front(), badAt);
  Result<MemoryFindings> findings = testDeviceMemory(device, **backend, kBlock + 1);
  EXPECT_TRUE(findings.isOk());
  return *findings;
}

TEST(DeviceMemory, IsWhole) {
  MemoryFindings findings = findingsWith(-1);
  EXPECT_EQ(findings.blocks, 2);
  EXPECT_EQ(findings.differing, 0);
}

TEST(DeviceMemory, HasABitThatStays) {
  // For any pattern, one of the two passes writes a 1 to the bit.
  for (int64_t at : {int64_t{0}, kBlock - 1, kBlock + 4711}) {
    MemoryFindings findings = findingsWith(at);
    EXPECT_EQ(findings.differing, 1) << at;
    EXPECT_EQ(findings.firstByte, at);
  }
}

TEST(HostMemory, IsWhole) {
  auto backend = host::makeBackend({});
  Result<MemoryFindings> findings = testHostMemory(*(*backend)->devices().front(), kBlock);
  ASSERT_TRUE(findings.isOk());
  EXPECT_EQ(findings->blocks, 1);
  EXPECT_EQ(findings->differing, 0);
}

} // namespace
} // namespace shardc::measure
