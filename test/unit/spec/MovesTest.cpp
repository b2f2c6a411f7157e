// Compares the MOVE rows of Spec.def with what collectives do: lays out a value on six ranks as the
// row's first placement says, moves the numbers, and lays it out again as the other placement says.
// So a wrong row fails the test.
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "runtime/verify/spec/Moves.h"

namespace shardc::plan::spec {
namespace {

using Numbers = std::vector<double>;

constexpr int64_t kSamples = 2, kRows = 12, kCols = 12;
constexpr size_t kSize = kSamples * kRows * kCols;

/// A value of [kSamples, kRows, kCols], and what members of a group may have in place of it.
struct World {
  explicit World(size_t members) : n(members) {
    std::mt19937 random(7);
    std::uniform_int_distribution<int> draw(1, 1000);
    auto make = [&](size_t size) {
      Numbers numbers(size);
      for (double &each : numbers)
        each = draw(random);
      return numbers;
    };
    whole = largest = make(kSize);
    for (size_t m = 0; m < n; ++m) {
      samples.push_back(make(kSize));
      pooled.insert(pooled.end(), samples[m].begin(), samples[m].end());
      below.push_back(make(kSize));
      for (size_t i = 0; i < kSize; ++i)
        largest[i] = std::max(largest[i], below[m][i]);
    }
    parts = partsOf(whole, make), partsOfPooled = partsOf(pooled, make);
  }
  template <typename Make> std::vector<Numbers> partsOf(Numbers left, const Make &make) const {
    std::vector<Numbers> made;
    for (size_t m = 0; m + 1 < n; ++m) {
      made.push_back(make(left.size()));
      for (size_t i = 0; i < left.size(); ++i)
        left[i] -= made[m][i];
    }
    made.push_back(std::move(left));
    return made;
  }

  size_t n;
  Numbers whole, largest, pooled;
  std::vector<Numbers> samples, below, parts, partsOfPooled;
};

/// Groups of one or two of the axes `a` and `b` with 2 and 3 ranks, which slice sequences.
struct Ranks {
  explicit Ranks(std::vector<uint16_t> axes_) : axes(std::move(axes_)) {
    plan.mesh = {{"a", 2}, {"b", 3}};
    plan.groups = {{"cp", axes}};
    plan.kindGroups[static_cast<size_t>(GroupKind::Context)] = 0;
  }
  size_t coordinate(uint16_t axis, size_t member) const {
    return axes.size() == 1 ? member : axis == 0 ? member / 3 : member % 3;
  }
  std::vector<uint16_t> axes;
  Plan plan;
};

/// Whether the whole's element i is in the shard of the member.
bool isIn(const State &state, const Ranks &ranks, size_t n, size_t member, size_t i) {
  for (const Place &place : state->places) {
    if (place.kind != Place::Shard)
      continue;
    size_t of = (member + n - static_cast<size_t>(place.distance)) % n;
    size_t count = place.isMirrored ? 2 * n : static_cast<size_t>(ranks.plan.mesh[place.axis].size);
    size_t chunk = i / (kSize / (static_cast<size_t>(place.outer) * count)) % count;
    if (place.isMirrored ? chunk != of && chunk != 2 * n - 1 - of
                         : chunk != ranks.coordinate(place.axis, of))
      return false;
  }
  return true;
}

Numbers inOrder(const Numbers &from, const Order &order) {
  auto outer = static_cast<size_t>(order.outer), n = static_cast<size_t>(order.inner);
  size_t count = order.slices != 0 ? 2 * n : n, size = from.size() / (outer * count);
  Numbers to;
  for (size_t j = 0; j < n; ++j)
    for (size_t o = 0; o < outer; ++o)
      for (size_t chunk : order.slices != 0 ? std::vector{j, 2 * n - 1 - j} : std::vector{j}) {
        auto begin = from.begin() + static_cast<std::ptrdiff_t>((o * count + chunk) * size);
        to.insert(to.end(), begin, begin + static_cast<std::ptrdiff_t>(size));
      }
  return to;
}

Numbers chunkOf(const Numbers &from, size_t n, size_t m) {
  auto size = static_cast<std::ptrdiff_t>(from.size() / n);
  auto begin = from.begin() + static_cast<std::ptrdiff_t>(m) * size;
  return {begin, begin + size};
}

Numbers total(const std::vector<Numbers> &of) {
  Numbers sum(of[0].size());
  for (const Numbers &each : of)
    for (size_t i = 0; i < sum.size(); ++i)
      sum[i] += each[i];
  return sum;
}

/// What the member has of a value in this state.
Numbers numbersOf(const World &world, const Ranks &ranks, const State &state, Form along,
                  size_t member) {
  Numbers shard, routed;
  for (size_t i = 0; i < kSize; ++i)
    if (isIn(state, ranks, world.n, member, i))
      shard.push_back(world.whole[i]);
  for (size_t from = 0; from < world.n; ++from) {
    Numbers chunk = chunkOf(world.samples[from], world.n, member);
    routed.insert(routed.end(), chunk.begin(), chunk.end());
  }
  auto ordered = [&](const Numbers &numbers) {
    return state->order.isOfDims() ? numbers : inOrder(numbers, state->order);
  };
  if (along == form::Instance || along == form::Own)
    return world.samples[member];
  if (along == form::Taken)
    return routed;
  if (along == form::All)
    return world.pooled;
  if (along == form::PartOfAll)
    return world.partsOfPooled[member];
  if (along == form::Summed)
    return total(world.samples);
  if (along == form::Largest)
    return world.below[member];
  return ordered(along == form::Part ? world.parts[member] : shard);
}

Numbers collective(OpKind kind, const std::vector<Numbers> &of, size_t member, size_t by) {
  size_t n = of.size();
  if (kind == OpKind::AllReduce)
    return total(of);
  if (kind == OpKind::ReduceScatter)
    return chunkOf(total(of), n, member);
  if (kind == OpKind::Shift)
    return of[(member + n - by) % n];
  Numbers made;
  if (kind == OpKind::AllReduceMax)
    made = of[0];
  for (const Numbers &each : of)
    if (kind == OpKind::AllReduceMax)
      std::ranges::transform(made, each, made.begin(),
                             [](double a, double b) { return std::max(a, b); });
    else {
      Numbers more = kind == OpKind::AllToAll ? chunkOf(each, n, member) : each;
      made.insert(made.end(), more.begin(), more.end());
    }
  return made;
}

/// A value in the row's first placement. Shards divide the rows of each sample, or its columns.
State stateOf(const Move &row, const Ranks &ranks, int64_t n, bool isMirrored, bool isOfColumns,
              bool hasOtherSamples) {
  State state;
  int64_t members = 1; // along the axes before
  state.edit().whole = Type::of(DType::F32, {kSamples, kRows, kCols});
  int64_t outer = isOfColumns ? kSamples * kRows : kSamples;
  for (uint16_t axis : ranks.axes) {
    if (row.place == form::Shard)
      state.put({axis, Place::Shard, outer, isMirrored && !isOfColumns});
    else if (row.place == form::Own && hasOtherSamples)
      state.put({axis, Place::Instance});
    else if (row.place != form::Whole)
      state.put({.axis = axis,
                 .kind = row.place.kind,
                 .outer = row.place == form::Taken ? members : 1,
                 .rows = row.place.rows});
    members *= ranks.plan.mesh[axis].size;
    outer *= isMirrored && !isOfColumns ? 1 : ranks.plan.mesh[axis].size;
  }
  if (row.order == Layout::Outermost) { // of samples, or of columns if rows are divided
    bool isOfRows = row.place == form::Part || isOfColumns;
    state.edit().order = {isOfRows ? kSamples : kSamples * kRows / n, n,
                          isOfRows && isMirrored ? Mesh::bitsOf(ranks.axes) : 0};
  }
  return state;
}

/// Moves values by these rows, from the first placement of `row`. Returns how often the other
/// placement was wrong, or a value was refused.
size_t faults(std::span<const Move> rows, const Move &row) {
  size_t count = 0;
  for (Ranks ranks : {Ranks({0}), Ranks({1}), Ranks({0, 1})})
    for (bool isMirrored : {false, true})
      for (bool isOfColumns : {false, true}) {
        bool hasOtherSamples = isOfColumns; // and shards of columns, which does not matter to rows
        ranks.plan.kindGroups[static_cast<size_t>(GroupKind::Data)] = hasOtherSamples ? 0 : -1;
        Mesh mesh(ranks.plan);
        Mover mover(mesh, rows);
        World world(static_cast<size_t>(mesh.members(ranks.axes)));
        const State before =
            stateOf(row, ranks, mesh.members(ranks.axes), isMirrored, isOfColumns, hasOtherSamples);
        const State after = mover.moved({row.kind, ranks.axes, 1, false}, before);
        count += mover.why().empty() ? 0 : 1;
        std::vector<Numbers> of;
        for (size_t m = 0; m < world.n; ++m)
          of.push_back(numbersOf(world, ranks, before, row.place, m));
        bool isLargest = row.place == form::Largest; // of what the members have
        World meant = world;
        if (isLargest)
          meant.whole = collective(OpKind::AllReduceMax, world.below, 0, 0);
        for (size_t m = 0; m < world.n; ++m)
          count +=
              collective(row.kind, of, m, 1) != numbersOf(meant, ranks, after, row.placeAfter, m)
                  ? 1
                  : 0;
      }
  return count;
}

TEST(Moves, RowsSayWhatCollectivesDo) {
  for (const Move &row : allMoves())
    EXPECT_EQ(faults(allMoves(), row), 0u)
        << opInfo(row.kind).name << ", place " << static_cast<int>(row.place.kind) << ", rows "
        << static_cast<int>(row.place.rows);
}

TEST(Moves, WrongRowsAreFound) {
  constexpr Move kWrong[] = {
      {OpKind::AllGather, form::Shard, Layout::Any, form::Whole, Layout::Any}, // in no order
      {OpKind::AllGather, form::Instance, Layout::Any, form::Summed, Layout::Any},
      {OpKind::ReduceScatter, form::Part, Layout::Any, form::Whole, Layout::Any},
      {OpKind::ReduceScatter, form::PartOfAll, Layout::Any, form::Summed, Layout::Any},
      {OpKind::AllReduce, form::Instance, Layout::Any, form::Whole, Layout::Any},
      {OpKind::AllReduce, form::Shard, Layout::Any, form::Whole, Layout::Any},
      {OpKind::AllReduceMax, form::Part, Layout::Any, form::Whole, Layout::Any},
      {OpKind::AllToAll, form::Own, Layout::Dims, form::Own, Layout::Dims},
      {OpKind::AllToAll, form::Taken, Layout::Dims, form::Taken, Layout::Dims},
      {OpKind::AllToAll, form::Shard, Layout::Outermost, form::Shard, Layout::Any}};
  for (const Move &row : kWrong)
    EXPECT_GT(faults({&row, 1}, row), 0u) << opInfo(row.kind).name;
}

TEST(Moves, OtherValuesAreRefused) {
  Ranks ranks({0});
  Mesh mesh(ranks.plan);
  Mover mover(mesh, allMoves());
  State whole;
  mover.moved({OpKind::AllReduce, {0}, 0, false}, whole);
  EXPECT_EQ(mover.why(), "takes a whole value along a, for which there is no MOVE row");
  EXPECT_TRUE(mover.take(whole, {})); // of a group of one rank
  State slice;
  slice.put({0, Place::Shard, kSamples});
  slice.edit().order = {2 * kSamples, 6, 0};
  mover.moved({OpKind::AllToAll, {0}, 0, false}, slice);
  EXPECT_EQ(mover.why(), "takes elements that are in a different order");
}

} // namespace
} // namespace shardc::plan::spec
