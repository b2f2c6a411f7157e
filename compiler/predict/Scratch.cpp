#include "compiler/predict/Scratch.h"

#include <algorithm>
#include <map>

#include "compiler/predict/Kernels.h"
#include "runtime/base/Float8.h"
#include "runtime/base/NewtonSchulz.h"

namespace shardc::predict {
namespace {

using plan::Op;
using plan::Segment;
using Key = plan::AttrKey;

/// Workspace of a cuBLASLt product.
constexpr int64_t kGemm = (int64_t{32} << 20) + 256;

/// Workspace of the fused head: logits of one chunk of rows and, if the weight gradient is summed
/// over chunks but narrower than fp32, the sum in fp32.
int64_t headScratch(const Segment &segment, const Op &op) {
  const plan::Type &x = segment.values[op.operands[0]].type;
  const plan::Type &w = segment.values[op.operands[1]].type;
  int64_t rows = x.numel() / std::max<int64_t>(x.shape[x.rank - 1], 1);
  int64_t chunk = std::min(std::max<int64_t>(op.getInt(Key::chunk_rows), 1), rows);
  bool isNarrow = x.dtype == w.dtype && dtypeBytes(x.dtype) == 2;
  int64_t bytes = chunk * w.shape[0] * (isNarrow ? 2 : 4) + kGemm;
  bool sums = op.results.size() > 2 && // the op computes the weight gradient
              segment.values[op.results[2]].type.dtype != DType::F32 && chunk < rows;
  return bytes + (sums ? w.numel() * 4 : 0);
}

/// Workspace for the sums of squares of a batch of matrices.
constexpr int64_t kSquareSums = kNsBatchMatrices * kNsSquareSums * 8;

/// Bytes of one batch of an operand's matrices, in the type of the Newton-Schulz products.
int64_t batchBytes(const Segment &segment, const Op &op, size_t operand) {
  int64_t elements = std::min(segment.values[op.operands[operand]].type.numel(), kNsBatchElements);
  bool isNarrow = static_cast<NsProducts>(op.getInt(Key::products)) == NsProducts::Medium;
  return std::max(op.getInt(Key::largest_matrix), elements) * (isNarrow ? 2 : 4);
}

/// Workspace of Muon: a batch of matrices twice, two squares of each, and sums of squares.
int64_t matricesScratch(const Segment &segment, const Op &op) {
  constexpr size_t kWhole = plan::operandIndex<plan::OpKind::Muon>("u");
  int64_t sums = kSquareSums + kGemm;
  return op.getBool(Key::divided) // only the final update is left to compute
             ? sums
             : 4 * batchBytes(segment, op, op.operands.size() > kWhole ? kWhole : 0) + sums;
}

/// Workspace of muon_step: the sums of a batch of matrices in the products' type, and the
/// polynomial of each. Workspace of muon_sums: sums of squares.
int64_t squaresScratch(const Segment &segment, const Op &op) {
  constexpr size_t kTaken = plan::operandIndex<plan::OpKind::MuonStep>("sums");
  return op.kind == plan::OpKind::MuonStep ? 2 * batchBytes(segment, op, kTaken) + kGemm
                                           : kSquareSums + kGemm;
}

int64_t roundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/// Workspace of cuDNN's backward attention: a sum for each query, the gradient of the queries in
/// fp32, and, if query heads share keys, the gradients of keys and values for every query head. In
/// a deterministic run, each tile of keys has its own gradient of the queries; tiles have 256 keys,
/// or 128 for small heads.
int64_t cudnnBackward(const AttentionKind &h, int64_t batch, int64_t queries, int64_t keys,
                      bool isDeterministic) {
  int64_t row = batch * h.heads * h.channels * 4, ofQueries = row * queries;
  if (isDeterministic) {
    int64_t tile = h.channels <= 64 ? 128 : 256;
    ofQueries = batch * h.heads * roundUp(queries, 64) * roundUp(h.channels, 64) * 4 *
                ((keys + tile - 1) / tile);
  }
  return batch * h.heads * queries * 4 + ofQueries + (h.groups == h.heads ? 0 : row * keys) + 320;
}

/// Workspace of attention. Kernels on CUDA cores read separate queries, keys and values, and write
/// separate gradients, so packed rows need copies.
int64_t attentionScratch(const Device &device, const Segment &segment, const Op &op,
                         bool isDeterministic) {
  const plan::Type &q = queriesOf(segment, op);
  AttentionKind kind = attentionKindOf(segment, op);
  bool isBackward = isAttentionBwd(op.kind);
  const KernelPath path = kernelPath(kind, traitsOf(device));
  if (path == KernelPath::AttentionCudnn)
    return isBackward ? cudnnBackward(kind, q.shape[0], q.shape[1], q.shape[1], isDeterministic)
                      : 0;
  int64_t parts = kind.packed && info(path).isOnCudaCores() ? q.bytes() : 0;
  return isBackward ? 2 * parts + q.shape[0] * kind.heads * q.shape[1] * 4 : parts;
}

/// Workspace of attention on a part of the keys: cuDNN's statistics of that part. If a rank's two
/// chunks of queries attend to different numbers of keys, they are computed one after the other,
/// and the gradients of the keys for the second chunk are stored as well.
int64_t partScratch(const Device &device, const Segment &segment, const Op &op,
                    bool isDeterministic) {
  const plan::Type &q = queriesOf(segment, op), &k = keysOf(segment, op);
  AttentionKind kind = attentionKindOf(segment, op);
  bool isBackward = isAttentionBwd(op.kind);
  int64_t statistics = q.shape[0] * kind.heads * q.shape[1] * 4;
  if (kernelPath(kind, traitsOf(device)) != KernelPath::AttentionCudnn)
    return isBackward ? statistics : 0;
  if (!isBackward)
    return statistics;
  bool hasChunks = op.getBool(Key::causal) && k.shape[1] > q.shape[1];
  int64_t queries = hasChunks ? q.shape[1] / 2 : q.shape[1];
  return statistics + cudnnBackward(kind, q.shape[0], queries, k.shape[1], isDeterministic) +
         (hasChunks ? 2 * k.bytes() : 0);
}

/// Workspace of delta rules and state scans: on tensor cores, what delta_rule_tiles.cu keeps of
/// chunks; on CUDA cores, states. Gradients also have those of queries and keys, by head or by
/// heads of a block.
int64_t deltaScratch(const Device &device, const Segment &segment, const Op &op) {
  constexpr int64_t kChunk = 64,
                    kEach = 64, // positions of a chunk, and between states on CUDA cores
      kScanHeads = 8;           // of a block
  const plan::Type &q = deltaQueriesOf(segment, op);
  const DeltaKind kind = deltaKindOf(segment, op);
  const bool isGradient = op.results.size() > 1;
  const bool isOnTiles = kernelPath(kind, traitsOf(device)) == KernelPath::DeltaMma;
  const int64_t heads = segment.values[op.operands[isGradient ? 3 : 2]].type.shape[2] * q.shape[0],
                state = kind.keys * kind.values, length = q.shape[1],
                groups = q.shape[2] * q.shape[0];
  const int64_t terms = isOnTiles && kind.isScan
                            ? groups * (roundUp(heads / groups, kScanHeads) / kScanHeads)
                            : heads;
  const int64_t units = isGradient ? 2 * terms * length * kind.keys * 4 : 0;
  if (!isOnTiles)
    return units + heads * state * 4 * (isGradient ? 2 + kEach + length / kEach : 1);
  // Numbers of 16 bits of a position. Those of a scan are seven of 32 bits.
  int64_t rows = kind.isScan ? 14 : 3 * kind.keys + kChunk + kind.values;
  if (isGradient)
    rows += 2 * state / kChunk + (kind.isScan ? 0 : kChunk + 2 * kind.values);
  return units + heads * roundUp(length, kChunk) * rows * 2;
}

/// Workspace in which a grouped product quantises its operands: 8-bit codes, scales in blocks along
/// the dimension that is summed, and the positions of rows.
int64_t factorsScratch(const Segment &segment, const Op &op) {
  constexpr int64_t kBlock = 128;
  const plan::Type &a = segment.values[op.operands[0]].type;
  const plan::Type &b = segment.values[op.operands[1]].type;
  const plan::Type &c = segment.values[op.results[0]].type;
  bool isGradient = c.rank == 3;
  int64_t runs = isGradient ? c.shape[0] : b.shape[0];
  int64_t depth = roundUp(isGradient ? a.shape[0] : a.shape[1], kBlock);
  if (isGradient)
    depth += runs * kBlock; // each group of rows begins a new block
  int64_t rowsOfA = isGradient ? c.shape[1] : c.shape[0];
  int64_t rowsOfB = isGradient ? c.shape[2] : runs * c.shape[1];
  int64_t numbersOfScale = 0;
  switch (static_cast<Fp8Factors>(op.getInt(Key::fp8_recipe))) {
  case Fp8Factors::None:
  case Fp8Factors::Tensorwise:
  case Fp8Factors::Delayed:
    break;
  case Fp8Factors::Blockwise:
    numbersOfScale = kBlock / 4; // scales of 4 bytes
    break;
  case Fp8Factors::Mxfp8:
    numbersOfScale = 32;
    break;
  }
  bool hasSquares = numbersOfScale == kBlock / 4 && !isGradient;
  int64_t codes = (rowsOfA + rowsOfB) * depth;
  int64_t scaled = hasSquares ? rowsOfA * depth : codes;
  return codes + (numbersOfScale == 0 ? 0 : scaled / numbersOfScale) +
         (isGradient ? depth : rowsOfA) * 4;
}

} // namespace

int64_t scratchOf(const Device &device, const Segment &segment, const Op &op,
                  bool isDeterministic) {
  if (isDelta(op))
    return deltaScratch(device, segment, op);
  if (op.getInt(Key::fp8_recipe) != 0)
    return factorsScratch(segment, op);
  switch (plan::opInfo(op).workspace) {
  case plan::Workspace::None:
    return 0;
  case plan::Workspace::Product:
    return kGemm;
  case plan::Workspace::Attention:
    return plan::opInfo(op).hasSlices ? partScratch(device, segment, op, isDeterministic)
                                      : attentionScratch(device, segment, op, isDeterministic);
  case plan::Workspace::Delta: // above
    return 0;
  case plan::Workspace::Head:
    return headScratch(segment, op);
  case plan::Workspace::Matrices:
    return matricesScratch(segment, op);
  case plan::Workspace::Squares:
    return squaresScratch(segment, op);
  }
  return 0;
}

int64_t workspacesOf(const Device &device, const plan::Role &role, bool isDeterministic) {
  std::map<plan::StreamId, int64_t> most;
  for (const Segment &segment : role.segments)
    for (const Op &op : segment.ops) {
      int64_t &bytes = most[op.stream];
      bytes = std::max(bytes, scratchOf(device, segment, op, isDeterministic));
    }
  int64_t sum = 0;
  for (auto [stream, bytes] : most)
    sum += bytes;
  return sum;
}

} // namespace shardc::predict
