// Rows of packed queries, keys and values, for ops that move their heads.
#pragma once

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

/// Null, or the reason why q, k and v do not match the packed rows.
const char *checkParts(const Call &call, const Tensor &q, const Tensor &k, const Tensor &v,
                       const Tensor &qkv);

/// Moves heads between packed qkv and q, k and v. Heads of a row of qkv are numbered in its order.
class Heads {
public:
  Heads(const Call &call, const Tensor &q, const Tensor &k, const Tensor &v)
      : q_(q), k_(k), v_(v), channels_(q.cols()), groups_(k.shape[2]),
        queries_(q.shape[2] / k.shape[2]), all_(call.groupSize * queries_),
        first_(call.index * queries_), perRow_(groups_ * (all_ + 2)) {}

  /// Calls move(part, offset in the part, offset in qkv) for every head of this member, and
  /// skip(offset in qkv) for each query head of other members.
  template <typename Move, typename Skip> void forEach(Move move, Skip skip) const {
    for (int64_t row = 0, rows = q_.shape[0] * q_.shape[1]; row < rows; ++row)
      for (int64_t head = 0; head < perRow_; ++head) {
        int64_t group = head / (all_ + 2), place = head % (all_ + 2);
        int64_t whole = (row * perRow_ + head) * channels_;
        int64_t ofGroup = row * groups_ + group, query = place - first_;
        if (place >= all_)
          move(place == all_ ? k_ : v_, ofGroup * channels_, whole);
        else if (query >= 0 && query < queries_)
          move(q_, (ofGroup * queries_ + query) * channels_, whole);
        else
          skip(whole);
      }
  }

private:
  const Tensor &q_, &k_, &v_;
  int64_t channels_, groups_;
  int64_t queries_, all_, first_; ///< query heads per key head: own ones, all, and preceding ones
  int64_t perRow_;                ///< heads per row of qkv
};

} // namespace shardc::kernels::host
