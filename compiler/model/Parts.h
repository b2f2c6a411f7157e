// Parts of modules: matrix products, norms, dropout and residual connections.
#pragma once

#include "compiler/model/Adapters.h"
#include "compiler/model/Module.h"

namespace shardc::model {

/// y = x·wᵀ (+ bias). `kind`: of the weight. `stem`: the parameters' names without their last part.
struct Linear {
  ParamKind kind = ParamKind::FeedForward;
  std::string stem;
  int64_t out = 1, in = 1;
  bool hasBias = false;
  double initStd = 0;
  /// How the product is sharded over tensor-parallel ranks: by columns of its result, by the summed
  /// dimension, or not at all.
  enum Cut : uint8_t { Columns, Sum, All } cut = Columns;
  int64_t parts = 1; ///< equal parts of the columns; each part is sharded
  std::optional<Adapter> adapter = std::nullopt;
  std::string part = {}; ///< behind the weight's name, if it is a part of a joint weight upstream

  std::string weight() const { return stem + ".weight" + part; }
  /// Appends weight, bias and the adapter's parameters.
  void declare(Params &params) const;
  /// `what`: name of the result.
  plan::ValueId apply(Forward &to, plan::ValueId x, const char *what) const;

private:
  /// x·wᵀ alone.
  plan::ValueId product(Forward &to, plan::ValueId x, const std::string &what) const;
  /// The product with the layer's bias, if it has one.
  plan::ValueId biased(Forward &to, plan::ValueId y, const std::string &what) const;
  /// The second factor, with columns of their own for each part of the rows.
  plan::ValueId expanded(Forward &to, const std::string &what) const;
  /// Scales the columns of each part of the second factor.
  plan::ValueId scaledParts(Forward &to, plan::ValueId b, const std::string &what) const;
  /// The value that the adapter adds to the layer's result, and the adapter's second factor.
  struct Adapted {
    plan::ValueId result, factor;
  };
  /// Emits scale · b·(a·x) of an adapter.
  Adapted adapted(Forward &to, plan::ValueId x, const std::string &what) const;
  /// Multiplies x by the sum of weight and adapter, in which each row is scaled so that its norm is
  /// its magnitude (DoRA).
  plan::ValueId withMagnitude(Forward &to, plan::ValueId x, const std::string &what) const;
};

/// The names of an adapter's factors, of its bias, and of DoRA's magnitude. They follow the name of
/// the layer.
inline constexpr const char *kAdapterIn = ".adapter.linear_in.weight",
                            *kAdapterOut = ".adapter.linear_out.weight",
                            *kAdapterBias = ".adapter.linear_out.bias",
                            *kAdapterMagnitude = ".adapter.weight_magnitude";

/// Which norm, and the number that is added to the mean square or the variance.
struct NormSettings {
  bool centered = false;     ///< layernorm, with a bias; otherwise rmsnorm
  bool zeroCentered = false; ///< the weight is stored minus one
  double eps = 1e-5;
};

/// What the settings of all mixers have.
struct MixerSettings {
  int64_t hidden = 1;
  double initStd = 0, residualStd = 0;
  double hiddenDropout = 0;
  Adapters adapters = {};

  /// The product that ends the mixer: from so many columns to the hidden state.
  Linear output(const std::string &stem, int64_t columns, bool hasBias = false) const {
    return {
        ParamKind::Projection,       stem, hidden, columns, hasBias, residualStd, Linear::Sum, 1,
        adapters.find(stem, columns)};
  }
};

/// A norm over the last dimension.
class Norm : public Module {
public:
  /// The parameters are `stem`weight and `stem`bias, the result is `what`. `split`: how parameters
  /// are sharded over ranks.
  Norm(const NormSettings &settings, int64_t size, std::string stem, std::string what,
       std::optional<TensorSplit> split = std::nullopt, ParamKind kind = ParamKind::Norm)
      : settings_(settings), size_(size), stem_(std::move(stem)), what_(std::move(what)),
        split_(split), kind_(kind) {}

  void declare(Params &params) const override;
  plan::ValueId forward(Forward &to, plan::ValueId x) const override;

private:
  NormSettings settings_;
  int64_t size_;
  std::string stem_, what_;
  std::optional<TensorSplit> split_;
  ParamKind kind_;
};

/// Dropout at the end of a branch that ends with a norm.
class Dropout : public Module {
public:
  /// `what`: name of the result.
  Dropout(double p, std::string what) : p_(p), what_(std::move(what)) {}

  void declare(Params &) const override {}
  plan::ValueId forward(Forward &to, plan::ValueId x) const override;

private:
  double p_;
  std::string what_;
};

/// A residual connection: x plus `scale` times the result of the branch's modules.
class Residual : public Module {
public:
  Residual(Modules branch, std::string what, double scale)
      : branch_(std::move(branch)), what_(std::move(what)), scale_(scale) {}

  void declare(Params &params) const override;
  plan::ValueId forward(Forward &to, plan::ValueId x) const override;

private:
  Modules branch_;
  std::string what_;
  double scale_;
};

} // namespace shardc::model
