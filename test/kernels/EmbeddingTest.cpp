// Table lookups and their gradients, for whole tables and shards: exact lookups, fp64 sums in
// gradients, and ids outside the table.
#include "test/kernels/Harness.h"

#include <algorithm>
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

/// Rows [begin, end) of a matrix.
Array rowsOf(const Array &table, int64_t begin, int64_t end) {
  int64_t cols = table.shape[1];
  return array(table.dtype, {end - begin, cols},
               {table.values.begin() + begin * cols, table.values.begin() + end * cols});
}

TEST(Embedding, RowsOfAllMembersAddUpToThoseOfTheTable) {
  for (int64_t members : {2, 4})
    for (DType typeTable : kDataTypes)
      for (DType typeX : kDataTypes) {
        Array ids = indices(DType::I32, {2, 9}, 1, 12);
        ids.values[3] = 12, ids.values[7] = -1; // outside the table of all members
        Array table = randoms(typeTable, {12, 5}, 2);
        table.values[0] = -0.0; // keeps its sign
        KernelRun whole("embedding");
        Array want = whole.in(ids).in(table).out(typeX, {2, 9, 5}).run()[0];
        std::vector<double> sum(want.values.size(), -0.0);
        for (int64_t index = 0, rows = 12 / members; index < members; ++index) {
          KernelRun run("embedding");
          run.index = index, run.groupSize = members;
          run.in(ids).in(rowsOf(table, index * rows, (index + 1) * rows));
          Array x = run.out(typeX, want.shape).run()[0];
          for (size_t i = 0; i < sum.size(); ++i)
            sum[i] += x.values[i];
        }
        for (size_t i = 0; i < sum.size(); ++i) {
          ASSERT_TRUE(std::isnan(want.values[i]) ? std::isnan(sum[i]) : sum[i] == want.values[i]);
          ASSERT_TRUE(std::isnan(sum[i]) || std::signbit(sum[i]) == std::signbit(want.values[i]));
        }
      }
}

TEST(Embedding, GradientsOfAllMembersAreThoseOfTheTable) {
  for (DType dtype : kDataTypes) {
    Array ids = indices(DType::I32, {2, 9}, 3, 12), dx = randoms(dtype, {2, 9, 5}, 4);
    ids.values[3] = 12, ids.values[7] = -1;
    KernelRun whole("embedding_bwd");
    Array want = whole.in(dx).in(ids).out(dtype, {12, 5}).run()[0];
    for (int64_t index = 0; index < 3; ++index) {
      KernelRun plain("embedding_bwd"), adding("embedding_bwd");
      plain.index = adding.index = index, plain.groupSize = adding.groupSize = 3;
      Array got = plain.in(dx).in(ids).out(dtype, {4, 5}).run()[0];
      EXPECT_EQ(got.values, rowsOf(want, 4 * index, 4 * index + 4).values);
      Array old = randoms(dtype, got.shape, 5);
      KernelRun f32("embedding_bwd");
      f32.index = index, f32.groupSize = 3;
      Array exact = f32.in(dx).in(ids).out(DType::F32, {4, 5}).run()[0];
      expectAccumulated(adding.in(dx).in(ids).accumulate(old).run()[0], exact, old);
    }
  }
}

/// A table that is divided into shards of whole rows; the last shard has padding after its rows.
struct Shards {
  int64_t rows, cols, rowsOfShard;
  int64_t count() const { return (rows + rowsOfShard - 1) / rowsOfShard; }

  /// The range of a shard that the table fills, as a call gives it.
  std::vector<ParamRange> rangesOf(int64_t shard) const {
    ParamRange range;
    range.globalBegin = shard * rowsOfShard * cols;
    range.end = std::min(rowsOfShard * cols, rows * cols - range.globalBegin);
    return {range};
  }
  Array part(const Array &table, int64_t shard) const {
    std::vector<double> values(static_cast<size_t>(rowsOfShard * cols), 5.0);
    for (int64_t i = 0, end = rangesOf(shard)[0].end; i < end; ++i)
      values[static_cast<size_t>(i)] = table[shard * rowsOfShard * cols + i];
    return array(table.dtype, {rowsOfShard * cols}, std::move(values));
  }
};

constexpr Shards kShards[] = {{1, 1, 1}, {7, 5, 3}, {40, 600, 14}};

TEST(EmbeddingShard, RowsOfAllShardsAddUpToThoseOfTheTable) {
  for (Shards s : kShards)
    for (DType typeTable : kDataTypes)
      for (DType typeX : kDataTypes) {
        Array ids = indices(DType::I32, {2, 9}, 1, s.rows);
        Array table = randoms(typeTable, {s.rows, s.cols}, 2);
        table.values[0] = -0.0; // keeps its sign
        KernelRun whole("embedding");
        Array want = whole.in(ids).in(table).out(typeX, {2, 9, s.cols}).run()[0];
        std::vector<double> sum(want.values.size(), -0.0);
        for (int64_t shard = 0; shard < s.count(); ++shard) {
          KernelRun run("embedding_shard");
          run.attrs.table_rows = s.rows;
          run.ranges = s.rangesOf(shard);
          Array x = run.in(ids).in(s.part(table, shard)).out(typeX, want.shape).run()[0];
          for (size_t i = 0; i < sum.size(); ++i)
            sum[i] += x.values[i];
        }
        for (size_t i = 0; i < sum.size(); ++i) {
          ASSERT_EQ(sum[i], want.values[i]);
          ASSERT_EQ(std::signbit(sum[i]), std::signbit(want.values[i]));
        }
      }
}

TEST(EmbeddingShard, GradientsOfAllShardsAreThoseOfTheTable) {
  for (Shards s : kShards)
    for (DType dtype : kDataTypes)
      for (double scale : {1.0, 1.0 / 3}) {
        Array ids = indices(DType::I32, {2, 9}, 3, s.rows);
        Array dx = randoms(dtype, {2, 9, s.cols}, 4);
        KernelRun whole("embedding_bwd");
        Array table = whole.in(dx).in(ids).out(DType::F32, {s.rows, s.cols}).run()[0];
        for (double &value : table.values)
          value *= scale;
        for (int64_t shard = 0; shard < s.count(); ++shard) {
          KernelRun plain("embedding_shard_bwd"), adding("embedding_shard_bwd");
          plain.attrs.scale = adding.attrs.scale = scale;
          plain.ranges = adding.ranges = s.rangesOf(shard);
          Array got = plain.in(dx).in(ids).out(DType::F32, {s.rowsOfShard * s.cols}).run()[0];
          Array want = s.part(table, shard);
          for (size_t i = static_cast<size_t>(plain.ranges[0].end); i < got.values.size(); ++i)
            want.values[i] = 0; // padding
          expectClose(got, want.values, {0, 1}, "shard");
          Array old = randoms(dtype, got.shape, 5);
          expectAccumulated(adding.in(dx).in(ids).accumulate(old).run()[0], got, old);
        }
      }
}

TEST(EmbeddingShard, AnIdOutsideOfTheTableGivesNanOnEveryRankAndNoGradient) {
  Array ids = array(DType::I32, {1, 4}, {-1, 1, 2, 4});
  KernelRun forward("embedding_shard"), backward("embedding_shard_bwd");
  forward.attrs.table_rows = 4;
  forward.ranges = backward.ranges = Shards{4, 2, 2}.rangesOf(0);
  Array x = forward.in(ids).in(constant(DType::F32, {4}, 3)).out(DType::F32, {1, 4, 2}).run()[0];
  for (int64_t i = 0; i < 8; ++i)
    EXPECT_TRUE(i / 2 == 1   ? x[i] == 3
                : i / 2 == 2 ? x[i] == 0 && std::signbit(x[i])
                             : std::isnan(x[i]))
        << i;
  Array dx = constant(DType::F32, {1, 4, 2}, 1);
  EXPECT_EQ(backward.in(dx).in(ids).out(DType::F32, {4}).run()[0].values,
            (std::vector<double>{0, 0, 1, 1}));
}

TEST(EmbeddingShard, AShardOfPaddingHasNoRows) {
  Array ids = array(DType::I32, {1, 1}, {0});
  KernelRun forward("embedding_shard"), backward("embedding_shard_bwd");
  forward.attrs.table_rows = 1;
  Array x = forward.in(ids).in(constant(DType::F32, {2}, 3)).out(DType::F32, {1, 1, 2}).run()[0];
  EXPECT_TRUE(x[0] == 0 && std::signbit(x[0]));
  EXPECT_EQ(
      backward.in(constant(DType::F32, {1, 1, 2}, 1)).in(ids).out(DType::F32, {2}).run()[0].values,
      (std::vector<double>{0, 0}));
}

TEST(EmbeddingShard, AShardThatCutsARowIsRefused) {
  Array ids = array(DType::I32, {1, 1}, {0});
  KernelRun run("embedding_shard");
  run.attrs.table_rows = 3;
  run.ranges = Shards{3, 2, 2}.rangesOf(0);
  run.ranges[0].globalBegin = 1;
  run.in(ids).in(constant(DType::F32, {4}, 3)).out(DType::F32, {1, 1, 2});
  EXPECT_STREQ(run.refusal(), "the shard cuts a row of the table");
  run.ranges[0].globalBegin = 4;
  EXPECT_STREQ(run.refusal(), "the shard holds rows beyond the table");
}

} // namespace
} // namespace shardc::kernels::test
