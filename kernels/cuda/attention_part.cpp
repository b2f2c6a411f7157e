// attention_part and its gradient. If ranks have mirrored slices of each sequence, cuDNN supports
// the masks, piece by piece:
// - own keys: causal, row by row
// - keys of an earlier rank: all queries see the first half of the keys
// - keys of a later rank: the second half of the queries sees all keys
// - keys of all ranks, in the order of positions: each half of the queries is one chunk of the
//   sequence and sees the keys up to its own end, with a causal mask aligned at that end
// Without a causal mask, all queries see all keys. If cuDNN does not support a call, the kernels of
// attention_tiles.cu or attention_mma.cu compute attention over the keys of all ranks, and
// plain_attention.cu computes all other cases from positions.
#include <algorithm>
#include <vector>

#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/CudnnAttention.h"
#include "kernels/cuda/PlainAttention.h"
#include "kernels/cuda/Queue.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/SliceRows.h"
#include "kernels/host/Slices.h"

namespace shardc::kernels::cuda {
namespace {

using host::Slices;

/// Divides a call into pieces: ranges of queries with the keys that they see. Queries in no piece
/// see no key.
class Pieces {
public:
  Pieces(const Call &call, const Tensor &q, const Tensor &k)
      : slices_(call, q), queries_(q.shape[1]), keys_(k.shape[1]),
        isMasked_(call.attrs.causal && slices_.count > 0), hasAll_(isMasked_ && keys_ > queries_) {}

  std::vector<AttentionPiece> here() const {
    if (!isMasked_)
      return {all(false)};
    if (hasAll_) // the piece with more keys first
      return {chunk(2 * slices_.count - 1 - slices_.index, half()), chunk(slices_.index, 0)};
    int64_t owner = slices_.owner();
    return {owner == slices_.index ? all(true) : owner < slices_.index ? earlier() : later()};
  }

  /// The largest pieces of any rank. All ranks size their scratch by them.
  std::vector<AttentionPiece> anywhere() const {
    if (hasAll_)
      return {chunk(2 * slices_.count - 1, half())};
    if (isMasked_ && slices_.by > 0)
      return {earlier(), later()};
    return {all(isMasked_)};
  }

  int64_t countMax() const { return hasAll_ ? 2 : 1; }
  bool isWhole(const AttentionPiece &piece) const { return piece.queries == queries_; }

private:
  int64_t half() const { return queries_ / 2; }
  AttentionPiece all(bool causal) const { return {0, queries_, keys_, causal}; }
  AttentionPiece earlier() const { return {0, queries_, half(), false}; }
  AttentionPiece later() const { return {half(), half(), keys_, false}; }
  /// The half of the queries that begins at row `first`, which is chunk `index` of the sequence.
  AttentionPiece chunk(int64_t index, int64_t first) const {
    return {first, half(), (index + 1) * half(), true};
  }

  Slices slices_;
  int64_t queries_, keys_;
  bool isMasked_, hasAll_;
};

/// Whether cuDNN supports all pieces of a call, and the largest workspace of a piece.
struct Support {
  bool byCudnn = true;
  int64_t workspace = 0;

  Support(const Call &call, const Pieces &pieces, bool isBackward) {
    auto ask = [&](const AttentionPiece &piece) {
      byCudnn = byCudnn && hasCudnnAttention(call, {isBackward, false, true, &piece});
      if (byCudnn)
        workspace =
            std::max(workspace, cudnnAttentionWorkspace(call, {isBackward, false, true, &piece}));
    };
    std::ranges::for_each(pieces.anywhere(), ask);
    std::ranges::for_each(pieces.here(), ask);
  }
};

// ---- forward ----

struct Buffers {
  Pieces pieces;
  Support support;
  std::byte *cudnn = nullptr;
  float *statistics = nullptr;
  KernelPath path = KernelPath::AttentionCudnn;
  float *few = nullptr; ///< scratch of the hand-written kernels for few queries

  Buffers(const Call &call, Scratch &scratch)
      : pieces(call, call.in[0], call.in[1]), support(call, pieces, false) {
    if (!support.byCudnn) {
      int64_t floats = plainAttentionScratch(call);
      path = attentionPathOf(call, {false, false, true}, false, floats > 0);
      if (floats > 0)
        few = scratch.take<float>(floats);
      return;
    }
    cudnn = scratch.take<std::byte>(support.workspace);
    statistics = scratch.take<float>(call.out[1].numel());
  }
};

void run(const Call &call, const Buffers &buffers) {
  if (!buffers.support.byCudnn)
    return launchAttention(call, {false, false, true}, buffers.path, buffers.few);
  const Tensor &o = call.out[0], &lse = call.out[1];
  Queue &queue = queueOf(call);
  std::vector<AttentionPiece> pieces = buffers.pieces.here();
  for (AttentionPiece &piece : pieces) {
    bool isWhole = buffers.pieces.isWhole(piece);
    piece.statistics = isWhole ? static_cast<float *>(lse.data) : buffers.statistics;
    runCudnnAttention(call, {false, false, true, &piece}, buffers.cudnn);
    if (isWhole)
      continue;
    bool isOnly = pieces.size() == 1;
    if (isOnly)
      launchClearRows(o, 0, piece.firstQuery, queue);
    launchPutStatistics(piece.statistics, piece.firstQuery, piece.queries, lse, isOnly, queue);
  }
}

const char *accepts(const Call &call) {
  const char *reason = host::kAttentionPart.accepts(call);
  return reason ? reason : attentionRefusal(call, {false, false, true});
}

// ---- backward ----

enum Operand { Do, Q, K, V, O, Lse };
enum Result { Dq, Dk, Dv };

struct BwdBuffers {
  Pieces pieces;
  Support support;
  std::byte *cudnn = nullptr;
  float *statistics = nullptr;
  std::byte *dk = nullptr, *dv = nullptr; ///< gradients by the second piece
  KernelPath path = KernelPath::AttentionCudnn;
  float *delta = nullptr; ///< scratch of the hand-written kernels

  BwdBuffers(const Call &call, Scratch &scratch)
      : pieces(call, call.in[Q], call.in[K]), support(call, pieces, true) {
    if (!support.byCudnn) {
      path = attentionPathOf(call, {true, false, true}, false);
      delta = scratch.take<float>(call.in[Lse].numel());
      return;
    }
    cudnn = scratch.take<std::byte>(support.workspace);
    statistics = scratch.take<float>(call.in[Lse].numel());
    if (pieces.countMax() == 1)
      return;
    dk = scratch.take<std::byte>(call.in[K].numel() * dtypeBytes(call.out[Dk].dtype));
    dv = scratch.take<std::byte>(call.in[V].numel() * dtypeBytes(call.out[Dv].dtype));
  }
};

/// Computes a piece's rows of dq, and the contribution of the piece alone to dk and dv.
void differentiate(const Call &call, const BwdBuffers &buffers, AttentionPiece piece) {
  Queue &queue = queueOf(call);
  piece.statistics = static_cast<float *>(call.in[Lse].data);
  if (!buffers.pieces.isWhole(piece)) {
    launchTakeStatistics(call.in[Lse], piece.firstQuery, piece.queries, buffers.statistics, queue);
    piece.statistics = buffers.statistics;
  }
  runCudnnAttention(call, {true, false, true, &piece}, buffers.cudnn);
  int64_t unseen = call.in[K].shape[1] - piece.keys;
  for (Result gradient : {Dk, Dv})
    if (unseen > 0)
      launchClearRows(call.out[gradient], piece.keys, unseen, queue);
}

/// to += from.
void addTo(const Call &call, const Tensor &from, Tensor to) {
  Call cast = call;
  cast.attrs = {}; // `scale` is the attention's; add must not apply it
  to.accumulate = true;
  cast.inCount = cast.outCount = 1;
  cast.in[0] = from, cast.out[0] = to;
  kCast.run(cast);
}

/// cuDNN computes one piece at a time: the gradients of keys and values of a second piece are added
/// to those of the first. Queries that see no keys get 0.
void runBwd(const Call &call, const BwdBuffers &buffers) {
  if (!buffers.support.byCudnn)
    return launchAttentionBwd(call, {true, false, true}, buffers.path, buffers.delta);
  std::vector<AttentionPiece> pieces = buffers.pieces.here();
  differentiate(call, buffers, pieces.front());
  if (pieces.size() > 1) {
    Call second = call;
    second.out[Dk].data = buffers.dk, second.out[Dv].data = buffers.dv;
    differentiate(second, buffers, pieces.back());
    for (Result gradient : {Dk, Dv})
      addTo(call, second.out[gradient], call.out[gradient]);
  } else if (!buffers.pieces.isWhole(pieces.front())) {
    launchClearRows(call.out[Dq], 0, pieces.front().firstQuery, queueOf(call));
  }
}

const char *acceptsBwd(const Call &call) {
  const char *reason = host::kAttentionPartBwd.accepts(call);
  return reason ? reason : attentionRefusal(call, {true, false, true});
}

} // namespace

const Kernel kAttentionPart = kernelOf("attention_part_cuda", accepts, withBuffers<run>);
const Kernel kAttentionPartBwd =
    kernelOf("attention_part_bwd_cuda", acceptsBwd, withBuffers<runBwd>);

} // namespace shardc::kernels::cuda
