// The mesh of a job. Dense layers and experts divide the same ranks in different ways: each is a
// chain of degrees, the fastest first. The axes of the mesh are the common refinement of both
// chains, so that every group of either one is a set of axes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compiler/config/Config.h"
#include "compiler/model/Stages.h"

namespace shardc::config {

/// One degree of a chain: ranks that differ only in it are a group. Degrees are at least 1.
struct Degree {
  std::string name;
  int64_t size;
};
using Chain = std::vector<Degree>; ///< fastest first

/// tp, cp, dp, dp_outer, pp, or with `dist.use_tp_pp_dp_mapping` tp, cp, pp, dp, dp_outer.
Chain denseChain(const Config &config);
/// etp, ep, edp, edp_outer, pp in the same order, with another number of ranks among whom experts
/// are divided if one is given; empty if the model has no experts.
Chain expertChain(const Config &config, std::optional<int64_t> expertParallel = {});

/// How the layers are divided among the stages; of a balanced division without the seconds.
model::StageRequest stageRequestOf(const Config &config);

/// The mesh as a plan has it: the last axis is the fastest, of the mesh and of each group.
struct Mesh {
  struct Axis {
    std::string name;
    int64_t size;
  };
  struct Group {
    std::string name;
    std::vector<uint16_t> axes;
  };
  std::vector<Axis> axes;    ///< `dp`, and others of several coordinates
  std::vector<Group> groups; ///< no two have the same axes in the same order
  size_t data = 0;           ///< the group by whose index ranks read samples
  size_t shard = 0;          ///< whose ranks divide the parameters of dense layers
  size_t state = 0; ///< and their state, if all instances do: begins with the axes of shard
  size_t all = 0;   ///< every rank
  /// The same for experts, if they are divided in another way than dense layers. Among the ranks
  /// that have the same experts, or the same parts of them: those that divide their parameters
  /// (expertShard), and all of them (expertState).
  std::optional<size_t> expertShard, expertState;
  std::vector<std::pair<std::string, size_t>> links; ///< of the chains, and the group of each

  /// The group of a link of a chain that has several ranks; null if no chain has such a link.
  const Group *findGroup(const std::string &name) const;
};

/// Two sizes of which neither divides the other: the numbers of adjacent ranks that each chain
/// groups.
struct MeshConflict {
  int64_t dense = 1, expert = 1;
};
std::optional<MeshConflict> findConflict(const Chain &dense, const Chain &expert);

/// The size of the inner level of context-parallel ranks if they exchange in two levels; otherwise
/// 1.
int64_t innerContext(const Config &config);

/// Tensor-parallel ranks that have the same key/value head; 1 if each rank has heads of its own.
int64_t ranksOfKey(const Config &config);

/// Additional cuts of axes: the number of adjacent ranks that have something in common.
struct InnerRanks {
  int64_t context = 1; ///< the inner level of context-parallel ranks
  int64_t tensor = 1;  ///< tensor-parallel ranks with the same key/value head
};

/// The common refinement of two chains with the same number of ranks, without a conflict.
Mesh refine(const Chain &dense, const Chain &expert, const InnerRanks &inner = {});

} // namespace shardc::config
