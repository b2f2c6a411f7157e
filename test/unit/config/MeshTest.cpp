// Meshes: every group of either chain equals the group found by decomposing ranks by the chain.
#include <algorithm>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "Cases.h"
#include "compiler/config/Mesh.h"
#include "runtime/plan/Limits.h"

namespace shardc::config {
namespace {

using ::testing::ElementsAre;

/// `tp=2 dp=4`, slowest first.
std::string axesOf(const Mesh &mesh) {
  std::string text;
  for (const Mesh::Axis &axis : mesh.axes)
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", axis.name, axis.size);
  return text;
}

int64_t ranksOf(const Chain &chain) {
  int64_t ranks = 1;
  for (const Degree &degree : chain)
    ranks *= degree.size;
  return ranks;
}

/// The rank's coordinate in each degree of the chain, which is fastest first.
std::vector<int64_t> split(const Chain &chain, int64_t rank) {
  std::vector<int64_t> coordinates;
  for (const Degree &degree : chain) {
    coordinates.push_back(rank % degree.size);
    rank /= degree.size;
  }
  return coordinates;
}

/// The ranks that differ only in this degree, in its order.
std::vector<int64_t> membersByChain(const Chain &chain, size_t degree, int64_t rank) {
  std::vector<int64_t> members;
  for (int64_t other = 0; other < ranksOf(chain); ++other) {
    std::vector<int64_t> a = split(chain, rank), b = split(chain, other);
    a[degree] = b[degree] = 0;
    if (a == b)
      members.push_back(other);
  }
  return members;
}

std::vector<int64_t> membersByMesh(const Mesh &mesh, const Mesh::Group &group, int64_t rank) {
  Chain axes;
  for (auto axis = mesh.axes.rbegin(); axis != mesh.axes.rend(); ++axis)
    axes.push_back({axis->name, axis->size});
  std::vector<std::pair<std::vector<int64_t>, int64_t>> members;
  for (int64_t other = 0; other < ranksOf(axes); ++other) {
    std::vector<int64_t> a = split(axes, rank), b = split(axes, other), along;
    for (uint16_t axis : group.axes) {
      size_t at = axes.size() - 1 - axis;
      along.push_back(b[at]);
      a[at] = b[at] = 0;
    }
    if (a == b)
      members.emplace_back(along, other);
  }
  std::ranges::sort(members);
  std::vector<int64_t> ranks;
  for (const auto &[along, member] : members)
    ranks.push_back(member);
  return ranks;
}

void expectSameGroups(const Mesh &mesh, const Chain &chain) {
  for (size_t degree = 0; degree < chain.size(); ++degree) {
    if (chain[degree].size == 1)
      continue;
    for (int64_t rank = 0; rank < ranksOf(chain); ++rank) {
      std::vector<int64_t> members = membersByChain(chain, degree, rank);
      bool isFound = std::ranges::any_of(mesh.groups, [&](const Mesh::Group &group) {
        return membersByMesh(mesh, group, rank) == members;
      });
      ASSERT_TRUE(isFound) << chain[degree].name << " of rank " << rank << " in " << axesOf(mesh);
    }
  }
}

TEST(Mesh, OfDataParallelismIsOneAxis) {
  for (int64_t ranks : {1, 8}) {
    Mesh mesh = refine({{"tp", 1}, {"cp", 1}, {"dp", ranks}, {"dp_outer", 1}, {"pp", 1}}, {});
    EXPECT_EQ(axesOf(mesh), fmt::format("dp={}", ranks));
    ASSERT_EQ(mesh.groups.size(), 1u);
    EXPECT_EQ(mesh.groups[0].name, "dp");
    EXPECT_THAT(mesh.groups[0].axes, ElementsAre(0));
    EXPECT_EQ(mesh.data + mesh.shard + mesh.state + mesh.all, 0u);
  }
}

TEST(Mesh, OfInstancesHasAnOuterAxis) {
  Mesh mesh = refine({{"tp", 1}, {"cp", 1}, {"dp", 4}, {"dp_outer", 2}, {"pp", 1}}, {});
  EXPECT_EQ(axesOf(mesh), "dp_outer=2 dp=4");
  EXPECT_THAT(mesh.groups[mesh.shard].axes, ElementsAre(1));
  EXPECT_THAT(mesh.groups[mesh.data].axes, ElementsAre(0, 1));
  EXPECT_THAT(mesh.groups[mesh.state].axes, ElementsAre(1, 0)); // the shard's axes come first
  EXPECT_EQ(mesh.all, mesh.data);
}

TEST(Mesh, AnInstanceMayHaveOneRank) {
  Mesh mesh = refine({{"tp", 1}, {"cp", 1}, {"dp", 1}, {"dp_outer", 3}, {"pp", 1}}, {});
  EXPECT_EQ(axesOf(mesh), "dp_outer=3 dp=1");
  EXPECT_THAT(mesh.groups[mesh.shard].axes, ElementsAre(1));
  EXPECT_THAT(mesh.groups[mesh.data].axes, ElementsAre(0, 1));
}

TEST(Mesh, CutsAnAxisWhereExpertsNeedIt) {
  Mesh mesh = refine({{"tp", 2}, {"cp", 1}, {"dp", 4}, {"dp_outer", 1}, {"pp", 1}},
                     {{"etp", 1}, {"ep", 4}, {"edp", 2}, {"edp_outer", 1}, {"pp", 1}});
  EXPECT_EQ(axesOf(mesh), "dp.hi=2 dp.lo=2 tp=2");
  EXPECT_THAT(mesh.findGroup("ep")->axes, ElementsAre(1, 2));
  EXPECT_THAT(mesh.findGroup("edp")->axes, ElementsAre(0));
  EXPECT_THAT(mesh.findGroup("dp")->axes, ElementsAre(0, 1));
  EXPECT_EQ(mesh.findGroup("cp"), nullptr);
}

TEST(Mesh, LinksWithTheSameRanksShareAGroup) {
  Mesh mesh = refine({{"tp", 1}, {"cp", 1}, {"dp", 8}, {"dp_outer", 1}, {"pp", 1}},
                     {{"etp", 1}, {"ep", 8}, {"edp", 1}, {"edp_outer", 1}, {"pp", 1}});
  EXPECT_EQ(mesh.findGroup("ep"), mesh.findGroup("dp"));
  EXPECT_EQ(mesh.findGroup("edp"), nullptr);
}

TEST(Mesh, RanksWithTheSameExpertsDivideThem) {
  Mesh mesh = refine({{"tp", 1}, {"cp", 1}, {"dp", 4}, {"dp_outer", 2}, {"pp", 1}},
                     {{"etp", 1}, {"ep", 2}, {"edp", 2}, {"edp_outer", 2}, {"pp", 1}});
  EXPECT_EQ(axesOf(mesh), "dp_outer=2 dp.hi=2 dp.lo=2");
  ASSERT_TRUE(mesh.expertShard && mesh.expertState);
  EXPECT_THAT(mesh.groups[*mesh.expertShard].axes, ElementsAre(1));
  EXPECT_THAT(mesh.groups[*mesh.expertState].axes, ElementsAre(1, 0));
}

TEST(Mesh, EachRankMayHaveOtherExperts) {
  Mesh mesh = refine({{"tp", 1}, {"cp", 1}, {"dp", 4}, {"dp_outer", 1}, {"pp", 2}},
                     {{"etp", 1}, {"ep", 4}, {"edp", 1}, {"edp_outer", 1}, {"pp", 2}});
  ASSERT_TRUE(mesh.expertShard && mesh.expertState);
  EXPECT_TRUE(mesh.groups[*mesh.expertShard].axes.empty());
  EXPECT_EQ(mesh.expertShard, mesh.expertState);
}

TEST(Mesh, ExpertsOnAllRanksAreDividedAsLayers) {
  Mesh mesh = refine({{"tp", 1}, {"cp", 1}, {"dp", 4}, {"dp_outer", 1}, {"pp", 1}},
                     {{"etp", 1}, {"ep", 1}, {"edp", 4}, {"edp_outer", 1}, {"pp", 1}});
  EXPECT_FALSE(mesh.expertShard || mesh.expertState);
}

/// Each chain is cut at ranks at which the other one is not cut, and inside two degrees.
TEST(Mesh, HasNoMoreAxesThanPlansTake) {
  Mesh mesh = refine({{"tp", 4}, {"cp", 64}, {"dp", 16}, {"dp_outer", 16}, {"pp", 2}},
                     {{"etp", 8}, {"ep", 8}, {"edp", 32}, {"edp_outer", 32}, {"pp", 2}}, {16, 2});
  EXPECT_EQ(axesOf(mesh), "pp=2 dp_outer=16 dp.hi=2 dp.lo=8 cp.2=4 cp.1=8 cp.0=2 tp.hi=2 tp.lo=2");
  EXPECT_LE(mesh.axes.size(), static_cast<size_t>(plan::limits::kMeshAxesMax));
}

TEST(Mesh, ContextRanksDivideParametersWithDataRanks) {
  Mesh mesh = refine({{"tp", 2}, {"cp", 2}, {"dp", 2}, {"dp_outer", 2}, {"pp", 2}}, {});
  EXPECT_EQ(axesOf(mesh), "pp=2 dp_outer=2 dp=2 cp=2 tp=2");
  EXPECT_THAT(mesh.groups[mesh.shard].axes, ElementsAre(2, 3));
  EXPECT_THAT(mesh.groups[mesh.data].axes, ElementsAre(1, 2));
  EXPECT_THAT(mesh.groups[mesh.state].axes, ElementsAre(2, 3, 1));
  EXPECT_EQ(mesh.groups[mesh.all].axes.size(), 5u);
}

TEST(Mesh, ExpertsThatTensorRanksDoNotCutHaveRanksOfTheirOwn) {
  Chain dense = {{"tp", 2}, {"cp", 2}, {"dp", 2}, {"dp_outer", 1}, {"pp", 1}};
  Mesh cut = refine(dense, {{"etp", 2}, {"ep", 1}, {"edp", 4}, {"edp_outer", 1}, {"pp", 1}});
  EXPECT_FALSE(cut.expertShard); // as dense layers
  Mesh whole = refine(dense, {{"etp", 1}, {"ep", 1}, {"edp", 8}, {"edp_outer", 1}, {"pp", 1}});
  ASSERT_TRUE(whole.expertShard);
  EXPECT_EQ(whole.groups[*whole.expertShard].axes, whole.groups[whole.all].axes);
  Mesh divided = refine(dense, {{"etp", 1}, {"ep", 4}, {"edp", 2}, {"edp_outer", 1}, {"pp", 1}});
  ASSERT_TRUE(divided.expertShard);
  EXPECT_THAT(divided.groups[*divided.expertShard].axes, ElementsAre(0));
}

/// All ways to divide 24 ranks between four degrees, for both chains.
TEST(Mesh, GroupsAreThoseOfBothChains) {
  constexpr int64_t kRanks = 24;
  std::vector<std::array<int64_t, 3>> ways;
  for (int64_t a = 1; a <= kRanks; ++a)
    for (int64_t b = 1; a * b <= kRanks; ++b)
      if (kRanks % (a * b) == 0 && (a * b * 2 <= kRanks || a * b == kRanks))
        ways.push_back({a, b, kRanks / a / b});
  int meshes = 0;
  for (const auto &[tp, cp, dp] : ways)
    for (const auto &[etp, ep, edp] : ways) {
      Chain dense = {{"tp", tp}, {"cp", cp}, {"dp", dp}, {"dp_outer", 1}, {"pp", 1}};
      Chain expert = {{"etp", etp}, {"ep", ep}, {"edp", edp}, {"edp_outer", 1}, {"pp", 1}};
      if (findConflict(dense, expert))
        continue;
      Mesh mesh = refine(dense, expert);
      expectSameGroups(mesh, dense);
      expectSameGroups(mesh, expert);
      ++meshes;
    }
  EXPECT_GT(meshes, 100);
}

TEST(Mesh, IsCutWhereNeighboursHaveSomethingInCommon) {
  Chain dense = {{"tp", 8}, {"cp", 4}, {"dp", 2}, {"dp_outer", 1}, {"pp", 1}};
  Mesh mesh = refine(dense, {}, {.context = 2, .tensor = 4});
  EXPECT_EQ(axesOf(mesh), "dp=2 cp.hi=2 cp.lo=2 tp.hi=2 tp.lo=4");
  expectSameGroups(mesh, dense);
}

TEST(Mesh, TwoSizesOfWhichNoneDividesTheOtherAreAConflict) {
  std::optional<MeshConflict> conflict =
      findConflict({{"tp", 2}, {"cp", 1}, {"dp", 6}, {"dp_outer", 1}, {"pp", 1}},
                   {{"etp", 1}, {"ep", 3}, {"edp", 4}, {"edp_outer", 1}, {"pp", 1}});
  ASSERT_TRUE(conflict);
  EXPECT_EQ(conflict->dense, 2);
  EXPECT_EQ(conflict->expert, 3);
}

TEST(Mesh, StagesComeBeforeDataRanksIfTheRecipeSaysSo) {
  std::string body = "model { num_layers = 4  hidden_size = 64  num_attention_heads = 4  "
                     "tensor_model_parallel_size = 2  pipeline_model_parallel_size = 2 }\n"
                     "cluster { nodes = 1  gpus_per_node = 8 }\n";
  auto loaded = test::loadBody(body);
  EXPECT_EQ(axesOf(refine(denseChain(*loaded->config), {})), "pp=2 dp=2 tp=2");
  loaded = test::loadBody(body + "dist.use_tp_pp_dp_mapping = true");
  EXPECT_EQ(axesOf(refine(denseChain(*loaded->config), {})), "dp=2 pp=2 tp=2");
}

} // namespace
} // namespace shardc::config
