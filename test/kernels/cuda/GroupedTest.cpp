// Compares products of runs of rows on the device with the host's: runs without rows and with all;
// full, partial and empty tiles; slots. Rows that are not counted are NaN in operands, and must
// stay NaN in results.
#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <string>

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/cuda/Queue.h"
#include "kernels/cuda/Registry.h"
#include "runtime/base/Float8.h"
#include "runtime/base/Philox.h"
#include "runtime/base/Router.h"
#include "test/kernels/Harness.h"
#include "test/kernels/cuda/DeviceRun.h"

namespace shardc::kernels::test {
namespace {

struct Layout {
  int64_t slots, runs, slotRows;
  std::vector<int32_t> counts;

  int64_t bound() const { return slots * slotRows; }
  bool isThere(int64_t row) const {
    int64_t slot = row / slotRows, sum = 0;
    for (int64_t run = 0; run < runs; ++run)
      sum += counts[static_cast<size_t>(slot * runs + run)];
    return row % slotRows < sum;
  }
};

/// All rows counted, none, one group with all; odd and even numbers of tiles of 128; one to four
/// parts in the last stage; groups that begin inside tiles; more groups than a block has threads;
/// slots.
std::vector<Layout> layouts() {
  std::vector<Layout> all = {{1, 1, 300, {300}},
                             {1, 2, 64, {0, 0}},
                             {1, 5, 700, {0, 257, 0, 1, 400}},
                             {1, 3, 520, {0, 512, 0}},
                             {1, 3, 1000, {25, 513, 430}},
                             {3, 2, 200, {200, 0, 7, 190, 0, 0}},
                             {2, 3, 333, {1, 129, 65, 64, 128, 3}}};
  Layout many = {1, 600, 1300, {}};
  for (int32_t run = 0; run < 600; ++run)
    many.counts.push_back(run * 7 % 5);
  all.push_back(many);
  return all;
}

struct Extents {
  int64_t k, m;
};
/// Odd extents; tiles with the widths of all instructions, 64 to 256 columns; several tiles in both
/// directions.
constexpr Extents kExtents[] = {{35, 13},   {72, 8},   {64, 264}, {200, 136},
                                {328, 600}, {64, 448}, {72, 472}, {72, 504}};

void setCounts(DeviceRun &run, const Layout &layout, int operand = 2) {
  Tensor &counts = run.call().in[operand];
  shape(run, counts, DType::I32, {layout.slots, layout.runs});
  std::memcpy(counts.data, layout.counts.data(), layout.counts.size() * sizeof(int32_t));
}

void shapeGradient(DeviceRun &run, const Layout &layout, Extents at, DType operandType,
                   DType result) {
  Call &call = run.call();
  shape(run, call.in[0], operandType, {layout.bound(), at.k});
  shape(run, call.in[1], operandType, {layout.bound(), at.m});
  setCounts(run, layout);
  shape(run, call.out[0], result, {layout.runs, at.k, at.m});
}

void hideRows(const Layout &layout, const Tensor &rows) {
  for (int64_t i = 0; i < rows.numel(); ++i)
    if (!layout.isThere(i / rows.cols()))
      setNan(rows, i);
}

/// The tolerance for fp32 results. Tensor cores sum products of 8-bit operands with fewer bits.
double toleranceOf(const Attrs &attrs) { return attrs.fp8_recipe == 0 ? 1e-5 : 2e-4; }

void multiply(const Layout &layout, Extents at, DType operandType, DType result, bool transB,
              const Attrs &attrs = {}) {
  DeviceRun run("grouped_matmul", DType::F32, bench::kTinyModel);
  Call &call = run.call();
  call.attrs = attrs;
  call.attrs.trans_b = transB;
  shape(run, call.in[0], operandType, {layout.bound(), at.k});
  shape(run, call.in[1], operandType, {layout.runs, transB ? at.m : at.k, transB ? at.k : at.m});
  setCounts(run, layout);
  shape(run, call.out[0], result, {layout.bound(), at.m});
  hideRows(layout, call.in[0]);
  hideRows(layout, call.out[0]);
  run.keep(0).compare(toleranceOf(attrs), 4e-3);
}

void differentiate(const Layout &layout, Extents at, DType operandType, DType result, bool adds,
                   const Attrs &attrs = {}) {
  DeviceRun run("grouped_matmul_bwd", DType::F32, bench::kTinyModel);
  Call &call = run.call();
  call.attrs = attrs;
  shapeGradient(run, layout, at, operandType, result);
  hideRows(layout, call.in[0]);
  hideRows(layout, call.in[1]);
  if (adds)
    accumulate(run, 0);
  run.compare(toleranceOf(attrs), 4e-3);
}

/// Each recipe, with the first operand in both types.
template <typename Test> void forFloat8(Test test) {
  for (Fp8Factors recipe : {Fp8Factors::Tensorwise, Fp8Factors::Blockwise, Fp8Factors::Mxfp8})
    for (bool isE5m2 : {false, true}) {
      SCOPED_TRACE(testing::Message()
                   << "recipe " << static_cast<int>(recipe) << " e5m2 " << isE5m2);
      Attrs attrs;
      attrs.fp8_recipe = static_cast<int64_t>(recipe), attrs.e5m2 = isE5m2;
      test(attrs);
    }
}

/// Runs, and the extents of their products.
struct Shape {
  Layout layout;
  Extents at;
};

std::string nameOf(const Shape &shape) {
  const auto &[layout, at] = shape;
  return fmt::format("{}slots_{}runs_{}rows_{}by{}", layout.slots, layout.runs, layout.slotRows,
                     at.k, at.m);
}
void PrintTo(const Shape &shape, std::ostream *out) { *out << nameOf(shape); }

/// All combinations that tests can afford: large matrices only with few runs.
std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const Layout &layout : layouts())
    for (Extents at : kExtents)
      if (layout.runs < 100 || at.k * at.m < 1000)
        all.push_back({layout, at});
  return all;
}

/// One test per shape, because sanitizers take minutes for some.
class CudaGroupedShapes : public testing::TestWithParam<Shape> {
protected:
  const Layout &layout() const { return GetParam().layout; }
  Extents at() const { return GetParam().at; }

  void multiplyAll(const Attrs &attrs) const {
    for (DType data : kDataTypes)
      for (bool transB : {false, true}) {
        SCOPED_TRACE(testing::Message() << dtypeName(data) << ' ' << transB);
        multiply(layout(), at(), data, data, transB, attrs);
      }
  }
};
INSTANTIATE_TEST_SUITE_P(Shapes, CudaGroupedShapes, testing::ValuesIn(shapes()), nameOfCase<Shape>);

TEST_P(CudaGroupedShapes, ProductsOfRunsAreTheHosts) {
  SKIP_WITHOUT_GPU();
  multiplyAll({});
}

TEST_P(CudaGroupedShapes, GradientsOfRunsAreTheHosts) {
  SKIP_WITHOUT_GPU();
  for (DType data : kDataTypes)
    for (DType result : {data, DType::F32})
      for (bool adds : {false, true}) {
        SCOPED_TRACE(testing::Message() << dtypeName(data) << dtypeName(result) << ' ' << adds);
        differentiate(layout(), at(), data, result, adds);
      }
}

TEST_P(CudaGroupedShapes, ProductsOfFactorsIn8BitsAreTheHosts) {
  SKIP_WITHOUT_GPU();
  forFloat8([this](const Attrs &attrs) { multiplyAll(attrs); });
}

TEST_P(CudaGroupedShapes, GradientsOfFactorsIn8BitsAreTheHosts) {
  SKIP_WITHOUT_GPU();
  forFloat8([this](const Attrs &attrs) {
    for (DType result : {DType::F32, DType::BF16})
      for (bool adds : {false, true}) {
        SCOPED_TRACE(testing::Message() << dtypeName(result) << ' ' << adds);
        differentiate(layout(), at(), DType::BF16, result, adds, attrs);
      }
  });
}

/// Sets expected amaxes for the second of two members; the op updates amaxes only if `isSeen`.
void expectAmaxes(DeviceRun &run, const Layout &layout, int amax, bool isSeen) {
  Call &call = run.call();
  call.attrs.fp8_recipe = static_cast<int64_t>(Fp8Factors::Delayed);
  call.attrs.slot = 1, call.attrs.b_slot = 1 + 2 * layout.runs;
  call.index = 1, call.groupSize = 2;
  for (int i = amax; i < amax + (isSeen ? 2 : 1); ++i)
    shape(run, call.in[i], DType::F32, {1 + 4 * layout.runs});
  for (int64_t i = 0; i < call.in[amax].numel(); ++i) // below, equal to and above the actual amaxes
    static_cast<float *>(call.in[amax].data)[i] = static_cast<float>(i % 4) / 2;
  call.inCount = static_cast<uint8_t>(amax + (isSeen ? 2 : 1));
  call.outCount = isSeen ? 2 : 1;
  if (!isSeen)
    return;
  std::memset(call.in[amax + 1].data, 0,
              static_cast<size_t>(call.in[amax + 1].numel()) * sizeof(float));
  call.out[1] = call.in[amax + 1];
}

template <typename Test> void forDelayed(Test test) {
  for (bool isE5m2 : {false, true})
    for (bool isSeen : {false, true}) {
      SCOPED_TRACE(testing::Message() << "e5m2 " << isE5m2 << " seen " << isSeen);
      Attrs attrs;
      attrs.e5m2 = isE5m2;
      test(attrs, isSeen);
    }
}

TEST_P(CudaGroupedShapes, DelayedProductsAreTheHosts) {
  SKIP_WITHOUT_GPU();
  for (bool transB : {false, true})
    forDelayed([&](const Attrs &attrs, bool isSeen) {
      DeviceRun run("grouped_matmul", DType::F32, bench::kTinyModel);
      Call &call = run.call();
      call.attrs = attrs;
      call.attrs.trans_b = transB;
      shape(run, call.in[0], DType::BF16, {layout().bound(), at().k});
      shape(run, call.in[1], DType::BF16,
            {layout().runs, transB ? at().m : at().k, transB ? at().k : at().m});
      setCounts(run, layout());
      shape(run, call.out[0], DType::BF16, {layout().bound(), at().m});
      expectAmaxes(run, layout(), 3, isSeen);
      hideRows(layout(), call.in[0]);
      hideRows(layout(), call.out[0]);
      run.keep(0).compare(2e-4, 4e-3);
    });
}

TEST_P(CudaGroupedShapes, DelayedGradientsAreTheHosts) {
  SKIP_WITHOUT_GPU();
  forDelayed([&](const Attrs &attrs, bool isSeen) {
    DeviceRun run("grouped_matmul_bwd", DType::F32, bench::kTinyModel);
    Call &call = run.call();
    call.attrs = attrs;
    shape(run, call.in[0], DType::BF16, {layout().bound(), at().k});
    shape(run, call.in[1], DType::BF16, {layout().bound(), at().m});
    setCounts(run, layout());
    shape(run, call.out[0], DType::F32, {layout().runs, at().k, at().m});
    expectAmaxes(run, layout(), 3, isSeen);
    hideRows(layout(), call.in[0]);
    hideRows(layout(), call.in[1]);
    run.compare(2e-4, 4e-3);
  });
}

TEST_P(CudaGroupedShapes, ProductsOfStoredMatricesAreTheHosts) {
  SKIP_WITHOUT_GPU();
  for (bool transB : {false, true})
    for (bool isDelayed : {false, true})
      forDelayed([&](const Attrs &attrs, bool isSeen) {
        if (!isDelayed && isSeen)
          return;
        DeviceRun run("grouped_matmul_scaled", DType::F32, bench::kTinyModel);
        Call &call = run.call();
        call.attrs = attrs;
        call.attrs.trans_b = transB;
        shape(run, call.in[0], DType::BF16, {layout().bound(), at().k});
        shape(run, call.in[1], DType::F8E4M3,
              {layout().runs, transB ? at().m : at().k, transB ? at().k : at().m});
        setCounts(run, layout());
        shape(run, call.in[3], DType::F32, {layout().runs, 4});
        shape(run, call.out[0], DType::BF16, {layout().bound(), at().m});
        expectAmaxes(run, layout(), 4, isSeen);
        if (!isDelayed) {
          call.attrs.fp8_recipe = static_cast<int64_t>(Fp8Factors::Tensorwise);
          call.inCount = 4;
        }
        hideRows(layout(), call.in[0]);
        hideRows(layout(), call.out[0]);
        run.keep(0).compare(2e-4, 4e-3);
      });
}

TEST(CudaGrouped, TypesMayDiffer) {
  SKIP_WITHOUT_GPU();
  Layout layout = {2, 2, 70, {20, 50, 0, 66}};
  for (DType operandType : kDataTypes)
    for (DType result : kDataTypes) {
      SCOPED_TRACE(testing::Message() << dtypeName(operandType) << dtypeName(result));
      multiply(layout, {64, 128}, operandType, result, true);
      differentiate(layout, {64, 128}, operandType, result, true);
    }
}

/// The gradient has the same bits as without squares, and the sum is that of its squares, even if
/// these exceed fp32.
void square(const Layout &layout, Extents at, DType operandType, DType result, bool adds,
            double scale = 1, int32_t multiprocessors = 0) {
  SCOPED_TRACE(testing::Message() << dtypeName(operandType) << dtypeName(result) << ' ' << adds
                                  << ' ' << scale);
  std::vector<std::byte> plain;
  for (std::string_view op : {"grouped_matmul_bwd", "grouped_matmul_bwd_squares"}) {
    DeviceRun run(op, DType::F32, bench::kTinyModel);
    Call &call = run.call();
    call.multiprocessors = multiprocessors;
    shapeGradient(run, layout, at, operandType, result);
    run.fill(call.in[0], 1, scale);
    run.fill(call.in[1], 2, scale);
    hideRows(layout, call.in[0]);
    hideRows(layout, call.in[1]);
    if (adds) {
      accumulate(run, 0);
      run.fill(call.out[0], 3, scale * scale);
    }
    Results found = run.onDevice();
    if (call.outCount == 1) {
      plain = found[0];
      continue;
    }
    EXPECT_TRUE(found[0] == plain);
    double want = 0, fourth = 0;
    for (double value : valuesOf(call.out[0], found[0]))
      want += value * value, fourth += std::pow(value, 4);
    // Gradients that are rounded after squaring may differ by two units each.
    double unit = result == DType::F32 || adds ? 0 : result == DType::BF16 ? 0x1p-8 : 0x1p-11;
    EXPECT_NEAR(valuesOf(call.out[1], found[1])[0], want,
                1e-6 * want + 6 * 2 * unit / std::sqrt(3) * std::sqrt(fourth));
  }
}

TEST_P(CudaGroupedShapes, SquaresAreThoseOfGradients) {
  SKIP_WITHOUT_GPU();
  for (DType data : kDataTypes)
    for (DType result : {data, DType::F32})
      for (bool adds : {false, true})
        square(layout(), at(), data, result, adds);
}

TEST(CudaGrouped, SquaresOfManyTiles) {
  SKIP_WITHOUT_GPU();
  Layout layout = {1, 3, 6000, {3000, 77, 2300}};
  for (int32_t multiprocessors : {0, 6}) {
    square(layout, {1160, 1096}, DType::BF16, DType::BF16, false, 1, multiprocessors);
    square(layout, {1160, 1096}, DType::F16, DType::F32, true, 1, multiprocessors);
  }
  for (double scale : {1e11, 1e-11})
    for (DType result : {DType::BF16, DType::F32})
      square(layout, {136, 264}, DType::BF16, result, true, scale);
  square({2, 2, 64, {0, 0, 0, 0}}, {136, 264}, DType::BF16, DType::BF16, false);
}

/// A product with a bias has the same bits as a product followed by grouped_bias.
void addBias(const Layout &layout, Extents at, DType type, bool transB, bool isWeighted) {
  SCOPED_TRACE(testing::Message() << dtypeName(type) << ' ' << transB << ' ' << isWeighted);
  Results apart;
  for (std::string_view op : {"grouped_matmul", "grouped_bias", "grouped_matmul_bias"}) {
    DeviceRun run(op, DType::F32, bench::kTinyModel);
    Call &call = run.call();
    bool isProduct = op != "grouped_bias";
    call.attrs.trans_b = transB;
    shape(run, call.out[0], type, {layout.bound(), at.m});
    hideRows(layout, call.out[0]);
    run.keep(0);
    setCounts(run, layout);
    if (isProduct) {
      shape(run, call.in[0], type, {layout.bound(), at.k});
      shape(run, call.in[1], type, {layout.runs, transB ? at.m : at.k, transB ? at.k : at.m});
      run.fill(call.in[0], 1, 1.0);
      run.fill(call.in[1], 2, 1.0);
      hideRows(layout, call.in[0]);
    } else {
      shape(run, call.in[0], type, {layout.bound(), at.m});
      std::memcpy(call.in[0].data, apart[0].data(), apart[0].size());
    }
    if (op != "grouped_matmul") {
      int bias = isProduct ? 3 : 1, weights = isProduct ? 4 : 3;
      shape(run, call.in[bias], type, {layout.runs, at.m});
      run.fill(call.in[bias], 3, 1.0);
      shape(run, call.in[weights], type, {layout.bound(), 1});
      run.fill(call.in[weights], 4, 1.0);
      hideRows(layout, call.in[weights]);
      call.inCount = isWeighted ? weights + 1 : weights;
    }
    Results found = run.onDevice();
    if (op == "grouped_matmul_bias") {
      EXPECT_TRUE(found[0] == apart[0]);
    }
    apart = std::move(found);
  }
}

TEST_P(CudaGroupedShapes, BiasesInProductsHaveTheSameBits) {
  SKIP_WITHOUT_GPU();
  for (DType data : kDataTypes)
    for (bool transB : {false, true})
      for (bool isWeighted : {false, true})
        addBias(layout(), at(), data, transB, isWeighted);
}

TEST(CudaGrouped, BiasesOfManyTiles) {
  SKIP_WITHOUT_GPU();
  Layout layout = {1, 3, 6000, {3000, 77, 2300}};
  for (bool transB : {false, true}) {
    addBias(layout, {128, 2056}, DType::BF16, transB, true);
    addBias(layout, {128, 2056}, DType::F16, transB, false);
  }
}

/// There are more tiles than blocks, so each block processes several tiles, in bands.
TEST(CudaGrouped, ManyTiles) {
  SKIP_WITHOUT_GPU();
  Layout layout = {1, 3, 6000, {3000, 77, 2300}};
  multiply(layout, {128, 2048}, DType::BF16, DType::BF16, true);
  multiply(layout, {128, 2048}, DType::F16, DType::F16, false);
  differentiate(layout, {1160, 1096}, DType::BF16, DType::BF16, false);
  differentiate(layout, {1160, 1096}, DType::F16, DType::F32, true);
}

/// Counts beyond a slot's capacity never reach rows of another slot.
TEST(CudaGrouped, CountsBeyondTheRoom) {
  SKIP_WITHOUT_GPU();
  for (DType data : {DType::F32, DType::BF16}) {
    DeviceRun run("grouped_matmul", DType::F32, bench::kTinyModel);
    Call &call = run.call();
    shape(run, call.in[0], data, {400, 64});
    shape(run, call.in[1], data, {2, 64, 64});
    setCounts(run, {2, 2, 200, {150, 1 << 30, -4, 1 << 30}});
    shape(run, call.out[0], data, {400, 64});
    run.compare(1e-5, 4e-3);
  }
}

/// With counts, counted rows have the same bits as without counts, and other rows stay.
void weigh(std::string_view op, DType data, const Layout &layout, int64_t cols) {
  SCOPED_TRACE(testing::Message() << op << ' ' << dtypeName(data) << ' ' << layout.bound() << 'x'
                                  << cols << " runs " << layout.runs);
  bool isBackward = op.ends_with("bwd");
  DeviceRun run(op, data, bench::kTinyModel);
  Call &call = run.call();
  int operands = call.inCount, x = isBackward ? 1 : 0;
  if (isBackward)
    shape(run, call.in[0], data, {layout.bound(), cols});
  shape(run, call.in[x], data, {layout.bound(), 2 * cols});
  shape(run, call.in[x + 1], DType::F32, {layout.bound(), 1});
  setCounts(run, layout, x + 2);
  for (int r = 0; r < call.outCount; ++r) { // result y; or results dx, dweights and y
    int64_t width = r == 1 ? 1 : isBackward && r == 0 ? 2 * cols : cols;
    shape(run, call.out[r], data, {layout.bound(), width});
    run.keep(r);
  }
  run.compare(3e-6, 3e-3);
  Results some = run.onDevice();
  call.inCount = static_cast<uint8_t>(operands - 1);
  Results all = run.onDevice();
  for (int r = 0; r < call.outCount; ++r) {
    auto *unwritten = static_cast<const std::byte *>(call.out[r].data);
    auto size = static_cast<size_t>(call.out[r].cols() * dtypeBytes(data));
    for (int64_t row = 0; row < layout.bound(); ++row) {
      size_t at = static_cast<size_t>(row) * size;
      const std::byte *want = layout.isThere(row) ? all[static_cast<size_t>(r)].data() : unwritten;
      ASSERT_EQ(std::memcmp(some[static_cast<size_t>(r)].data() + at, want + at, size), 0)
          << "row " << row << " of result " << r;
    }
  }
}

/// Rows shorter than a chunk, rows with several chunks per thread, and rows with a block each;
/// counts beyond the capacity.
TEST(CudaWeightedUnits, LeaveOutRowsThatAreNotThere) {
  SKIP_WITHOUT_GPU();
  for (std::string_view op : {"weighted_swiglu", "weighted_swiglu_bwd", "weighted_quick_geglu",
                              "weighted_quick_geglu_bwd"})
    for (DType data : kDataTypes) {
      for (const Layout &layout : layouts())
        for (int64_t cols : {13, 264})
          weigh(op, data, layout, cols);
      for (int64_t cols : {2056, 4104, 8200})
        weigh(op, data, {3, 3, 11, {3, 0, 5, 11, 0, 0, 2, 1 << 30, 4}}, cols);
    }
}

/// Device memory that holds a call's operands and results.
class OnDevice {
public:
  explicit OnDevice(DeviceRun &run) : call(run.call()) {
    for (int i = 0; i < call.inCount; ++i)
      move(call.in[i]);
    move(call.out[0]);
  }
  ~OnDevice() {
    for (void *p : memory_)
      cudaFree(p);
  }
  OnDevice(const OnDevice &) = delete;
  OnDevice &operator=(const OnDevice &) = delete;

  Call call;

  void *allocate(size_t bytes) {
    EXPECT_EQ(cudaMalloc(&memory_.emplace_back(), bytes), cudaSuccess);
    return memory_.back();
  }

private:
  void move(Tensor &tensor) {
    auto bytes = static_cast<size_t>(tensor.numel() * dtypeBytes(tensor.dtype));
    void *device = allocate(bytes);
    EXPECT_EQ(cudaMemcpy(device, tensor.data, bytes, cudaMemcpyHostToDevice), cudaSuccess);
    tensor.data = device;
  }

  std::vector<void *> memory_;
};

/// A graph that is captured with some counts, and launched with others.
class CapturedProduct {
public:
  CapturedProduct(const Kernel &kernel, OnDevice &device) {
    EXPECT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
    cuda::Queue queue(testContext(), stream_);
    Call &call = device.call;
    call.context = &testContext(), call.stream = &queue;
    call.workspaceBytes = kernel.workspaceBytes(call);
    call.workspace = device.allocate(call.workspaceBytes);
    EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    kernel.run(call);
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph_), cudaSuccess);
    EXPECT_FALSE(queue.takeError());
    EXPECT_EQ(cudaGraphInstantiate(&instance_, graph_, 0), cudaSuccess);
  }
  ~CapturedProduct() {
    cudaGraphExecDestroy(instance_);
    cudaGraphDestroy(graph_);
    cudaStreamDestroy(stream_);
  }
  CapturedProduct(const CapturedProduct &) = delete;
  CapturedProduct &operator=(const CapturedProduct &) = delete;

  void run() {
    EXPECT_EQ(cudaGraphLaunch(instance_, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }

private:
  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t instance_ = nullptr;
};

TEST(CudaGrouped, GraphsReadCountsWhenTheyRun) {
  SKIP_WITHOUT_GPU();
  for (std::string_view op : {"grouped_matmul", "grouped_matmul_bwd"})
    for (DType data : {DType::F32, DType::BF16}) {
      bool isGradient = op == "grouped_matmul_bwd";
      DeviceRun run(op, DType::F32, bench::kTinyModel);
      Call &call = run.call();
      shape(run, call.in[0], data, {600, 136});
      if (isGradient)
        shape(run, call.in[1], data, {600, 264});
      else
        shape(run, call.in[1], data, {3, 264, 136});
      setCounts(run, {1, 3, 600, {100, 200, 300}});
      if (isGradient)
        shape(run, call.out[0], data, {3, 136, 264});
      else
        shape(run, call.out[0], data, {600, 264});
      OnDevice device(run);
      CapturedProduct product(*findCudaKernel(op), device);
      for (std::vector<int32_t> counts : {std::vector<int32_t>{0, 600, 0}, {590, 3, 7}}) {
        std::memcpy(call.in[2].data, counts.data(), 12);
        EXPECT_EQ(cudaMemcpy(device.call.in[2].data, counts.data(), 12, cudaMemcpyHostToDevice),
                  cudaSuccess);
        product.run();
        auto bytes = static_cast<size_t>(call.out[0].numel() * dtypeBytes(data));
        std::vector<std::byte> got(bytes);
        cudaMemcpy(got.data(), device.call.out[0].data, bytes, cudaMemcpyDeviceToHost);
        SCOPED_TRACE(testing::Message() << op << ' ' << dtypeName(data) << ' ' << counts[0]);
        expectNear(call.out[0], got, run.onHost()[0], 1e-5, 4e-3, "result");
      }
    }
}

} // namespace
} // namespace shardc::kernels::test
