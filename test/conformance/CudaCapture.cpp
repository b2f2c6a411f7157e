// Captures that CUDA invalidates, because a library does something that a graph cannot contain.
#include <cstdlib>
#include <string_view>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "kernels/cuda/Queue.h"
#include "runtime/backend/cuda/Options.h"

namespace shardc::cuda {
namespace {

/// Waiting for a stream invalidates the stream's capture.
void waitInside(const kernels::Call &call) {
  kernels::cuda::Queue &queue = kernels::cuda::queueOf(call);
  if (cudaStreamSynchronize(queue) != cudaSuccess)
    queue.reportError("cannot wait inside of a capture");
}

TEST(CudaCapture, WhatSpoilsItIsToldAndStreamsRunAfterwards) {
  const char *gpu = std::getenv("SHARDC_GPU");
  Status reported;
  Options options;
  options.worldSize = 1;
  options.timeoutSeconds = 60;
  options.failed = [&](const Status &status) { reported = status; };
  auto backend = makeBackend(options);
  if (!gpu || std::string_view(gpu) != "1" || !backend.isOk())
    GTEST_SKIP() << "needs a GPU";
  hal::Device &device = *(*backend)->devices().front();
  auto main = std::move(*device.createStream("compute", hal::StreamUse::Compute));
  auto side = std::move(*device.createStream("gather", hal::StreamUse::Transfer));
  auto fork = std::move(*device.createEvent());
  auto buffer = std::move(*device.allocate(hal::MemoryKind::Work, 4096, "buffer"));
  kernels::Call call;
  ASSERT_TRUE(main->beginCapture().isOk());
  ASSERT_TRUE(main->record(*fork).isOk());
  ASSERT_TRUE(side->wait(*fork).isOk());
  ASSERT_TRUE(side->fill(buffer->data(), 1, 4096, "fill").isOk());
  Status failed = side->launch(waitInside, call, "an op that fails");
  EXPECT_EQ(lineOf(failed.report()),
            "error: an op that fails: cannot wait inside of a capture [kernel-failed]");
  main->abandonCapture();
  Status waited = (*backend)->synchronize();
  EXPECT_TRUE(waited.isOk()) << waited.message();
  EXPECT_TRUE(reported.isOk()) << reported.message();
  ASSERT_TRUE(main->beginCapture().isOk());
  ASSERT_TRUE(main->fill(buffer->data(), 2, 4096, "fill").isOk());
  auto graph = main->endCapture();
  ASSERT_TRUE(graph.isOk()) << graph.status().message();
  EXPECT_TRUE(main->launch(**graph, {}).isOk());
  EXPECT_TRUE(side->fill(buffer->data(), 3, 4096, "fill").isOk());
  EXPECT_TRUE((*backend)->synchronize().isOk());
}

} // namespace
} // namespace shardc::cuda
