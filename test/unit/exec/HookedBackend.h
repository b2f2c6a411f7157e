// The host backend with a hook for work queued on its streams.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "runtime/backend/host/Options.h"
#include "runtime/hal/Backend.h"

namespace shardc::test {

/// State that the streams of a HookedBackend share.
struct Hooks {
  int openCaptures = 0;
  /// If set, these are called first; a status that is not ok becomes the result of the call.
  std::function<Status(const char *label)> onLaunch, onCopy;
  std::vector<size_t> gathers; ///< for each call, the number of gathers that were issued together
};

/// A stream of the host backend with hooks before its work.
class HookedStream final : public hal::Stream {
public:
  HookedStream(std::unique_ptr<hal::Stream> host, Hooks &hooks)
      : host_(std::move(host)), hooks_(hooks) {}

  Status launch(kernels::KernelFn kernel, kernels::Call &call, const char *label) override {
    if (hooks_.onLaunch)
      RETURN_IF_ERROR(hooks_.onLaunch(label));
    return host_->launch(kernel, call, label);
  }
  Status launchShared(kernels::KernelFn kernel, const kernels::Call &call, const hal::OwnPart &own,
                      const char *label) override {
    if (hooks_.onLaunch)
      RETURN_IF_ERROR(hooks_.onLaunch(label));
    return host_->launchShared(kernel, call, own, label);
  }
  Status copy(void *to, const void *from, int64_t bytes, const char *label) override {
    if (hooks_.onCopy)
      RETURN_IF_ERROR(hooks_.onCopy(label));
    return host_->copy(to, from, bytes, label);
  }
  Status fill(void *to, uint8_t value, int64_t bytes, const char *label) override {
    return host_->fill(to, value, bytes, label);
  }
  Status collective(hal::Channel &channel, const hal::Collective &desc,
                    const char *label) override {
    return host_->collective(channel, desc, label);
  }
  Status gathers(hal::Channel &channel, std::span<const hal::Part> parts) override {
    hooks_.gathers.push_back(parts.size());
    return host_->gathers(channel, parts);
  }
  Status record(hal::Event &event) override { return host_->record(event); }
  Status wait(hal::Event &event) override { return host_->wait(event); }
  Status beginCapture() override {
    ++hooks_.openCaptures;
    return host_->beginCapture();
  }
  Result<std::unique_ptr<hal::Graph>> endCapture() override {
    --hooks_.openCaptures;
    return host_->endCapture();
  }
  void abandonCapture() override {
    --hooks_.openCaptures;
    host_->abandonCapture();
  }
  Status launch(hal::Graph &graph, const hal::LaunchParams &params) override {
    return host_->launch(graph, params);
  }

private:
  std::unique_ptr<hal::Stream> host_;
  Hooks &hooks_;
};

class HookedDevice final : public hal::Device {
public:
  HookedDevice(hal::Device &host, Hooks &hooks) : host_(host), hooks_(hooks) {}
  int rank() const override { return host_.rank(); }
  Result<std::unique_ptr<hal::Buffer>> allocate(hal::MemoryKind kind, int64_t bytes,
                                                std::string_view name) override {
    return host_.allocate(kind, bytes, name);
  }
  Result<std::unique_ptr<hal::Stream>> createStream(std::string_view name,
                                                    hal::StreamUse use) override {
    ASSIGN_OR_RETURN(auto stream, host_.createStream(name, use));
    return std::unique_ptr<hal::Stream>(new HookedStream(std::move(stream), hooks_));
  }
  Result<std::unique_ptr<hal::Event>> createEvent() override { return host_.createEvent(); }
  int64_t bytesFree(hal::MemoryKind kind) const override { return host_.bytesFree(kind); }
  int64_t allocationCount() const override { return host_.allocationCount(); }

private:
  hal::Device &host_;
  Hooks &hooks_;
};

/// The host backend with hooks. Like CUDA, it cannot report the progress of a stream that is
/// captured.
class HookedBackend final : public hal::Backend {
public:
  explicit HookedBackend(int ranks) : host_(std::move(*host::makeBackend({.ranks = ranks}))) {
    for (hal::Device *device : host_->devices()) {
      owned_.push_back(std::make_unique<HookedDevice>(*device, hooks));
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
    if (hooks.openCaptures == 0)
      return host_->synchronize();
    reported = Status(StatusCode::Internal, "operation not permitted when stream is capturing");
    return reported;
  }

  Hooks hooks;
  Status reported; ///< to the job, as a cause

private:
  std::unique_ptr<hal::Backend> host_;
  std::vector<std::unique_ptr<HookedDevice>> owned_;
  std::vector<hal::Device *> devices_;
};

} // namespace shardc::test
