// Differences between checkpoints of one format, and of two formats.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "runtime/checkpoint/Diff.h"
#include "runtime/checkpoint/PickleWriter.h"
#include "runtime/checkpoint/TensorRecord.h"
#include "test/unit/checkpoint/TestFiles.h"

namespace shardc::checkpoint {
namespace {

struct Contents {
  std::vector<float> weight = {1, 2, 3, 4, 5, 6};
  std::vector<int64_t> counts = {1, 2, 3};
  Shape shape = {3, 2};
  int64_t iteration = 7;
};

std::string saved(const TempFolder &folder, const std::string &name, const Contents &contents) {
  std::vector<TensorSlice> slices = {
      {"w", Element::F32, contents.shape, Box::whole(contents.shape), contents.weight.data()},
      {"n", Element::I64, {3}, Box::whole({3}), contents.counts.data()}};
  std::vector<BytesItem> items = {objectItem({"iteration"}, PlainValue(contents.iteration))};
  EXPECT_OK(save({folder.path(), name}, 0, 1, slices, items));
  return folder / name;
}

CheckpointDiff diffOf(const std::string &a, const std::string &b) {
  Result<CheckpointView> left = CheckpointView::open(a), right = CheckpointView::open(b);
  EXPECT_TRUE(left.isOk() && right.isOk());
  DiffOptions options;
  options.threads = 2;
  options.pieceBytes = 8; // a row
  Result<CheckpointDiff> diff = diffCheckpoints(*left, *right, options);
  EXPECT_TRUE(diff.isOk()) << diff.status().message();
  return *diff;
}

TEST(Diff, EqualOnesHaveNone) {
  TempFolder folder;
  Contents contents;
  contents.weight[2] = std::nanf(""); // equal bits are equal
  CheckpointDiff diff = diffOf(saved(folder, "a", contents), saved(folder, "b", contents));
  EXPECT_TRUE(diff.isEmpty());
  EXPECT_EQ(diff.sameTensors, 2);
  EXPECT_EQ(diff.sameObjects, 1);
}

TEST(Diff, ValuesHaveTheirGreatestDistance) {
  TempFolder folder;
  Contents a, b;
  b.weight[1] = 2.5f;
  b.weight[4] = 3;
  b.counts[0] = 11;
  b.iteration = 8;
  CheckpointDiff diff = diffOf(saved(folder, "a", a), saved(folder, "b", b));
  ASSERT_EQ(diff.tensors.size(), 2u);
  EXPECT_EQ(diff.tensors[0].name, "n");
  EXPECT_EQ(diff.tensors[0].maxAbs, 10);
  EXPECT_EQ(diff.tensors[1].maxAbs, 2);
  EXPECT_EQ(diff.tensors[1].elements, 2);
  EXPECT_EQ(diff.maxAbs, 10);
  ASSERT_EQ(diff.objects.size(), 1u);
  EXPECT_EQ(diff.objects[0].a + " " + diff.objects[0].b, "7 8");
}

TEST(Diff, NanAgainstANumberIsSaid) {
  TempFolder folder;
  Contents a, b;
  b.weight[0] = std::nanf("");
  b.weight[1] = 100;
  EXPECT_TRUE(std::isnan(diffOf(saved(folder, "a", a), saved(folder, "b", b)).maxAbs));
}

TEST(Diff, ShapesAndNames) {
  TempFolder folder;
  Contents a, b;
  b.shape = {2, 3};
  CheckpointDiff diff = diffOf(saved(folder, "a", a), saved(folder, "b", b));
  ASSERT_EQ(diff.tensors.size(), 1u);
  EXPECT_EQ(diff.tensors[0].what, "float32 [3, 2] and float32 [2, 3]");
  diff = diffOf(folder / "a", fixture("A"));
  EXPECT_EQ(diff.onlyInA, (std::vector<std::string>{"iteration", "n", "w"}));
  EXPECT_FALSE(diff.onlyInB.empty());
}

TEST(Diff, TypesThatConvertAreComparedByValue) {
  TempFolder folder;
  float wide[] = {1, 2};
  uint16_t narrow[] = {0x3f80, 0x4000}; // 1 and 2 in bf16
  std::vector<TensorSlice> a = {{"w", Element::F32, {2}, {{0}, {2}}, wide}},
                           b = {{"w", Element::BF16, {2}, {{0}, {2}}, narrow}};
  ASSERT_OK(save({folder.path(), "a"}, 0, 1, a, {}));
  ASSERT_OK(save({folder.path(), "b"}, 0, 1, b, {}));
  CheckpointDiff diff = diffOf(folder / "a", folder / "b");
  ASSERT_EQ(diff.tensors.size(), 1u);
  EXPECT_EQ(diff.tensors[0].what, "float32 and bfloat16");
  EXPECT_EQ(diff.tensors[0].maxAbs, 0);
}

/// An object that is not a plain value: a call of a class, containing a tensor, a list and itself.
BytesItem opaqueItem(float number, int64_t last, bool isSwapped) {
  PyGraph graph;
  const int64_t one[] = {1};
  PyId tensor = addTensorToGraph(graph, Element::F32, one, "0");
  PyId list = graph.list(std::vector<PyId>{graph.makeInteger(1), graph.makeInteger(last)});
  std::vector<PyId> pairs = {graph.str("scale"), tensor, graph.str("list"), list};
  if (isSwapped)
    std::rotate(pairs.begin(), pairs.begin() + 2, pairs.end());
  PyId dict = graph.dict(pairs);
  graph.mutableItems(list).push_back(dict); // a cycle
  PyId root = graph.call("some.module", "Thing", {dict, graph.str("same")});
  Result<std::string> pickle = writePickle(graph, root);
  EXPECT_TRUE(pickle.isOk()) << pickle.status().message();
  const ArchiveEntry storages[] = {
      {"data/0", {reinterpret_cast<const uint8_t *>(&number), sizeof number}}};
  Result<std::string> record = objectRecord(*pickle, storages);
  EXPECT_TRUE(record.isOk()) << record.status().message();
  return {"thing", *record, {"thing"}};
}

std::string savedThing(const TempFolder &folder, const std::string &name, const BytesItem &item) {
  EXPECT_OK(save({folder.path(), name}, 0, 1, {}, {&item, 1}));
  return folder / name;
}

TEST(Diff, ObjectsAreComparedByValueNotByBytes) {
  TempFolder folder;
  std::string a = savedThing(folder, "a", opaqueItem(1, 2, false)),
              b = savedThing(folder, "b", opaqueItem(1, 2, true));
  ASSERT_NE(opaqueItem(1, 2, false).record, opaqueItem(1, 2, true).record);
  CheckpointDiff diff = diffOf(a, b);
  EXPECT_TRUE(diff.isEmpty());
  EXPECT_EQ(diff.sameObjects, 1);
}

TEST(Diff, DifferencesInsideObjectsAreNamedByPath) {
  TempFolder folder;
  std::string a = savedThing(folder, "a", opaqueItem(1, 2, false));
  CheckpointDiff diff = diffOf(a, savedThing(folder, "b", opaqueItem(1.5f, 3, true)));
  ASSERT_EQ(diff.objects.size(), 2u);
  EXPECT_EQ(diff.objects[0].name, "thing.0.list.1");
  EXPECT_EQ(diff.objects[0].a + " " + diff.objects[0].b, "2 3");
  EXPECT_EQ(diff.objects[1].name, "thing.0.scale");
  EXPECT_EQ(diff.objects[1].a + " " + diff.objects[1].b, "1 1.5");
  EXPECT_EQ(diff.sameObjects, 0);
}

TEST(Diff, MissingEntriesOfObjectsAreNamed) {
  TempFolder folder;
  const BytesItem a = objectItem({"o"}, PlainEntries{{"x", 1}, {"y", PlainItems{1, 2}}}),
                  b = objectItem({"o"}, PlainEntries{{"y", PlainItems{1}}, {"x", 1.0}});
  CheckpointDiff diff = diffOf(savedThing(folder, "a", a), savedThing(folder, "b", b));
  ASSERT_EQ(diff.objects.size(), 2u);
  EXPECT_EQ(diff.objects[0].name + diff.objects[0].b, "o.x1"); // an integer and a float
  EXPECT_EQ(diff.objects[1].name + " " + diff.objects[1].a + " " + diff.objects[1].b,
            "o.y.1 2 nothing");
}

TEST(Diff, FormatsWithoutParametersCannotBeCompared) {
  TempFolder folder;
  saved(folder, "a", {});
  Result<CheckpointView> a = CheckpointView::open(folder / "a"),
                         b = CheckpointView::open(fixture("B"));
  ASSERT_TRUE(a.isOk() && b.isOk());
  EXPECT_FAILS(diffCheckpoints(*a, *b).status(), "only be compared by parameters");
}

} // namespace
} // namespace shardc::checkpoint
