// Walks through the program of each role and compares each segment that reads batches with the
// job's options.
#include "runtime/run/JobCheck.h"

#include "runtime/base/Reports.h"
#include "runtime/plan/JobFacts.h"
#include "runtime/plan/Variants.h"
#include "runtime/run/FeedRing.h"

namespace shardc::run {
namespace {

using plan::ProgramNode;

class JobCheck {
public:
  JobCheck(const plan::Plan &plan, const plan::Role &role, std::vector<Report> &findings)
      : plan_(plan), role_(role), findings_(findings), iterations_(plan.job.train.trainIters),
        sequence_(plan.job.model.seqLength), evalInterval_(plan.job.validation.evalInterval) {}

  /// Checks nodes that run every `interval` steps.
  void check(const std::vector<ProgramNode> &nodes, int64_t interval) {
    std::vector<int64_t> named = plan::namedMicrobatches(role_, nodes);
    for (uint32_t s = 0; s < named.size(); ++s)
      if (named[s] > 0)
        checkRun(s, named[s], interval);
    for (const ProgramNode &node : nodes) {
      if (node.kind == ProgramNode::Loop)
        continue; // the runs in a loop name their microbatches
      if (node.kind == ProgramNode::Run && !node.microbatch)
        checkRun(node.segment, node.count, interval);
      // While the batch size grows, other plans of the run have the other steps.
      bool isWhole = plan_.job.derived.stepSamples == 0;
      if (node.kind == ProgramNode::Steps &&
          (node.count > iterations_ || (node.count < iterations_ && isWhole)))
        add("the program has {} steps; train.train_iters is {}", node.count, iterations_);
      check(node.children, node.kind == ProgramNode::Every ? node.count : interval);
    }
  }

private:
  template <typename... Args> void add(fmt::format_string<Args...> text, Args &&...args) {
    findings_.push_back(
        makeReport(report::JobDisagrees, fmt::format(text, std::forward<Args>(args)...)));
  }

  bool takes(const plan::Segment &segment, plan::CellKind kind) const {
    for (const plan::Segment::Boundary &in : segment.ins)
      if (role_.cells[in.cell].kind == kind)
        return true;
    return false;
  }

  /// Checks one segment with batches: batch size, tokens per sequence, interval of evaluations, and
  /// number of microbatches. With context parallelism, a rank reads two chunks of each sequence, so
  /// a slice has an even number of tokens.
  void checkRun(uint32_t index, int64_t count, int64_t interval) {
    const plan::Segment &segment = role_.segments[index];
    bool isEval = takes(segment, plan::CellKind::EvalFeed);
    if (!isEval && !takes(segment, plan::CellKind::Feed))
      return;
    if (plan::countSeries(role_.program, index) > 1)
      add("segment '{}' takes more than one series of microbatches", segment.name);
    BatchSize size = BatchSize::of(segment);
    int64_t slices = plan_.groupSize(size.slices), tokens = 0;
    bool isWhole = !__builtin_mul_overflow(size.sequence, slices, &tokens) && tokens == sequence_;
    if (int64_t batch = plan::batchSizesOf(plan_.job, isEval).micro;
        size.batch != batch || !isWhole)
      add("segment '{}' takes batches of {} x {} tokens; {} is {} and model.seq_length {}",
          segment.name, size.batch, isWhole ? tokens : size.sequence,
          isEval && plan_.job.validation.evalMicroBatchSize > 0 ? "validation.eval_micro_batch_size"
                                                                : "train.micro_batch_size",
          batch, sequence_);
    if (slices > 1 && (size.sequence % 2 != 0 || size.more != FeedMore::Places))
      add("segment '{}' takes slices of {} tokens of each sequence; a slice must be two chunks, "
          "with their positions",
          segment.name, size.sequence);
    if (isEval && interval != evalInterval_)
      add("segment '{}' evaluates every {} steps; validation.eval_interval is {}", segment.name,
          interval, evalInterval_);
    // If the sizes do not divide, opening the data reports that.
    if (int64_t needed = plan::microbatchesOf(plan_, isEval); needed != 0 && count != needed)
      add("segment '{}' runs {} microbatches; the job's batch sizes give {}", segment.name, count,
          needed);
  }

  const plan::Plan &plan_;
  const plan::Role &role_;
  std::vector<Report> &findings_;
  int64_t iterations_, sequence_, evalInterval_;
};

} // namespace

std::vector<Report> checkJob(const plan::Plan &plan) {
  std::vector<Report> findings;
  for (const plan::Role &role : plan.roles)
    JobCheck(plan, role, findings).check(role.program, 1);
  return findings;
}

} // namespace shardc::run
