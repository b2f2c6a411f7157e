// Compares attention of slices of a sequence and its gradients with the host's: mirrored slices
// with one rank's keys and with all keys, and slices given by positions; masks, grouped queries,
// dropout, documents, all types. Does not test whether cuDNN or a hand-written kernel computes a
// call.
#include <algorithm>
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "kernels/host/Slices.h"
#include "test/kernels/Harness.h"
#include "test/kernels/cuda/DeviceRun.h"

namespace shardc::kernels::test {
namespace {

struct Setting {
  bench::Model model;      ///< positions of one rank's slices
  int64_t slices, index;   ///< number of ranks with slices, and this rank's index
  int64_t by = 0;          ///< the keys belong to the rank with index - by
  bool hasAllKeys = false; ///< the keys belong to all ranks
  bool saysSlices = true;  ///< the call has `slices`; if false, only positions
  bool causal = true, documents = false;
  double p = 0;
  int64_t window = -1;
  int64_t headParts = 1;
  double softCap = 0;
};

const Setting kSettings[] = {
    // the rank's own keys, those of an earlier and of a later rank
    {{2, 64, 4, 2, 64, 8, 8}, 2, 0},
    {{2, 64, 4, 2, 64, 8, 8}, 2, 1, 1},
    {{2, 64, 4, 2, 64, 8, 8}, 2, 0, 1},
    {{1, 256, 8, 2, 128, 8, 8}, 4, 1, 1},
    {{1, 256, 8, 8, 128, 8, 8}, 4, 1, 2},
    {{2, 130, 4, 1, 64, 8, 8}, 4, 3, 3},
    {{1, 37, 2, 1, 40, 8, 8}, 1, 0},
    // keys of all ranks
    {{2, 64, 4, 2, 64, 8, 8}, 2, 0, 0, true},
    {{2, 64, 4, 2, 64, 8, 8}, 2, 1, 0, true},
    {{1, 128, 8, 2, 128, 8, 8}, 4, 2, 0, true},
    {{1, 66, 2, 2, 32, 8, 8}, 3, 1, 0, true},
    // without a mask
    {{2, 64, 4, 2, 64, 8, 8}, 2, 1, 1, false, true, false},
    {{2, 64, 4, 2, 64, 8, 8}, 2, 1, 0, true, false, false},
    // by positions only
    {{2, 70, 4, 2, 64, 8, 8}, 2, 1, 1, false, false},
    {{2, 70, 4, 2, 40, 8, 8}, 2, 0, 0, true, false},
    {{2, 70, 2, 2, 32, 8, 8}, 2, 1, 0, true, true, true, true},
    {{2, 70, 2, 2, 32, 8, 8}, 2, 1, 1, false, true, true, false, 0.2},
    {{2, 70, 4, 2, 32, 8, 8}, 2, 1, 0, true, true, true, false, 0.2, -1, 2},
    {{2, 70, 2, 2, 32, 8, 8}, 2, 0, 0, true, false, false, true, 0.1},
    {{1, 66, 2, 1, 200, 8, 8}, 3, 2, 0, true, true, true, false, 0, 50},
    {{1, 66, 2, 1, 40, 8, 8}, 3, 2, 1, false, true, true, true, 0.1, 20},
    {{2, 64, 4, 2, 64, 8, 8}, 2, 1, 1, false, true, true, false, 0, -1, 1, 1.5},
    {{1, 66, 2, 1, 200, 8, 8}, 3, 2, 0, true, true, true, false, 0, 50, 1, 0.5},
    // values with other numbers of channels than keys
    {{1, 66, 2, 2, 48, 8, 8, 32}, 3, 2, 0, true, true, true, true},
    {{1, 66, 2, 1, 40, 8, 8, 72}, 3, 2, 1, false, true, true, false, 0.1},
    // few queries of many keys
    {{2, 2, 4, 2, 64, 8, 8}, 300, 150, 0, true, false},
    {{1, 4, 8, 2, 128, 8, 8}, 160, 159, 0, true, false, true, false, 0, 300},
    {{1, 2, 2, 1, 200, 8, 8}, 150, 3, 0, true, false, true, true, 0, -1, 1, 0.5},
    {{2, 2, 2, 2, 40, 8, 8, 72}, 20, 19, 0, true, false, false},
    // enough of them that blocks compute four heads
    {{16, 2, 8, 2, 64, 8, 8}, 300, 150, 0, true, false},
    {{8, 4, 8, 1, 128, 8, 8}, 160, 159, 0, true, false, true, false, 0, 300},
};

int32_t *wordsOf(Tensor &t) { return static_cast<int32_t *>(t.data); }

/// Sets attributes, number of keys, positions and documents; q, k and v begin at operand `q`,
/// positions at operand `words`. All ops get the same numbers.
void apply(const Setting &setting, DeviceRun &run, int q, int words) {
  Call &call = run.call();
  Attrs &attrs = call.attrs;
  attrs.causal = setting.causal, attrs.reset_mask = setting.documents;
  attrs.p = setting.p, attrs.window = setting.window, attrs.salt = 3;
  attrs.soft_cap = setting.softCap;
  attrs.slices = setting.slices, attrs.by = setting.by;
  attrs.positions = setting.slices * setting.model.positions;
  call.groupSize = setting.slices * setting.headParts;
  call.index = setting.index * setting.headParts + setting.headParts - 1;
  host::Slices slices(call, call.in[q]);
  int64_t batch = setting.model.batch, queries = setting.model.positions;
  int64_t keys = setting.hasAllKeys ? setting.slices * queries : queries;
  for (int i : {q + 1, q + 2, words + 1, words + 3}) {
    Tensor &ofKeys = call.in[i];
    ofKeys.shape[1] = keys;
    run.retype(ofKeys, ofKeys.dtype, i < words);
  }
  for (int i = 0; i < 3; ++i)
    run.fill(call.in[q + i], 40 + static_cast<uint64_t>(i), 2.0);
  auto set = [&](int64_t sample, int64_t row, int64_t rows, int64_t position, int side) {
    wordsOf(call.in[words + side])[sample * rows + row] = static_cast<int32_t>(position);
    wordsOf(call.in[words + 2 + side])[sample * rows + row] =
        setting.documents ? static_cast<int32_t>(position / 23 * 23) : 0;
  };
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t row = 0; row < queries; ++row)
      set(b, row, queries, slices.positionOf(setting.index, row), 0);
    for (int64_t key = 0; key < keys; ++key)
      set(b, key, keys, setting.hasAllKeys ? key : slices.positionOf(slices.owner(), key), 1);
    static_cast<int64_t *>(call.in[words + 4].data)[b] = 11 + b;
  }
  attrs.slices = setting.saysSlices ? setting.slices : 0;
  if (!setting.saysSlices)
    call.groupSize = 1, call.index = 0;
}

class CudaAttentionPart : public testing::TestWithParam<int> {
protected:
  const Setting &setting() const { return kSettings[GetParam() / 3]; }
  DType data() const { return kDataTypes[GetParam() % 3]; }
};

TEST_P(CudaAttentionPart, AgreesWithTheHost) {
  SKIP_WITHOUT_GPU();
  DeviceRun run("attention_part", data(), setting().model);
  apply(setting(), run, 0, 3);
  run.compare(1e-5, 6e-3);
}

/// Gradients for queries that also attend to other keys, with the same probability as to these.
TEST_P(CudaAttentionPart, GradientsAgreeWithTheHost) {
  SKIP_WITHOUT_GPU();
  DeviceRun forward("attention_part", data(), setting().model);
  apply(setting(), forward, 0, 3);
  Results part = forward.onHost();
  for (bool inOrder : {true, false}) {
    DeviceRun backward("attention_part_bwd", data(), setting().model);
    apply(setting(), backward, 1, 6);
    Call &call = backward.call();
    for (int i = 0; i < 2; ++i) {
      call.out[1 + i].shape[1] = call.in[2].shape[1];
      backward.retype(call.out[1 + i], call.out[1 + i].dtype, false);
    }
    backward.fill(call.in[0], 50, 1.0);
    std::memcpy(call.in[4].data, part[0].data(), part[0].size());
    std::memcpy(call.in[5].data, part[1].data(), part[1].size());
    auto *lse = static_cast<float *>(call.in[5].data);
    std::transform(lse, lse + call.in[5].numel(), lse,
                   [](float x) { return std::isinf(x) ? 1.0f : x + std::log(2.0f); });
    if (!inOrder)
      backward.inAnyOrder();
    Results want = backward.onHost(), got = backward.onDevice(inOrder);
    ASSERT_EQ(got.size(), 3u);
    for (int r = 0; r < 3; ++r)
      expectNear(call.out[r], got[static_cast<size_t>(r)], want[static_cast<size_t>(r)], 3e-5, 2e-2,
                 "gradient " + std::to_string(r));
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, CudaAttentionPart,
                         testing::Range(0, 3 * static_cast<int>(std::size(kSettings))));

} // namespace
} // namespace shardc::kernels::test
