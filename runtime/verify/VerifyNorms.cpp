// Checks that each element of a gradient counts once in the norm. Either all ranks have all
// elements and use their own squares, or each rank divides its squares by the number of ranks that
// count the same elements. A role may leave out a block that another role counts.
#include <algorithm>
#include <map>
#include <set>

#include "runtime/verify/VerifySums.h"

namespace shardc::plan::verifier {
namespace {

/// Parameters of a block that are split along the same axes and copied along the same axes.
struct Class {
  Axes splits = 0, copies = 0;
  auto operator<=>(const Class &) const = default;
};
class NormCheck {
public:
  explicit NormCheck(Inspection &inspection) : report_(inspection), plan_(inspection.plan()) {}

  void run() {
    forEachOp(plan_, [&](Spot at, const Segment &, const Op &op) {
      if (op.kind == OpKind::StepFinish && !report_.isFull())
        findPack(at);
    });
    bool isSummed = std::ranges::any_of(norms_, [](const Norm &norm) { return !norm.isOwn; });
    for (const Norm &norm : norms_)
      checkNorm(norm, isSummed);
  }

private:
  /// How a role computes its norm at the end of a step.
  struct Norm {
    Spot at;
    const Op *pack, *squares;
    bool isOwn; ///< the norm uses this rank's squares, not the sum over ranks

    bool counts(size_t block) const { return copiesOf(block) > 0; }
    /// The divisor of the block's squares in `sum_squares`; 0 if the op leaves the block out.
    int64_t copiesOf(size_t block) const {
      auto at =
          std::ranges::find(squares->blocks, static_cast<int32_t>(block), &ListedBlock::block);
      return at == squares->blocks.end() ? 0 : at->copies;
    }
  };

  void findPack(Spot at) {
    const Segment &segment = plan_.roles[at.role].segments[at.segment];
    const Op &finish = segment.ops[at.op];
    Axes summed = 0;
    const Op *op = producerOf(segment, operandNamed<OpKind::StepFinish>(finish, "partial"));
    for (; op != nullptr && op->kind == OpKind::AllReduce;
         op = producerOf(segment, op->operands[0])) {
      Axes over = axesOf(plan_, op->group);
      need(at, (summed & over) == 0 && !op->getBool(AttrKey::average),
           "takes an average, or sums that count what a rank has packed more than once");
      summed |= over;
    }
    if (op == nullptr || op->kind != OpKind::StepPack)
      return;
    const Op *squares = producerOf(segment, operandNamed<OpKind::StepPack>(*op, "ss"));
    if (squares != nullptr && squares->kind == OpKind::SumSquares)
      norms_.push_back({at, op, squares, finish.getBool(AttrKey::norm_replicated)});
  }

  /// If any role computes the norm from a sum over ranks, each role must pack its squares.
  void checkNorm(const Norm &norm, bool isSummed) {
    if (isSummed)
      need(norm.at, !norm.pack->getBool(AttrKey::norm_replicated),
           "sums squares over ranks, and its 'step.pack' leaves them out");
    for (size_t block = 0; block < plan_.blocks.size() && !report_.isFull(); ++block) {
      bool isUpdated = report_.updates(norm.at.role, block);
      if (isSummed && isUpdated)
        checkCopies(norm, block);
      if (norm.isOwn && !report_.rolesThatLoad(block).empty() &&
          plan_.classOf(plan_.blocks[block]).isTrained)
        need(norm.at,
             norm.copiesOf(block) == 1 &&
                 plan_.blocks[block].stateShard == plan_.blocks[block].numel &&
                 classesOf(block) == Classes{{Class{}, nullptr}},
             "takes the squares of this rank's part for those of all elements");
    }
  }

  using Classes = std::map<Class, const Param *>; ///< with one parameter each, for messages

  Classes classesOf(size_t block) {
    Classes classes;
    for (const Param *param : report_.paramsOf(static_cast<int32_t>(block)))
      if (!param->splits.empty() || !param->copies.empty())
        classes.emplace(Class{splitAxesOf(plan_, *param), copyAxesOf(plan_, *param)}, param);
      else
        classes.emplace(Class{}, nullptr);
    if (classes.empty())
      classes.emplace(Class{}, nullptr);
    return classes;
  }

  void checkCopies(const Norm &norm, size_t block) {
    int64_t said = norm.copiesOf(block);
    for (const auto &[each, param] : classesOf(block))
      for (const Role &part :
           partsAlong(report_, plan_.roles[norm.at.role],
                      static_cast<Axes>(stateAxesOf(plan_, plan_.blocks[block]) | each.splits))) {
        int64_t copies = copiesOf(block, part, each);
        bool isRight = norm.counts(block) ? copies == said : copies > 0;
        if (!report_.spend(plan_.roles.size()) || isRight)
          continue;
        const std::string &name = plan_.blocks[block].name;
        std::string what = param == nullptr
                               ? fmt::format("the same part of block '{}'", name)
                               : fmt::format("the same elements of parameter '{}'", param->name);
        if (said == 0)
          report_.addAbout(finding::SquaresMissing, norm.at, name, what);
        else
          report_.addAbout(finding::SquaresOfCopies, norm.at, name, said, copies, what);
        return;
      }
  }

  /// Whether the role updates the block and counts it in its norm.
  bool counts(uint32_t role, size_t block) {
    return report_.updates(role, block) && std::ranges::any_of(norms_, [&](const Norm &norm) {
             return norm.at.role == role && norm.counts(block);
           });
  }

  /// The number of ranks that count the same elements: parameters of the class, in the part of the
  /// block's state at these coordinates. Of ranks with copies, only the first counts.
  int64_t copiesOf(size_t block, const Role &part, const Class &of) {
    Axes divided = stateAxesOf(plan_, plan_.blocks[block]) | of.splits;
    int64_t copies = 0;
    for (uint32_t r = 0; r < plan_.roles.size(); ++r) {
      if (!counts(r, block))
        continue;
      int64_t ranks = 1;
      for (uint16_t axis = 0; axis < plan_.mesh.size(); ++axis) {
        AxisRange extent = extentOf(plan_, plan_.roles[r], axis);
        if ((of.copies >> axis & 1) != 0) // only the first of the copies counts
          ranks *= extent.begin == 0 ? 1 : 0;
        else if ((divided >> axis & 1) == 0)
          ranks *= extent.end - extent.begin;
        else if (int64_t at = extentOf(plan_, part, axis).begin;
                 at < extent.begin || extent.end <= at)
          ranks = 0;
      }
      copies += ranks;
    }
    return copies;
  }

  void need(Spot at, bool condition, std::string_view what) {
    if (!condition)
      report_.add(finding::StepOp, at, what);
  }

  Inspection &report_;
  const Plan &plan_;
  std::vector<Norm> norms_;
};

} // namespace

void checkNorms(Inspection &inspection) { NormCheck(inspection).run(); }

} // namespace shardc::plan::verifier
