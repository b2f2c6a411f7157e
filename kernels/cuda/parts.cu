// expand_parts: w[o, p·R + j] = b[o,j] for the part p of row o, and 0 elsewhere; b[O,R],
// w[O,parts·R]. contract_parts: db[o,j] = dw[o, p·R + j], and 0 if the row's part has no columns;
// it may accumulate. Data are f32, bf16 or f16 each. Mapping: a thread processes a chunk of 8
// elements of one part of a row. Limited by memory; the matrices are small compared with the
// products that use them.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/parts.cuh"

namespace shardc::kernels::cuda {
namespace {

struct ExpandPartsOp {
  Data b, w;
  PartsOfRows of;
  int64_t parts, cols;
  /// Processes the columns of one part of a row of w.
  template <Mode M> __device__ void run(int64_t at, int64_t c, int n) const {
    int64_t row = at / parts;
    float v[kChunk] = {};
    if (of.placeOf(row) == at % parts)
      load8<M>(b, row * cols + c, n, v);
    store8<M>(w, at * cols + c, n, v);
  }
};

/// Takes the columns of each row's own part; rows without a part become 0.
struct ContractPartsOp {
  Data dw, db;
  PartsOfRows of;
  int64_t parts, cols;
  template <Mode M> __device__ void run(int64_t row, int64_t c, int n) const {
    int64_t part = of.placeOf(row);
    float v[kChunk] = {};
    if (part >= 0)
      load8<M>(dw, (row * parts + part) * cols + c, n, v);
    store8<M>(db, row * cols + c, n, v);
  }
};

void runExpand(const Call &call) {
  const Tensor &b = call.in[0], &w = call.out[0];
  int64_t rows = b.shape[0], cols = b.shape[1], parts = w.shape[1] / cols;
  ExpandPartsOp op = {dataOf(b), dataOf(w), partsOf(call.attrs, rows), parts, cols};
  launchRows(call, modeOf({&b, &w}, cols), op, rows * parts, cols);
}

void runContract(const Call &call) {
  const Tensor &dw = call.in[0], &db = call.out[0];
  int64_t rows = db.shape[0], cols = db.shape[1], parts = dw.shape[1] / cols;
  ContractPartsOp op = {dataOf(dw), dataOf(db), partsOf(call.attrs, rows), parts, cols};
  launchRows(call, modeOf({&dw, &db}, cols), op, rows, cols);
}

} // namespace

SHARDC_KERNEL(ExpandParts, acceptsAs, runExpand);
SHARDC_KERNEL(ContractParts, acceptsAs, runContract);

} // namespace shardc::kernels::cuda
