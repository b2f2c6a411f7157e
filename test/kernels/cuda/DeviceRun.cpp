#include "test/kernels/cuda/DeviceRun.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "kernels/cuda/Queue.h"
#include "kernels/cuda/Registry.h"
#include "kernels/host/Registry.h"
#include "runtime/base/Float8.h"
#include "runtime/base/Philox.h"

namespace shardc::kernels::test {
namespace {

constexpr size_t kGuard = 272; ///< aligns buffers to 16 bytes, but not to more
constexpr int kGuardByte = 0xa5;

size_t bytesOf(const Tensor &t) { return static_cast<size_t>(t.numel() * dtypeBytes(t.dtype)); }

void check(cudaError_t error, const char *what) {
  ASSERT_EQ(error, cudaSuccess) << what << ": " << cudaGetErrorString(error);
}

/// Device memory between guards.
class Guarded {
public:
  Guarded(size_t bytes, int value) : bytes_(bytes) {
    check(cudaMalloc(&base_, bytes + 2 * kGuard), "cudaMalloc");
    check(cudaMemset(base_, kGuardByte, bytes + 2 * kGuard), "cudaMemset");
    check(cudaMemset(data(), value, bytes), "cudaMemset");
  }
  ~Guarded() { cudaFree(base_); }
  Guarded(const Guarded &) = delete;
  Guarded &operator=(const Guarded &) = delete;

  void *data() const { return static_cast<std::byte *>(base_) + kGuard; }
  size_t bytes() const { return bytes_; }
  std::vector<std::byte> read() const {
    std::vector<std::byte> content(bytes_);
    check(cudaMemcpy(content.data(), data(), bytes_, cudaMemcpyDeviceToHost), "read");
    return content;
  }
  bool intact() const {
    std::vector<std::byte> all(bytes_ + 2 * kGuard);
    check(cudaMemcpy(all.data(), base_, all.size(), cudaMemcpyDeviceToHost), "read guards");
    for (size_t i = 0; i < all.size(); ++i)
      if ((i < kGuard || i >= kGuard + bytes_) && all[i] != std::byte{kGuardByte})
        return false;
    return true;
  }

private:
  void *base_ = nullptr;
  size_t bytes_;
};

double elementOf(DType dtype, const std::byte *at) {
  auto as = [&]<typename T>(T value) {
    std::memcpy(&value, at, sizeof value);
    return value;
  };
  switch (dtype) {
  case DType::F64:
    return as(double{});
  case DType::F32:
    return static_cast<double>(as(float{}));
  case DType::BF16:
    return static_cast<double>(toFloat(as(BF16{})));
  case DType::F16:
    return static_cast<double>(toFloat(as(F16{})));
  case DType::F8E4M3:
    return static_cast<double>(toFloat(as(F8E4M3{})));
  case DType::F8E5M2:
    return static_cast<double>(toFloat(as(F8E5M2{})));
  case DType::I64:
    return static_cast<double>(as(int64_t{}));
  case DType::I32:
    return static_cast<double>(as(int32_t{}));
  default:
    return static_cast<double>(as(uint8_t{}));
  }
}

} // namespace

bool wantsGpu() {
  const char *value = std::getenv("SHARDC_GPU");
  return value && std::string_view(value) == "1";
}

/// Contexts live as long as the process: libraries must not be released after main.
cuda::Context &testContext(bool deterministic) {
  auto make = [](bool keepsOrder) {
    cuda::ContextOptions options = cuda::ContextOptions::fromEnvironment();
    options.deterministic = keepsOrder;
    return new cuda::Context(options);
  };
  static cuda::Context &inOrder = *make(true), &inAnyOrder = *make(false);
  return deterministic ? inOrder : inAnyOrder;
}

void accumulate(DeviceRun &run, int result) {
  Tensor &out = run.call().out[result];
  run.fill(out, 77, 3.0);
  out.accumulate = true;
}

std::vector<double> valuesOf(const Tensor &tensor, const std::vector<std::byte> &bytes) {
  std::vector<double> values;
  for (int64_t i = 0, size = dtypeBytes(tensor.dtype); i < tensor.numel(); ++i)
    values.push_back(elementOf(tensor.dtype, bytes.data() + i * size));
  return values;
}

void expectNear(const Tensor &tensor, const std::vector<std::byte> &got,
                const std::vector<std::byte> &want, double f32Tolerance, double bf16Tolerance,
                const std::string &what) {
  bool isFloat8 = tensor.dtype == DType::F8E4M3 || tensor.dtype == DType::F8E5M2;
  double tolerance = tensor.dtype == DType::BF16  ? bf16Tolerance
                     : tensor.dtype == DType::F16 ? bf16Tolerance / 4
                     : tensor.dtype == DType::F32 ? f32Tolerance
                     : tensor.dtype == DType::F64 ? f32Tolerance / 10
                     : isFloat8 ? bf16Tolerance * 3 // one step of the largest numbers
                                : 0.0;
  std::vector<double> a = valuesOf(tensor, got), b = valuesOf(tensor, want);
  double distance = 0, length = 0, largest = 0, worst = 0;
  size_t worstAt = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(b[i]) || std::isinf(b[i])) {
      ASSERT_TRUE(std::isnan(b[i]) ? std::isnan(a[i]) : a[i] == b[i])
          << what << ": element " << i << " is " << a[i] << ", wanted " << b[i];
      continue;
    }
    double off = std::abs(a[i] - b[i]);
    ASSERT_TRUE(off >= 0) << what << ": element " << i << " is " << a[i] << ", wanted " << b[i];
    if (off > worst)
      worst = off, worstAt = i;
    distance += off * off, length += b[i] * b[i];
    largest = std::max(largest, std::abs(b[i]));
  }
  EXPECT_LE(std::sqrt(distance), tolerance * std::sqrt(length) + 1e-30) << what;
  EXPECT_LE(worst, 8 * tolerance * largest + 1e-30)
      << what << ": element " << worstAt << " is " << a[worstAt] << ", wanted " << b[worstAt];
}

DeviceRun::DeviceRun(std::string_view op, DType data, const bench::Model &model)
    : op_(op.substr(0, op.find(','))), case_(bench::makeCase(op, data, model)) {}

DeviceRun &DeviceRun::keep(int result) {
  kept_ |= 1u << result;
  return *this;
}

DeviceRun &DeviceRun::inAnyOrder() {
  deterministic_ = false;
  return *this;
}

void DeviceRun::fill(Tensor &tensor, uint64_t seed, double scale) {
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    auto value = static_cast<float>(scale * (2 * uniformAt(seed, static_cast<uint64_t>(i)) - 1));
    if (tensor.dtype == DType::F32)
      static_cast<float *>(tensor.data)[i] = value;
    else if (tensor.dtype == DType::BF16)
      static_cast<BF16 *>(tensor.data)[i] = toBF16(value);
    else if (tensor.dtype == DType::F8E4M3)
      static_cast<F8E4M3 *>(tensor.data)[i] = toF8E4M3(value);
    else
      static_cast<F16 *>(tensor.data)[i] = toF16(value);
  }
}

void DeviceRun::retype(Tensor &tensor, DType dtype, bool random) {
  tensor.dtype = dtype;
  tensor.data = case_->memory.emplace_back(bytesOf(tensor)).data();
  if (random)
    fill(tensor, case_->memory.size());
}

Results DeviceRun::onHost() const {
  const Kernel *kernel = findHostKernel(op_);
  Call call = case_->call;
  // Copies the results, so that the case can run again.
  std::map<void *, std::vector<std::byte>> copies;
  for (int r = 0; r < call.outCount; ++r) {
    auto *from = static_cast<std::byte *>(call.out[r].data);
    copies[from].assign(from, from + bytesOf(call.out[r]));
  }
  auto place = [&](Tensor &t) {
    if (auto at = copies.find(t.data); at != copies.end())
      t.data = at->second.data();
  };
  for (int r = 0; r < call.outCount; ++r)
    place(call.out[r]);
  for (int i = 0; i < call.inCount; ++i)
    place(call.in[i]);
  std::vector<std::byte> workspace(kernel->workspaceBytes ? kernel->workspaceBytes(call) : 0);
  call.workspace = workspace.data();
  call.workspaceBytes = workspace.size();
  kernel->run(call);
  Results results;
  for (int r = 0; r < call.outCount; ++r) {
    auto *from = static_cast<std::byte *>(call.out[r].data);
    results.emplace_back(from, from + bytesOf(call.out[r]));
  }
  return results;
}

Results DeviceRun::onDeviceOnce(int poison) {
  const Kernel *kernel = findCudaKernel(op_);
  cuda::Context &context = testContext(deterministic_);
  cuda::Queue queue(context, nullptr);
  Call call = case_->call;
  call.context = &context;
  call.stream = &queue;
  std::map<void *, std::unique_ptr<Guarded>> buffers;
  auto place = [&](Tensor &t, bool copied) {
    std::unique_ptr<Guarded> &buffer = buffers[t.data];
    if (!buffer) {
      buffer = std::make_unique<Guarded>(bytesOf(t), poison);
      if (copied)
        check(cudaMemcpy(buffer->data(), t.data, bytesOf(t), cudaMemcpyHostToDevice), "write");
    }
    t.data = buffer->data();
  };
  std::vector<Tensor> list(call.list, call.list + call.listCount);
  for (Tensor &t : list)
    place(t, true);
  for (int i = 0; i < call.inCount; ++i)
    place(call.in[i], true);
  for (int r = 0; r < call.outCount; ++r)
    place(call.out[r], (kept_ >> r & 1) != 0 || call.out[r].accumulate);
  call.list = list.empty() ? nullptr : list.data();
  Guarded workspace(kernel->workspaceBytes ? kernel->workspaceBytes(call) : 0, poison);
  call.workspace = workspace.bytes() > 0 ? workspace.data() : nullptr;
  call.workspaceBytes = workspace.bytes();
  kernel->run(call);
  EXPECT_FALSE(queue.takeError()) << op_;
  check(cudaGetLastError(), op_.c_str());
  check(cudaDeviceSynchronize(), op_.c_str());
  Results results;
  for (auto &[host, buffer] : buffers) {
    EXPECT_TRUE(buffer->intact()) << op_ << " writes outside of its buffers";
    bool isResult = false;
    for (int r = 0; r < call.outCount; ++r)
      isResult |= case_->call.out[r].data == host;
    std::vector<std::byte> now = buffer->read();
    EXPECT_TRUE(isResult || std::memcmp(now.data(), host, now.size()) == 0)
        << op_ << " changes an operand";
  }
  EXPECT_TRUE(workspace.intact()) << op_ << " writes outside of its workspace";
  for (int r = 0; r < call.outCount; ++r)
    results.push_back(buffers[case_->call.out[r].data]->read());
  return results;
}

Results DeviceRun::onDevice(bool sameBits) {
  const Kernel *kernel = findCudaKernel(op_);
  EXPECT_NE(kernel, nullptr) << op_;
  const char *reason = kernel->accepts(case_->call);
  EXPECT_EQ(reason, nullptr) << op_ << ": " << (reason ? reason : "");
  if (reason)
    return {};
  // All bits set is NaN in every float type; the other pattern is a large number.
  Results first = onDeviceOnce(0xff), second = onDeviceOnce(0x7b);
  EXPECT_TRUE(!sameBits || first == second) << op_ << " gives other bits the second time";
  return first;
}

void DeviceRun::compare(double f32Tolerance, double bf16Tolerance) {
  Results want = onHost(), got = onDevice();
  ASSERT_EQ(got.size(), want.size()) << op_;
  for (size_t r = 0; r < got.size(); ++r)
    expectNear(case_->call.out[r], got[r], want[r], f32Tolerance, bf16Tolerance,
               op_ + " result " + std::to_string(r));
}

void setNan(const Tensor &tensor, int64_t i) {
  if (tensor.dtype == DType::F32)
    static_cast<float *>(tensor.data)[i] = std::numeric_limits<float>::quiet_NaN();
  else
    static_cast<uint16_t *>(tensor.data)[i] = 0x7fff; // NaN in both 16-bit types
}

void shape(DeviceRun &run, Tensor &tensor, DType dtype, std::initializer_list<int64_t> extents) {
  tensor.rank = 0;
  for (int64_t extent : extents)
    tensor.shape[tensor.rank++] = extent;
  run.retype(tensor, dtype, dtype != DType::I32);
}

} // namespace shardc::kernels::test
