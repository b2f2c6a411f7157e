#include "runtime/launch/Exchange.h"

#include <algorithm>

namespace shardc::launch {
namespace {

/// Members at equal distances. A group of a mesh consists of few such runs.
struct Run {
  int64_t first, step, count;
};

std::vector<Run> runsOf(const std::vector<int> &members) {
  std::vector<Run> runs;
  for (int64_t member : members) {
    Run *last = runs.empty() ? nullptr : &runs.back();
    if (last && last->count == 1)
      last->step = member - last->first;
    if (last && member == last->first + last->count * last->step && last->step != 0)
      ++last->count;
    else
      runs.push_back({member, 0, 1});
  }
  return runs;
}

} // namespace

void packRanks(Packer &packer, const std::vector<int> &list) {
  std::vector<Run> runs = runsOf(list);
  packer.number(runs.size());
  for (const Run &run : runs)
    packer.number(static_cast<uint64_t>(run.first))
        .number(static_cast<uint64_t>(run.step))
        .number(static_cast<uint64_t>(run.count));
}

std::optional<std::vector<int>> unpackRanks(Unpacker &in, int64_t ranks) {
  auto most = static_cast<uint64_t>(ranks);
  std::vector<bool> isThere(static_cast<size_t>(ranks));
  std::vector<int> list;
  for (uint64_t left = in.bounded(most); left > 0; --left) {
    auto first = static_cast<int64_t>(in.bounded(most));
    auto step = static_cast<int64_t>(in.number());
    auto count = static_cast<int64_t>(in.bounded(most));
    if (in.hasFailed() || step <= -ranks || step >= ranks)
      return std::nullopt;
    for (int64_t member = first; count > 0; --count, member += step) {
      if (member < 0 || member >= ranks || isThere[static_cast<size_t>(member)])
        return std::nullopt;
      isThere[static_cast<size_t>(member)] = true;
      list.push_back(static_cast<int>(member));
    }
  }
  return in.hasFailed() ? std::nullopt : std::optional(std::move(list));
}

std::string GatherPart::pack() const {
  Packer packer;
  packer.text(key).number(static_cast<uint64_t>(fold));
  packRanks(packer, members);
  return packer.text(bytes).take();
}

std::optional<GatherPart> GatherPart::unpack(std::string_view body, int64_t ranks) {
  Unpacker in(body);
  GatherPart part;
  part.key = in.text();
  part.fold =
      static_cast<hal::Peers::Fold>(in.bounded(static_cast<uint64_t>(hal::Peers::Fold::kLast)));
  std::optional<std::vector<int>> members = unpackRanks(in, ranks);
  part.bytes = in.text();
  if (!members || !in.isComplete() || part.bytes.size() > kBlobBytesMax)
    return std::nullopt;
  part.members = std::move(*members);
  return part;
}

int64_t Exchange::Group::memberAt(size_t index) const {
  const std::vector<int> &members = std::get<2>(key);
  return members.empty() ? static_cast<int64_t>(index) : members[index];
}

size_t Exchange::Group::indexOf(int64_t rank) const {
  const std::vector<int> &members = std::get<2>(key);
  return members.empty() ? static_cast<size_t>(rank)
                         : static_cast<size_t>(std::ranges::find(members, rank) - members.begin());
}

size_t Exchange::Group::firstCome() const {
  size_t first = since.size();
  for (size_t i = 0; i < since.size(); ++i)
    if (!isMissing(i) && (first == since.size() || since[i] < since[first]))
      first = i;
  return first;
}

bool Exchange::add(int64_t rank, std::string_view body, double now) {
  std::optional<GatherPart> part = GatherPart::unpack(body, std::ssize(inside_));
  return part && add(rank, std::move(*part), now);
}

bool Exchange::add(int64_t rank, GatherPart part, double now) {
  bool isMember =
      part.members.empty() || std::ranges::find(part.members, rank) != part.members.end();
  if (!isMember || isInside(rank))
    return false;
  Key key = {std::move(part.key), part.fold, std::move(part.members)};
  std::shared_ptr<Group> &group = groups_[key];
  if (!group) {
    const std::vector<int> &members = std::get<2>(key);
    group = std::make_shared<Group>();
    group->left = members.empty() ? inside_.size() : members.size();
    group->parts.resize(group->left);
    group->since.assign(group->left, -1);
    group->key = std::move(key);
    for (size_t i = 0; i < group->left; ++i)
      ++awaited_[static_cast<size_t>(group->memberAt(i))];
  }
  size_t index = group->indexOf(rank);
  group->parts[index] = std::move(part.bytes);
  group->since[index] = now;
  --group->left;
  --awaited_[static_cast<size_t>(rank)];
  inside_[static_cast<size_t>(rank)] = group;
  return true;
}

std::optional<Exchange::Done> Exchange::take(int64_t rank) {
  std::shared_ptr<Group> group = inside_[static_cast<size_t>(rank)];
  if (!group || group->left > 0)
    return std::nullopt;
  Done done;
  for (size_t i = 0; i < group->since.size(); ++i) {
    done.members.push_back(static_cast<int>(group->memberAt(i)));
    inside_[static_cast<size_t>(done.members.back())].reset();
  }
  Packer all;
  for (const std::string &part :
       hal::Peers::folded(std::move(group->parts), std::get<1>(group->key)))
    all.text(part);
  done.body = all.take();
  groups_.erase(group->key);
  return done;
}

/// Whether the exchange waits for the rank, by way of members that are in other exchanges.
bool Exchange::leadsTo(const Group *from, int64_t rank, std::vector<const Group *> &seen) const {
  seen.push_back(from);
  if (size_t index = from->indexOf(rank); index < from->since.size() && from->isMissing(index))
    return true;
  for (size_t i = 0; i < from->since.size(); ++i) {
    const Group *next =
        from->isMissing(i) ? inside_[static_cast<size_t>(from->memberAt(i))].get() : nullptr;
    if (next && std::ranges::find(seen, next) == seen.end() && leadsTo(next, rank, seen))
      return true;
  }
  return false;
}

std::optional<int64_t> Exchange::findOther(int64_t rank) const {
  const Group *own = inside_[static_cast<size_t>(rank)].get();
  if (!own || awaited_[static_cast<size_t>(rank)] == 0)
    return std::nullopt;
  std::vector<const Group *> seen = {own};
  for (size_t i = 0; i < own->since.size(); ++i) {
    int64_t member = own->memberAt(i);
    const Group *next = own->isMissing(i) ? inside_[static_cast<size_t>(member)].get() : nullptr;
    if (next && std::ranges::find(seen, next) == seen.end() && leadsTo(next, rank, seen))
      return member;
  }
  return std::nullopt;
}

const std::string &Exchange::nameOf(int64_t rank) const {
  return std::get<0>(inside_[static_cast<size_t>(rank)]->key);
}

/// From exchange to exchange, as long as one waits for a rank that is in another one. They do not
/// go in a circle: findOther has seen it when the last of them came.
std::optional<Exchange::Wait> Exchange::longestWait() const {
  const Group *group = nullptr;
  double since = 0;
  for (const auto &[key, each] : groups_)
    if (double begin = each->since[each->firstCome()]; !group || begin < since) {
      group = each.get();
      since = begin;
    }
  if (!group)
    return std::nullopt;
  auto nextOf = [this](const Group &from) -> const Group * {
    for (size_t i = 0; i < from.since.size(); ++i)
      if (from.isMissing(i))
        if (const Group *next = inside_[static_cast<size_t>(from.memberAt(i))].get())
          return next;
    return nullptr;
  };
  for (size_t steps = groups_.size(); steps > 0; --steps)
    if (const Group *next = nextOf(*group))
      group = next;
  Wait wait = {group->memberAt(group->firstCome()), std::get<0>(group->key), since, {}};
  for (size_t i = 0; i < group->since.size(); ++i)
    if (group->isMissing(i))
      wait.missing.push_back(group->memberAt(i));
  std::ranges::sort(wait.missing);
  return wait;
}

} // namespace shardc::launch
