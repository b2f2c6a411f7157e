// Resolves a segment for one rank and one variant. Every op becomes a kernel with a call whose
// addresses are final, a collective, a copy, or nothing. Execution then looks up no name and reads
// no table.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/api/Kernel.h"
#include "runtime/exec/Arenas.h"
#include "runtime/hal/Channel.h"
#include "runtime/plan/Plan.h"

namespace shardc::exec {

/// Finds the backend's kernel of an op by its name in Ops.def; null if there is none.
using FindKernel = const kernels::Kernel *(*)(std::string_view opName);

/// One op in executable form.
struct BoundOp {
  enum Kind : uint8_t {
    Nothing, ///< aliases and skipped ops: they only keep their position in the stream
    Kernel,
    Collective,
    Copy ///< copies `bytes` bytes from `from` to `to`
  } kind = Nothing;
  plan::StreamId stream = plan::kComputeStream;
  bool isAwaited = false; ///< an op of another stream waits for it
  uint32_t own = 0;       ///< index among the ops of its kind: its entry in RankPart
  const char *label = ""; ///< for messages and profilers; owned by Labels
  const kernels::Kernel *kernel = nullptr;
  kernels::Call *call = nullptr;
  hal::Channel *channel = nullptr;
  hal::Collective collective;
  const void *from = nullptr;
  void *to = nullptr;
  int64_t bytes = 0;
  std::vector<uint32_t> waits; ///< ops of other streams; waits that others imply are left out
};

/// A segment for one rank and variant. Owns the memory that the calls point to.
struct BoundSegment {
  std::vector<BoundOp> ops; ///< indexed like the segment's ops
  /// For each op, the ops that are issued together with it: see plan::issuedTogether.
  std::vector<std::vector<uint32_t>> together;
  std::vector<std::unique_ptr<kernels::Call>> calls;
  std::vector<std::unique_ptr<std::vector<kernels::Tensor>>> lists;
  std::vector<std::unique_ptr<std::vector<kernels::ParamRange>>> ranges;
  std::vector<std::unique_ptr<std::vector<int64_t>>> rangeStarts, copies;
  std::vector<std::unique_ptr<std::vector<ElementRange>>> valid;
};

/// The inputs for binding the segments of one rank.
struct BindContext {
  const plan::Plan &plan;
  const plan::Role &role;
  const Arenas &arenas;
  FindKernel findKernel;
  /// The rank's communicator of a channel; null if there is none.
  std::function<hal::Channel *(plan::ChannelId channel)> findChannel;
  std::span<const int64_t> countOffsets = {};      ///< see paramRanges
  kernels::KernelContext *kernelContext = nullptr; ///< the backend's context, to which calls refer
  int64_t microbatch = 0;                          ///< selects the slots of rings
};

/// Binds the segment. InvalidInput, with a list of all unsupported ops, if a kernel is missing or
/// refuses its call.
Result<BoundSegment> bindSegment(const BindContext &context, const plan::Segment &segment,
                                 plan::Variant variant, const std::vector<std::string> &labels);

/// Removes waits that stream order and other waits imply, and marks ops that others wait for.
void pruneWaits(const plan::Segment &segment, BoundSegment &bound);

} // namespace shardc::exec
