// The text form of places, predicates and ops; see Form.h.
#pragma once

#include <algorithm>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "runtime/plan/Limits.h"
#include "runtime/plan/NameKind.h"
#include "runtime/plan/Plan.h"
#include "runtime/plan/Text.h"

namespace shardc::plan {

inline std::string_view toString(Tie::Kind kind) { return kind == Tie::Acc ? "acc" : "else"; }
inline std::optional<Tie::Kind> parseTieKind(std::string_view word) {
  bool isTie = word == "acc" || word == "else";
  return isTie ? std::optional(word == "acc" ? Tie::Acc : Tie::Else) : std::nullopt;
}

template <typename Io> class FormOfOps {
protected:
  template <typename T> using MaybeConst = std::conditional_t<Io::kReads, T, const T>;
  template <typename T> using Ref = MaybeConst<T> &;

public:
  FormOfOps(Io &io, Ref<Plan> plan) : io_(io), plan_(plan) {}

  /// `work 256 + 64*data slots 3 stride 256 mb + 1`: arena, offset, ring.
  void place(Ref<Place> it) {
    io_.oneOf(it.arena, parseArena, "arena");
    offset(it);
    if (!io_.clause("slots", it.slots != 1))
      return;
    io_.integer(it.slots, "slots of a ring", 2, limits::kSlotsMax);
    stride(it);
    shift(it.shift);
  }

  /// One op of the segment: results, name, operands, attributes, blocks, clauses, waits, types of
  /// the results, phase and location, in this order.
  void op(Ref<Segment> segment, Ref<Op> it) {
    segment_ = &segment;
    auto names = resultNames(it);
    if (io_.isNext('%', !names.empty())) {
      io_.separated(names, limits::kResultsMax, "results of an operation",
                    [&](auto &name) { io_.resultName(segment, name); });
      io_.sign('=');
    }
    size_t at = io_.next();
    io_.opName(it);
    if (io_.isNext('%', !it.operands.empty()))
      io_.separated(it.operands, limits::kOperandsMax, "operands of an operation",
                    [&](auto &operand) { io_.value(segment, operand); });
    attrs(it);
    listedBlocks(it);
    if (std::optional<AttrKey> lacking = missingAttr(it); lacking && Io::kReads)
      io_.fail(at, "plan-name", "'{}' needs {}", opInfo(it).name, attrInfo(*lacking).name);
    Phase usual = segmentKindInfo(segment.kind).phase;
    io_.set(it.role, impliedRole(it));
    io_.set(it.phase, usual);
    clauses(it, names.size());
    waits(it);
    results(it, names);
    io_.oneOfIf(it.phase != usual, it.phase, parsePhase);
    io_.flag(it.isRecomputed, "recomputed");
    if (io_.clause("loc", it.loc != kNone))
      io_.integer(it.loc, "index of a recipe location", 0, std::ssize(plan_.locs) - 1);
  }

protected:
  /// Whether an optional part is there, which is next when reading.
  static bool has(bool isThere, bool isNext) { return Io::kReads ? isNext : isThere; }
  /// `[a, b]`: at least one entry.
  void bracketed(auto &list, int64_t max, std::string_view plural, const auto &fields) {
    io_.sign('[');
    io_.separated(list, max, plural, fields);
    io_.sign(']');
  }
  void group(auto &index) { io_.ref(NameKind::Group, plan_.groups, index); }

  /// `256`, `256 + 64*data` or `256 - 64*data`: bytes, and bytes for each index in the group.
  void offset(Ref<Place> it) {
    io_.set(it.placed, true);
    io_.integer(it.offset, "offset", -limits::kBytesMax, limits::kBytesMax);
    if (!io_.term(it.coef, "coefficient of an index", limits::kBytesMax))
      return;
    io_.sign('*');
    group(it.group);
    if (it.coef == 0)
      io_.set(it.group, -1);
  }
  void stride(Ref<Place> it) {
    io_.token("stride");
    io_.integer(it.stride, "bytes from slot to slot", 0, limits::kBytesMax);
  }
  /// `mb + 1`, or nothing.
  void shift(Ref<int64_t> it) {
    if (io_.clause("mb", it != 0))
      io_.term(it, "distance between microbatches", limits::kMicrobatchesMax);
  }

  /// `{name = value  name = value}`; the row of Attrs.def says of which type a value is. Defaults
  /// are not written.
  void attrs(Ref<Op> it) {
    std::vector<Attr> written;
    std::ranges::copy_if(it.attrs, std::back_inserter(written), std::not_fn(isDefault));
    if (!io_.clause('{', !written.empty()))
      return;
    io_.glue();
    io_.each(written, '}', INT64_MAX, "attributes", [&](auto &each) {
      if (&each != written.data())
        io_.gap();
      io_.attrName(it, each.key);
      io_.sign('=');
      attr(each);
      io_.setAttr(it, each);
    });
    io_.glue();
    io_.sign('}');
  }
  void attr(auto &it) {
    const AttrInfo &info = attrInfo(it.key);
    switch (info.type) {
    case AttrInfo::Float:
      return io_.real(it.f, info.name);
    case AttrInfo::Int:
      return io_.integer(it.i, info.name, INT64_MIN, INT64_MAX);
    case AttrInfo::Bool:
      return io_.boolean(it.i);
    case AttrInfo::Enum:
      return io_.enumerated(info, it.i);
    }
  }

  /// `of [a, b] copies 2 of [c]`: the blocks of the operands, in order; without `copies`, it is 1.
  /// Without `of`, they are the first blocks of the plan, one per operand, and `copies N` applies
  /// to all.
  void listedBlocks(Ref<Op> it) {
    auto name = [&](auto &block) { io_.ref(NameKind::Block, plan_.blocks, block.block); };
    if constexpr (Io::kReads) {
      if (opInfo(it).block != BlockUse::List)
        return;
      size_t first = 0;
      if (io_.peekWord() != "of") {
        for (int32_t i = 0; i < std::ssize(it.operands); ++i)
          it.blocks.push_back({i});
        copies(std::span(it.blocks));
      }
      while (io_.takeIf("of")) {
        bracketed(it.blocks, limits::kOperandsMax, "blocks of an operation", name);
        copies(std::span(it.blocks).subspan(first));
        first = it.blocks.size();
      }
    } else {
      bool isImplied = it.blocks.size() == it.operands.size();
      for (const ListedBlock &each : it.blocks)
        isImplied = isImplied && each.block == &each - it.blocks.data() &&
                    each.copies == it.blocks[0].copies;
      for (std::span rest(it.blocks); !rest.empty();) {
        size_t count = 1;
        while (count < rest.size() && rest[count].copies == rest[0].copies)
          ++count;
        std::span alike = rest.first(count);
        if (io_.clause("of", !isImplied))
          bracketed(alike, 0, "", name);
        copies(alike);
        rest = rest.subspan(count);
      }
    }
  }
  /// `copies 2`, of all these blocks; nothing is 1.
  void copies(std::span<MaybeConst<ListedBlock>> blocks) {
    int64_t count = blocks.empty() ? 1 : blocks[0].copies;
    if (io_.clause("copies", count != 1))
      io_.integer(count, "copies of a block", 1, limits::kWorldSizeMax);
    for (auto &each : blocks)
      io_.set(each.copies, count);
  }

  /// The clauses between attributes and waits, which may have any order. `channel` also sets the
  /// op's group. An op without `on` has its default stream.
  void clauses(Ref<Op> it, size_t results) {
    auto groupOfChannel = [&] {
      auto at = static_cast<size_t>(it.channel); // too large without a channel
      return at < plan_.channels.size() ? plan_.channels[at].group : int16_t{-1};
    };
    bool isOn = !Io::kReads && it.stream != plan_.defaultStream(it);
    io_.inAnyOrder([&] {
      if (io_.clause("role", it.role != impliedRole(it)))
        io_.oneOf(it.role, parseProductRole, "role of a product");
      if (io_.clause("channel", it.channel != kNoChannel)) {
        io_.ref(NameKind::Channel, plan_.channels, it.channel);
        io_.set(it.group, groupOfChannel());
      }
      if (io_.clause("group", it.group >= 0 && it.group != groupOfChannel()))
        group(it.group);
      if (io_.clause("unit", it.unit >= 0))
        io_.ref(NameKind::Unit, plan_.units, it.unit);
      if (io_.clause("on", isOn)) {
        io_.ref(NameKind::Stream, plan_.streams, it.stream);
        isOn = true;
      }
      ties(it, results);
      if (io_.clause("if", it.pred != Pred::Always))
        predicate(it.pred);
    });
    if (!isOn)
      io_.set(it.stream, plan_.defaultStream(it));
  }

  /// `acc(RESULT = value if PREDICATE)` or `else(...)`, where RESULT is the result's index.
  void ties(Ref<Op> it, size_t results) {
    auto tie = [&](auto &each) {
      io_.oneOf(each.kind, parseTieKind, "tie");
      io_.sign('(');
      io_.integer(each.result, "index of the tied result", 0, static_cast<int64_t>(results) - 1);
      io_.sign('=');
      io_.value(*segment_, each.value);
      if (io_.clause("if", each.pred != Pred::Always))
        predicate(each.pred);
      io_.sign(')');
    };
    if constexpr (Io::kReads)
      while (parseTieKind(io_.peekWord()))
        io_.append(it.ties, limits::kTiesMax, "ties of an operation", tie);
    else
      std::ranges::for_each(it.ties, tie);
  }

  /// `first`, `mb 2 to 5` with both ends included, `mb 2 to 5 every 8 to 63`, or `not_mb 2 to 5`.
  void predicate(Ref<Pred> it) {
    bool isNot = io_.clause("not_mb", it.kind == Pred::Kind::NotWithin);
    if (!isNot && !io_.clause("mb", it.kind == Pred::Kind::Within))
      return io_.oneOf(it, parsePred, "predicate");
    io_.set(it.kind, isNot ? Pred::Kind::NotWithin : Pred::Kind::Within);
    io_.integer(it.begin, "first microbatch", 0, limits::kMicrobatchesMax);
    io_.token("to");
    io_.integer(it.last, "last microbatch", it.begin, limits::kMicrobatchesMax);
    if (isNot || !io_.clause("every", it.period > 0))
      return;
    // An interval without repetition has no period, and adjacent intervals are written as one.
    io_.integer(it.period, "period", it.last - it.begin + 2, limits::kMicrobatchesMax);
    io_.token("to");
    io_.integer(it.until, "last microbatch", it.begin + it.period, limits::kMicrobatchesMax);
    io_.countRepetitions(it);
  }

  /// `after %a, #3`: the op that defines %a, and the op with index 3. Only earlier ops can be
  /// named, so waits have no cycles. An op is named by its first result, or by its index if it has
  /// none.
  void waits(Ref<Op> it) {
    if (!io_.clause("after", !it.waits.empty()))
      return;
    const std::vector<Op> &ops = segment_->ops;
    io_.separated(it.waits, limits::kWaitsMax, "waits of an operation", [&](auto &wait) {
      bool isNamed = wait < ops.size() && !ops[wait].results.empty();
      if (io_.clause('#', !isNamed))
        return io_.integer(wait, "index of an op", 0, std::ssize(ops) - 1);
      ValueId id = Io::kReads ? kNone : ops[wait].results[0];
      io_.value(*segment_, id);
      if (!Io::kReads || io_.failed())
        return;
      const Value &value = segment_->values[id];
      if (value.def == kNone)
        io_.fail(io_.last(), "plan-name", "'%{}' is a live-in, so there is no op to wait for",
                 value.name);
      io_.set(wait, value.def);
    });
  }

  auto resultNames(Ref<Op> it) {
    if constexpr (Io::kReads)
      return std::vector<typename Io::ResultName>{};
    else
      return std::span(it.results);
  }
  /// `: TYPE PURPOSE at PLACE, ...`, one item per result. Their names are in front of the op.
  void results(Ref<Op> it, const auto &names) {
    char separator = ':';
    for (size_t i = 0; i < names.size(); ++i) {
      ValueId id = Io::kReads ? kNone : it.results[i];
      if (!Io::kReads && id >= segment_->values.size())
        continue;
      io_.sign(separator);
      separator = ',';
      auto &&value = io_.valueOf(*segment_, id);
      io_.type(value.type);
      countedRows(value);
      io_.oneOf(value.purpose, parsePurpose, "purpose");
      if (io_.clause("at", value.place.placed))
        place(value.place);
      io_.set(value.def, segment_->ops.size());
      io_.set(value.defResult, i);
      io_.define(*segment_, names[i], value, id);
      io_.push(it.results, id);
    }
  }

  /// `rows %n`, or nothing if all rows are valid.
  void countedRows(Ref<Value> it) {
    if (io_.clause("rows", it.counts != kNone))
      io_.value(*segment_, it.counts);
  }

  Io &io_;
  Ref<Plan> plan_;
  MaybeConst<Segment> *segment_ = nullptr; ///< the current segment
};

} // namespace shardc::plan
