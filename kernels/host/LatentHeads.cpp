// Heads of latent attention. latent_heads makes q[B,S,N,C+P], k[B,S,N,C+P] and v[B,S,N,E] from
// products of compressed vectors:
//  a row of queries has N times C+P channels; the last P of each head are rotated
//  a row of keys and values has N times C+E channels; the first C of each head belong to its key,
//    the others are its value
//  the last P channels of every key are those of krot[B,S,P], rotated, the same for all heads
// latent_heads_bwd makes the gradients. The gradient of krot is the sum over heads, in fp32 and in
// their order, rotated backwards and rounded once. Rotary.h defines the rotation. split_columns
// splits the columns of rows into two tensors, join_columns is its inverse. Data are f32, bf16 or
// f16 each, rounded once. Limited by memory.
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Rotary.h"
#include "kernels/host/Rows.h"

#include <algorithm>

namespace shardc::kernels::host {
namespace {

/// The tensors of a call in either direction.
struct Parts {
  const Tensor &q, &k, &v;                  ///< heads
  const Tensor &queries, &keyValues, &krot; ///< rows
  const Tensor *positions;
  int64_t batch, length, heads, keyChannels, valueChannels, rotated;

  Parts(const Call &call, bool isBackward)
      : q(isBackward ? call.in[0] : call.out[0]), k(isBackward ? call.in[1] : call.out[1]),
        v(isBackward ? call.in[2] : call.out[2]), queries(isBackward ? call.out[0] : call.in[0]),
        keyValues(isBackward ? call.out[1] : call.in[1]),
        krot(isBackward ? call.out[2] : call.in[2]),
        positions(call.inCount > 3 ? &call.in[3] : nullptr), batch(q.shape[0]), length(q.shape[1]),
        heads(q.shape[2]), keyChannels(q.shape[3]), valueChannels(v.shape[3]),
        rotated(call.attrs.rotary_dim) {}

  int64_t rows() const { return batch * length; }
  int64_t plain() const { return keyChannels - rotated; } ///< channels of a key without rotation
};

struct Buffers {
  float *cosines, *sines, *from, *to, *sum;

  Buffers(const Call &call, Scratch &scratch) {
    bool isBackward = call.in[0].rank == 4;
    Parts parts(call, isBackward);
    int64_t angles = Angles::size(call.attrs, parts.q, parts.positions);
    cosines = scratch.take<float>(angles);
    sines = scratch.take<float>(angles);
    int64_t channels = std::max(parts.keyChannels, parts.valueChannels);
    from = scratch.take<float>(channels);
    to = scratch.take<float>(channels);
    sum = scratch.take<float>(parts.rotated);
  }
};

Angles anglesOf(const Call &call, const Parts &parts, bool isBackwards, const Buffers &buffers) {
  return {call.attrs, parts.q, parts.positions, isBackwards, buffers.cosines, buffers.sines};
}

const char *accepts(const Call &call) { return checkRotary(call.attrs, call.out[0].cols()); }
const char *acceptsBwd(const Call &call) { return checkRotary(call.attrs, call.in[0].cols()); }

/// Offsets of one head of a row in each tensor.
struct Head {
  int64_t q, k, v, query, key, value;

  Head(const Parts &p, int64_t row, int64_t head) {
    int64_t at = row * p.heads + head;
    q = k = query = at * p.keyChannels;
    v = at * p.valueChannels;
    key = at * (p.plain() + p.valueChannels);
    value = key + p.plain();
  }
};

/// Copies n channels; those from `first` on are rotated by the angles of the row.
void move(const Tensor &from, int64_t in, const Tensor &to, int64_t out, int64_t n, int64_t first,
          const Angles &angles, int64_t row, const Buffers &buffers) {
  const float *x = readF32(from, in, n, buffers.from);
  std::copy(x, x + first, buffers.to);
  angles.rotate(row, x + first, n - first, buffers.to + first);
  writeF32(to, out, n, buffers.to);
}

void copy(const Tensor &from, int64_t in, const Tensor &to, int64_t out, int64_t n,
          const Buffers &buffers) {
  writeF32(to, out, n, readF32(from, in, n, buffers.from));
}

void run(const Call &call, const Buffers &buffers) {
  Parts p(call, false);
  Angles angles = anglesOf(call, p, false, buffers);
  for (int64_t row = 0; row < p.rows(); ++row) {
    angles.rotate(row, readF32(p.krot, row * p.rotated, p.rotated, buffers.from), p.rotated,
                  buffers.sum);
    for (int64_t head = 0; head < p.heads; ++head) {
      Head at(p, row, head);
      move(p.queries, at.query, p.q, at.q, p.keyChannels, p.plain(), angles, row, buffers);
      copy(p.keyValues, at.key, p.k, at.k, p.plain(), buffers);
      writeF32(p.k, at.k + p.plain(), p.rotated, buffers.sum);
      copy(p.keyValues, at.value, p.v, at.v, p.valueChannels, buffers);
    }
  }
}

/// All heads have the same rotated channels of keys, so the gradients of heads are summed before
/// they are rotated back.
void runBwd(const Call &call, const Buffers &buffers) {
  Parts p(call, true);
  Angles angles = anglesOf(call, p, true, buffers);
  for (int64_t row = 0; row < p.rows(); ++row) {
    std::fill_n(buffers.sum, p.rotated, 0.0f);
    for (int64_t head = 0; head < p.heads; ++head) {
      Head at(p, row, head);
      move(p.q, at.q, p.queries, at.query, p.keyChannels, p.plain(), angles, row, buffers);
      copy(p.k, at.k, p.keyValues, at.key, p.plain(), buffers);
      copy(p.v, at.v, p.keyValues, at.value, p.valueChannels, buffers);
      const float *rotated = readF32(p.k, at.k + p.plain(), p.rotated, buffers.from);
      for (int64_t i = 0; i < p.rotated; ++i)
        buffers.sum[i] += rotated[i];
    }
    angles.rotate(row, buffers.sum, p.rotated, buffers.to);
    writeF32(p.krot, row * p.rotated, p.rotated, buffers.to);
  }
}

// ---- columns ----

void copyRow(const Tensor &from, int64_t in, const Tensor &to, int64_t out, int64_t n) {
  float buffer[kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    int64_t count = std::min(kBlock, n - begin);
    writeF32(to, out + begin, count, readF32(from, in + begin, count, buffer));
  }
}

void runSplit(const Call &call) {
  const Tensor &x = call.in[0], &a = call.out[0], &b = call.out[1];
  for (int64_t row = 0, rows = x.rows(); row < rows; ++row) {
    copyRow(x, row * x.cols(), a, row * a.cols(), a.cols());
    copyRow(x, row * x.cols() + a.cols(), b, row * b.cols(), b.cols());
  }
}

void runJoin(const Call &call) {
  const Tensor &a = call.in[0], &b = call.in[1], &x = call.out[0];
  for (int64_t row = 0, rows = x.rows(); row < rows; ++row) {
    copyRow(a, row * a.cols(), x, row * x.cols(), a.cols());
    copyRow(b, row * b.cols(), x, row * x.cols() + a.cols(), b.cols());
  }
}

} // namespace

SHARDC_HOST_KERNEL(LatentHeads, withBuffers<run>, accepts);
SHARDC_HOST_KERNEL(LatentHeadsBwd, withBuffers<runBwd>, acceptsBwd);
SHARDC_HOST_KERNEL(SplitColumns, runSplit);
SHARDC_HOST_KERNEL(JoinColumns, runJoin);

} // namespace shardc::kernels::host
