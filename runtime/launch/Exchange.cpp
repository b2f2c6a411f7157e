#include "runtime/launch/Exchange.h"

#include <algorithm>

namespace shardc::launch {
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

/// Adds a rank's part to its group, and creates the group for the first part. The key of a group
/// has the text, the fold and the members, so exchanges of different groups do not disturb each
/// other. False if the rank is not a member, or already waits in an exchange.
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

/// Whether the exchange waits for the rank, directly or through members that wait in other
/// exchanges.
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

/// Follows exchanges as long as one waits for a rank that is in another one. There is no cycle,
/// since findOther detects one when the last rank of it joins.
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
