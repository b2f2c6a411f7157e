#include "Sums.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>

#include "Blocks.h"
#include "Contract.h"
#include "Members.h"
#include "Pieces.h"
#include "Positions.h"
#include "Runs.h"
#include "Splits.h"
#include "Terms.h"

namespace shardc::plan::oracle {
namespace {

class Sums {
public:
  explicit Sums(const Plan &plan)
      : plan_(plan), members_(plan), splits_(plan, members_.positions()) {}

  std::string run() {
    for (int64_t rank = 0; rank < plan_.worldSize() && problem_.empty(); ++rank)
      runRank(rank);
    if (isOpen_ || !problem_.empty() || !meetAll())
      return problem_;
    for (size_t term = 0; term < terms_.size(); ++term)
      if (isContribution(terms_[term]))
        makers_[ownNumberOf(static_cast<int>(term))].try_emplace(
            {terms_[term].rank, terms_[term].batch}, static_cast<int>(term));
    for (const Update &update : updates_)
      if (problem_.empty())
        checkGradient(update.terms[0], update.block, update.rank, update.step, false);
    for (const Norm &norm : norms_)
      for (auto [term, block] : norm.gradients)
        if (!isOfProduct(terms_[static_cast<size_t>(term)]))
          checkGradient(term, block, norm.rank, norm.step, true);
    const PiecesOf find = [this](int term) { return piecesOf(term); };
    for (const Norm &norm : norms_)
      fail(findSquareBreak(plan_, terms_, updates_, norm, find, gradients_));
    fail(findUseBreak(plan_, members_.positions(), terms_, gradients_, makers_));
    fail(findNormBreak(plan_, members_.positions(), terms_));
    fail(findLossBreak(terms_, members_, [this](int term) { return numberOf(term); }));
    checkAlike();
    checkLost();
    return problem_.empty() ? findTypeBreak(plan_, members_.positions(), terms_) : problem_;
  }

private:
  void fail(const std::string &text) {
    if (problem_.empty())
      problem_ = text;
  }

  // ---- one rank's program ----

  void runRank(int64_t rank) {
    rank_ = rank;
    role_ = &plan_.roles[roleOf(plan_, rank)];
    run_ = 0, batch_ = 0, step_ = 0;
    meetings_.clear();
    ordinals_.clear();
    cells_.assign(role_->cells.size(), -1);
    hasRing_ = false;
    for (const Segment &segment : role_->segments)
      hasRing_ = hasRing_ || isTrained(segment);
    isFollowed_ = followedCells(*role_);
    for (size_t c = 0; c < cells_.size(); ++c)
      if (isSaved(*role_, role_->cells[c]))
        cells_[c] = load(static_cast<uint32_t>(c));
    hasUpdates_ = false, stepsRun_ = 0;
    for (const Segment &segment : role_->segments)
      for (const Op &op : segment.ops)
        hasUpdates_ = hasUpdates_ || isUpdate(op);
    walk(role_->program);
    if (hasUpdates_ && stepsRun_ == 0)
      fail(fmt::format("rank {}: no step is run", rank_));
  }

  bool isTrained(const Segment &segment) const {
    return takes(segment, CellKind::Feed) || segment.kind == SegmentKind::Forward ||
           segment.kind == SegmentKind::Backward || segment.kind == SegmentKind::Steady;
  }
  bool takes(const Segment &segment, CellKind kind) const {
    return std::ranges::any_of(segment.ins, [&](const Segment::Boundary &in) {
      return role_->cells[in.cell].kind == kind;
    });
  }

  /// A number for the part of the block's state that the rank has; 0 for all of it.
  Number partOf(int32_t block, int64_t rank) const {
    if (block < 0)
      return 0;
    const Block &each = plan_.blocks[static_cast<size_t>(block)];
    int64_t owner = members_.positions().in(each.stateGroup, rank);
    return each.stateShard < each.numel ? static_cast<Number>(owner) + 1 : 0;
  }

  int load(uint32_t c) {
    const Cell &cell = role_->cells[c];
    Term term;
    term.rank = rank_, term.cell = &cell, term.numel = cell.type.numel();
    term.dtype = cell.type.dtype;
    return add(std::move(term));
  }
  int add(Term term) {
    terms_.push_back(std::move(term));
    return static_cast<int>(terms_.size()) - 1;
  }
  Term &at(int term) { return terms_[static_cast<size_t>(term)]; }

  void walk(const std::vector<ProgramNode> &nodes) {
    for (const ProgramNode &node : nodes) {
      if (node.kind == ProgramNode::Steps) {
        isRepeated_ = node.count > 1;
        for (step_ = 1; step_ <= node.count; ++step_) {
          updatedInStep_.clear();
          batchesOfStep_.clear();
          slots_.held.clear();
          firstOfStep_ = batch_ + 1;
          ++stepsRun_;
          hasFinished_ = false;
          walk(node.children);
          endStep();
        }
        step_ = 0;
        isRepeated_ = false;
      } else if (node.kind == ProgramNode::Every) {
        bool before = std::exchange(isSeldom_, isSeldom_ || node.count > 1);
        if (step_ % node.count == 0)
          walk(node.children);
        isSeldom_ = before;
      } else {
        node_ = &node;
        for (const OneRun &run : runsOf(*role_, node, nodes)) {
          runSegment(run, node.kind == ProgramNode::Start);
          ++run_;
        }
      }
    }
  }

  /// Each step must be counted once, and must update each block of the rank once.
  void endStep() {
    if (isOpen_)
      return;
    for (size_t c = 0; c < cells_.size(); ++c)
      if (CellKind kind = role_->cells[c].kind;
          isSaved(*role_, role_->cells[c]) || kind == CellKind::ExpertLoad ||
          kind == CellKind::PredictionLosses || kind == CellKind::RouterLosses ||
          kind == CellKind::PreferenceSums)
        readCell(static_cast<uint32_t>(c));
    for (const Segment &segment : role_->segments)
      for (const Segment::Boundary &in : segment.ins)
        if (segment.before != kNone)
          readCell(in.cell);
    if (!hasUpdates_)
      return;
    int state = -1;
    for (size_t c = 0; c < cells_.size(); ++c)
      if (role_->cells[c].kind == CellKind::Step)
        state = cells_[c];
    if (state < 0 || !hasFinished_ || at(state).isBegun)
      fail(fmt::format("rank {}: step {} is not counted", rank_, step_));
    for (const Cell &cell : role_->cells)
      if (int32_t block = blockOf(cell);
          block >= 0 && isSaved(*role_, cell) &&
          updatedInStep_[block] != (isTrainedBlock(plan_, block) ? 1 : 0))
        fail(fmt::format("rank {}: block {} is updated {} times in step {}", rank_, block,
                         updatedInStep_[block], step_));
  }

  void runSegment(const OneRun &run, bool isStart) {
    const uint32_t s = run.segment;
    const Segment &segment = role_->segments[s];
    variant_ = run.variant(), segment_ = &segment, microbatch_ = run.microbatch;
    isTraining_ = hasRing_ ? isTrained(segment) : segment.body;
    own_ = run.isNamed ? firstOfStep_ + run.microbatch : batch_ + 1;
    batch_ = std::max(batch_, isTraining_ ? own_ : batch_);
    if (isTraining_)
      batchesOfStep_.insert(own_);
    values_.assign(segment.values.size(), -1);
    for (const Segment::Boundary &in : segment.ins) {
      values_[in.value] = cells_[in.cell];
      if (isFollowed_[in.cell])
        if (auto at = slots_.held.find(slots_.key(*role_, in, microbatch_));
            at != slots_.held.end())
          values_[in.value] = at->second.content;
      const Cell &cell = role_->cells[in.cell];
      if (isOfHost(cell)) {
        Term term;
        term.rank = rank_, term.cell = &cell;
        values_[in.value] = add(std::move(term));
      }
    }
    for (const Op &op : segment.ops)
      runOp(op);
    if (isOpen_)
      return;
    if (hasUpdates_)
      noteOverwritten(segment);
    std::vector<int> cells = cells_;
    for (const Segment::Boundary &out : segment.outs) {
      int now = values_[out.value];
      if (!isStart && isSaved(*role_, role_->cells[out.cell]) && !isMadeOf(now, cells_[out.cell]))
        fail(fmt::format("rank {}: '{}' is filled again", rank_, role_->cells[out.cell].name));
      if (isFollowed_[out.cell])
        slots_.held[slots_.key(*role_, out, microbatch_)] = {now, 0};
      else
        cells[out.cell] = now;
    }
    for (const Segment::Boundary &out : segment.outs)
      leave(s, out, values_[out.value]);
    cells_ = std::move(cells);
  }

  // ---- contents that nothing reads ----

  /// Notes results other than activations that a later result of the same type and place replaces.
  void noteOverwritten(const Segment &segment) {
    for (const Value &value : segment.values) {
      int term = values_[static_cast<size_t>(&value - segment.values.data())];
      if (term < 0 || value.def == kNone || value.purpose == Purpose::Activations ||
          !value.place.placed || isAlias(segment.ops[value.def]) || at(term).run != run_)
        continue;
      if (std::ranges::any_of(segment.values, [&](const Value &later) {
            return later.def != kNone && later.def > value.def && later.type == value.type &&
                   later.place == value.place && !isAlias(segment.ops[later.def]);
          }))
        overwritten_[&value].push_back(term);
    }
  }

  void readCell(uint32_t cell) {
    readCells_.insert({role_, cell});
    if (cells_[cell] >= 0)
      markRead(cells_[cell]);
  }

  /// Marks the term as read; for a view or pack, also the terms whose bytes it names.
  void markRead(int term) {
    if (term < 0)
      return;
    at(term).isRead = true;
    for (size_t c = 0; c < cells_.size() && segment_ != nullptr; ++c)
      if (cells_[c] == term && takesCell(static_cast<uint32_t>(c)))
        readCells_.insert({role_, static_cast<uint32_t>(c)});
    if (at(term).op != nullptr && isAlias(*at(term).op))
      for (int from : std::vector<int>(at(term).from))
        markRead(from);
  }
  bool takesCell(uint32_t cell) const {
    return std::ranges::any_of(segment_->ins,
                               [&](const Segment::Boundary &in) { return in.cell == cell; });
  }
  bool isRead(int term) {
    const Term &each = at(term);
    return each.isRead || (each.op != nullptr && isAlias(*each.op) &&
                           std::ranges::any_of(each.from, [&](int from) { return isRead(from); }));
  }

  /// Whether part of the term's content is older than the run.
  bool isPassedOn(int term) {
    const Term &each = at(term);
    if (each.run != run_)
      return true;
    bool names = isAlias(*each.op) || each.isInPlace;
    return names && std::ranges::any_of(each.from, [&](int from) { return isPassedOn(from); });
  }

  void leave(uint32_t s, const Segment::Boundary &out, int term) {
    if (term < 0 || out.mayDrop || !hasUpdates_)
      return;
    if (isPassedOn(term)) {
      for (const Segment::Boundary &in : segment_->ins)
        if (in.cell != out.cell && isPartOf(cells_[in.cell], term))
          readCells_.insert({role_, in.cell});
      return;
    }
    Site &site = sites_[{role_, s, variant_, out.cell, node_}];
    site.terms.push_back(term);
    site.isSeldom = isSeldom_, site.isRepeated = isRepeated_;
    site.rank = rank_, site.run = run_;
  }
  bool isPartOf(int part, int term) {
    if (part < 0 || part == term)
      return part >= 0;
    const Term &each = at(term);
    return each.run == run_ && (isAlias(*each.op) || each.isInPlace) &&
           std::ranges::any_of(each.from, [&](int from) { return isPartOf(part, from); });
  }

  /// Fails for cells whose content from a segment is lost at all places where the segment runs.
  void checkLost() {
    std::map<std::tuple<const Role *, uint32_t, Variant, uint32_t>, bool> isLost;
    for (const auto &[key, site] : sites_) {
      auto [role, segment, variant, cell, node] = key;
      bool isReadAtAll = std::ranges::any_of(site.terms, [&](int term) { return isRead(term); });
      bool hasReader = readCells_.count({role, cell}) > 0;
      bool isGone = site.isSeldom
                        ? !hasReader
                        : site.isRepeated || !hasReader || isWrittenOver(site, *role, cell);
      auto at = isLost.try_emplace({role, segment, variant, cell}, true).first;
      at->second = at->second && isGone && !isReadAtAll;
    }
    for (const auto &[value, terms] : overwritten_)
      if (std::ranges::none_of(terms, [&](int term) { return isRead(term); }))
        fail(fmt::format("'{}' is overwritten and read by nobody", value->name));
    for (const auto &[key, terms] : replaced_)
      if (std::ranges::none_of(terms, [&](int term) { return isRead(term); }))
        fail(fmt::format("what '{}' adds to in other microbatches is read by nobody",
                         opInfo(*std::get<1>(key)).name));
    for (const auto &[key, lost] : isLost)
      if (lost)
        fail(fmt::format("what '{}' leaves in '{}' is read by nobody",
                         std::get<0>(key)->segments[std::get<1>(key)].name,
                         std::get<0>(key)->cells[std::get<3>(key)].name));
  }

  bool isWrittenOver(const Site &site, const Role &role, uint32_t index) const {
    const Cell &cell = role.cells[index];
    int64_t begin = members_.positions().begin(cell.place, site.rank);
    return std::ranges::any_of(written_, [&](const Written &each) {
      return each.rank == site.rank && each.run > site.run && each.arena == cell.place.arena &&
             each.begin < begin + cell.type.bytes() && begin < each.end;
    });
  }

  bool isMadeOf(int now, int before) {
    while (now >= 0 && now != before)
      now = at(now).inPlaceOf;
    return now >= 0;
  }

  void runOp(const Op &op) {
    if (!isAlias(op) && !holds(op.pred, variant_)) {
      for (const Tie &tie : op.ties)
        if (tie.kind == Tie::Else)
          values_[op.results[tie.result]] = values_[tie.value];
      return;
    }
    Term term;
    term.rank = rank_, term.op = &op, term.segment = segment_, term.run = run_, term.step = step_;
    term.batch = isTraining_ ? own_ : -1;
    for (ValueId operand : op.operands) {
      term.from.push_back(values_[operand]);
      if (values_[operand] < 0) {
        isOpen_ = isOpen_ || !isAlias(op);
        return; // a value that does not exist
      }
    }
    if (!isAlias(op))
      noteAccesses(op, term);
    if (op.kind == OpKind::View)
      term.begin = members_.positions().begin(op, rank_);
    if (isMeeting(op))
      meet(op, term);
    noteStep(op, term);
    for (size_t r = 0; r < op.results.size(); ++r) {
      Term each = term;
      each.result = static_cast<uint32_t>(r);
      each.numel = segment_->values[op.results[r]].type.numel();
      each.dtype = segment_->values[op.results[r]].type.dtype;
      if (int operand = inPlaceOperand(op, r); operand >= 0)
        each.inPlaceOf = term.from[static_cast<size_t>(operand)];
      for (const Tie &tie : op.ties)
        if (tie.kind == Tie::Acc && tie.result == r && holds(tie.pred, variant_))
          each.added.push_back(values_[tie.value]);
        else if (tie.kind == Tie::Acc && tie.result == r && values_[tie.value] >= 0 &&
                 hasUpdates_ && !isPassedOn(values_[tie.value]))
          replaced_[{role_, &op, variant_}].push_back(values_[tie.value]);
      for (int added : each.added)
        isOpen_ = isOpen_ || added < 0;
      values_[op.results[r]] = add(std::move(each));
      if (isMeeting(op))
        waiting_.push_back({values_[op.results[r]], key_});
    }
    if (isUpdate(op)) {
      int32_t block = blockNamed(op);
      ++updatedInStep_[block];
      size_t state = stateOperandOf(op);
      updates_.push_back({rank_, step_, block, term.from, ordinals_[block]++, state});
      if (step_ == 0 || !hasFinished_ || at(term.from[state]).isBegun)
        fail(fmt::format("rank {}: block {} is updated in no ended step", rank_, block));
    }
  }

  void noteAccesses(const Op &op, Term &term) {
    for (int from : term.from)
      markRead(from);
    for (const Tie &tie : op.ties)
      if (tie.kind == Tie::Acc && holds(tie.pred, variant_))
        markRead(values_[tie.value]);
    auto begin = [&](ValueId id) {
      return members_.positions().begin(segment_->values[id].place, rank_, microbatch_);
    };
    for (ValueId result : op.results) {
      const Value &value = segment_->values[result];
      written_.push_back(
          {rank_, run_, value.place.arena, begin(result), begin(result) + value.type.bytes()});
    }
    if (op.kind == OpKind::AllGather) {
      const Value &shard = segment_->values[op.operands[0]];
      int64_t position = members_.positions().in(op.group, rank_);
      term.isInPlace =
          shard.place.arena == segment_->values[op.results[0]].place.arena &&
          begin(op.operands[0]) == begin(op.results[0]) + position * shard.type.bytes();
    }
  }

  // ---- the step state ----

  void noteStep(const Op &op, Term &term) {
    int state = term.from.empty() ? -1 : term.from[0];
    switch (factsOf(op).step) {
    case StepPart::Begins:
      if (step_ == 0 || at(state).isBegun)
        fail(fmt::format("rank {}: step {} begins wrongly", rank_, step_));
      term.isBegun = true;
      break;
    case StepPart::AddsLosses:
      term.isBegun = at(state).isBegun;
      term.losses = at(state).losses;
      if (!term.isBegun || step_ == 0 ||
          (term.batch >= 0 && !term.losses.insert(term.batch).second))
        fail(fmt::format("rank {}: losses are added wrongly in step {}", rank_, step_));
      break;
    case StepPart::Evaluates:
      term.isBegun = at(state).isBegun;
      term.losses = at(state).losses;
      break;
    case StepPart::Finishes:
      finish(term);
      break;
    case StepPart::None:
      break;
    }
  }

  void finish(const Term &term) {
    const Term state = at(term.from[0]);
    bool isOfOthers = state.losses.empty() && hasTransfers(*role_) && !addsLosses(*role_) &&
                      std::ranges::any_of(plan_.roles, addsLosses);
    if (!state.isBegun || step_ == 0 || (state.losses != batchesOfStep_ && !isOfOthers) ||
        (isTraining_ && !variant_.isLast()))
      fail(fmt::format("rank {}: step {} ends wrongly", rank_, step_));
    hasFinished_ = true;
    int pack = term.from[1];
    while (at(pack).op != nullptr && at(pack).op->kind == OpKind::AllReduce && at(pack).run == run_)
      pack = at(pack).from[0];
    const Term packed = at(pack);
    if (packed.op == nullptr || packed.op->kind != OpKind::StepPack || packed.run != run_ ||
        packed.from[0] != term.from[0] || packed.from[1] != term.from[2] ||
        at(packed.from[2]).cell == nullptr || at(packed.from[2]).cell->kind != CellKind::Stop)
      return fail(fmt::format("rank {}: step {} ends with other sums", rank_, step_));
    const Term norm = at(term.from[2]);
    if (norm.op == nullptr || norm.op->kind != OpKind::SumSquares || norm.run != run_)
      return fail(fmt::format("rank {}: step {} has no norm", rank_, step_));
    Norm taken{rank_, step_, {}};
    std::set<int32_t> blocks;
    for (size_t k = 0; k < norm.from.size() && k < norm.op->blocks.size(); ++k) {
      blocks.insert(norm.op->blocks[k].block);
      taken.gradients.emplace_back(norm.from[k], norm.op->blocks[k].block);
    }
    if (!isNormOf(plan_, *role_, blocks))
      fail(fmt::format("rank {}: the norm of step {} is of other blocks", rank_, step_));
    norms_.push_back(std::move(taken));
  }

  // ---- meetings ----

  using Key = std::tuple<std::vector<int64_t>, int16_t, ChannelId,
                         int64_t>; ///< members, and the number of their earlier meetings
  struct Waiting {
    int term;
    Key key;
  };

  void meet(const Op &op, Term &term) {
    const std::vector<int64_t> members = membersOf(plan_, op, members_.of(rank_, op.group), rank_);
    key_ = {members, op.group, op.channel, meetings_[{op.group, op.channel}]++};
    // Positions follow the order of the group's axes.
    std::vector<int64_t> coordinates = coordinatesOf(plan_, rank_);
    for (uint16_t axis : plan_.groups[static_cast<size_t>(op.group)].axes)
      term.position = term.position * plan_.mesh[axis].size + coordinates[axis];
    met_[key_][term.position] = term.from[0];
  }

  bool meetAll() {
    std::map<Key, int64_t> steps;
    for (const Waiting &waiting : waiting_) {
      const int64_t step = at(waiting.term).step;
      if (steps.try_emplace(waiting.key, step).first->second != step)
        fail("ranks meet in different steps");
      const std::map<int64_t, int> &met = met_[waiting.key];
      if (met.size() != std::get<0>(waiting.key).size())
        return false; // a rank is stuck
      for (auto [position, term] : met)
        at(waiting.term).members.push_back(term);
    }
    return true;
  }

  // ---- which terms are equal ----

  Number numberOf(int term) {
    if (auto found = numbers_.find(term); found != numbers_.end())
      return found->second;
    Number number = ownNumberOf(term);
    for (int added : terms_[static_cast<size_t>(term)].added)
      number = mix(number, numberOf(added));
    return numbers_[term] = number;
  }

  /// Leaves out terms to which the op adds, which may be of other parameters on other ranks.
  Number ownNumberOf(int term) {
    if (auto found = ownNumbers_.find(term); found != ownNumbers_.end())
      return found->second;
    return ownNumbers_[term] = makeNumber(terms_[static_cast<size_t>(term)]);
  }

  Number makeNumber(const Term &term) {
    if (term.op == nullptr)
      return term.cell == nullptr
                 ? mix(numberOfCell(term.cell), 0)
                 : mix(numberOfCell(term.cell), partOf(blockOf(*term.cell), term.rank));
    const Op &op = *term.op;
    Number number = mix(numberOfAttrs(op), term.result);
    if (op.kind == OpKind::Shift)
      return numberOf(shiftedFrom(term));
    if (isMeeting(op)) {
      Number position = isApart(op) ? static_cast<Number>(term.position) : 0;
      number = mix(static_cast<Number>(op.kind), position);
      bool joins = splits_.any() && joinsSplits(plan_, members_.positions(), splits_, terms_, term);
      for (int member : term.members)
        number = mix(number, mix(numberOf(member), joins ? splitsOf(member) : 0));
    } else if (op.kind == OpKind::Recv) {
      number = mix(mix(number, static_cast<Number>(term.rank)), static_cast<Number>(term.run));
    } else if (op.kind == OpKind::BatchLoad) {
      for (int16_t group : {groupOfKind(plan_, GroupKind::Data), op.group})
        number = mix(number, static_cast<Number>(members_.positions().in(group, term.rank)));
      number = mix(number, static_cast<Number>(term.batch < 0 ? term.run : term.batch));
    } else if (op.kind == OpKind::LossAdd || op.kind == OpKind::EvalAdd) {
      return numberOf(term.from[0]);
    } else if (op.kind == OpKind::StepPack || op.kind == OpKind::EvalPack) {
      number = mix(mix(number, static_cast<Number>(term.rank)), static_cast<Number>(term.run));
    } else if (isUpdate(op) && splits_.any()) { // updates are compared by their operands
      number = mix(mix(number, partOf(blockNamed(op), term.rank)), static_cast<Number>(term.run));
    } else if (op.kind == OpKind::StepFinish) {
      number = mix(mix(number, numberOf(term.from[0])), numberOf(term.from[1]));
      if (op.getBool(AttrKey::norm_replicated))
        number = mix(number, numberOf(term.from[2]));
    } else {
      if (op.kind == OpKind::View)
        number = mix(mix(static_cast<Number>(op.kind), static_cast<Number>(term.begin)),
                     static_cast<Number>(term.numel));
      bool computes = !isAlias(op) && !factsOf(op).movesPadding;
      for (size_t k = 0; k < term.from.size(); ++k)
        if (int from = term.from[k]; dependsOn(term, k))
          number = mix(number, mix(numberOf(from), computes ? splitsOf(from) : 0));
      if (factsOf(op).hasOwnPart && op.group >= 0)
        number = mix(number, static_cast<Number>(members_.positions().in(op.group, term.rank)) + 1);
      if (op.kind == OpKind::InitBlock || op.kind == OpKind::EmbeddingShardBwd)
        number = mix(number, partOf(blockNamed(op), term.rank));
    }
    return number;
  }

  /// A number that identifies the elements of split parameters in a term; 0 if it has none.
  Number splitsOf(int term) const {
    return splits_.any() ? numberOfSplits(plan_, members_.positions(), splits_, terms_, term) : 0;
  }

  // ---- the contributions that a term sums ----

  const Pieces &piecesOf(int term) {
    if (auto found = pieces_.find(term); found != pieces_.end())
      return found->second;
    Pieces pieces = makePieces(terms_[static_cast<size_t>(term)], term);
    return pieces_[term] = std::move(pieces);
  }

  Pieces makePieces(const Term &term, int id) {
    if (term.op == nullptr)
      return {};
    const Op &op = *term.op;
    Pieces pieces;
    if (op.kind == OpKind::Cast || op.kind == OpKind::Snapshot || op.kind == OpKind::Stage) {
      pieces = piecesOf(term.from[0]);
    } else if (op.kind == OpKind::View) {
      pieces = cut(piecesOf(term.from[0]), term.begin, term.numel);
    } else if (op.kind == OpKind::Pack) {
      std::vector<int64_t> sizes;
      for (int part : term.from)
        sizes.push_back(terms_[static_cast<size_t>(part)].numel);
      size_t part = 0;
      for (auto [offset, numel] : partsOfPack(plan_, op, sizes))
        if (part < term.from.size())
          for (Piece &piece : moved(piecesOf(term.from[part++]), offset))
            pieces.push_back(std::move(piece));
    } else if (isMeeting(op)) {
      pieces = meetingOf(term, op, id);
    } else if (isContribution(term)) {
      pieces = {{0, term.numel, {{ownNumberOf(id), 1}}}};
    }
    for (int added : term.added)
      addTo(pieces, piecesOf(added));
    return pieces;
  }

  Pieces meetingOf(const Term &term, const Op &op, int id) {
    if (term.result == 1) // squares of the other result
      return {{0, 1, {}}};
    if (isExchange(op)) // not a sum of this rank's elements, unless it changes nothing
      return numberOf(id) == numberOf(term.from[0]) ? piecesOf(term.from[0]) : Pieces();
    Pieces all;
    bool isSame = true;
    int64_t each = terms_[static_cast<size_t>(term.from[0])].numel, position = 0;
    for (int member : term.members) {
      isSame = isSame && numberOf(member) == numberOf(term.members[0]);
      if (op.kind == OpKind::AllGather) {
        for (Piece &piece : moved(piecesOf(member), position++ * each))
          all.push_back(std::move(piece));
      } else {
        addTo(all, piecesOf(member));
      }
    }
    if (op.kind != OpKind::AllGather && op.getBool(AttrKey::average) && isSame)
      all = piecesOf(term.members[0]);
    if (op.kind == OpKind::ReduceScatter)
      all = cut(all, term.position * term.numel, term.numel);
    return all;
  }

  // ---- operands of optimizers ----

  /// Each element of a gradient must contain, once, each microbatch of each rank that has the
  /// block.
  void checkGradient(int gradient, int32_t index, int64_t rank, int64_t step, bool isOfNorm) {
    const Block &block = plan_.blocks[static_cast<size_t>(index)];
    gradient = sumOf(terms_, gradient);
    const Term sum = terms_[static_cast<size_t>(gradient)];
    int64_t first = members_.positions().begin(block, sum.numel, rank).value_or(0);
    const Pieces pieces = piecesOf(gradient);
    for (const Piece &piece : pieces)
      for (auto [number, count] : piece.counts)
        gradients_[{isOfNorm, step, index}].insert(number);
    for (const Param &param : plan_.params) {
      if (param.block != index)
        continue;
      int64_t begin = std::max<int64_t>(param.offset - first, 0);
      int64_t end = std::min(param.offset + param.type.numel() - first, sum.numel);
      for (int64_t element = begin; element < end && problem_.empty();)
        element = checkPiece(pieces, element, param, rank, step);
    }
  }

  /// Checks an element; returns the next element that may have other contributions.
  int64_t checkPiece(const Pieces &pieces, int64_t element, const Param &param, int64_t rank,
                     int64_t step) {
    int32_t index = param.block;
    auto wrong = [&](std::string_view what) {
      fail(fmt::format("rank {}, step {}: the gradient of block {} {} at element {}", rank, step,
                       index, what, element));
      return element + 1;
    };
    const Piece *piece = nullptr;
    for (const Piece &each : pieces)
      if (each.begin <= element && element < each.end)
        piece = &each;
    if (piece == nullptr)
      return wrong("holds no contribution");
    for (auto [number, count] : piece->counts) {
      if (count != 1)
        return wrong("holds a contribution more than once");
      for (const auto &[maker, term] : makers_[number])
        if (batchesIn(maker.first, step).count(maker.second) == 0)
          return wrong("holds a contribution of another step");
      // A contribution that ranks compute alike counts for equal elements only.
      if (!std::ranges::all_of(makers_[number], [&](const auto &each) {
            return splits_.areSame(param, each.first.first, rank);
          }))
        return wrong("holds a contribution to other elements");
    }
    for (int64_t other : ranksOf(index))
      for (int64_t batch :
           splits_.areSame(param, other, rank) ? batchesIn(other, step) : std::set<int64_t>()) {
        bool isIn = std::ranges::any_of(piece->counts, [&](const auto &each) {
          return makers_[each.first].count({other, batch}) > 0;
        });
        if (!isIn)
          return wrong(fmt::format("lacks microbatch {} of rank {}", batch, other));
      }
    return piece->end;
  }

  const std::set<int64_t> &batchesIn(int64_t rank, int64_t step) {
    auto [at, isNew] = batches_.try_emplace({rank, step});
    if (!isNew)
      return at->second;
    for (const Term &term : terms_)
      if (term.rank == rank && term.step == step && term.batch >= 0)
        at->second.insert(term.batch);
    return at->second;
  }
  const std::vector<int64_t> &ranksOf(int32_t block) {
    auto [at, isNew] = ranks_.try_emplace(block);
    if (isNew)
      at->second = ranksWith(plan_, block);
    return at->second;
  }

  /// Ranks with the same part of a block must update it equally. All step states must be equal.
  void checkAlike() {
    for (const Update &a : updates_)
      for (const Update &b : updates_) {
        if (!problem_.empty())
          return;
        if (a.block != b.block || a.ordinal != b.ordinal || a.rank >= b.rank)
          continue;
        bool hasPart = partOf(a.block, a.rank) == partOf(b.block, b.rank);
        bool hasSame = hasPart && splits_.areSame(a.block, a.rank, b.rank);
        if (hasPart && !hasSame)
          checkCommon(a, b);
        for (size_t i = 0; i < a.terms.size() && i < b.terms.size(); ++i)
          if ((hasSame || i == a.state) && numberOf(a.terms[i]) != numberOf(b.terms[i]))
            fail(fmt::format("ranks {} and {} update block {} by other values", a.rank, b.rank,
                             a.block));
      }
  }

  /// If split parameters differ, the other parameters of the part must be equal.
  void checkCommon(const Update &a, const Update &b) {
    int64_t numel = at(a.terms[0]).numel;
    const Block &block = plan_.blocks[static_cast<size_t>(a.block)];
    int64_t first = members_.positions().begin(block, numel, a.rank).value_or(0);
    for (const Param *param : splits_.shared(a.block, a.rank, b.rank))
      if (!areAlike(piecesOf(a.terms[0]), piecesOf(b.terms[0]), param->offset - first,
                    param->type.numel()))
        fail(fmt::format("ranks {} and {} update {} by other values", a.rank, b.rank, param->name));
  }

  const Plan &plan_;
  Members members_;
  Splits splits_;
  std::vector<Term> terms_;
  std::vector<Update> updates_;
  std::vector<Norm> norms_;
  std::string problem_;
  bool isOpen_ = false; ///< an op takes a value that does not exist
  // Position of the rank whose program runs:
  int64_t rank_ = 0, run_ = 0, batch_ = 0, step_ = 0, stepsRun_ = 0;
  int64_t microbatch_ = 0;       ///< number of the microbatch within its step
  int64_t own_ = 0;              ///< number of the microbatch, counted over all steps
  int64_t firstOfStep_ = 0;      ///< number of the step's first microbatch
  std::vector<bool> isFollowed_; ///< for each cell
  Slots<int> slots_;
  const Role *role_ = nullptr;
  const Segment *segment_ = nullptr;
  Variant variant_ = Variant::Only;
  const ProgramNode *node_ = nullptr;
  bool isRepeated_ = false, isSeldom_ = false;
  bool hasRing_ = false, isTraining_ = false, hasFinished_ = false, hasUpdates_ = false;
  std::vector<int> cells_, values_;
  std::map<int32_t, int> updatedInStep_;
  std::set<int64_t> batchesOfStep_;
  std::map<int32_t, int64_t> ordinals_;
  std::map<std::pair<int16_t, ChannelId>, int64_t> meetings_;
  Key key_;
  // Of all ranks:
  std::map<Key, std::map<int64_t, int>> met_;
  std::vector<Waiting> waiting_;
  std::unordered_map<int, Number> numbers_, ownNumbers_;
  std::unordered_map<int, Pieces> pieces_;
  Makers makers_;
  Gradients gradients_;
  std::map<std::pair<int64_t, int64_t>, std::set<int64_t>> batches_;
  std::map<int32_t, std::vector<int64_t>> ranks_;
  std::vector<Written> written_;
  std::map<std::tuple<const Role *, uint32_t, Variant, uint32_t, const ProgramNode *>, Site> sites_;
  std::map<const Value *, std::vector<int>> overwritten_;
  /// Terms in buffers that a sum overwrites in microbatches in which it does not add to them.
  std::map<std::tuple<const Role *, const Op *, Variant>, std::vector<int>> replaced_;
  std::set<std::pair<const Role *, uint32_t>> readCells_;
};

} // namespace

std::string findSumBreak(const Plan &plan) { return Sums(plan).run(); }

} // namespace shardc::plan::oracle
