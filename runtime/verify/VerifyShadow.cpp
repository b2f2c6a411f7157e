// Compares each read with the latest write, and each write with the readers and writers that are
// not ordered with it.
#include "runtime/verify/VerifyShadow.h"

#include <utility>

namespace shardc::plan::verifier {

/// The cost of describing a wrong content that a read finds, in counted visits.
constexpr uint64_t kVisitsOfFinding = 256;

void Shadow::reset(const std::vector<int64_t> &boundaries, Arena arena, int64_t member) {
  boundaries_ = &boundaries;
  arena_ = arena;
  member_ = member;
  states_.assign(boundaries.size(), State{});
}

std::optional<Shadow::Written> Shadow::findWritten(size_t first, size_t last) const {
  if (!scope_.inspection.spend(last - first))
    return std::nullopt;
  auto isWritten = [&](size_t i) { return !states_[i].isSkipped && states_[i].source != kInitial; };
  while (first < last && !isWritten(first))
    ++first;
  if (first == last)
    return std::nullopt;
  Written written{scope_.value(states_[first].source).def, bytesAt(first)};
  for (size_t i = first; i < last && isWritten(i) && states_[i].source == states_[first].source;
       ++i)
    written.bytes.end = bytesAt(i).end;
  return written;
}

void Shadow::read(const Access &access, size_t first, size_t last) {
  bool isEnd = access.op >= scope_.segment.ops.size();
  size_t stream = isEnd ? 0 : order_.stream(access.op);
  for (size_t i = first; i < last; ++i) {
    State &state = states_[i];
    if (state.isSkipped)
      continue;
    if (state.source != access.source || state.conflict != kNone) [[unlikely]]
      reportRead(access, i);
    if (isEnd)
      continue;
    state.readers[stream] = access.op;
    state.streams |= static_cast<uint8_t>(1u << stream);
    if (access.kind == Access::Read)
      state.operandOf = access.op;
  }
}

void Shadow::write(const Access &access, size_t first, size_t last) {
  size_t own = order_.stream(access.op);
  for (size_t i = first; i < last; ++i) {
    State &state = states_[i];
    if (state.isSkipped)
      continue;
    if (state.operandOf == access.op) [[unlikely]]
      reportOverlap(access, i);
    state.operandOf = access.op;
    state.conflict = kNone;
    bool isAlone = (state.streams & ~(1u << own)) == 0; // no other stream, as nearly always
    for (size_t s = 0; s < kStreamsMax && !isAlone; ++s) {
      if (s == own)
        continue;
      if (state.readers[s] != kNone && !order_.ends(state.readers[s], access.op)) [[unlikely]]
        reportRace(access, i, state.readers[s]);
      if (state.writers[s] != kNone && !order_.ends(state.writers[s], access.op))
        state.conflict = state.writers[s];
    }
    state.writers[own] = access.op;
    state.streams |= static_cast<uint8_t>(1u << own);
    state.source = access.source;
  }
}

ByteRange Shadow::bytesAt(size_t at) const {
  return {arena_, (*boundaries_)[at], (*boundaries_)[at + 1], member_};
}

Finding Shadow::badRead(const Access &access, size_t at) const {
  const State &state = states_[at];
  bool isEnd = access.op >= scope_.segment.ops.size();
  std::string what =
      fmt::format("{} '%{}' {} {}", isEnd ? "the segment leaves" : "the op reads",
                  scope_.nameOf(access.value), isEnd ? "in" : "from", toString(bytesAt(at)));
  Finding finding;
  finding.at = scope_.spot(isEnd ? scope_.opOf(access.value) : access.op);
  finding.value = scope_.nameOf(access.value);
  finding.variant = variant_;
  finding.rule = state.source == access.source ? Rule::Race : Rule::ReadsFrom;
  uint32_t other = kNone;
  if (state.source == access.source) {
    finding.message = fmt::format("{}, which another op may write at the same time", what);
    finding.note = "nothing orders this write and the write of the value that is read";
    other = state.conflict;
  } else if (state.source == kInitial) {
    finding.message =
        fmt::format("{}, where nothing has been written since the segment started", what);
  } else {
    finding.message =
        fmt::format("{}, which by then hold '%{}'", what, scope_.nameOf(state.source));
    finding.note = fmt::format("'%{}' overwrites it here", scope_.nameOf(state.source));
    other = scope_.value(state.source).def;
  }
  finding.noteAt = scope_.spot(other);
  // If a content only passes through the segment and no op reads it, the message can name only the
  // op that corrupts it.
  if (isEnd && finding.at.op == kNone && other != kNone) {
    finding.at = std::exchange(finding.noteAt, {});
    finding.note.clear();
  }
  return finding;
}

void Shadow::reportRead(const Access &access, size_t at) {
  auto end = static_cast<uint32_t>(scope_.segment.ops.size());
  if (access.op >= end && corrupted_.contains(access.op - end))
    return;
  if (!scope_.inspection.spend(kVisitsOfFinding))
    return;
  if (access.op >= end)
    corrupted_.emplace(access.op - end, badRead(access, at));
  else
    scope_.inspection.add(badRead(access, at));
}

void Shadow::reportRace(const Access &access, size_t at, uint32_t reader) {
  Finding &finding =
      scope_.addValue(finding::WritesTooEarly, access.op, access.value, toString(bytesAt(at)));
  finding.variant = variant_;
  note(finding, "these bytes are read here", scope_.spot(reader));
}

void Shadow::reportOverlap(const Access &access, size_t at) {
  scope_.addValue(finding::ResultOverlaps, access.op, access.value, toString(bytesAt(at))).variant =
      variant_;
}

} // namespace shardc::plan::verifier
