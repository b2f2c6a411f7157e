// Texts that the model says after evaluations (validation.samples): the validation data begin them,
// and the first process continues them with the host's kernels, from the weights of all ranks.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "runtime/run/JobData.h"
#include "runtime/run/SaidText.h"
#include "runtime/save/WholeWeights.h"
#include "runtime/tokenize/RowProcess.h"
#include "runtime/tools/Job.h"

namespace shardc::tools {

class Samples {
public:
  /// Null if the plan asks for no texts. `forward` is a plan for one sequence on one rank. The
  /// first process also starts the Python process that converts tokens to text.
  static Result<std::unique_ptr<Samples>> create(const plan::Plan &plan, const plan::Plan *forward,
                                                 const run::JobSource &source, bool isFirst);

  /// The texts, generated with the current weights; empty on all processes but the first. All
  /// processes call it together, without queued work. If texts cannot be generated, `emit` receives
  /// the reason, and later calls return none.
  Result<std::vector<run::SaidText>> make(exec::Executable &executable, hal::Peers *peers,
                                          const ReportSink &emit);

private:
  explicit Samples(const plan::Plan &forward) : forward_(forward) {}
  Status continueAll(save::WholeWeights &weights, std::vector<run::SaidText> &said);
  Status openTokenizer(const plan::Plan &plan);
  Result<std::vector<std::string>> textsOf(std::span<const std::vector<int32_t>> lists);

  const plan::Plan &forward_;
  int64_t tokensMax_ = 0;
  std::vector<run::BegunText> begun_; ///< on the first process
  std::vector<int32_t> ends_;
  std::optional<tokenize::RowProcess> process_; ///< none: tokens are bytes
};

} // namespace shardc::tools
