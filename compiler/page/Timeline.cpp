#include "compiler/page/Timeline.h"

#include <algorithm>
#include <set>
#include <tuple>

#include <fmt/format.h>

namespace shardc::page {
namespace {

double endOf(const Work &work) {
  double end = 0;
  for (const Piece &piece : work.pieces)
    end = std::max(end, piece.end);
  return end;
}

/// Adjacent pieces with equal keys become one block.
using Key = std::tuple<uint32_t, int64_t, uint32_t, uint32_t, Class>;

class Aggregator {
public:
  Aggregator(const Work &work, Grain grain, size_t blocksMax) : work_(work), grain_(grain) {
    size_t cells = std::max<size_t>(blocksMax / std::max<size_t>(work.lanes.size(), 1), 1);
    cell_ = std::max(endOf(work) / static_cast<double>(cells), 1e-12);
    cellMax_ = static_cast<int64_t>(cells) - 1;
  }

  Key keyOf(const Piece &piece) const {
    switch (grain_) {
    case Grain::Op:
      break;
    case Grain::Unit:
      return {piece.lane, piece.microbatch, piece.segment, piece.unit, piece.of};
    case Grain::Pass:
      return {piece.lane, piece.microbatch, piece.segment, 0, piece.of};
    case Grain::Segment:
      return {piece.lane, piece.microbatch, piece.segment, 0, Class::Other};
    case Grain::Time:
      return {piece.lane, std::min(static_cast<int64_t>(piece.begin / cell_), cellMax_), 0, 0,
              Class::Other};
    }
    return {};
  }

  /// Whether piece `i` starts a new block.
  bool begins(size_t i) const {
    return i == 0 || grain_ == Grain::Op || keyOf(work_.pieces[i]) != keyOf(work_.pieces[i - 1]);
  }

  size_t count() const {
    size_t count = 0;
    for (size_t i = 0; i < work_.pieces.size(); ++i)
      count += begins(i);
    return count;
  }

  std::vector<Block> blocks() const {
    std::vector<Block> list;
    for (size_t i = 0; i < work_.pieces.size(); ++i) {
      if (begins(i))
        list.push_back(blockOf(work_.pieces[i]));
      add(work_.pieces[i], list.back());
    }
    return list;
  }

private:
  /// A block at the piece's position that contains no piece yet.
  Block blockOf(const Piece &piece) const {
    Block block;
    block.lane = piece.lane;
    block.begin = piece.begin;
    block.of = piece.of;
    block.name = nameOf(piece);
    block.microbatch = piece.microbatch;
    return block;
  }

  void add(const Piece &piece, Block &block) const {
    block.end = std::max(block.end, piece.end);
    ++block.count;
    if (grain_ == Grain::Time && nameOf(piece) != block.name)
      block.name = "several segments";
    if (block.microbatch != piece.microbatch)
      block.microbatch = -1;
    block.isMixed = block.isMixed || piece.of != block.of;
    block.busy[static_cast<size_t>(piece.of)] += piece.seconds();
    auto most = std::max_element(block.busy.begin(), block.busy.end());
    block.of = static_cast<Class>(most - block.busy.begin());
  }

  std::string nameOf(const Piece &piece) const {
    const std::vector<std::string> &names = work_.names.list();
    if (grain_ == Grain::Op)
      return names[piece.label];
    std::string name = names[piece.segment].empty() ? "work without an op" : names[piece.segment];
    if (grain_ == Grain::Unit && !names[piece.unit].empty())
      name += ": " + names[piece.unit];
    return name;
  }

  const Work &work_;
  Grain grain_;
  double cell_ = 0;
  int64_t cellMax_ = 0;
};

} // namespace

const char *toString(Grain grain) {
  static constexpr const char *kTexts[] = {"an op", "the ops of a unit", "a pass of a microbatch",
                                           "a segment", "a stretch of time"};
  return kTexts[static_cast<size_t>(grain)];
}

Timeline timelineOf(const Work &work, size_t blocksMax) {
  Timeline timeline;
  for (Grain grain : {Grain::Op, Grain::Unit, Grain::Pass, Grain::Segment, Grain::Time}) {
    Aggregator aggregator(work, grain, blocksMax);
    if (grain != Grain::Time && aggregator.count() > blocksMax)
      continue;
    timeline.grain = grain;
    timeline.blocks = aggregator.blocks();
    break;
  }
  return timeline;
}

/// Sweeps over begins and ends in time. While no kernel runs, the time belongs to the transfer that
/// began first.
std::vector<Exposed> exposedOf(const Work &work) {
  struct Edge {
    double at;
    bool isEnd;
    size_t piece;
  };
  std::vector<Edge> edges;
  for (size_t i = 0; i < work.pieces.size(); ++i) {
    edges.push_back({work.pieces[i].begin, false, i});
    edges.push_back({work.pieces[i].end, true, i});
  }
  // At equal times, begins sort before ends, so adjacent pieces leave no gap.
  std::stable_sort(edges.begin(), edges.end(), [](const Edge &a, const Edge &b) {
    return std::tuple(a.at, a.isEnd) < std::tuple(b.at, b.isEnd);
  });
  std::vector<Exposed> list;
  std::set<std::pair<double, size_t>> transfers; // running transfers, by begin
  size_t kernels = 0;
  double since = 0;
  for (const Edge &edge : edges) {
    if (kernels == 0 && !transfers.empty() && edge.at > since) {
      size_t piece = transfers.begin()->second;
      if (!list.empty() && list.back().piece == piece && list.back().end == since)
        list.back().end = edge.at;
      else
        list.push_back({since, edge.at, piece, 0});
      list.back().seconds += edge.at - since;
    }
    since = edge.at;
    const Piece &piece = work.pieces[edge.piece];
    if (piece.of != Class::Transfer)
      kernels += edge.isEnd ? size_t(-1) : 1;
    else if (edge.isEnd)
      transfers.erase({piece.begin, edge.piece});
    else
      transfers.emplace(piece.begin, edge.piece);
  }
  return list;
}

/// Joins entries until at most `countMax` are left, across the narrowest gaps. A joined entry is
/// named for its longest part; its seconds stay the exact sum.
std::vector<Exposed> thinned(std::vector<Exposed> list, size_t countMax) {
  if (list.size() <= countMax || countMax == 0)
    return list;
  std::vector<double> gaps;
  for (size_t i = 1; i < list.size(); ++i)
    gaps.push_back(list[i].begin - list[i - 1].end);
  // Keep the widest gaps. If several are as wide as the narrowest of these, close them too.
  std::vector<double> sorted = gaps;
  auto widest = sorted.begin() + static_cast<std::ptrdiff_t>(countMax) - 1;
  std::nth_element(sorted.begin(), widest, sorted.end(), std::greater<>());
  std::vector<Exposed> out = {list.front()};
  double longest = list.front().seconds; // longest part of the last entry
  for (size_t i = 1; i < list.size(); ++i) {
    if (gaps[i - 1] > *widest) {
      out.push_back(list[i]);
      longest = list[i].seconds;
      continue;
    }
    Exposed &last = out.back();
    last.end = list[i].end;
    last.seconds += list[i].seconds;
    if (list[i].seconds > longest) {
      longest = list[i].seconds;
      last.piece = list[i].piece;
    }
  }
  return out;
}

std::vector<OpSum> sumsOf(const Work &work, const std::vector<Exposed> &exposed) {
  std::map<std::pair<uint32_t, uint32_t>, OpSum> sums;
  auto sumOf = [&](const Piece &piece) -> OpSum & { return sums[{piece.op, piece.group}]; };
  for (const Piece &piece : work.pieces) {
    OpSum &sum = sumOf(piece);
    sum.op = piece.op;
    sum.group = piece.group;
    sum.isTransfer = piece.of == Class::Transfer;
    ++sum.count;
    sum.seconds += piece.seconds();
  }
  for (const Exposed &stretch : exposed)
    sumOf(work.pieces[stretch.piece]).exposed += stretch.seconds;
  std::vector<OpSum> list;
  for (const auto &[key, sum] : sums)
    list.push_back(sum);
  std::stable_sort(list.begin(), list.end(),
                   [](const OpSum &a, const OpSum &b) { return a.seconds > b.seconds; });
  return list;
}

/// Kernels may overlap, so their time counts once. Exposed transfers and idle time make up the
/// rest.
Shares sharesOf(const Work &work, const std::vector<Exposed> &exposed) {
  std::vector<std::pair<double, double>> kernels;
  for (const Piece &piece : work.pieces)
    if (piece.of != Class::Transfer)
      kernels.emplace_back(piece.begin, piece.end);
  std::sort(kernels.begin(), kernels.end());
  Shares shares;
  double covered = 0;
  for (const auto &[begin, end] : kernels) {
    shares.computing += std::max(end - std::max(begin, covered), 0.0);
    covered = std::max(covered, end);
  }
  for (const Exposed &stretch : exposed)
    shares.exposed += stretch.seconds;
  shares.total = endOf(work);
  shares.idle = std::max(shares.total - shares.computing - shares.exposed, 0.0);
  return shares;
}

} // namespace shardc::page
