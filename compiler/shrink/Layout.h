// Chooses the parallel layout of a small copy: the size of each axis for a smaller number of ranks.
#pragma once

#include <string>
#include <vector>

#include "compiler/config/Config.h"

namespace shardc::shrink {

/// Sizes of the axes of a mesh, in ranks. MoE layers use a second factorization of the same ranks:
/// pipeline, expert, expert tensor, and expert data for the remaining factor.
struct Layout {
  int64_t tensor = 1;
  int64_t pipeline = 1;
  int64_t context = 1;
  int64_t instances = 1; ///< optimizer instances: the outer axis of data parallelism
  int64_t data = 1;      ///< total data parallelism, including `instances`
  int64_t expert = 1;
  int64_t expertTensor = 1;
  int64_t nodes = 1;
  int64_t gpusPerNode = 1;

  int64_t ranks() const { return tensor * pipeline * context * data; }
  int64_t shard() const { return data / instances; }
  int64_t expertData() const { return ranks() / (pipeline * expert * expertTensor); }
};

/// The layout that the recipe itself has.
Layout layoutOf(const config::Config &config);

/// All layouts of the recipe for `ranks` ranks, best first. The size of each axis divides the
/// recipe's size; data parallelism, if the recipe has it, takes the remaining factor. The best
/// layout keeps the most axes larger than one and reduces all axes by the most similar factors.
/// Empty if no layout has exactly `ranks` ranks.
std::vector<Layout> layoutsFor(const config::Config &config, int64_t ranks);

/// An axis that has several ranks in the recipe and one rank in the copy.
struct LostAxis {
  std::string name; ///< `tensor`, `data`, ...
  int64_t size;     ///< in the recipe, in ranks
};
std::vector<LostAxis> lostAxes(const config::Config &config, const Layout &copy);

/// The recipe's axes with more than one rank, in the form `tensor 8 -> 2, data 128 -> 4`.
std::string describeAxes(const config::Config &config, const Layout &copy);

} // namespace shardc::shrink
