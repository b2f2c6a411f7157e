// Hand-written kernels that are launched before their predecessors have ended: a chain of them
// gives the same results as one by one, enqueued and captured, with tiny kernels, products and
// copies in between.
#include <memory>
#include <vector>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "kernels/cuda/Dependent.h"
#include "kernels/cuda/Errors.h"
#include "kernels/cuda/Gemm.h"
#include "kernels/cuda/Registry.h"
#include "test/kernels/cuda/DeviceRun.h"

namespace shardc::kernels::test {
namespace {

using cuda::DependentLaunches;

constexpr int64_t kEdge = 1024; ///< of square matrices
constexpr int kLinks = 40;

struct FreeDevice {
  void operator()(float *address) const { cudaFree(address); }
};
using Matrix = std::unique_ptr<float, FreeDevice>;

Matrix makeMatrix(const std::vector<float> &values) {
  float *address = nullptr;
  EXPECT_EQ(cudaMalloc(&address, values.size() * sizeof(float)), cudaSuccess);
  EXPECT_EQ(
      cudaMemcpy(address, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice),
      cudaSuccess);
  return Matrix(address);
}

Tensor tensorOf(const Matrix &matrix, int64_t edge = kEdge) {
  return {matrix.get(), DType::F32, 2, false, {edge, edge}};
}

class DependentChain : public testing::TestWithParam<DependentLaunches> {
protected:
  void SetUp() override {
    SKIP_WITHOUT_GPU();
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    std::vector<float> unit(kEdge * kEdge, 0.0f);
    for (int64_t i = 0; i < kEdge; ++i)
      unit[static_cast<size_t>(i * kEdge + i)] = 1.0f;
    unit_ = makeMatrix(unit);
    ones_ = makeMatrix(std::vector<float>(kEdge * kEdge, 1.0f));
    x_ = makeMatrix(std::vector<float>(kEdge * kEdge, 0.0f));
    y_ = makeMatrix(std::vector<float>(kEdge * kEdge, -1.0f));
    small_ = makeMatrix({0.0f});
    workspace_ = makeMatrix(std::vector<float>(cuda::kGemmWorkspace / sizeof(float) + 1));
    cuda::setDependentLaunches(GetParam());
  }
  void TearDown() override {
    cuda::setDependentLaunches(DependentLaunches::Never);
    if (stream_)
      cudaStreamDestroy(stream_);
  }

  void run(const char *op, std::vector<Tensor> in, Tensor out, double value = 0) {
    Call call;
    for (const Tensor &tensor : in)
      call.in[call.inCount++] = tensor;
    call.out[call.outCount++] = out;
    call.attrs.value = value;
    call.stream = stream_;
    call.workspace = workspace_.get();
    call.workspaceBytes = static_cast<size_t>(cuda::kGemmWorkspace);
    findCudaKernel(op)->run(call);
    EXPECT_EQ(cuda::takeError(), "") << op;
  }

  /// Adds 4 to every element of x, with dependences that reach back over several kernels.
  void link() {
    Tensor x = tensorOf(x_), y = tensorOf(y_), ones = tensorOf(ones_), small = tensorOf(small_, 1);
    run("add", {x, ones}, y);
    run("fill", {}, small, 1.0); // one block, which ends at once: what follows reads the sum before
    run("add", {y, ones}, x);    // and writes what the sum reads
    run("matmul", {x, tensorOf(unit_)}, y);
    run("add", {y, ones}, x);
    cuda::noteOther(stream_); // as streams do
    cudaMemcpyAsync(y_.get(), x_.get(), kEdge * kEdge * sizeof(float), cudaMemcpyDeviceToDevice,
                    stream_);
    run("add", {y, ones}, x);
  }

  void expectEach(float value) {
    std::vector<float> got(kEdge * kEdge);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    ASSERT_EQ(cudaMemcpy(got.data(), x_.get(), got.size() * sizeof(float), cudaMemcpyDeviceToHost),
              cudaSuccess);
    EXPECT_EQ(got, std::vector<float>(got.size(), value));
  }

  cudaStream_t stream_ = nullptr;
  Matrix unit_, ones_, x_, y_, small_, workspace_;
};

TEST_P(DependentChain, QueuedOneByOne) {
  for (int i = 0; i < kLinks; ++i)
    link();
  expectEach(4.0f * kLinks);
}

size_t programmaticEdges(cudaGraph_t graph) {
  size_t count = 0;
  EXPECT_EQ(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count), cudaSuccess);
  std::vector<cudaGraphNode_t> from(count), to(count);
  std::vector<cudaGraphEdgeData> data(count);
  EXPECT_EQ(cudaGraphGetEdges(graph, from.data(), to.data(), data.data(), &count), cudaSuccess);
  size_t found = 0;
  for (const cudaGraphEdgeData &edge : data)
    found += edge.type == cudaGraphDependencyTypeProgrammatic;
  return found;
}

TEST_P(DependentChain, Captured) {
  link(); // libraries load what they need
  expectEach(4.0f);
  auto capture = [&](DependentLaunches which, cudaGraph_t &graph) {
    cuda::setDependentLaunches(which);
    cuda::noteOther(stream_);
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), cudaSuccess);
    for (int i = 0; i < kLinks; ++i)
      link();
    ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  };
  cudaGraph_t graph = nullptr, plain = nullptr;
  cudaGraphExec_t exec = nullptr;
  capture(DependentLaunches::Never, plain); // what is in it is libraries' own
  capture(GetParam(), graph);
  int major = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  // In a link: the first add, fill, the add behind it; and the one behind the product.
  size_t links = major == 9 ? kLinks : 0;
  size_t wanted = GetParam() == DependentLaunches::Never      ? 0
                  : GetParam() == DependentLaunches::AfterOwn ? 3 * links - 1
                                                              : 4 * links - 1;
  EXPECT_EQ(programmaticEdges(graph), programmaticEdges(plain) + wanted);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, cudaGraphInstantiateFlagUseNodePriority),
            cudaSuccess);
  for (int i = 0; i < 3; ++i)
    ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
  expectEach(4.0f * (1 + 3 * kLinks));
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaGraphDestroy(plain);
}

INSTANTIATE_TEST_SUITE_P(Cuda, DependentChain,
                         testing::Values(DependentLaunches::Never, DependentLaunches::AfterOwn,
                                         DependentLaunches::AfterKernels));

} // namespace
} // namespace shardc::kernels::test
