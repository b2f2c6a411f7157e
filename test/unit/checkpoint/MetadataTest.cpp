#include <gtest/gtest.h>

#include "runtime/checkpoint/DcpMetadata.h"
#include "runtime/checkpoint/Integrity.h"
#include "runtime/checkpoint/PickleWriter.h"
#include "test/unit/checkpoint/TestFiles.h"

namespace shardc::checkpoint {
namespace {

using namespace std::string_literals;

Metadata sampleMetadata() {
  Metadata metadata;
  metadata.tensors.push_back({"w",
                              Element::BF16,
                              {6, 4},
                              {{{{0, 0}, {3, 4}}, {"__0_0.distcp", 0, 1600}},
                               {{{3, 0}, {3, 4}}, {"__1_0.distcp", 7, 1600}}}});
  metadata.tensors.push_back({"s", Element::F8E4M3, {}, {{{}, {"__0_0.distcp", 1600, 1500}}}});
  metadata.objects.push_back({"a.b", {"__0_0.distcp", 3100, int64_t{1} << 40}});
  metadata.paths["a.b"] = {"a", "b"};
  metadata.saveId = "id";
  return metadata;
}

Status metadataStatus(const std::string &bytes) { return readMetadata(bytesOf(bytes)).status(); }

TEST(Metadata, ReadsWhatItWrites) {
  std::string bytes = writeMetadata(sampleMetadata());
  Result<Metadata> read = readMetadata(bytesOf(bytes));
  ASSERT_TRUE(read.isOk()) << read.status().message();
  ASSERT_EQ(read->tensors.size(), 2u);
  EXPECT_EQ(read->tensors[0].type, Element::BF16);
  EXPECT_EQ(read->tensors[0].chunks[1].box.offset, (Shape{3, 0}));
  EXPECT_EQ(read->tensors[0].chunks[1].record.file, "__1_0.distcp");
  EXPECT_EQ(read->tensors[1].shape, Shape{});
  EXPECT_EQ(read->objects[0].record.length, uint64_t{1} << 40);
  EXPECT_EQ(read->paths.at("w"), ItemPath{"w"});
  EXPECT_EQ(read->paths.at("a.b"), (ItemPath{"a", "b"}));
  EXPECT_EQ(read->saveId, "id");
  EXPECT_EQ(read->version, "1.0.0");
  EXPECT_EQ(writeMetadata(*read), bytes);
}

TEST(Metadata, RefusesRecordsOverEachOther) {
  Metadata metadata = sampleMetadata();
  metadata.objects[0].record.offset = 1000;
  EXPECT_FAILS(metadataStatus(writeMetadata(metadata)),
               "the records of 'w' at byte 0 of '__0_0.distcp', 1600 bytes, and of 'a.b' at byte "
               "1000 overlap");
  // The object has the record of a tensor's chunk.
  metadata.objects[0].record = metadata.tensors[1].chunks[0].record;
  EXPECT_FAILS(metadataStatus(writeMetadata(metadata)), "overlap");
}

TEST(Metadata, RefusesPathsOfOtherNames) {
  Metadata metadata = sampleMetadata();
  metadata.paths["a.b"] = {"a", "c"};
  EXPECT_FAILS(metadataStatus(writeMetadata(metadata)),
               "'a.b': planner_data has it under the path 'a.c'");
}

TEST(Metadata, EmptyOneIsFine) { EXPECT_OK(metadataStatus(writeMetadata(Metadata()))); }

TEST(Metadata, TakesOldModuleNames) {
  std::string text = writeMetadata(sampleMetadata());
  const std::string kNew = "ctorch.distributed.checkpoint.metadata\n",
                    kOld = "ctorch.distributed._shard.sharded_tensor.metadata\n";
  for (int i = 0; i < 2; ++i) {
    text = replaced(text, kNew + "TensorProperties", kOld + "TensorProperties");
    text = replaced(text, kNew + "_MEM_FORMAT_ENCODING", kOld + "MEM_FORMAT_ENCODING");
  }
  EXPECT_OK(metadataStatus(text));
}

TEST(Metadata, TakesPropertiesWithFieldsAppended) { // torch 2.15 appends the strides
  std::string text = writeMetadata(sampleMetadata());
  const std::string kEnd = "K\x00\x85R\x89tb"s;
  EXPECT_OK(metadataStatus(replaced(text, kEnd, "K\x00\x85R\x89K\x04K\x01\x86tb"s)));
}

TEST(Metadata, RefusesChunksThatOverlapOrLeaveTheTensor) {
  Metadata metadata = sampleMetadata();
  metadata.tensors[0].chunks[1].box.offset = {2, 0};
  EXPECT_FAILS(metadataStatus(writeMetadata(metadata)), "chunks at [0, 0] and [2, 0] overlap");
  metadata.tensors[0].chunks[1].box.offset = {4, 0};
  EXPECT_FAILS(metadataStatus(writeMetadata(metadata)), "reaches out of the shape [6, 4]");
  metadata.tensors[0].chunks[1].box.offset = {3};
  EXPECT_FAILS(metadataStatus(writeMetadata(metadata)), "in a tensor of shape");
  metadata.tensors[0].chunks[1].box.offset = {0, 0};
  EXPECT_FAILS(metadataStatus(writeMetadata(metadata)), "two records");
}

TEST(Metadata, RefusesFilesOutsideTheFolder) {
  for (const char *file : {"../x", "/etc/passwd", "a/b", "a\\b", "..", ".", ""}) {
    Metadata metadata = sampleMetadata();
    metadata.objects[0].record.file = file;
    EXPECT_FAILS(metadataStatus(writeMetadata(metadata)), "not a plain name");
  }
}

TEST(Metadata, RefusesWhatItDoesNotUnderstand) {
  std::string text = writeMetadata(sampleMetadata());
  EXPECT_FAILS(metadataStatus(replaced(text, "1.0.0", "2.0.0")), "version '2.0.0'");
  EXPECT_FAILS(metadataStatus(replaced(text, "torch.strided", "torch.sparsed")), "torch.sparsed");
  EXPECT_FAILS(metadataStatus(replaced(text, "ctorch\nbfloat16", "ctorch\nSize")), "element type");
  EXPECT_FAILS(metadataStatus(replaced(text, "K\x00\x85R\x89tb"s, "K\x05\x85R\x89tb"s)),
               "memory format");
  EXPECT_FAILS(metadataStatus(replaced(text, "_StorageInfo", "_StoragePrefix")), "_StorageInfo");
}

TEST(Metadata, NamesTheTransformThatIsNotRead) {
  std::string text = writeMetadata(sampleMetadata());
  const std::string kLength = "X\x06\x00\x00\x00lengthM\x40\x06"s;
  std::string with =
      replaced(text, kLength,
               kLength + "X\x15\x00\x00\x00transform_descriptors]X\x0d\x00\x00\x00stream.zstd/1"
                         "a"s);
  EXPECT_FAILS(metadataStatus(with), "uses transform 'stream.zstd/1'");
}

TEST(Metadata, RefusesChunksWithoutRecords) {
  std::string text = writeMetadata(sampleMetadata());
  // The key of the second chunk's record names another tensor.
  size_t at = text.find("storage_data");
  at = text.find("X\x01\x00\x00\x00wX\x05\x00\x00\x00indexK\x01"s, at);
  text[at + 5] = 'v';
  EXPECT_FAILS(metadataStatus(text), "'w' has no record for its chunk at [3, 0]");
}

TEST(Metadata, RefusesHugeShapes) {
  Metadata metadata = sampleMetadata();
  metadata.tensors[0].shape = {int64_t{1} << 48, int64_t{1} << 48};
  EXPECT_FAILS(metadataStatus(writeMetadata(metadata)), "too large");
  metadata.tensors[0].shape = {int64_t{1} << 50, 1};
  EXPECT_FAILS(metadataStatus(writeMetadata(metadata)), "2^48");
}

TEST(Metadata, ManyChunksAreCheckedQuickly) {
  Metadata metadata;
  metadata.tensors.push_back({"w", Element::F32, {300, 300}, {}});
  for (int64_t i = 0; i < 300; ++i)
    for (int64_t j = 0; j < 300; j += 3)
      metadata.tensors[0].chunks.push_back({{{i, j}, {1, 3}}, {"f", 0, 0}});
  EXPECT_OK(checkMetadata(metadata));
}

TEST(SaveId, OnlyOurOwnAreOurs) {
  for (int i = 0; i < 100; ++i)
    EXPECT_TRUE(isOwnSaveId(saveIdOf(std::to_string(i)))) << i;
  std::string id = saveIdOf("contents");
  EXPECT_EQ(id.size(), 36u);
  for (size_t at : {0u, 10u, 16u, 20u, 35u}) {
    std::string other = id;
    other[at] = other[at] == 'a' ? 'b' : 'a';
    EXPECT_FALSE(isOwnSaveId(other)) << other;
  }
  for (const char *other :
       {"", "id", "1b4e28ba-2fa1-4d2e-883f-0016d3cca427", "zzzzzzzz-zzzz-4zzz-8zzz-zzzzzzzzzzzz"})
    EXPECT_FALSE(isOwnSaveId(other)) << other;
}

} // namespace
} // namespace shardc::checkpoint
