// Compares attention_sink with a softmax over scores and one more score per head, and its gradients
// with differences: attention_sink_bwd for the sinks, attention_bwd with the results of
// attention_sink for queries, keys and values.
#include "test/kernels/Harness.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace shardc::kernels::test {
namespace {

constexpr int64_t kBatch = 2, kPositions = 7, kHeads = 4, kGroups = 2, kChannels = 3;
constexpr double kScale = 0.7;

struct Inputs {
  Array q, k, v, dOut, docs, samples, sinks;

  explicit Inputs(DType dtype)
      : q(randoms(dtype, {kBatch, kPositions, kHeads, kChannels}, 1, 2.0)),
        k(randoms(dtype, {kBatch, kPositions, kGroups, kChannels}, 2, 2.0)),
        v(randoms(dtype, {kBatch, kPositions, kGroups, kChannels}, 3)),
        dOut(randoms(dtype, {kBatch, kPositions, kHeads * kChannels}, 4)),
        docs(constant(DType::I32, {kBatch, kPositions}, 0)),
        samples(array(DType::I64, {kBatch}, {0, 1})), sinks(randoms(dtype, {kHeads}, 5, 2.0)) {}
};

/// Causal attention in double, with a sink for each head.
std::vector<double> attend(const std::vector<double> &q, const std::vector<double> &k,
                           const std::vector<double> &v, const std::vector<double> &sinks) {
  std::vector<double> o;
  for (int64_t b = 0; b < kBatch; ++b)
    for (int64_t s = 0; s < kPositions; ++s)
      for (int64_t n = 0; n < kHeads; ++n) {
        int64_t query = ((b * kPositions + s) * kHeads + n) * kChannels;
        double total = std::exp(sinks[static_cast<size_t>(n)]);
        std::vector<double> sum(kChannels, 0.0);
        for (int64_t t = 0; t <= s; ++t) {
          int64_t key = ((b * kPositions + t) * kGroups + n / (kHeads / kGroups)) * kChannels;
          double score = 0;
          for (int64_t d = 0; d < kChannels; ++d)
            score += q[static_cast<size_t>(query + d)] * k[static_cast<size_t>(key + d)];
          double weight = std::exp(kScale * score);
          total += weight;
          for (int64_t d = 0; d < kChannels; ++d)
            sum[static_cast<size_t>(d)] += weight * v[static_cast<size_t>(key + d)];
        }
        for (double each : sum)
          o.push_back(each / total);
      }
  return o;
}

std::vector<Array> forward(const Inputs &in, bool isLearned) {
  KernelRun run("attention");
  run.attrs.scale = kScale, run.attrs.causal = true;
  run.in(in.q).in(in.k).in(in.v).in(in.docs).in(in.samples);
  run.out(in.q.dtype, in.dOut.shape).out(DType::F32, {kBatch, kHeads, kPositions});
  std::vector<Array> keys = run.run();
  KernelRun sink("attention_sink");
  sink.in(keys[0]).in(keys[1]);
  if (isLearned)
    sink.in(in.sinks);
  return sink.out(in.q.dtype, in.dOut.shape).out(DType::F32, keys[1].shape).run();
}

double toleranceOf(DType dtype) {
  return dtype == DType::BF16 ? 2e-2 : dtype == DType::F16 ? 2.5e-3 : 2e-6;
}

TEST(AttentionSink, IsOneMoreScoreOfTheSoftmax) {
  for (DType dtype : kDataTypes)
    for (bool isLearned : {false, true}) {
      Inputs in(dtype);
      std::vector<double> sinks = isLearned ? in.sinks.values : std::vector<double>(kHeads, 0.0);
      expectClose(forward(in, isLearned)[0], attend(in.q.values, in.k.values, in.v.values, sinks),
                  {toleranceOf(dtype), 4}, "o");
    }
}

TEST(AttentionSink, GradientsFollowFromItsResults) {
  for (DType dtype : kDataTypes) {
    Inputs in(dtype);
    std::vector<Array> all = forward(in, true);
    KernelRun sinkRun("attention_sink_bwd");
    sinkRun.in(in.dOut).in(all[0]).in(all[1]).in(in.sinks).out(DType::F32, {kHeads});
    auto loss = [&](const std::vector<double> &q, const std::vector<double> &k,
                    const std::vector<double> &v, const std::vector<double> &sinks) {
      return inner(in.dOut.values, attend(q, k, v, sinks));
    };
    const std::vector<double> &q = in.q.values, &k = in.k.values, &v = in.v.values,
                              &sinks = in.sinks.values;
    using Values = std::vector<double>;
    Tolerance tolerance = {10 * toleranceOf(dtype), 8};
    expectGradient(
        sinkRun.run()[0], sinks, [&](const Values &at) { return loss(q, k, v, at); }, tolerance,
        "dsink");
    KernelRun back("attention_bwd");
    back.attrs.scale = kScale, back.attrs.causal = true;
    back.in(in.dOut).in(in.q).in(in.k).in(in.v).in(all[0]).in(all[1]).in(in.docs).in(in.samples);
    back.out(dtype, in.q.shape).out(dtype, in.k.shape).out(dtype, in.v.shape);
    std::vector<Array> d = back.run();
    expectGradient(
        d[0], q, [&](const Values &at) { return loss(at, k, v, sinks); }, tolerance, "dq");
    expectGradient(
        d[1], k, [&](const Values &at) { return loss(q, at, v, sinks); }, tolerance, "dk");
    expectGradient(
        d[2], v, [&](const Values &at) { return loss(q, k, at, sinks); }, tolerance, "dv");
  }
}

/// Members of a group have some of the heads, and the sinks of all heads.
TEST(AttentionSink, MembersTakeTheSinksOfTheirHeads) {
  constexpr int64_t kMembers = 2, kOwn = kHeads / kMembers;
  Inputs in(DType::F32);
  Array lse = randoms(DType::F32, {kBatch, kOwn, kPositions}, 6, 2.0);
  Array o = randoms(DType::F32, {kBatch, kPositions, kOwn * kChannels}, 7), dOut = o;
  std::vector<double> sum(kHeads, 0.0);
  for (int64_t index = 0; index < kMembers; ++index) {
    Array own = array(DType::F32, {kOwn}, {in.sinks[index * kOwn], in.sinks[index * kOwn + 1]});
    KernelRun part("attention_sink"), alone("attention_sink");
    part.index = index, part.groupSize = kMembers;
    part.in(o).in(lse).in(in.sinks).out(DType::F32, o.shape).out(DType::F32, lse.shape);
    alone.in(o).in(lse).in(own).out(DType::F32, o.shape).out(DType::F32, lse.shape);
    std::vector<Array> got = part.run(), want = alone.run();
    EXPECT_EQ(got[0].values, want[0].values) << index;
    EXPECT_EQ(got[1].values, want[1].values) << index;
    KernelRun back("attention_sink_bwd"), ownBack("attention_sink_bwd");
    back.index = index, back.groupSize = kMembers;
    back.in(dOut).in(got[0]).in(got[1]).in(in.sinks).out(DType::F32, {kHeads});
    ownBack.in(dOut).in(got[0]).in(got[1]).in(own).out(DType::F32, {kOwn});
    Array gradient = back.run()[0], ofOwn = ownBack.run()[0];
    for (int64_t n = 0; n < kHeads; ++n)
      EXPECT_EQ(gradient[n], n / kOwn == index ? ofOwn[n % kOwn] : 0) << index << ' ' << n;
  }
}

/// For a query that attends to no key, the sink has all of the weight.
TEST(AttentionSink, OfNoKeysIsAll) {
  KernelRun run("attention_sink");
  Array o = constant(DType::F32, {1, 1, 2}, 0);
  Array lse = constant(DType::F32, {1, 1, 1}, -std::numeric_limits<double>::infinity());
  run.in(o).in(lse).in(array(DType::F32, {1}, {1.5}));
  std::vector<Array> got = run.out(DType::F32, o.shape).out(DType::F32, lse.shape).run();
  EXPECT_EQ(got[0].values, (std::vector<double>{0, 0}));
  EXPECT_EQ(got[1].values, (std::vector<double>{1.5}));
}

} // namespace
} // namespace shardc::kernels::test
