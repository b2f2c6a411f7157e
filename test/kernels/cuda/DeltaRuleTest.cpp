// Compares delta rules, state scans and their gradients on tensor cores with the host's: sizes of
// heads, chunks that are not full, documents that begin and end anywhere in chunks or are longer
// than one, decays close to 1 and to 0, groups of more heads than a block has.
#include <cstring>
#include <ostream>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/cuda/AttentionCall.h"
#include "test/kernels/cuda/DeviceRun.h"

namespace shardc::kernels::test {
namespace {

struct DeltaCase {
  bench::Model model;
  std::vector<int32_t> documents; ///< their lengths; empty: sequences are not divided
  double scale = 1;               ///< of what decays are computed from
};

const std::vector<DeltaCase> kScanCases = {
    {{1, 64, 2, 2, 64, 8, 8}, {}},
    {{2, 192, 6, 2, 128, 8, 8, 64}, {}},
    {{2, 200, 20, 2, 128, 8, 8, 80}, {130, 3, 60, 7}},
    {{1, 300, 9, 1, 64, 8, 8, 128}, {1, 63, 64, 100, 72}},
    {{2, 130, 4, 2, 128, 8, 8, 64}, {128, 2}},
    {{1, 257, 4, 2, 128, 8, 8, 24}, {30, 200, 27}, 6},
};

/// Groups have two heads of values each.
const std::vector<DeltaCase> kDeltaCases = {
    {{1, 64, 4, 2, 64, 8, 8}, {}},
    {{2, 192, 4, 2, 128, 8, 8}, {}},
    {{2, 200, 4, 2, 128, 8, 8}, {130, 3, 60, 7}},
    {{1, 300, 4, 2, 64, 8, 8, 128}, {1, 63, 64, 100, 72}},
    {{2, 130, 4, 2, 128, 8, 8, 64}, {128, 2}},
    {{1, 257, 4, 2, 64, 8, 8, 192}, {30, 200, 27}, 6},
};

std::string nameOf(const DeltaCase &delta) {
  return fmt::format("{}x{}_{}heads_{}_{}_{}documents", delta.model.batch, delta.model.positions,
                     delta.model.heads, delta.model.channels, delta.model.values(),
                     delta.documents.size());
}

DeviceRun runOf(std::string_view op, const DeltaCase &delta) {
  const bench::Model &m = delta.model;
  DeviceRun run(op, DType::BF16, m);
  Call &call = run.call();
  const int first = call.outCount == 1 ? 0 : 1;
  call.attrs.reset_mask = !delta.documents.empty();
  run.fill(call.in[first + 3], 7, delta.scale);
  auto *docs = static_cast<int32_t *>(call.in[first + 7].data);
  int64_t at = 0;
  for (int32_t length : delta.documents)
    for (int64_t begin = at; at < begin + length; ++at)
      for (int64_t sample = 0; sample < m.batch; ++sample)
        docs[sample * m.positions + at] = static_cast<int32_t>(begin);
  return run;
}

void compareOnTensorCores(std::string_view op, const DeltaCase &delta) {
  SCOPED_TRACE(op);
  DeviceRun run = runOf(op, delta);
  run.call().context = &testContext();
  EXPECT_EQ(cuda::deltaPathOf(run.call()), KernelPath::DeltaMma);
  run.compare(1.5e-2, 1.5e-2); // products of bf16 factors
}

class CudaDeltaRule : public ::testing::TestWithParam<DeltaCase> {};
class CudaStateScan : public ::testing::TestWithParam<DeltaCase> {};

TEST_P(CudaDeltaRule, IsComputedByTensorCoresAsByTheHost) {
  SKIP_WITHOUT_GPU();
  compareOnTensorCores("delta_rule", GetParam());
  compareOnTensorCores("delta_rule_bwd", GetParam());
}
TEST_P(CudaStateScan, IsComputedByTensorCoresAsByTheHost) {
  SKIP_WITHOUT_GPU();
  compareOnTensorCores("state_scan", GetParam());
  compareOnTensorCores("state_scan_bwd", GetParam());
}

INSTANTIATE_TEST_SUITE_P(Sizes, CudaDeltaRule, testing::ValuesIn(kDeltaCases),
                         nameOfCase<DeltaCase>);
INSTANTIATE_TEST_SUITE_P(Sizes, CudaStateScan, testing::ValuesIn(kScanCases),
                         nameOfCase<DeltaCase>);

} // namespace
} // namespace shardc::kernels::test
