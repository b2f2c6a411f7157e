// What the server expects at a place of an incomplete recipe; `|` marks the place.
#include <gtest/gtest.h>

#include "compiler/lsp/Context.h"

namespace shardc::lsp {
namespace {

Context at(std::string text) {
  size_t offset = text.find('|');
  return contextAt(text.erase(offset, 1), offset);
}

std::string pathAt(std::string text) {
  size_t offset = text.find('|');
  return optionPathAt(text.erase(offset, 1), offset).value_or("");
}

TEST(Context, KnowsWhatIsExpected) {
  EXPECT_EQ(at("|").expect, Expect::Recipe);
  EXPECT_EQ(at("recipe r { |").expect, Expect::Item);
  EXPECT_EQ(at("recipe r { ddp { |").expect, Expect::Option);
  EXPECT_EQ(at("recipe r { ddp { } |").expect, Expect::Item);
  EXPECT_EQ(at("recipe r { optimizer |").expect, Expect::Kind);
  EXPECT_EQ(at("recipe r { ddp { nccl_ub = |").expect, Expect::Value);
  EXPECT_EQ(at("recipe r { ddp { nccl_ub = true |").expect, Expect::Option);
  EXPECT_EQ(at("recipe r { // |").expect, Expect::Nothing);
  EXPECT_EQ(at("recipe r { checkpoint { save = \"a|").expect, Expect::Nothing);
}

TEST(Context, KnowsTheSectionAndTheOption) {
  EXPECT_EQ(at("recipe r { ddp { ov|").section, config::Section::Ddp);
  EXPECT_EQ(at("recipe r { ddp { ov|").word, "ov");
  EXPECT_EQ(at("recipe r { ddp.ov|").section, config::Section::Ddp);
  EXPECT_EQ(at("recipe r { ddp.ov|").word, "ov");
  EXPECT_EQ(at("recipe r { ddp { nccl_ub = t|").path, "ddp.nccl_ub");
  EXPECT_EQ(at("recipe r { ddp.nccl_ub = t|").path, "ddp.nccl_ub");
  EXPECT_EQ(at("recipe r { mixed_precision = |").path, "mixed_precision");
  EXPECT_TRUE(at("recipe r { model.recompute_modules = [mlp, |").isInList);
}

TEST(Context, GoesOnBehindAMissingValue) {
  EXPECT_EQ(at("recipe r { ddp { bucket_size = nccl_ub = |").path, "ddp.nccl_ub");
  EXPECT_EQ(at("recipe r { train { global_batch_size = 2 * 4 train_iters = |").path,
            "train.train_iters");
}

TEST(Context, RemembersConstantsAndWhatIsWritten) {
  Context context = at("recipe r { let n = 4 ddp { nccl_ub = true |");
  EXPECT_EQ(context.constants, std::vector<std::string>{"n"});
  EXPECT_EQ(context.written, std::vector<config::Opt>{config::Opt::DdpNcclUb});
}

TEST(Context, FindsTheOptionOfANameAndOfAValue) {
  EXPECT_EQ(pathAt("recipe r { ddp { nccl|_ub = true } }"), "ddp.nccl_ub");
  EXPECT_EQ(pathAt("recipe r { ddp { nccl_ub = tr|ue } }"), "ddp.nccl_ub");
  EXPECT_EQ(pathAt("recipe r { optimizer ad|am { } }"), "optimizer.optimizer");
  EXPECT_EQ(pathAt("recipe r { let n| = 4 }"), "");
}

std::string partsText(const char *text) {
  std::string out;
  for (const Part &part : partsOf(text))
    out += std::to_string(static_cast<int>(part.kind)) + (part.isInSection ? "^" : ":") +
           part.name + ":" + std::string(text + part.nameBegin, text + part.end) + "\n";
  return out;
}

TEST(Context, ListsParts) {
  EXPECT_EQ(partsText("recipe r extends \"a\", \"b\" { checkpoint.save = \"extends\" }"),
            "0:\"a\":\"a\"\n0:\"b\":\"b\"\n2:checkpoint.save:checkpoint.save = \"extends\"\n");
  EXPECT_EQ(partsText("recipe r { let n = m * 2 // n\n optimizer adamw { lr = [1, n] } x { } }"),
            "3:n:n = m * 2\n4:m:m\n4:2:2\n1:optimizer:optimizer adamw { lr = [1, n] }\n"
            "2^lr:lr = [1, n]\n4^1:1\n4^n:n\n1:x:x { }\n");
  EXPECT_EQ(partsText("recipe r { train { seed = \n lr = 2 } let { } } }"),
            "1:train:train { seed = \n lr = 2 }\n2^seed:seed = \n lr\n2^lr:lr = 2\n4^2:2\n");
}

} // namespace
} // namespace shardc::lsp
