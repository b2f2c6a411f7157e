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
  /// Null where the plan asks for none. `forward` is the plan of one row, of one rank. On the first
  /// process, starts the one that makes text of tokens.
  static Result<std::unique_ptr<Samples>> create(const plan::Plan &plan, const plan::Plan *forward,
                                                 const run::JobSource &source, bool isFirst);

  /// The texts, by the weights of now; none beside the first process. All processes call it
  /// together, with nothing queued. If texts cannot be made, `emit` receives the reason, and there
  /// are none from then on.
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
