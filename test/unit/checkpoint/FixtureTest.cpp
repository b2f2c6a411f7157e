// Checkpoints of PyTorch decode to the values that were saved, and our writers reproduce their
// bytes.
#include <gtest/gtest.h>

#include "runtime/checkpoint/PickleWriter.h"
#include "runtime/checkpoint/PlainValue.h"
#include "test/unit/checkpoint/TestFiles.h"

namespace shardc::checkpoint {
namespace {

CheckpointReader openFixture(const std::string &name) {
  Result<CheckpointReader> reader = CheckpointReader::open(fixture(name), Verify::Whole);
  EXPECT_TRUE(reader.isOk()) << reader.status().message();
  return std::move(*reader);
}

const std::string kWeight = "decoder.layers.0.mlp.linear_fc2.weight";
const std::string kState = "optimizer.state.module.module.module." + kWeight;

class FourRankFixture : public testing::TestWithParam<const char *> {};

TEST_P(FourRankFixture, TensorsHaveTheirValues) {
  CheckpointReader reader = openFixture(GetParam());
  std::vector<float> weight =
      readBox<float>(reader, "model.module." + kWeight, {0, 0}, {6, 4}, Element::F32);
  std::vector<float> average =
      readBox<float>(reader, kState + ".exp_avg", {0, 0}, {6, 4}, Element::F32);
  std::vector<float> square =
      readBox<float>(reader, kState + ".exp_avg_sq", {0, 0}, {6, 4}, Element::F32);
  for (size_t i = 0; i < 24; ++i) {
    EXPECT_EQ(weight[i], static_cast<float>(i));
    EXPECT_EQ(average[i], static_cast<float>(i + 1));
    EXPECT_EQ(square[i], static_cast<float>(i + 2)); // saved as bf16
  }
  std::vector<float> even =
      readBox<float>(reader, "model.module.even", {0, 0}, {4, 6}, Element::F32);
  for (size_t i = 0; i < 4; ++i)
    for (size_t j = 0; j < 6; ++j)
      EXPECT_EQ(even[6 * i + j], static_cast<float>(2 * (i / 2) + j / 3));
  EXPECT_EQ(readBox<float>(reader, "model.module.norm", {0}, {5}, Element::F32),
            std::vector<float>(5, 1.0f));
  EXPECT_EQ(readBox<int64_t>(reader, "model.module.plain", {0}, {3}, Element::I64),
            (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(readBox<float>(reader, "model.module.s", {}, {}, Element::F32),
            std::vector<float>{2.5f});
  EXPECT_EQ(readBox<float>(reader, "mix.1", {0}, {2}, Element::F32), std::vector<float>(2, 1.0f));
}

TEST_P(FourRankFixture, BoxesAcrossChunksHaveTheirValues) {
  CheckpointReader reader = openFixture(GetParam());
  EXPECT_EQ(readBox<float>(reader, "model.module." + kWeight, {1, 1}, {3, 2}, Element::F32),
            (std::vector<float>{5, 6, 9, 10, 13, 14}));
  EXPECT_EQ(readBox<float>(reader, "model.module.even", {1, 2}, {2, 2}, Element::F32),
            (std::vector<float>{0, 1, 2, 3}));
}

TEST_P(FourRankFixture, ObjectsHaveTheirValues) {
  CheckpointReader reader = openFixture(GetParam());
  EXPECT_EQ(objectText(reader, "args"),
            "Namespace(num_layers=2, bf16=True, params_dtype=torch.bfloat16, f=1.5, "
            "l=[1, 2], d={'a': None})");
  EXPECT_EQ(objectText(reader, "checkpoint_version"), "3");
  EXPECT_EQ(objectText(reader, "iteration"), "100");
  EXPECT_EQ(objectText(reader, "nf"), "12345678901234567890");
  EXPECT_EQ(objectText(reader, "lst"), "[1, 2]");
  EXPECT_EQ(objectText(reader, "opt_param_scheduler.lr_decay_style"), "'cosine'");
  EXPECT_EQ(objectText(reader,
                       "optimizer.param_to_group_meta.module.module.module." + kWeight + ".betas"),
            "(0.9, 0.95)");
  EXPECT_EQ(objectText(reader, "mix.0.x"), "1");
  Result<ObjectValue> numpy = reader.readObject("rng_state.(0, 0).0.np_rng_state");
  ASSERT_TRUE(numpy.isOk()) << numpy.status().message();
  EXPECT_EQ(numpy->graph().asText(numpy->graph().items(numpy->root())[0]), "MT19937");
}

TEST_P(FourRankFixture, TupleWithTensorIsOneObject) {
  CheckpointReader reader = openFixture(GetParam());
  Result<ObjectValue> tuple = reader.readObject("tup");
  ASSERT_TRUE(tuple.isOk()) << tuple.status().message();
  std::span<const PyId> items = tuple->graph().items(tuple->root());
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(tuple->graph().asInteger(items[0]), 1);
  Result<TensorView> tensor = tensorOf(tuple->archive, tuple->graph(), items[1]);
  ASSERT_TRUE(tensor.isOk()) << tensor.status().message();
  EXPECT_EQ(tensor->shape, (Shape{2}));
}

TEST_P(FourRankFixture, PathsRebuildTheNestedDict) {
  CheckpointReader reader = openFixture(GetParam());
  const auto &paths = reader.metadata().paths;
  EXPECT_EQ(paths.at("rng_state.(0, 1).0.np_rng_state"),
            (ItemPath{"rng_state", "(0, 1)", int64_t{0}, "np_rng_state"}));
  for (const auto &[name, path] : paths)
    EXPECT_EQ(nameOfPath(path), name);
}

TEST_P(FourRankFixture, EverythingVerifies) {
  CheckpointReader reader = openFixture(GetParam());
  EXPECT_TRUE(reader.metadata().warnings.empty());
  for (const TensorMeta &tensor : reader.metadata().tensors)
    EXPECT_OK(reader.verifyTensor(tensor));
  for (const ObjectMeta &object : reader.metadata().objects)
    EXPECT_OK(reader.verifyObject(object));
}

INSTANTIATE_TEST_SUITE_P(Torch211, FourRankFixture, testing::Values("B", "C", "E"));

TEST(Fixture, SimplerRecordsDecode) {
  for (const char *name : {"H1", "H2", "H3"}) {
    CheckpointReader reader = openFixture(name);
    std::vector<float> expected(24);
    for (size_t i = 0; i < 24; ++i)
      expected[i] = static_cast<float>(i);
    EXPECT_EQ(readBox<float>(reader, "m.w", {0, 0}, {6, 4}, Element::F32), expected);
    EXPECT_EQ(readBox<float>(reader, "m.h", {0}, {2}, Element::F32), (std::vector<float>{1, 2}));
    EXPECT_EQ(objectText(reader, "m.it"), "100");
    EXPECT_EQ(objectText(reader, "m.g"),
              "{'lr': 0.001, 'betas': (0.9, 0.95), 'n': None, 'b': True, "
              "'big': 1099511627776, 'neg': -5}");
  }
}

/// Writes the entries of an archive again.
std::string rewritten(const ArchiveReader &archive) {
  StringSink sink;
  ArchiveWriter writer(sink, archive.prefix());
  for (const ArchiveEntry &entry : archive.entries())
    if (entry.name != ".data/serialization_id")
      EXPECT_OK(writer.add(entry.name,
                           {reinterpret_cast<const char *>(entry.data.data()), entry.data.size()}));
  EXPECT_OK(writer.finish());
  return sink.bytes;
}

/// Reads a record and writes it again: tensors from shape and bytes, objects from their graph.
void expectIdentical(std::span<const uint8_t> record, const std::string &what) {
  std::string original(reinterpret_cast<const char *>(record.data()), record.size());
  Result<ArchiveReader> archive = ArchiveReader::open(record);
  ASSERT_TRUE(archive.isOk()) << what << archive.status().message();
  EXPECT_EQ(rewritten(*archive), original) << what;
  std::span<const uint8_t> bytes = archive->find("data.pkl")->data;
  std::string pickle(reinterpret_cast<const char *>(bytes.data()), bytes.size());
  Result<Pickle> read = readPickle(bytes, PickleContext::BytesItem);
  ASSERT_TRUE(read.isOk()) << what << read.status().message();
  Result<std::string> again = writePickle(read->graph, read->root);
  ASSERT_TRUE(again.isOk()) << what << again.status().message();
  EXPECT_EQ(*again, pickle) << what;
  Result<TensorView> tensor = readTensorRecord(*archive);
  if (!tensor.isOk() || archive->prefix() != "archive")
    return;
  StringSink sink;
  std::string_view data(reinterpret_cast<const char *>(tensor->storage.data()),
                        tensor->storage.size());
  EXPECT_OK(writeTensorRecord(sink, tensor->type, tensor->shape, {&data, 1}));
  EXPECT_EQ(sink.bytes, original) << what;
}

TEST(Fixture, EveryRecordComesOutByteForByte) {
  int records = 0;
  for (const char *name : {"A", "B", "C", "E"}) {
    CheckpointReader reader = openFixture(name);
    std::string root = fixture(name) + "/";
    auto check = [&](const RecordRef &record, const std::string &item) {
      std::string file = contentsOf(root + record.file);
      expectIdentical(bytesOf(file).subspan(record.offset, record.length), name + item);
      ++records;
    };
    for (const TensorMeta &tensor : reader.metadata().tensors)
      for (const Chunk &chunk : tensor.chunks)
        check(chunk.record, tensor.name);
    for (const ObjectMeta &object : reader.metadata().objects)
      check(object.record, object.name);
  }
  EXPECT_EQ(records, 167);
}

TEST(Fixture, EveryElementTypeComesOutByteForByte) {
  for (const auto &entry : std::filesystem::directory_iterator(fixture("T"))) {
    std::string name = entry.path().filename().string(), record = contentsOf(entry.path().string());
    Result<ArchiveReader> archive = ArchiveReader::open(bytesOf(record));
    ASSERT_TRUE(archive.isOk()) << name << archive.status().message();
    EXPECT_EQ(rewritten(*archive), record) << name;
    Result<TensorView> tensor = readTensorRecord(*archive);
    if (name == "p4" || name == "dict") {
      EXPECT_FALSE(tensor.isOk()) << name;
      continue;
    }
    ASSERT_TRUE(tensor.isOk()) << name << tensor.status().message();
    EXPECT_EQ(torchName(tensor->type), name == "empty" ? "float32" : name);
    const ArchiveEntry *pickle = archive->find("data.pkl");
    EXPECT_EQ(tensorPickle(tensor->type, tensor->shape),
              std::string(reinterpret_cast<const char *>(pickle->data.data()), pickle->data.size()))
        << name;
  }
}

TEST(Fixture, ViewsAndParametersOfADict) {
  std::string record = contentsOf(fixture("T/dict"));
  Result<ArchiveReader> archive = ArchiveReader::open(bytesOf(record));
  ASSERT_TRUE(archive.isOk());
  Result<Pickle> read = readPickle(archive->find("data.pkl")->data, PickleContext::BytesItem);
  ASSERT_TRUE(read.isOk()) << read.status().message();
  const PyGraph &graph = read->graph;
  Result<TensorView> y = tensorOf(*archive, graph, graph.lookup(read->root, "y"));
  ASSERT_TRUE(y.isOk()) << y.status().message();
  EXPECT_EQ(y->storageOffset, 3);
  Result<TensorView> z = tensorOf(*archive, graph, graph.lookup(read->root, "z"));
  ASSERT_TRUE(z.isOk()) << z.status().message();
  EXPECT_EQ(z->strides, (Shape{1, 3}));
  float values[6] = {};
  copyBox(z->shape, {z->type, z->strides}, z->origin(), {Element::F32, denseStrides(z->shape)},
          reinterpret_cast<uint8_t *>(values));
  EXPECT_EQ((std::vector<float>(values, values + 6)), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  EXPECT_TRUE(tensorOf(*archive, graph, graph.lookup(read->root, "p")).isOk());
}

} // namespace
} // namespace shardc::checkpoint
