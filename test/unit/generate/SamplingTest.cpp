#include "runtime/generate/Sampling.h"

#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

namespace shardc::generate {
namespace {

template <typename T> std::vector<T> numbersOf(const std::string &line) {
  std::istringstream words(line);
  std::vector<T> numbers;
  for (T number; words >> number;)
    numbers.push_back(number);
  return numbers;
}

TEST(Sampling, LeavesTheTokensThatTransformersLeaves) {
  std::ifstream file(SHARDC_GOLDEN "/sampling.txt");
  int cases = 0;
  for (std::string settings, scores, before, left; std::getline(file, settings); ++cases) {
    std::getline(file, scores), std::getline(file, before), std::getline(file, left);
    const std::vector<double> set = numbersOf<double>(settings);
    const Sampling how{set[0], static_cast<int64_t>(set[1]), set[2], set[3], set[4], 0};
    std::map<int32_t, double> wanted;
    std::istringstream words(left);
    for (std::string word; words >> word;)
      wanted[std::stoi(word)] = std::stod(word.substr(word.find(':') + 1));
    const auto found = distributionOf(numbersOf<float>(scores), numbersOf<int32_t>(before), how);
    ASSERT_EQ(found.size(), wanted.size()) << settings << '\n' << scores;
    for (const auto &[token, chance] : found)
      EXPECT_NEAR(chance, wanted[token], 1e-5) << settings << '\n' << scores;
  }
  EXPECT_EQ(cases, 60);
}

TEST(Sampling, TakesTheFirstOfTheLikeliestTokens) {
  EXPECT_EQ(chooseToken({1, 3, 3, 2}, {}, {}), 1);
  EXPECT_EQ(chooseToken({1, 3, 3, 2}, std::vector<int32_t>{1, 1}, {.repetitionPenalty = 2}), 2);
}

TEST(Sampling, DrawsByTheSeedAndThePlace) {
  const std::vector<float> scores = {0, 0.7F, -0.3F, 0.2F};
  std::map<int32_t, int> counts;
  for (int i = 0; i < 4000; ++i) {
    const Sampling how{.temperature = 1, .topK = 3, .seed = i};
    int32_t token = chooseToken(scores, std::vector<int32_t>{5}, how);
    EXPECT_EQ(token, chooseToken(scores, std::vector<int32_t>{6}, how));
    ++counts[token];
  }
  double whole = 0;
  const auto shares = distributionOf(scores, {}, {.temperature = 1, .topK = 3});
  ASSERT_EQ(shares.size(), 3U);
  for (const auto &[token, share] : shares) {
    EXPECT_NEAR(counts[token] / 4000.0, share, 0.03);
    whole += share;
  }
  EXPECT_NEAR(whole, 1, 1e-12);
}

} // namespace
} // namespace shardc::generate
