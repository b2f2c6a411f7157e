// The linear layers that have adapters: low-rank products that are trained beside their weights
// (arXiv 2106.09685). Recipes select them by name.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compiler/model/ParamKinds.h"

namespace shardc::model {

/// The adapter of one linear layer, which adds scale·(x·Aᵀ)·Bᵀ to x·wᵀ. The rows of w may consist
/// of parts that other models have as separate layers, such as queries, keys and values. Each part
/// with an adapter then has its own factor A; these factors are stacked.
struct Adapter {
  int64_t rank = 1; ///< of each part
  double scale = 1, dropout = 0;
  std::vector<double> scales; ///< of each part with an adapter, if they differ; then `scale` is 1
  double initStd = 0;         ///< of A, from the full fan; B begins with zeros
  int64_t groups = 1;         ///< number of equal groups of rows
  int64_t units = 1;          ///< number of equal units of each group
  int64_t parts = 1; ///< each of the last parts - 1 units is a part; the others are the first part
  uint64_t kept = 1; ///< bits of the parts that have an adapter
  /// DoRA (arXiv 2402.09353): rows of the sum of weight and adapter are divided by their norms, and
  /// multiplied by a trained magnitude.
  bool hasMagnitude = false;
  bool hasBias = false; ///< the second factor has one, which is scaled too
  bool isExpanded() const { return parts > 1; }
  int64_t columns() const; ///< columns of x·Aᵀ
};

/// The adapters of a linear layer: a bit mask of the parts that have one, or a joint adapter for
/// all rows.
struct AdapterParts {
  uint64_t kept = 0;
  bool isJoint = false;
  std::vector<double> alphas = {}; ///< by part, the joint one first; empty: that of all layers

  /// Sets the alpha of a part, or of the joint adapter, which is part 0.
  void setAlpha(int part, double alpha);
  auto operator<=>(const AdapterParts &) const = default;
};
/// The adapters of a decoder layer, by the name of the linear layer, such as
/// `self_attention.linear_qkv`.
using LayerAdapters = std::map<std::string, AdapterParts, std::less<>>;

/// The structure of a linear layer's rows; see struct Adapter.
struct RowUnits {
  int64_t groups = 1, units = 1, parts = 1;
};

/// The adapters of a decoder layer, with their settings.
struct Adapters {
  int64_t rank = 1;
  double alpha = 1, perAlpha = 1; ///< the product of an adapter is scaled by perAlpha·alpha
  double dropout = 0;
  bool isXavier = true; ///< else the standard deviation is 0.2, as Megatron-Bridge's `normal`
  bool hasMagnitude = false, hasBias = false;
  LayerAdapters parts;

  /// The adapter of the linear layer `stem`, whose weight has `in` columns; empty if it has none.
  std::optional<Adapter> find(std::string_view stem, int64_t in, const RowUnits &rows = {}) const;
  /// The scale of a part of the linear layer `stem`, which has an adapter.
  double scaleOf(std::string_view stem, int part = 0) const;
};

/// What mixes the positions of a layer, and its other part.
enum class Mixer : uint8_t { None, Attention, Latent, ShortConv, DeltaNet, Mamba };
enum class FeedForward : uint8_t { None, Dense, Experts };

/// The parts of a layer.
struct LayerForm {
  Mixer mixer = Mixer::Attention;
  FeedForward feedForward = FeedForward::Dense;
  auto operator<=>(const LayerForm &) const = default;
};

/// The linear layers of a model: the parts of each layer, and the properties of parts.
struct AdaptedModel {
  std::vector<LayerForm> layers;
  bool compressesQueries = false; ///< of latent attention
  bool isGated = false, hasShared = false;

  /// Whether a layer has this part.
  bool has(Mixer mixer) const;
  bool has(FeedForward feedForward) const;
};

/// The layers that the entries of a recipe select.
class AdapterTargets {
public:
  /// An entry is `all-linear`, a layer's own name, the end of its path, or a path in which `*`
  /// stands for any text. Names are Megatron-Core's or Hugging Face's. `alphas` is empty, or has
  /// that of each target; of several targets that name a part, the first one counts.
  AdapterTargets(std::span<const std::string> targets, std::span<const double> alphas,
                 std::span<const std::string> exclude, const AdaptedModel &model);

  /// The reason why an entry is invalid; empty if all are valid.
  const std::string &problem() const { return problem_; }
  /// Whether the entry is among the exclusions.
  bool isProblemOfExclude() const { return isOfExclude_; }
  /// The adapters of the layer with this number.
  LayerAdapters of(int64_t layer) const;

private:
  /// Sets `isUsed` for each target, and after those for each exclusion, that matches a layer.
  LayerAdapters chosen(int64_t layer, std::vector<bool> &isUsed) const;
  /// Checks the entries against all layers of the model: each must name something, none may name a
  /// layer both as a whole and in parts, and something must be left. `problem_` becomes the
  /// message.
  void findProblem();

  std::vector<std::string> targets_, exclude_;
  std::vector<double> alphas_;
  AdaptedModel model_;
  bool areAlike_ = true; ///< whether no entry depends on the number of a layer
  std::map<LayerForm, LayerAdapters> ofForms_; ///< of each kind of layer, if so
  std::string problem_;
  bool isOfExclude_ = false; ///< whether problem_ is of an entry of exclude_
};

/// The paths of these adapters, as entries name them. `layer` is the number of the decoder layer,
/// or a pattern for it. A path may occur several times.
std::vector<std::string> pathsOf(const std::string &layer, const LayerAdapters &adapters);

} // namespace shardc::model
