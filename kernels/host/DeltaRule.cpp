// delta_rule: the state S[K,V] of each head of v, in fp32, begins with 0 and changes at each
// position: S = d·S + k⊗u, u = sigmoid(b)·(v - k·d·S), o = q·S, where d = exp(g), g =
// -exp(alog)·softplus(a + bias). Queries and keys are divided by sqrt(sum of squares + eps), and
// queries also by sqrt(K). With reset_mask, a state begins with 0 in each document. delta_rule_bwd
// computes the states again, from those before every kEach-th position. dalog and dbias are sums in
// fp64, which may accumulate. Data are f32, bf16 or f16 each, rounded once. Limited by memory.
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Rows.h"
#include "kernels/host/Scratch.h"

#include <algorithm>
#include <cmath>

namespace shardc::kernels::host {
namespace {

constexpr int64_t kEach = 16; ///< positions between kept states

/// y += x·factor.
SHARDC_CLONES void addScaled(const float *x, float factor, int64_t n, float *y) {
  for (int64_t i = 0; i < n; ++i)
    y[i] += x[i] * factor;
}

/// S = d·S, and read = k·S. S has a row for each channel of k.
SHARDC_CLONES void decay(float d, const float *k, int64_t keys, int64_t values, float *state,
                         float *read) {
  std::fill_n(read, values, 0.0f);
  for (int64_t i = 0; i < keys; ++i)
    for (int64_t e = 0; e < values; ++e) {
      state[i * values + e] *= d;
      read[e] += k[i] * state[i * values + e];
    }
}

/// What a head has for each position of a sequence. Operands q to docs are at `kFirst`.
template <int kFirst> struct Head {
  const Call &call;
  int64_t length, groups, heads, keys, values;
  int64_t sample = 0, head = 0;
  float *q, *k, *v, *qNorms, *kNorms, *decays, *logs, *slopes, *betas, *state, *read, *row;

  Head(const Call &of, Scratch &scratch)
      : call(of), length(in(0).shape[1]), groups(in(0).shape[2]), heads(in(2).shape[2]),
        keys(in(0).shape[3]), values(in(2).shape[3]) {
    for (float **buffer : {&q, &k})
      *buffer = scratch.take<float>(length * keys);
    v = scratch.take<float>(length * values);
    for (float **buffer : {&qNorms, &kNorms, &decays, &logs, &slopes, &betas})
      *buffer = scratch.take<float>(length);
    state = scratch.take<float>(keys * values), read = scratch.take<float>(values);
    row = scratch.take<float>(std::max(keys, values));
  }

  const Tensor &in(int index) const { return call.in[kFirst + index]; }
  float number(int index, int64_t at) const { return *readF32(in(index), at, 1, row); }
  int64_t token(int64_t s) const { return sample * length + s; }
  int64_t group() const { return head / (heads / groups); }
  bool begins(int64_t s) const {
    return s == 0 ||
           (call.attrs.reset_mask && static_cast<const int32_t *>(in(7).data)[token(s)] == s);
  }

  /// Reads a query or key, divided by its norm and by `divisor`. Returns the factor.
  float readUnit(int index, int64_t s, double divisor, float *to) const {
    const int64_t at = (token(s) * groups + group()) * keys;
    const float *x = readF32(in(index), at, keys, row);
    const double sum = dot(x, x, keys) + call.attrs.eps;
    const auto factor = static_cast<float>(1 / std::sqrt(sum));
    for (int64_t i = 0; i < keys; ++i)
      to[i] = x[i] * factor / static_cast<float>(divisor);
    return factor;
  }

  void load(int64_t ofSample, int64_t ofHead) {
    sample = ofSample, head = ofHead;
    const double root = std::sqrt(static_cast<double>(keys));
    const float rate = std::exp(number(5, head)), bias = number(6, head);
    for (int64_t s = 0; s < length; ++s) {
      qNorms[s] = readUnit(0, s, root, q + s * keys);
      kNorms[s] = readUnit(1, s, 1, k + s * keys);
      std::copy_n(readF32(in(2), (token(s) * heads + head) * values, values, row), values,
                  v + s * values);
      const float x = number(3, token(s) * heads + head) + bias;
      const float softplus = x > 20.0f ? x : std::log1p(std::exp(x));
      logs[s] = -rate * softplus;
      slopes[s] = -rate / (1.0f + std::exp(-x));
      decays[s] = begins(s) ? 0.0f : std::exp(logs[s]);
      betas[s] = 1.0f / (1.0f + std::exp(-number(4, token(s) * heads + head)));
    }
  }

  /// Changes the state by a position. `read` then is v - k·d·S, of which u is beta times.
  void step(int64_t s) const {
    const float *key = k + s * keys;
    decay(decays[s], key, keys, values, state, read);
    for (int64_t e = 0; e < values; ++e)
      read[e] = v[s * values + e] - read[e];
    for (int64_t i = 0; i < keys; ++i)
      addScaled(read, betas[s] * key[i], values, state + i * values);
  }
};

void runRule(const Call &call, Head<0> &h) {
  for (int64_t sample = 0; sample < call.in[0].shape[0]; ++sample)
    for (int64_t head = 0; head < h.heads; ++head) {
      h.load(sample, head);
      std::fill_n(h.state, h.keys * h.values, 0.0f);
      for (int64_t s = 0; s < h.length; ++s) {
        h.step(s);
        std::fill_n(h.row, h.values, 0.0f);
        for (int64_t i = 0; i < h.keys; ++i)
          addScaled(h.state + i * h.values, h.q[s * h.keys + i], h.values, h.row);
        writeF32(call.out[0], (h.token(s) * h.heads + head) * h.values, h.values, h.row);
      }
    }
}

struct BwdHead : Head<1> {
  float *kept, *states, *dState, *dq, *dk, *dOut, *dv, *du;
  double *dLog, *dBias;

  BwdHead(const Call &of, Scratch &scratch) : Head(of, scratch) {
    const int64_t size = keys * values;
    kept = scratch.take<float>((length / kEach + 1) * size);
    states = scratch.take<float>((kEach + 1) * size), dState = scratch.take<float>(size);
    for (float **buffer : {&dq, &dk})
      *buffer = scratch.take<float>(length * keys);
    for (float **buffer : {&dOut, &dv, &du})
      *buffer = scratch.take<float>(values);
    dLog = scratch.take<double>(heads), dBias = scratch.take<double>(heads);
  }

  void keepStates() const {
    const int64_t size = keys * values;
    std::fill_n(state, size, 0.0f);
    for (int64_t s = 0; s < length; ++s) {
      if (s % kEach == 0)
        std::copy_n(state, size, kept + s / kEach * size);
      step(s);
    }
  }

  /// The gradients of position s, from the states before and behind it. `dState` is the gradient of
  /// the latter, and then that of the former.
  void differentiate(int64_t s, const float *before, const float *behind) {
    const float *key = k + s * keys, *query = q + s * keys;
    const int64_t at = (token(s) * heads + head) * values;
    std::copy_n(readF32(call.in[0], at, values, dOut), values, dOut);
    std::fill_n(du, values, 0.0f), std::fill_n(read, values, 0.0f);
    for (int64_t i = 0; i < keys; ++i) {
      float *dRow = dState + i * values;
      dq[s * keys + i] += static_cast<float>(dot(behind + i * values, dOut, values));
      addScaled(dOut, query[i], values, dRow);
      addScaled(dRow, key[i], values, du);
      addScaled(before + i * values, decays[s] * key[i], values, read);
    }
    double dBeta = 0, dDecay = 0;
    for (int64_t e = 0; e < values; ++e) {
      read[e] = v[s * values + e] - read[e];
      dBeta += double{du[e]} * read[e];
      dv[e] = betas[s] * du[e];
    }
    writeF32(call.out[2], at, values, dv);
    for (int64_t i = 0; i < keys; ++i) {
      float *dRow = dState + i * values;
      const float *old = before + i * values;
      dk[s * keys + i] +=
          static_cast<float>(betas[s] * dot(dRow, read, values) - decays[s] * dot(old, dv, values));
      addScaled(dv, -key[i], values, dRow);
      dDecay += dot(old, dRow, values);
      for (int64_t e = 0; e < values; ++e)
        dRow[e] *= decays[s];
    }
    const double dG = dDecay * decays[s];
    const auto dA = static_cast<float>(dG * slopes[s]);
    const auto dB = static_cast<float>(dBeta * betas[s] * (1 - betas[s]));
    writeF32(call.out[3], token(s) * heads + head, 1, &dA);
    writeF32(call.out[4], token(s) * heads + head, 1, &dB);
    dLog[head] += dG * logs[s], dBias[head] += dG * slopes[s];
  }

  void run(int64_t ofSample, int64_t ofHead) {
    const int64_t size = keys * values;
    load(ofSample, ofHead);
    keepStates();
    std::fill_n(dState, size, 0.0f);
    for (int64_t begin = (length - 1) / kEach * kEach; begin >= 0; begin -= kEach) {
      const int64_t end = std::min(begin + kEach, length);
      std::copy_n(kept + begin / kEach * size, size, state);
      std::copy_n(state, size, states);
      for (int64_t s = begin; s < end; ++s) {
        step(s);
        std::copy_n(state, size, states + (s - begin + 1) * size);
      }
      for (int64_t s = end; s-- > begin;)
        differentiate(s, states + (s - begin) * size, states + (s - begin + 1) * size);
    }
  }

  /// Writes the gradient of a query or key from that of its unit x, whose factor is `factor`.
  void writeUnit(int result, int64_t s, const float *x, double divisor, float factor,
                 const float *dx) const {
    const double product = dot(x, dx, keys) * divisor;
    for (int64_t i = 0; i < keys; ++i)
      row[i] = static_cast<float>((dx[i] / divisor - x[i] * product) * factor);
    writeF32(call.out[result], (token(s) * groups + group()) * keys, keys, row);
  }
};

void runRuleBwd(const Call &call, BwdHead &h) {
  const int64_t each = h.heads / h.groups;
  const double root = std::sqrt(static_cast<double>(h.keys));
  std::fill_n(h.dLog, h.heads, 0.0), std::fill_n(h.dBias, h.heads, 0.0);
  for (int64_t sample = 0; sample < call.in[1].shape[0]; ++sample)
    for (int64_t group = 0; group < h.groups; ++group) {
      std::fill_n(h.dq, h.length * h.keys, 0.0f), std::fill_n(h.dk, h.length * h.keys, 0.0f);
      for (int64_t i = 0; i < each; ++i)
        h.run(sample, group * each + i);
      for (int64_t s = 0; s < h.length; ++s) {
        const int64_t at = s * h.keys;
        h.writeUnit(0, s, h.q + at, root, h.qNorms[s], h.dq + at);
        h.writeUnit(1, s, h.k + at, 1, h.kNorms[s], h.dk + at);
      }
    }
  for (int64_t head = 0; head < h.heads; ++head) {
    const auto dLog = static_cast<float>(h.dLog[head]), dBias = static_cast<float>(h.dBias[head]);
    writeF32(call.out[5], head, 1, &dLog);
    writeF32(call.out[6], head, 1, &dBias);
  }
}

} // namespace

const Kernel kDeltaRule = kernelOf<OpKind::DeltaRule>(withBuffers<runRule>);
const Kernel kDeltaRuleBwd =
    kernelOf<OpKind::DeltaRuleBwd, nullptr, 1 << 5 | 1 << 6>(withBuffers<runRuleBwd>);

} // namespace shardc::kernels::host
