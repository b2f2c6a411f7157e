// The parallel layout of a small copy: how many ranks each axis gets when there are fewer of them.
#pragma once

#include <string>
#include <vector>

#include "compiler/config/Config.h"

namespace shardc::shrink {

/// Sizes of the axes of a mesh, in ranks. The experts have a chain of axes of their own over the
/// same ranks: pipeline, expert, expert tensor, and what is left (expertData).
struct Layout {
  int64_t tensor = 1;
  int64_t pipeline = 1;
  int64_t context = 1;
  int64_t instances = 1; ///< optimizer instances: the outer part of data parallelism
  int64_t data = 1;      ///< all of data parallelism, instances included
  int64_t expert = 1;
  int64_t expertTensor = 1;
  int64_t nodes = 1;
  int64_t gpusPerNode = 1;

  int64_t ranks() const { return tensor * pipeline * context * data; }
  int64_t shard() const { return data / instances; }
  int64_t expertData() const { return ranks() / (pipeline * expert * expertTensor); }
};

/// The layout of a recipe.
Layout layoutOf(const config::Config &config);

/// The layouts with `ranks` ranks for a copy of the recipe, best first. Each axis divides the
/// recipe's axis, except data parallelism, which takes the rest. An axis of one rank stays one. The
/// best layout has lost the fewest axes, and has shrunk the others most evenly. Empty if no layout
/// has that many ranks.
std::vector<Layout> layoutsFor(const config::Config &config, int64_t ranks);

/// An axis that has several ranks in a recipe and one in its copy.
struct LostAxis {
  std::string name; ///< `tensor`, `data`, ...
  int64_t size;     ///< in the recipe
};
std::vector<LostAxis> lostAxes(const config::Config &config, const Layout &copy);

/// The axes of more than one rank in the recipe, as in `tensor 8 -> 2, data 128 -> 4`.
std::string describeAxes(const config::Config &config, const Layout &copy);

} // namespace shardc::shrink
