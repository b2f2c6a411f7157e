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
  StageBytes(const BodyCost &body, const Layout &mesh, const TuneSizes &sizes, int64_t microbatches,
             const StageOrder *order = nullptr);

  /// Of the stage that needs most; with an unknown division, of one with its share of the layers.
  int64_t most(const std::vector<int64_t> &layers) const;
  /// What it holds from one step to the next, and sums of gradients, by stage.
  std::vector<int64_t> states(const std::vector<int64_t> &layers) const;

private:
  struct Numels {
    int64_t dense = 0, experts = 0;
  };
  /// Of parameters that divided among so many ranks.
  struct State {
    int64_t kept = 0, gradients = 0;
  };
  State state(const Numels &numels) const;
  State stateOf(int64_t numel, int64_t shards) const;
  Numels numelsOf(int64_t stage, const std::vector<int64_t> &layers) const;
  int64_t held(const State &state, int64_t activations) const;
  int64_t communicators(int64_t stage) const;
  int64_t inFlight(int64_t stage) const;
  int64_t layersInFlight(int64_t stage, const std::vector<int64_t> &layers) const;
  int64_t activations(int64_t stage, const std::vector<int64_t> &layers) const;

  const BodyCost &body_;
  const Layout &mesh_;
  const StageOrder *order_;
  int64_t stages_, chunks_, microbatches_, shards_ = 1, expertShards_ = 1;
};

/// The least seconds of a step: of each pass of the order, what its kernels, its collectives and
/// those of data-parallel ranks take that it has to wait for.
class StageSeconds {
public:
  /// `layers`: of each chunk.
  StageSeconds(const BodyCost &body, const Layout &mesh, const TuneSizes &sizes,
               int64_t microbatches, const std::vector<int64_t> &layers, const StageOrder &order);

  /// At a factor of power.
  double at(double factor) const;

private:
  struct Exchanged {
    double dense = 0, experts = 0; ///< seconds of their streams
    double contending = 0;
    double exposed = 0; ///< of these seconds, before the first kernel or behind the last one

    double stream() const { return std::max(dense, experts); }
    double all() const { return dense + experts; }
  };
  struct Chunk {
    size_t begin = 0, end = 0; ///< layers
    Exchanged gathers, reductions;
  };
  Chunk chunkOf(size_t begin, size_t end) const;
  void addExchange(Exchanged &sum, const ExchangeCost &cost, bool areExperts) const;
  passes::PassSeconds pass(const Chunk &chunk, passes::PassKind kind, bool isLastOfModel,
                           bool isFirst, bool isLast, double factor) const;

  const BodyCost &body_;
  Exchanges exchanges_;
  const StageOrder &order_;
  int64_t microbatches_, fewest_;
  double transferSeconds_ = 0; ///< from a stage to the next
  std::vector<Chunk> chunks_;  ///< of the model
};

} // namespace shardc::tools
