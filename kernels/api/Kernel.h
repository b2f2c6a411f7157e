// The interface of kernels on all backends: plain structs for tensors, attributes, parameter
// ranges, stream and scratch. Kernels know nothing about plans. The caller owns all memory; a
// kernel neither allocates nor frees it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/DType.h"

namespace shardc::kernels {

/// One operand or result: contiguous, row-major. `data` is aligned to 16 bytes unless the op's row
/// says otherwise.
struct Tensor {
  void *data = nullptr;
  DType dtype = DType::F32;
  uint8_t rank = 0;
  bool accumulate = false; ///< results only: add to the old content instead of overwriting it
  int64_t shape[4] = {};

  int64_t numel() const {
    int64_t n = 1;
    for (int d = 0; d < rank; ++d)
      n *= shape[d];
    return n;
  }
  /// cols() is the extent of the last dimension, rows() the product of the others.
  int64_t cols() const { return shape[rank - 1]; }
  int64_t rows() const { return numel() / cols(); }
};

/// Attributes by name; Attrs.def has meanings and defaults.
struct Attrs {
#define ATTR_BOOL(field, default_, doc) bool field = default_;
#define ATTR_INT(field, default_, least, most, doc) int64_t field = default_;
#define ATTR_FLOAT(field, default_, doc) double field = default_;
#include "runtime/base/Attrs.def"
};

/// A contiguous range of a shard that belongs to one parameter. init_block, sum_squares and the
/// optimizers take such ranges. Elements of a shard outside of all ranges are padding.
struct ParamRange {
  /// Initial values; `initStd` has their parameter.
  enum Init : uint8_t { Zeros, Constant, Normal, LogUniform, Uniform, StepBias };
  int64_t begin = 0, end = 0; ///< element range of the shard, end excluded
  int64_t globalBegin = 0;    ///< index of element `begin` in the unsharded tensor
  /// If positive, the range consists of pieces of rows: each piece has `columns` elements, and
  /// pieces are `stride` elements of the unsharded tensor apart.
  int64_t columns = 0, stride = 0;
  uint64_t key = 0; ///< Philox key of the parameter's initial values
  /// Factors of the step's learning rate and weight decay.
  float lrMult = 1, wdMult = 1;
  bool isDecoupled = false; ///< uses the learning rate state.decoupledLr
  /// This parameter's update counts as update number state.applied + countOffset in AdamW's bias
  /// correction. Negative if the parameter's moments began after the schedule did.
  int64_t countOffset = 0;
  Init init = Zeros;
  double initStd = 0; ///< as Param::initStd (runtime/plan/Plan.h)
  int64_t number = 0; ///< index among the 8-bit parameters, if it is one of them
  /// Length of a row in this rank's part of the tensor, in elements.
  int64_t row = 0;
  /// Numbers of rows of interleaved matrices, negative if each turn is a matrix (Param::turns);
  /// unused entries are 0. If all are 0, the parameter is one matrix.
  int32_t turns[4] = {};
  int64_t inBlock = 0; ///< offset of the range in the parameter block, in elements
  /// The number of ranks among which the tensor's rows are divided, or its columns if
  /// `cutsColumns`, and this rank's index among them.
  int32_t parts = 1, part = 0;
  bool cutsColumns = false;
};

/// State that a backend's kernels keep between calls, such as library handles and autotuning
/// results. The kernels define it, the backend owns it, and every call refers to it.
class KernelContext {
public:
  virtual ~KernelContext() = default;
};

/// Limits of one call; an op that takes more operands takes a list.
inline constexpr int kOperandsMax = 12;
inline constexpr int kResultsMax = 7;

/// One call of a kernel. All memory that it points to belongs to the caller.
struct Call {
  Tensor in[kOperandsMax];
  Tensor out[kResultsMax];
  uint8_t inCount = 0, outCount = 0;
  /// Operands of ops that take a list, such as sum_squares. `in` is then empty.
  const Tensor *list = nullptr;
  int64_t listCount = 0;
  /// For each operand of a list, the number of ranks that hold the same elements; its sum of
  /// squares is divided by that number. Null: 1 for each.
  const int64_t *copies = nullptr;
  Attrs attrs;
  /// This rank's index in the op's group, and the size of that group. An op on unsharded operands
  /// has index 0 of 1.
  int64_t index = 0, groupSize = 1;
  /// Parameter ranges of each operand of a list, or of the single shard: operand i has ranges
  /// rangesOf[i] to rangesOf[i+1].
  const ParamRange *ranges = nullptr;
  const int64_t *rangesOf = nullptr;
  int64_t rangesCount = 0;
  int64_t step = 0, microbatch = 0,
          microbatches = 1; ///< position of the running segment; batch.load uses it
  /// Device address from which a captured kernel reads step, microbatch and microbatches when it
  /// executes. Null: the kernel uses the fields above.
  const int64_t *launch = nullptr;
  /// Number of streaming multiprocessors that a matrix product may use while other kernels overlap
  /// it. 0: all.
  int32_t multiprocessors = 0;
  void *stream = nullptr;           ///< the backend's stream handle; null on the host
  KernelContext *context = nullptr; ///< also set in calls without addresses; null: nothing is kept
  void *workspace = nullptr;
  /// At least what Kernel::workspaceBytes returned for the call.
  size_t workspaceBytes = 0;
};

/// Executes the op, or enqueues it on call.stream. The caller has checked the call with `accepts`.
using KernelFn = void (*)(const Call &call);

/// A kernel and what it supports. `accepts` returns null, or the reason why it cannot execute the
/// call.
struct Kernel {
  const char *name; ///< shown by profilers and by `run --explain`
  KernelFn run = nullptr;
  const char *(*accepts)(const Call &call) = nullptr;
  /// Returns the scratch in bytes that `run` needs for this call, from shapes alone. Null: none.
  size_t (*workspaceBytes)(const Call &call) = nullptr;
};

} // namespace shardc::kernels
