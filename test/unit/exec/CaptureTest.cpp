// What becomes of an op that fails while its segment is captured.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/host/Registry.h"
#include "runtime/backend/host/Options.h"
#include "runtime/exec/Executable.h"
#include "test/unit/exec/ToyPlan.h"

namespace shardc::test {
namespace {

using ::testing::HasSubstr;

/// What the streams of a CapturingBackend share.
struct Captures {
  int open = 0;
  int launchesLeft = 0; ///< kernels until one is refused
  int refused = 0;
};

/// A stream of the host backend that refuses a kernel under capture, as cuBLAS would.
class RefusingStream final : public hal::Stream {
public:
  RefusingStream(std::unique_ptr<hal::Stream> host, Captures &captures)
      : host_(std::move(host)), captures_(captures) {}

  Status launch(kernels::KernelFn kernel, kernels::Call &call, const char *label) override {
    if (captures_.open > 0 && captures_.launchesLeft-- == 0) {
      ++captures_.refused;
      return makeStatus(StatusCode::Internal, "{}: no room for a handle", label);
    }
    return host_->launch(kernel, call, label);
  }
  Status copy(void *to, const void *from, int64_t bytes, const char *label) override {
    return host_->copy(to, from, bytes, label);
  }
  Status fill(void *to, uint8_t value, int64_t bytes, const char *label) override {
    return host_->fill(to, value, bytes, label);
  }
  Status collective(hal::Channel &channel, const hal::Collective &desc,
                    const char *label) override {
    return host_->collective(channel, desc, label);
  }
  Status record(hal::Event &event) override { return host_->record(event); }
  Status wait(hal::Event &event) override { return host_->wait(event); }
  Status beginCapture() override {
    ++captures_.open;
    return host_->beginCapture();
  }
  Result<std::unique_ptr<hal::Graph>> endCapture() override {
    --captures_.open;
    return host_->endCapture();
  }
  void abandonCapture() override {
    --captures_.open;
    host_->abandonCapture();
  }
  Status launch(hal::Graph &graph, const hal::LaunchParams &params) override {
    return host_->launch(graph, params);
  }

private:
  std::unique_ptr<hal::Stream> host_;
  Captures &captures_;
};

class RefusingDevice final : public hal::Device {
public:
  RefusingDevice(hal::Device &host, Captures &captures) : host_(host), captures_(captures) {}
  int rank() const override { return host_.rank(); }
  Result<std::unique_ptr<hal::Buffer>> allocate(hal::MemoryKind kind, int64_t bytes,
                                                std::string_view name) override {
    return host_.allocate(kind, bytes, name);
  }
  Result<std::unique_ptr<hal::Stream>> createStream(std::string_view name) override {
    ASSIGN_OR_RETURN(auto stream, host_.createStream(name));
    return std::unique_ptr<hal::Stream>(new RefusingStream(std::move(stream), captures_));
  }
  Result<std::unique_ptr<hal::Event>> createEvent() override { return host_.createEvent(); }
  int64_t bytesFree(hal::MemoryKind kind) const override { return host_.bytesFree(kind); }
  int64_t allocationCount() const override { return host_.allocationCount(); }

private:
  hal::Device &host_;
  Captures &captures_;
};

/// The host backend with streams that refuse; like CUDA it cannot say how far a capture is.
class CapturingBackend final : public hal::Backend {
public:
  explicit CapturingBackend(int ranks) : host_(std::move(*host::makeBackend({.ranks = ranks}))) {
    for (hal::Device *device : host_->devices()) {
      owned_.push_back(std::make_unique<RefusingDevice>(*device, captures));
      devices_.push_back(owned_.back().get());
    }
  }
  std::string_view name() const override { return host_->name(); }
  int worldSize() const override { return host_->worldSize(); }
  bool devicesShareMemory() const override { return true; }
  std::span<hal::Device *const> devices() const override { return devices_; }
  Result<std::unique_ptr<hal::Channel>> createChannel(const hal::ChannelDesc &desc) override {
    return host_->createChannel(desc);
  }
  Status synchronize() override {
    if (captures.open == 0)
      return host_->synchronize();
    reported = Status(StatusCode::Internal, "operation not permitted when stream is capturing");
    return reported;
  }

  Captures captures;
  Status reported; ///< to the job, as a cause

private:
  std::unique_ptr<hal::Backend> host_;
  std::vector<std::unique_ptr<RefusingDevice>> owned_;
  std::vector<hal::Device *> devices_;
};

TEST(Capture, WhatFailsInItIsTheOnlyCauseThatIsTold) {
  plan::Plan plan = toyPlan({});
  CapturingBackend backend(2);
  for (int before = 0; before < 5; ++before) {
    backend.captures.launchesLeft = before;
    auto refused = exec::Executable::create(plan, backend, kernels::findHostKernel, {});
    ASSERT_FALSE(refused.isOk());
    EXPECT_THAT(refused.status().message(), HasSubstr(": no room for a handle"));
    EXPECT_EQ(backend.captures.refused, before + 1);
    EXPECT_EQ(backend.captures.open, 0);
    EXPECT_TRUE(backend.reported.isOk()) << backend.reported.message();
  }
  backend.captures.launchesLeft = 1 << 20;
  auto executable = exec::Executable::create(plan, backend, kernels::findHostKernel, {});
  EXPECT_TRUE(executable.isOk()) << "the backend is as good as before";
}

} // namespace
} // namespace shardc::test
