// The data of a job: reads the plan's dataset options, opens the datasets, and writes microbatches.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/plan/Plan.h"
#include "runtime/run/BatchSource.h"

namespace shardc::run {

/// The beginning of a text of the data, and how the data go on.
struct BegunText {
  std::vector<int32_t> prompt, answer;
};

/// The data of a job, for one of its plans at a time.
class JobSource : public BatchSource {
public:
  /// Switches to another plan of the job for the following steps.
  virtual Status turnTo(const plan::Plan &plan) = 0;
  /// The first document of each of the first `count` validation samples, or of all if there are
  /// fewer. For packs, the prompt is everything before the first token that counts in the loss, and
  /// the answer is the tokens that count, up to one that does not. For texts, the prompt has
  /// `tokens` tokens, and the answer at most as many.
  virtual Result<std::vector<BegunText>> begunTexts(int64_t count, int64_t tokens) const = 0;
};

/// Opens the training data, and the validation data if the job evaluates. Errors name the path or
/// option.
Result<std::unique_ptr<JobSource>> openJobData(const plan::Plan &plan);

/// Compares all packs of the job, if it has any, with their checksums. `weights`: fingerprints of
/// the weights with which training begins; if they are given, also compares them with those of the
/// reference of pairs.
Status checkPacks(const plan::Plan &plan, const std::map<std::string, std::string> *weights);

} // namespace shardc::run
