// Which ranks have the same elements of split parameters.
#pragma once

#include "Pieces.h"
#include "Positions.h"

namespace shardc::plan::oracle {

class Splits {
public:
  Splits(const Plan &plan, const Positions &positions);

  /// Whether any parameter is split.
  bool any() const { return any_; }
  /// Whether both ranks have the same elements of the parameter, apart from their parts of its
  /// block.
  bool areSame(const Param &param, int64_t a, int64_t b) const;
  /// Whether both ranks have the same elements of all parameters of the block.
  bool areSame(int32_t block, int64_t a, int64_t b) const;
  /// The block's parameters of which both ranks have the same elements.
  std::vector<const Param *> shared(int32_t block, int64_t a, int64_t b) const;
  /// A number for the rank's elements of split parameters, among `numel` elements of the block from
  /// `begin` on.
  Number of(int32_t block, int64_t begin, int64_t numel, int64_t rank) const;
  /// Whether the rank counts the parameter in norms, for all ranks with the same elements of it.
  bool counts(const Param &param, int64_t rank) const;

private:
  const Plan &plan_;
  const Positions &positions_;
  bool any_ = false;
};

/// Whether both have equal contributions in the elements that exist, among `numel` elements from
/// `begin` on.
bool areAlike(const Pieces &a, const Pieces &b, int64_t begin, int64_t numel);

} // namespace shardc::plan::oracle
