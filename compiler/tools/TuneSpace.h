// The layouts among which `shardc tune` chooses: one choice of each row of TuneKnobs.def. What the
// user has fixed has one choice.
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

enum class Knob : uint8_t {
#define KNOB(enumerator, ...) enumerator,
#include "compiler/tools/TuneKnobs.def"
};

inline constexpr size_t kKnobCount = 0
#define KNOB(...) +1
#include "compiler/tools/TuneKnobs.def"
    ;

/// Whether the ops of a layer depend on a knob, or only what is around them.
enum class KnobPart : uint8_t { Body, Mesh };

struct KnobInfo {
  std::string_view column;
  KnobPart part;
  bool isKind; ///< layouts that differ in it differ in kind
  std::string_view doc;
};
const KnobInfo &knobInfo(Knob knob);

/// The sizes that conditions of the table ask for.
struct TuneSizes {
  int64_t ranks = 1, inNode = 1, layers = 1, batch = 1, microBatchMax = 1;
  int64_t experts = 1; ///< of a layer; 1 without any
  bool allowsFp8 = false;
  bool allowsAuto = false;      ///< whether the compiler may choose what is recomputed
  model::StageRequest division; ///< of layers, as the recipe asks for it
};

/// One choice of each knob, or of those of a part; the others are as if they were off.
struct Layout {
  Layout() { sizes.fill(1); }

  std::array<std::string, kKnobCount> words;
  std::array<int64_t, kKnobCount> sizes;                     ///< 1 where words are no sizes
  std::array<std::vector<std::string>, kKnobCount> settings; ///< `path=value`, of each knob

  int64_t size(Knob knob) const { return sizes[static_cast<size_t>(knob)]; }
  const std::string &word(Knob knob) const { return words[static_cast<size_t>(knob)]; }
  bool is(Knob knob, std::string_view word) const { return this->word(knob) == word; }
  /// Ranks that compute the same with other samples.
  int64_t replicas(const TuneSizes &s) const {
    return s.ranks / (size(Knob::Tensor) * size(Knob::Context) * size(Knob::Stages));
  }
  /// Ranks that divide the state of dense layers, or of experts, or add their gradients.
  int64_t sharers(const TuneSizes &s, bool areExperts) const {
    int64_t ranks = areExperts ? s.ranks / (size(Knob::Stages) * expertRanks())
                               : replicas(s) * size(Knob::Context);
    return std::max<int64_t>(ranks / size(Knob::Instances), 1);
  }
  /// Ranks that hold the experts of a layer together.
  int64_t expertRanks() const { return size(Knob::Experts) * size(Knob::ExpertTensor); }
  /// Whether groups of so many neighbouring ranks and those of dense layers are parts of each
  /// other.
  bool nests(int64_t ranks) const {
    int64_t dense = size(Knob::Tensor) * size(Knob::Context);
    return ranks % dense == 0 || dense % ranks == 0;
  }
  /// By Megatron FSDP, which alone has instances.
  bool isSharded() const { return is(Knob::Sharding, "optim_grads") || is(Knob::Sharding, "fsdp"); }

  /// All settings, as `--set` takes them.
  std::vector<std::string> sets() const;
  /// The choices that make a layout of another kind, as one text.
  std::string kindKey() const;
};

/// Of a rank and step; 0 if the batch cannot be divided so.
int64_t microbatchesOf(const Layout &body, const Layout &mesh, const TuneSizes &s);

/// The body's choices, and the mesh's.
Layout joined(const Layout &body, const Layout &mesh);

/// Knobs of bodies that conditions of meshes ask for.
inline constexpr Knob kMeshAsks[] = {Knob::Tensor, Knob::Rows, Knob::Context, Knob::Experts,
                                     Knob::ExpertTensor};

/// Every layout is a body and one of the meshes that its choices of kMeshAsks leave.
struct TuneSpace {
  TuneSizes sizes;
  std::vector<Layout> bodies;
  std::vector<std::vector<Layout>> meshes;
  std::vector<size_t> meshesOf;  ///< of each body: an index in `meshes`
  std::vector<std::string> kept; ///< `path = value` that the user has fixed and the table lists
  Layout own;                    ///< what the recipe says of each knob, without settings

  /// Of all bodies with all their meshes.
  size_t count() const;
};

/// Whether a row of TuneKnobs.def names the option.
bool isSearched(config::Opt opt);

/// `isFixed` tells whether an option keeps the recipe's value.
TuneSpace makeSpace(const config::Config &config, const TuneSizes &sizes,
                    const std::function<bool(config::Opt)> &isFixed);

} // namespace shardc::tools
