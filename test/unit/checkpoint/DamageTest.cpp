// Truncated and flipped bytes are refused or harmless: no crash, and never different values.
#include <algorithm>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "runtime/checkpoint/Convert.h"
#include "runtime/checkpoint/FsdpCheckpoint.h"
#include "runtime/checkpoint/PlainValue.h"
#include "runtime/checkpoint/RunState.h"
#include "test/unit/checkpoint/TestFiles.h"
#include "test/unit/support/Long.h"

namespace shardc::checkpoint {
namespace {

/// The saved item under each name: shape, type and bytes, or an object's text.
using Items = std::map<std::string, std::string>;

/// Reads each item separately. The status is that of the last refused item.
Status readItems(const std::string &folder, Items &items) {
  ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::open(folder));
  Status last;
  for (const TensorMeta &tensor : reader.metadata().tensors) {
    // Before memory is allocated for shapes that no chunk covers.
    Status status = reader.verifyTensor(tensor);
    std::string bytes;
    if (status.isOk()) {
      bytes.resize(static_cast<size_t>(*tensorBytes(tensor.type, tensor.shape)));
      status = reader.read(tensor.name, Box::whole(tensor.shape), tensor.type, bytes.data());
    }
    if (status.isOk())
      items[tensor.name] =
          fmt::format("{} {} {}", shapeText(tensor.shape), torchName(tensor.type), bytes);
    else
      last = std::move(status);
  }
  for (const ObjectMeta &object : reader.metadata().objects) {
    Result<ObjectValue> value = reader.readObject(object.name);
    if (!value.isOk()) {
      last = value.status();
      continue;
    }
    Result<PlainValue> plain = plainValueOf(value->graph(), value->root());
    items[object.name] = plain.isOk() ? textOf(*plain) : "";
  }
  return last;
}

/// Everything that a checkpoint contains, or why a part of it is refused.
Result<std::string> readAll(const std::string &folder) {
  Items items;
  RETURN_IF_ERROR(readItems(folder, items));
  std::string all;
  for (const auto &[name, value] : items)
    all += name + value;
  return all;
}

/// The items of the checkpoint in a folder as one text; nothing if they cannot be read.
std::optional<std::string> allOf(const std::string &folder) {
  Result<std::string> all = readAll(folder);
  EXPECT_TRUE(all.isOk() || !all.status().message().empty());
  return all.isOk() ? std::optional(*all) : std::nullopt;
}

/// Ten thousand in long test runs, otherwise a hundred.
int placesToDamage() { return test::isLong() ? 10'000 : 100; }

/// Damages a file at a random place: flips one bit, or truncates it there.
std::string damaged(const std::string &bytes, std::mt19937 &random) {
  std::string bad = bytes;
  size_t at = random() % bad.size();
  if (random() % 4 == 0)
    bad.resize(at);
  else
    bad[at] ^= static_cast<char>(1 << (random() % 8));
  return bad;
}

std::vector<std::string> filesIn(const std::string &folder) {
  std::vector<std::string> names;
  for (const auto &entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

/// Three ranks' files, as a run under Megatron FSDP saves them.
void saveRanks(const std::string &root) {
  SaveTarget target = SaveTarget::iteration(root, 5);
  ASSERT_OK(beginSave(target));
  std::vector<float> values(64, 0.25f);
  for (int rank = 0; rank < 3; ++rank) {
    RowRange rows = shareOfRows(8, rank, 3);
    std::vector<TensorSlice> slices = {{"model.module.w",
                                        Element::F32,
                                        {8, 8},
                                        {{rows.begin, 0}, {rows.end - rows.begin, 8}},
                                        values.data()}};
    RunState state;
    state.iteration = 5;
    state.args = {{"num_layers", 2}, {"swiglu", true}};
    std::vector<BytesItem> items = rank == 0 ? runStateItems(state) : std::vector<BytesItem>();
    if (rank == 1)
      items = groupMetaItems("w", {});
    ASSERT_OK(writeRank(target, rank, slices, items));
  }
  Result<std::string> trainState = trainStateFile({});
  ASSERT_TRUE(trainState.isOk());
  ASSERT_OK(addFile(target, "train_state.pt", *trainState));
  ASSERT_OK(commitSave(target, 3));
}

void saveSmall(const std::string &root) {
  std::vector<float> values(24, 1.5f);
  std::vector<TensorSlice> slices = {
      {"model.w", Element::F32, {6, 4}, {{0, 0}, {6, 4}}, values.data()},
      {"model.b", Element::BF16, {3}, {{0}, {3}}, values.data()}};
  std::vector<BytesItem> items = {
      objectItem({"iteration"}, PlainValue(100)),
      objectItem({"group"}, PlainEntries{{"lr", 1e-3}, {"betas", PlainTuple{{0.9, 0.95}}}})};
  ASSERT_OK(save({root, "c"}, 0, 1, slices, items));
}

const char *const kFiles[] = {".metadata", "__0_0.distcp", ".shardc_integrity"};

TEST(Damage, OwnCheckpointsAreRefusedOrUnchangedUnderBitFlips) {
  TempFolder folder;
  saveSmall(folder.path());
  std::optional<std::string> good = allOf(folder / "c");
  ASSERT_TRUE(good.has_value());
  std::mt19937 random(7);
  for (const char *name : kFiles) {
    std::string path = folder / "c/" + name, bytes = contentsOf(path);
    for (int round = 0; round < 1500; ++round) {
      std::string bad = bytes;
      bad[random() % bad.size()] ^= static_cast<char>(1 << (random() % 8));
      putContents(path, bad);
      std::optional<std::string> got = allOf(folder / "c");
      EXPECT_FALSE(got.has_value()) << name << " round " << round; // a checksum covers every byte
    }
    putContents(path, bytes);
  }
  EXPECT_EQ(allOf(folder / "c"), good);
}

TEST(Damage, EveryPlaceOfOwnCheckpointsIsGuarded) {
  TempFolder folder;
  saveRanks(folder.path());
  std::string checkpoint = folder / "iter_0000005";
  std::optional<std::string> good = allOf(checkpoint);
  ASSERT_TRUE(good.has_value());
  std::vector<std::string> names = filesIn(checkpoint);
  std::mt19937 random(11);
  for (int round = 0; round < placesToDamage(); ++round) {
    const std::string &name = names[random() % names.size()];
    std::string path = checkpoint + "/" + name, bytes = contentsOf(path);
    putContents(path, damaged(bytes, random));
    Result<std::string> all = readAll(checkpoint);
    Status status = all.status();
    if (all.isOk()) { // only verification reads files other than the records
      EXPECT_EQ(*all, *good) << name << " round " << round;
      status = CheckpointReader::open(checkpoint)->verifyFiles();
    }
    EXPECT_FALSE(status.isOk()) << name << " round " << round;
    EXPECT_NE(status.message().find(name), std::string::npos)
        << name << " round " << round << ": " << status.message();
    putContents(path, bytes);
  }
  EXPECT_EQ(allOf(checkpoint), good);
}

TEST(Damage, ForeignCheckpointsAreRefusedOrUnchanged) {
  TempFolder folder;
  copyFolder(fixture("B"), folder / "c");
  std::optional<std::string> good = allOf(folder / "c");
  ASSERT_TRUE(good.has_value());
  std::vector<std::string> names = filesIn(folder / "c");
  std::mt19937 random(12);
  for (int round = 0; round < placesToDamage(); ++round) {
    const std::string &name = names[random() % names.size()];
    std::string path = folder / "c/" + name, bytes = contentsOf(path);
    putContents(path, damaged(bytes, random));
    Result<std::string> all = readAll(folder / "c");
    if (all.isOk()) {
      EXPECT_EQ(*all, *good) << name << " round " << round;
    } else {
      EXPECT_NE(all.status().message().find(name), std::string::npos) << all.status().message();
    }
    putContents(path, bytes);
  }
}

TEST(Damage, OwnCheckpointsAreRefusedWhenCutShort) {
  TempFolder folder;
  saveSmall(folder.path());
  for (const char *name : kFiles) {
    std::string path = folder / "c/" + name, bytes = contentsOf(path);
    for (size_t size = 0; size < bytes.size(); size += 1 + size / 64) {
      putContents(path, std::string_view(bytes).substr(0, size));
      EXPECT_FALSE(allOf(folder / "c").has_value()) << name << " cut to " << size;
    }
    putContents(path, bytes);
  }
}

TEST(Damage, ForeignRecordsAreRefusedOrUnchangedUnderBitFlips) {
  TempFolder folder;
  copyFolder(fixture("A"), folder / "c");
  std::optional<std::string> good = allOf(folder / "c");
  ASSERT_TRUE(good.has_value());
  std::string path = folder / "c/__0_0.distcp", bytes = contentsOf(path);
  for (size_t bit = 0; bit < bytes.size() * 8; bit += 3) {
    std::string bad = bytes;
    bad[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    putContents(path, bad);
    std::optional<std::string> got = allOf(folder / "c");
    EXPECT_TRUE(!got || got == good)
        << "bit " << bit; // the checksums of torch's archive cover every value
  }
}

/// The effects of damaged metadata of another program on the items.
struct Harm {
  int refused = 0, equal = 0, renamed = 0;
};

/// Either the whole read is refused and names the metadata, or no name has a different value. A
/// name may be missing: records do not contain names, so the format cannot detect that.
void judgeMetadata(const std::string &folder, const Items &good, const std::string &what,
                   Harm &harm) {
  Items got;
  Status status = readItems(folder, got);
  for (const auto &[name, value] : got) {
    auto before = good.find(name);
    EXPECT_EQ(value, before != good.end() ? before->second : value) << what << ": " << name;
  }
  if (!status.isOk()) {
    ++harm.refused;
    EXPECT_NE(status.message().find(".metadata"), std::string::npos) << what << status.message();
    return;
  }
  EXPECT_EQ(got.size(), good.size()) << what;
  ++(got == good ? harm.equal : harm.renamed);
}

/// Every n-th bit of a fixture's metadata flipped, one at a time.
Harm flipMetadata(const char *name, size_t step) {
  TempFolder folder;
  copyFolder(fixture(name), folder / "c");
  std::string path = folder / "c/.metadata", bytes = contentsOf(path);
  Items good;
  EXPECT_OK(readItems(folder / "c", good));
  Harm harm;
  for (size_t bit = 0; bit < bytes.size() * 8; bit += step) {
    std::string bad = bytes;
    bad[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    putContents(path, bad);
    judgeMetadata(folder / "c", good, fmt::format("{} bit {}", name, bit), harm);
  }
  return harm;
}

TEST(Damage, ForeignMetadataIsRefusedOrHarmless) { // it has no checksum
  size_t step = test::isLong() ? 1 : 41;
  for (const char *name : {"A", "B", "C", "E", "H1"}) {
    Harm harm = flipMetadata(name, step);
    RecordProperty(name, fmt::format("{} refused, {} equal, {} renamed", harm.refused, harm.equal,
                                     harm.renamed));
    EXPECT_LE(harm.renamed, std::string_view(name) == "A" ? 7 : 0) << name;
  }
}

TEST(Damage, MuchDamagedForeignMetadataIsRefusedOrHarmless) {
  TempFolder folder;
  copyFolder(fixture("B"), folder / "c");
  std::string path = folder / "c/.metadata", bytes = contentsOf(path);
  Items good;
  ASSERT_OK(readItems(folder / "c", good));
  std::mt19937 random(9);
  Harm harm;
  for (int round = 0; round < 2000; ++round) {
    std::string bad = bytes;
    for (size_t flips = 1 + random() % 3; flips > 0; --flips)
      bad[random() % bad.size()] = static_cast<char>(random());
    if (round % 10 == 0)
      bad.resize(random() % bad.size());
    putContents(path, bad);
    judgeMetadata(folder / "c", good, fmt::format("round {}", round), harm);
  }
  EXPECT_EQ(harm.renamed, 0);
}

// Flipped bits once swapped two values.
TEST(Damage, ForeignMetadataWithTwoItemsAtOnePlaceIsRefused) {
  const std::pair<const char *, size_t> kBits[] = {
      {"B", 72545}, {"B", 111712}, {"C", 65936}, {"E", 66344}, {"E", 67224}};
  for (auto [name, bit] : kBits) {
    TempFolder folder;
    copyFolder(fixture(name), folder / "c");
    std::string path = folder / "c/.metadata", bytes = contentsOf(path);
    bytes[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    putContents(path, bytes);
    EXPECT_FAILS(CheckpointReader::open(folder / "c").status(), "overlap");
  }
}

TEST(Damage, MessageNamesFileAndPlace) {
  TempFolder folder;
  saveSmall(folder.path());
  std::string path = folder / "c/__0_0.distcp", bytes = contentsOf(path);
  bytes[bytes.size() / 2] ^= 4;
  putContents(path, bytes);
  Result<CheckpointReader> reader = CheckpointReader::open(folder / "c");
  ASSERT_TRUE(reader.isOk());
  float values[24];
  EXPECT_FAILS(reader->read("model.w", {{0, 0}, {6, 4}}, Element::F32, values), "__0_0.distcp");
}

TEST(Damage, AnyPartOfATorchRecordIsRefusedByTheWholeRecordsChecksum) {
  TempFolder folder;
  copyFolder(fixture("A"), folder / "c");
  std::string path = folder / "c/__0_0.distcp", bytes = contentsOf(path);
  size_t at = bytes.find(std::string("\x00\x00\x80?\x00\x00\x00@", 8)); // 1.0 and 2.0 of row 0
  ASSERT_NE(at, std::string::npos);
  bytes[at] ^= 1;
  putContents(path, bytes);
  float values[6];
  for (Verify verify : {Verify::Touched, Verify::Whole}) {
    Result<CheckpointReader> reader = CheckpointReader::open(folder / "c", verify);
    for (int round = 0; round < 2; ++round) // a second reader gets the error too
      for (int64_t row : {0, 1})
        EXPECT_FAILS(reader->read("a", {{row, 0}, {1, 3}}, Element::F32, values), "checksum");
  }
}

TEST(Damage, SettingsThatCannotBeReadAreNotLeftOut) {
  TempFolder folder;
  copyFolder(fixture("E"), folder / "c");
  std::string path = folder / "c/__2_10.distcp", bytes = contentsOf(path);
  bytes[840] ^= 8; // in one field of a parameter's optimizer settings
  putContents(path, bytes);
  EXPECT_FAILS(convertFsdpToTorchDist(folder / "c", {folder.path(), "out"}, {}), "__2_10.distcp");
}

} // namespace
} // namespace shardc::checkpoint
