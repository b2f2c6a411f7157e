// A plan that computes something else than its recipe says is refused, at the recipe's line.
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
  auto refused = [&] {
    DiagEngine diags(session.sources());
    Recorder recorder(session.sources());
    diags.addConsumer(recorder);
    bool isFine = isVerified(*config, session.sources(), plan, diags);
    diags.finish();
    EXPECT_EQ(isFine, recorder.lines.empty());
    return recorder.lines;
  };
  EXPECT_TRUE(refused().empty());
  size_t changed = 0;
  for (plan::Segment &segment : plan.roles[0].segments)
    for (plan::Op &op : segment.ops)
      if (op.kind == plan::OpKind::AddRmsNorm && changed++ == 0)
        op.set(plan::AttrKey::eps, 1e-3);
  ASSERT_GT(changed, 0u);
  std::vector<std::string> lines = refused();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0],
            "error: internal error: the compiled plan violates rule 'plan-specification': "
            "`step.pack` takes other losses than those of the model [plan-refused]");
  EXPECT_NE(lines[1].find(": note: before that, the model has no such value as `%l0.norm2` [plan-"),
            std::string::npos)
      << lines[1];
  EXPECT_TRUE(isdigit(lines[1][0])) << "no line of the recipe: " << lines[1];
}

} // namespace
} // namespace shardc::tools
