// Runs the passes in the order of Passes.def.
#include "compiler/passes/Pipeline.h"

#include <algorithm>
#include <atomic>

#include <fmt/format.h>

#include "compiler/passes/ChooseRecompute.h"
#include "compiler/predict/Overheads.h"
#include "runtime/plan/Summary.h"

namespace shardc::passes {
namespace {

std::atomic<int64_t> placed = 0; ///< plans

/// If the job leaves the choice to the compiler, frozen weights stay whole on each rank if such a
/// plan fits the device's memory; otherwise they are sharded like the others.
void chooseKeepFrozen(plan::Plan &plan, const PipelineOptions &options, Notes &notes) {
  using plan::Job;
  if (plan.job.ddp.keepFrozen != Job::KeepFrozen::IfFits)
    return;
  auto choose = [](plan::Plan &of, std::string word) {
    of.job.put(plan::JobField::ddp_keepFrozen, std::move(word));
  };
  plan::Plan whole = plan;
  choose(whole, "always");
  if (choosesRecompute(whole)) { // then they fit if all layers are recomputed
    auto layers = std::ranges::count(plan.units, plan::UnitKind::Layer, &plan::Unit::kind);
    whole.job.put(plan::JobField::model_recomputeLayers,
                  std::vector{fmt::format("{}*full", layers)});
  }
  PipelineOptions quiet = options;
  quiet.after = nullptr;
  quiet.isWanted = nullptr;
  Notes ignored;
  runPipeline(whole, quiet, ignored);
  int64_t most = 0;
  for (const plan::Role &role : whole.roles)
    most = std::max(most, predict::deviceBytesOf(whole, role));
  bool fits = most <= plan.deviceBytes;
  choose(plan, fits ? "always" : "never");
  notes.push_back({fmt::format("'ddp.keep_frozen = if_fits' keeps frozen weights {}: {} of {} are "
                               "needed if they are whole",
                               fits ? "whole on each rank" : "divided", plan::formatBytes(most),
                               plan::formatBytes(plan.deviceBytes)),
                   "kept-frozen"});
}

} // namespace

bool isOptional(PassId id) { return passInfo(id).runs == PassRuns::Optional; }

bool isOnRequest(PassId id) { return passInfo(id).runs == PassRuns::OnRequest; }

void finishBody(plan::Plan &plan, PassId first) {
  Notes notes;
  runPasses(plan, {}, notes, first, PassId::SplitStages);
  runPass(PassId::FuseSums, plan, notes); // the last pass to change ops of an unsplit body
}

std::vector<PassTime> runPasses(plan::Plan &plan, const PipelineOptions &options, Notes &notes,
                                PassId first, std::optional<PassId> end) {
  std::vector<PassTime> times;
  auto has = [](const std::vector<PassId> &ids, PassId id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  for (PassId id : allPasses()) {
    if (id == end)
      break;
    if (id < first || has(options.disabled, id) || (isOnRequest(id) && !has(options.enabled, id)))
      continue;
    auto start = std::chrono::steady_clock::now();
    runPass(id, plan, notes);
    placed += id == PassId::PlaceBuffers;
    std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
    times.push_back({id, elapsed.count()});
    if (options.after)
      options.after(id, plan);
  }
  return times;
}

int64_t placedPlans() { return placed; }

std::vector<PassTime> runPipeline(plan::Plan &plan, const PipelineOptions &options, Notes &notes) {
  chooseKeepFrozen(plan, options, notes);
  if (choosesRecompute(plan) && !chooseRecompute(plan, options, notes))
    return {};
  return runPasses(plan, options, notes, PassId{}, std::nullopt);
}

} // namespace shardc::passes
