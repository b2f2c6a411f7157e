// Compares the losses of preference pairs with their formulas, and their gradients with
// differences.
#include "test/kernels/Harness.h"

#include <cmath>

#include <gtest/gtest.h>

#include "runtime/base/Preference.h"

namespace shardc::kernels::test {
namespace {

using Vector = std::vector<double>;

constexpr int64_t kSequences = 2, kSize = 12;
constexpr int64_t kKinds[] = {kSigmoid, kSigmoidNorm, kIpo, kRobust, kOrpo, kSimpo, kHinge};

/// Two sequences with two pairs each. The first has three places of padding; in the second, one
/// answer has no counted token.
struct Pairs {
  std::vector<Vector> begins = {{0, 3, 5, 7, 9, 12}, {0, 2, 5, 9, 12}};
  Array docs = array(DType::I32, {kSequences, kSize},
                     {0, 0, 0, 3, 3, 5, 5, 7, 7, 9, 9, 9, 0, 0, 2, 2, 2, 5, 5, 5, 5, 9, 9, 9});
  Array mask = array(DType::F32, {kSequences, kSize},
                     {0, 1, 1, 0, 1, 1, 1, 0, 1, 0, 0, 0, 0, 1, 0, 1, 1, 0, 1, 1, 1, 0, 0, 0});
  Array reference = constant(DType::F32, {kSequences, kSize}, 0);
  Vector losses;

  Pairs() {
    for (double number : randoms(DType::F32, {kSequences * kSize}, 7).values)
      losses.push_back(2 + number);
    for (int64_t at : {0, 3, 5, 7, 12, 14, 17, 21})
      reference.values[static_cast<size_t>(at)] = -3 - 0.25 * static_cast<double>(at % 5);
  }
};

double logSigmoid(double x) { return -std::log1p(std::exp(-x)); }

struct Sums {
  double loss = 0, tokens = 0, reference = 0, all = 0, places = 0;
};

Sums sumsOf(const Pairs &pairs, const Vector &losses, int64_t row, double begin, double end) {
  Sums sums;
  for (auto t = static_cast<int64_t>(begin); t < static_cast<int64_t>(end); ++t) {
    int64_t i = row * kSize + t;
    sums.loss += pairs.mask[i] * losses[static_cast<size_t>(i)];
    sums.tokens += pairs.mask[i];
    sums.reference += pairs.reference[i];
    sums.all += losses[static_cast<size_t>(i)];
    sums.places += 1;
  }
  return sums;
}

double lossOf(const Attrs &attrs, const Sums &c, const Sums &r) {
  const int64_t kind = attrs.preference;
  const double beta = attrs.beta, smoothing = attrs.label_smoothing;
  if (kind == kOrpo) {
    double chosen = -c.loss / c.tokens, rejected = -r.loss / r.tokens;
    double odds =
        chosen - rejected - std::log1p(-std::exp(chosen)) + std::log1p(-std::exp(rejected));
    return c.all / c.places - beta * logSigmoid(odds);
  }
  const double share = kind == kSimpo ? 0 : 1; // of the reference
  double chosen = -c.loss - share * c.reference, rejected = -r.loss - share * r.reference;
  if (kind == kIpo || kind == kSigmoidNorm || kind == kSimpo)
    chosen /= c.tokens, rejected /= r.tokens;
  double delta = chosen - rejected;
  if (kind == kIpo)
    return std::pow(delta - 1 / (2 * beta), 2);
  if (kind == kHinge)
    return std::max(1 - beta * delta, 0.0);
  const double reward = beta * delta - attrs.simpo_gamma;
  double kept = (1 - smoothing) * logSigmoid(reward), changed = smoothing * logSigmoid(-reward);
  return kind == kRobust ? -(kept - changed) / (1 - 2 * smoothing) : -kept - changed;
}

/// The loss of each sequence.
Vector lossesOf(const Pairs &pairs, const Vector &losses, const Attrs &attrs) {
  Vector found;
  for (int64_t row = 0; row < kSequences; ++row) {
    const Vector &begins = pairs.begins[static_cast<size_t>(row)];
    double sum = 0;
    for (size_t d = 0; d + 2 < begins.size(); d += 2) {
      Sums chosen = sumsOf(pairs, losses, row, begins[d], begins[d + 1]);
      Sums rejected = sumsOf(pairs, losses, row, begins[d + 1], begins[d + 2]);
      if (chosen.tokens > 0 && rejected.tokens > 0)
        sum += lossOf(attrs, chosen, rejected);
    }
    found.push_back(sum);
  }
  return found;
}

KernelRun runOf(const Pairs &pairs, int64_t kind) {
  KernelRun run("preference_loss");
  run.attrs.preference = kind;
  run.attrs.beta = 0.3;
  run.attrs.label_smoothing = kind == kIpo || kind == kOrpo || kind == kHinge ? 0 : 0.1;
  run.attrs.simpo_gamma = kind == kSimpo ? 0.4 : 0;
  run.in(array(DType::F32, {kSequences * kSize}, pairs.losses)).in(pairs.mask).in(pairs.docs);
  if (kind != kOrpo && kind != kSimpo)
    run.in(pairs.reference);
  run.out(DType::F32, {kSequences}).out(DType::F32, {kSequences * kSize}).out(DType::F32, {1});
  run.out(DType::F32, {kSequences, kPairMetrics});
  return run;
}

TEST(Preference, LossesOfPairsAndTheirGradients) {
  const Pairs pairs;
  for (int64_t kind : kKinds) {
    KernelRun run = runOf(pairs, kind);
    std::vector<Array> got = run.run();
    expectClose(got[0], lossesOf(pairs, pairs.losses, run.attrs), {2e-6, 8}, "pairs");
    auto whole = [&](const Vector &losses) {
      Vector each = lossesOf(pairs, losses, run.attrs);
      return each[0] + each[1];
    };
    expectGradient(got[1], pairs.losses, whole, {2e-6, 8}, "weights", 60);
    EXPECT_EQ(got[2][0], 3);
    EXPECT_EQ(got[3][kPairs], 2);
    EXPECT_EQ(got[3][kPairMetrics + kPairs], 1);
  }
}

TEST(Preference, MetricsAreSumsOverPairs) {
  const Pairs pairs;
  Array metrics = runOf(pairs, kSigmoid).run()[3];
  Sums chosen = sumsOf(pairs, pairs.losses, 1, 0, 2),
       rejected = sumsOf(pairs, pairs.losses, 1, 2, 5);
  Vector wanted = {1, 0.3 * (-chosen.loss - chosen.reference),
                   0.3 * (-rejected.loss - rejected.reference)};
  wanted.insert(wanted.end(),
                {wanted[1] > wanted[2] ? 1.0 : 0.0, -chosen.loss, -rejected.loss, 0, 0});
  for (int64_t i = 0; i < kPairMetrics; ++i)
    EXPECT_NEAR(metrics[kPairMetrics + i], wanted[static_cast<size_t>(i)], 1e-5) << i;
}

} // namespace
} // namespace shardc::kernels::test
