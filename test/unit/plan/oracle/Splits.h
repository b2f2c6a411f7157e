// Which ranks have the same elements of a parameter, where ranks have parts of it.
#pragma once

#include "Pieces.h"
#include "Positions.h"

namespace shardc::plan::oracle {

class Splits {
public:
  Splits(const Plan &plan, const Positions &positions);

  /// Whether any parameter is split.
  bool any() const { return any_; }
  /// True if both ranks have the same of the parameter, besides what their parts of its block are.
  bool areSame(const Param &param, int64_t a, int64_t b) const;
  /// The same of all parameters of the block.
  bool areSame(int32_t block, int64_t a, int64_t b) const;
  /// Parameters of the block of which both ranks have the same.
  std::vector<const Param *> shared(int32_t block, int64_t a, int64_t b) const;
  /// Stands for what the rank has of the split parameters in these elements of the block.
  Number of(int32_t block, int64_t begin, int64_t numel, int64_t rank) const;
  /// Whether the rank counts the parameter in norms, of all that have the same of it.
  bool counts(const Param &param, int64_t rank) const;

private:
  const Plan &plan_;
  const Positions &positions_;
  bool any_ = false;
};

/// The same contributions, as often, in those of `numel` elements from `begin` on that are there.
bool areAlike(const Pieces &a, const Pieces &b, int64_t begin, int64_t numel);

} // namespace shardc::plan::oracle
