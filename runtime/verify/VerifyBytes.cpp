// Divides the bytes that a segment accesses into intervals, collects its accesses in order of
// issue, and replays them on a shadow memory. Bytes that do not move with a rank's index are
// replayed once. Zones in which something moves are replayed for each index at which bytes overlap
// differently.
#include "runtime/verify/VerifyBytes.h"

#include <algorithm>
#include <utility>

namespace shardc::plan::verifier {
namespace {

/// Costs in counted visits: of placing a range at a coordinate, of keeping a piece of a value that
/// has several pieces, and of laying out a value or cell.
constexpr uint64_t kVisitsOfRange = 96, kVisitsOfPiece = 64, kVisitsOfBounds = 8;
/// The cost of finding where two bounds meet.
constexpr uint64_t kVisitsOfLines = 4;
/// The cost of recording that a region's content is lost. It reflects the memory that the record
/// needs.
constexpr uint64_t kVisitsOfClobber = 128;
/// If there are at most this many coordinates, all are checked. Otherwise only those near which the
/// order of bounds changes are checked.
constexpr int64_t kCoordinatesAll = 64;
constexpr size_t kLinePairsMax = size_t{1} << 24;
/// The intervals between two of an arena's boundaries, by the indices of these boundaries.
struct Span {
  uint32_t first = 0, last = 0;
};

/// A region, and its intervals if it does not move.
struct RegionSpan {
  uint32_t region;
  Span span;
};

/// An access to bytes that do not move, or (moving != kNone) to a range of `moving_`.
struct PlacedAccess {
  Access access;
  Span span;
  uint32_t moving = kNone;
};

/// Sorts the hulls, and joins those with gaps of less than `apart` bytes.
std::vector<Hull> merged(std::vector<Hull> hulls, int64_t apart) {
  std::ranges::sort(hulls, {}, &Hull::begin);
  std::vector<Hull> joined;
  for (const Hull &hull : hulls)
    if (!joined.empty() && hull.begin - joined.back().end < apart)
      joined.back().end = std::max(joined.back().end, hull.end);
    else
      joined.push_back(hull);
  return joined;
}

/// Whether there are so few coordinates that all of them are checked.
bool areFew(IndexRange indices) { return indices.last - indices.first < kCoordinatesAll; }

/// The cost of coordinatesFor() for this number of lines, in counted visits.
uint64_t visitsOfCoordinates(size_t lines, IndexRange indices) {
  return (areFew(indices) ? lines : std::min(lines * lines, kLinePairsMax)) * kVisitsOfLines;
}

/// Coordinates that represent all others. At a coordinate that is left out, any two bounds have the
/// same order as at the next coordinate that is returned.
std::vector<int64_t> coordinatesFor(std::vector<Moving> lines, IndexRange indices) {
  std::vector<int64_t> all;
  std::sort(lines.begin(), lines.end());
  lines.erase(std::unique(lines.begin(), lines.end()), lines.end());
  auto moving = static_cast<size_t>(
      std::count_if(lines.begin(), lines.end(), [](const Moving &line) { return line.coef != 0; }));
  bool takeAll = areFew(indices) || moving * lines.size() > kLinePairsMax;
  std::vector<bool> isLookedAt(static_cast<size_t>(indices.last - indices.first + 1));
  auto lookAt = [&](int64_t member) {
    if (member >= indices.first && member <= indices.last)
      isLookedAt[static_cast<size_t>(member - indices.first)] = true;
  };
  lookAt(indices.first), lookAt(indices.last);
  for (size_t i = 0; i < lines.size() && !takeAll; ++i) {
    if (lines[i].coef == 0)
      continue;
    for (const Moving &other : lines) {
      int64_t slope = lines[i].coef - other.coef;
      if (slope == 0)
        continue;
      int64_t crossing = (other.offset - lines[i].offset) / slope;
      for (int64_t member = crossing - 1; member <= crossing + 1; ++member)
        lookAt(member);
    }
  }
  for (int64_t member = indices.first; member <= indices.last; ++member)
    if (takeAll || isLookedAt[static_cast<size_t>(member - indices.first)])
      all.push_back(member);
  return all;
}

class ByteCheck {
public:
  ByteCheck(const Scope &scope, CellRegions &regions)
      : scope_(scope), segment_(scope.segment), regions_(regions), regionCount_(regions.size()),
        order_(scope.inspection.orderOf(scope.roleIndex, scope.segmentIndex)),
        indices_(scope.plan(), scope.role), cellOf_(segment_.values.size(), kNone) {
    for (const Segment::Boundary &in : segment_.ins)
      cellOf_[in.value] = in.cell;
    makeLayout();
  }

  SegmentEffect check(Variant variant) {
    variant_ = variant;
    SegmentEffect effect;
    if (scope_.inspection.isFull()) // makeLayout() may have given up
      return effect;
    Contents contents(scope_, variant);
    if (contents.isTooDeep())
      scope_.add(finding::NestedTooDeep, kNone);
    collect(contents, effect);
    Shadow shadow(scope_, order_, variant);
    for (int a = 0; a < kArenaCount && !scope_.inspection.isFull(); ++a) {
      auto arena = static_cast<Arena>(a);
      playFixed(arena, shadow, effect);
      for (const ZonePlay &play : collectZones(layout(arena)))
        playZone(layout(arena), arena, play, shadow, effect);
    }
    // Corrupted content is an error only if it is read, which ProgramCheck and LostCheck know.
    for (SegmentEffect::Out &out : effect.outs)
      if (auto found = shadow.corrupted().find(out.region); found != shadow.corrupted().end())
        out.loss.corrupted = std::make_shared<const Finding>(found->second);
    return effect;
  }

private:
  struct ArenaLayout {
    std::vector<int64_t> boundaries;
    /// Bytes in which ranges move with a rank's coordinate. They are replayed once per coordinate.
    std::vector<Hull> zones;
    std::vector<PlacedAccess> accesses; ///< accesses of the current variant, in order of issue
    std::vector<Range> moving;
    /// Regions of cells that it may overwrite and to which it does not store.
    std::vector<RegionSpan> regions;
  };
  struct Bound {
    int64_t at;
    uint32_t *index; ///< receives the index of `at` among all boundaries
  };
  using Bounds = std::array<std::vector<Bound>, kArenaCount>;
  using Hulls = std::vector<Hull>;
  struct ZonePlay {
    Hull zone;
    std::vector<PlacedAccess> accesses;
    int16_t group = -1;        ///< the group with whose index its ranges move
    std::vector<Moving> lines; ///< bounds that move with this group, or do not move
    std::vector<uint32_t> regions;
  };

  ArenaLayout &layout(Arena arena) { return layouts_[static_cast<size_t>(arena)]; }

  /// Lays out only the cells that the segment accesses: a role may have many more.
  void makeLayout() {
    if (!scope_.inspection.spend(segment_.values.size() * kVisitsOfBounds))
      return;
    Bounds bounds;
    layOutValues(bounds);
    layOutRegions(bounds);
    for (size_t arena = 0; arena < layouts_.size(); ++arena) {
      layouts_[arena].zones = merged(std::move(layouts_[arena].zones), 0);
      setBoundaries(bounds[arena], layouts_[arena]);
    }
  }

  void addRange(const Range &range, Span &span, Bounds &bounds) {
    Hull hull = range.hull(indices_);
    if (range.isFixed())
      addFixed(range.arena(), hull, span, bounds);
    else if (hull.begin < hull.end)
      layout(range.arena()).zones.push_back(hull);
  }

  static void addFixed(Arena arena, const Hull &hull, Span &span, Bounds &bounds) {
    std::vector<Bound> &all = bounds[static_cast<size_t>(arena)];
    all.push_back({hull.begin, &span.first});
    all.push_back({hull.end, &span.last});
  }

  void layOutValues(Bounds &bounds) {
    spans_.resize(segment_.values.size());
    isMoving_.resize(segment_.values.size());
    for (ValueId id = 0; id < segment_.values.size(); ++id) {
      const Value &value = segment_.values[id];
      if (value.place.coef == 0) { // nearly always
        addFixed(value.place.arena, {value.place.offset, value.place.offset + value.type.bytes()},
                 spans_[id], bounds);
        continue;
      }
      Range range = Range::of(value, indices_);
      isMoving_[id] = !range.isFixed();
      addRange(range, spans_[id], bounds);
    }
    // An in-place gather writes on both sides of this rank's own part, whose offset depends on the
    // rank. Its writes may lie outside the range in which the parts of this role's ranks move.
    for (const Op &op : segment_.ops)
      if (op.kind == OpKind::AllGather && isMoving_[op.operands[0]] != 0 &&
          gathersInPlace(scope_.plan(), scope_.role, segment_, op)) {
        Range whole = Range::of(segment_.values[op.results[0]], indices_);
        layout(whole.arena()).zones.push_back(whole.hull(indices_));
      }
  }

  /// Lays out regions into which the segment may write, and the parts of cells to which it stores.
  void layOutRegions(Bounds &bounds) {
    regions_.left.clear();
    for (const Segment::Boundary &out : segment_.outs) {
      regions_.left.insert(out.cell);
      regions_.forEachOf(out.cell, regionCount_, [&](uint32_t region) {
        if (region != out.cell)
          leftParts_.push_back({region, {}});
      });
    }
    std::array<Hulls, kArenaCount> written = findWritten();
    for (size_t a = 0; a < layouts_.size(); ++a)
      regions_.forEachIn(static_cast<Arena>(a), written[a], [&](uint32_t region) {
        if (!regions_.left.contains(regions_.cellOf(region)))
          layouts_[a].regions.push_back({region, {}});
      });
    size_t count = leftParts_.size();
    for (ArenaLayout &arena : layouts_)
      count += arena.regions.size();
    if (!scope_.inspection.spend(count * kVisitsOfBounds))
      return;
    for (RegionSpan &part : leftParts_)
      addRange(regions_.rangeOf(part.region), part.span, bounds);
    for (ArenaLayout &arena : layouts_)
      for (RegionSpan &region : arena.regions)
        addRange(regions_.rangeOf(region.region), region.span, bounds);
  }

  /// Bytes that the segment's ops write, at any coordinate: disjoint and sorted.
  std::array<Hulls, kArenaCount> findWritten() const {
    std::array<Hulls, kArenaCount> written;
    for (const Op &op : segment_.ops)
      if (opInfo(op).traits != OpTraits::Alias)
        for (ValueId result : op.results) {
          const Value &value = segment_.values[result];
          Hulls &hulls = written[static_cast<size_t>(value.place.arena)];
          if (value.place.coef == 0) // nearly always
            hulls.push_back({value.place.offset, value.place.offset + value.type.bytes()});
          else
            hulls.push_back(Range::of(value, indices_).hull(indices_));
        }
    for (Hulls &hulls : written)
      hulls = merged(std::move(hulls), 1); // joins adjacent ranges too
    return written;
  }

  /// Sorts the bounds and sets the index of each among the distinct bounds.
  void setBoundaries(std::vector<Bound> &bounds, ArenaLayout &arena) {
    uint32_t unused = 0;
    for (const Hull &zone : arena.zones)
      bounds.insert(bounds.end(), {{zone.begin, &unused}, {zone.end, &unused}});
    std::ranges::sort(bounds, {}, &Bound::at);
    for (const Bound &bound : bounds) {
      if (arena.boundaries.empty() || arena.boundaries.back() != bound.at)
        arena.boundaries.push_back(bound.at);
      *bound.index = static_cast<uint32_t>(arena.boundaries.size()) - 1;
    }
  }

  Span spanOf(const ArenaLayout &layout, int64_t begin, int64_t end) const {
    auto index = [&](int64_t at) {
      return static_cast<uint32_t>(
          std::lower_bound(layout.boundaries.begin(), layout.boundaries.end(), at) -
          layout.boundaries.begin());
    };
    return {index(begin), index(end)};
  }

  void addAccess(const Access &access, const Range &range) {
    ArenaLayout &arena = layout(range.arena());
    PlacedAccess &placed = arena.accesses.emplace_back();
    placed.access = access;
    if (range.isInexact())
      scope_.addValue(finding::CutTooOften, access.op, access.value);
    if (range.isFixed()) {
      placed.span = spanOf(arena, range.begin(0), range.end(0));
    } else {
      placed.moving = static_cast<uint32_t>(arena.moving.size());
      arena.moving.push_back(range);
    }
  }

  void addNeed(SegmentEffect &effect, uint32_t region, uint32_t op, ValueId operand) {
    if (regions_.needed.insert(region).second)
      effect.needs.push_back({region, op, operand});
  }

  void collectRead(const Contents &contents, uint32_t op, ValueId operand, Access::Kind kind,
                   SegmentEffect &effect) {
    if (!contents.isDefined(operand))
      return refuseRead(finding::ReadsUndefined, op, operand, operand);
    auto addPiece = [&](ValueId source, const Range &range, bool isWhole) {
      bool isLiveIn = cellOf_[source] != kNone;
      if (uint32_t def = segment_.values[source].def; def != kNone && !order_.ends(def, op))
        refuseRead(finding::ReadsTooEarly, op, operand, source, streamOf(def), streamOf(op));
      if (isLiveIn && op < segment_.ops.size()) {
        uint32_t cell = cellOf_[source];
        addNeed(effect, isWhole ? cell : regions_.find(cell, range), op, operand);
      }
      return Access{op, isLiveIn ? kInitial : source, operand, kind};
    };
    const Value &read = segment_.values[operand];
    ValueId sole = contents.soleSource(operand);
    if (sole != kNone && isMoving_[operand] == 0) { // nearly always
      bool isCellsPart = cellOf_[sole] != kNone && contents.isNarrow(operand);
      Access access =
          addPiece(sole, isCellsPart ? Range::of(read, indices_) : Range(), !isCellsPart);
      layout(read.place.arena).accesses.push_back({access, spans_[operand], kNone});
      return;
    }
    Range region = Range::of(read, indices_);
    contents.forEachPiece(operand, region, [&](ValueId source, const Range &range) {
      if (scope_.inspection.spend(kVisitsOfPiece))
        addAccess(addPiece(source, range, false), range);
    });
  }

  template <FindingRow Row, typename... Args>
  void refuseRead(Row row, uint32_t op, ValueId operand, ValueId source, Args &&...args) {
    Finding &f = scope_.addValue(row, op, operand, std::forward<Args>(args)...);
    f.variant = variant_;
    note(f, fmt::format("'%{}' is defined here", scope_.nameOf(source)),
         scope_.spot(scope_.value(source).def));
  }
  const std::string &streamOf(uint32_t op) const {
    return scope_.plan().streams[segment_.ops[op].stream].name;
  }

  void collectOp(const Contents &contents, uint32_t index, SegmentEffect &effect) {
    const Op &op = segment_.ops[index];
    const OpInfo &info = opInfo(op);
    for (size_t i = 0; i < op.operands.size(); ++i) {
      bool isTaken = std::any_of(info.inPlace.begin(), info.inPlace.end(), [&](int8_t operand) {
        return operand >= 0 && static_cast<size_t>(operand) == i;
      });
      collectRead(contents, index, op.operands[i], isTaken ? Access::ReadTaken : Access::Read,
                  effect);
    }
    for (const Tie &tie : op.ties)
      if (tie.kind == Tie::Acc && holds(tie.pred, variant_))
        collectRead(contents, index, tie.value, Access::ReadTaken, effect);
    bool inPlaceGather = gathersInPlace(scope_.plan(), scope_.role, segment_, op);
    for (ValueId result : op.results) {
      const Value &value = segment_.values[result];
      Access access{index, result, result, Access::Write};
      if (!inPlaceGather && isMoving_[result] == 0) {
        layout(value.place.arena).accesses.push_back({access, spans_[result], kNone});
        continue;
      }
      Range region = Range::of(value, indices_);
      if (!inPlaceGather)
        addAccess(access, region);
      else
        contents.forEachPiece(result, region, [&](ValueId source, const Range &range) {
          if (source == result)
            addAccess(access, range);
        });
    }
  }

  void collectOuts(const Contents &contents, SegmentEffect &effect) {
    for (size_t i = 0; i < segment_.outs.size() && !scope_.inspection.isFull(); ++i) {
      const Segment::Boundary &boundary = segment_.outs[i];
      regions_.forEachOf(boundary.cell, regionCount_, [&](uint32_t region) {
        SegmentEffect::Out &out = effect.outs.emplace_back();
        out.region = region;
        out.value = boundary.value;
        out.loss.at = scope_.spot(segment_.values[boundary.value].def);
        out.isDefined = contents.isDefined(boundary.value);
        if (out.isDefined)
          collectOut(contents, region, out);
      });
    }
  }

  /// Records the values in the region, and a read of it at the segment's end.
  void collectOut(const Contents &contents, uint32_t region, SegmentEffect::Out &out) {
    auto end = static_cast<uint32_t>(segment_.ops.size());
    bool isWhole = regions_.cellOf(region) == region;
    contents.forEachPiece(
        out.value, regions_.rangeOf(region), [&](ValueId source, const Range &range) {
          bool isLiveIn = cellOf_[source] != kNone;
          if (isLiveIn && scope_.inspection.spend(kVisitsOfPiece))
            out.from.push_back(regions_.find(cellOf_[source], range));
          out.isWritten |= !isLiveIn || out.from.empty() || out.from.back() != region;
          Access access{end + region, isLiveIn ? kInitial : source, out.value, Access::Read};
          if (isWhole && isMoving_[out.value] == 0 && contents.soleSource(out.value) != kNone)
            layout(range.arena()).accesses.push_back({access, spans_[out.value], kNone});
          else
            addAccess(access, range);
        });
  }

  void collect(const Contents &contents, SegmentEffect &effect) {
    for (ArenaLayout &arena : layouts_) {
      arena.accesses.clear();
      arena.moving.clear();
    }
    regions_.needed.clear();
    regions_.clobbered.clear();
    for (uint32_t i = 0; i < segment_.ops.size() && !scope_.inspection.isFull(); ++i)
      if (executes(segment_.ops[i], variant_))
        collectOp(contents, i, effect);
    collectOuts(contents, effect);
  }

  void addClobber(uint32_t region, const std::optional<Shadow::Written> &written,
                  SegmentEffect &effect) {
    if (written && regions_.clobbered.insert(region).second &&
        scope_.inspection.spend(kVisitsOfClobber))
      effect.clobbers.push_back({region, {scope_.spot(written->op), written->bytes, nullptr}});
  }

  void playFixed(Arena arena, Shadow &shadow, SegmentEffect &effect) {
    ArenaLayout &bytes = layout(arena);
    shadow.reset(bytes.boundaries, arena, /*member=*/0);
    // playZone() replays the zones, index by index.
    for (const Hull &zone : bytes.zones) {
      Span span = spanOf(bytes, zone.begin, zone.end);
      shadow.skip(span.first, span.last);
    }
    for (const PlacedAccess &placed : bytes.accesses)
      if (placed.moving == kNone)
        shadow.play(placed.access, placed.span.first, placed.span.last);
    for (const RegionSpan &at : bytes.regions)
      if (at.span.first < at.span.last)
        addClobber(at.region, shadow.findWritten(at.span.first, at.span.last), effect);
  }

  /// Collects the accesses to each zone of the arena, and the bounds at which they begin and end.
  std::vector<ZonePlay> collectZones(const ArenaLayout &bytes) const {
    std::vector<ZonePlay> plays;
    for (const Hull &zone : bytes.zones)
      plays.push_back({zone, {}, -1, {{zone.begin}, {zone.end}}, {}});
    // Zones are disjoint and sorted, so the zones that a range overlaps follow each other.
    auto forEachZone = [&](const Hull &bytes, const auto &fn) {
      auto at = std::ranges::partition_point(
          plays, [&](const ZonePlay &play) { return play.zone.end <= bytes.begin; });
      for (; at != plays.end() && at->zone.begin < bytes.end; ++at)
        fn(*at);
    };
    auto addMoving = [&](const Range &range, const auto &fn) {
      forEachZone(range.hull(indices_), [&](ZonePlay &play) {
        if (play.group < 0)
          play.group = range.group();
        if (range.group() < 0 || range.group() == play.group)
          range.forEachLine([&](const Moving &line) { play.lines.push_back(line); });
        fn(play);
      });
    };
    for (const PlacedAccess &placed : bytes.accesses) {
      if (placed.moving != kNone) {
        addMoving(bytes.moving[placed.moving],
                  [&](ZonePlay &play) { play.accesses.push_back(placed); });
        continue;
      }
      if (placed.span.first >= placed.span.last)
        continue;
      int64_t begin = bytes.boundaries[placed.span.first], end = bytes.boundaries[placed.span.last];
      forEachZone({begin, end}, [&](ZonePlay &play) {
        play.accesses.push_back(placed);
        play.lines.push_back({begin});
        play.lines.push_back({end});
      });
    }
    for (const RegionSpan &at : bytes.regions)
      addMoving(regions_.rangeOf(at.region),
                [&](ZonePlay &play) { play.regions.push_back(at.region); });
    return plays;
  }

  /// The bytes of the range at an index in the group. If the range moves with another group, it is
  /// approximated by all bytes that it has at any index.
  Hull boundsOf(const Range &range, int16_t group, int64_t member) const {
    if (range.group() >= 0 && range.group() != group)
      return range.hull(indices_);
    return {range.begin(member), range.end(member)};
  }

  void playZone(const ArenaLayout &bytes, Arena arena, const ZonePlay &play, Shadow &shadow,
                SegmentEffect &effect) {
    const Hull &zone = play.zone;
    std::vector<Hull> ranges; // ranges of accesses, then of regions
    std::vector<int64_t> bounds;
    IndexRange indices = indices_.of(play.group);
    if (!scope_.inspection.spend(visitsOfCoordinates(play.lines.size(), indices)))
      return;
    // At indices between two of these, all bounds have the same order, so the same bytes overlap.
    for (int64_t member : coordinatesFor(play.lines, indices)) {
      size_t ranged = play.accesses.size() + play.regions.size();
      if (!scope_.inspection.spend(ranged * kVisitsOfRange) || scope_.inspection.isFull())
        return;
      ranges.clear();
      bounds.assign({zone.begin, zone.end});
      auto add = [&](Hull bytes) {
        ranges.push_back({std::max(bytes.begin, zone.begin), std::min(bytes.end, zone.end)});
        if (ranges.back().begin < ranges.back().end)
          bounds.insert(bounds.end(), {ranges.back().begin, ranges.back().end});
      };
      for (const PlacedAccess &placed : play.accesses)
        if (placed.moving == kNone)
          add({bytes.boundaries[placed.span.first], bytes.boundaries[placed.span.last]});
        else
          add(boundsOf(bytes.moving[placed.moving], play.group, member));
      for (uint32_t region : play.regions)
        add(boundsOf(regions_.rangeOf(region), play.group, member));
      std::sort(bounds.begin(), bounds.end());
      bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
      auto index = [&](int64_t at) {
        return static_cast<size_t>(std::lower_bound(bounds.begin(), bounds.end(), at) -
                                   bounds.begin());
      };
      shadow.reset(bounds, arena, member);
      for (size_t i = 0; i < ranges.size(); ++i) {
        if (ranges[i].begin >= ranges[i].end)
          continue;
        size_t first = index(ranges[i].begin), last = index(ranges[i].end);
        if (i < play.accesses.size())
          shadow.play(play.accesses[i].access, first, last);
        else
          addClobber(play.regions[i - play.accesses.size()], shadow.findWritten(first, last),
                     effect);
      }
    }
  }

  const Scope scope_;
  const Segment &segment_;
  CellRegions &regions_;
  const uint32_t regionCount_; ///< regions beyond it are analysed in the next call
  const HappensBefore &order_;
  Indices indices_;
  Variant variant_ = Variant::Only;
  std::vector<uint32_t> cellOf_;  ///< cell of each live-in value
  std::vector<Span> spans_;       ///< span of each value that does not move
  std::vector<uint8_t> isMoving_; ///< of each value
  std::array<ArenaLayout, kArenaCount> layouts_;
  std::vector<RegionSpan> leftParts_; ///< parts of cells to which the segment stores
};

} // namespace

void checkBytes(const Scope &scope, CellRegions &regions, SegmentEffects &effects) {
  ByteCheck check(scope, regions);
  auto &own = effects[scope.segmentIndex];
  for (const auto &[variant, standing] :
       scope.inspection.representativesOf(scope.roleIndex, scope.segmentIndex))
    own[variant] = variant == standing ? std::make_shared<const SegmentEffect>(check.check(variant))
                                       : own[standing];
}

} // namespace shardc::plan::verifier
