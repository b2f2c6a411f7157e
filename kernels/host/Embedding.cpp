// embedding: x[t,:] = table[ids[t],:]. An id outside the table gives NaN, so that bad data stop
// training. embedding_bwd: dtable[v,:] = sum of dx[t,:] over rows t with ids[t] = v, in row order
// and fp64; may accumulate; ids outside the table contribute nothing. Table and rows are f32, bf16
// or f16 each; ids are i32. Limited by memory bandwidth. In a group, the operand is one of several
// equal vocabulary shards of the table, and rows of other shards become -0. Adding -0 leaves any
// number bitwise unchanged, so the sum over all shards is the row. embedding_shard and
// embedding_shard_bwd do the same for a flat shard of the table. Their gradient is the sum times
// `scale`; shard elements outside the table's rows get 0.
#include "kernels/host/Check.h"
#include "kernels/host/ColumnSums.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Ranges.h"
#include "kernels/host/Rows.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace shardc::kernels::host {
namespace {

/// The rows of a table that one tensor has, from element `offset` on.
struct TableRows {
  int64_t first = 0, count = 0, offset = 0;

  bool has(int64_t id) const { return id >= first && id - first < count; }
};

/// This member's rows of the table; all rows if it has no group.
TableRows rowsOfMember(const Call &call, const Tensor &table) {
  return {call.index * table.shape[0], table.shape[0], 0};
}

/// The rows of the table in a shard. A shard holds one range of them, or only padding.
TableRows rowsOfShard(const Call &call, int64_t cols) {
  for (const ParamRange &range : rangesOfShard(call, 0))
    return {range.globalBegin / cols, (range.end - range.begin) / cols, range.begin};
  return {};
}

const char *checkShard(const Call &call, const Tensor &shard, const Tensor &x) {
  SHARDC_REQUIRE(shard.rank == 1, "the shard is not flat");
  SHARDC_REQUIRE_OK(checkRanges(call, 0, shard));
  SHARDC_REQUIRE(rangesOfShard(call, 0).size() <= 1, "the shard holds more than a table");
  for (const ParamRange &range : rangesOfShard(call, 0))
    SHARDC_REQUIRE(range.columns == 0 && range.begin % x.cols() == 0 && range.end % x.cols() == 0 &&
                       range.globalBegin % x.cols() == 0,
                   "the shard cuts a row of the table");
  return nullptr;
}

const char *acceptsEmbeddingShard(const Call &call) {
  SHARDC_REQUIRE_OK(checkShard(call, call.in[1], call.out[0]));
  TableRows rows = rowsOfShard(call, call.out[0].cols());
  SHARDC_REQUIRE(call.attrs.table_rows > 0 && call.attrs.table_rows <= INT32_MAX &&
                     rows.first + rows.count <= call.attrs.table_rows,
                 "the shard holds rows beyond the table");
  return nullptr;
}

/// Looks up rows in `table`, the local part of a table with `tableRows` rows. Ids in other parts
/// give -0, ids outside the table give NaN.
void lookUp(const Call &call, const TableRows &table, int64_t tableRows) {
  const int32_t *ids = static_cast<const int32_t *>(call.in[0].data);
  const Tensor &from = call.in[1], &x = call.out[0];
  float buffer[kBlock], nan[kBlock], nothing[kBlock];
  std::fill_n(nan, kBlock, std::numeric_limits<float>::quiet_NaN());
  std::fill_n(nothing, kBlock, -0.0f);
  for (int64_t row = 0, rows = x.rows(), cols = x.cols(); row < rows; ++row)
    for (int64_t begin = 0; begin < cols; begin += kBlock) {
      int64_t n = std::min(kBlock, cols - begin);
      const float *values = ids[row] >= 0 && ids[row] < tableRows ? nothing : nan;
      if (table.has(ids[row]))
        values = readF32(from, table.offset + (ids[row] - table.first) * cols + begin, n, buffer);
      writeF32(x, row * cols + begin, n, values);
    }
}

void runEmbedding(const Call &call) {
  const Tensor &table = call.in[1];
  lookUp(call, rowsOfMember(call, table), table.shape[0] * call.groupSize);
}

void runEmbeddingShard(const Call &call) {
  lookUp(call, rowsOfShard(call, call.out[0].cols()), call.attrs.table_rows);
}

struct Buffers {
  int64_t *begins; ///< index in `order` at which the rows of each id begin
  int32_t *order;  ///< rows sorted by id, and in row order for each id
  float *dx, *values;
  double *sums;

  Buffers(const Call &call, Scratch &scratch) {
    int64_t cols = call.in[0].cols();
    begins = scratch.take<int64_t>(call.out[0].numel() / cols + 1); // upper bound for shards
    order = scratch.take<int32_t>(call.in[1].numel());
    dx = scratch.take<float>(cols);
    values = scratch.take<float>(cols);
    sums = scratch.take<double>(cols);
  }
};

const char *acceptsEmbeddingBwd(const Call &call) {
  SHARDC_REQUIRE(call.in[1].numel() < (int64_t{1} << 31), "there are 2^31 ids or more");
  return nullptr;
}

const char *acceptsEmbeddingShardBwd(const Call &call) {
  SHARDC_REQUIRE_OK(acceptsEmbeddingBwd(call));
  return checkShard(call, call.out[0], call.in[0]);
}

/// Counting sort of the rows by id. Ids outside the table are skipped.
void sortRows(const int32_t *ids, int64_t rows, const TableRows &table, const Buffers &buffers) {
  std::fill_n(buffers.begins, table.count + 1, int64_t{0});
  for (int64_t row = 0; row < rows; ++row)
    if (table.has(ids[row]))
      ++buffers.begins[ids[row] - table.first + 1];
  for (int64_t v = 0; v < table.count; ++v)
    buffers.begins[v + 1] += buffers.begins[v];
  // Filling moves each begin to its end, which is the begin of the next id.
  for (int64_t row = 0; row < rows; ++row)
    if (table.has(ids[row]))
      buffers.order[buffers.begins[ids[row] - table.first]++] = static_cast<int32_t>(row);
}

/// Adds the rows of dx, times `scale`, to the table rows in `to`.
void addRows(const Call &call, const TableRows &table, double scale, const Buffers &buffers) {
  const Tensor &dx = call.in[0], &to = call.out[0];
  int64_t n = dx.cols();
  sortRows(static_cast<const int32_t *>(call.in[1].data), dx.rows(), table, buffers);
  for (int64_t v = 0, begin = 0; v < table.count; begin = buffers.begins[v++]) {
    int64_t end = buffers.begins[v];
    if (begin == end && to.accumulate)
      continue;
    std::fill_n(buffers.sums, n, 0.0);
    for (int64_t i = begin; i < end; ++i)
      addTerms(readF32(dx, buffers.order[i] * n, n, buffers.dx), n, buffers.sums);
    for (int64_t i = 0; i < n && scale != 1.0; ++i)
      buffers.sums[i] *= scale;
    writeSums(to, table.offset + v * n, n, buffers.sums, buffers.values);
  }
}

void runEmbeddingBwd(const Call &call, const Buffers &buffers) {
  addRows(call, rowsOfMember(call, call.out[0]), 1.0, buffers);
}

/// The shard may have other parameters before and after the rows of the table. Their gradients
/// become 0, unless the result is accumulated.
void runEmbeddingShardBwd(const Call &call, const Buffers &buffers) {
  const Tensor &shard = call.out[0];
  TableRows table = rowsOfShard(call, call.in[0].cols());
  int64_t end = table.offset + table.count * call.in[0].cols();
  auto clear = [&](int64_t begin, int64_t count) {
    std::memset(static_cast<std::byte *>(shard.data) + begin * dtypeBytes(shard.dtype), 0,
                static_cast<size_t>(count * dtypeBytes(shard.dtype)));
  };
  if (!shard.accumulate) {
    clear(0, table.offset);
    clear(end, shard.numel() - end);
  }
  addRows(call, table, call.attrs.scale, buffers);
}

} // namespace

SHARDC_HOST_KERNEL(Embedding, runEmbedding);
SHARDC_HOST_KERNEL(EmbeddingBwd, withBuffers<runEmbeddingBwd>, acceptsEmbeddingBwd, 1);
SHARDC_HOST_KERNEL(EmbeddingShard, runEmbeddingShard, acceptsEmbeddingShard);
SHARDC_HOST_KERNEL(EmbeddingShardBwd, withBuffers<runEmbeddingShardBwd>, acceptsEmbeddingShardBwd,
                   1);

} // namespace shardc::kernels::host
