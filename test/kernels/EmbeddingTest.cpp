// Table lookups and their gradient: exact forward, fp64 sums backward, ids outside of the table.
#include "test/kernels/Harness.h"

#include <cmath>

#include <gtest/gtest.h>

namespace shardc::kernels::test {
namespace {

struct Shape {
  int64_t batch, positions, vocabulary, hidden;
};
constexpr Shape kShapes[] = {{1, 1, 1, 1}, {2, 3, 5, 7}, {2, 64, 40, 600}};

TEST(Embedding, LooksUp) {
  for (Shape s : kShapes)
    for (DType typeTable : kDataTypes)
      for (DType typeX : kDataTypes) {
        Array ids = indices(DType::I32, {s.batch, s.positions}, 1, s.vocabulary);
        Array table = randoms(typeTable, {s.vocabulary, s.hidden}, 2);
        KernelRun run("embedding");
        Array x = run.in(ids).in(table).out(typeX, {s.batch, s.positions, s.hidden}).run()[0];
        for (int64_t i = 0; i < x.numel(); ++i)
          ASSERT_EQ(
              x[i],
              roundTo(typeX,
                      table[static_cast<int64_t>(ids[i / s.hidden]) * s.hidden + i % s.hidden]));
      }
}

TEST(Embedding, GradientIsSummedByRowOfTheTable) {
  for (Shape s : kShapes)
    for (DType dtype : kDataTypes) {
      Array ids = indices(DType::I32, {s.batch, s.positions}, 3, s.vocabulary);
      Array dx = randoms(dtype, {s.batch, s.positions, s.hidden}, 4);
      Array old = randoms(dtype, {s.vocabulary, s.hidden}, 5);
      std::vector<double> want(old.values.size());
      for (int64_t i = 0; i < dx.numel(); ++i)
        want[static_cast<size_t>(static_cast<int64_t>(ids[i / s.hidden]) * s.hidden +
                                 i % s.hidden)] += dx[i];
      KernelRun plain("embedding_bwd"), accumulating("embedding_bwd");
      Array dtable = plain.in(dx).in(ids).out(DType::F32, old.shape).run()[0];
      expectClose(dtable, want, {0, 1}, "dtable"); // summed in fp64, rounded once
      expectAccumulated(accumulating.in(dx).in(ids).accumulate(old).run()[0], dtable, old);
    }
}

TEST(Embedding, AnIdOutsideOfTheTableGivesNanAndNoGradient) {
  Array ids = array(DType::I32, {1, 3}, {-1, 1, 2});
  KernelRun forward("embedding"), backward("embedding_bwd");
  Array x = forward.in(ids).in(constant(DType::F32, {2, 2}, 3)).out(DType::F32, {1, 3, 2}).run()[0];
  for (int64_t i = 0; i < 6; ++i)
    EXPECT_TRUE(i / 2 == 1 ? x[i] == 3 : std::isnan(x[i])) << i;
  Array dx = constant(DType::F32, {1, 3, 2}, 1);
  EXPECT_EQ(backward.in(dx).in(ids).out(DType::F32, {2, 2}).run()[0].values,
            (std::vector<double>{0, 0, 1, 1}));
}

} // namespace
} // namespace shardc::kernels::test
