#include "runtime/trace/Breakdown.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "runtime/plan/Text.h"

namespace shardc::trace {
namespace {

using Interval = std::pair<int64_t, int64_t>;

/// Minimum number of alike ops without overlap for a median.
constexpr size_t kEnoughLikes = 3;

/// Returns disjoint intervals in ascending order that cover the same time.
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

/// A span with its op; null if it has none.
struct Work {
  const Span *span;
  const TracedOp *op;
};

/// In nanoseconds.
struct Contention {
  int64_t lost = 0;    ///< time beyond the median of alike ops without overlap
  int64_t unknown = 0; ///< time of overlapped ops with too few alike ops
};

/// Compares work that ran beside a transfer with the median time of like work that ran alone. Time
/// without enough like work to compare with counts as unknown.
Contention contentionOf(const std::vector<Work> &computing,
                        const std::vector<Interval> &transfers) {
  struct Likes {
    std::vector<int64_t> alone, beside;
  };
  std::map<std::pair<int64_t, std::string_view>, Likes> groups; // by op and kernel
  for (const auto &[span, op] : computing) {
    Likes &likes = groups[{op != nullptr ? op->likes : -1, span->work}];
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

std::string nameOf(const TracedOp *op) { return std::string(op != nullptr ? op->op : "(no op)"); }

/// Divides the time in which something computes among ops. Where several run at the same time, it
/// belongs to the one that began first.
std::map<std::string, int64_t> ownTimes(std::vector<Work> computing) {
  std::sort(computing.begin(), computing.end(),
            [](const Work &a, const Work &b) { return a.span->beginNs < b.span->beginNs; });
  std::map<std::string, int64_t> times;
  int64_t covered = INT64_MIN;
  for (const auto &[span, op] : computing) {
    times[nameOf(op)] += std::max<int64_t>(span->endNs - std::max(span->beginNs, covered), 0);
    covered = std::max(covered, span->endNs);
  }
  return times;
}

constexpr const char *kTableHead = "op                   pieces         ms   share\n";

/// Returns a text that is equal for ops of a segment that do the same: the kind, the attributes
/// except the block that they work on and their place in the model, and the types of their operands
/// and results.
std::string likenessOf(const plan::Segment &segment, const plan::Op &op) {
  std::string text = fmt::format("{} {}", plan::opInfo(op).name, op.isRecomputed);
  for (const plan::Attr &attr : op.attrs)
    if (attr.key != plan::AttrKey::block && attr.key != plan::AttrKey::salt)
      text += fmt::format(" {}={}", static_cast<int>(attr.key), attr.i);
  for (const std::vector<plan::ValueId> *values : {&op.operands, &op.results})
    for (plan::ValueId value : *values)
      text += fmt::format(" {}", plan::printType(segment.values[value].type));
  return text + fmt::format(" {}", op.ties.size());
}

} // namespace

/// Numbers the kinds of alike ops of a segment consecutively, from the number of ops before it.
/// Numbers of different segments therefore differ.
TracedOps tracedOps(const plan::Plan &plan) {
  TracedOps ops;
  for (const plan::Role &role : plan.roles)
    for (const plan::Segment &segment : role.segments) {
      std::unordered_map<std::string, uint32_t> numbers;
      auto first = static_cast<uint32_t>(ops.size());
      std::vector<std::string> labels = plan::opLabels(plan, segment);
      for (size_t i = 0; i < segment.ops.size(); ++i) {
        const plan::Op &op = segment.ops[i];
        uint32_t likes =
            numbers
                .try_emplace(likenessOf(segment, op), first + static_cast<uint32_t>(numbers.size()))
                .first->second;
        const plan::OpInfo &info = plan::opInfo(op);
        ops.try_emplace(labels[i],
                        TracedOp{info.name, info.traits == plan::OpTraits::Collective, likes});
      }
    }
  return ops;
}

/// Transfers and other work are sets of intervals. Communication is exposed where a transfer runs,
/// but no other work; a gap is time in which nothing runs. All times are per step.
Breakdown breakDown(const std::vector<Span> &spans, int rank, int steps, const TracedOps &ops) {
  Breakdown result;
  std::vector<Interval> transfers, others, all;
  std::vector<Work> computing;
  std::map<std::string, OpTime> byOp;
  auto ms = [&](int64_t ns) { return static_cast<double>(ns) / 1e6 / steps; };
  for (const Span &span : spans) {
    if (span.rank != rank)
      continue;
    auto found = ops.find(span.label);
    const TracedOp *op = found == ops.end() ? nullptr : &found->second;
    std::string name = nameOf(op);
    OpTime &time = byOp[name];
    time.op = name;
    ++time.count;
    time.ms += ms(span.endNs - span.beginNs);
    all.emplace_back(span.beginNs, span.endNs);
    bool isTransfer = op != nullptr && op->isTransfer;
    (isTransfer ? transfers : others).push_back(all.back());
    if (!isTransfer)
      computing.push_back({&span, op});
  }
  if (all.empty() || steps < 1)
    return result;
  for (const auto &[op, ns] : ownTimes(computing))
    byOp[op].ownMs = ms(ns);
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
  std::string out = kTableHead;
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

/// Prints the ops with the largest own times. The rest is one row, unless it is a single op, which
/// has a row anyway.
std::string toSummary(const Breakdown &b) {
  constexpr size_t kOpRows = 7; // plus three rows for the rest
  std::vector<OpTime> ops = b.ops;
  std::erase_if(ops, [](const OpTime &op) { return op.ownMs == 0; });
  std::stable_sort(ops.begin(), ops.end(),
                   [](const OpTime &x, const OpTime &y) { return x.ownMs > y.ownMs; });
  OpTime rest;
  size_t shown = ops.size() <= kOpRows + 1 ? ops.size() : kOpRows;
  for (size_t i = shown; i < ops.size(); ++i) {
    rest.count += ops[i].count;
    rest.ownMs += ops[i].ownMs;
  }
  rest.op = fmt::format("{} other ops", ops.size() - shown);
  ops.resize(shown);
  if (rest.count > 0)
    ops.push_back(rest);
  std::string out = kTableHead;
  auto share = [&](double ms) { return b.step > 0 ? 100 * ms / b.step : 0; };
  for (const OpTime &op : ops)
    out += fmt::format("{:<20} {:>6} {:>10.3f} {:>6.2f}%\n", op.op, op.count, op.ownMs,
                       share(op.ownMs));
  auto line = [&](std::string_view name, double ms) {
    out += fmt::format("{:<27} {:>10.3f} {:>6.2f}%\n", name, ms, share(ms));
  };
  line("exposed communication", b.exposed);
  line("gaps", b.gaps);
  line("step", b.step);
  return out;
}

} // namespace shardc::trace
