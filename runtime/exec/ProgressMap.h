// Interprets the progress words of a plan's ranks: numbers of ops, readable positions, and the rank
// that fell behind when work has stopped.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::exec {

class ProgressMap {
public:
  /// `plan` must outlive the map. Without a role it has no ops.
  explicit ProgressMap(const plan::Plan &plan);

  /// Ops of all segments are numbered consecutively.
  uint32_t numberOf(const plan::Segment &segment, size_t op) const;
  /// `in 'micro: all_gather %W (a.recipe:12)'`, `after '…'`, `making the channel of '…'`; empty for
  /// a word without information.
  std::string place(uint32_t word) const;
  /// The most advanced stream of a rank that has information, collectives first; and the microbatch
  /// of it, where one of the words says which is under way.
  std::string place(std::span<const uint32_t> words) const;
  /// Names the first rank that fell behind, the collective where others wait for it, and its last
  /// known position. `words` has each rank's words by stream; all are stuck. `silent` is a rank
  /// without a heartbeat, or -1; it is named even if nobody waits for it.
  std::string explainStall(std::span<const std::vector<uint32_t>> words, int silent) const;

  /// `, stage 2 of 4` of a rank of a pipeline, to stand behind its number; empty otherwise.
  std::string stageOf(int64_t rank) const;

private:
  struct At {
    uint32_t segment, op; ///< by segments_
  };
  std::string explain(std::span<const std::vector<uint32_t>> words, int rank, int waiter,
                      uint32_t waitedIn) const;
  std::string nameOf(int rank) const;
  std::string microbatchOf(std::span<const uint32_t> words, uint32_t word) const;
  /// Members of the group of a collective of `rank`.
  std::vector<int> membersOf(uint32_t word, int rank) const;
  bool find(uint32_t number, At &at) const;
  std::string label(uint32_t number) const;

  const plan::Plan &plan_;
  std::vector<const plan::Segment *> segments_; ///< of all roles
  std::vector<uint32_t> begins_;                ///< by segment: number of its first op
};

} // namespace shardc::exec
