// Checks that the collectives of different roles match and never deadlock. Ranks of one role issue
// the same ops. If each channel has one order of collectives (checked for each segment), these
// ranks never deadlock among themselves: of all pending ops, the one issued first is ready on every
// rank. Roles that share groups must issue the same collectives in the same order and must not wait
// for each other in a cycle. So this check simulates the programs of all roles, each as one actor
// that issues its shared collectives. Collectives of 'start' must match within it, since a run that
// loads a checkpoint does not execute it. Those of a step must match within that step. They depend
// only on which `every` nodes are due, so one step represents all steps in which the same nodes are
// due.
#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "runtime/plan/Coordinates.h"
#include "runtime/plan/Factors.h"
#include "runtime/verify/VerifyImpl.h"
#include "runtime/verify/VerifyShadow.h"
#include "runtime/verify/VerifyWalk.h"

namespace shardc::plan::verifier {
namespace {

/// The costs of finding whether two roles share a channel, and of a segment's run, in counted
/// visits.
constexpr uint64_t kVisitsOfPair = 64, kVisitsOfRun = 128;

/// Which roles meet in each group and on each channel. Refers to the inspection and its plan.
class RoleMembers {
public:
  explicit RoleMembers(Inspection &inspection) : report_(inspection), plan_(inspection.plan()) {
    for (const Role &role : plan_.roles)
      indices_.emplace_back(plan_, role);
  }

  /// Whether the role has exactly one of the two ranks of a pair channel.
  bool isOfPair(uint32_t role, const Channel &channel) const {
    IndexRange own = indices_[role].of(channel.group);
    return own.isSole() && (own.first == channel.pair[0] || own.first == channel.pair[1]);
  }
  /// The indices that ranks of the role have in each group.
  const Indices &indices(uint32_t role) const { return indices_[role]; }

  /// Computes what the functions below return. Call it once, before them.
  void find() {
    for (int16_t group = 0; group < static_cast<int16_t>(plan_.groups.size()); ++group) {
      ofGroup_.push_back(membersOf(group, std::vector<bool>(plan_.roles.size(), true)));
      isShared_.push_back(std::ranges::any_of(
          ofGroup_.back(), [](const std::vector<uint32_t> &roles) { return roles.size() > 1; }));
      isAnyShared_ = isAnyShared_ || isShared_.back();
    }
    for (const Channel &channel : plan_.channels) {
      std::vector<bool> isOne;
      for (uint32_t r = 0; r < plan_.roles.size(); ++r)
        isOne.push_back(channel.isPair() && isOfPair(r, channel));
      ofPair_.push_back(membersOf(channel.group, isOne));
      isAnyShared_ = isAnyShared_ || channel.isPair();
    }
  }
  /// By group: whether ranks of several roles are members of one instance of it.
  const std::vector<bool> &isShared() const { return isShared_; }
  /// Whether isShared() holds for some group.
  bool isAnyShared() const { return isAnyShared_; }
  /// The roles, this one included, that have members in common with this role on the channel, or on
  /// the group if no channel is chosen yet. Empty if the role has no rank of a pair channel.
  const std::vector<uint32_t> &of(int16_t group, ChannelId channel, uint32_t role) const {
    bool isOfPair = channel >= 0 && channelAt(plan_, channel).isPair();
    return isOfPair ? ofPair_[static_cast<size_t>(channel)][role]
                    : ofGroup_[static_cast<size_t>(group)][role];
  }

private:
  /// For each role marked in `isOne`, all marked roles that share an instance of the group with it,
  /// directly or through other roles.
  std::vector<std::vector<uint32_t>> membersOf(int16_t group, const std::vector<bool> &isOne) {
    std::vector<std::vector<uint32_t>> members(plan_.roles.size());
    for (uint32_t first = 0; first < plan_.roles.size(); ++first) {
      if (!isOne[first] || !members[first].empty())
        continue;
      std::set<uint32_t> all = {first};
      std::vector<uint32_t> fresh = {first};
      while (!fresh.empty() && report_.spend(plan_.roles.size() * kVisitsOfPair)) {
        uint32_t a = fresh.back();
        fresh.pop_back();
        for (uint32_t b = 0; b < plan_.roles.size(); ++b)
          if (isOne[b] && !all.contains(b) &&
              haveRanksInCommon(plan_, plan_.roles[a], plan_.roles[b], group)) {
            all.insert(b);
            fresh.push_back(b);
          }
      }
      for (uint32_t role : all)
        members[role].assign(all.begin(), all.end());
    }
    return members;
  }

  Inspection &report_;
  const Plan &plan_;
  std::vector<Indices> indices_; ///< per role
  std::vector<bool> isShared_;
  bool isAnyShared_ = false;
  std::vector<std::vector<std::vector<uint32_t>>> ofGroup_; ///< per group and role
  std::vector<std::vector<std::vector<uint32_t>>> ofPair_;  ///< per channel and role
};

/// A communicator: its channel, or its group before channels are chosen.
using Queue = std::pair<int16_t, ChannelId>;

/// One run of a segment. Its shared collectives are those of sharedOf().
struct Instance {
  uint32_t segment;
  Variant variant;
};

using Instances = std::vector<Instance>;

/// A role that executes its program in parts: 'start', the part before a loop of steps, each of the
/// loop's distinct steps, and the part after it.
class Actor : ProgramWalk<Actor, Instances, Walk::EachTurn> {
  friend ProgramWalk;

public:
  Actor(Inspection &inspection, uint32_t roleIndex, const std::vector<bool> &isShared)
      : ProgramWalk(inspection, roleIndex), isShared_(isShared) {
    for (const ProgramNode &node : role_.program)
      if (node.kind == ProgramNode::Start)
        apply(node.segment, Variant::Only, instances_);
    partEnds_.push_back(instances_.size());
    walk(role_.program, instances_);
    partEnds_.push_back(instances_.size());
    enter();
  }

  uint32_t roleIndex() const { return roleIndex_; }
  /// Whether the role has completed all runs of the current part.
  bool isDone() const { return at_ >= partEnds_[part_]; }
  bool hasMoreParts() const { return part_ + 1 < partEnds_.size(); }
  void nextPart() {
    ++part_;
    enter();
  }
  const std::map<Queue, std::deque<uint32_t>> &queues() const { return queues_; }

  /// The op that the role has issued on the queue and that waits for other roles; kNone if there is
  /// none.
  uint32_t head(const Queue &queue) const {
    auto at = queues_.find(queue);
    if (at == queues_.end() || at->second.empty())
      return kNone;
    uint32_t op = at->second.front();
    // An op that waits for the first op of another queue is not issued yet.
    for (const auto &[other, ops] : queues_)
      if (other != queue && !ops.empty() && order().ends(ops.front(), op))
        return kNone;
    return op;
  }
  const Op &op(uint32_t index) const { return segment().ops[index]; }
  uint32_t segmentIndex() const { return instances_[at_].segment; }
  const Segment &segment() const { return role_.segments[instances_[at_].segment]; }
  Spot spot(uint32_t op) const {
    return {roleIndex_, isDone() ? kNone : instances_[at_].segment, op};
  }

  void pop(const Queue &queue) {
    queues_[queue].pop_front();
    bool isEnd = std::all_of(queues_.begin(), queues_.end(),
                             [](const auto &entry) { return entry.second.empty(); });
    if (isEnd) {
      ++at_;
      enter();
    }
  }

  /// The first pending op, issued or not.
  Spot firstLeft() const {
    uint32_t first = kNone;
    for (const auto &[queue, ops] : queues_)
      if (!ops.empty())
        first = std::min(first, ops.front());
    return spot(first);
  }

private:
  const HappensBefore &order() const { return report_.orderOf(roleIndex_, segmentIndex()); }

  bool isStopped() const { return report_.isFull(); }
  void start(uint32_t, Instances &) {} // a part of its own
  void apply(uint32_t segment, const Variant &variant, Instances &instances) {
    if (report_.spend(kVisitsOfRun))
      instances.push_back({segment, variant});
  }
  void runSteps(const ProgramNode &steps, Instances &instances) {
    for (int64_t step : stepsThatDiffer(steps)) {
      partEnds_.push_back(instances.size());
      step_ = step;
      walkAnew(steps.children, instances);
    }
    partEnds_.push_back(instances.size());
  }
  void runEvery(const ProgramNode &node, Instances &instances) {
    if (step_ % node.count == 0)
      walkAnew(node.children, instances);
  }

  /// Queues the shared collectives of the part's next run that has any.
  void enter() {
    queues_.clear();
    for (; !isDone(); ++at_) {
      for (uint32_t i : sharedOf(instances_[at_]))
        queues_[{segment().ops[i].group, segment().ops[i].channel}].push_back(i);
      if (!queues_.empty())
        return;
    }
  }

  const std::vector<uint32_t> &sharedOf(const Instance &instance) {
    auto [at, isNew] = shared_.try_emplace({instance.segment, instance.variant});
    const std::vector<Op> &ops = role_.segments[instance.segment].ops;
    for (uint32_t i = 0; isNew && i < ops.size(); ++i)
      if (opInfo(ops[i]).traits == OpTraits::Collective && executes(ops[i], instance.variant) &&
          isBetweenRoles(ops[i]))
        at->second.push_back(i);
    return at->second;
  }

  /// Whether the collective's members belong to several roles.
  bool isBetweenRoles(const Op &op) const {
    bool isOfPair = op.channel >= 0 && channelAt(plan_, op.channel).isPair();
    return isOfPair || isShared_[static_cast<size_t>(op.group)];
  }

  const std::vector<bool> &isShared_; ///< for each group: whether several roles have members
  int64_t step_ = 0;                  ///< the current one
  Instances instances_;
  std::vector<size_t> partEnds_; ///< of instances_
  size_t part_ = 0, at_ = 0;
  std::map<std::pair<uint32_t, Variant>, std::vector<uint32_t>> shared_; ///< collectives of a run
  std::map<Queue, std::deque<uint32_t>> queues_;                         ///< of the current run
};

/// Lengths of a program's loops. Roles that share groups need equal ones.
void loopsOf(const std::vector<ProgramNode> &nodes, std::vector<int64_t> &out) {
  for (const ProgramNode &node : nodes)
    if (node.kind == ProgramNode::Steps || node.kind == ProgramNode::Every) {
      out.push_back(node.kind == ProgramNode::Steps ? node.count : -node.count);
      loopsOf(node.children, out);
    }
}

class Meeting {
public:
  explicit Meeting(Inspection &inspection)
      : report_(inspection), plan_(inspection.plan()), members_(inspection) {}

  void run() {
    checkPairs();
    if (report_.size() != 0 || plan_.roles.size() < 2)
      return;
    members_.find();
    if (report_.isFull() || !members_.isAnyShared())
      return;
    checkLoops();
    follow();
    if (report_.size() == 0)
      checkCreation();
  }

private:
  /// Simulates the programs of all roles.
  void follow() {
    for (uint32_t r = 0; r < plan_.roles.size() && report_.size() == 0; ++r)
      actors_.emplace_back(report_, r, members_.isShared());
    while (report_.size() == 0) {
      // The order in which ready collectives complete does not matter: none can block another.
      while (report_.size() == 0 && advance()) {
      }
      if (report_.size() == 0)
        checkEnd();
      if (!actors_.front().hasMoreParts())
        return;
      for (Actor &actor : actors_)
        actor.nextPart();
    }
  }

  /// Creating a channel waits for all of its members. Ranks create channels in the plan's order, so
  /// the first channel that is not yet created can be created if all of its members create it.
  void checkCreation() {
    std::vector<std::vector<ChannelId>> created; // by role, in ascending order
    for (uint32_t role = 0; role < plan_.roles.size(); ++role)
      created.push_back(channelOrder(plan_, {&role, 1}));
    for (uint32_t role = 0; role < plan_.roles.size(); ++role)
      for (ChannelId channel : created[role])
        for (uint32_t other : members_.of(channelAt(plan_, channel).group, channel, role))
          if (report_.spend(1) && !std::ranges::binary_search(created[other], channel))
            report_.add(finding::CreationDeadlocks, {role, kNone, kNone},
                        channelAt(plan_, channel).name, plan_.roles[other].name);
  }

  /// Checks that the two ranks of a pair are in different roles.
  void checkPairs() {
    forEachOp(plan_, [&](Spot at, const Segment &, const Op &op) {
      if (op.channel >= 0 && channelAt(plan_, op.channel).isPair())
        checkPair(at, op);
    });
  }

  void checkPair(Spot at, const Op &op) {
    const Channel &channel = channelAt(plan_, op.channel);
    IndexRange own = members_.indices(at.role).of(channel.group);
    if (!members_.isOfPair(at.role, channel))
      report_.add(finding::PairNotInRole, at, channel.name, channel.pair[0], channel.pair[1],
                  groupAt(plan_, channel.group).name, plan_.roles[at.role].name, own.first,
                  own.last);
  }

  void checkLoops() {
    std::vector<int64_t> first;
    loopsOf(plan_.roles[0].program, first);
    for (uint32_t r = 1; r < plan_.roles.size(); ++r) {
      std::vector<int64_t> loops;
      loopsOf(plan_.roles[r].program, loops);
      if (loops != first)
        report_.add(finding::LoopsDiffer, {r, kNone, kNone}, plan_.roles[0].name,
                    plan_.roles[r].name);
    }
  }

  /// Completes every collective that all its members have issued. Returns false if there is none.
  bool advance() {
    bool moved = false;
    std::vector<Queue> open;
    for (Actor &actor : actors_) {
      open.clear(); // a copy, since tryEnd() changes the queues
      for (const auto &[queue, ops] : actor.queues())
        if (!ops.empty())
          open.push_back(queue);
      for (const Queue &queue : open)
        moved |= report_.size() == 0 && tryEnd(actor, queue);
    }
    return moved;
  }

  bool tryEnd(Actor &actor, const Queue &queue) {
    if (actor.isDone())
      return false;
    // head() and pop() each visit all queues of a role.
    uint32_t mine = report_.spend(2 * actor.queues().size()) ? actor.head(queue) : kNone;
    if (mine == kNone)
      return false;
    const std::vector<uint32_t> &members =
        members_.of(queue.first, queue.second, actor.roleIndex());
    for (uint32_t member : members) {
      Actor &other = actors_[member];
      if (!report_.spend(2 * other.queues().size()))
        return false;
      uint32_t theirs = other.isDone() ? kNone : other.head(queue);
      if (theirs == kNone || !isSame(actor, mine, other, theirs))
        return false;
    }
    for (uint32_t member : members)
      actors_[member].pop(queue);
    return true;
  }

  std::string channelOf(const Op &op) const {
    return op.channel == kNoChannel
               ? ""
               : fmt::format(", channel '{}'", channelAt(plan_, op.channel).name);
  }

  bool isSame(const Actor &a, uint32_t i, const Actor &b, uint32_t j) {
    const Op &x = a.op(i), &y = b.op(j);
    auto type = [](const Actor &actor, ValueId id) { return actor.segment().values[id].type; };
    bool isCounted = leavesRowsOut(x); // rows must keep their positions
    auto alike = [isCounted](const Type &s, const Type &t) {
      return s.dtype == t.dtype && s.numel() == t.numel() && (!isCounted || s == t);
    };
    if (isPointToPoint(x) && isPointToPoint(y)) {
      bool isOtherSide = indexOf(a, x) != indexOf(b, y);
      if ((x.kind != y.kind) == isOtherSide && alike(type(a, wholeOf(x)), type(b, wholeOf(y))))
        return true;
    } else if (!isPointToPoint(x) && !isPointToPoint(y) && x.kind == y.kind &&
               x.getBool(AttrKey::average) == y.getBool(AttrKey::average) &&
               x.getInt(AttrKey::block) == y.getInt(AttrKey::block) &&
               std::ranges::equal(
                   x.operands, y.operands,
                   [&](ValueId of, ValueId other) { return alike(type(a, of), type(b, other)); }) &&
               alike(type(a, x.results[0]), type(b, y.results[0]))) {
      return true;
    }
    note(report_.add(finding::CollectivesDiffer, b.spot(j), plan_.roles[a.roleIndex()].name,
                     plan_.roles[b.roleIndex()].name, groupAt(plan_, x.group).name, channelOf(x)),
         "the other role's collective is here", a.spot(i));
    return false;
  }

  int64_t indexOf(const Actor &actor, const Op &op) const {
    return members_.indices(actor.roleIndex()).of(op.group).first;
  }

  void checkEnd() {
    auto stuck = std::ranges::find(actors_, false, &Actor::isDone);
    if (stuck == actors_.end())
      return;
    Finding &f = report_.add(finding::RoleDeadlocks, stuck->firstLeft(),
                             plan_.roles[stuck->roleIndex()].name);
    const Actor &other = actors_[stuck == actors_.begin() ? 1 : 0];
    note(f,
         fmt::format("role '{}' {}", plan_.roles[other.roleIndex()].name,
                     other.isDone() ? "issues no more collectives" : "waits here"),
         other.isDone() ? Spot{other.roleIndex(), kNone, kNone} : other.firstLeft());
  }

  Inspection &report_;
  const Plan &plan_;
  RoleMembers members_;
  std::deque<Actor> actors_;
};

} // namespace

void checkCollectives(Inspection &inspection) {
  if (inspection.size() == 0)
    Meeting(inspection).run();
}

} // namespace shardc::plan::verifier
