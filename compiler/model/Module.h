// A module of a model: its parameters and its forward ops, declared in one place. A model is a list
// of units (embedding, layers, head), each a list of modules (Decoder.h). Parameter table, number
// of parameters, lowering and, through the ops, FLOPs follow from these lists. Modules have plain
// settings and know no recipes; compiler/lower/Family.cpp has the lists that recipes ask for.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compiler/model/ParamKinds.h"
#include "runtime/plan/Plan.h"

namespace shardc::model {

class Forward;

/// The dimension of a parameter that tensor-parallel ranks divide, and its number of equal parts.
/// `pieces` is the largest number of pieces; if there are more ranks, several have the same piece.
/// 0: no limit.
struct TensorSplit {
  uint8_t dim = 0;
  int64_t parts = 1;
  int64_t pieces = 0;
};

/// One parameter. All of a model's parameters have the type of the weights.
struct ParamSpec {
  ParamKind kind;
  std::string name; ///< Megatron-Core's, without the prefix of the unit
  std::vector<int64_t> shape;
  plan::InitKind init = plan::InitKind::Zeros;
  double initStd = 0;               ///< for InitKind::Normal; the value, for InitKind::Constant
  std::optional<TensorSplit> split; ///< none: tensor-parallel ranks have all of it
  /// The first dimension counts tensors of the same shape, those of the experts of a layer. They
  /// have a block of their own.
  bool isStacked = false;
};
using Params = std::vector<ParamSpec>;

class Module {
public:
  virtual ~Module() = default;
  /// Appends the parameters in the order in which their block holds them.
  virtual void declare(Params &params) const = 0;
  /// Writes the forward ops of one microbatch. `x` is the result of the preceding module, or kNone
  /// for the first one.
  virtual plan::ValueId forward(Forward &to, plan::ValueId x) const = 0;
};

/// Modules that follow each other.
using Modules = std::vector<std::unique_ptr<const Module>>;

/// Sums and products of sizes saturate: the number of parameters is asked of every recipe, also of
/// those whose sizes nothing could hold. No size is negative.
int64_t plus(int64_t a, int64_t b);
int64_t times(int64_t a, int64_t b);

} // namespace shardc::model
