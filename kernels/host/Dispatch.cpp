// Dispatch of rows to groups (kernels/host/RowGroups.h), and combination of the groups' rows.
//  make_runs: group ids i32[T,K], id = slot·groups + group -> counts i32[slots,groups], places
//    i32[T,K] among `bound` rows. A group has its rows in the order of t, then k. If a slot is too
//    small, its first groups get its rows. A choice beyond the slot's capacity gets place -2, and a
//    choice with an invalid id gets place -1. Neither is counted.
//  dispatch: y[places[t,k],:] = x[t,:] (·weights[t,k])
//  combine: x[t,:] = sum over k, in order, of y[places[t,k],:] (·weights[t,k]); NaN if a place is
//    -2
//  combine_bwd: dweights[t,k] = dx[t,:]·y[places[t,k],:]; may accumulate
// Places outside y are skipped. Data and weights are f32, bf16 or f16 each. Sums are fp32, those of
// combine_bwd fp64, rounded once. Limited by memory.
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/RowGroups.h"
#include "kernels/host/Rows.h"
#include "runtime/base/Router.h"

#include <algorithm>
#include <limits>

namespace shardc::kernels::host {
namespace {

// ---- make_runs ----

struct Buffers {
  int64_t *next, *end; ///< for each group: its next free place, and the end of its places

  Buffers(const Call &call, Scratch &scratch) {
    next = scratch.take<int64_t>(call.out[0].numel());
    end = scratch.take<int64_t>(call.out[0].numel());
  }
};

const char *acceptsMakeRuns(const Call &call) {
  SHARDC_REQUIRE(call.attrs.bound > 0 && call.attrs.bound < (int64_t{1} << 31),
                 "the bound is not from 1 to 2^31 - 1 rows");
  return checkCounts(call.out[0], call.attrs.bound);
}

/// Limits counts to the capacity of slots, and sets each group's range of places in `next` and
/// `end`.
void assignCapacity(int32_t *counts, int64_t slots, int64_t groups, int64_t slotRows,
                    const Buffers &buffers) {
  for (int64_t slot = 0; slot < slots; ++slot)
    for (int64_t group = 0, used = 0; group < groups; ++group) {
      int64_t at = slot * groups + group;
      int64_t rows = std::min<int64_t>(counts[at], slotRows - used);
      buffers.next[at] = slot * slotRows + used;
      used += rows;
      buffers.end[at] = slot * slotRows + used;
      counts[at] = static_cast<int32_t>(rows);
    }
}

/// Gives each choice the next row of its group, in the order of tokens. A choice beyond the group's
/// capacity, or without a group, gets a negative number that says which.
void runMakeRuns(const Call &call, const Buffers &buffers) {
  const int32_t *ids = static_cast<const int32_t *>(call.in[0].data);
  int32_t *counts = static_cast<int32_t *>(call.out[0].data);
  int32_t *places = static_cast<int32_t *>(call.out[1].data);
  int64_t slots = call.out[0].shape[0], groups = call.out[0].shape[1], all = slots * groups;
  auto isGroup = [all](int32_t id) { return id >= 0 && id < all; };
  std::fill_n(counts, all, 0);
  for (int64_t i = 0, n = call.in[0].numel(); i < n; ++i)
    if (isGroup(ids[i]))
      ++counts[ids[i]];
  assignCapacity(counts, slots, groups, call.attrs.bound / slots, buffers);
  for (int64_t i = 0, n = call.in[0].numel(); i < n; ++i) {
    bool hasPlace = isGroup(ids[i]) && buffers.next[ids[i]] < buffers.end[ids[i]];
    places[i] = hasPlace          ? static_cast<int32_t>(buffers.next[ids[i]]++)
                : isGroup(ids[i]) ? kOverCapacity
                                  : kNoGroup;
  }
}

// ---- rows ----

bool isIn(const Tensor &y, int64_t place) { return place >= 0 && place < y.shape[0]; }

float weightAt(const Call &call, int64_t i) {
  float buffer = 1.0f;
  return call.inCount > 2 ? *readF32(call.in[2], i, 1, &buffer) : 1.0f;
}

/// Copies each token to the row of each of its choices, times the choice's weight if there are
/// weights.
void runDispatch(const Call &call) {
  const Tensor &x = call.in[0], &places = call.in[1], &y = call.out[0];
  const int32_t *at = static_cast<const int32_t *>(places.data);
  float buffer[kBlock], scaled[kBlock];
  for (int64_t i = 0; i < places.numel(); ++i) {
    if (!isIn(y, at[i]))
      continue;
    float weight = weightAt(call, i);
    int64_t cols = x.cols(), row = i / places.shape[1];
    for (int64_t begin = 0; begin < cols; begin += kBlock) {
      int64_t n = std::min(kBlock, cols - begin);
      const float *from = readF32(x, row * cols + begin, n, buffer);
      for (int64_t c = 0; c < n; ++c)
        scaled[c] = from[c] * weight;
      writeF32(y, at[i] * cols + begin, n, scaled);
    }
  }
}

/// Sums the rows of a token's choices. A choice over capacity makes the token NaN, so that the lost
/// row is noticed.
void runCombine(const Call &call) {
  const Tensor &y = call.in[0], &places = call.in[1], &x = call.out[0];
  const int32_t *at = static_cast<const int32_t *>(places.data);
  int64_t choices = places.shape[1], cols = x.cols();
  float buffer[kBlock], sums[kBlock];
  for (int64_t t = 0; t < places.shape[0]; ++t)
    for (int64_t begin = 0; begin < cols; begin += kBlock) {
      int64_t n = std::min(kBlock, cols - begin);
      std::fill_n(sums, n, 0.0f);
      for (int64_t i = t * choices; i < (t + 1) * choices; ++i) {
        if (at[i] == kOverCapacity)
          std::fill_n(sums, n, std::numeric_limits<float>::quiet_NaN());
        if (!isIn(y, at[i]))
          continue;
        float weight = weightAt(call, i);
        const float *from = readF32(y, at[i] * cols + begin, n, buffer);
        for (int64_t c = 0; c < n; ++c)
          sums[c] += from[c] * weight;
      }
      writeF32(x, t * cols + begin, n, sums);
    }
}

float productOfRows(const Tensor &y, int64_t rowOfY, const Tensor &dx, int64_t rowOfX) {
  float ofY[kBlock], ofX[kBlock];
  double sum = 0;
  for (int64_t begin = 0, cols = y.cols(); begin < cols; begin += kBlock) {
    int64_t n = std::min(kBlock, cols - begin);
    sum += dot(readF32(y, rowOfY * cols + begin, n, ofY),
               readF32(dx, rowOfX * cols + begin, n, ofX), n);
  }
  return static_cast<float>(sum);
}

void runCombineBwd(const Call &call) {
  const Tensor &y = call.in[0], &dx = call.in[1], &places = call.in[2];
  const int32_t *at = static_cast<const int32_t *>(places.data);
  for (int64_t i = 0; i < places.numel(); ++i) {
    float gradient = isIn(y, at[i]) ? productOfRows(y, at[i], dx, i / places.shape[1]) : 0.0f;
    writeF32(call.out[0], i, 1, &gradient);
  }
}

} // namespace

SHARDC_HOST_KERNEL(MakeRuns, withBuffers<runMakeRuns>, acceptsMakeRuns);
SHARDC_HOST_KERNEL(Dispatch, runDispatch);
SHARDC_HOST_KERNEL(Combine, runCombine);
SHARDC_HOST_KERNEL(CombineBwd, runCombineBwd, nullptr, 1);

} // namespace shardc::kernels::host
