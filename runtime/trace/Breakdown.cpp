#include "runtime/trace/Breakdown.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>

#include <fmt/format.h>

namespace shardc::trace {
namespace {

using Interval = std::pair<int64_t, int64_t>;

/// Minimum number of equal ops without overlap for a median.
constexpr size_t kEnoughLikes = 3;

/// "all_gather" of "micro: all_gather %W (a.recipe:3)".
std::string opOf(const Span &span) {
  size_t colon = span.label.find(": ");
  if (span.label.empty() || colon == std::string::npos)
    return "(no op)";
  size_t begin = colon + 2;
  return span.label.substr(begin, span.label.find(' ', begin) - begin);
}

bool isTransfer(const std::string &op) {
  return op == "all_gather" || op == "reduce_scatter" || op == "all_reduce";
}

/// Disjoint intervals in order that cover the same time.
std::vector<Interval> unite(std::vector<Interval> list) {
  std::sort(list.begin(), list.end());
  std::vector<Interval> out;
  for (const Interval &next : list)
    if (!out.empty() && next.first <= out.back().second)
      out.back().second = std::max(out.back().second, next.second);
    else
      out.push_back(next);
  return out;
}

int64_t lengthOf(const std::vector<Interval> &list) {
  int64_t total = 0;
  for (const Interval &interval : list)
    total += interval.second - interval.first;
  return total;
}

bool overlaps(const std::vector<Interval> &list, Interval span) {
  auto at = std::upper_bound(list.begin(), list.end(), Interval{span.first, INT64_MAX});
  if (at != list.begin() && std::prev(at)->second > span.first)
    return true;
  return at != list.end() && at->first < span.second;
}

/// The common key of an op in all layers: its text without layer numbers ("%l7.fc1",
/// "layers.7.mlp"; "fc1" keeps its own number), and its kernel.
std::string likeness(const Span &span) {
  std::string_view label = std::string_view(span.label).substr(0, span.label.find(" ("));
  std::string text;
  for (bool more = true; more;) {
    size_t dot = label.find('.');
    std::string_view part = label.substr(0, dot);
    size_t digits = std::min(part.find_last_not_of("0123456789") + 1, part.size());
    bool isLayer =
        digits == 0 || part.substr(0, digits) == "l" || part.substr(0, digits).ends_with("%l");
    text.append(isLayer ? part.substr(0, digits) : part).push_back('.');
    more = dot != std::string_view::npos;
    label.remove_prefix(more ? dot + 1 : label.size());
  }
  return text + '|' + span.work;
}

/// Nanoseconds.
struct Contention {
  int64_t lost = 0;    ///< time beyond the median of the same ops without overlap
  int64_t unknown = 0; ///< time of overlapped ops with too few equals without overlap
};

Contention contentionOf(const std::vector<const Span *> &spans,
                        const std::vector<Interval> &transfers) {
  struct Likes {
    std::vector<int64_t> alone, beside;
  };
  std::map<std::string, Likes> groups;
  for (const Span *span : spans) {
    Likes &likes = groups[likeness(*span)];
    bool beside = overlaps(transfers, {span->beginNs, span->endNs});
    (beside ? likes.beside : likes.alone).push_back(span->endNs - span->beginNs);
  }
  Contention result;
  for (auto &[name, likes] : groups) {
    if (likes.alone.size() < kEnoughLikes) {
      result.unknown += std::accumulate(likes.beside.begin(), likes.beside.end(), int64_t{0});
      continue;
    }
    auto middle = likes.alone.begin() + static_cast<std::ptrdiff_t>(likes.alone.size() / 2);
    std::nth_element(likes.alone.begin(), middle, likes.alone.end());
    for (int64_t length : likes.beside)
      result.lost += length - *middle;
  }
  return result;
}

} // namespace

Breakdown breakDown(const std::vector<Span> &spans, int rank, int steps) {
  Breakdown result;
  std::vector<Interval> transfers, others, all;
  std::vector<const Span *> computing;
  std::map<std::string, OpTime> byOp;
  auto ms = [&](int64_t ns) { return static_cast<double>(ns) / 1e6 / steps; };
  for (const Span &span : spans) {
    if (span.rank != rank)
      continue;
    std::string op = opOf(span);
    OpTime &time = byOp[op];
    time.op = op;
    ++time.count;
    time.ms += ms(span.endNs - span.beginNs);
    all.emplace_back(span.beginNs, span.endNs);
    (isTransfer(op) ? transfers : others).push_back(all.back());
    if (!isTransfer(op))
      computing.push_back(&span);
  }
  if (all.empty() || steps < 1)
    return result;
  transfers = unite(std::move(transfers));
  others = unite(std::move(others));
  all = unite(std::move(all));
  result.step = ms(all.back().second - all.front().first);
  result.computing = ms(lengthOf(others));
  result.exposed = ms(lengthOf(all) - lengthOf(others));
  result.gaps = result.step - ms(lengthOf(all));
  Contention contention = contentionOf(computing, transfers);
  result.contention = ms(contention.lost);
  result.uncompared = ms(contention.unknown);
  for (auto &[name, time] : byOp) {
    time.count /= steps;
    result.ops.push_back(time);
  }
  std::stable_sort(result.ops.begin(), result.ops.end(),
                   [](const OpTime &a, const OpTime &b) { return a.ms > b.ms; });
  return result;
}

std::string toText(const Breakdown &b) {
  std::string out = fmt::format("{:<20} {:>6} {:>10} {:>7}\n", "op", "pieces", "ms", "share");
  auto share = [&](double ms) { return b.step > 0 ? 100 * ms / b.step : 0; };
  for (const OpTime &time : b.ops)
    out += fmt::format("{:<20} {:>6} {:>10.3f} {:>6.2f}%\n", time.op, time.count, time.ms,
                       share(time.ms));
  auto line = [&](std::string_view name, double ms) {
    out += fmt::format("{:<27} {:>10.3f} {:>6.2f}%\n", name, ms, share(ms));
  };
  line("step", b.step);
  line("compute", b.computing);
  line("exposed communication", b.exposed);
  line("gaps", b.gaps);
  line("slowed down by overlap", b.contention);
  line("overlapped, no baseline", b.uncompared);
  return out;
}

} // namespace shardc::trace
