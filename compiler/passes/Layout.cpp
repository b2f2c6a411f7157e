// Orders parameters in blocks so that no shard boundary splits a row, with as little padding as
// possible.
#include "compiler/passes/Layout.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace shardc::passes {
namespace {

/// Larger least common multiples are not tried, because the padding would exceed the size of any
/// unit.
constexpr int64_t kGranuleMax = int64_t{1} << 40;

/// A unit is laid out in several blocks if a single block would need more additional padding than
/// 1/64 of the unit.
constexpr int64_t kPaddingShare = 64;

int64_t roundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

/// Least common multiple, at most kGranuleMax.
int64_t boundedLcm(int64_t a, int64_t b) {
  int64_t step = a / std::gcd(a, b);
  return step > kGranuleMax / b ? kGranuleMax : std::min(step * b, kGranuleMax);
}

/// Places the parameters one after the other. Shards have `shard` elements, a multiple of all row
/// sizes. A parameter that a shard boundary splits starts at a multiple of its row size, so
/// boundaries fall between rows.
int64_t place(const std::vector<LayoutParam> &params, int64_t shard, LayoutBlock *block) {
  int64_t at = 0;
  for (const LayoutParam &param : params) {
    at = roundUp(at, kLayoutAlign);
    bool cut = at / shard != (at + param.numel - 1) / shard;
    if (cut && param.row > 1)
      at = roundUp(at, boundedLcm(param.row, kLayoutAlign));
    if (block != nullptr) {
      block->params.push_back(param.index);
      block->offsets.push_back(at);
    }
    at += param.numel;
  }
  return at;
}

/// Finds the smallest shard that holds all parameters: starts with the sum of their sizes divided
/// by the number of shards, and grows while the gaps between parameters make them too long.
LayoutBlock makeBlock(const std::vector<LayoutParam> &params, int64_t shards) {
  int64_t granule = kLayoutAlign, total = 0;
  for (const LayoutParam &param : params) {
    total += param.numel;
    if (shards > 1)
      granule = boundedLcm(granule, param.row);
  }
  int64_t shard = roundUp(std::max<int64_t>((total + shards - 1) / shards, 1), granule);
  while (place(params, shard, nullptr) > shard * shards)
    shard += granule;
  LayoutBlock block;
  place(params, shard, &block);
  block.shard = shard;
  block.numel = shard * shards;
  return block;
}

} // namespace

std::vector<LayoutBlock> layOut(const std::vector<LayoutParam> &params, int64_t shards) {
  LayoutBlock whole = makeBlock(params, shards);
  std::vector<int64_t> rows;
  for (const LayoutParam &param : params)
    if (param.row > 1 && std::find(rows.begin(), rows.end(), param.row) == rows.end())
      rows.push_back(param.row);
  if (shards == 1 || rows.size() <= 1)
    return {std::move(whole)};

  // One-dimensional parameters may be split anywhere, so they fill the first block.
  std::vector<LayoutBlock> split;
  int64_t splitNumel = 0;
  for (int64_t row : rows) {
    std::vector<LayoutParam> members;
    for (const LayoutParam &param : params)
      if (param.row == row || (param.row == 1 && row == rows.front()))
        members.push_back(param);
    split.push_back(makeBlock(members, shards));
    splitNumel += split.back().numel;
  }
  if (whole.numel <= splitNumel + splitNumel / kPaddingShare)
    return {std::move(whole)};
  return split;
}

LayoutBlock layOutMatrices(std::vector<LayoutParam> params, int64_t shards) {
  std::ranges::stable_sort(params, std::greater(), &LayoutParam::numel);
  std::vector<std::vector<LayoutParam>> members(static_cast<size_t>(shards));
  using Filled = std::pair<int64_t, size_t>; // elements of a shard, and its number
  std::vector<Filled> least;                 // a heap
  for (size_t s = 0; s < members.size(); ++s)
    least.emplace_back(0, s);
  LayoutBlock block;
  block.shard = kLayoutAlign;
  for (const LayoutParam &param : params) {
    std::ranges::pop_heap(least, std::greater());
    auto &[filled, shard] = least.back();
    members[shard].push_back(param);
    filled += roundUp(param.numel, kLayoutAlign);
    block.shard = std::max(block.shard, filled);
    std::ranges::push_heap(least, std::greater());
  }
  block.numel = block.shard * shards;
  for (size_t s = 0; s < members.size(); ++s) {
    int64_t at = static_cast<int64_t>(s) * block.shard;
    for (const LayoutParam &param : members[s]) {
      block.params.push_back(param.index);
      block.offsets.push_back(at);
      at += roundUp(param.numel, kLayoutAlign);
    }
  }
  return block;
}

LayoutBlock layOutRows(const LayoutParam &param, int64_t shards) {
  int64_t rows = param.numel / param.row;
  LayoutBlock block;
  block.shard = (rows + shards - 1) / shards * param.row;
  block.numel = block.shard * shards;
  block.params = {param.index};
  block.offsets = {0};
  return block;
}

} // namespace shardc::passes
