// Chooses a token by its scores, as transformers does with the same settings.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace shardc::generate {

/// How tokens are drawn. Default: the likeliest token.
struct Sampling {
  double temperature = 0;       ///< divides scores; 0: the likeliest token
  int64_t topK = 0;             ///< so many of the likeliest tokens are drawn; 0: all
  double topP = 1;              ///< the likeliest tokens that have this probability together
  double minP = 0;              ///< tokens of this part of the likeliest one's probability
  double repetitionPenalty = 1; ///< divides positive scores of earlier tokens, multiplies others
  int64_t seed = 0;
};

/// The index of the largest score, the first of several. std::max_element, which compares one score
/// after the other, takes several times as long.
size_t largestOf(std::span<const float> scores);

/// The tokens that may be drawn behind the tokens `before`, the prompt's among them, with their
/// probabilities, in the order of tokens. `scores` has a logit for each token of the vocabulary.
std::vector<std::pair<int32_t, double>>
distributionOf(std::vector<float> scores, std::span<const int32_t> before, const Sampling &how);

/// The token with the largest score, the first of several; or one drawn from distributionOf(), by a
/// counter of the seed and the number of tokens before.
int32_t chooseToken(std::vector<float> scores, std::span<const int32_t> before,
                    const Sampling &how);

} // namespace shardc::generate
