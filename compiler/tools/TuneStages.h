// What the stages of a layout hold and take at least, by the order of their passes: that of the
// plan, which depends on nothing but the numbers of stages, chunks and microbatches.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "compiler/passes/StageSchedule.h"
#include "compiler/tools/TuneExchanges.h"

namespace shardc::tools {

/// The passes of all stages, and how many microbatches leave something to later passes at once.
struct StageOrder {
  explicit StageOrder(passes::StageSchedule of);

  struct Slots {
    int32_t kept = 0;   ///< from the forward to the backward pass, or to its first part
    int32_t longer = 0; ///< to its second part, or the same
    int32_t passed = 0; ///< from the first to the second part
  };
  passes::StageSchedule schedule;
  std::vector<std::vector<Slots>> slots; ///< by stage and chunk
};

/// Orders that layouts share. Any thread may ask.
class StageOrders {
public:
  const StageOrder &of(const Layout &mesh, int64_t microbatches);

private:
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<StageOrder>> known_;
};

/// What the ranks of a stage hold at least.
class StageBytes {
public:
  /// `order`: none if the bound is to be a rough one.
  StageBytes(const BodyCost &body, const ElementBytes &elements, const Layout &mesh,
             const TuneSizes &sizes, int64_t microbatches, const StageOrder *order = nullptr);

  /// Of the stage that needs most, by what chunks hold.
  int64_t most(const std::vector<PartHeld> &chunks) const;
  /// The same with activations of each stage that are known.
  int64_t mostWith(const std::vector<int64_t> &activations,
                   const std::vector<PartHeld> &chunks) const;

private:
  /// Of parameters that divided among so many ranks.
  struct State {
    int64_t kept = 0, gradients = 0;
  };
  State state(const Numels &numels) const;
  State stateOf(const Numel &numel, int64_t shards) const;
  Numels numelsOf(int64_t stage, const std::vector<PartHeld> &chunks) const;
  int64_t held(const State &state, int64_t activations) const;
  int64_t communicators(int64_t stage) const;
  int64_t inFlight(int64_t stage) const;
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
  int64_t instances_ = 1; ///< that divide what they hold
};

/// The least seconds of a step: of each pass of the order, what its kernels, its collectives and
/// those of data-parallel ranks take that it has to wait for.
class StageSeconds {
public:
  /// `layers`: of each chunk.
  StageSeconds(const BodyCost &body, const ElementBytes &elements, const Layout &mesh,
               const TuneSizes &sizes, int64_t microbatches, const std::vector<int64_t> &layers,
               const StageOrder &order);

  /// At a factor of power, of stages of which none updates less than `fewest`.
  double at(double factor, const Numels &fewest) const;

private:
  /// Of a part of the model, whose collectives are those of dense layers and those of experts.
  struct Exchanged {
    ExchangeCost gathers[2], again[2], reductions[2], sums[2];
  };
  struct Chunk {
    size_t begin = 0, end = 0;            ///< layers
    bool isFirst = false, isLast = false; ///< it has the embedding, or the head
  };
  class Pass;
  const Exchanged &exchangedOf(const Numel &dense, const Numel &experts);
  passes::PassSeconds pass(const Chunk &chunk, passes::PassKind kind, bool isFirst, bool isLast,
                           double factor) const;

  const BodyCost &body_;
  Exchanges exchanges_;
  const StageOrder &order_;
  int64_t microbatches_;
  double transferSeconds_ = 0;                         ///< from a stage to the next
  std::vector<Chunk> chunks_;                          ///< of the model
  std::map<std::pair<Numel, Numel>, Exchanged> known_; ///< by parameters, dense and of experts
  std::vector<const Exchanged *> layers_;
  const Exchanged *embedding_, *head_;
};

} // namespace shardc::tools
