// delta_rule and state_scan: the state S[K,V] of each head, in fp32, begins with 0 and changes at
// each position: S = d·S + k⊗u, o = q·S. With reset_mask, a state begins with 0 in each document.
// delta_rule: d = exp(g), g = -exp(alog)·softplus(a + bias), u = sigmoid(b)·(v - k·d·S). Queries
// and keys are divided by sqrt(sum of squares + eps), and queries also by sqrt(K). state_scan: with
// t = softplus(dt + bias), d = exp(-exp(alog)·t), u = t·x, and d·x is added to o. Gradients compute
// the states again, from those before every kEach-th position. Those of numbers of heads are sums
// in fp64, which may accumulate. Data are f32, bf16 or f16 each, rounded once. Limited by memory.
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Rows.h"
#include "kernels/host/Scratch.h"

#include <algorithm>
#include <cmath>

namespace shardc::kernels::host {
namespace {

constexpr int64_t kEach = 16; ///< positions between kept states

float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }
float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

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

/// What a head has for each position of a sequence. Operands q, k and v begin at `kFirst`; the
/// eighth one is documents.
template <int kFirst> struct Head {
  const Call &call;
  int64_t length, groups, heads, keys, values;
  int64_t sample = 0, head = 0;
  float *q, *k, *v, *decays, *state, *read, *row;

  Head(const Call &of, Scratch &scratch)
      : call(of), length(in(0).shape[1]), groups(in(0).shape[2]), heads(in(2).shape[2]),
        keys(in(0).shape[3]), values(in(2).shape[3]) {
    for (float **buffer : {&q, &k})
      *buffer = scratch.take<float>(length * keys);
    v = scratch.take<float>(length * values), decays = scratch.take<float>(length);
    state = scratch.take<float>(size()), read = scratch.take<float>(values);
    row = scratch.take<float>(std::max(keys, values));
  }

  const Tensor &in(int index) const { return call.in[kFirst + index]; }
  float number(int index, int64_t at) const { return *readF32(in(index), at, 1, row); }
  int64_t size() const { return keys * values; }
  int64_t token(int64_t s) const { return sample * length + s; }
  int64_t at(int64_t s) const { return token(s) * heads + head; } ///< index of a head's number
  int64_t group() const { return head / (heads / groups); }
  bool begins(int64_t s) const {
    return s == 0 ||
           (call.attrs.reset_mask && static_cast<const int32_t *>(in(7).data)[token(s)] == s);
  }
  void readRow(int index, int64_t begin, int64_t n, float *to) const {
    std::copy_n(readF32(in(index), begin, n, row), n, to);
  }
  void readValues(int64_t s) const { readRow(2, at(s) * values, values, v + s * values); }
};

template <int kFirst> struct Rule : Head<kFirst> {
  using Of = Head<kFirst>;
  using Of::at, Of::keys, Of::values, Of::k, Of::v, Of::row, Of::read, Of::state, Of::decays;
  float *qNorms, *kNorms, *logs, *slopes, *betas;

  Rule(const Call &of, Scratch &scratch) : Of(of, scratch) {
    for (float **buffer : {&qNorms, &kNorms, &logs, &slopes, &betas})
      *buffer = scratch.take<float>(this->length);
  }

  /// Reads a query or key, divided by its norm and by `divisor`. Returns the factor.
  float readUnit(int index, int64_t s, double divisor, float *to) const {
    const int64_t begin = (this->token(s) * this->groups + this->group()) * keys;
    const float *x = readF32(this->in(index), begin, keys, row);
    const double sum = dot(x, x, keys) + this->call.attrs.eps;
    const auto factor = static_cast<float>(1 / std::sqrt(sum));
    for (int64_t i = 0; i < keys; ++i)
      to[i] = x[i] * factor / static_cast<float>(divisor);
    return factor;
  }

  void load(int64_t ofSample, int64_t ofHead) {
    this->sample = ofSample, this->head = ofHead;
    const double root = std::sqrt(static_cast<double>(keys));
    const float rate = std::exp(this->number(5, ofHead)), bias = this->number(6, ofHead);
    for (int64_t s = 0; s < this->length; ++s) {
      qNorms[s] = readUnit(0, s, root, this->q + s * keys);
      kNorms[s] = readUnit(1, s, 1, k + s * keys);
      this->readValues(s);
      const float x = this->number(3, at(s)) + bias;
      logs[s] = -rate * softplus(x), slopes[s] = -rate * sigmoid(x);
      decays[s] = this->begins(s) ? 0.0f : std::exp(logs[s]);
      betas[s] = sigmoid(this->number(4, at(s)));
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
  void addDirect(int64_t) const {}
};

template <int kFirst> struct StateSpace : Head<kFirst> {
  using Of = Head<kFirst>;
  using Of::at, Of::keys, Of::values, Of::k, Of::v, Of::row, Of::state, Of::decays;
  float *steps, *slopes; ///< t, and its slope
  float rate = 0, direct = 0;

  StateSpace(const Call &of, Scratch &scratch) : Of(of, scratch) {
    for (float **buffer : {&steps, &slopes})
      *buffer = scratch.take<float>(this->length);
  }

  void load(int64_t ofSample, int64_t ofHead) {
    this->sample = ofSample, this->head = ofHead;
    rate = std::exp(this->number(4, ofHead)), direct = this->number(6, ofHead);
    const float bias = this->number(5, ofHead);
    for (int64_t s = 0; s < this->length; ++s) {
      const int64_t begin = (this->token(s) * this->groups + this->group()) * keys;
      this->readRow(0, begin, keys, this->q + s * keys);
      this->readRow(1, begin, keys, k + s * keys);
      this->readValues(s);
      const float x = this->number(3, at(s)) + bias;
      steps[s] = softplus(x), slopes[s] = sigmoid(x);
      decays[s] = this->begins(s) ? 0.0f : std::exp(-rate * steps[s]);
    }
  }
  void step(int64_t s) const {
    for (int64_t i = 0; i < keys; ++i) {
      float *of = state + i * values;
      for (int64_t e = 0; e < values; ++e)
        of[e] *= decays[s];
      addScaled(v + s * values, steps[s] * k[s * keys + i], values, of);
    }
  }
  void addDirect(int64_t s) const { addScaled(v + s * values, direct, values, row); }
};

template <typename Kind> void runScan(const Call &call, Kind &h) {
  for (int64_t sample = 0; sample < call.in[0].shape[0]; ++sample)
    for (int64_t head = 0; head < h.heads; ++head) {
      h.load(sample, head);
      std::fill_n(h.state, h.size(), 0.0f);
      for (int64_t s = 0; s < h.length; ++s) {
        h.step(s);
        std::fill_n(h.row, h.values, 0.0f);
        for (int64_t i = 0; i < h.keys; ++i)
          addScaled(h.state + i * h.values, h.q[s * h.keys + i], h.values, h.row);
        h.addDirect(s);
        writeF32(call.out[0], h.at(s) * h.values, h.values, h.row);
      }
    }
}

/// Gradients of a head: of queries and keys, which its group adds, and of `kSums` numbers of it.
template <typename Kind, int kSums> struct BwdHead : Kind {
  float *kept, *states, *dState, *dq, *dk, *dOut, *dv, *du;
  double *sums[kSums];

  BwdHead(const Call &of, Scratch &scratch) : Kind(of, scratch) {
    kept = scratch.take<float>((this->length / kEach + 1) * this->size());
    states = scratch.take<float>((kEach + 1) * this->size());
    dState = scratch.take<float>(this->size());
    for (float **buffer : {&dq, &dk})
      *buffer = scratch.take<float>(this->length * this->keys);
    for (float **buffer : {&dOut, &dv, &du})
      *buffer = scratch.take<float>(this->values);
    for (double *&sum : sums)
      sum = scratch.take<double>(this->heads);
  }

  void keepStates() const {
    std::fill_n(this->state, this->size(), 0.0f);
    for (int64_t s = 0; s < this->length; ++s) {
      if (s % kEach == 0)
        std::copy_n(this->state, this->size(), kept + s / kEach * this->size());
      this->step(s);
    }
  }

  /// Calls `differentiate(s, before, behind)` for the positions, from the last one on, with the
  /// states before and behind each. It changes `dState` from the gradient of the latter into that
  /// of the former.
  template <typename Differentiate>
  void run(int64_t ofSample, int64_t ofHead, Differentiate differentiate) {
    const int64_t size = this->size();
    this->load(ofSample, ofHead);
    keepStates();
    std::fill_n(dState, size, 0.0f);
    for (int64_t begin = (this->length - 1) / kEach * kEach; begin >= 0; begin -= kEach) {
      const int64_t end = std::min(begin + kEach, this->length);
      std::copy_n(kept + begin / kEach * size, size, this->state);
      std::copy_n(this->state, size, states);
      for (int64_t s = begin; s < end; ++s) {
        this->step(s);
        std::copy_n(this->state, size, states + (s - begin + 1) * size);
      }
      for (int64_t s = end; s-- > begin;)
        differentiate(s, states + (s - begin) * size, states + (s - begin + 1) * size);
    }
  }

  /// Reads the gradient of position s, and adds those of its query and of the state behind it. `du`
  /// becomes the gradient of u.
  void readGradient(int64_t s, const float *behind) const {
    const int64_t n = this->values, keys = this->keys;
    std::copy_n(readF32(this->call.in[0], this->at(s) * n, n, dOut), n, dOut);
    std::fill_n(du, n, 0.0f);
    for (int64_t i = 0; i < keys; ++i) {
      dq[s * keys + i] += static_cast<float>(dot(behind + i * n, dOut, n));
      addScaled(dOut, this->q[s * keys + i], n, dState + i * n);
      addScaled(dState + i * n, this->k[s * keys + i], n, du);
    }
  }
  void writeNumber(int result, int64_t s, double number) const {
    const auto value = static_cast<float>(number);
    writeF32(this->call.out[result], this->at(s), 1, &value);
  }
};

struct RuleBwd : BwdHead<Rule<1>, 2> {
  using BwdHead::BwdHead;

  void differentiate(int64_t s, const float *before, const float *behind) const {
    const float *key = k + s * keys;
    readGradient(s, behind);
    std::fill_n(read, values, 0.0f);
    for (int64_t i = 0; i < keys; ++i)
      addScaled(before + i * values, decays[s] * key[i], values, read);
    double dBeta = 0, dDecay = 0;
    for (int64_t e = 0; e < values; ++e) {
      read[e] = v[s * values + e] - read[e];
      dBeta += double{du[e]} * read[e];
      dv[e] = betas[s] * du[e];
    }
    writeF32(call.out[2], at(s) * values, values, dv);
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
    writeNumber(3, s, dG * slopes[s]);
    writeNumber(4, s, dBeta * betas[s] * (1 - betas[s]));
    sums[0][head] += dG * logs[s], sums[1][head] += dG * slopes[s];
  }

  /// Writes the gradient of a query or key from that of its unit x, whose factor is `factor`.
  void writeUnit(int result, int64_t s, const float *x, double divisor, float factor,
                 const float *dx) const {
    const double product = dot(x, dx, keys) * divisor;
    for (int64_t i = 0; i < keys; ++i)
      row[i] = static_cast<float>((dx[i] / divisor - x[i] * product) * factor);
    writeF32(call.out[result], (token(s) * groups + group()) * keys, keys, row);
  }
  void writeKeys(int64_t s) const {
    const int64_t from = s * keys;
    writeUnit(0, s, q + from, std::sqrt(static_cast<double>(keys)), qNorms[s], dq + from);
    writeUnit(1, s, k + from, 1, kNorms[s], dk + from);
  }
};

struct StateSpaceBwd : BwdHead<StateSpace<1>, 3> {
  using BwdHead::BwdHead;

  void differentiate(int64_t s, const float *before, const float *behind) const {
    const float *x = v + s * values;
    readGradient(s, behind);
    for (int64_t e = 0; e < values; ++e)
      dv[e] = steps[s] * du[e] + direct * dOut[e];
    writeF32(call.out[2], at(s) * values, values, dv);
    double dDecay = 0;
    for (int64_t i = 0; i < keys; ++i) {
      float *dRow = dState + i * values;
      dk[s * keys + i] += static_cast<float>(steps[s] * dot(dRow, x, values));
      dDecay += dot(before + i * values, dRow, values);
      for (int64_t e = 0; e < values; ++e)
        dRow[e] *= decays[s];
    }
    const double dG = dDecay * decays[s], dStep = dot(du, x, values) - dG * rate;
    writeNumber(3, s, dStep * slopes[s]);
    sums[0][head] -= dG * rate * steps[s], sums[1][head] += dStep * slopes[s];
    sums[2][head] += dot(dOut, x, values);
  }
  void writeKeys(int64_t s) const {
    for (const auto &[result, from] : {std::pair(0, dq), std::pair(1, dk)})
      writeF32(call.out[result], (token(s) * groups + group()) * keys, keys, from + s * keys);
  }
};

template <typename Bwd> void runScanBwd(const Call &call, Bwd &h) {
  const int64_t each = h.heads / h.groups;
  for (double *sum : h.sums)
    std::fill_n(sum, h.heads, 0.0);
  for (int64_t sample = 0; sample < call.in[1].shape[0]; ++sample)
    for (int64_t group = 0; group < h.groups; ++group) {
      std::fill_n(h.dq, h.length * h.keys, 0.0f), std::fill_n(h.dk, h.length * h.keys, 0.0f);
      for (int64_t i = 0; i < each; ++i)
        h.run(sample, group * each + i, [&](int64_t s, const float *before, const float *behind) {
          h.differentiate(s, before, behind);
        });
      for (int64_t s = 0; s < h.length; ++s)
        h.writeKeys(s);
    }
  int result = call.outCount - static_cast<int>(std::size(h.sums));
  for (const double *sum : h.sums) {
    for (int64_t head = 0; head < h.heads; ++head) {
      const auto value = static_cast<float>(sum[head]);
      writeF32(call.out[result], head, 1, &value);
    }
    ++result;
  }
}

} // namespace

const Kernel kDeltaRule = kernelOf<OpKind::DeltaRule>(withBuffers<runScan<Rule<0>>>);
const Kernel kDeltaRuleBwd =
    kernelOf<OpKind::DeltaRuleBwd, nullptr, 3 << 5>(withBuffers<runScanBwd<RuleBwd>>);
const Kernel kStateScan = kernelOf<OpKind::StateScan>(withBuffers<runScan<StateSpace<0>>>);
const Kernel kStateScanBwd =
    kernelOf<OpKind::StateScanBwd, nullptr, 7 << 4>(withBuffers<runScanBwd<StateSpaceBwd>>);

} // namespace shardc::kernels::host
