// Continues a text with a model. Runs the forward ops of the model's logical plan one by one with a
// backend's kernels, and keeps the keys and values of all tokens so far. So the model is not
// implemented a second time, except that attention reads the kept keys and values, and convolutions
// read the kept rows.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/generate/Loading.h"
#include "runtime/generate/Sampling.h"
#include "runtime/plan/Plan.h"

namespace shardc::generate {

class Generator {
public:
  /// Creates a generator on the backend's first device. The backend must outlive it.
  static Result<std::unique_ptr<Generator>> create(hal::Backend &backend,
                                                   exec::FindKernel findKernel);
  /// Creates a generator on the host, in a thread.
  static Result<std::unique_ptr<Generator>> onHost();
  ~Generator();

  /// Reads the weights that the plan's forward body needs, in at most `threads` threads. The plan
  /// must be logical, for one rank and one sample (lower::lowerForward).
  Status load(const plan::Plan &plan, const ReadTensor &read, int threads = 1);

  /// Forgets all texts. `texts` begin, which are numbered from 0 on.
  void begin(size_t texts = 1);
  /// Another text begins in the place of this one.
  void beginText(size_t text) { lengths_[text] = 0; }

  /// Continues a text with `tokens`. The plans, which must outlive the generator, have 1, 2, 4, ...
  /// rows and the same parameters as the loaded one; the largest that fit the rest are run one
  /// after another. Returns the scores of the next token, without those of vocabulary padding.
  Result<std::vector<float>> scores(std::span<const plan::Plan> plans,
                                    std::span<const int32_t> tokens, size_t text = 0);

  /// Takes the scores of a text's next token. Called in several threads.
  using TakeScores = std::function<void(size_t text, std::vector<float> scores)>;
  /// Continues each text with one token; -1 leaves a text as it is. The plan has one row of as many
  /// samples as there are texts.
  Status scoresOfAll(const plan::Plan &plan, std::span<const int32_t> tokens,
                     const TakeScores &take);

  /// What a model says about a token, given those before it.
  struct ScoredToken {
    double logProbability;
    bool isLikeliest; ///< no token has a larger score
  };
  /// Begins a single text, and returns the scores of each token after the first one. Plans as for
  /// scores().
  Result<std::vector<ScoredToken>> scoreAll(std::span<const plan::Plan> plans,
                                            std::span<const int32_t> tokens);

private:
  struct Value {
    plan::Type type;
    Block data; ///< null: nothing needs the value any more

    kernels::Tensor tensor() const;
  };
  /// Rows of each text, one text after the other.
  struct Rows {
    Block data;       ///< null: not used yet
    int64_t each = 0; ///< bytes of a row
  };
  /// The keys and values of one attention op, or the operands of one delta rule or scan: queries,
  /// keys, values, and what decays follow from. With a row for each of the places.
  using Kept = std::array<Rows, 5>;
  struct Body;
  using Values = std::vector<Value>;

  Generator() = default;
  Result<const Body *> bodyOf(const plan::Plan &plan);
  Result<Value> make(const plan::Type &type);
  Status run(const Body &body, const plan::Op &op, Values &values);
  Status attend(const Body &body, const plan::Op &op, Values &values, Kept &kept);
  Status convolve(const plan::Op &op, Values &values, Rows &kept);
  Status repeat(const plan::Op &op, Values &values, Kept &kept);
  Status placeKept(const Body &body, Values &values);
  Status openRows(const plan::Type &type, Rows &rows, int64_t count);
  uint8_t *firstOf(const Rows &rows) const;
  Block nextOf(const Rows &rows) const;
  Status keep(const Value &value, const Rows &rows);
  /// Makes `count` rows of zeros for each text.
  Result<Block> makeRows(const Rows &rows, int64_t count);
  /// Loads a batch of samples with one document, at the positions after those so far.
  Status loadBatch(const Body &body, const plan::Op &op, Values &values);
  /// Copies what runs to the device: the tokens of one text, or one of each text.
  Status prepareRows(std::span<const int32_t> tokens);
  Status addPlaces(int64_t needed);
  /// Runs all ops that the scores of the tokens need.
  Result<Values> follow(const Body &body, std::span<const int32_t> tokens);
  /// Follows all tokens of a text, and calls `visit` after each plan.
  Status followAll(
      std::span<const plan::Plan> plans, std::span<const int32_t> tokens, size_t text,
      const std::function<Status(const plan::Op &loss, const Values &values, size_t end)> &visit);
  /// Copies `count` rows of scores to the host; the first is `first`, or if negative, that many
  /// before the end. They stay until the next call.
  Result<kernels::Tensor> fetchScores(const plan::Op &loss, const Values &values, int64_t first,
                                      int64_t count);
  /// Whether one token of each text runs, instead of tokens of one text.
  bool isTogether() const { return running_.size() > 1; }

  std::unique_ptr<hal::Backend> host_; ///< of onHost(); it and the work outlive what follows
  std::unique_ptr<Work> work_;
  std::map<std::string, Value> weights_; ///< by the name of their cell
  std::map<const plan::Plan *, std::unique_ptr<Body>> bodies_;
  std::vector<Kept> kept_;           ///< by attention op
  std::vector<Kept> repeated_;       ///< by delta rule
  std::vector<Rows> convolved_;      ///< by convolution: the last rows that it still reads
  std::vector<int64_t> lengths_{0};  ///< tokens so far, by text
  std::vector<size_t> running_{0};   ///< the texts that run: one, or all
  int64_t places_ = 0;               ///< number of positions of each text below and in kept_
  Block counting_, zeros_;           ///< 0, 1, 2, ... for each text, and as many zeros
  Block tokens_, positions_, slots_; ///< of the rows that are running; slots are rows of kept_
};

/// A text that is continued.
struct BegunText {
  std::span<const int32_t> prompt;
  int64_t seed = 0;
  /// Called with each token, behind those before it. Returns whether the text goes on.
  std::function<Result<bool>(const std::vector<int32_t> &made, bool isLast)> take;
  std::function<Status()> end; ///< called when all tokens are made
  std::vector<int32_t> made;   ///< the tokens that follow the prompt
};

/// How texts are continued.
struct Continuation {
  std::span<const plan::Plan> plans; ///< of 1, 2, 4, ... rows of one sample
  size_t together = 1; ///< texts at once; if several, the last plan has a row of so many samples
  int64_t tokensMax = 64;
  std::vector<int32_t> ends; ///< tokens that end a text and are not part of it
  Sampling sampling;         ///< its seed is added to those of the texts
};

/// What was done, and the seconds that it took: prompts with the first token, and later tokens.
struct ContinuedRate {
  size_t read = 0, spoken = 0;
  double reading = 0, speaking = 0;
};

/// Continues all texts.
Result<ContinuedRate> continueTexts(Generator &generator, std::span<BegunText> texts,
                                    const Continuation &how);

} // namespace shardc::generate
