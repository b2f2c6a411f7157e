#include <set>

#include <gtest/gtest.h>

#include "runtime/checkpoint/CheckpointFormat.h"
#include "test/unit/base/Told.h"
#include "test/unit/checkpoint/TestFiles.h"

namespace shardc::checkpoint {
namespace {

void saveAt(const std::string &root, int64_t iteration) {
  float value = 1;
  TensorSlice slice{"w", Element::F32, {}, {}, &value};
  ASSERT_OK(save(SaveTarget::iteration(root, iteration), 0, 1, {&slice, 1}, {}));
}

std::vector<int64_t> iterationsOf(const std::string &root) {
  std::vector<int64_t> found;
  Result<std::vector<SavedIteration>> all = listIterations(root);
  for (const SavedIteration &saved : *all)
    found.push_back(saved.iteration);
  return found;
}

TEST(SavedIterations, LayoutIsMegatrons) {
  TempFolder folder;
  saveAt(folder.path(), 100);
  EXPECT_TRUE(std::filesystem::exists(folder / "iter_0000100/.metadata"));
  EXPECT_EQ(contentsOf(folder / "latest_checkpointed_iteration.txt"), "100");
}

TEST(SavedIterations, LinksAreNotFollowed) {
  TempFolder outside, folder;
  saveAt(outside.path(), 20);
  saveAt(folder.path(), 10);
  std::filesystem::create_directory_symlink(outside / "iter_0000020", folder / "iter_0000020");
  EXPECT_EQ(iterationsOf(folder.path()), (std::vector<int64_t>{10}));
  EXPECT_EQ(*findCheckpoint(folder.path()), folder / "iter_0000010");
  EXPECT_EQ(*findCheckpoint(folder / "iter_0000020"), folder / "iter_0000020") << "it is named";
  putContents(folder / "latest_checkpointed_iteration.txt", "20");
  EXPECT_FAILS(findCheckpoint(folder.path()).status(), "iter_0000020' is a link");
  std::filesystem::remove(folder / "latest_checkpointed_iteration.txt");
  EXPECT_FAILS(findCheckpoint(folder.path()).status(), "iter_0000020' is a link");
}

TEST(SavedIterations, OnlyTheNewestAreKept) {
  TempFolder folder;
  for (int64_t iteration : {10, 20, 30, 40})
    saveAt(folder.path(), iteration);
  putContents(folder / "latest_checkpointed_iteration.txt", "10");
  ASSERT_OK(removeOldIterations(folder.path(), 2));
  // The tracker's checkpoint stays.
  EXPECT_EQ(iterationsOf(folder.path()), (std::vector<int64_t>{10, 30, 40}));
}

TEST(SavedIterations, MultiplesAreRetained) {
  TempFolder folder;
  for (int64_t iteration : {10, 20, 30, 40, 50, 60})
    saveAt(folder.path(), iteration);
  ASSERT_OK(removeOldIterations(folder.path(), 1, {}, /*retain=*/20));
  EXPECT_EQ(iterationsOf(folder.path()), (std::vector<int64_t>{20, 40, 60}));
  saveAt(folder.path(), 70);
  ASSERT_OK(removeOldIterations(folder.path(), 1, {}, /*retain=*/20));
  EXPECT_EQ(iterationsOf(folder.path()), (std::vector<int64_t>{20, 40, 60, 70}));
}

TEST(SavedIterations, TrackerSaysWhichIsLatest) {
  TempFolder folder;
  EXPECT_FALSE(latestIteration(folder.path())->has_value());
  saveAt(folder.path(), 10);
  saveAt(folder.path(), 20);
  putContents(folder / "latest_checkpointed_iteration.txt", "10\n");
  EXPECT_EQ((*latestIteration(folder.path()))->iteration, 10);
  std::filesystem::remove(folder / "latest_checkpointed_iteration.txt");
  EXPECT_EQ((*latestIteration(folder.path()))->iteration, 20);
  putContents(folder / "latest_checkpointed_iteration.txt", "30");
  EXPECT_FAILS(latestIteration(folder.path()).status(), "iter_0000030' does not exist");
  putContents(folder / "latest_checkpointed_iteration.txt", "ten");
  EXPECT_FAILS(latestIteration(folder.path()).status(), "contains 'ten'");
  std::filesystem::create_directory(folder / "release");
  putContents(folder / "latest_checkpointed_iteration.txt", "release");
  EXPECT_EQ((*latestIteration(folder.path()))->folder, folder / "release");
}

/// How a search for the newest checkpoint of a folder judges the folder.
Status judge(const std::string &root) { return refuseUnreadIn(root, *latestIteration(root)); }

TEST(SavedIterations, FormatsThatAreNotReadAreNotPassedOver) {
  const std::pair<const char *, const char *> kFound[] = {
      {"mp_rank_00/model_optim_rng.pt", "legacy 'torch'"},
      {"iter_0000010/mp_rank_00_000/model_optim_rng.pt", "legacy 'torch'"},
      {"decoder.weight/.zarray", "'zarr'"},
      {"iter_0000010/decoder.weight/.zarray", "'zarr'"},
      {"__0.metadata", "one metadata file per rank"},
      {"iter_0000010/__0.metadata", "one metadata file per rank"},
      {"__0_0.distcp", "no '.metadata'"},
      {".metadata.tmp", "interrupted save"},
      {"model.safetensors", "Hugging Face"},
  };
  for (auto [file, reason] : kFound) {
    TempFolder folder;
    EXPECT_OK(judge(folder.path()));
    std::filesystem::create_directories(std::filesystem::path(folder / file).parent_path());
    putContents(folder / file, "");
    EXPECT_FAILS(judge(folder.path()), reason);
    saveAt(folder.path(), 20); // a later readable checkpoint, with a tracker and without
    EXPECT_OK(judge(folder.path()));
    std::filesystem::remove(folder / kTrackerFile);
    EXPECT_OK(judge(folder.path()));
  }
  TempFolder folder; // an earlier readable checkpoint is not the newest
  saveAt(folder.path(), 20);
  std::filesystem::create_directories(folder / "iter_0000030/mp_rank_00");
  EXPECT_OK(judge(folder.path()));
  std::filesystem::remove(folder / kTrackerFile);
  EXPECT_FAILS(judge(folder.path()), "iter_0000030' is a legacy");
  std::filesystem::remove_all(folder / "iter_0000030/mp_rank_00"); // cut short: skipped
  putContents(folder / "iter_0000030/__0_0.distcp", "");
  EXPECT_OK(judge(folder.path()));
}

TEST(SavedIterations, ReplacementThatWasInterruptedIsPutBack) {
  TempFolder folder;
  saveAt(folder.path(), 10);
  std::filesystem::rename(folder / "iter_0000010", folder / ".iter_0000010.old");
  test::Reported reported;
  ASSERT_OK(recoverInterrupted(folder.path(), reported.sink()));
  ASSERT_EQ(reported.lines.size(), 1u);
  EXPECT_EQ(reported.lines[0], "remark: put back 'iter_0000010', whose replacement was interrupted "
                               "[save-cleared]");
  EXPECT_EQ((*latestIteration(folder.path()))->iteration, 10);
}

TEST(SavedIterations, RecoveryTouchesNothingButWhatSavesMake) {
  TempFolder folder;
  saveAt(folder.path(), 10);
  for (const char *name :
       {".thesis.saving", ".iter_x.removing", ".iter_0000011.saving", ".shardc.ended.ranks",
        ".shardc.living.ranks", ".latest_checkpointed_iteration.txt.tmp"})
    std::filesystem::create_directory(folder / name);
  std::filesystem::last_write_time(folder / ".shardc.ended.ranks",
                                   std::filesystem::file_time_type::clock::now() -
                                       std::chrono::hours(2));
  for (const char *name : {".zshrc.old", "zshrc", ".iter_0000012.old", ".iter_0000012.saving",
                           "latest_train_state.pt.tmp", "latest_train_state.pt.tmp.mine",
                           "latest_checkpointed_iteration.txt.tmp.0123456789abcdef"})
    putContents(folder / name, name);
  std::filesystem::create_directory_symlink(".thesis.saving", folder / ".iter_0000013.saving");
  test::Reported reported;
  ASSERT_OK(recoverInterrupted(folder.path(), reported.sink()));
  EXPECT_EQ(reported.lines.size(), 2u);
  std::set<std::string> left;
  for (const auto &entry : std::filesystem::directory_iterator(folder.path()))
    left.insert(entry.path().filename().string());
  EXPECT_EQ(left, (std::set<std::string>{".thesis.saving", ".iter_x.removing",
                                         ".latest_checkpointed_iteration.txt.tmp", ".zshrc.old",
                                         "zshrc", ".iter_0000012.old", ".iter_0000012.saving",
                                         ".iter_0000013.saving", ".shardc.living.ranks",
                                         "latest_train_state.pt.tmp.mine", "iter_0000010",
                                         "latest_checkpointed_iteration.txt"}));
  EXPECT_EQ(contentsOf(folder / "zshrc"), "zshrc");
}

TEST(SavedIterations, RowsAreSharedEvenly) {
  int64_t next = 0;
  for (int rank = 0; rank < 4; ++rank) {
    RowRange rows = shareOfRows(10, rank, 4);
    EXPECT_EQ(rows.begin, next);
    EXPECT_LE(rows.end - rows.begin, 3);
    next = rows.end;
  }
  EXPECT_EQ(next, 10);
}

} // namespace
} // namespace shardc::checkpoint
