// A plan that computes anything other than its recipe is refused, with the recipe's line.
#include <gtest/gtest.h>

#include "compiler/tools/Session.h"
#include "test/unit/diag/Recorder.h"

namespace shardc::tools {
namespace {

TEST(Specification, ThePlanOfARecipeIsHeldAgainstIt) {
  CommonOptions common;
  common.load.path = SHARDC_SOURCE_DIR "/recipes/debug/llama_tiny.recipe";
  Session session(common);
  std::optional<config::Config> config =
      config::loadConfig(session.sources(), session.diags(), common.load);
  ASSERT_TRUE(config);
  std::optional<Compiled> compiled =
      compile(*config, session.sources(), session.diags(), common, {});
  ASSERT_TRUE(compiled);
  plan::Plan plan = std::move(compiled->plan);
  const plan::Plan specification = specificationOf(*config, session.sources());
  auto said = [&](bool isFine) {
    DiagEngine diags(session.sources());
    Recorder recorder(session.sources());
    diags.addConsumer(recorder);
    EXPECT_EQ(isVerified(*config, session.sources(), plan, specification, diags), isFine);
    diags.finish();
    return recorder.lines;
  };
  EXPECT_TRUE(said(true).empty());
  size_t changed = 0;
  for (plan::Segment &segment : plan.roles[0].segments)
    for (plan::Op &op : segment.ops)
      if (op.kind == plan::OpKind::AddRmsNorm && changed++ == 0)
        op.set(plan::AttrKey::eps, 1e-3);
  ASSERT_GT(changed, 0u);
  std::vector<std::string> lines = said(false);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0],
            "4:18: error: internal error: the compiled plan violates rule 'plan-specification': "
            "`%l0.norm2`: step `rmsnorm` of `add_rmsnorm` has eps = 0.001; the model needs 1e-05 "
            "[plan-refused]");
  plan.params[0].initStd = 3;
  lines = said(false);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0],
            "error: internal error: the compiled plan violates rule 'plan-specification': "
            "parameter '" +
                plan.params[0].name + "' is not initialised as in the model [plan-refused]");
}

} // namespace
} // namespace shardc::tools
