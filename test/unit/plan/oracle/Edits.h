// Building blocks for changes of plans: random places, and functions that add and remove ops and
// values.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "Positions.h"
#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

/// Randomly drawn edits of one segment of a role.
class Edits {
protected:
  Edits(Plan &plan, std::mt19937_64 &random) : plan_(plan), random_(random) {}

  size_t below(size_t n) { return n == 0 ? 0 : static_cast<size_t>(random_() % n); }
  /// A random group; -1 if the plan has none.
  int16_t someGroup() {
    return plan_.groups.empty() ? int16_t{-1} : static_cast<int16_t>(below(plan_.groups.size()));
  }
  /// Whether each rank of the role has the same index in both groups.
  bool hasSameIndices(int16_t group, int16_t other) const {
    auto role = static_cast<uint32_t>(role_ - plan_.roles.data());
    for (int64_t rank = 0; rank < plan_.worldSize(); ++rank)
      if (roleOf(plan_, rank) == role && indexOf(plan_, group, rank) != indexOf(plan_, other, rank))
        return false;
    return true;
  }
  template <typename T> T pick(const std::vector<T> &from) { return from[below(from.size())]; }

  template <typename Fn> std::vector<uint32_t> opsWhere(const Fn &fn) const {
    std::vector<uint32_t> found;
    for (uint32_t i = 0; i < segment_->ops.size(); ++i)
      if (fn(segment_->ops[i]))
        found.push_back(i);
    return found;
  }
  static bool isAlias(const Op &op) { return opInfo(op).traits == OpTraits::Alias; }
  static bool isCollective(const Op &op) { return opInfo(op).traits == OpTraits::Collective; }
  std::string at(uint32_t op, std::string_view what) const {
    return fmt::format("role {}, segment {}, op {}: {}", role_->name, segment_->name, op, what);
  }
  Op &op(uint32_t index) { return segment_->ops[index]; }
  Value &value(ValueId id) { return segment_->values[id]; }

  template <typename Fn> void renumber(const Fn &now) {
    for (Value &each : segment_->values)
      if (each.def != kNone)
        each.def = now(each.def);
    for (Op &each : segment_->ops)
      for (uint32_t &wait : each.waits)
        wait = now(wait);
  }

  void readInstead(ValueId from, ValueId to) {
    for (Op &each : segment_->ops) {
      std::replace(each.operands.begin(), each.operands.end(), from, to);
      for (Tie &tie : each.ties)
        if (tie.value == from)
          tie.value = to;
    }
    for (Segment::Boundary &out : segment_->outs)
      if (out.value == from)
        out.value = to;
  }

  void dropValues(const std::vector<ValueId> &gone) {
    std::vector<ValueId> now(segment_->values.size());
    std::vector<Value> kept;
    for (ValueId id = 0; id < segment_->values.size(); ++id) {
      now[id] = static_cast<ValueId>(kept.size());
      if (std::find(gone.begin(), gone.end(), id) == gone.end())
        kept.push_back(segment_->values[id]);
    }
    segment_->values = std::move(kept);
    for (Value &each : segment_->values)
      if (each.counts != kNone)
        each.counts = now[each.counts];
    for (Op &each : segment_->ops) {
      for (std::vector<ValueId> *ids : {&each.operands, &each.results})
        for (ValueId &id : *ids)
          id = now[id];
      for (Tie &tie : each.ties)
        tie.value = now[tie.value];
    }
    for (std::vector<Segment::Boundary> *boundaries : {&segment_->ins, &segment_->outs})
      for (Segment::Boundary &boundary : *boundaries)
        boundary.value = now[boundary.value];
  }

  void removeOp(uint32_t i) {
    for (Op &each : segment_->ops)
      std::erase(each.waits, i);
    dropValues(op(i).results);
    segment_->ops.erase(segment_->ops.begin() + i);
    renumber([i](uint32_t index) { return index > i ? index - 1 : index; });
  }

  Pred otherPred(Pred pred) {
    auto of = [](size_t kind) { return Pred{static_cast<Pred::Kind>(kind)}; };
    Pred other = of(below(5));
    return other == pred ? of((static_cast<size_t>(pred.kind) + 1) % 5) : other;
  }

  ValueId addValue(Type type, Place place, uint32_t def) {
    Value &added = segment_->values.emplace_back();
    added.name = fmt::format("mutation.{}", segment_->values.size());
    added.type = type, added.place = place, added.def = def;
    return static_cast<ValueId>(segment_->values.size() - 1);
  }

  /// Inserts an op with one result before op `index`, or at the end if that is the number of ops.
  Op &insertOp(uint32_t index, OpKind kind, Type type, Place place) {
    renumber([index](uint32_t i) { return i >= index ? i + 1 : i; });
    Op &added = *segment_->ops.emplace(segment_->ops.begin() + index);
    added.kind = kind;
    added.phase = segmentKindInfo(segment_->kind).phase;
    added.results = {addValue(type, place, index)};
    return added;
  }

  Plan &plan_;
  std::mt19937_64 &random_;
  Role *role_ = nullptr;
  Segment *segment_ = nullptr;
};

} // namespace shardc::plan::oracle
