// The parts of a bound segment that differ between ranks: addresses, pieces of the parameter table,
// and channels. Everything else is bound once for all ranks of a process.
#pragma once

#include <memory>
#include <vector>

#include "runtime/exec/Bind.h"
#include "runtime/hal/Stream.h"

namespace shardc::exec {

/// One rank's part of one bound segment. It owns what its calls point to, unless the bound segment
/// does.
struct RankPart {
  struct Collective {
    hal::Channel *channel = nullptr;
    hal::Collective desc;
  };
  struct Copy {
    const void *from = nullptr;
    void *to = nullptr;
  };
  // The rank's own data of ops, indexed by BoundOp::own, which counts the ops of each kind.
  std::vector<hal::OwnPart> calls;
  std::vector<Collective> collectives;
  std::vector<Copy> copies;

  std::vector<void *> addresses; ///< addresses of all calls, one call after the other

  // The objects to which calls and collectives point. Empty if the bound segment holds these
  // objects.
  std::vector<std::unique_ptr<std::vector<kernels::Tensor>>> lists;
  std::vector<std::unique_ptr<std::vector<kernels::ParamRange>>> ranges;
  std::vector<std::unique_ptr<std::vector<int64_t>>> rangeStarts;
  std::vector<std::unique_ptr<std::vector<ElementRange>>> valid;
};

/// Sets BoundOp::own of all ops.
void numberOwnParts(BoundSegment &bound);

/// The difference between `own`, a segment bound for one rank, and `shared`, the same segment bound
/// for any rank of the process. The part points into `own`, which must outlive it.
RankPart partOf(const BoundSegment &shared, const BoundSegment &own);
/// Like partOf(), but the part takes over the objects to which it points, so `own` need not outlive
/// it.
RankPart takePart(const BoundSegment &shared, BoundSegment own);

/// An op of `shared` as the rank with this part executes it. `call` receives its call if it has
/// one.
BoundOp opWithPart(const BoundOp &shared, const RankPart &part, kernels::Call &call);

} // namespace shardc::exec
