// How many plans a check places: its time is theirs.
#include <gtest/gtest.h>

#include "compiler/passes/Pipeline.h"
#include "compiler/tools/Session.h"

namespace shardc::tools {
namespace {

/// The plans that a check of the recipe places; its messages are left out.
int64_t placedBy(const std::string &recipe, std::vector<std::string> sets) {
  CommonOptions common;
  common.load.path = SHARDC_SOURCE_DIR "/recipes/" + recipe;
  common.load.sets = std::move(sets);
  common.load.sets.insert(common.load.sets.end(),
                          {"model.recompute_granularity=auto", "model.recompute_method=none",
                           "model.recompute_num_layers=none"});
  Session session(common);
  int64_t before = passes::placedPlans();
  EXPECT_TRUE(checkRecipe(session, common));
  return passes::placedPlans() - before;
}

// Each of them takes 10 to 100 ms.
TEST(CheckCost, AChoiceOfRecomputationPlacesFewPlans) {
  const std::string recipe = "llama3/llama3_70b_fsdp.recipe";
  EXPECT_LE(placedBy(recipe, {}), 40);
  EXPECT_LE(placedBy(recipe, {"cluster.memory=40GiB"}), 40);
  EXPECT_LE(placedBy(recipe, {"model.seq_length=1048576", "dataset.seq_length=1048576"}),
            16); // does not fit
  EXPECT_LE(placedBy(recipe, {"model.freeze=[\"layers.0-40\"]", "ddp.keep_frozen=if_fits",
                              "cluster.memory=30GiB"}),
            40);
}

} // namespace
} // namespace shardc::tools
