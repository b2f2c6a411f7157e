// split_qkv splits rows of [G, N/G + 2, D] (Megatron's layout: a group's queries, its key, its
// value) into q[B,S,N,D] and k, v[B,S,G,D]; merge_qkv is its inverse. In a group of n members, rows
// are [G, n·N/G + 2, D]: member i has the i-th N/G queries of each key, and merges them with zeros
// in place of the others. rope rotates the leading rotary_dim channels of x[B,S,heads,D] as
// Rotary.h defines, and copies the others. If the last operand is positions i32[B,S], they give the
// positions of rows. `inverse` rotates backwards, which is the gradient. Operands and results are
// f32, bf16 or f16 each, rounded once. Limited by memory, and by the sines of a table of
// S·rotary_dim/2 angles per call.
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Rotary.h"
#include "kernels/host/Rows.h"

#include <algorithm>

namespace shardc::kernels::host {
namespace {

/// Null, or the reason why heads and channels of q and k are not those of the attributes.
const char *checkQkv(const Call &call, const Tensor &q, const Tensor &k) {
  const Attrs &attrs = call.attrs;
  SHARDC_REQUIRE((attrs.num_heads == 0 || attrs.num_heads == q.shape[2]) &&
                     (attrs.num_groups == 0 || attrs.num_groups == k.shape[2]) &&
                     (attrs.head_dim == 0 || attrs.head_dim == q.shape[3]),
                 "heads or channels are not those of the attributes");
  return nullptr;
}

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

/// Rows of one head. Each op has one tensor with 4 dimensions: x, dq or the result q.
struct Buffers {
  float *from, *to;

  Buffers(const Call &call, Scratch &scratch) {
    const Tensor &heads = call.in[0].rank == 4 ? call.in[0] : call.out[0];
    from = scratch.take<float>(heads.cols());
    to = scratch.take<float>(heads.cols());
  }
};

/// The positions of rope; null if the call has none.
const Tensor *positionsOf(const Call &call) { return call.inCount > 1 ? &call.in[1] : nullptr; }

struct RopeBuffers : Buffers {
  float *cosines, *sines;

  RopeBuffers(const Call &call, Scratch &scratch) : Buffers(call, scratch) {
    int64_t angles = Angles::size(call.attrs, call.in[0], positionsOf(call));
    cosines = scratch.take<float>(angles);
    sines = scratch.take<float>(angles);
  }
};

const char *acceptsRope(const Call &call) { return checkRotary(call.attrs, call.in[0].cols()); }

void runRope(const Call &call, const RopeBuffers &buffers) {
  const Tensor &x = call.in[0];
  int64_t heads = x.shape[2], n = x.cols();
  Angles angles(call.attrs, x, positionsOf(call), call.attrs.inverse, buffers.cosines,
                buffers.sines);
  for (int64_t row = 0, rows = x.rows(); row < rows; ++row) {
    angles.rotate(row / heads, readF32(x, row * n, n, buffers.from), n, buffers.to);
    writeF32(call.out[0], row * n, n, buffers.to);
  }
}

const char *acceptsSplit(const Call &call) { return checkQkv(call, call.out[0], call.out[1]); }

const char *acceptsMerge(const Call &call) { return checkQkv(call, call.in[0], call.in[1]); }

void runSplit(const Call &call, const Buffers &buffers) {
  const Tensor &qkv = call.in[0], &q = call.out[0];
  auto move = [&](const Tensor &part, int64_t offset, int64_t whole) {
    writeF32(part, offset, q.cols(), readF32(qkv, whole, q.cols(), buffers.from));
  };
  Heads(call, q, call.out[1], call.out[2]).forEach(move, [](int64_t) {});
}

void runMerge(const Call &call, const Buffers &buffers) {
  const Tensor &qkv = call.out[0], &q = call.in[0];
  auto move = [&](const Tensor &part, int64_t offset, int64_t whole) {
    writeF32(qkv, whole, q.cols(), readF32(part, offset, q.cols(), buffers.from));
  };
  Heads(call, q, call.in[1], call.in[2]).forEach(move, [&](int64_t whole) {
    std::fill_n(buffers.to, q.cols(), 0.0f);
    writeF32(qkv, whole, q.cols(), buffers.to);
  });
}

} // namespace

SHARDC_HOST_KERNEL(Rope, withBuffers<runRope>, acceptsRope);
SHARDC_HOST_KERNEL(SplitQkv, withBuffers<runSplit>, acceptsSplit);
SHARDC_HOST_KERNEL(MergeQkv, withBuffers<runMerge>, acceptsMerge);

} // namespace shardc::kernels::host
