// Compares the plan with its job's options: schedules that count samples advance by the samples of
// the job's steps, and the numbers of skipped steps are numbers.
#include "runtime/plan/JobFacts.h"
#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {

void checkJob(Inspection &inspection) {
  const Plan &plan = inspection.plan();
  int64_t needed = plan.job.derived.stepSamples;
  forEachOp(plan, [&](Spot at, const Segment &, const Op &op) {
    if (op.kind != OpKind::StepBegin && op.kind != OpKind::StepFinish)
      return;
    if (int64_t counted = op.getInt(AttrKey::step_samples); counted != needed)
      inspection.add(finding::StepSamples, at, counted, needed);
  });
  if (!skippedSteps(plan.job))
    inspection.add(finding::StepsToSkip, {});
}

} // namespace shardc::plan::verifier
