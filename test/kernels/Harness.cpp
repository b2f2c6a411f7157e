#include "test/kernels/Harness.h"

#include "kernels/host/Registry.h"
#include "runtime/base/Float8.h"
#include "runtime/base/Philox.h"

#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

namespace shardc::kernels::test {
namespace {

int64_t product(const std::vector<int64_t> &shape) {
  int64_t n = 1;
  for (int64_t extent : shape)
    n *= extent;
  return n;
}

template <typename T> void put(std::byte *at, T value) { std::memcpy(at, &value, sizeof value); }

template <typename T> T get(const std::byte *at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

void store(DType dtype, double value, std::byte *at) {
  switch (dtype) {
  case DType::F64:
    return put(at, value);
  case DType::F32:
    return put(at, static_cast<float>(value));
  case DType::BF16:
    return put(at, toBF16(static_cast<float>(value)));
  case DType::F16:
    return put(at, toF16(static_cast<float>(value)));
  case DType::F8E4M3:
    return put(at, toF8E4M3(static_cast<float>(value)));
  case DType::F8E5M2:
    return put(at, toF8E5M2(static_cast<float>(value)));
  case DType::I64:
    return put(at, static_cast<int64_t>(value));
  case DType::I32:
    return put(at, static_cast<int32_t>(value));
  case DType::U16:
    return put(at, static_cast<uint16_t>(value));
  case DType::U8:
    return put(at, static_cast<uint8_t>(value));
  default:
    FAIL() << "no test data of type " << dtypeName(dtype);
  }
}

double load(DType dtype, const std::byte *at) {
  switch (dtype) {
  case DType::F64:
    return get<double>(at);
  case DType::F32:
    return static_cast<double>(get<float>(at));
  case DType::BF16:
    return static_cast<double>(toFloat(get<BF16>(at)));
  case DType::F16:
    return static_cast<double>(toFloat(get<F16>(at)));
  case DType::F8E4M3:
    return static_cast<double>(toFloat(get<F8E4M3>(at)));
  case DType::F8E5M2:
    return static_cast<double>(toFloat(get<F8E5M2>(at)));
  case DType::I64:
    return static_cast<double>(get<int64_t>(at));
  case DType::I32:
    return static_cast<double>(get<int32_t>(at));
  case DType::U16:
    return static_cast<double>(get<uint16_t>(at));
  case DType::U8:
    return static_cast<double>(get<uint8_t>(at));
  default:
    ADD_FAILURE() << "no test data of type " << dtypeName(dtype);
    return 0;
  }
}

/// Memory between guards, aligned to 16 bytes but not to 32.
class Guarded {
public:
  Guarded(size_t bytes, int fill) : bytes_(bytes), memory_(bytes + 2 * kGuard + 32) {
    auto address = reinterpret_cast<uintptr_t>(memory_.data());
    begin_ = memory_.data() + (32 - address % 32) % 32 + kGuard;
    std::memset(memory_.data(), kGuardByte, memory_.size());
    std::memset(begin_, fill, bytes);
  }

  std::byte *data() { return begin_; }
  bool intact() const {
    for (const std::byte &byte : memory_)
      if ((&byte < begin_ || &byte >= begin_ + bytes_) && byte != std::byte{kGuardByte})
        return false;
    return true;
  }

private:
  static constexpr size_t kGuard = 80;
  static constexpr unsigned char kGuardByte = 0xA5;
  size_t bytes_;
  std::vector<std::byte> memory_;
  std::byte *begin_;
};

Tensor tensorOf(DType dtype, const std::vector<int64_t> &shape, void *data) {
  Tensor tensor;
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.rank = static_cast<uint8_t>(shape.size());
  std::copy(shape.begin(), shape.end(), tensor.shape);
  return tensor;
}

std::vector<std::byte> bytesOf(const Array &array) {
  int64_t size = dtypeBytes(array.dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(array.numel() * size));
  for (int64_t i = 0; i < array.numel(); ++i)
    store(array.dtype, array[i], bytes.data() + i * size);
  return bytes;
}

Array readArray(const Tensor &tensor) {
  Array array;
  array.dtype = tensor.dtype;
  array.shape.assign(tensor.shape, tensor.shape + tensor.rank);
  for (int64_t i = 0, size = dtypeBytes(tensor.dtype); i < tensor.numel(); ++i)
    array.values.push_back(
        load(tensor.dtype, static_cast<const std::byte *>(tensor.data) + i * size));
  return array;
}

} // namespace

double roundTo(DType dtype, double value) {
  std::byte bytes[8];
  store(dtype, value, bytes);
  return load(dtype, bytes);
}

Array array(DType dtype, std::vector<int64_t> shape, std::vector<double> values) {
  EXPECT_EQ(product(shape), static_cast<int64_t>(values.size()));
  for (double &value : values)
    value = roundTo(dtype, value);
  return {dtype, std::move(shape), std::move(values)};
}

Array randoms(DType dtype, std::vector<int64_t> shape, uint64_t seed, double scale) {
  std::vector<double> values(static_cast<size_t>(product(shape)));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = scale * (2 * uniformAt(seed, i) - 1);
  return array(dtype, std::move(shape), std::move(values));
}

Array indices(DType dtype, std::vector<int64_t> shape, uint64_t seed, int64_t bound) {
  std::vector<double> values(static_cast<size_t>(product(shape)));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = std::floor(uniformAt(seed, i) * static_cast<double>(bound));
  return array(dtype, std::move(shape), std::move(values));
}

Array constant(DType dtype, std::vector<int64_t> shape, double value) {
  auto count = static_cast<size_t>(product(shape));
  return array(dtype, std::move(shape), std::vector<double>(count, value));
}

Array stateArray(const StepState &state) {
  Array array = {DType::U8, {sizeof state}, {}};
  unsigned char bytes[sizeof state];
  std::memcpy(bytes, &state, sizeof state);
  array.values.assign(bytes, bytes + sizeof state);
  return array;
}

KernelRun &KernelRun::in(Array operand) {
  operands_.push_back(std::move(operand));
  return *this;
}

KernelRun &KernelRun::listed(Array operand) {
  list_.push_back(std::move(operand));
  return *this;
}

KernelRun &KernelRun::out(DType dtype, std::vector<int64_t> shape) {
  results_.push_back({{dtype, std::move(shape), {}}});
  return *this;
}

KernelRun &KernelRun::accumulate(Array onto) {
  results_.push_back({std::move(onto), true});
  return *this;
}

KernelRun &KernelRun::over(Array content) {
  results_.push_back({std::move(content)});
  return *this;
}

KernelRun &KernelRun::inPlace(int operand) {
  results_.push_back({operands_[static_cast<size_t>(operand)], false, operand});
  return *this;
}

/// The memory of one call.
struct KernelRun::Memory {
  std::vector<Guarded> buffers;
  std::vector<Tensor> list;
  Call call;

  Tensor place(const Array &array, int poison) {
    Guarded &buffer = buffers.emplace_back(
        static_cast<size_t>(product(array.shape) * dtypeBytes(array.dtype)), poison);
    if (!array.values.empty()) {
      std::vector<std::byte> bytes = bytesOf(array);
      std::memcpy(buffer.data(), bytes.data(), bytes.size());
    }
    return tensorOf(array.dtype, array.shape, buffer.data());
  }

  Memory(const KernelRun &run, int poison) {
    buffers.reserve(run.operands_.size() + run.list_.size() + run.results_.size() + 1);
    for (const Array &operand : run.operands_)
      call.in[call.inCount++] = place(operand, poison);
    for (const Array &operand : run.list_)
      list.push_back(place(operand, poison));
    for (const Result &result : run.results_) {
      Tensor &tensor = call.out[call.outCount++];
      tensor = result.operand >= 0 ? call.in[result.operand] : place(result.initial, poison);
      tensor.accumulate = result.accumulate;
    }
    call.list = list.empty() ? nullptr : list.data();
    call.listCount = static_cast<int64_t>(list.size());
    call.attrs = run.attrs;
    call.ranges = run.ranges.data();
    call.rangesCount = static_cast<int64_t>(run.ranges.size());
    call.copies = run.copies.empty() ? nullptr : run.copies.data();
    call.rangesOf = run.rangesOf.empty() ? nullptr : run.rangesOf.data();
    call.index = run.index, call.groupSize = run.groupSize;
    call.step = run.step;
    call.microbatch = run.microbatch;
    call.microbatches = run.microbatches;
  }

  void addWorkspace(size_t bytes, int poison) {
    call.workspaceBytes = bytes;
    call.workspace = bytes == 0 ? nullptr : buffers.emplace_back(bytes, poison).data();
  }
};

const char *KernelRun::refusal() {
  const Kernel *kernel = findHostKernel(op_);
  if (!kernel)
    return "no such kernel";
  return kernel->accepts(Memory(*this, 0).call);
}

std::vector<Array> KernelRun::runOnce(int poison) {
  const Kernel *kernel = findHostKernel(op_);
  Memory memory(*this, poison);
  if (kernel->workspaceBytes)
    memory.addWorkspace(kernel->workspaceBytes(memory.call), poison);
  kernel->run(memory.call);
  for (const Guarded &buffer : memory.buffers)
    EXPECT_TRUE(buffer.intact()) << op_ << " writes outside of its buffers";
  for (size_t i = 0; i < operands_.size(); ++i) {
    bool updated = false;
    for (const Result &result : results_)
      updated |= result.operand == static_cast<int>(i);
    std::vector<std::byte> bytes = bytesOf(operands_[i]);
    EXPECT_TRUE(updated || std::memcmp(memory.call.in[i].data, bytes.data(), bytes.size()) == 0)
        << op_ << " changes operand " << i;
  }
  std::vector<Array> results;
  for (int r = 0; r < memory.call.outCount; ++r)
    results.push_back(readArray(memory.call.out[r]));
  return results;
}

std::vector<Array> KernelRun::run() {
  const char *reason = refusal();
  EXPECT_EQ(reason, nullptr) << op_ << ": " << (reason ? reason : "");
  if (reason)
    return std::vector<Array>(results_.size());
  // All bits set is NaN in every float type; the other pattern is a large number.
  std::vector<Array> first = runOnce(0xff), second = runOnce(0x7b);
  for (size_t r = 0; r < first.size(); ++r)
    EXPECT_TRUE(bytesOf(first[r]) == bytesOf(second[r]))
        << op_ << " gives other bits the second time in result " << r;
  return first;
}

void expectClose(const Array &got, const std::vector<double> &want, Tolerance tolerance,
                 const std::string &what) {
  ASSERT_EQ(got.values.size(), want.size()) << what;
  double eps = got.dtype == DType::BF16  ? 0x1p-8
               : got.dtype == DType::F16 ? 0x1p-11
               : got.dtype == DType::F64 ? 0x1p-52
                                         : 0x1p-23;
  for (size_t i = 0; i < want.size(); ++i) {
    double allowed = tolerance.abs + std::abs(want[i]) * tolerance.factor * eps;
    // Written so that NaN fails, and equal infinities pass.
    ASSERT_TRUE(got.values[i] == want[i] || std::abs(got.values[i] - want[i]) <= allowed)
        << what << ": element " << i << " is " << got.values[i] << ", wanted " << want[i]
        << " within " << allowed;
  }
}

void expectAccumulated(const Array &got, const Array &contribution, const Array &old) {
  ASSERT_EQ(got.values.size(), contribution.values.size());
  for (size_t i = 0; i < got.values.size(); ++i) {
    float sum = static_cast<float>(old.values[i]) + static_cast<float>(contribution.values[i]);
    ASSERT_EQ(got.values[i], roundTo(got.dtype, static_cast<double>(sum))) << "element " << i;
  }
}

double numericPartial(const std::vector<double> &x, size_t i, const Function &f, double step) {
  std::vector<double> moved = x;
  auto at = [&](double shift) {
    moved[i] = x[i] + shift;
    return f(moved);
  };
  return (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step);
}

std::vector<double> numericGradient(const std::vector<double> &x, const Function &f, double step) {
  std::vector<double> gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i)
    gradient[i] = numericPartial(x, i, f, step);
  return gradient;
}

void expectGradient(const Array &got, const std::vector<double> &x, const Function &f,
                    Tolerance tolerance, const std::string &what, size_t samples) {
  ASSERT_EQ(got.values.size(), x.size()) << what;
  size_t stride = std::max<size_t>(1, x.size() / samples);
  Array some = {got.dtype, {}, {}};
  std::vector<double> want;
  for (size_t i = 0; i < x.size(); i += stride) {
    some.values.push_back(got.values[i]);
    want.push_back(numericPartial(x, i, f));
  }
  expectClose(some, want, tolerance, what + " (every " + std::to_string(stride) + "th)");
}

double inner(const std::vector<double> &a, const std::vector<double> &b) {
  double total = 0;
  for (size_t i = 0; i < a.size(); ++i)
    total += a[i] * b[i];
  return total;
}

} // namespace shardc::kernels::test
