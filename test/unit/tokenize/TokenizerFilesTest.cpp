#include "runtime/tokenize/TokenizerFiles.h"

#include "test/unit/tokenize/PackedFiles.h"

namespace shardc::tokenize {
namespace {

TEST(TokenizerFiles, AreFoundInAFolderOrByName) {
  TempFolder folder;
  folder.write("both/tokenizer.json", "{}");
  folder.write("both/tokenizer.model", "x");
  folder.write("one/tokenizer.model", "x");
  auto both = findTokenizer(folder / "both");
  ASSERT_OK(both);
  EXPECT_EQ(both->kind, TokenizerKind::HuggingFace);
  EXPECT_EQ(both->path, folder / "both/tokenizer.json");
  EXPECT_EQ(both->sha256, "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a");
  EXPECT_EQ(findTokenizer(folder / "one")->kind, TokenizerKind::SentencePiece);
  EXPECT_EQ(findTokenizer(folder / "both/tokenizer.model")->kind, TokenizerKind::SentencePiece);
}

TEST(TokenizerFiles, SayTheEndToken) {
  TempFolder folder;
  folder.write("tokenizer.json", "{}");
  EXPECT_EQ(findTokenizer(folder.path())->endToken, "");
  folder.write("special_tokens_map.json", R"({"eos_token": {"content": "</map>"}})");
  EXPECT_EQ(findTokenizer(folder.path())->endToken, "</map>");
  folder.write("tokenizer_config.json", R"({"eos_token": null})");
  EXPECT_EQ(findTokenizer(folder.path())->endToken, "</map>");
  folder.write("tokenizer_config.json",
               R"({"eos_token": "</s>", "added_tokens_decoder": {"7": {}, "31": {}, "x": {}}})");
  EXPECT_EQ(findTokenizer(folder.path())->endToken, "</s>");
  EXPECT_EQ(findTokenizer(folder.path())->addedIdMax, 31);
}

TEST(TokenizerFiles, AreRefusedWithAReason) {
  TempFolder folder;
  EXPECT_FAILS(findTokenizer(folder.path()).status(), NotFound,
               "has neither a tokenizer.json nor a tokenizer.model");
  EXPECT_FAILS(findTokenizer(folder / "x.json").status(), NotFound, "there is no tokenizer");
  EXPECT_FAILS(findTokenizer(folder.write("vocab.txt", "")).status(), InvalidInput,
               "is no tokenizer");
  folder.write("tokenizer.json", "{}");
  folder.write("tokenizer_config.json", "[");
  EXPECT_FAILS(findTokenizer(folder.path()).status(), InvalidInput,
               "tokenizer_config.json' is not a JSON object");
}

} // namespace
} // namespace shardc::tokenize
