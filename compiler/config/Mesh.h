// The mesh of a job. Dense layers and experts divide the same ranks in different ways: each way is
// a chain of degrees, the fastest first. The axes of the mesh are the common refinement of both
// chains, so that every group of either chain is a set of axes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compiler/config/Config.h"
#include "compiler/model/Stages.h"

namespace shardc::config {

/// One degree of a chain. Ranks that differ only in it form a group. At least 1.
struct Degree {
  std::string name;
  int64_t size;
};
using Chain = std::vector<Degree>; ///< fastest first

/// tp, cp, dp, dp_outer, pp, or with `dist.use_tp_pp_dp_mapping` tp, cp, pp, dp, dp_outer.
Chain denseChain(const Config &config);
/// etp, ep, edp, edp_outer, pp, in the corresponding order. `expertParallel` overrides the number
/// of ranks over which experts are divided. Empty if the model has no experts.
Chain expertChain(const Config &config, std::optional<int64_t> expertParallel = {});

/// How layers are divided among stages. For a balanced split, the seconds are missing.
model::StageRequest stageRequestOf(const Config &config);
/// The stage of each chunk of layers.
model::Placement placementOf(const Config &config);

/// The mesh in the form of a plan: the last axis is the fastest, both of the mesh and of each
/// group.
struct Mesh {
  struct Axis {
    std::string name;
    int64_t size;
  };
  struct Group {
    std::string name;
    std::vector<uint16_t> axes;
  };
  std::vector<Axis> axes;    ///< `dp`, and all other axes of more than one coordinate
  std::vector<Group> groups; ///< no two have the same axes in the same order
  size_t data = 0;           ///< group whose index selects the samples of a rank
  size_t shard = 0;          ///< group that shards the parameters of dense layers
  size_t state = 0; ///< group that shards their optimizer state; its first axes are those of shard
  size_t all = 0;   ///< group of all ranks
  /// Set if experts are divided in another way than dense layers: the ranks that shard the
  /// parameters of experts (expertShard), and all ranks with the same experts or the same parts of
  /// them (expertState).
  std::optional<size_t> expertShard, expertState;
  std::vector<std::pair<std::string, size_t>> links; ///< group of each degree of the chains

  /// The group of a degree with several ranks; null if no chain has such a degree.
  const Group *findGroup(const std::string &name) const;
};

/// A group size of each chain, of which neither divides the other.
struct MeshConflict {
  int64_t dense = 1, expert = 1;
};
/// The first such pair; nothing if the chains fit one mesh.
std::optional<MeshConflict> findConflict(const Chain &dense, const Chain &expert);

/// The size of the inner level if context-parallel ranks exchange in two levels; otherwise 1.
int64_t innerContext(const Config &config);

/// The number of tensor-parallel ranks that share a key/value head; 1 if each rank has heads of its
/// own.
int64_t ranksOfKey(const Config &config);

/// Sizes of further groups of adjacent ranks, at which axes are split.
struct InnerRanks {
  int64_t context = 1; ///< the inner level of context-parallel ranks
  int64_t tensor = 1;  ///< tensor-parallel ranks with the same key/value head
};

/// The common refinement of two chains with equal numbers of ranks. The chains must not conflict.
Mesh refine(const Chain &dense, const Chain &expert, const InnerRanks &inner = {});

} // namespace shardc::config
