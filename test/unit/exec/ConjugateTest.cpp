// Tests the conjugates of collectives in the op table on the host backend. For all x and y, the
// conjugate must satisfy <collective(x), y> = <x, conjugate(y)>.
#include <numeric>

#include <gtest/gtest.h>

#include "runtime/backend/host/Options.h"
#include "runtime/plan/Plan.h"

namespace shardc::exec {
namespace {

constexpr int kMembers = 3;
constexpr int64_t kShard = 5, kWhole = kMembers * kShard;

using Values = std::vector<std::vector<float>>; ///< of each member

int64_t operandSize(CollectiveKind kind) {
  return kind == CollectiveKind::AllGather ? kShard : kWhole;
}
/// The count of a channel's collective.
int64_t countOf(CollectiveKind kind) {
  switch (kind) {
  case CollectiveKind::AllGather:
  case CollectiveKind::ReduceScatter:
  case CollectiveKind::AllToAll:
    return kShard;
  case CollectiveKind::AllReduce:
  case CollectiveKind::AllReduceMax:
  case CollectiveKind::Shift:
  case CollectiveKind::Send:
  case CollectiveKind::Recv:
    return kWhole;
  }
  return 0;
}
int64_t resultSize(CollectiveKind kind) {
  return kind == CollectiveKind::ReduceScatter ? kShard : kWhole;
}

/// Small whole numbers, so that sums are exact in any order.
Values numbers(int64_t size, int seed) {
  Values values(kMembers, std::vector<float>(static_cast<size_t>(size)));
  for (int member = 0; member < kMembers; ++member)
    for (int64_t i = 0; i < size; ++i)
      values[member][i] = static_cast<float>((7 * member + 3 * i + seed) * (i + 2) % 11 - 5);
  return values;
}

Values resultOf(CollectiveKind kind, Values in, int64_t by = 0) {
  auto backend = std::move(*host::makeBackend({.ranks = kMembers}));
  hal::ChannelDesc desc{"members", {0, 1, 2}};
  auto channel = std::move(*backend->createChannel(desc));
  std::vector<std::unique_ptr<hal::Stream>> streams;
  Values out(kMembers, std::vector<float>(static_cast<size_t>(resultSize(kind))));
  for (int member = 0; member < kMembers; ++member) {
    streams.push_back(
        std::move(*backend->devices()[member]->createStream("stream", hal::StreamUse::Compute)));
    hal::Collective collective{kind, in[member].data(), out[member].data(), countOf(kind)};
    collective.by = by;
    EXPECT_TRUE(streams.back()->collective(*channel, collective, "collective").isOk());
  }
  EXPECT_TRUE(backend->synchronize().isOk());
  return out;
}

double product(const Values &a, const Values &b) {
  double sum = 0;
  for (int member = 0; member < kMembers; ++member)
    sum = std::inner_product(a[member].begin(), a[member].end(), b[member].begin(), sum);
  return sum;
}

TEST(Conjugates, MakeTheGradientOfTheOperand) {
  int count = 0;
  for (const plan::OpInfo &op : plan::kOpInfos) {
    if (!op.collective || !op.collective->conjugate || isPointToPoint(op.collective->kind))
      continue;
    const plan::OpInfo &back = plan::opInfo(*op.collective->conjugate);
    ASSERT_TRUE(back.collective) << op.name;
    Values x = numbers(operandSize(op.collective->kind), 1);
    Values y = numbers(resultSize(op.collective->kind), 2);
    int64_t by = op.collective->kind == CollectiveKind::Shift ? 1 : 0;
    double forward = product(resultOf(op.collective->kind, x, by), y);
    EXPECT_NE(forward, 0) << op.name;
    EXPECT_EQ(forward, product(x, resultOf(back.collective->kind, y, -by))) << op.name;
    EXPECT_EQ(back.collective->conjugate, plan::parseOpKind(op.name)) << "and the other way";
    ++count;
  }
  EXPECT_EQ(count, 4);
}

/// All members compute the same from the result, so its gradient counts once.
TEST(Conjugates, OfASumThatAllMembersHaveIsTheGradientItself) {
  const plan::OpInfo &op = plan::opInfo(plan::OpKind::AllReduce);
  ASSERT_TRUE(op.collective && !op.collective->conjugate);
  Values x = numbers(kWhole, 1), y(kMembers, numbers(kWhole, 2)[0]);
  Values sum = resultOf(op.collective->kind, x);
  EXPECT_EQ(product(sum, y) / kMembers, product(x, y));
}

} // namespace
} // namespace shardc::exec
