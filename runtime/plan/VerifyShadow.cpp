#include "runtime/plan/VerifyShadow.h"

namespace shardc::plan::verifier {

void Shadow::reset(const std::vector<int64_t> &boundaries, Arena arena, int64_t dp) {
  boundaries_ = &boundaries;
  arena_ = arena;
  dp_ = dp;
  states_.assign(boundaries.size(), State{});
}

uint32_t Shadow::writerOf(size_t first, size_t last) const {
  for (size_t i = first; i < last; ++i)
    if (!states_[i].isSkipped && states_[i].source != kInitial)
      return scope_.value(states_[i].source).def;
  return kNone;
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
    for (size_t s = 0; s < kStreamCount; ++s) {
      if (s == own)
        continue;
      if (state.readers[s] != kNone && !order_.ends(state.readers[s], access.op)) [[unlikely]]
        reportRace(access, i, state.readers[s]);
      if (state.writers[s] != kNone && !order_.ends(state.writers[s], access.op))
        state.conflict = state.writers[s];
    }
    state.writers[own] = access.op;
    state.source = access.source;
  }
}

ByteRange Shadow::bytesAt(size_t at) const {
  return {arena_, (*boundaries_)[at], (*boundaries_)[at + 1], dp_};
}

void Shadow::annotate(Finding *finding, const Access &, size_t at, uint32_t other,
                      std::string note) {
  if (finding == nullptr)
    return;
  finding->variant = variant_;
  finding->bytes = bytesAt(at);
  finding->note = std::move(note);
  finding->noteAt = scope_.spot(other);
}

void Shadow::reportRead(const Access &access, size_t at) {
  const State &state = states_[at];
  bool isEnd = access.op >= scope_.segment.ops.size();
  uint32_t op = isEnd ? scope_.opOf(access.value) : access.op;
  std::string what = isEnd ? fmt::format("the segment leaves '%{}' in {}",
                                         scope_.nameOf(access.value), toString(bytesAt(at)))
                           : fmt::format("the op reads '%{}' from {}", scope_.nameOf(access.value),
                                         toString(bytesAt(at)));
  if (state.source == access.source) {
    annotate(scope_.addValue(Rule::Race, op, access.value,
                             "{}, which another op writes at any time", what),
             access, at, state.conflict,
             "nothing orders this write and the one of the value that is read");
  } else if (state.source == kInitial) {
    annotate(scope_.addValue(Rule::ReadsFrom, op, access.value,
                             "{}, where nothing has been written since the segment's start", what),
             access, at, kNone, "");
  } else {
    annotate(scope_.addValue(Rule::ReadsFrom, op, access.value, "{}, which by then hold '%{}'",
                             what, scope_.nameOf(state.source)),
             access, at, scope_.value(state.source).def,
             fmt::format("'%{}' is written over it here", scope_.nameOf(state.source)));
  }
}

void Shadow::reportRace(const Access &access, size_t at, uint32_t reader) {
  annotate(scope_.addValue(Rule::Race, access.op, access.value,
                           "the op writes '%{}' to {} without waiting for an op that reads there",
                           scope_.nameOf(access.value), toString(bytesAt(at))),
           access, at, reader, "these bytes are read here");
}

void Shadow::reportOverlap(const Access &access, size_t at) {
  annotate(scope_.addValue(Rule::Overlap, access.op, access.value,
                           "the op's result '%{}' in {} overlaps an operand or result of the same "
                           "op that it does not "
                           "take over",
                           scope_.nameOf(access.value), toString(bytesAt(at))),
           access, at, kNone, "");
}

} // namespace shardc::plan::verifier
