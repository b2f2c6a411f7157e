// The search space of `shardc tune`. A layout has one choice per row of TuneKnobs.def. A knob that
// the user has fixed has only one choice.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/config/Config.h"
#include "compiler/model/Stages.h"

namespace shardc::tools {

/// What a layout chooses, in the order of TuneKnobs.def.
enum class Knob : uint8_t {
#define KNOB(enumerator, ...) enumerator,
#include "compiler/tools/TuneKnobs.def"
};

inline constexpr size_t kKnobCount = 0
#define KNOB(...) +1
#include "compiler/tools/TuneKnobs.def"
    ;

/// Whether a knob changes the ops of layers (Body), or only ops outside of layers (Mesh).
enum class KnobPart : uint8_t { Body, Mesh };

/// One row of TuneKnobs.def.
struct KnobInfo {
  std::string_view column; ///< head of its column in tables of layouts
  KnobPart part;
  bool isKind; ///< layouts with different choices are of different kinds
  std::string_view doc;
};
const KnobInfo &knobInfo(Knob knob);

/// Sizes that the conditions of the table use.
struct TuneSizes {
  int64_t ranks = 1, inNode = 1, layers = 1, batch = 1, microBatchMax = 1;
  int64_t experts = 1; ///< experts per layer; 1 for dense models
  bool allowsFp8 = false;
  bool storesBase = false;      ///< frozen weights below adapters may be stored in 8 bits
  model::StageRequest division; ///< split into stages that the recipe requests
};

/// One choice for each knob, or for each knob of one part; the others are off.
struct Layout {
  Layout() { sizes.fill(1); }

  std::array<std::string, kKnobCount> words;
  std::array<int64_t, kKnobCount> sizes;                     ///< 1 for choices that are not sizes
  std::array<std::vector<std::string>, kKnobCount> settings; ///< `path=value`, by knob

  /// The choice of a knob: as a number, or as the word that tables show.
  int64_t size(Knob knob) const { return sizes[static_cast<size_t>(knob)]; }
  const std::string &word(Knob knob) const { return words[static_cast<size_t>(knob)]; }
  bool is(Knob knob, std::string_view word) const { return this->word(knob) == word; }
  /// Data-parallel ranks.
  int64_t replicas(const TuneSizes &s) const {
    return s.ranks / (size(Knob::Tensor) * size(Knob::Context) * size(Knob::Stages));
  }
  /// Ranks that shard the optimizer state of dense layers or experts, or reduce their gradients.
  int64_t sharers(const TuneSizes &s, bool areExperts) const {
    int64_t ranks = areExperts ? s.ranks / (size(Knob::Stages) * expertRanks())
                               : replicas(s) * size(Knob::Context);
    return std::max<int64_t>(ranks / size(Knob::Instances), 1);
  }
  /// Ranks that together hold the experts of a layer.
  int64_t expertRanks() const { return size(Knob::Experts) * size(Knob::ExpertTensor); }
  /// Whether groups of `ranks` neighbouring ranks and the groups of dense layers nest in each
  /// other.
  bool nests(int64_t ranks) const {
    int64_t dense = size(Knob::Tensor) * size(Knob::Context);
    return ranks % dense == 0 || dense % ranks == 0;
  }
  /// Whether gradients are sharded (Megatron FSDP). Only then can there be instances.
  bool isSharded() const { return is(Knob::Sharding, "optim_grads") || is(Knob::Sharding, "fsdp"); }

  /// All settings, as `--set` takes them.
  std::vector<std::string> sets() const;
  /// The choices that define a layout's kind, as one text.
  std::string kindKey() const;
};

/// Microbatches per rank and step; 0 if the batch does not divide.
int64_t microbatchesOf(const Layout &body, const Layout &mesh, const TuneSizes &s);

/// Combines the choices of a body and of a mesh.
Layout joined(const Layout &body, const Layout &mesh);

/// Body knobs that conditions of mesh knobs use.
inline constexpr Knob kMeshAsks[] = {Knob::Tensor, Knob::Rows, Knob::Context, Knob::Experts,
                                     Knob::ExpertTensor};

/// The search space. Knobs are divided into two parts, body and mesh; a layout is one choice of
/// each. Which meshes go with a body depends only on the body's choices of kMeshAsks.
struct TuneSpace {
  TuneSizes sizes;
  std::vector<Layout> bodies;
  std::vector<std::vector<Layout>> meshes;
  std::vector<size_t> meshesOf;  ///< by body, an index in `meshes`
  std::vector<std::string> kept; ///< fixed options that the table lists, as `path = value`
  Layout own;                    ///< the recipe's own choices, without settings

  /// Number of all layouts.
  size_t count() const;
};

/// Whether a row of TuneKnobs.def names the option.
bool isSearched(config::Opt opt);

/// All layouts of a recipe. `isFixed`: whether an option keeps the recipe's value.
TuneSpace makeSpace(const config::Config &config, const TuneSizes &sizes,
                    const std::function<bool(config::Opt)> &isFixed);

} // namespace shardc::tools
