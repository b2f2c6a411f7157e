// Trains a SentencePiece model with its own trainer, and tokenizes with it.
#include <filesystem>

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include "runtime/base/Json.h"
#include "runtime/tokenize/Tokenize.h"
#include "test/unit/tokenize/PackedFiles.h"

namespace shardc::tokenize {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> &corpus() {
  static const std::vector<std::string> texts = [] {
    std::vector<std::string> all;
    for (int i = 0; i < 600; ++i)
      all.push_back(fmt::format("document {} says that {} times {} is {}\nand naïve café, 東京 {}",
                                i, i % 17, i % 13, (i % 17) * (i % 13),
                                std::string(i % 9, ' ') + "end"));
    all[3] = "";
    return all;
  }();
  return texts;
}

/// A model like Mistral's: BPE with byte fallback.
class SentencePieceRuns : public ::testing::Test {
protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    std::string text, lines;
    for (const std::string &one : corpus()) {
      lines += toText(nlohmann::json{{"text", one}}) + "\n";
      text += one + "\n";
    }
    folder_->write("text", text);
    folder_->write("corpus.jsonl", lines);
    folder_->write("half.jsonl.gz", gzip(lines));
    auto status = sentencepiece::SentencePieceTrainer::Train(fmt::format(
        "--input={0}/text --model_prefix={0}/tokenizer --model_type=bpe --vocab_size=400 "
        "--byte_fallback=true --normalization_rule_name=identity --character_coverage=0.98 "
        "--minloglevel=2",
        folder_->path()));
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static TokenizeOptions options() {
    TokenizeOptions options;
    options.tokenizer = *folder_ / "tokenizer.model";
    options.threads = 3;
    options.shardTokens = 3000;
    return options;
  }
  static Result<TokenizeSummary> run(
      const std::string &name, const TokenizeOptions &options,
      const std::function<void(const Progress &)> &emit = [](const Progress &) {}) {
    std::vector<std::string> inputs = {*folder_ / "corpus.jsonl", *folder_ / "half.jsonl.gz",
                                       *folder_ / "corpus.jsonl"};
    return tokenize(inputs, *folder_ / name, options, emit);
  }

  static std::unique_ptr<TempFolder> folder_;
};
std::unique_ptr<TempFolder> SentencePieceRuns::folder_;

TEST_F(SentencePieceRuns, WriteTheLibrarysTokens) {
  auto summary = run("whole", options());
  ASSERT_OK(summary);
  sentencepiece::SentencePieceProcessor processor;
  ASSERT_TRUE(processor.Load(*folder_ / "tokenizer.model").ok());
  auto builder = data::IndexedBuilder::create(*folder_ / "wanted", data::TokenType::UInt16);
  ASSERT_OK(builder);
  for (int pass = 0; pass < 3; ++pass)
    for (const std::string &text : corpus()) {
      std::vector<int> ids = processor.EncodeAsIds(text);
      if (!ids.empty()) {
        ids.push_back(processor.eos_id());
        ASSERT_OK(builder->addTokens(ids));
        ASSERT_OK(builder->endSequence());
      }
      ASSERT_OK(builder->endDocument());
    }
  ASSERT_OK(builder->finalize());
  for (const char *suffix : {".bin", ".idx"})
    EXPECT_EQ(contentsOf((*folder_ / "whole") + suffix),
              contentsOf((*folder_ / "wanted") + suffix));
  EXPECT_EQ(summary->counts.documents, 3 * 600);
  EXPECT_EQ(summary->counts.emptyDocuments, 3);
  EXPECT_EQ(summary->vocabSize, 400);
  EXPECT_EQ(summary->endToken, "</s>");
  nlohmann::json manifest = parseJson(contentsOf(*folder_ / "whole.json"));
  EXPECT_EQ(manifest["tokens"], summary->counts.tokens);
  EXPECT_EQ(manifest["inputs"][1]["lines"], 600);
  EXPECT_EQ(manifest["tokenizer"]["end_token"]["id"], processor.eos_id());
  EXPECT_FALSE(fs::exists(*folder_ / "whole.parts"));
}

struct Stop {};

TEST_F(SentencePieceRuns, ContinueWithTheSameBytes) {
  ASSERT_OK(run("one", options()));
  for (int64_t stop : {1, 2, 3}) {
    int64_t batches = 0;
    auto emit = [&](const Progress &) {
      if (++batches == stop)
        throw Stop();
    };
    EXPECT_THROW(static_cast<void>(run("cut", options(), emit)), Stop);
    EXPECT_FALSE(fs::exists(*folder_ / "cut.bin"));
    TokenizeOptions other = options();
    other.jsonKey = "content";
    EXPECT_FAILS(run("cut", other).status(), InvalidInput,
                 "'json_key' was \"text\", and is \"content\"; delete that folder");
    other = options();
    other.threads = 1; // neither threads nor sizes of shards may change the bytes
    other.shardTokens = 50'000;
    auto summary = run("cut", other);
    ASSERT_OK(summary);
    EXPECT_GT(summary->resumedTokens, 0);
    for (const char *suffix : {".bin", ".idx", ".json"}) {
      EXPECT_EQ(contentsOf((*folder_ / "cut") + suffix), contentsOf((*folder_ / "one") + suffix));
      fs::remove((*folder_ / "cut") + suffix);
    }
  }
}

TEST_F(SentencePieceRuns, ContinueWhereTheOutputLiesAmongTheInputs) {
  folder_->write("among/a.jsonl", contentsOf(*folder_ / "corpus.jsonl"));
  folder_->write("among/b.jsonl", contentsOf(*folder_ / "corpus.jsonl"));
  std::vector<std::string> inputs = {*folder_ / "among"};
  std::string prefix = *folder_ / "among/./out";
  EXPECT_THROW(static_cast<void>(
                   tokenize(inputs, prefix, options(), [](const Progress &) { throw Stop(); })),
               Stop);
  EXPECT_TRUE(fs::exists(prefix + ".parts/000000.json"));
  auto summary = tokenize(inputs, prefix, options(), [](const Progress &) {});
  ASSERT_OK(summary);
  EXPECT_EQ(summary->files, 2);
  EXPECT_GT(summary->resumedTokens, 0);
}

TEST_F(SentencePieceRuns, RefuseInputsThatChanged) {
  std::string path = folder_->write("changing.jsonl", "{\"text\": \"some words\"}\n");
  std::vector<std::string> inputs = {path, *folder_ / "corpus.jsonl"};
  TokenizeOptions small = options();
  small.shardTokens = 1;
  EXPECT_THROW(static_cast<void>(tokenize(inputs, *folder_ / "changed", small,
                                          [](const Progress &) { throw Stop(); })),
               Stop);
  folder_->write("changing.jsonl", "{\"text\": \"other words\"}\n");
  EXPECT_FAILS(tokenize(inputs, *folder_ / "changed", small, [](const Progress &) {}).status(),
               InvalidInput, "holds parts of a run that cannot be continued: 'inputs' was");
}

TEST_F(SentencePieceRuns, RefuseWhatIsNoModel) {
  TokenizeOptions wrong = options();
  wrong.endToken = "no such piece";
  EXPECT_FAILS(run("x", wrong).status(), InvalidInput, "has no token 'no such piece'");
  wrong.endToken = "<s>";
  ASSERT_OK(run("named", wrong));
  wrong.tokenizer = folder_->write("broken/tokenizer.model", noise(300));
  EXPECT_FAILS(run("x", wrong).status(), InvalidInput, "is not a model of SentencePiece");
  folder_->write("added/tokenizer.model", contentsOf(*folder_ / "tokenizer.model"));
  folder_->write("added/tokenizer_config.json", R"({"added_tokens_decoder": {"400": {}}})");
  wrong.tokenizer = *folder_ / "added";
  EXPECT_FAILS(run("x", wrong).status(), InvalidInput,
               "adds tokens up to id 400, but the model has 400 tokens");
  EXPECT_FALSE(fs::exists(*folder_ / "x.bin"));
  EXPECT_FALSE(fs::exists(*folder_ / "x.parts"));
}

} // namespace
} // namespace shardc::tokenize
