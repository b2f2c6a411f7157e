// Makes the calls of ops whose operands the op table does not describe: loads, shards, lists and
// optimizers. RowCases.cpp makes the others.
#include "test/kernels/bench/CaseBuilder.h"
#include "test/kernels/bench/OptimizerCases.h"
#include "test/kernels/bench/RowCases.h"

namespace shardc::kernels::bench {
namespace {

void makeBatchLoad(Builder &b) {
  const Model &m = b.model;
  b.attrs().slots = 3;
  b.ids({3, 6 * m.rows() + 2 * m.batch}, m.vocabulary);
  for (DType dtype : {DType::I32, DType::I32, DType::F32, DType::I32, DType::I32})
    b.to(dtype, {m.batch, m.positions});
  b.to(DType::I64, {m.batch}).to(DType::I32, {m.batch, m.positions});
}

/// Adds the second half of a table as the shard's range. Returns the shard's size in elements,
/// which includes a row of padding.
int64_t addHalfTable(Builder &b) {
  const Model &m = b.model;
  int64_t first = m.vocabulary / 2, rows = m.vocabulary - first;
  b.addRange(rows * m.hidden(), first * m.hidden());
  return (rows + 1) * m.hidden();
}

void makeEmbeddingShard(Builder &b) {
  const Model &m = b.model;
  b.attrs().table_rows = m.vocabulary;
  b.ids({m.batch, m.positions}, m.vocabulary).data({addHalfTable(b)});
  b.toData({m.batch, m.positions, m.hidden()});
}

void makeEmbeddingShardBwd(Builder &b) {
  const Model &m = b.model;
  b.attrs().scale = 0.25;
  b.data({m.batch, m.positions, m.hidden()}).ids({m.batch, m.positions}, m.vocabulary);
  b.toFloats({addHalfTable(b)});
}

void makeJoin(Builder &b) {
  const Model &m = b.model;
  b.listed({m.rows(), m.hidden()}).listed({m.rows() / 2, m.hidden()});
  b.toData({m.rows() + m.rows() / 2, m.hidden()});
}

void makeSumSquares(Builder &b) {
  b.listed({2 * b.model.ffn * b.model.hidden()}).listed({b.model.hidden()});
  b.to(DType::F64, {1});
}

struct Maker {
  std::string_view op;
  void (*make)(Builder &);
};

constexpr Maker kMakers[] = {
    {"batch.load", makeBatchLoad},
    {"join", makeJoin},
    {"embedding_shard", makeEmbeddingShard},
    {"embedding_shard_bwd", makeEmbeddingShardBwd},
    {"sum_squares", makeSumSquares},
    {"adamw", makeAdamW},
    {"adamw, halves", makeAdamWOfHalves},
    {"sgd", makeSgd},
    {"sgd_momentum", makeSgdMomentum},
    {"lion", makeLion},
    {"muon", makeMuon},
    {"muon, halves", makeMuonOfHalves},
    {"muon, layer", makeMuonOfLayer},
    {"muon, parts", makeMuonOfParts},
    {"muon, divided", makeMuonDivided},
    {"muon_update", makeMuonUpdate},
    {"muon_sums", makeMuonSums},
    {"muon_step", makeMuonStep},
    {"init_block", makeInitBlock},
    {"init_block, halves", makeInitBlockOfHalves},
};

} // namespace

std::unique_ptr<Case> makeCase(std::string_view op, DType data, const Model &model) {
  auto result = std::make_unique<Case>();
  result->rangesOf = {0};
  Builder builder(*result, data, model);
  if (const Maker *maker = std::ranges::find(kMakers, op, &Maker::op); maker != std::end(kMakers))
    maker->make(builder);
  else if (!makeRowCase(builder, op))
    return nullptr;
  Call &call = result->call;
  call.list = result->list.empty() ? nullptr : result->list.data();
  call.listCount = static_cast<int64_t>(result->list.size());
  call.ranges = result->ranges.empty() ? nullptr : result->ranges.data();
  call.rangesCount = static_cast<int64_t>(result->ranges.size());
  call.rangesOf = result->rangesOf.size() > 1 ? result->rangesOf.data() : nullptr;
  return result;
}

} // namespace shardc::kernels::bench
