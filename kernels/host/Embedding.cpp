// embedding: x[t,:] = table[ids[t],:]; a row whose id is not in the table becomes NaN, so that bad
// data stop the run. embedding_bwd: dtable[v,:] = sum of dx[t,:] over the rows t with ids[t] = v,
// in row order and fp64; may accumulate; rows with ids outside of the table add nothing. Tables and
// rows are f32 or bf16 each, ids i32. Limited by memory.
#include "kernels/host/Check.h"
#include "kernels/host/ColumnSums.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Rows.h"
#include "kernels/host/Scratch.h"

#include <algorithm>
#include <limits>

namespace shardc::kernels::host {
namespace {

const char *checkLookup(const Tensor &ids, const Tensor &table, const Tensor &x) {
  SHARDC_REQUIRE(ids.dtype == DType::I32, "ids are not i32");
  SHARDC_REQUIRE(isData(table) && isData(x), "an embedding's data are not f32 or bf16");
  SHARDC_REQUIRE(table.rank == 2, "the table is not [V, H]");
  SHARDC_REQUIRE(x.cols() == table.cols(), "a row of x is not as long as one of the table");
  SHARDC_REQUIRE(x.rows() == ids.numel(), "x does not have one row for each id");
  return nullptr;
}

const char *acceptsEmbedding(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {2, 2, 1, 1}));
  return checkLookup(call.in[0], call.in[1], call.out[0]);
}

void runEmbedding(const Call &call) {
  const int32_t *ids = static_cast<const int32_t *>(call.in[0].data);
  const Tensor &table = call.in[1], &x = call.out[0];
  float buffer[kBlock], nan[kBlock];
  std::fill_n(nan, kBlock, std::numeric_limits<float>::quiet_NaN());
  for (int64_t row = 0, rows = x.rows(), cols = x.cols(); row < rows; ++row)
    for (int64_t begin = 0; begin < cols; begin += kBlock) {
      int64_t n = std::min(kBlock, cols - begin);
      bool inside = ids[row] >= 0 && ids[row] < table.shape[0];
      writeF32(x, row * cols + begin, n,
               inside ? readF32(table, ids[row] * cols + begin, n, buffer) : nan);
    }
}

struct Buffers {
  int64_t *begins; ///< where in `order` the rows of each id begin
  int32_t *order;  ///< rows sorted by id, in row order within one
  float *dx, *values;
  double *sums;

  Buffers(const Call &call, Scratch &scratch) {
    const Tensor &dtable = call.out[0];
    begins = scratch.take<int64_t>(dtable.shape[0] + 1);
    order = scratch.take<int32_t>(call.in[1].numel());
    dx = scratch.take<float>(dtable.cols());
    values = scratch.take<float>(dtable.cols());
    sums = scratch.take<double>(dtable.cols());
  }
};

const char *acceptsEmbeddingBwd(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {2, 2, 1, 1, 1}));
  SHARDC_REQUIRE(call.in[1].numel() < (int64_t{1} << 31), "there are 2^31 ids or more");
  return checkLookup(call.in[1], call.out[0], call.in[0]);
}

/// Counting sort of the rows by id; ids outside of the table are left out.
void sortRows(const int32_t *ids, int64_t rows, int64_t vocabulary, const Buffers &buffers) {
  auto inside = [&](int64_t row) { return ids[row] >= 0 && ids[row] < vocabulary; };
  std::fill_n(buffers.begins, vocabulary + 1, int64_t{0});
  for (int64_t row = 0; row < rows; ++row)
    if (inside(row))
      ++buffers.begins[ids[row] + 1];
  for (int64_t v = 0; v < vocabulary; ++v)
    buffers.begins[v + 1] += buffers.begins[v];
  // Filling moves each begin to its end, which is the next id's begin.
  for (int64_t row = 0; row < rows; ++row)
    if (inside(row))
      buffers.order[buffers.begins[ids[row]]++] = static_cast<int32_t>(row);
}

void runEmbeddingBwd(const Call &call) {
  Scratch scratch(call);
  Buffers buffers(call, scratch);
  const Tensor &dx = call.in[0], &dtable = call.out[0];
  int64_t vocabulary = dtable.shape[0], n = dtable.cols();
  sortRows(static_cast<const int32_t *>(call.in[1].data), dx.rows(), vocabulary, buffers);
  for (int64_t v = 0, begin = 0; v < vocabulary; begin = buffers.begins[v++]) {
    int64_t end = buffers.begins[v];
    if (begin == end && dtable.accumulate)
      continue;
    std::fill_n(buffers.sums, n, 0.0);
    for (int64_t i = begin; i < end; ++i)
      addTerms(readF32(dx, buffers.order[i] * n, n, buffers.dx), n, buffers.sums);
    writeSums(dtable, v * n, n, buffers.sums, buffers.values);
  }
}

} // namespace

const Kernel kEmbedding = {"embedding_host", runEmbedding, acceptsEmbedding};
const Kernel kEmbeddingBwd = {"embedding_bwd_host", runEmbeddingBwd, acceptsEmbeddingBwd,
                              workspaceOf<Buffers>};

} // namespace shardc::kernels::host
