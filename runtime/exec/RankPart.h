// The parts of a bound segment that differ from rank to rank: addresses, its piece of the parameter
// table, its channels. Everything else is bound once for all ranks of a process.
#pragma once

#include <memory>
#include <vector>

#include "runtime/exec/Bind.h"
#include "runtime/hal/Stream.h"

namespace shardc::exec {

struct RankPart {
  struct Collective {
    hal::Channel *channel = nullptr;
    hal::Collective desc;
  };
  struct Copy {
    const void *from = nullptr;
    void *to = nullptr;
  };
  // The rank's part of calls, by BoundOp::own, which counts the ops of each kind.
  std::vector<hal::OwnPart> calls;
  std::vector<Collective> collectives;
  std::vector<Copy> copies;

  std::vector<void *> addresses; ///< of all calls

  // Objects to which calls and collectives point, unless the bound segment itself holds them.
  std::vector<std::unique_ptr<std::vector<kernels::Tensor>>> lists;
  std::vector<std::unique_ptr<std::vector<kernels::ParamRange>>> ranges;
  std::vector<std::unique_ptr<std::vector<int64_t>>> rangeStarts;
  std::vector<std::unique_ptr<std::vector<ElementRange>>> valid;
};

/// Sets BoundOp::own of all ops.
void numberOwnParts(BoundSegment &bound);

/// The differences of `own`, a segment bound for one rank, from `shared`, the same segment bound
/// for any rank of the process. The part points into `own`, which must outlive it.
RankPart partOf(const BoundSegment &shared, const BoundSegment &own);
/// The same if `own` is not needed afterwards: the part takes over the objects to which it points.
RankPart takePart(const BoundSegment &shared, BoundSegment own);

/// An op of `shared` as the rank with this part runs it, with its call, if it has one, in `call`.
BoundOp opWithPart(const BoundOp &shared, const RankPart &part, kernels::Call &call);

} // namespace shardc::exec
