// Assembles the calls of Cases.cpp.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/base/Float8.h"
#include "runtime/base/Nf4Scales.h"
#include "runtime/base/Philox.h"
#include "runtime/base/StepState.h"
#include "test/kernels/bench/Cases.h"

namespace shardc::kernels::bench {

using Shape = std::vector<int64_t>;

/// Assembles a case. Call it for the operands in order, then for the results.
class Builder {
public:
  Builder(Case &target, DType data, const Model &extents)
      : model(extents), data_(data), case_(target) {}

  const Model &model;

  Attrs &attrs() { return case_.call.attrs; }
  DType dataType() const { return data_; }

  Builder &data(const Shape &shape) { return in(randoms(data_, shape)); }
  Builder &floats(const Shape &shape) { return in(randoms(DType::F32, shape)); }
  Builder &weights(const Shape &shape) { return in(randoms(DType::BF16, shape)); }
  Builder &zeros(DType dtype, const Shape &shape) { return in(place(dtype, shape)); }
  /// Adds an operand of finite 8-bit numbers.
  Builder &bytes8(const Shape &shape) {
    Tensor tensor = place(DType::F8E4M3, shape);
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      auto value =
          static_cast<float>(2 * uniformAt(case_.memory.size(), static_cast<uint64_t>(i)) - 1);
      static_cast<F8E4M3 *>(tensor.data)[i] = toF8E4M3(value);
    }
    return in(tensor);
  }
  /// Adds an operand of NF4 records of random numbers.
  template <typename Record>
  Builder &records(DType type, Record (&make)(const float *), const Shape &shape) {
    Tensor tensor = place(type, shape);
    float numbers[Record::kNumbers];
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      for (int64_t k = 0; k < Record::kNumbers; ++k) {
        auto number = static_cast<uint64_t>(i * Record::kNumbers + k);
        numbers[k] = static_cast<float>(uniformAt(case_.memory.size(), number) - 0.5);
      }
      static_cast<Record *>(tensor.data)[i] = make(numbers);
    }
    return in(tensor);
  }
  Builder &ids(const Shape &shape, int64_t bound) { return in(integers(shape, bound)); }
  /// Adds an i32 operand in which every sample has the row `ofRow`.
  Builder &words(const Shape &shape, const std::vector<int32_t> &ofRow) {
    Tensor tensor = place(DType::I32, shape);
    for (int64_t i = 0; i < tensor.numel(); ++i)
      static_cast<int32_t *>(tensor.data)[i] = ofRow[static_cast<size_t>(i) % ofRow.size()];
    return in(tensor);
  }
  /// Adds counts in which every group has `rows` rows.
  Builder &counts(const Shape &shape, int32_t rows) {
    Tensor tensor = place(DType::I32, shape);
    std::fill_n(static_cast<int32_t *>(tensor.data), tensor.numel(), rows);
    return in(tensor);
  }
  Builder &ones(const Shape &shape) { return in(filled(shape, 1.0f)); }
  Builder &state() {
    Tensor tensor = place(DType::U8, {sizeof(StepState)});
    StepState state = {};
    state.applied = 25;
    state.lr = 1e-3f;
    state.gradScale = 1;
    state.lossScale = 2;
    std::memcpy(tensor.data, &state, sizeof state);
    return in(tensor);
  }

  Builder &toData(const Shape &shape) { return out(place(data_, shape)); }
  Builder &toFloats(const Shape &shape) { return out(place(DType::F32, shape)); }
  Builder &to(DType dtype, const Shape &shape) { return out(place(dtype, shape)); }
  Builder &update(int operand) { return out(case_.call.in[operand]); }

  const Tensor &operand(size_t i) const { return case_.call.in[i]; }
  const Tensor &result(size_t r) const { return case_.call.out[r]; }

  /// Makes the call that of member `index` in a group of `members` members.
  Builder &member(int64_t index, int64_t members) {
    case_.call.index = index, case_.call.groupSize = members;
    return *this;
  }

  Builder &flops(int64_t m, int64_t n, int64_t k, double products = 1) {
    case_.flops +=
        2.0 * products * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    return *this;
  }

  Builder &addFlops(double count) {
    case_.flops += count;
    return *this;
  }

  Builder &listed(const Shape &shape) {
    case_.list.push_back(randoms(data_, shape));
    addRange(case_.list.back().numel());
    case_.rangesOf.push_back(static_cast<int64_t>(case_.ranges.size()));
    return *this;
  }

  /// Adds a range: the first `n` elements of the shard belong to one parameter, beginning with the
  /// parameter's element `from`.
  Builder &addRange(int64_t n, int64_t from = 0) {
    ParamRange range;
    range.end = n;
    range.globalBegin = from;
    range.key = streamKey(1, "weight");
    range.init = ParamRange::Normal;
    range.initStd = 0.02;
    case_.ranges.push_back(range);
    return *this;
  }

  /// Adds the parameter's range in the whole block, of which the shard has a part: `n` elements,
  /// this rank's part of a tensor that is divided among `parts` ranks.
  Builder &addWhole(int64_t n, int32_t parts) {
    case_.rangesOf = {0, 1, 2};
    addRange(n);
    for (ParamRange &range : case_.ranges)
      range.parts = parts;
    return *this;
  }

  /// Sets the row length of the last range's parameter.
  Builder &rowsOf(int64_t elements) {
    case_.ranges.back().row = elements;
    return *this;
  }

  ParamRange &lastRange() { return case_.ranges.back(); }

private:
  Tensor place(DType dtype, const Shape &shape) {
    Tensor tensor;
    tensor.dtype = dtype;
    for (int64_t extent : shape)
      tensor.shape[tensor.rank++] = extent;
    auto bytes = static_cast<size_t>(tensor.numel() * dtypeBytes(dtype));
    case_.bytes += static_cast<double>(bytes);
    tensor.data = case_.memory.emplace_back(bytes).data(); // the heap does not move its blocks
    return tensor;
  }

  /// Random numbers. Those of large tensors repeat, because drawing them takes longer than most
  /// measurements.
  Tensor randoms(DType dtype, const Shape &shape) {
    constexpr int64_t kPeriod = 1'000'003; // not a multiple of any extent
    Tensor tensor = place(dtype, shape);
    int64_t drawn = std::min(tensor.numel(), kPeriod);
    for (int64_t i = 0; i < drawn; ++i) {
      auto value =
          static_cast<float>(2 * uniformAt(case_.memory.size(), static_cast<uint64_t>(i)) - 1);
      if (dtype == DType::F32)
        static_cast<float *>(tensor.data)[i] = value;
      else if (dtype == DType::BF16)
        static_cast<BF16 *>(tensor.data)[i] = toBF16(value);
      else
        static_cast<F16 *>(tensor.data)[i] = toF16(value);
    }
    auto *bytes = static_cast<std::byte *>(tensor.data);
    for (int64_t size = dtypeBytes(dtype), done = drawn; done < tensor.numel();) {
      int64_t more = std::min(done, tensor.numel() - done);
      std::memcpy(bytes + done * size, bytes, static_cast<size_t>(more * size));
      done += more;
    }
    return tensor;
  }

  Tensor integers(const Shape &shape, int64_t bound) {
    Tensor tensor = place(DType::I32, shape);
    for (int64_t i = 0; i < tensor.numel(); ++i)
      static_cast<int32_t *>(tensor.data)[i] = static_cast<int32_t>(i * 7 % bound);
    return tensor;
  }

  Tensor filled(const Shape &shape, float value) {
    Tensor tensor = place(DType::F32, shape);
    for (int64_t i = 0; i < tensor.numel(); ++i)
      static_cast<float *>(tensor.data)[i] = value;
    return tensor;
  }

  Builder &in(Tensor tensor) {
    case_.call.in[case_.call.inCount++] = tensor;
    return *this;
  }
  Builder &out(Tensor tensor) {
    case_.call.out[case_.call.outCount++] = tensor;
    return *this;
  }

  DType data_;
  Case &case_;
};

} // namespace shardc::kernels::bench
