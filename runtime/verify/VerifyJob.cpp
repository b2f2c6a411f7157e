// Compares the program with its job's options: the number of microbatches in a step or an
// evaluation, and the samples in a step. Also checks that skipped steps are numbers.
#include <array>

#include "runtime/plan/HostCells.h"
#include "runtime/plan/JobFacts.h"
#include "runtime/plan/Summary.h"
#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {
namespace {

class MicrobatchCountCheck : RoleCheck {
public:
  MicrobatchCountCheck(Inspection &inspection, uint32_t roleIndex)
      : RoleCheck(inspection, roleIndex) {
    if (!plan_.job.has(JobField::train_microBatchSize) ||
        !plan_.job.has(JobField::train_globalBatchSize))
      return;
    // The verifier cannot see whether the data fit the job. The run checks that when it opens the
    // data.
    ofStep_ = microbatchesOf(plan_, /*isEval=*/false);
    ofEvaluation_ = microbatchesOf(plan_, /*isEval=*/true);
  }

  void run() {
    if (ofStep_ == 0 && ofEvaluation_ == 0)
      return;
    findTaken();
    check(role_.program);
  }

private:
  void check(const std::vector<ProgramNode> &nodes) {
    std::vector<int64_t> runs = runsOf(role_, nodes);
    for (bool isEval : {false, true}) {
      int64_t wanted = isEval ? ofEvaluation_ : ofStep_, count = 0;
      uint32_t last = kNone;
      for (uint32_t s = 0; s < role_.segments.size(); ++s)
        if (taken_[isEval][s] != kNone && runs[s] > 0)
          count += runs[s], last = s;
      if (last != kNone && wanted > 0 && count != wanted)
        report_.add(finding::MicrobatchCount,
                    {roleIndex_, last, scope(last).opOf(taken_[isEval][last])}, count, wanted);
    }
    for (const ProgramNode &node : nodes)
      if (node.kind != ProgramNode::Loop) // a loop's runs belong to its step
        check(node.children);
  }

  void findTaken() {
    for (std::vector<ValueId> &taken : taken_)
      taken.assign(role_.segments.size(), kNone);
    for (size_t s = 0; s < role_.segments.size(); ++s)
      for (const Segment::Boundary &in : role_.segments[s].ins)
        if (const Cell &cell = role_.cells[in.cell]; isFeed(cell))
          taken_[cell.kind == CellKind::EvalFeed][s] = in.value;
  }

  /// For each segment, the live-in of the ring of training, and that of evaluations; kNone if the
  /// segment does not read that ring.
  std::array<std::vector<ValueId>, 2> taken_;
  int64_t ofStep_ = 0, ofEvaluation_ = 0; ///< microbatches; 0 if the job does not determine them
};

/// Checks the samples per step: schedules that count samples advance by the job's number.
void checkStepSamples(Inspection &inspection, uint32_t roleIndex) {
  const Plan &plan = inspection.plan();
  const Role &role = plan.roles[roleIndex];
  int64_t needed = plan.job.derived.stepSamples;
  for (uint32_t s = 0; s < role.segments.size(); ++s)
    for (uint32_t i = 0; i < role.segments[s].ops.size(); ++i) {
      const Op &op = role.segments[s].ops[i];
      if (op.kind != OpKind::StepBegin && op.kind != OpKind::StepFinish)
        continue;
      if (int64_t counted = op.getInt(AttrKey::step_samples); counted != needed)
        inspection.add(finding::StepSamples, {roleIndex, s, i}, counted, needed);
    }
}

} // namespace

void checkJob(Inspection &inspection, uint32_t role) {
  MicrobatchCountCheck(inspection, role).run();
  checkStepSamples(inspection, role);
  if (role == 0 && !skippedSteps(inspection.plan().job))
    inspection.add(finding::StepsToSkip, {});
}

} // namespace shardc::plan::verifier
