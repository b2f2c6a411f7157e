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

  /// Reads the weights that the plan's forward body needs, in at most `threads` threads. The plan
  /// must be logical, for one rank and one sample (lower::lowerForward).
  Status load(const plan::Plan &plan, const ReadTensor &read, int threads = 1);

  /// Continues with `tokens`. The plans have 1, 2, 4, ... rows and the same parameters as the
  /// loaded one; the largest that fit the rest are run one after another. Returns the scores of the
  /// next token, without those of vocabulary padding.
  Result<std::vector<float>> scores(std::span<const plan::Plan> plans,
                                    std::span<const int32_t> tokens);

  /// What a model says about a token, given those before it.
  struct ScoredToken {
    double logProbability;
    bool isLikeliest; ///< no token has a larger score
  };
  /// Begins anew, and returns the scores of each token after the first one. Plans as for scores().
  Result<std::vector<ScoredToken>> scoreAll(std::span<const plan::Plan> plans,
                                            std::span<const int32_t> tokens);

  /// Number of tokens so far.
  int64_t position() const { return position_; }
  /// Forgets them: a text begins.
  void beginText();

private:
  struct Value {
    plan::Type type;
    Block data; ///< null: nothing needs the value any more

    kernels::Tensor tensor() const;
  };
  struct Rows {
    Block data;
    int64_t bytes = 0; ///< that the block has
  };
  /// The keys and values of one attention op for all tokens so far, or the last operands of one
  /// convolution, or all of a delta rule.
  struct Kept {
    Rows keys, values;
    std::array<Rows, 5> more; ///< queries, keys, values, decays and strengths of a delta rule
  };
  struct Body;
  using Values = std::vector<Value>;

  Generator() = default;
  Result<Value> make(const plan::Type &type);
  /// Writes `data`, of the value's size, to the device.
  Status put(const Value &value, const void *data);
  Status run(const Body &body, const plan::Op &op, Values &values);
  Status attend(const Body &body, const plan::Op &op, Values &values, Kept &kept);
  Status convolve(const plan::Op &op, Values &values, Kept &kept);
  Status repeat(const plan::Op &op, Values &values, Kept &kept);
  Status keep(const Value &value, Rows &rows);
  /// Loads a batch of one sample with one document, at the positions after those so far.
  Status loadBatch(const Body &body, const plan::Op &op, std::span<const int32_t> tokens,
                   Values &values);
  Status preparePositions(int64_t rows);
  /// Runs all ops that the scores of the tokens need.
  Result<Values> follow(const Body &body, std::span<const int32_t> tokens);
  /// Follows all tokens, and calls `visit` after each plan.
  Status followAll(
      std::span<const plan::Plan> plans, std::span<const int32_t> tokens,
      const std::function<Status(const plan::Op &loss, const Values &values, size_t end)> &visit);
  /// Returns the scores of a row, without those of vocabulary padding. -1 is the last row.
  Result<std::vector<float>> scoresOf(const plan::Op &loss, const Values &values, int64_t row);

  std::unique_ptr<hal::Backend> host_; ///< of onHost(); it and the work outlive what follows
  std::unique_ptr<Work> work_;
  std::map<std::string, Value> weights_; ///< by the name of their cell
  std::vector<Kept> kept_;               ///< by attention op or convolution
  int64_t places_ = 0;                   ///< number of positions that the blocks below have
  Block counting_, zeros_;               ///< 0, 1, 2, ..., and as many zeros
  Block positions_;                      ///< of the rows that are running
  int64_t position_ = 0;
};

/// What continues a text.
struct Continuation {
  std::span<const plan::Plan> plans; ///< of 1, 2, 4, ... rows
  int64_t tokensMax = 64;
  std::vector<int32_t> ends; ///< tokens that end a text and are not part of it
  Sampling sampling;
  /// Set: called with each token, behind those before it. Returns whether the text goes on.
  std::function<Result<bool>(const std::vector<int32_t> &made, bool isLast)> made;
};

/// The tokens that follow the prompt, which begins a text.
Result<std::vector<int32_t>> continueText(Generator &generator, std::span<const int32_t> prompt,
                                          const Continuation &how);

} // namespace shardc::generate
