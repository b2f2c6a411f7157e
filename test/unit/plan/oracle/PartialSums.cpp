// Partial sums over ranks: of products with parts of a weight, and of products of different columns
// of a row. Each term is followed back to the products that computed it.
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "Terms.h"

namespace shardc::plan::oracle {
namespace {

using Axes = uint64_t; ///< one bit per axis of the mesh

class PartialSums {
public:
  PartialSums(const Plan &plan, const Positions &positions, const std::vector<Term> &terms)
      : plan_(plan), positions_(positions), terms_(terms) {}

  std::string find() {
    due_.reserve(terms_.size());
    for (const Term &term : terms_) { // terms come after the terms they are made from
      Axes taken = 0;
      bool isEven = true;
      for (size_t i = 0; i < term.from.size(); ++i) {
        Axes of = dueOf(term.from[i]);
        isEven &= i == 0 || of == taken;
        taken |= of;
      }
      bool keeps = term.op != nullptr && keepsSums(term.op->kind);
      bool isSum = term.op != nullptr && isSumOverRanks(term.op->kind);
      if (term.op != nullptr && term.op->kind == OpKind::MatMulAdd && addsToPart(term, taken))
        taken = 0;
      if (taken != 0 && term.op != nullptr && !isSum &&
          (!keeps || (term.op->kind == OpKind::Add && !isEven)))
        return fmt::format("rank {}: '{}' takes a part of a sum over ranks", term.rank,
                           opInfo(*term.op).name);
      if (std::string problem = findWrongIndex(term); !problem.empty())
        return problem;
      for (int added : term.added)
        taken |= dueOf(added);
      due_.push_back(term.op == nullptr ? 0
                     : isSum            ? taken & ~axesOf(term.op->group)
                     : keeps            ? taken
                                        : madeIn(term));
    }
    return {};
  }

private:
  Axes dueOf(int term) const {
    return static_cast<size_t>(term) < due_.size() ? due_[static_cast<size_t>(term)] : 0;
  }

  /// For a product with operands that are partial along `taken`: whether only the operand to which
  /// it adds is partial, in the same sum as the product itself.
  bool addsToPart(const Term &product, Axes taken) const {
    constexpr size_t kMore = 2;
    return taken == madeIn(product) && dueOf(product.from[kMore]) == taken &&
           dueOf(product.from[0]) == 0 && dueOf(product.from[1]) == 0;
  }

  static bool isSumOverRanks(OpKind kind) {
    return kind == OpKind::AllReduce || kind == OpKind::ReduceScatter;
  }
  static bool keepsSums(OpKind kind) {
    return kind == OpKind::View || kind == OpKind::Pack || kind == OpKind::Join ||
           kind == OpKind::Cast || kind == OpKind::Add;
  }

  Axes axesOf(int16_t group) const {
    Axes axes = 0;
    if (group >= 0)
      for (uint16_t axis : plan_.groups[static_cast<size_t>(group)].axes)
        axes |= plan_.mesh[axis].size > 1 ? Axes{1} << axis : 0;
    return axes;
  }

  /// The axes along which the op itself makes the term a partial sum.
  Axes madeIn(const Term &term) const {
    const Op &op = *term.op;
    if (op.kind == OpKind::Embedding)
      return axesOf(op.group);
    if (op.kind == OpKind::DotRows)
      return columnsOf(term.from[0]);
    if (op.kind == OpKind::MatMulScaled)
      return splitAt(term.from[0], true) | splitAt(term.from[1], true);
    if (op.kind == OpKind::MatMul || op.kind == OpKind::MatMulAdd ||
        op.kind == OpKind::MatMulGelu || op.kind == OpKind::MatMulGeluBwd)
      return splitAt(term.from[0], !op.getBool(AttrKey::trans_a)) |
             splitAt(term.from[1], op.getBool(AttrKey::trans_b));
    return 0;
  }

  static bool isProduct(OpKind kind) {
    return kind == OpKind::MatMul || kind == OpKind::MatMulAdd || kind == OpKind::MatMulGelu ||
           kind == OpKind::MatMulGeluBwd || kind == OpKind::MatMulScaled;
  }

  /// The axes along which ranks have different columns of a term, from the product that computed
  /// it.
  Axes columnsOf(int at) const {
    const Term *term = &terms_[static_cast<size_t>(at)];
    Axes exchanged = 0, joined = 0;
    while (term->op != nullptr && !isProduct(term->op->kind) && !term->from.empty()) {
      if (term->op->kind == OpKind::AllToAll)
        exchanged ^= axesOf(term->op->group);
      if (term->op->kind == OpKind::SplitQkv || term->op->kind == OpKind::SplitQkvRope)
        joined |= axesOf(term->op->group);
      term = &terms_[static_cast<size_t>(term->from[0])];
    }
    if (term->op == nullptr || !isProduct(term->op->kind))
      return 0;
    bool isLast = term->op->kind != OpKind::MatMulScaled && !term->op->getBool(AttrKey::trans_b);
    return (splitAt(term->from[1], isLast) ^ exchanged) | joined;
  }

  /// Describes an op that uses another rank's rows of a table, or columns of logits; empty if there
  /// is none.
  std::string findWrongIndex(const Term &term) const {
    if (term.op == nullptr || term.result != 0)
      return {};
    OpKind kind = term.op->kind;
    bool isWrong = false;
    if (kind == OpKind::Embedding && isParameter(term.from[1]))
      isWrong = splitAt(term.from[1], false) != axesOf(term.op->group);
    if (kind == OpKind::VocabStats || kind == OpKind::CrossEntropyBwd)
      isWrong = isOfOtherColumns(term);
    if (kind == OpKind::Pack)
      isWrong = hasOtherRows(term);
    bool takesWeight = kind == OpKind::GroupedMatMul || kind == OpKind::GroupedMatMulScaled;
    if (takesWeight && factsOf(*term.op).hasOwnPart)
      isWrong = isOfOtherExperts(term);
    return isWrong ? fmt::format("rank {}: '{}' has what ranks have by another index", term.rank,
                                 opInfo(kind).name)
                   : std::string();
  }

  bool isOfOtherColumns(const Term &loss) const {
    const Term *made = &terms_[static_cast<size_t>(loss.from[0])];
    while (made->op != nullptr && made->op->kind != OpKind::Add && keepsSums(made->op->kind))
      made = &terms_[static_cast<size_t>(made->from[0])];
    if (made->op == nullptr)
      return false;
    bool isScaled = made->op->kind == OpKind::MatMulScaled;
    bool isWhole = made->op->kind == OpKind::MatMul || made->op->kind == OpKind::MatMulAdd;
    if ((!isScaled && !isWhole) || !isParameter(made->from[1]))
      return false;
    bool isLast = !isScaled && !made->op->getBool(AttrKey::trans_b);
    return splitAt(made->from[1], isLast) != axesOf(loss.op->group);
  }

  /// Whether the product has the amaxes of another rank's experts.
  bool isOfOtherExperts(const Term &product) const {
    bool isLast = false;
    const Param *param = paramAt(product.from[1], isLast);
    if (param == nullptr)
      return false;
    Axes axes = 0;
    for (const Split &split : param->splits)
      axes |= split.dim == 0 ? axesOf(split.group) : 0;
    return axes != axesOf(product.op->group);
  }

  /// Whether a table's gradient is packed in the place of another part of the table.
  bool hasOtherRows(const Term &pack) const {
    std::vector<const Param *> params;
    for (const Param &param : plan_.params)
      if (blockNamed(*pack.op) >= 0 && param.block == blockNamed(*pack.op))
        params.push_back(&param);
    std::ranges::sort(params, {}, &Param::offset);
    for (size_t i = 0; i < std::min(params.size(), pack.from.size()); ++i) {
      const Term &part = terms_[static_cast<size_t>(pack.from[i])];
      Axes axes = 0;
      for (const Split &split : params[i]->splits)
        axes |= split.dim + 2 == params[i]->type.rank ? axesOf(split.group) : 0;
      if (part.op != nullptr && part.op->kind == OpKind::EmbeddingBwd &&
          axes != axesOf(part.op->group))
        return true;
    }
    return false;
  }

  bool isParameter(int factor) const {
    bool isLast = false;
    return paramAt(factor, isLast) != nullptr;
  }

  /// The parameter that is a factor of a product, possibly in 8 bits or transposed. Flips `isLast`
  /// for each transposition.
  const Param *paramAt(int factor, bool &isLast) const {
    const Term *term = &terms_[static_cast<size_t>(factor)];
    while (term->op != nullptr && isFormOf(*term, isLast)) {
      factor = term->from[0];
      term = &terms_[static_cast<size_t>(factor)];
    }
    std::optional<Weights> held = weightsOf(plan_, positions_, terms_, factor);
    for (const Param &param : plan_.params)
      if (held && param.block == held->block && param.offset == held->begin &&
          param.type.numel() == term->numel && param.type.rank >= 2)
        return &param;
    return nullptr;
  }

  /// The axes along which a weight is split in its last dimension, or in the dimension before it.
  Axes splitAt(int factor, bool isLast) const {
    const Param *param = paramAt(factor, isLast);
    Axes axes = 0;
    if (param != nullptr)
      for (const Split &split : param->splits)
        if (split.dim + (isLast ? 1 : 2) == param->type.rank)
          axes |= axesOf(split.group);
    return axes;
  }

  /// Whether the term is its operand in 8 bits, or transposed. Flips `isLast` if it is transposed.
  static bool isFormOf(const Term &term, bool &isLast) {
    OpKind kind = term.op->kind;
    bool isQuantized = kind == OpKind::Quantize || kind == OpKind::QuantizeBlocks ||
                       kind == OpKind::QuantizeDelayed;
    if (kind == OpKind::Transpose ||
        (isQuantized && term.op->getBool(AttrKey::transposed) != (term.result > 1)))
      isLast = !isLast;
    return isQuantized || kind == OpKind::Transpose || kind == OpKind::Dequantize;
  }

  const Plan &plan_;
  const Positions &positions_;
  const std::vector<Term> &terms_;
  std::vector<Axes> due_; ///< by term: the axes over which it must still be summed
};

} // namespace

std::string findPartialSumBreak(const Plan &plan, const Positions &positions,
                                const std::vector<Term> &terms) {
  return PartialSums(plan, positions, terms).find();
}

} // namespace shardc::plan::oracle
