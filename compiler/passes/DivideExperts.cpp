// Divides experts over ranks, as the parameter table says. Rows are sent to the ranks with their
// experts where they are made, and back where tokens need them. A rank that has a part of each
// expert gathers the rows of the group and keeps its own rows of the sum, like a tensor-parallel
// rank with sequence parallelism. Ops follow by their factors, so no kind of op is named here.
#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "compiler/passes/OpWriter.h"
#include "compiler/passes/Partition.h"
#include "runtime/base/Status.h"
#include "runtime/plan/FactorExtents.h"

namespace shardc::passes {
namespace {

using plan::FactorId;
using plan::FactorValue;
using plan::kNoFactor;
using plan::OpFactors;

/// The forms of a value of rows grouped by expert, or of their counts; kNone: not computed.
struct Forms {
  ValueId taken = kNone;  ///< rows of this rank's experts, from all ranks with other experts
  ValueId all = kNone;    ///< also from all ranks with other parts of these experts
  ValueId counts = kNone; ///< of rows: their counts, of this rank's tokens
  int cut = -1;           ///< the dimension of which this rank has a part
};

class ExpertDivider : OpWriter {
public:
  /// `ranks`: the group of ranks with other experts. `parts`: that of ranks with other parts of the
  /// same experts. -1: none.
  ExpertDivider(const plan::Plan &plan, const plan::Role &role, plan::Segment &segment,
                int16_t ranks, int16_t parts)
      : OpWriter(segment), plan_(plan), ranks_(ranks), parts_(parts),
        rankCount_(plan.groupSize(ranks)), partCount_(plan.groupSize(parts)),
        params_(paramsIn(plan, role, segment)) {
    for (ValueId value = 0; value < params_.size(); ++value)
      if (params_[value] != nullptr)
        segment.values[value].type = params_[value]->type;
  }

  void run() {
    rewrite([this](Op op) { divide(std::move(op)); });
  }

private:
  void divide(Op op) {
    const OpFactors &factors = plan::factorsOf(op);
    if (op.results.empty() || factors.resultCount == 0)
      return ops_.push_back(std::move(op));
    const FactorValue &made = plan::resultOf(op, factors, 0);
    if (made.countsRowsOf != kNoFactor)
      return group(std::move(op), *factors.attrOf[static_cast<size_t>(made.countsRowsOf)]);
    if (FactorId rows = rowsPlaced(op, factors); rows != kNoFactor)
      return made.has(rows) ? send(std::move(op)) : comeBack(std::move(op));
    if (std::ranges::any_of(op.operands, [&](ValueId value) { return forms_.contains(value); }))
      return compute(std::move(op), factors);
    ops_.push_back(std::move(op));
  }

  /// The factor of grouped rows to which an operand gives each token's positions.
  static FactorId rowsPlaced(const Op &op, const OpFactors &factors) {
    for (size_t i = 0; i < op.operands.size(); ++i)
      if (FactorId rows = plan::operandOf(op, factors, i).pointsInto;
          rows != kNoFactor && factors.isBound(rows))
        return rows;
    return kNoFactor;
  }

  /// Groups rows by expert, into one slot for each rank with other experts. `bound`: the attribute
  /// with the capacity.
  void group(Op op, plan::AttrKey bound) {
    const ValueId counts = op.results[0];
    const Type ids = typeOf(op.operands[0]);
    Type &type = segment_.values[counts].type;
    type.shape = {rankCount_, type.shape[1] / rankCount_};
    if (ranks_ >= 0)
      op.set(bound, rankCount_ * slotRows(ids.shape[0], ids.shape[1], type.shape[1]));
    rows_ = op.getInt(bound);
    ops_.push_back(std::move(op));
    distribute(counts, rankCount_, kNone);
  }

  /// The maximum number of rows that a rank can send to another one, since a token has a row for
  /// each of its experts; or less if the recipe says so. `experts`: of one rank.
  int64_t slotRows(int64_t tokens, int64_t topk, int64_t experts) const {
    const int64_t most = tokens * std::min(topk, experts);
    const double factor = plan_.job.model.moeExpertRankCapacityFactor;
    if (factor == 0)
      return most;
    // The part of each tensor- or context-parallel rank must also have a whole number of rows.
    const int64_t parts = plan_.groupSize(plan::groupOfKind(plan_, plan::GroupKind::Tensor)) *
                          plan_.groupSize(plan::groupOfKind(plan_, plan::GroupKind::Context));
    const double even =
        static_cast<double>(tokens * topk) / static_cast<double>(rankCount_ * parts);
    constexpr int64_t kWhole = 16; // rows, so that slots begin at aligned addresses
    const auto asked = static_cast<int64_t>(std::ceil(even * factor));
    return std::min(most, (asked + kWhole - 1) / kWhole * kWhole * parts);
  }

  /// Sends the rows that the op makes of tokens.
  void send(Op op) {
    const ValueId rows = op.results[0];
    segment_.values[rows].type.shape[0] = rows_;
    ops_.push_back(std::move(op));
    distribute(rows, rows_, segment_.values[rows].counts);
  }

  /// Sends rows of this rank's tokens, or their counts, to the ranks that have their experts, and
  /// gathers them among ranks with parts of these. `rows`: the number that is sent.
  void distribute(ValueId value, int64_t rows, ValueId counts) {
    const Forms of = counts == kNone ? Forms() : forms_.at(counts);
    Forms forms;
    forms.counts = counts;
    forms.taken = moved(OpKind::AllToAll, ranks_, value, nameOf(value) + ".taken", rows, of.taken);
    forms.all = moved(OpKind::AllGather, parts_, forms.taken, nameOf(value) + ".all",
                      rows * partCount_, of.all);
    forms_[value] = forms;
  }

  /// Sends rows back to the ranks with their tokens, which the op needs.
  void comeBack(Op op) {
    for (ValueId &operand : op.operands)
      if (auto rows = forms_.find(operand); rows != forms_.end())
        operand = moved(OpKind::AllToAll, ranks_, rows->second.taken, nameOf(operand) + ".own",
                        rows_, rows->second.counts);
    ops_.push_back(std::move(op));
  }

  /// Computes on rows of this rank's experts. If ranks have parts of the experts and the op is cut
  /// along a factor, it takes the rows of all of them; otherwise each rank computes its own rows.
  void compute(Op op, const OpFactors &factors) {
    const FactorId cut = cutOf(op, factors);
    Forms forms;
    int64_t rows = 0;
    for (ValueId &operand : op.operands) {
      if (auto of = forms_.find(operand); of != forms_.end()) {
        const ValueId counts = of->second.counts;
        operand = cut != kNoFactor ? allOf(operand) : of->second.taken;
        if (counts != kNone)
          forms.counts = counts, rows = typeOf(operand).shape[0];
      } else if (isCopied(operand)) {
        operand = emitShared(operand, parts_, purposeOf(operand));
      }
    }
    const ValueId result = op.results[0];
    const Forms &counts = forms_.at(forms.counts);
    plan::Value &value = segment_.values[result];
    value.type.shape[0] = rows;
    value.counts = cut != kNoFactor ? counts.all : counts.taken;
    if (cut == kNoFactor) {
      forms.taken = result, forms.all = parts_ < 0 ? result : kNone;
      ops_.push_back(std::move(op));
    } else if (plan::resultOf(op, factors, 0).has(cut)) {
      forms.all = result, forms.cut = value.type.rank - 1;
      value.type.shape[static_cast<size_t>(forms.cut)] /= partCount_;
      ops_.push_back(std::move(op));
    } else { // a partial sum, of which each rank keeps its rows
      ops_.push_back(std::move(op));
      forms.taken = moved(OpKind::ReduceScatter, parts_, result, nameOf(result) + ".sum",
                          rows / partCount_, counts.taken);
    }
    forms_[result] = forms;
  }

  /// The factor along which ranks have parts of the op's operands; kNoFactor if there is none.
  FactorId cutOf(const Op &op, const OpFactors &factors) const {
    for (size_t i = 0; i < op.operands.size() && parts_ >= 0; ++i) {
      int dim = -1;
      if (const plan::Param *param = paramOf(op.operands[i])) {
        auto split = std::ranges::find(param->splits, parts_, &plan::Split::group);
        dim = split != param->splits.end() ? split->dim : -1;
      } else if (auto rows = forms_.find(op.operands[i]); rows != forms_.end()) {
        dim = rows->second.cut;
      }
      const FactorValue &row = plan::operandOf(op, factors, i);
      if (dim >= 0)
        return plan::factorAt(row, row.transposedBy && op.getBool(*row.transposedBy),
                              typeOf(op.operands[i]).rank, static_cast<uint8_t>(dim));
    }
    return kNoFactor;
  }

  /// The rows of all ranks with parts of the same experts. Gathers them if none were computed.
  ValueId allOf(ValueId value) {
    Forms &forms = forms_.at(value);
    if (forms.all == kNone)
      forms.all = moved(OpKind::AllGather, parts_, forms.taken, nameOf(value) + ".all",
                        typeOf(forms.taken).shape[0] * partCount_, forms_.at(forms.counts).all);
    return forms.all;
  }

  /// Whether all ranks with parts of the same experts have this parameter.
  bool isCopied(ValueId value) const {
    const plan::Param *param = paramOf(value);
    return parts_ >= 0 && param != nullptr &&
           std::ranges::find(param->copies, parts_) != param->copies.end();
  }

  /// Emits a collective on the rows of a value; without a group, returns the value.
  ValueId moved(OpKind kind, int16_t group, ValueId value, std::string name, int64_t rows,
                ValueId counts) {
    if (group < 0)
      return value;
    Type type = typeOf(value);
    type.shape[0] = rows;
    ValueId result = emit(make(kind, {value}, group), std::move(name), type, purposeOf(value));
    segment_.values[result].counts = counts;
    return result;
  }
  const plan::Param *paramOf(ValueId value) const {
    return value < params_.size() ? params_[value] : nullptr; // the pass adds values
  }

  const plan::Plan &plan_;
  int16_t ranks_, parts_;
  int64_t rankCount_, partCount_;
  std::vector<const plan::Param *> params_;  ///< by value of the model
  int64_t rows_ = 0;                         ///< capacity in rows, for sent and for received rows
  std::unordered_map<ValueId, Forms> forms_; ///< by value of the model
};

} // namespace

void divideExperts(plan::Plan &plan) {
  const int16_t ranks = plan::groupToCutOf(plan, plan::GroupKind::Expert);
  const int16_t parts = plan::groupToCutOf(plan, plan::GroupKind::ExpertTensor);
  auto isToCut = [](const plan::Param &param) { return param.isStacked() && param.isUncut(); };
  if (std::ranges::none_of(plan.params, isToCut))
    return;
  cutParams(plan, /*areStacked=*/true);
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments)
      if (segment.body)
        ExpertDivider(plan, role, segment, ranks, parts).run();
}

} // namespace shardc::passes
