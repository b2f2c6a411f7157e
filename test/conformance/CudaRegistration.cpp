// Registration of shared memory: with windows, with the fallback if NCCL refuses them, and without,
// if none is requested. All-gathers must always be correct, and a channel with less than requested
// must report it. Needs two GPUs.
#include <cstdlib>
#include <string_view>

#include <gtest/gtest.h>

#include "runtime/backend/cuda/Options.h"

namespace shardc::cuda {
namespace {

using hal::Registration;

constexpr int kRanks = 2;
constexpr int64_t kShard = 4096; ///< floats

struct Outcome {
  bool isSkipped = false, isRight = true;
  std::vector<std::string> warnings;
};

/// Does two gathers in place inside shared memory.
Outcome gatherWith(Options options, Registration wanted) {
  Outcome outcome;
  const char *gpu = std::getenv("SHARDC_GPU");
  options.worldSize = kRanks;
  options.timeoutSeconds = 60;
  options.emit = [&](const Report &report) { outcome.warnings.push_back(lineOf(report)); };
  auto backend = makeBackend(options);
  outcome.isSkipped = !gpu || std::string_view(gpu) != "1" || !backend.isOk();
  if (outcome.isSkipped)
    return outcome;
  hal::ChannelDesc desc{"dp gather", {0, 1}};
  desc.registration = wanted;
  std::vector<std::unique_ptr<hal::Buffer>> shared, host;
  std::vector<std::unique_ptr<hal::Stream>> streams;
  int64_t bytes = kRanks * kShard * static_cast<int64_t>(sizeof(float));
  for (hal::Device *device : (*backend)->devices()) {
    shared.push_back(std::move(*device->allocate(hal::MemoryKind::Sym, bytes, "shared")));
    host.push_back(std::move(*device->allocate(hal::MemoryKind::Host, bytes, "host")));
    streams.push_back(std::move(*device->createStream("gather", hal::StreamUse::Transfer)));
    desc.shared.push_back({device->rank(), shared.back()->data(), bytes});
  }
  auto channel = (*backend)->createChannel(desc);
  outcome.isRight = channel.isOk();
  for (int turn = 0; outcome.isRight && turn < 2; ++turn) {
    for (int rank = 0; rank < kRanks; ++rank) {
      auto *words = reinterpret_cast<float *>(host[rank]->data());
      for (int64_t i = 0; i < kRanks * kShard; ++i)
        words[i] = i / kShard == rank ? static_cast<float>(10 * turn + rank + 1) : -1.0f;
      outcome.isRight &= streams[rank]->copy(shared[rank]->data(), words, bytes, "in").isOk();
    }
    outcome.isRight &= (*backend)->synchronize().isOk();
    for (int rank = 0; rank < kRanks; ++rank) {
      uint8_t *data = shared[rank]->data();
      hal::Collective gather{hal::CollectiveKind::AllGather,
                             reinterpret_cast<float *>(data) + rank * kShard, data, kShard};
      outcome.isRight &= streams[rank]->collective(**channel, gather, "gather").isOk();
    }
    for (int rank = 0; rank < kRanks; ++rank)
      outcome.isRight &=
          streams[rank]->copy(host[rank]->data(), shared[rank]->data(), bytes, "out").isOk();
    outcome.isRight &= (*backend)->synchronize().isOk();
    for (int rank = 0; rank < kRanks; ++rank)
      for (int64_t i = 0; i < kRanks * kShard; ++i)
        outcome.isRight &= reinterpret_cast<float *>(host[rank]->data())[i] ==
                           static_cast<float>(10 * turn + i / kShard + 1);
    outcome.isRight &= (*backend)->checkGuards().isOk();
  }
  return outcome;
}

class SomeRefusals final : public Refusals {
public:
  bool refuses(Service what) const override {
    return (what == Service::Windows && windows) || (what == Service::Buffers && buffers);
  }
  bool windows = false, buffers = false;
};

TEST(CudaRegistration, FallsBackAndSaysSo) {
  Options options;
  SomeRefusals refusals;
  options.refusals = &refusals;
  for (Registration wanted : {Registration::Windows, Registration::Local, Registration::Nothing})
    for (bool refuseWindows : {false, true})
      for (bool refuseLocal : {false, true}) {
        refusals.windows = refuseWindows;
        refusals.buffers = refuseLocal;
        Outcome outcome = gatherWith(options, wanted);
        if (outcome.isSkipped)
          GTEST_SKIP() << "needs two GPUs and SHARDC_GPU=1";
        EXPECT_TRUE(outcome.isRight);
        size_t lost = wanted == Registration::Windows && refuseWindows ? 1 : 0;
        bool asksLocal = wanted == Registration::Local || lost == 1;
        EXPECT_EQ(outcome.warnings.size(), lost + (asksLocal && refuseLocal ? 1 : 0));
        for (const std::string &warning : outcome.warnings)
          EXPECT_TRUE(warning.ends_with("[no-windows]") || warning.ends_with("[no-registration]"))
              << warning;
      }
}

/// With guards, buffers begin after a guard zone in the memory that NCCL allocated.
TEST(CudaRegistration, WindowsBetweenGuards) {
  Options options;
  options.guards = true;
  Outcome outcome = gatherWith(options, Registration::Windows);
  if (outcome.isSkipped)
    GTEST_SKIP() << "needs two GPUs and SHARDC_GPU=1";
  EXPECT_TRUE(outcome.isRight);
  EXPECT_TRUE(outcome.warnings.empty());
}

} // namespace
} // namespace shardc::cuda
