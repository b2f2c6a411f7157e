// expand_parts: w[o, p·R + j] = b[o,j] for the part p of row o, and 0 elsewhere, b[O,R],
// w[O,parts·R]. contract_parts: db[o,j] = dw[o, p·R + j], 0 for rows of a part that has no columns.
// Rows are num_groups groups of `units` equal units. The first `first_units` of a group are of the
// first part, each other one is a part; `kept` has bits of those that have columns. Data are f32,
// bf16 or f16 each. Limited by memory.
#include "kernels/host/Parts.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Rows.h"

#include <algorithm>
#include <bit>

namespace shardc::kernels::host {

const char *checkParts(const Attrs &attrs, int64_t rows) {
  SHARDC_REQUIRE(attrs.first_units >= 1 && attrs.first_units <= attrs.units &&
                     attrs.units - attrs.first_units < 31,
                 "there are not as many units as parts");
  SHARDC_REQUIRE(attrs.kept > 0 && attrs.kept < int64_t{2} << (attrs.units - attrs.first_units),
                 "kept has bits of other parts");
  SHARDC_REQUIRE(attrs.num_groups >= 1 && attrs.num_groups <= rows &&
                     attrs.units <= rows / attrs.num_groups &&
                     rows % (attrs.num_groups * attrs.units) == 0,
                 "groups of units do not divide the rows");
  return nullptr;
}

int64_t placeOfPart(const Attrs &attrs, int64_t row, int64_t rows) {
  int64_t unitRows = rows / (attrs.num_groups * attrs.units);
  int64_t part = std::max<int64_t>(row / unitRows % attrs.units - attrs.first_units + 1, 0);
  auto kept = static_cast<uint64_t>(attrs.kept), bit = uint64_t{1} << part;
  return (kept & bit) != 0 ? std::popcount(kept & (bit - 1)) : -1;
}

namespace {

template <bool kContracts> const char *accepts(const Call &call) {
  const Tensor &rows = kContracts ? call.out[0] : call.in[0];
  SHARDC_REQUIRE_OK(checkParts(call.attrs, rows.shape[0]));
  SHARDC_REQUIRE(std::popcount(static_cast<uint64_t>(call.attrs.kept)) == call.attrs.parts,
                 "kept has not as many bits as parts");
  return nullptr;
}

/// Writes each row of b to one of its `parts` places in w, and zeros to the others.
void runExpand(const Call &call) {
  float buffer[kBlock];
  const float zeros[kBlock] = {};
  const Tensor &b = call.in[0], &w = call.out[0];
  int64_t rows = b.shape[0], cols = b.shape[1], parts = w.shape[1] / cols;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t own = placeOfPart(call.attrs, row, rows);
    for (int64_t part = 0; part < parts; ++part)
      for (int64_t begin = 0; begin < cols; begin += kBlock) {
        int64_t n = std::min(kBlock, cols - begin);
        const float *from = part == own ? readF32(b, row * cols + begin, n, buffer) : zeros;
        writeF32(w, (row * parts + part) * cols + begin, n, from);
      }
  }
}

/// The gradient of runExpand(): reads each row from its place.
void runContract(const Call &call) {
  float buffer[kBlock];
  const float zeros[kBlock] = {};
  const Tensor &dw = call.in[0], &db = call.out[0];
  int64_t rows = db.shape[0], cols = db.shape[1], parts = dw.shape[1] / cols;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t own = placeOfPart(call.attrs, row, rows);
    for (int64_t begin = 0; begin < cols; begin += kBlock) {
      int64_t n = std::min(kBlock, cols - begin);
      const float *from =
          own < 0 ? zeros : readF32(dw, (row * parts + own) * cols + begin, n, buffer);
      writeF32(db, row * cols + begin, n, from);
    }
  }
}

} // namespace

SHARDC_HOST_KERNEL(ExpandParts, runExpand, accepts<false>);
SHARDC_HOST_KERNEL(ContractParts, runContract, accepts<true>, 1);

} // namespace shardc::kernels::host
