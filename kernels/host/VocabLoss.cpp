// cross_entropy if the ranks of a group have equal parts of the columns. For each row of this
// member's logits, vocab_stats computes the maximum, the sum of exp(logit - maximum), and the
// label's logit: -inf if another member has its column, NaN if the label is not a valid column. A
// member without valid columns, or whose valid logits are all -inf, gives -inf, 0 and -inf.
// vocab_loss joins the statistics of all members: lse = M + log(sum over members of sum·exp(maximum
// - M)), with the largest maximum M, and losses = mask·(lse - target). Logits are f32, bf16 or f16,
// labels i32, everything else f32. Sums of exponentials are fp64, rounded once by each op. Limited
// by exp.
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Loss.h"
#include "kernels/host/Rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shardc::kernels::host {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr int64_t kStats = 3;

struct Buffers {
  float *logits;

  Buffers(const Call &call, Scratch &scratch) : logits(takeLogits(call, scratch)) {}
};

Exponentials exponentialsHere(const float *logits, int64_t valid) {
  if (std::all_of(logits, logits + valid, [](float logit) { return logit == kNothing; }))
    return {kNothing, 0};
  return exponentialsOfRow(logits, valid);
}

/// For each row, the largest of this rank's logits, the sum of their exponentials relative to it,
/// and the target's logit if this rank has it.
void runStats(const Call &call, const Buffers &buffers) {
  const Tensor &logits = call.in[0];
  const int32_t *labels = static_cast<const int32_t *>(call.in[1].data);
  int64_t rows = logits.rows(), cols = logits.cols();
  float *largest = static_cast<float *>(call.out[0].data);
  float *sums = largest + rows, *targets = sums + rows;
  Columns columns(call, cols);
  for (int64_t row = 0; row < rows; ++row) {
    const float *x = readLogits(call, row, buffers.logits);
    Exponentials here = exponentialsHere(x, columns.validHere());
    largest[row] = here.largest;
    sums[row] = static_cast<float>(here.sum);
    targets[row] = columns.has(labels[row])       ? x[labels[row] - columns.first]
                   : columns.isValid(labels[row]) ? kNothing
                                                  : kNan;
  }
}

/// Joins the statistics of all members for one row. They are `stride` numbers apart.
struct Row {
  float largest = kNothing, target = kNothing;
  double sum = 0;

  Row(const float *stats, int64_t members, int64_t rows) {
    for (int64_t m = 0; m < members; ++m) {
      const float *member = stats + m * kStats * rows;
      largest = std::max(largest, member[0]);
      // At most one of the targets is a number; NaN stays NaN.
      float other = member[2 * rows];
      target = other > target || std::isnan(other) ? other : target;
    }
    for (int64_t m = 0; m < members; ++m) {
      const float *member = stats + m * kStats * rows;
      if (member[rows] != 0.0f) // otherwise the member adds nothing, and its maximum is -inf
        sum += static_cast<double>(member[rows]) *
               std::exp(static_cast<double>(member[0]) - static_cast<double>(largest));
    }
  }
};

void runLoss(const Call &call) {
  const float *stats = static_cast<const float *>(call.in[0].data);
  const float *mask = static_cast<const float *>(call.in[1].data);
  float *losses = static_cast<float *>(call.out[0].data);
  float *lse = static_cast<float *>(call.out[1].data);
  int64_t rows = call.in[0].cols(), members = call.in[0].shape[0] / kStats;
  for (int64_t t = 0; t < rows; ++t) {
    Row row(stats + t, members, rows);
    lse[t] = static_cast<float>(static_cast<double>(row.largest) + std::log(row.sum));
    bool isFree = mask[t] == 0.0f && std::isnan(row.target); // the label does not count
    losses[t] = mask[t] * (lse[t] - (isFree ? lse[t] : row.target));
  }
}

} // namespace

SHARDC_HOST_KERNEL(VocabStats, withBuffers<runStats>, acceptsLogits);
SHARDC_HOST_KERNEL(VocabLoss, runLoss);

} // namespace shardc::kernels::host
