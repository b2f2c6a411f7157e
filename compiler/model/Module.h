// A module of a model: its parameters and its forward ops, declared in one place. A model is a list
// of units (embedding, layers, head), each of which is a list of modules (Decoder.h). From these
// lists follow the parameter table, the number of parameters, lowering and, through the ops, FLOPs.
// Modules have plain settings and do not read recipes; compiler/lower/Family.cpp creates the lists
// for a recipe.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compiler/model/ParamKinds.h"
#include "runtime/plan/Plan.h"

namespace shardc::model {

class Forward;

/// The dimension of a parameter that is sharded over tensor-parallel ranks. It has a number of
/// equal parts, and each part is sharded. `pieces`: the maximum number of pieces; if there are more
/// ranks, several ranks have the same piece. 0: no limit.
struct TensorSplit {
  uint8_t dim = 0;
  int64_t parts = 1;
  int64_t pieces = 0;
};

/// One parameter of a module, in the type of the weights unless it is exact.
struct ParamSpec {
  ParamKind kind;
  std::string name; ///< Megatron-Core's name, without the prefix of the unit
  std::vector<int64_t> shape;
  plan::InitKind init = plan::InitKind::Zeros;
  double initStd = 0;               ///< as plan::Param::initStd
  std::optional<TensorSplit> split; ///< none: tensor-parallel ranks have all of it
  /// The first dimension counts tensors of the same shape, those of the experts of a layer. They
  /// have a block of their own.
  bool isStacked = false;
  bool isExact = false; ///< in fp32 whatever the type of the weights
};
using Params = std::vector<ParamSpec>;

class Module {
public:
  virtual ~Module() = default;
  /// Appends the parameters, in the order of their block.
  virtual void declare(Params &params) const = 0;
  /// Emits the forward ops of one microbatch. `x`: the result of the preceding module, or kNone for
  /// the first one. Returns the module's result.
  virtual plan::ValueId forward(Forward &to, plan::ValueId x) const = 0;
};

/// Modules that are applied one after the other.
using Modules = std::vector<std::unique_ptr<const Module>>;

/// Sums and products of sizes that saturate, because parameters are counted for every recipe, even
/// if its sizes are far too large. Sizes must not be negative.
int64_t plus(int64_t a, int64_t b);
int64_t times(int64_t a, int64_t b);

} // namespace shardc::model
