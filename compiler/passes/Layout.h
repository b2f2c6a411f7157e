// Computes where the parameters of a unit lie in flat blocks: the arithmetic of shard-units.
#pragma once

#include <cstdint>
#include <vector>

namespace shardc::passes {

/// A parameter as the layout sees it.
struct LayoutParam {
  int index = 0; ///< in Plan::params
  int64_t numel = 0;
  int64_t row = 1; ///< elements that must not be cut; 1 for one-dimensional parameters
};

struct LayoutBlock {
  int64_t numel = 0; ///< shard * shards
  int64_t shard = 0;
  std::vector<int> params;      ///< Plan::params indices in order of offset
  std::vector<int64_t> offsets; ///< first element of each
};

/// Starts of parameters and shards are multiples of this many elements, so that 16-bit data are
/// aligned to 16 bytes.
inline constexpr int64_t kLayoutAlign = 8;

/// Lays out one unit's parameters over `shards` shards. No row crosses a shard boundary. If the
/// padding is small (the usual case), the result is one block whose shard is a multiple of every
/// row size. Otherwise it is one block for each row size: a block with rows of one size pads at
/// most one row per shard, whereas the least common multiple of different row sizes can double a
/// unit over many ranks (docs/adr/0004-block-layout.md).
std::vector<LayoutBlock> layOut(const std::vector<LayoutParam> &params, int64_t shards);

/// Lays out matrices over `shards` shards, none of which crosses a boundary of shards: each lies in
/// the shard that has the fewest elements so far, the largest ones first.
LayoutBlock layOutMatrices(std::vector<LayoutParam> params, int64_t shards);

/// Lays out one parameter by itself, as PyTorch's FSDP2 does: each shard has ceil(rows / shards) of
/// its rows, the last shards fewer or none. The block's padding is at its end only
/// (docs/adr/0011-parameters-by-themselves.md).
LayoutBlock layOutRows(const LayoutParam &param, int64_t shards);

} // namespace shardc::passes
