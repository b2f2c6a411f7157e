// Layout of a unit's parameters in flat, sharded blocks: the arithmetic of pass ShardUnits.
#pragma once

#include <cstdint>
#include <vector>

namespace shardc::passes {

/// Input of the layout: one parameter.
struct LayoutParam {
  int index = 0; ///< in Plan::params
  int64_t numel = 0;
  int64_t row = 1; ///< elements per row, which is never split; 1 for vectors
};

/// One block of the result. Parameters do not overlap; elements of no parameter are padding.
struct LayoutBlock {
  int64_t numel = 0; ///< shard · shards
  int64_t shard = 0;
  std::vector<int> params;      ///< indices in Plan::params, in order of offset
  std::vector<int64_t> offsets; ///< first element of each parameter
};

/// Alignment of parameters and shards in elements, so that 16-bit data are aligned to 16 bytes.
inline constexpr int64_t kLayoutAlign = 8;

/// Lays out one unit's parameters over `shards` shards so that no row crosses a shard boundary.
/// Usually the padding is small, and the result is one block whose shard is a multiple of every row
/// size. Otherwise the result is one block per row size: such a block pads at most one row per
/// shard, whereas the least common multiple of different row sizes could double a unit over many
/// ranks (docs/adr/0004-block-layout.md).
std::vector<LayoutBlock> layOut(const std::vector<LayoutParam> &params, int64_t shards);

/// Lays out whole matrices over `shards` shards. The largest matrix comes first; each goes to the
/// shard with the fewest elements so far.
LayoutBlock layOutMatrices(std::vector<LayoutParam> params, int64_t shards);

/// Lays out one parameter by itself, like PyTorch's FSDP2: each shard has ceil(rows / shards) rows,
/// the last shards fewer or none. Padding is only at the end of the block
/// (docs/adr/0011-parameters-by-themselves.md).
LayoutBlock layOutRows(const LayoutParam &param, int64_t shards);

} // namespace shardc::passes
