// Choices by timing: which alternative is chosen, and their text form. The test provides the times.
// Alternatives that could not run are recorded for a report.
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/Choices.h"

namespace shardc::kernels::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// The two times of each way.
using Times = std::vector<std::pair<float, float>>;

size_t fastestOf(const Times &times, std::vector<int> *counts = nullptr) {
  std::vector<int> asked(times.size());
  size_t best = fastestBy(times.size(), [&](size_t way) {
    return asked[way]++ == 0 ? times[way].first : times[way].second;
  });
  if (counts)
    *counts = asked;
  return best;
}

TEST(Fastest, TheFirstStaysWithinTheSpread) {
  EXPECT_EQ(fastestOf({{1.00f, 1.02f}, {0.99f, 0.99f}}), 0u) << "0.02 of the first's own";
  EXPECT_EQ(fastestOf({{1.00f, 1.00f}, {0.90f, 0.97f}}), 0u) << "0.07 of the other's";
  EXPECT_EQ(fastestOf({{1.00f, 1.00f}, {0.90f, 1.10f}}), 0u) << "once only";
  EXPECT_EQ(fastestOf({{1.00f, 1.01f}, {0.95f, 0.96f}}), 1u);
  EXPECT_EQ(fastestOf({{1.00f, 1.00f}, {1.00f, 1.00f}}), 0u);
}

TEST(Fastest, TheBestSoFarIsWhatCounts) {
  std::vector<int> asked;
  EXPECT_EQ(fastestOf({{1.0f, 1.0f}, {0.8f, 0.8f}, {0.9f, 0.9f}, {0.5f, 0.5f}}, &asked), 3u);
  EXPECT_THAT(asked, ElementsAre(2, 2, 1, 2)) << "one slower than the best is not timed again";
}

TEST(Fastest, WhatCannotRunIsNotTaken) {
  EXPECT_EQ(fastestOf({{1.0f, 1.0f}, {-1.0f, -1.0f}, {0.5f, -1.0f}, {0.7f, 0.7f}}), 3u);
  EXPECT_EQ(fastestOf({{1.0f, 1.0f}}), 0u);
  EXPECT_EQ(fastestOf({{-1.0f, -1.0f}, {0.8f, 0.8f}, {0.5f, 0.5f}}), 2u) << "nor is the first";
  EXPECT_EQ(fastestOf({{0.5f, -1.0f}, {0.8f, 0.8f}}), 1u) << "once only";
  EXPECT_EQ(fastestOf({{-1.0f, -1.0f}, {0.5f, -1.0f}}), 2u) << "none can run";
  EXPECT_EQ(fastestOf({}), 0u);
}

constexpr std::string_view kHead = "gemm 1 library 2\n";

std::vector<ChoiceRecord> someRecords() {
  return {{std::string("\x00\x01 \n", 4), "abc"}, {"keyB", std::string("\xff\x00\x7f", 3)}};
}

TEST(Choices, ReadBackWhatWasWritten) {
  std::vector<ChoiceRecord> records = someRecords();
  std::string text = writeChoices(kHead, records);
  EXPECT_EQ(readChoices(kHead, text, 4, 3), records);
  EXPECT_EQ(writeChoices(kHead, {records[1], records[0]}), text) << "in order of keys";
  EXPECT_EQ(writeChoices(kHead, {}), kHead);
  EXPECT_THAT(readChoices(kHead, kHead, 4, 3), IsEmpty());
}

TEST(Choices, BelongToTheirHead) {
  std::string text = writeChoices(kHead, someRecords());
  EXPECT_THAT(readChoices("gemm 1 library 3\n", text, 4, 3), IsEmpty());
  EXPECT_THAT(readChoices(kHead, "", 4, 3), IsEmpty());
  EXPECT_THAT(readChoices(kHead, text.substr(1), 4, 3), IsEmpty());
  EXPECT_THAT(readChoices(kHead, text, 5, 3), IsEmpty()) << "keys of another size";
  EXPECT_THAT(readChoices(kHead, text, 4, 8), IsEmpty()) << "choices of another size";
}

/// If two kinds of GPU shared one file in a folder, they would overwrite each other's choices.
TEST(Choices, EachHeadHasAFileOfItsOwn) {
  EXPECT_EQ(choicesFileName("gemm 4 cublasLt 130100 driver 13000 580.65 NVIDIA H200\n"),
            "products-gemm-4-cublaslt-130100-driver-13000-580.65-nvidia-h200-440fca80.txt");
  std::set<std::string> names;
  std::string longHead(1000, 'x');
  std::vector<std::string> heads = {"gemm 4 NVIDIA H200\n", "gemm 4 NVIDIA H100\n",
                                    "gemm 5 NVIDIA H200\n", "gemm 4 NVIDIA-H200\n",
                                    "../../gemm\n",         "",
                                    longHead + "1\n",       longHead + "2\n"};
  for (const std::string &head : heads) {
    std::string name = choicesFileName(head);
    EXPECT_EQ(name.find('/'), std::string::npos) << name;
    EXPECT_LT(name.size(), 200u);
    names.insert(name);
  }
  EXPECT_EQ(names.size(), heads.size());
}

/// Each character that is lost or changed invalidates the line that contains it, and no other line.
TEST(Choices, DamagedLinesAreLeftOut) {
  std::vector<ChoiceRecord> records = someRecords();
  std::string text = writeChoices(kHead, records);
  size_t second = text.find('\n', kHead.size()) + 1;
  for (size_t at = kHead.size(); at + 1 < text.size(); ++at) {
    if (at + 1 == second)
      continue; // two lines become one
    std::vector<ChoiceRecord> rest = {at < second ? records[1] : records[0]};
    std::string other = text, shorter = text;
    other[at] = text[at] == '0' ? '1' : '0';
    EXPECT_EQ(readChoices(kHead, other, 4, 3), rest) << at;
    EXPECT_EQ(readChoices(kHead, shorter.erase(at, 1), 4, 3), rest) << at;
  }
  EXPECT_THAT(readChoices(kHead, text.substr(0, text.size() - 2), 4, 3), ElementsAre(records[0]))
      << "cut off";
  EXPECT_EQ(readChoices(kHead, text + "no hex at all\n\n \n", 4, 3), records);
}

} // namespace
} // namespace shardc::kernels::cuda
