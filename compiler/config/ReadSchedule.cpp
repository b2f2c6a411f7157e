#include "compiler/config/ReadSchedule.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <variant>

#include <fmt/format.h>

#include "compiler/config/RulePredicates.h"
#include "compiler/model/ScheduleFile.h"
#include "compiler/model/Stages.h"

namespace shardc::config {
namespace {

constexpr Opt kFile = Opt::ModelPipelineScheduleCsv;

class ScheduleReader {
public:
  ScheduleReader(SourceManager &sources, DiagEngine &diags, Config &config)
      : sources_(sources), diags_(diags), config_(config) {}

  void run() {
    if (config_.isWritten(Opt::ModelPipelineSchedule)) {
      diags_.report(diag::ScheduleNamedTwice, here())
          .note(diag::ScheduleNamedHere, config_.range(Opt::ModelPipelineSchedule));
      return;
    }
    Result<BufferId> buffer = sources_.loadFile(path(), /*isFromUser=*/false);
    if (!buffer.isOk()) {
      diags_.report(diag::CannotReadSchedule, here(), buffer.status().message());
      return;
    }
    buffer_ = *buffer;
    const Derived &d = config_.derived();
    for (int64_t microbatches : microbatchesOfSteps(d)) {
      auto read = model::readSchedule(sources_.text(buffer_), d.pipelineParallel, microbatches);
      if (auto *fault = std::get_if<model::OrderFault>(&read))
        return refuse(*fault);
      const auto &order = std::get<model::PassOrder>(read);
      if (std::optional<std::string> problem = mismatch(order.placement))
        return refuse({model::OrderFault::Kind::Shape, 0, 0, *problem});
      if (!checkGlobalBalance(order))
        return;
    }
    config_.setPassOrder(sources_.text(buffer_).str());
  }

private:
  SourceRange here() const { return config_.range(kFile); }

  /// A path starts from the file that sets it; on the command line, from the recipe.
  std::string path() const {
    BufferId from = config_.buffer();
    if (here().isValid() && sources_.isFile(sources_.bufferOf(here().begin)))
      from = sources_.bufferOf(here().begin);
    auto folder = std::filesystem::path(sources_.name(from).str()).parent_path();
    return (folder / config_.getString(kFile)).string();
  }

  std::optional<std::string> mismatch(const model::Placement &placement) const {
    const Derived &d = config_.derived();
    if (placement.chunks() != d.pipelineParallel * d.virtualStages)
      return fmt::format("the schedule has {} chunks of layers, but {} stages have {} each",
                         placement.chunks(), d.pipelineParallel, d.virtualStages);
    std::string asked = config_.getStringOr(Opt::ModelPipelinePlacement, "");
    if (!asked.empty() &&
        model::Placement::read(asked, d.pipelineParallel, d.virtualStages) != placement)
      return fmt::format("the schedule places chunks as '{}', but 'model.pipeline_placement' is "
                         "'{}'",
                         placement.text(), asked);
    return std::nullopt;
  }

  /// The running mean of `global_aux_loss` needs ascending microbatches in each chunk.
  bool checkGlobalBalance(const model::PassOrder &order) const {
    constexpr Opt kKinds = Opt::ModelMoeRouterLoadBalancingType;
    auto kinds = config_.getEnums<RouterBalancing>(kKinds);
    if (!config_.has(Opt::ModelNumMoeExperts) ||
        std::ranges::find(kinds, RouterBalancing::GlobalAuxLoss) == kinds.end())
      return true;
    for (size_t stage = 0; stage < order.rows.size(); ++stage) {
      std::map<int32_t, int64_t> next; // microbatch by chunk
      for (size_t i = 0; i < order.rows[stage].size(); ++i) {
        const model::StagePass &pass = order.rows[stage][i];
        if (!model::hasForward(pass.part.kind))
          continue;
        const model::StagePass needed{pass.part, next[pass.part.chunk]++};
        if (pass.microbatch == needed.microbatch)
          continue;
        diags_
            .report(diag::ScheduleGlobalBalance, config_.range(kKinds), model::nameOf(pass),
                    model::nameOf(needed))
            .note(diag::ScheduleForwardHere,
                  rangeOf(static_cast<int64_t>(stage) + 1, order.columnOf(stage, i)));
        return false;
      }
    }
    return true;
  }

  /// The range of a cell, of a row, or of nothing for the whole file.
  SourceRange rangeOf(int64_t row, int64_t column) const {
    SourceLoc begin = sources_.lineBegin(buffer_, static_cast<unsigned>(std::max<int64_t>(row, 1)));
    if (!begin.isValid())
      return here();
    llvm::StringRef line = sources_.lineText(begin);
    std::string_view cell = model::cellOf(line, column);
    size_t at = sources_.offset(begin) + static_cast<size_t>(cell.data() - line.data());
    return sources_.range(buffer_, at, at + cell.size());
  }

  void refuse(const model::OrderFault &fault) {
    SourceRange range = rangeOf(fault.row, fault.column);
    bool isOther = fault.kind == model::OrderFault::Kind::Cell &&
                   sources_.text(buffer_)
                           .take_front(sources_.offset(range.begin))
                           .find_first_not_of(" ,\t\r\n\"") == llvm::StringRef::npos;
    if (isOther) // a file of another kind: none of its lines is shown
      return void(diags_.report(
          diag::CannotReadSchedule, here(),
          fmt::format("'{}' is not a schedule; its first cell is not a pass", path())));
    constexpr std::array kRows = {&diag::ScheduleShape,     &diag::ScheduleCell,
                                  &diag::SchedulePlacement, &diag::ScheduleTwice,
                                  &diag::ScheduleMissing,   &diag::ScheduleOrder,
                                  &diag::ScheduleCycle,     &diag::ScheduleTransfer}; // by kind
    diags_.report(*kRows[static_cast<size_t>(fault.kind)], range, fault.reason)
        .note(diag::ScheduleUsedHere, here());
  }

  SourceManager &sources_;
  DiagEngine &diags_;
  Config &config_;
  BufferId buffer_;
};

} // namespace

void readSchedule(SourceManager &sources, DiagEngine &diags, Config &config) {
  if (!diags.hasErrors() && config.has(kFile))
    ScheduleReader(sources, diags, config).run();
}

model::PassOrder passOrderOf(const Config &config, int64_t microbatches) {
  return model::readFaultless(config.passOrder(), config.derived().pipelineParallel, microbatches);
}

} // namespace shardc::config
