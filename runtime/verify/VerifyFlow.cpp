// Follows all domains of values through the whole plan. If an op takes effect in some microbatches
// only, its result gets the join of both cases. The walk repeats segments until no state changes,
// and a last walk reports errors. It leaves out segments that no program runs.
#include "runtime/verify/VerifyFlow.h"

#include <algorithm>
#include <array>
#include <map>

#include "runtime/verify/VerifyRings.h"

namespace shardc::plan::verifier {
namespace {

class Flow {
public:
  Flow(Inspection &inspection, std::vector<std::unique_ptr<ValueDomain>> domains)
      : inspection_(inspection), plan_(inspection.plan()), domains_(std::move(domains)) {
    for (uint32_t r = 0; r < plan_.roles.size(); ++r) {
      std::vector<bool> &isRun = isRun_.emplace_back(plan_.roles[r].segments.size());
      for (uint32_t s = 0; s < isRun.size(); ++s)
        isRun[s] = !inspection.variantsOf(r, s).empty();
    }
    isDue_ = isRun_;
    findTakers();
  }

  /// Reports domain by domain, since an error in one domain may cause follow-on errors in another.
  void run() {
    for (const auto &domain : domains_)
      followed_.push_back(domain.get());
    do
      while (walkDue(false)) {
      }
    while (openCycles());
    for (const auto &domain : domains_) {
      followed_ = {domain.get()};
      isDue_ = isRun_;
      isBackward_ = true; // reports findings in the order of roles
      walkDue(true);
      if (inspection_.size() != 0)
        return;
    }
  }

private:
  /// A value may circulate among segments without an initial value from outside. It starts with
  /// State().
  bool openCycles() {
    bool isAny = false;
    for (Passage at = 0; at < isLeft_.size(); ++at) {
      if (isLeft_[at] || !hasSource_[at])
        continue;
      isLeft_[at] = isAny = true;
      for (auto [role, segment] : takers_[at])
        isDue_[role][segment] = true;
    }
    return isAny;
  }

  /// Follows the segments whose inputs have changed; false if there are none. Alternates between
  /// both orders of roles, since stages pass activations forwards and gradients backwards.
  bool walkDue(bool isReport) {
    isBackward_ = !isBackward_;
    bool isAnyDue = false;
    auto count = static_cast<uint32_t>(plan_.roles.size());
    for (uint32_t k = 0; k < count; ++k) {
      uint32_t r = isBackward_ ? count - 1 - k : k;
      for (uint32_t s = 0; s < isRun_[r].size(); ++s)
        if (isDue_[r][s]) {
          isDue_[r][s] = false;
          isAnyDue = true;
          walk(r, s, isReport);
        }
    }
    return isAnyDue;
  }

  void walk(uint32_t r, uint32_t s, bool isReport) {
    const Segment &segment = plan_.roles[r].segments[s];
    if (!inspection_.spend(segment.values.size() + segment.ops.size()))
      return;
    Scope scope = {inspection_, plan_.roles[r], segment, r, s};
    reached_.assign(segment.values.size(), Reach::None);
    inspection_.setMuted(!isReport);
    for (ValueDomain *domain : followed_)
      domain->begin(scope, reached_, isReport);
    for (const Segment::Boundary &in : segment.ins)
      enter(scope, in);
    for (uint32_t i = 0; i < segment.ops.size(); ++i)
      follow(scope, i, isReport);
    for (ValueDomain *domain : followed_)
      if (isReport)
        domain->finish();
    for (const Segment::Boundary &out : segment.outs)
      if (!isReport && isBuffer(scope, out.cell))
        leave(out.value, bufferOf(scope, out.cell), true);
    inspection_.setMuted(false);
  }

  /// Enters a live-in. A buffer to which no op stores has State().
  void enter(const Scope &scope, const Segment::Boundary &in) {
    bool isPassed = isBuffer(scope, in.cell);
    Passage from = isPassed ? bufferOf(scope, in.cell) : 0;
    reached_[in.value] = !isPassed || isLeft_[from] ? Reach::Way
                         : hasSource_[from]         ? Reach::None
                                                    : Reach::Given;
    for (ValueDomain *domain : followed_)
      if (!isPassed)
        domain->load(in.value, scope.role.cells[in.cell]);
      else if (isLeft_[from])
        domain->take(in.value, from);
  }

  void follow(const Scope &scope, uint32_t i, bool isReport) {
    const Op &op = scope.segment.ops[i];
    bool isRecv = op.kind == OpKind::Recv;
    Reach reach =
        isRecv ? (isLeft_[transferOf(scope, op, op.results.front())] ? Reach::Way : Reach::None)
               : reachOf(op);
    for (ValueId result : op.results)
      reached_[result] = reach;
    for (ValueDomain *domain : followed_)
      if (reach == Reach::Way && isRecv)
        domain->receive(op, transferOf(scope, op, op.results.front()));
      else if (reach == Reach::Way || domain->followsAll())
        domain->follow(i, op);
    if (op.kind == OpKind::Send && !isReport)
      leave(op.operands.front(), transferOf(scope, op, op.operands.front()), false);
    // A result with an accumulating tie is in some microbatches the op's own value plus its
    // buffer's content, and in others that content alone.
    for (const Tie &tie : op.ties)
      if (tie.kind == Tie::Acc && isReached(tie.value))
        followTie(i, tie, op.results[tie.result]);
    for (const Tie &tie : op.ties)
      if (tie.kind == Tie::Else && isReached(tie.value))
        followTie(i, tie, op.results[tie.result]);
  }

  bool isReached(ValueId value) const { return reached_[value] != Reach::None; }
  Reach reachOf(const Op &op) const {
    Reach reach = Reach::Way;
    for (ValueId operand : op.operands)
      if (!isReached(operand))
        return Reach::None;
      else if (reached_[operand] != Reach::Way)
        reach = Reach::OfGiven;
    return reach;
  }

  void followTie(uint32_t i, const Tie &tie, ValueId result) {
    for (ValueDomain *domain : followed_)
      if (tie.kind == Tie::Else)
        domain->join(result, tie.value, !isReached(result));
      else if (isReached(result))
        domain->add(i, tie);
    if (tie.kind == Tie::Else)
      reached_[result] = std::max(reached_[result], reached_[tie.value]);
  }

  void leave(ValueId value, Passage at, bool isKept) {
    if (!isReached(value))
      return;
    bool isFirst = !isLeft_[at], isNew = false;
    isLeft_[at] = true;
    for (ValueDomain *domain : followed_)
      isNew |= domain->leave(value, at, isKept, isFirst);
    if (isNew)
      for (auto [role, segment] : takers_[at])
        isDue_[role][segment] = true;
  }

  static bool isBuffer(const Scope &scope, uint32_t cell) {
    return scope.role.cells[cell].kind == CellKind::Buffer;
  }
  /// The slots of a ring rotate, so they share one state.
  Passage bufferOf(const Scope &scope, uint32_t cell) {
    const RoleRings &rings = inspection_.ringsOf(scope.roleIndex);
    return numberOf({scope.roleIndex, rings.isSlot(cell) ? rings.slotsOf(cell).front() : cell});
  }
  /// Both ends of a transfer name the same channel and have values of one type.
  Passage transferOf(const Scope &scope, const Op &op, ValueId value) {
    const Type &type = scope.value(value).type;
    return numberOf({-1 - int64_t{op.channel}, static_cast<int64_t>(type.dtype), type.numel()});
  }
  Passage numberOf(const std::array<int64_t, 3> &key) {
    auto [at, isNew] = numbers_.try_emplace(key, static_cast<Passage>(numbers_.size()));
    if (isNew)
      isLeft_.push_back(false), hasSource_.push_back(false), takers_.emplace_back();
    return at->second;
  }

  /// Finds the segments to repeat when the state of a passage changes, and the passages that have a
  /// source.
  void findTakers() {
    for (uint32_t r = 0; r < plan_.roles.size(); ++r)
      for (uint32_t s = 0; s < isRun_[r].size(); ++s) {
        Scope scope = {inspection_, plan_.roles[r], plan_.roles[r].segments[s], r, s};
        for (const Segment::Boundary &in : scope.segment.ins)
          if (isRun_[r][s] && isBuffer(scope, in.cell))
            takers_[bufferOf(scope, in.cell)].emplace_back(r, s);
        for (const Segment::Boundary &out : scope.segment.outs)
          if (isRun_[r][s] && isBuffer(scope, out.cell))
            hasSource_[bufferOf(scope, out.cell)] = true;
        for (const Op &op : scope.segment.ops)
          if (isRun_[r][s] && op.kind == OpKind::Recv)
            takers_[transferOf(scope, op, op.results.front())].emplace_back(r, s);
      }
  }

  Inspection &inspection_;
  const Plan &plan_;
  std::vector<std::unique_ptr<ValueDomain>> domains_;
  std::vector<std::vector<bool>> isDue_, isRun_; ///< by role and segment
  bool isBackward_ = true;                       ///< the current walk begins at the last role
  std::vector<Reach> reached_;                   ///< for each value of the current segment
  std::vector<ValueDomain *> followed_;          ///< on the current walk
  std::map<std::array<int64_t, 3>, Passage> numbers_;
  /// For each passage: whether something has been stored or given there; whether a segment stores
  /// to it.
  std::vector<bool> isLeft_, hasSource_;
  std::vector<std::vector<std::pair<uint32_t, uint32_t>>> takers_; ///< segments, by passage
};

} // namespace

void checkValues(Inspection &inspection) {
  std::vector<std::unique_ptr<ValueDomain>> domains;
  for (auto make : {makeCounts, makeSlices, makeParts, makeRows, makeTokens})
    if (std::unique_ptr<ValueDomain> domain = make(inspection))
      domains.push_back(std::move(domain));
  if (inspection.size() == 0 && !domains.empty())
    Flow(inspection, std::move(domains)).run();
}

} // namespace shardc::plan::verifier
