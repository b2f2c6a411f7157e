// Writes what a run finds as words with microbatches by their places in order, so that runs that
// do the same have the same words.
#include "runtime/verify/VerifySumRuns.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace shardc::plan::verifier {
namespace {

/// Known runs of a segment; programs of the compiler need three or four.
constexpr size_t kRunsKnown = 16;

} // namespace

RunStart::RunStart(uint64_t context, const Variant &variant, const Holds &taken,
                   const std::vector<int64_t> &about) {
  auto add = [&](int64_t number) {
    auto at = std::ranges::lower_bound(numbers_, number);
    if (at == numbers_.end() || *at != number)
      numbers_.insert(at, number);
  };
  for (int64_t microbatch : about)
    add(microbatch), add(microbatch + 1);
  for (const Held &held : taken)
    if (held.mark.cover.kind == Cover::Some)
      add(held.mark.cover.begin), add(held.mark.cover.end);
  words_ = {context, static_cast<uint64_t>(variant.microbatch),
            static_cast<uint64_t>(variant.count)};
  words_.reserve(words_.size() + about.size() + 3 * taken.size());
  for (int64_t microbatch : about)
    words_.push_back(static_cast<uint64_t>(placeOf(microbatch)));
  for (const Held &held : taken) {
    Mark mark = ordered(held.mark);
    static_assert(sizeof(Axes) == 2, "three sets of axes take 48 bits");
    words_.push_back(mark.varies | uint64_t{mark.split} << 16 | uint64_t{mark.due} << 32 |
                     static_cast<uint64_t>(mark.cover.kind) << 48 |
                     static_cast<uint64_t>(mark.phase) << 52 |
                     static_cast<uint64_t>(mark.evaluation) << 54);
    words_.push_back(static_cast<uint32_t>(mark.block) |
                     uint64_t{std::bit_cast<uint32_t>(mark.multiple)} << 32);
    words_.push_back(static_cast<uint64_t>(mark.cover.begin) << 32 |
                     static_cast<uint64_t>(mark.cover.end));
  }
}

int64_t RunStart::placeOf(int64_t number) const {
  return std::ranges::lower_bound(numbers_, number) - numbers_.begin();
}

Mark RunStart::ordered(Mark mark) const {
  if (mark.cover.kind == Cover::Some)
    mark.cover = {Cover::Some, placeOf(mark.cover.begin), placeOf(mark.cover.end)};
  return mark;
}

Mark RunStart::numbered(Mark mark) const {
  auto numberAt = [&](int64_t place) { return numbers_[static_cast<size_t>(place)]; };
  if (mark.cover.kind == Cover::Some)
    mark.cover = {Cover::Some, numberAt(mark.cover.begin), numberAt(mark.cover.end)};
  return mark;
}

std::shared_ptr<const KnownRun> KnownRuns::find(uint32_t segment, const RunStart &start) const {
  for (const std::shared_ptr<const KnownRun> &run : runs_[segment])
    if (run->start.doesAs(start))
      return run;
  return nullptr;
}

void KnownRuns::keep(uint32_t segment, std::shared_ptr<const KnownRun> run) {
  if (runs_[segment].size() == kRunsKnown)
    runs_[segment].clear();
  runs_[segment].push_back(std::move(run));
}

uint64_t standInFor(size_t boundary) { return mixed(0x7461'6b65'6e20'6174u, boundary); }

} // namespace shardc::plan::verifier
