// Hand-written kernels that are launched before their predecessors have ended: a chain of them must
// give the same results as one by one, enqueued and captured, with tiny kernels, products and
// copies between them.
#include <memory>
#include <vector>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

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
    cuda::ContextOptions options;
    context_ = std::make_unique<cuda::Context>(options);
    never_ = std::make_unique<cuda::Queue>(*context_, stream_);
    options.dependentLaunches = GetParam();
    dependentContext_ = std::make_unique<cuda::Context>(options);
    queue_ = std::make_unique<cuda::Queue>(*dependentContext_, stream_);
  }
  void TearDown() override {
    if (stream_)
      cudaStreamDestroy(stream_);
  }

  void run(cuda::Queue &queue, const char *op, std::vector<Tensor> in, Tensor out,
           double value = 0) {
    Call call;
    for (const Tensor &tensor : in)
      call.in[call.inCount++] = tensor;
    call.out[call.outCount++] = out;
    call.attrs.value = value;
    call.stream = &queue;
    call.context = &queue.context();
    call.workspace = workspace_.get();
    call.workspaceBytes = static_cast<size_t>(cuda::kGemmWorkspace);
    findCudaKernel(op)->run(call);
    EXPECT_FALSE(queue.takeError()) << op;
  }

  /// Adds 4 to every element of x; ops depend on results of several kernels before.
  void link(cuda::Queue &queue) {
    Tensor x = tensorOf(x_), y = tensorOf(y_), ones = tensorOf(ones_), small = tensorOf(small_, 1);
    run(queue, "add", {x, ones}, y);
    run(queue, "fill", {}, small,
        1.0); // a single block, which ends at once; the next kernel depends on the sum before it
    run(queue, "add", {y, ones}, x); // and overwrites the sum's operand
    run(queue, "matmul", {x, tensorOf(unit_)}, y);
    run(queue, "add", {y, ones}, x);
    queue.noteOther(); // streams call this before copies
    cudaMemcpyAsync(y_.get(), x_.get(), kEdge * kEdge * sizeof(float), cudaMemcpyDeviceToDevice,
                    stream_);
    run(queue, "add", {y, ones}, x);
  }

  void expectEach(float value) {
    std::vector<float> got(kEdge * kEdge);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    ASSERT_EQ(cudaMemcpy(got.data(), x_.get(), got.size() * sizeof(float), cudaMemcpyDeviceToHost),
              cudaSuccess);
    EXPECT_EQ(got, std::vector<float>(got.size(), value));
  }

  cudaStream_t stream_ = nullptr;
  std::unique_ptr<cuda::Context> context_, dependentContext_;
  /// Never_: no dependent launches; queue_: as the case says.
  std::unique_ptr<cuda::Queue> never_, queue_;
  Matrix unit_, ones_, x_, y_, small_, workspace_;
};

TEST_P(DependentChain, QueuedOneByOne) {
  for (int i = 0; i < kLinks; ++i)
    link(*queue_);
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
  for (cuda::Queue *queue : {never_.get(), queue_.get()})
    link(*queue); // libraries load what they need at first use
  expectEach(8.0f);
  auto capture = [&](cuda::Queue &queue, cudaGraph_t &graph) {
    queue.noteOther();
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), cudaSuccess);
    for (int i = 0; i < kLinks; ++i)
      link(queue);
    ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  };
  cudaGraph_t graph = nullptr, plain = nullptr;
  cudaGraphExec_t exec = nullptr;
  capture(*never_, plain); // has only the libraries' own programmatic edges
  capture(*queue_, graph);
  int major = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  // Dependent launches in each link: the first add, the fill, the add after the fill, and the add
  // after the product.
  size_t links = major == 9 ? kLinks : 0;
  size_t wanted = GetParam() == DependentLaunches::Never      ? 0
                  : GetParam() == DependentLaunches::AfterOwn ? 3 * links - 1
                                                              : 4 * links - 1;
  EXPECT_EQ(programmaticEdges(graph), programmaticEdges(plain) + wanted);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, cudaGraphInstantiateFlagUseNodePriority),
            cudaSuccess);
  for (int i = 0; i < 3; ++i)
    ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
  expectEach(4.0f * (2 + 3 * kLinks));
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaGraphDestroy(plain);
}

std::string nameOf(const testing::TestParamInfo<DependentLaunches> &info) {
  constexpr const char *kNames[] = {"never", "after_own", "after_kernels"};
  return kNames[static_cast<size_t>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Cuda, DependentChain,
                         testing::Values(DependentLaunches::Never, DependentLaunches::AfterOwn,
                                         DependentLaunches::AfterKernels),
                         nameOf);

} // namespace
} // namespace shardc::kernels::test
