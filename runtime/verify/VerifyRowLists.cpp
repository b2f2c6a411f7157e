// Implements the operations on row lists range by range, without listing single rows.
#include "runtime/verify/VerifyRowLists.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace shardc::plan::verifier {

int64_t countOf(const RowList &rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0},
                         [](int64_t sum, const RowRange &range) { return sum + range.count; });
}

void append(RowList &rows, const RowRange &more) {
  if (!rows.empty() && rows.back().first + rows.back().count == more.first &&
      rows.back().slice == more.slice && rows.back().column == more.column)
    rows.back().count += more.count;
  else
    rows.push_back(more);
}

std::optional<RowList> moved(const RowList &rows, Whose whose, int64_t from, int64_t to) {
  RowList changed;
  for (RowRange range : rows) {
    RowRange wanted{range.first, range.count};
    wanted.*whose = from;
    if (range != wanted)
      return std::nullopt;
    range.*whose = to;
    append(changed, range);
  }
  return changed;
}

std::optional<RowList> slice(const RowList &rows, int64_t first, int64_t count) {
  RowList taken;
  for (RowRange range : rows) {
    int64_t skipped = std::clamp<int64_t>(first, 0, range.count);
    first -= skipped;
    range.first += skipped;
    range.count = std::min(range.count - skipped, count);
    count -= range.count;
    if (range.count > 0)
      append(taken, range);
  }
  return first == 0 && count == 0 ? std::optional(taken) : std::nullopt;
}

std::string toString(const RowList &rows) {
  std::string text;
  for (const RowRange &range : rows)
    text += fmt::format("{}{} to {}{}{}", text.empty() ? "" : ", ", range.first,
                        range.first + range.count - 1,
                        range.slice == kOwn ? "" : fmt::format(" of slice {}", range.slice),
                        range.column == kOwn ? "" : fmt::format(" of part {}", range.column));
  return text;
}

std::optional<RowList> partOf(const RowList &rows, int64_t i, int64_t parts) {
  int64_t count = countOf(rows);
  if (parts > kMembersMax || count < parts || count % parts != 0)
    return std::nullopt;
  return slice(rows, i * (count / parts), count / parts);
}

std::optional<RowList> ofEach(const RowList &rows, int64_t members, Whose whose) {
  if (isTooLong(rows, members))
    return std::nullopt;
  RowList whole;
  for (int64_t i = 0; i < members; ++i) {
    std::optional<RowList> part = moved(rows, whose, kOwn, i);
    if (!part)
      return std::nullopt;
    for (const RowRange &range : *part)
      append(whole, range);
  }
  return whole;
}
std::optional<RowList> ofOwn(const RowList &rows, int64_t members, Whose whose) {
  std::optional<RowList> own;
  for (int64_t i = 0; i < members; ++i) {
    std::optional<RowList> part = partOf(rows, i, members);
    part = part ? moved(*part, whose, i, kOwn) : std::nullopt;
    if (!part || (own && *own != *part))
      return std::nullopt;
    own = std::move(part);
  }
  return own;
}

std::optional<RowList> exchanged(const RowList &rows, int64_t members) {
  bool isOfSlices = !rows.empty() && rows.front().slice != kOwn;
  Whose from = isOfSlices ? &RowRange::slice : &RowRange::column,
        to = isOfSlices ? &RowRange::column : &RowRange::slice;
  std::optional<RowList> own = ofOwn(rows, members, from);
  return own && !own->empty() ? ofEach(*own, members, to) : std::nullopt;
}

/// The position of the k-th chunk of all sequences among the members' slices [member, sample,
/// half].
static int64_t inSlices(int64_t k, int64_t samples, int64_t members) {
  int64_t sample = k / (2 * members), chunk = k % (2 * members);
  int64_t half = chunk < members ? 0 : 1;
  int64_t member = half == 0 ? chunk : 2 * members - 1 - chunk;
  return (member * samples + sample) * 2 + half;
}
/// The position of the k-th half of the slices among the chunks of all sequences.
static int64_t inSequences(int64_t k, int64_t samples, int64_t members) {
  int64_t half = k % 2, sample = k / 2 % samples, member = k / 2 / samples;
  return sample * 2 * members + (half == 0 ? member : 2 * members - 1 - member);
}

std::optional<RowList> merged(const RowList &rows, int64_t samples, int64_t members,
                              bool isInverse) {
  int64_t chunks = 2 * members * samples, size = countOf(rows) / std::max<int64_t>(chunks, 1);
  if (size == 0 || countOf(rows) % chunks != 0 || isTooLong(rows, chunks))
    return std::nullopt;
  RowList result;
  for (int64_t k = 0; k < chunks; ++k) {
    int64_t from = isInverse ? inSequences(k, samples, members) : inSlices(k, samples, members);
    std::optional<RowList> chunk = slice(rows, from * size, size);
    for (const RowRange &range : *chunk)
      append(result, range);
  }
  return result;
}

} // namespace shardc::plan::verifier
