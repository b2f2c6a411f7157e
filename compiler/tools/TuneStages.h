// Lower bounds of memory and time of pipeline stages, from the order of their passes. The order is
// that of the plan; it depends only on the numbers of stages, chunks and microbatches.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "compiler/passes/StageSchedule.h"
#include "compiler/tools/TuneExchanges.h"

namespace shardc::tools {

/// The passes of all stages, and the maximum number of microbatches in flight for each kind of kept
/// value.
struct StageOrder {
  explicit StageOrder(passes::StageSchedule of);

  struct Slots {
    int32_t kept = 0;   ///< from forward pass to backward (or input-gradient) pass
    int32_t longer = 0; ///< from forward to weight-gradient pass; equals `kept` without such a pass
    int32_t passed = 0; ///< from input-gradient to weight-gradient pass
  };
  passes::StageSchedule schedule;
  std::vector<std::vector<Slots>> slots; ///< by stage and chunk
};

/// Cache of orders, shared by layouts. Thread-safe.
class StageOrders {
public:
  /// The order for the layout's schedule, stages and chunks. Valid as long as the cache.
  const StageOrder &of(const Layout &mesh, int64_t microbatches);

private:
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<StageOrder>> known_;
};

/// Lower bound of the memory of a stage's ranks.
class StageBytes {
public:
  /// `order` may be null for a rough bound.
  StageBytes(const BodyCost &body, const ElementBytes &elements, const Layout &mesh,
             const TuneSizes &sizes, int64_t microbatches, const StageOrder *order = nullptr);

  /// Bytes of the stage that needs the most memory, given the activations that each chunk keeps for
  /// its backward pass.
  int64_t most(const std::vector<PartHeld> &chunks) const;
  /// Like most(), with known activations per stage.
  int64_t mostWith(const std::vector<int64_t> &activations,
                   const std::vector<PartHeld> &chunks) const;

private:
  /// Bytes of state and gradients of a stage's parameters.
  struct State {
    int64_t kept = 0, gradients = 0;
  };
  State state(const Numels &numels) const;
  State stateOf(const Numel &numel, int64_t shards) const;
  Numels numelsOf(int64_t stage, const std::vector<PartHeld> &chunks) const;
  int64_t held(const State &state, int64_t activations) const;
  /// Bytes of communicators: for transfers between stages, inside layers, and for gathers and
  /// reductions. Counts only those that are certainly needed and large.
  int64_t communicators(int64_t stage) const;
  /// Lower bound of the number of passes of chunks whose values the stage keeps at the same time.
  int64_t inFlight(int64_t stage) const;
  /// Bytes of kept activations. A stage runs its chunks in turn, each for as many microbatches as
  /// there are stages.
  int64_t keptInFlight(int64_t stage, const std::vector<PartHeld> &chunks) const;
  int64_t activations(int64_t stage, const std::vector<PartHeld> &chunks) const;
  const PartHeld &held(int64_t stage, int64_t chunk, const std::vector<PartHeld> &chunks) const {
    return chunks[static_cast<size_t>(chunk * stages_ + stage)];
  }

  const BodyCost &body_;
  const ElementBytes elements_;
  const Layout &mesh_;
  const StageOrder *order_;
  int64_t stages_, chunks_, microbatches_, shards_ = 1, expertShards_ = 1;
  int64_t instances_ = 1; ///< number of instances, which shard state further
};

/// Lower bound of the seconds of a step: for each pass in order, its kernels, its collectives, and
/// the data-parallel communication for which it must wait.
class StageSeconds {
public:
  /// `layers`: the number of layers of each chunk.
  StageSeconds(const BodyCost &body, const ElementBytes &elements, const Layout &mesh,
               const TuneSizes &sizes, int64_t microbatches, const std::vector<int64_t> &layers,
               const StageOrder &order);

  /// The bound at a power factor, if each stage updates at least `fewest` parameters.
  double at(double factor, const Numels &fewest) const;

private:
  /// Data-parallel communication of a part of the model: of dense parameters and of experts.
  struct Exchanged {
    ExchangeCost gathers[2], again[2], reductions[2], sums[2];
  };
  struct Chunk {
    size_t begin = 0, end = 0;            ///< layers
    bool isFirst = false, isLast = false; ///< whether it contains the embedding, the head
  };
  class Pass;
  /// The exchange times of a part with these parameters. Its gathers, and its reductions, run one
  /// after the other.
  const Exchanged &exchangedOf(const Numel &dense, const Numel &experts);
  passes::PassSeconds pass(const Chunk &chunk, passes::PassKind kind, bool isFirst, bool isLast,
                           double factor) const;

  const BodyCost &body_;
  Exchanges exchanges_;
  const StageOrder &order_;
  int64_t microbatches_;
  double transferSeconds_ = 0;                         ///< seconds of one transfer between stages
  std::vector<Chunk> chunks_;                          ///< in model order
  std::map<std::pair<Numel, Numel>, Exchanged> known_; ///< by dense and expert parameters
  std::vector<const Exchanged *> layers_;
  const Exchanged *embedding_, *head_;
};

} // namespace shardc::tools
