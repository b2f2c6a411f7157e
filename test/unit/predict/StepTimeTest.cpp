// Predictions from rates: times of collectives by kind, size and number of nodes, and memory
// outside the arenas.
#include <array>

#include <gtest/gtest.h>

#include "compiler/predict/Overheads.h"
#include "compiler/predict/StepTime.h"
#include "compiler/predict/Transfers.h"

namespace shardc::predict {
namespace {

constexpr int64_t kMiB = 1 << 20;

using plan::OpKind;
using plan::Transport;

struct Measured {
  CollectiveKind kind;
  Transport transport;
  int64_t members;
  double wholeMiB, us;
};
constexpr Measured kMeasured[] = {
#define TIME(collective, way, members, mib, us)                                                    \
  {CollectiveKind::collective, Transport::way, members, mib, us},
#include "compiler/predict/LinkTable.def"
};

double micros(const Measured &row, int64_t wholeBytes) {
  return 1e6 * collectiveSeconds(device(Gpu::H200), row.kind, row.transport, wholeBytes,
                                 {row.members, row.members, row.members});
}

int64_t bytesOf(const Measured &row) { return static_cast<int64_t>(row.wholeMiB * kMiB); }

/// Rates are of ops that memory limits. Build and predictions do not read others.
TEST(Rates, AreOfOpsThatMemoryLimits) {
#define MEMORY(op, gbs)                                                                            \
  EXPECT_EQ(plan::opInfo(plan::OpKind::op).work.cost, plan::CostClass::Memory) << #op;
#define ASSUMED(op, gbs) MEMORY(op, gbs)
#include "compiler/predict/KernelTable.def"
}

TEST(Transfers, TakeWhatWasMeasured) {
  for (const Measured &row : kMeasured)
    EXPECT_NEAR(micros(row, bytesOf(row)), row.us, 1e-6)
        << row.members << " of " << row.wholeMiB << " MiB";
}

TEST(Transfers, TakeLongerWithEveryByte) {
  for (const Measured &row : kMeasured)
    for (int64_t members : {2, 3, 4, 6, 8}) {
      Measured group = row;
      group.members = members;
      double before = 0;
      for (int64_t bytes = 0; bytes <= 16 * 1024 * kMiB; bytes = bytes * 9 / 8 + 4096) {
        double us = micros(group, bytes);
        EXPECT_GT(us, before) << members << " of " << bytes;
        before = us;
      }
    }
}

/// Times are interpolated between measured sizes, and extrapolated with the last bandwidth.
TEST(Transfers, GoOnBetweenAndBeyondWhatWasMeasured) {
  Measured gather = {CollectiveKind::AllGather, Transport::Nccl, 4, 0, 0};
  EXPECT_NEAR(micros(gather, 0), 14.2, 0.1) << "a start";
  EXPECT_NEAR(micros(gather, 240 * kMiB), (193.7 + 965) / 2, 0.1) << "halfway";
  EXPECT_NEAR(micros(gather, 1632 * kMiB) - 2471.9, 2471.9 - 965, 0.1) << "608 MiB more";
  Measured ordered = {CollectiveKind::ReduceScatter, Transport::Exchange, 4, 0, 0};
  EXPECT_NEAR(micros(ordered, 0), 11.2, 0.1) << "as NCCL's kernels";
}

/// The time depends on the bytes that a rank receives.
TEST(Transfers, OtherGroupsAreLikeTheNextLargerOrTheLargest) {
  auto gather = [](int64_t members, int64_t takenIn) {
    return micros({CollectiveKind::AllGather, Transport::Nccl, members, 0, 0},
                  takenIn * members / (members - 1));
  };
  for (int64_t taken : {84 * kMiB, 840 * kMiB}) {
    EXPECT_NEAR(gather(3, taken), gather(4, taken), 1e-6);
    EXPECT_NEAR(gather(8, taken), gather(4, taken), 1e-6);
    EXPECT_GT(gather(2, taken), gather(4, taken)) << "with fewer channels";
  }
}

/// For devices without measurements, only the bandwidth is known.
TEST(Transfers, OtherDevicesHaveTheirBandwidth) {
  Team four{4, 4, 4};
  auto seconds = [&](Gpu gpu, int64_t bytes) {
    return collectiveSeconds(device(gpu), CollectiveKind::AllGather, Transport::Nccl, bytes, four);
  };
  double times = device(Gpu::B200).sustained.nvlinkGBs / device(Gpu::H200).sustained.nvlinkGBs;
  double start = seconds(Gpu::H200, 0);
  EXPECT_NEAR(seconds(Gpu::B200, 0), start, 1e-12);
  for (int64_t bytes : {kMiB, 1024 * kMiB})
    EXPECT_NEAR((seconds(Gpu::H200, bytes) - start) / (seconds(Gpu::B200, bytes) - start), times,
                1e-6);
}

TEST(Transfers, ASingleRankMovesNothing) {
  EXPECT_EQ(
      collectiveSeconds(device(Gpu::H200), CollectiveKind::AllGather, Transport::Nccl, kMiB, {}),
      0);
  EXPECT_EQ(gatherGBs(device(Gpu::H200), Transport::Nccl, kMiB, {}), 0);
}

/// Each GPU has a network adapter of 50 GB/s.
TEST(Transfers, NodesAreBoundByTheirAdapters) {
  const Device &h200 = device(Gpu::H200);
  auto gbs = [&](const Team &team) {
    return gatherGBs(h200, Transport::Nccl, 400 * team.members * kMiB, team);
  };
  EXPECT_LT(gbs({2, 1, 1}), 50);
  EXPECT_LT(gbs({8, 4, 4}), 4 * 50);
  EXPECT_LT(gbs({16, 8, 8}), 8 * 50);
  EXPECT_LT(gbs({16, 8, 8}), gbs({8, 8, 8}));
  EXPECT_LT(gbs({8, 4, 4}), gbs({16, 8, 8})) << "half as many adapters a node";
  const Device &l40s = device(Gpu::L40s);
  EXPECT_LT(gatherGBs(l40s, Transport::Nccl, 400 * kMiB, {4, 4, 1}), l40s.peak.hostGBs);
}

Transport chosen(CollectiveKind kind, std::vector<int64_t> shards, const Team &team,
                 bool hasWindows, bool isDeterministic = false) {
  for (int64_t &bytes : shards)
    bytes *= team.members;
  return chooseTransport(device(Gpu::H200), {kind, team, shards, hasWindows, isDeterministic});
}

/// Copy engines take longer to start, but slow products less.
TEST(Transfers, GathersGoByCopyEnginesWhereTheyAreLarge) {
  Team four{4, 4, 4};
  EXPECT_EQ(chosen(CollectiveKind::AllGather, {104 * kMiB}, four, true), Transport::Ce);
  EXPECT_EQ(chosen(CollectiveKind::AllGather, {25 * kMiB}, four, true), Transport::Nccl);
  EXPECT_EQ(chosen(CollectiveKind::AllGather, {26 * kMiB}, four, true), Transport::Ce)
      << "docs/plan.md";
  EXPECT_EQ(chosen(CollectiveKind::AllGather, {kMiB, 104 * kMiB, kMiB}, four, true), Transport::Ce)
      << "what the small ones lose the large one makes up for";
  EXPECT_EQ(chosen(CollectiveKind::AllGather, {104 * kMiB}, four, false), Transport::Nccl)
      << "no windows";
  EXPECT_EQ(chosen(CollectiveKind::AllGather, {104 * kMiB}, {8, 4, 4}, true), Transport::Nccl)
      << "two nodes";
  EXPECT_EQ(chosen(CollectiveKind::AllGather, {104 * kMiB}, {4, 4, 1}, true), Transport::Nccl)
      << "no NVLink";
  EXPECT_EQ(chosen(CollectiveKind::AllGather, {104 * kMiB}, four, true, true), Transport::Ce)
      << "gathers add nothing";
}

/// Ops wait for these gathers, so a slow start costs more.
TEST(Transfers, GathersOfLayersGoByCopyEnginesWhereTheyAreNoSlower) {
  auto inLayer = [](int64_t wholeBytes, Team team, bool hasWindows) {
    Traffic traffic{CollectiveKind::AllGather, team, {wholeBytes}, hasWindows};
    traffic.isAwaited = true;
    return chooseTransport(device(Gpu::H200), traffic);
  };
  for (int64_t members : {2, 4}) {
    Team team{members, members, members};
    EXPECT_EQ(inLayer(64 * kMiB, team, true), Transport::Ce) << members;
    EXPECT_EQ(inLayer(16 * kMiB, team, true), Transport::Nccl) << members;
    EXPECT_EQ(inLayer(64 * kMiB, team, false), Transport::Nccl) << "no windows";
  }
  EXPECT_EQ(inLayer(35 * kMiB, {4, 4, 4}, true), Transport::Nccl);
  EXPECT_EQ(inLayer(36 * kMiB, {4, 4, 4}, true), Transport::Ce) << "docs/plan.md";
  EXPECT_EQ(inLayer(64 * kMiB, {8, 4, 4}, true), Transport::Nccl) << "two nodes";
}

TEST(Transfers, SumsGoByNcclUnlessTheirOrderIsAskedFor) {
  for (const Team &team : {Team{4, 4, 4}, Team{16, 8, 8}})
    for (int64_t shard : {kMiB / 4, 104 * kMiB})
      for (CollectiveKind kind : {CollectiveKind::ReduceScatter, CollectiveKind::AllReduce}) {
        EXPECT_EQ(chosen(kind, {shard}, team, true), Transport::Nccl);
        EXPECT_EQ(chosen(kind, {shard}, team, true, true), Transport::Exchange);
      }
}

plan::Plan meshOf(int64_t outer, int64_t inner, int64_t nodes) {
  plan::Plan plan;
  plan.mesh = {{"outer", outer}, {"dp", inner}};
  plan.groups = {{"dp", {1}}, {"outer", {0}}, {"all", {0, 1}}};
  plan.job = {{"derived.nodes", nodes}};
  return plan;
}

TEST(Transfers, TeamsFillOneNodeAfterTheOther) {
  auto team = [](Gpu gpu, const plan::Plan &plan, int group) {
    Team team = teamOf(device(gpu), plan, group);
    return std::array<int64_t, 3>{team.members, team.inNode, team.inDomain};
  };
  using Three = std::array<int64_t, 3>;
  EXPECT_EQ(team(Gpu::H200, meshOf(1, 8, 1), 0), (Three{8, 8, 8}));
  EXPECT_EQ(team(Gpu::H200, meshOf(1, 8, 2), 0), (Three{8, 4, 4})) << "two nodes of four";
  plan::Plan nodes = meshOf(2, 8, 2);
  EXPECT_EQ(team(Gpu::H200, nodes, 0), (Three{8, 8, 8}));
  EXPECT_EQ(team(Gpu::H200, nodes, 1), (Three{2, 1, 1})) << "one rank of each node";
  EXPECT_EQ(team(Gpu::H200, nodes, 2), (Three{16, 8, 8}));
  EXPECT_EQ(team(Gpu::H200, meshOf(1, 16, 1), 0), (Three{16, 16, 8})) << "no such node";
  EXPECT_EQ(team(Gpu::Gb200, meshOf(1, 72, 18), 0), (Three{72, 4, 72})) << "a rack";
  EXPECT_EQ(team(Gpu::L40s, meshOf(1, 8, 1), 0), (Three{8, 8, 1}));
}

/// Causal attention of GPT-2's shape, 16 sequences of 1,024 positions, or its gradient, in TFLOP/s.
double attentionTflops(Gpu gpu, OpKind kind, DType type, double dropout = 0,
                       bool hasDocuments = false) {
  plan::Segment segment;
  plan::Op op;
  op.kind = kind;
  bool isBackward = kind == OpKind::AttentionBwd;
  for (plan::ValueId i = 0; i < (isBackward ? 4 : 3); ++i) {
    op.operands.push_back(i);
    segment.values.emplace_back().type = plan::Type::of(type, {16, 1024, 12, 64});
  }
  op.set(plan::AttrKey::causal, int64_t{1});
  op.set(plan::AttrKey::p, dropout);
  op.set(plan::AttrKey::reset_mask, int64_t{hasDocuments});
  double flops = (isBackward ? 5.0 : 2.0) * 16 * 1024 * 1024 * 12 * 64;
  return flops / timeOf(device(gpu), {}, segment, op) * 1e-12;
}

/// The rates of hand-written kernels are in docs/benchmarks/cuda-one-gpu.md.
TEST(Ops, AttentionGoesAtTheRateOfTheKernelsThatServeIt) {
  auto h200 = [](auto... args) { return attentionTflops(Gpu::H200, args...); };
  for (OpKind kind : {OpKind::Attention, OpKind::AttentionBwd}) {
    double plain = kind == OpKind::Attention ? 6.8 : 4.4;
    EXPECT_GT(h200(kind, DType::BF16), 200);
    EXPECT_NEAR(h200(kind, DType::F32), plain, 1e-9);
    double mma = kind == OpKind::Attention ? 258 : 172;
    double dropped = mma * (kind == OpKind::Attention ? 0.5 : 0.63);
    double ofA100 = device(Gpu::A100).sustained.bf16Tflops / 612; // its products are mma.sync
    EXPECT_NEAR(h200(kind, DType::BF16, 0.1), dropped, 1e-9) << "dropout";
    EXPECT_GT(h200(kind, DType::BF16, 0, true), 180) << "documents, on Hopper's tensor cores";
    EXPECT_NEAR(attentionTflops(Gpu::A100, kind, DType::BF16, 0, true), mma * ofA100, 1e-9)
        << "documents elsewhere";
    EXPECT_NEAR(attentionTflops(Gpu::A100, kind, DType::BF16, 0.1), dropped * ofA100, 1e-9);
    EXPECT_NEAR(attentionTflops(Gpu::A100, kind, DType::F32), plain * 19.5 / 66.9, 1e-9)
        << "by fp32 rates";
  }
}

/// A tile computes with all keys that any of its queries attends to.
TEST(Ops, WindowsTakeLessTimeThanAllKeys) {
  plan::Segment segment;
  plan::Op op;
  op.kind = OpKind::Attention;
  for (plan::ValueId i = 0; i < 3; ++i) {
    op.operands.push_back(i);
    segment.values.emplace_back().type = plan::Type::of(DType::BF16, {2, 4096, 64, 64});
  }
  op.set(plan::AttrKey::causal, int64_t{1});
  auto secondsOf = [&](int64_t window) {
    op.set(plan::AttrKey::window, window);
    return timeOf(device(Gpu::H200), {}, segment, op);
  };
  double all = secondsOf(-1);
  EXPECT_NEAR(secondsOf(4095), all, 1e-9) << "a window of all";
  EXPECT_LT(secondsOf(127), all / 3);
  EXPECT_GT(secondsOf(127), all / 16) << "half of 4,096 keys are 16 times 128";
}

TEST(Overheads, TheHostHasNone) {
  plan::Plan plan;
  plan.roles.emplace_back();
  EXPECT_EQ(overheadsOf(device(Gpu::Host), plan).total(), 0);
  EXPECT_EQ(overheadsOf(device(Gpu::H200), plan).communicators, 0) << "no collectives";
  EXPECT_EQ(overheadsOf(device(Gpu::H200), plan).context, 527 * kMiB);
  notePredictions(device(Gpu::Host), plan);
  EXPECT_EQ(plan.job, plan::Job());
  notePredictions(device(Gpu::H200), plan);
  EXPECT_EQ(plan.job.derived.memoryContextBytes, 527 * kMiB);
  EXPECT_TRUE(plan.job.has(plan::JobField::derived_predictedGatherGBs)) << "though it is 0";
}

/// A plan with one bf16 reduce-scatter over four devices.
plan::Plan reductionPlan(plan::Transport transport, int64_t shard) {
  plan::Plan plan;
  plan.mesh.resize(1);
  plan.mesh[0].size = 4;
  plan.groups.resize(1);
  plan.groups[0].axes = {0};
  plan::Segment &segment = plan.roles.emplace_back().segments.emplace_back();
  segment.values.resize(2);
  segment.values[0].type = plan::Type::of(DType::BF16, {4 * shard});
  segment.values[1].type = plan::Type::of(DType::BF16, {shard});
  plan::Op &reduce = segment.ops.emplace_back();
  reduce.kind = plan::OpKind::ReduceScatter;
  reduce.operands = {0};
  reduce.results = {1};
  reduce.group = 0;
  plan.streams.push_back({"reduce"});
  plan.channels.push_back({"reduce", 0, transport, 0, 1});
  reduce.channel = 0;
  return plan;
}

/// Receive buffers are allocated in the driver's pages, as channels do.
TEST(Overheads, HaveLandingBuffers) {
  constexpr int64_t kShard = 3 * kMiB / 2; // elements
  const Device &h200 = device(Gpu::H200);
  EXPECT_EQ(overheadsOf(h200, reductionPlan(plan::Transport::Nccl, kShard)).receiveBuffers, 0);
  plan::Plan ordered = reductionPlan(plan::Transport::Exchange, kShard);
  Overheads memory = overheadsOf(h200, ordered);
  EXPECT_EQ(memory.receiveBuffers, 12 * kMiB);
  EXPECT_EQ(memory.total() - memory.receiveBuffers,
            memory.context + memory.communicators + memory.workspaces + memory.libraries);
  plan::Plan wider = reductionPlan(plan::Transport::Nccl, kShard);
  wider.roles[0].segments[0].values[1].type.dtype = DType::F32;
  EXPECT_EQ(overheadsOf(h200, wider).receiveBuffers, 4 * kMiB) << "3 MiB in pages of 2";
  notePredictions(h200, ordered);
  EXPECT_EQ(ordered.roles[0].beside(plan::Beside::ReceiveBuffers), 12 * kMiB);
}

/// A step on four devices and `nodes` nodes: one reduce-scatter of 256 MiB, overlapped by `adds`
/// additions of 64 MiB.
StepTime timeOfStep(int adds, int64_t nodes, bool reduces = true) {
  plan::Plan plan = reductionPlan(Transport::Nccl, 32 * kMiB);
  plan.job = {{"derived.nodes", nodes}};
  plan::Role &role = plan.roles[0];
  plan::Segment &segment = role.segments[0];
  segment.ops[0].stream = 1;
  if (!reduces)
    segment.ops.clear();
  for (int i = 0; i < 3; ++i)
    segment.values.emplace_back().type = plan::Type::of(DType::BF16, {32 * kMiB});
  for (int i = 0; i < adds; ++i) {
    plan::Op &add = segment.ops.emplace_back();
    add.kind = OpKind::Add;
    add.operands = {2, 3};
    add.results = {4};
  }
  plan::ProgramNode &steps = role.program.emplace_back();
  steps.kind = plan::ProgramNode::Steps;
  steps.children.push_back({plan::ProgramNode::Run, 0, 1, {}});
  return predictStep(device(Gpu::H200), plan, role);
}

/// The expected times were measured in a step of llama3_8b on four devices.
TEST(Steps, KernelsLoseTimeToTransfersBesideThem) {
  constexpr int kMany = 100;
  StepTime alone = timeOfStep(kMany, 1, false), both = timeOfStep(kMany, 1);
  EXPECT_EQ(both.exposed, 0);
  EXPECT_NEAR((both.step - alone.step) / both.transfers, 0.355, 1e-9);
  EXPECT_NEAR(both.compute - alone.compute, both.step - alone.step, 1e-12);
}

TEST(Steps, OnlyWhatHasKernelsBesideItCostsThem) {
  StepTime none = timeOfStep(0, 1), few = timeOfStep(3, 1), alone = timeOfStep(3, 1, false);
  EXPECT_NEAR(none.step - none.transfers, timeOfStep(0, 1, false).step, 1e-12);
  double beside = alone.compute / few.transfers;
  EXPECT_LT(beside, 1);
  EXPECT_NEAR(few.compute - alone.compute, 0.355 * beside * few.transfers, 1e-9);
}

/// Over a network, the same bytes take several times as long.
TEST(Steps, SlowLinksSpreadWhatTransfersCost) {
  constexpr int kMany = 1000;
  StepTime alone = timeOfStep(kMany, 1, false), near = timeOfStep(kMany, 1);
  StepTime far = timeOfStep(kMany, 4);
  EXPECT_GT(far.transfers, 3 * near.transfers);
  EXPECT_EQ(far.exposed, 0);
  EXPECT_NEAR(far.step - alone.step, near.step - alone.step, 1e-9);
}

/// A step of two gathers of 64 MiB, both for unit 0, or the second for another unit.
double secondsOfGathers(int32_t secondUnit) {
  plan::Plan plan = reductionPlan(Transport::Nccl, 32 * kMiB);
  plan::Role &role = plan.roles[0];
  plan::Segment &segment = role.segments[0];
  segment.values[0].type = plan::Type::of(DType::BF16, {8 * kMiB});
  segment.values[1].type = plan::Type::of(DType::BF16, {32 * kMiB});
  plan::Op gather = segment.ops[0];
  gather.kind = OpKind::AllGather;
  gather.operands = {0};
  gather.results = {1};
  gather.unit = 0;
  segment.ops = {gather, gather};
  segment.ops[1].unit = secondUnit;
  plan::ProgramNode &steps = role.program.emplace_back();
  steps.kind = plan::ProgramNode::Steps;
  steps.children.push_back({plan::ProgramNode::Run, 0, 1, {}});
  return predictStep(device(Gpu::H200), plan, role).transfers;
}

TEST(Steps, GathersThatAreIssuedTogetherStartOnce) {
  Measured gather = {CollectiveKind::AllGather, Transport::Nccl, 4, 0, 0};
  EXPECT_NEAR(secondsOfGathers(0), micros(gather, 128 * kMiB) * 1e-6, 1e-12);
  EXPECT_NEAR(secondsOfGathers(1), 2 * micros(gather, 64 * kMiB) * 1e-6, 1e-12);
  EXPECT_LT(secondsOfGathers(0), secondsOfGathers(1));
}

} // namespace
} // namespace shardc::predict
