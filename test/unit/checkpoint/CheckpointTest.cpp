// Saves on some ranks, reads other boxes back, and compares them with the dense tensor.
#include <filesystem>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "runtime/checkpoint/PlainValue.h"
#include "test/unit/checkpoint/TestFiles.h"

namespace shardc::checkpoint {
namespace {

std::vector<float> counted(size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>(i);
  return values;
}

/// Saves a [cuts.back(), columns] tensor; rank i writes rows cuts[i] to cuts[i + 1] - 1.
void saveRows(const SaveTarget &target, const std::vector<int64_t> &cuts, int64_t columns) {
  int64_t rows = cuts.back();
  std::vector<float> values = counted(static_cast<size_t>(rows * columns));
  ASSERT_OK(beginSave(target));
  int worldSize = static_cast<int>(cuts.size()) - 1;
  for (int rank = 0; rank < worldSize; ++rank) {
    auto at = static_cast<size_t>(rank);
    TensorSlice slice{"w",
                      Element::F32,
                      {rows, columns},
                      {{cuts[at], 0}, {cuts[at + 1] - cuts[at], columns}},
                      values.data() + cuts[at] * columns};
    std::vector<BytesItem> items;
    if (rank == 0)
      items.push_back(objectItem({"iteration"}, PlainValue(7)));
    ASSERT_OK(writeRank(target, rank, {&slice, 1}, items));
  }
  ASSERT_OK(commitSave(target, worldSize));
}

TEST(Checkpoint, ASaveWhoseFolderIsGoneFailsAlone) {
  TempFolder folder;
  SaveTarget target = SaveTarget::iteration(folder.path(), 7);
  float value = 1;
  TensorSlice slice{"w", Element::F32, {1}, {{0}, {1}}, &value};
  ASSERT_OK(beginSave(target));
  ASSERT_OK(writeRank(target, 0, {&slice, 1}, {}));
  std::filesystem::remove_all(target.stagingPath());
  // The status is not Aborted, which would mean that the job is over: the run continues and saves
  // its next step.
  EXPECT_EQ(commitSave(target, 1).code(), StatusCode::Io);
  saveRows(SaveTarget::iteration(folder.path(), 8), {0, 2}, 3);
}

TEST(Checkpoint, AnyCutsReadBackAsAnyBox) {
  std::mt19937 random(1);
  for (int round = 0; round < 30; ++round) {
    TempFolder folder;
    int64_t rows = 1 + static_cast<int64_t>(random() % 20),
            columns = 1 + static_cast<int64_t>(random() % 9);
    std::vector<int64_t> cuts = {0, rows};
    for (size_t i = random() % 5; i > 0; --i)
      cuts.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(rows + 1)));
    std::sort(cuts.begin(), cuts.end());
    saveRows(SaveTarget::iteration(folder.path(), round), cuts, columns);
    Result<CheckpointReader> reader =
        CheckpointReader::open(SaveTarget::iteration(folder.path(), round).path());
    ASSERT_TRUE(reader.isOk()) << reader.status().message();
    for (int box = 0; box < 20; ++box) {
      Shape offset = {static_cast<int64_t>(random() % static_cast<uint64_t>(rows)),
                      static_cast<int64_t>(random() % static_cast<uint64_t>(columns))};
      Shape shape = {
          1 + static_cast<int64_t>(random() % static_cast<uint64_t>(rows - offset[0])),
          1 + static_cast<int64_t>(random() % static_cast<uint64_t>(columns - offset[1]))};
      std::vector<float> got = readBox<float>(*reader, "w", offset, shape, Element::F32);
      for (int64_t i = 0; i < shape[0]; ++i)
        for (int64_t j = 0; j < shape[1]; ++j)
          ASSERT_EQ(got[static_cast<size_t>(i * shape[1] + j)],
                    static_cast<float>((offset[0] + i) * columns + offset[1] + j));
    }
  }
}

TEST(Checkpoint, TilesOfFourDimsReadBack) {
  TempFolder folder;
  SaveTarget target{folder.path(), "c"};
  std::vector<float> values = counted(4 * 3 * 2 * 5);
  ASSERT_OK(beginSave(target));
  std::vector<std::vector<float>> tiles;
  std::vector<TensorSlice> slices;
  for (int64_t a = 0; a < 4; a += 2)
    for (int64_t b = 0; b < 3; ++b) { // tiles of [2, 1, 2, 5]
      std::vector<float> &tile = tiles.emplace_back();
      for (int64_t i = 0; i < 2; ++i)
        for (int64_t k = 0; k < 10; ++k)
          tile.push_back(values[static_cast<size_t>(((a + i) * 3 + b) * 10 + k)]);
      slices.push_back({"t", Element::F32, {4, 3, 2, 5}, {{a, b, 0, 0}, {2, 1, 2, 5}}, nullptr});
    }
  for (size_t i = 0; i < tiles.size(); ++i)
    slices[i].data = tiles[i].data();
  ASSERT_OK(writeRank(target, 0, std::span(slices).first(3), {}));
  ASSERT_OK(writeRank(target, 1, std::span(slices).subspan(3), {}));
  ASSERT_OK(commitSave(target, 2));
  Result<CheckpointReader> reader = CheckpointReader::open(target.path());
  ASSERT_TRUE(reader.isOk()) << reader.status().message();
  EXPECT_EQ(readBox<float>(*reader, "t", {0, 0, 0, 0}, {4, 3, 2, 5}, Element::F32), values);
  EXPECT_EQ(readBox<float>(*reader, "t", {1, 1, 1, 2}, {2, 2, 1, 2}, Element::F32),
            (std::vector<float>{47, 48, 57, 58, 77, 78, 87, 88}));
}

TEST(Checkpoint, SavesByThreadsWithABarrier) {
  TempFolder folder;
  SaveTarget target = SaveTarget::iteration(folder.path(), 3);
  constexpr int kRanks = 4;
  std::vector<float> values = counted(40);
  ThreadBarrier barrier(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      RowRange rows = shareOfRows(10, rank, kRanks);
      TensorSlice slice{"w",
                        Element::F32,
                        {10, 4},
                        {{rows.begin, 0}, {rows.end - rows.begin, 4}},
                        values.data() + rows.begin * 4};
      EXPECT_OK(save(target, rank, kRanks, {&slice, 1}, {}, std::ref(barrier)));
    });
  for (std::thread &thread : threads)
    thread.join();
  Result<CheckpointReader> reader = CheckpointReader::open(target.path());
  ASSERT_TRUE(reader.isOk()) << reader.status().message();
  EXPECT_EQ(readBox<float>(*reader, "w", {0, 0}, {10, 4}, Element::F32), values);
  EXPECT_EQ(contentsOf(folder / "latest_checkpointed_iteration.txt"), "3");
}

TEST(Checkpoint, ParallelReadsAgree) {
  TempFolder folder;
  SaveTarget target{folder.path(), "c"};
  saveRows(target, {0, 5, 100, 101, 300}, 50);
  Result<CheckpointReader> reader = CheckpointReader::open(target.path());
  ASSERT_TRUE(reader.isOk()) << reader.status().message();
  std::vector<float> values(300 * 50);
  std::vector<std::thread> threads;
  for (int64_t at = 0; at < 300; at += 60)
    threads.emplace_back([&, at] {
      EXPECT_OK(reader->read("w", {{at, 0}, {60, 50}}, Element::F32, values.data() + at * 50));
    });
  for (std::thread &thread : threads)
    thread.join();
  EXPECT_EQ(values, counted(300 * 50));
}

/// Returns what `give` passes on for a box of `w`, and the sizes of its parts.
std::string given(const CheckpointReader &reader, const Box &box, std::vector<size_t> &parts) {
  std::string all;
  EXPECT_OK(reader.give("w", box, [&](std::string_view part) {
    parts.push_back(part.size());
    all += part;
    return Status::ok();
  }));
  return all;
}

TEST(Checkpoint, GivesBoxesInParts) {
  TempFolder folder;
  SaveTarget target{folder.path(), "c"};
  constexpr int64_t kColumns = 1000, kRowBytes = 4 * kColumns, kPart = CheckpointReader::kGivenPart;
  saveRows(target, {0, 700, 900}, kColumns);
  Result<CheckpointReader> reader = CheckpointReader::open(target.path());
  ASSERT_TRUE(reader.isOk());
  // Rows of one chunk, rows of both chunks, and columns, which lie apart. The first are given as
  // mapped bytes in parts, the others in whole rows.
  struct Case {
    Box box;
    size_t partBytes;
  };
  for (const Case &item : {Case{{{1, 0}, {650, kColumns}}, kPart},
                           Case{{{600, 0}, {290, kColumns}}, kPart / kRowBytes * kRowBytes},
                           Case{{{3, 10}, {690, 700}}, kPart / 2800 * 2800}}) {
    std::vector<size_t> parts;
    std::string got = given(*reader, item.box, parts);
    std::string all(static_cast<size_t>(*tensorBytes(Element::F32, item.box.shape)), '\0');
    ASSERT_OK(reader->read("w", item.box, Element::F32, all.data()));
    EXPECT_TRUE(got == all) << boxText(item.box);
    EXPECT_EQ(parts.size(), all.size() / item.partBytes + 1) << boxText(item.box);
    EXPECT_EQ(*std::ranges::max_element(parts), item.partBytes) << boxText(item.box);
  }
}

TEST(Checkpoint, GivesNothingThatIsDamaged) {
  TempFolder folder;
  SaveTarget target{folder.path(), "c"};
  saveRows(target, {0, 900}, 1000);
  std::string bytes = contentsOf(target.path() + "/__0_0.distcp");
  bytes[2'500'000] ^= 1;
  putContents(target.path() + "/__0_0.distcp", bytes);
  Result<CheckpointReader> reader = CheckpointReader::open(target.path());
  ASSERT_TRUE(reader.isOk());
  Box box = {{0, 0}, {900, 1000}};
  size_t size = 0;
  auto take = [&](std::string_view part) {
    size += part.size();
    return size > 0 ? Status::ok() : Status(StatusCode::Io, "");
  };
  EXPECT_FAILS(reader->give("w", box, take), "__0_0.distcp' is damaged between bytes 2097152 and");
  EXPECT_LT(size, 2'500'000u);
  // If the receiver of the parts fails, its own message is returned, without a location of the
  // source.
  Status status =
      reader->give("w", box, [](std::string_view) { return Status(StatusCode::Io, "no space"); });
  EXPECT_EQ(status.message(), "no space");
}

TEST(Checkpoint, ConvertsWhileReading) {
  TempFolder folder;
  SaveTarget target{folder.path(), "c"};
  saveRows(target, {0, 2}, 3);
  Result<CheckpointReader> reader = CheckpointReader::open(target.path());
  ASSERT_TRUE(reader.isOk());
  std::vector<uint16_t> halves = readBox<uint16_t>(*reader, "w", {0, 0}, {2, 3}, Element::BF16);
  EXPECT_EQ(halves[5], 0x40a0); // 5.0
  std::vector<int64_t> wrong(6);
  EXPECT_FAILS(reader->read("w", {{0, 0}, {2, 3}}, Element::I64, wrong.data()),
               "cannot be converted to int64");
}

TEST(Checkpoint, MissingNamesAndBoxesAreExplained) {
  TempFolder folder;
  SaveTarget target{folder.path(), "c"};
  saveRows(target, {0, 2}, 3);
  Result<CheckpointReader> reader = CheckpointReader::open(target.path());
  ASSERT_TRUE(reader.isOk());
  float value[6];
  EXPECT_FAILS(reader->read("v", {{0}, {1}}, Element::F32, value),
               "Missing key in checkpoint state_dict: v. [tensors-missing]");
  EXPECT_FAILS(reader->read("w", {{0, 1}, {2, 3}}, Element::F32, value),
               "is not inside 'w' of shape [2, 3]");
  EXPECT_FAILS(reader->read("w", {{0}, {2}}, Element::F32, value), "is not inside");
  EXPECT_FAILS(reader->read("iteration", {{}, {}}, Element::F32, value), "is an object");
  EXPECT_FAILS(reader->readObject("w").status(), "is a tensor");
}

TEST(Checkpoint, HolesAreFoundWhenSavingAndWhenReading) {
  TempFolder folder;
  SaveTarget target{folder.path(), "c"};
  float values[8] = {};
  TensorSlice slice{"w", Element::F32, {4, 2}, {{0, 0}, {3, 2}}, values};
  EXPECT_FAILS(save(target, 0, 1, {&slice, 1}, {}), "saved 6 of the 8 elements of 'w'");
  EXPECT_FALSE(std::filesystem::exists(target.path()));
  // A checkpoint of another program may have a gap. A read that avoids it works, and a read across
  // it does not.
  Metadata metadata = CheckpointReader::open(fixture("B"))->metadata();
  TempFolder other;
  copyFolder(fixture("B"), other / "c");
  for (TensorMeta &tensor : metadata.tensors)
    if (tensor.name == "model.module.even")
      tensor.chunks.pop_back();
  putContents(other / "c/.metadata", writeMetadata(metadata));
  Result<CheckpointReader> reader = CheckpointReader::open(other / "c");
  ASSERT_TRUE(reader.isOk()) << reader.status().message();
  readBox<float>(*reader, "model.module.even", {0, 0}, {4, 3}, Element::F32);
  float box[24];
  EXPECT_FAILS(reader->read("model.module.even", {{0, 0}, {4, 6}}, Element::F32, box),
               "contain 18 of the 24 elements");
}

TEST(Checkpoint, RanksMustAgree) {
  TempFolder folder;
  SaveTarget target{folder.path(), "c"};
  float values[8] = {};
  TensorSlice a{"w", Element::F32, {4, 2}, {{0, 0}, {2, 2}}, values},
      b{"w", Element::BF16, {4, 2}, {{2, 0}, {2, 2}}, values};
  ASSERT_OK(beginSave(target));
  ASSERT_OK(writeRank(target, 0, {&a, 1}, {}));
  EXPECT_FAILS(commitSave(target, 2), "rank 1 did not finish");
  ASSERT_OK(writeRank(target, 1, {&b, 1}, {}));
  EXPECT_FAILS(commitSave(target, 2), "ranks disagree on 'w'");
  b = {"w", Element::F32, {4, 2}, {{1, 0}, {3, 2}}, values};
  ASSERT_OK(writeRank(target, 1, {&b, 1}, {}));
  EXPECT_FAILS(commitSave(target, 2), "overlap");
  b = {"w", Element::F32, {4, 2}, {{3, 0}, {2, 2}}, values};
  EXPECT_FAILS(writeRank(target, 1, {&b, 1}, {}), "not inside the tensor's shape");
}

TEST(Checkpoint, WhatRanksSaveAlikeIsKeptOnce) {
  TempFolder folder;
  SaveTarget target{folder.path(), "c"};
  std::vector<float> values = counted(4);
  TensorSlice slice{"w", Element::F32, {4}, {{0}, {4}}, values.data()};
  BytesItem item = objectItem({"a", "b"}, PlainValue("x"));
  ASSERT_OK(beginSave(target));
  for (int rank = 0; rank < 3; ++rank)
    ASSERT_OK(writeRank(target, rank, {&slice, 1}, {&item, 1}));
  ASSERT_OK(commitSave(target, 3));
  Result<CheckpointReader> reader = CheckpointReader::open(target.path());
  ASSERT_TRUE(reader.isOk()) << reader.status().message();
  EXPECT_EQ(reader->findTensor("w")->chunks.size(), 1u);
  EXPECT_EQ(reader->metadata().objects.size(), 1u);
  EXPECT_EQ(reader->metadata().paths.at("a.b"), (ItemPath{"a", "b"}));
}

TEST(Checkpoint, EmptyTensorsAndEmptyRanksAreFine) {
  TempFolder folder;
  SaveTarget target{folder.path(), "c"};
  std::vector<float> values = counted(4);
  std::vector<TensorSlice> all = {{"w", Element::F32, {4}, {{0}, {4}}, values.data()},
                                  {"none", Element::F32, {0, 3}, {{0, 0}, {0, 3}}, nullptr}};
  std::vector<TensorSlice> nothing = {{"w", Element::F32, {4}, {{4}, {0}}, nullptr}};
  ASSERT_OK(beginSave(target));
  ASSERT_OK(writeRank(target, 0, nothing, {}));
  ASSERT_OK(writeRank(target, 1, all, {}));
  ASSERT_OK(commitSave(target, 2));
  EXPECT_FALSE(std::filesystem::exists(target.path() + "/__0_0.distcp"));
  Result<CheckpointReader> reader = CheckpointReader::open(target.path());
  ASSERT_TRUE(reader.isOk()) << reader.status().message();
  EXPECT_EQ(reader->findTensor("none")->shape, (Shape{0, 3}));
  readBox<float>(*reader, "none", {0, 0}, {0, 3}, Element::F32);
  EXPECT_OK(reader->verifyTensor(*reader->findTensor("none")));
  EXPECT_EQ(readBox<float>(*reader, "w", {1}, {2}, Element::F32), (std::vector<float>{1, 2}));
}

TEST(Checkpoint, FilesBesideTheRecordsHaveChecksums) {
  TempFolder folder;
  SaveTarget target = SaveTarget::iteration(folder.path(), 1);
  std::vector<float> values = counted(4);
  TensorSlice slice{"w", Element::F32, {4}, {{0}, {4}}, values.data()};
  for (const char *name : {"notes.txt", "recipe/a.recipe", "recipe/in here/100% 50%20.recipe",
                           "recipe/two\nlines", "recipe/\xc3\xa9", "recipe/nothing"}) {
    ASSERT_OK(beginSave(target));
    ASSERT_OK(writeRank(target, 0, {&slice, 1}, {}));
    bool isEmpty = std::string_view(name).ends_with("nothing");
    ASSERT_OK(addFile(target, name, isEmpty ? "" : "what it says"));
    ASSERT_OK(commitSave(target, 1));
    std::string path = target.path() + "/" + name;
    EXPECT_EQ(contentsOf(path), isEmpty ? "" : "what it says");
    auto verify = [&] {
      Result<CheckpointReader> reader = CheckpointReader::open(target.path());
      return reader.isOk() ? reader->verifyFiles() : reader.status();
    };
    EXPECT_OK(verify());
    putContents(path, isEmpty ? "x" : "what it sayz");
    EXPECT_FAILS(verify(), path);
    std::filesystem::remove(path);
    EXPECT_FAILS(verify(), path);
  }
  for (const char *name : {"../x", "/x", "a/../x", "a//x", "a/", ".", ""})
    EXPECT_FAILS(addFile(target, name, "x"), "is not a plain file name");
}

TEST(Checkpoint, EqualSavesAreEqualBytes) {
  TempFolder folder;
  for (const char *name : {"a", "b"})
    saveRows({folder.path(), name}, {0, 2, 5}, 3);
  for (const char *file : {".metadata", "__0_0.distcp", "__1_0.distcp", ".shardc_integrity"})
    EXPECT_EQ(contentsOf(folder / "a/" + file), contentsOf(folder / "b/" + file));
}

TEST(Checkpoint, SlicesThatAreGivenInPartsAreTheSameBytes) {
  TempFolder folder;
  std::vector<float> values = counted(700'000);
  std::string_view all(reinterpret_cast<const char *>(values.data()), 4 * values.size());
  for (size_t part : {size_t{1}, size_t{4099}, size_t{1} << 20, all.size()}) {
    for (const char *name : {"a", "b"}) {
      SaveTarget target{folder / std::to_string(part), name};
      TensorSlice slice = {"w", Element::F32, {700'000}, {{0}, {700'000}}, values.data()};
      if (name[0] == 'b') {
        slice.data = nullptr;
        slice.give = [&](const TakeBytes &take) {
          for (size_t at = 0; at < all.size(); at += part)
            RETURN_IF_ERROR(take(all.substr(at, part)));
          return Status::ok();
        };
      }
      ASSERT_OK(save(target, 0, 1, {&slice, 1}, {}));
    }
    for (const char *file : {".metadata", "__0_0.distcp", ".shardc_integrity"})
      EXPECT_TRUE(contentsOf(folder / std::to_string(part) + "/a/" + file) ==
                  contentsOf(folder / std::to_string(part) + "/b/" + file))
          << file << " in parts of " << part;
  }
}

TEST(Checkpoint, FoldersThatAreNoCheckpointAreExplained) {
  TempFolder folder;
  EXPECT_FAILS(CheckpointReader::open(folder / "x").status(), "is not a folder");
  EXPECT_FAILS(CheckpointReader::open(folder.path()).status(),
               "has no '.metadata' [checkpoint-not-found]");
  putContents(folder / "__0.metadata", "x");
  EXPECT_FAILS(CheckpointReader::open(folder.path()).status(), "one metadata file per rank");
  putContents(folder / ".metadata.tmp", "x");
  EXPECT_FAILS(CheckpointReader::open(folder.path()).status(), "interrupted save");
}

TEST(Checkpoint, MissingShortAndStrayFilesAreNamed) {
  TempFolder folder;
  copyFolder(fixture("A"), folder / "c");
  std::string data = contentsOf(folder / "c/__0_0.distcp");
  putContents(folder / "c/__0_0.distcp", data.substr(0, 2000));
  EXPECT_FAILS(CheckpointReader::open(folder / "c").status(),
               "truncated: 2838 bytes are needed by '.metadata', but it has 2000");
  std::filesystem::remove(folder / "c/__0_0.distcp");
  EXPECT_FAILS(CheckpointReader::open(folder / "c").status(),
               "has no file '__0_0.distcp', which '.metadata' names");
  putContents(folder / "outside", data);
  std::filesystem::create_symlink(folder / "outside", folder / "c/__0_0.distcp");
  EXPECT_FAILS(CheckpointReader::open(folder / "c").status(), "is a link, not a file");
}

} // namespace
} // namespace shardc::checkpoint
