// The interface of kernels: tensors, attributes, the parameter table's rows of a shard, a stream,
// scratch. Plain structs that all backends share; kernels do not know plans.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/DType.h"

namespace shardc::kernels {

/// One operand or result. `data` is 16-byte aligned unless the op's table row says otherwise.
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
  /// Extent of the last dimension, and the product of the others.
  int64_t cols() const { return shape[rank - 1]; }
  int64_t rows() const { return numel() / cols(); }
};

/// Attributes by name; see Attrs.def for meaning and defaults.
struct Attrs {
#define ATTR_BOOL(field, default_, doc) bool field = default_;
#define ATTR_INT(field, default_, least, most, doc) int64_t field = default_;
#define ATTR_FLOAT(field, default_, doc) double field = default_;
#include "runtime/base/Attrs.def"
};

/// A run of one parameter's elements inside a shard: the part of the parameter table for
/// init_block, sum_squares and the optimizers. Elements of a shard outside all ranges are padding.
struct ParamRange {
  enum Init : uint8_t { Zeros, Ones, Normal };
  int64_t begin = 0, end = 0; ///< elements of the shard
  int64_t globalBegin = 0;    ///< index in the whole tensor of element `begin`
  /// More than 0: the elements are parts of rows of the tensor, each of so many elements, and each
  /// begins `stride` elements of the tensor behind the one before.
  int64_t columns = 0, stride = 0;
  uint64_t key = 0; ///< Philox key of the parameter's initial values
  float lrMult = 1, wdMult = 1;
  bool isDecoupled = false; ///< its learning rate is state.decoupledLr
  /// The moments of the parameter count this many updates more than state.applied does: fewer,
  /// below zero, where they began after the schedule did.
  int64_t countOffset = 0;
  Init init = Zeros;
  double initStd = 0;
  int64_t number = 0; ///< of the parameter among those of 8 bits, if it is one
  /// Elements of one of this rank's rows of the tensor.
  int64_t row = 0;
  /// Its rows are of several matrices: so many of each in turn, over and over; 0 behind the last.
  /// All 0: it is one matrix.
  int32_t turns[4] = {};
};

/// What a backend's kernels keep from call to call: handles of libraries, choices made by timing.
/// The kernels define it, the backend owns it, and every call carries it.
class KernelContext {
public:
  virtual ~KernelContext() = default;
};

inline constexpr int kOperandsMax = 12;
inline constexpr int kResultsMax = 7;

struct Call {
  Tensor in[kOperandsMax];
  Tensor out[kResultsMax];
  uint8_t inCount = 0, outCount = 0;
  /// Operands of ops that take a list (sum_squares); `in` is empty for them.
  const Tensor *list = nullptr;
  int64_t listCount = 0;
  /// Ranks that count the same elements of each operand of a list, whose squares are divided by
  /// them; null: 1 of each.
  const int64_t *copies = nullptr;
  Attrs attrs;
  /// This rank's index in the op's group, and the group's size: an op of whole operands has 0 of 1.
  int64_t index = 0, groupSize = 1;
  /// Ranges of the shard in each operand of a list, or of the single shard: rangesOf[i] to
  /// rangesOf[i+1].
  const ParamRange *ranges = nullptr;
  const int64_t *rangesOf = nullptr;
  int64_t rangesCount = 0;
  int64_t step = 0, microbatch = 0,
          microbatches = 1; ///< of the running segment; they select batch.load's ring entry
  /// On a device: the address from which a captured kernel reads step, microbatch and microbatches
  /// when it runs; null if the fields above hold them.
  const int64_t *launch = nullptr;
  /// Multiprocessors that a product may use while other kernels overlap it; 0: all.
  int32_t multiprocessors = 0;
  void *stream = nullptr;           ///< the backend's queue, in its kernels' form; null on the host
  KernelContext *context = nullptr; ///< also in a call without addresses; null: none is kept
  void *workspace = nullptr;
  size_t workspaceBytes = 0;
};

/// Runs the op, or launches it on call.stream. The caller has checked types and shapes with
/// `accepts`.
using KernelFn = void (*)(const Call &call);

/// A kernel and its capabilities. `accepts` returns null, or the reason why it refuses the call.
struct Kernel {
  const char *name; ///< the name in the profiler and in `run --explain`
  KernelFn run = nullptr;
  const char *(*accepts)(const Call &call) = nullptr;
  /// Bytes of scratch that `run` needs for this call; null means none. Only shapes are read.
  size_t (*workspaceBytes)(const Call &call) = nullptr;
};

} // namespace shardc::kernels
