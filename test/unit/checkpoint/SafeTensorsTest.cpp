#include <random>

#include <gtest/gtest.h>

#include "runtime/checkpoint/SafeTensors.h"
#include "test/unit/checkpoint/TestFiles.h"

namespace shardc::checkpoint {
namespace {

/// A file with the given header and data, the header's length before it.
std::string fileOf(const std::string &header, size_t dataBytes) {
  uint64_t length = header.size();
  return std::string(reinterpret_cast<const char *>(&length), 8) + header +
         std::string(dataBytes, '\1');
}

Status safeTensorsStatus(const std::string &header, size_t dataBytes) {
  return readSafeTensorsHeader(bytesOf(fileOf(header, dataBytes))).status();
}

SafeTensorSource source(const std::string &name, Element type, Shape shape, char fill) {
  std::string bytes(static_cast<size_t>(*tensorBytes(type, shape)), fill);
  return {name, type, shape,
          [bytes](ByteSink &sink) { return sink.write(bytes.data(), bytes.size()); }};
}

TEST(SafeTensors, HeaderIsTheCanonicalOne) {
  std::vector<SafeTensorSource> tensors = {
      source("z", Element::F32, {2}, 1), source("a", Element::BF16, {3}, 2),
      source("i", Element::I64, {2}, 3), source("u", Element::U8, {1}, 4)};
  Result<std::string> header = safeTensorsHeader(tensors, {{"format", "pt"}});
  ASSERT_TRUE(header.isOk());
  EXPECT_EQ(
      header->substr(8),
      R"({"__metadata__":{"format":"pt"},"i":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},)"
      R"("z":{"dtype":"F32","shape":[2],"data_offsets":[16,24]},)"
      R"("a":{"dtype":"BF16","shape":[3],"data_offsets":[24,30]},)"
      R"("u":{"dtype":"U8","shape":[1],"data_offsets":[30,31]}}     )");
}

TEST(SafeTensors, ReadsWhatItWrites) {
  TempFolder folder;
  ASSERT_OK(
      writeSafeTensors(folder / "x.safetensors",
                       {source("w", Element::F32, {2, 3}, 1), source("s", Element::I64, {}, 2),
                        source("e", Element::F16, {0, 3}, 0), source("f", Element::F4, {4}, 3)}));
  Result<SafeTensorsFile> file =
      SafeTensorsFile::open(*UntrustedFolder::open(folder.path()), "x.safetensors");
  ASSERT_TRUE(file.isOk()) << file.status().message();
  EXPECT_EQ(file->header().metadata.at("format"), "pt");
  const SafeTensor *w = file->find("w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->shape, (Shape{2, 3}));
  EXPECT_EQ(file->bytes(*w).size(), 24u);
  EXPECT_EQ(file->bytes(*w)[0], 1);
  EXPECT_EQ(file->bytes(*file->find("e")).size(), 0u);
  EXPECT_EQ(file->bytes(*file->find("f")).size(), 2u);
  EXPECT_EQ(file->find("v"), nullptr);
}

TEST(SafeTensors, TensorsMustTileTheData) {
  const std::string kA = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  const std::string kB = R"("b":{"dtype":"U8","shape":[4],"data_offsets":[)";
  EXPECT_OK(safeTensorsStatus("{" + kA + "," + kB + "4,8]}}", 8));
  EXPECT_OK(safeTensorsStatus("  {" + kB + "4,8]}," + kA + "}   ", 8));
  EXPECT_FAILS(safeTensorsStatus("{" + kA + "," + kB + "2,6]}}", 6), "begins at 2");
  EXPECT_FAILS(safeTensorsStatus("{" + kA + "," + kB + "5,9]}}", 9), "begins at 5");
  EXPECT_FAILS(safeTensorsStatus("{" + kA + "}", 5), "the file holds 5");
  EXPECT_FAILS(safeTensorsStatus("{" + kA + "}", 3), "the file holds 3");
  EXPECT_FAILS(safeTensorsStatus("{" + kA + "," + kB + "4,7]}}", 7), "does not fit");
}

TEST(SafeTensors, RefusesWhatIsWrongInTheHeader) {
  const std::pair<const char *, const char *> kCases[] = {
      {R"({"a":{"dtype":"X9","shape":[1],"data_offsets":[0,1]}})", "unknown dtype"},
      {R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", "shape"},
      {R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", "shape"},
      {R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", "shape"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", "pair"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", "does not fit"},
      {R"({"a":{"dtype":"U8","shape":[1]}})", "has no dtype"},
      {R"({"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", "does not fit"},
      {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,1]}})",
       "does not fit"},
      {R"({"__metadata__":{"a":1},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "string"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
       R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       "'a' twice"},
      {R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", "'dtype' twice"},
      {R"([1])", "not a JSON object"},
      {R"({"a":)", "not a JSON object"},
  };
  for (const auto &[header, text] : kCases)
    EXPECT_FAILS(safeTensorsStatus(header, 1), text);
  EXPECT_OK(
      safeTensorsStatus(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"zz":1}})", 1));
  EXPECT_FAILS(safeTensorsStatus(std::string("{\"\xff\":1}"), 0), "not a JSON object");
}

TEST(SafeTensors, LengthOfTheHeaderIsLimited) {
  std::string file = fileOf("{}", 0);
  EXPECT_OK(readSafeTensorsHeader(bytesOf(file)).status());
  for (uint64_t length : {uint64_t{3}, uint64_t{200'000'000}, ~uint64_t{0}}) {
    std::memcpy(file.data(), &length, 8);
    EXPECT_FAILS(readSafeTensorsHeader(bytesOf(file)).status(), "the limit is 16000000");
  }
  EXPECT_FAILS(readSafeTensorsHeader(bytesOf("1234567")).status(), "too few");
}

TEST(SafeTensors, DamagedHeadersNeverCrash) {
  std::string good = fileOf(
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})",
      24);
  std::mt19937 random(5);
  for (int round = 0; round < 5000; ++round) {
    std::string bad = good;
    bad[random() % bad.size()] ^= static_cast<char>(1 << (random() % 8));
    if (round % 3 == 0)
      bad.resize(random() % bad.size());
    Result<SafeTensorsHeader> header = readSafeTensorsHeader(bytesOf(bad));
    EXPECT_TRUE(!header.isOk() || header->tensors.size() == 1);
  }
}

TEST(SafeTensorsModel, SplitsAndFindsItsParts) {
  TempFolder folder;
  std::vector<SafeTensorSource> tensors;
  for (char c = 'a'; c < 'h'; ++c)
    tensors.push_back(source(std::string(1, c), Element::F32, {10}, c));
  ASSERT_OK(writeSafeTensorsModel(folder.path(), tensors, 100));
  EXPECT_TRUE(std::filesystem::exists(folder / "model-00001-of-00004.safetensors"));
  Result<SafeTensorsModel> model = SafeTensorsModel::open(folder.path());
  ASSERT_TRUE(model.isOk()) << model.status().message();
  EXPECT_EQ(model->names().size(), 7u);
  EXPECT_EQ(model->bytes("e")[0], 'e');
  std::filesystem::remove(folder / "model.safetensors.index.json");
  Result<SafeTensorsModel> unindexed = SafeTensorsModel::open(folder.path());
  ASSERT_TRUE(unindexed.isOk()) << unindexed.status().message();
  EXPECT_EQ(unindexed->names().size(), 7u);
}

TEST(SafeTensorsModel, ExplainsWhatItsIndexGetsWrong) {
  TempFolder folder;
  EXPECT_FAILS(SafeTensorsModel::open(folder.path()).status(), "contains no model.safetensors");
  ASSERT_OK(writeSafeTensors(folder / "p.safetensors",
                             {source("a", Element::U8, {1}, 1), source("b", Element::U8, {1}, 1)}));
  auto status = [&](const char *index) {
    putContents(folder / "model.safetensors.index.json", index);
    return SafeTensorsModel::open(folder.path()).status();
  };
  EXPECT_FAILS(status(R"({"weight_map":{"a":"../p.safetensors"}})"),
               "something other than a file of its folder");
  EXPECT_FAILS(status(R"({"weight_map":{"a":"q.safetensors"}})"), "q.safetensors");
  EXPECT_FAILS(status(R"({})"), "no weight_map");
  EXPECT_OK(status(R"({"metadata":{"total_size":1},"weight_map":{"a":"p.safetensors"}})"));
  // All tensors of the files are read, whatever the index says of them.
  EXPECT_OK(status(R"({"weight_map":{"c":"p.safetensors"}})"));
  EXPECT_EQ(SafeTensorsModel::open(folder.path())->names().size(), 2u);
}

TEST(SafeTensorsModel, ReadsASingleFileBesideAnIndex) {
  TempFolder folder;
  std::vector<SafeTensorSource> old = {source("a", Element::U8, {1}, 1),
                                       source("b", Element::U8, {1}, 1)};
  ASSERT_OK(writeSafeTensorsModel(folder.path(), std::move(old), /*shardBytesMax=*/1));
  EXPECT_FALSE(SafeTensorsModel::open(folder.path())->hasUnreadIndex());
  ASSERT_OK(writeSafeTensors(folder / "model.safetensors", {source("a", Element::U8, {1}, 9)}));
  Result<SafeTensorsModel> model = SafeTensorsModel::open(folder.path());
  ASSERT_TRUE(model.isOk() && model->hasUnreadIndex());
  EXPECT_EQ(model->bytes("a")[0], 9);
}

TEST(SafeTensorsModel, NamesWhatIsThereInsteadOfWeights) {
  TempFolder folder;
  putContents(folder / "pytorch_model-00001-of-00002.bin", "");
  EXPECT_FAILS(SafeTensorsModel::open(folder.path()).status(), "but pytorch_model.bin; load it");
  putContents(folder / "model.safetensors",
              "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n");
  EXPECT_FAILS(SafeTensorsModel::open(folder.path()).status(), "a pointer of Git LFS");
}

TEST(SafeTensors, WriterRefusesWhatTheFormatLacks) {
  TempFolder folder;
  EXPECT_FAILS(writeSafeTensors(folder / "x", {source("c", Element::C128, {1}, 0)}), "complex128");
  EXPECT_FAILS(writeSafeTensors(folder / "x", {source("c", Element::U8, {1}, 0),
                                               source("c", Element::U8, {1}, 0)}),
               "two tensors");
  SafeTensorSource shortOne = source("c", Element::U8, {1}, 0);
  shortOne.shape = {2};
  EXPECT_FAILS(writeSafeTensors(folder / "x", {shortOne}), "1 bytes instead of 2");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

} // namespace
} // namespace shardc::checkpoint
