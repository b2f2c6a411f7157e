// Checks the optimizers of blocks. Each must be the optimizer of its block's class. One that
// updates whole matrices must have them whole: in its own shard, in updates that ranks have
// gathered, or in parts, where the ranks with parts compute each Newton-Schulz step together.
#include <algorithm>
#include <utility>

#include "runtime/plan/Matrices.h"
#include "runtime/plan/Optimizers.h"
#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {
namespace {

/// Whether the parameter consists of matrices: one tensor with rows and columns, or several.
bool hasMatrices(const Param &param) { return param.type.rank == param.rowDim() + 2; }

class MatrixCheck {
public:
  explicit MatrixCheck(Inspection &report) : report_(report), plan_(report.plan()) {}

  void run() {
    for (const Block &block : plan_.blocks)
      optimizers_.push_back(optimizerOf(plan_, block));
    for (const Param &param : plan_.params)
      if (param.block >= 0 && updatesMatrices(param.block) && !hasMatrices(param) &&
          plan_.classOf(blockAt(plan_, param.block)).isTrained)
        report_.addAbout(finding::NoMatrix, {}, param.name, blockAt(plan_, param.block).name);
    if (report_.size() != 0)
      return;
    forEachOp(plan_, [&](Spot at, const Segment &segment, const Op &op) {
      if (opInfo(op).isOptimizer())
        checkUpdate(at, segment, op);
    });
  }

private:
  bool updatesMatrices(int32_t block) const {
    const std::optional<Optimizer> &own = optimizers_[static_cast<size_t>(block)];
    return own && needsMatrices(*own);
  }

  void checkUpdate(Spot at, const Segment &segment, const Op &op) {
    auto block = static_cast<int32_t>(op.getInt(AttrKey::block));
    if (block < 0 || static_cast<size_t>(block) >= plan_.blocks.size())
      return; // another rule reports it
    const std::optional<Optimizer> &own = optimizers_[static_cast<size_t>(block)];
    bool isNamed = plan_.classOf(blockAt(plan_, block)).optimizer.has_value();
    bool isOfMatrices = op.kind == OpKind::Muon || updatesMatrices(block);
    if (own && (isNamed || isOfMatrices) && optimizerInfo(*own).op != op.kind)
      report_.add(finding::OtherOptimizer, at, blockAt(plan_, block).name,
                  plan_.classOf(blockAt(plan_, block)).name, optimizerInfo(*own).word);
    else if (updatesMatrices(block))
      checkWhole(at, segment, op, block);
  }

  /// The group whose ranks have parts of the block's matrices; -1 if each rank has them whole.
  int16_t groupOfParts(int32_t block) const {
    return joinsMatrixParts(plan_, block) ? groupOfMatrixParts(plan_, block) : int16_t{-1};
  }

  void reportCuts(int32_t index, bool isJoined, int64_t taken) {
    const Block &block = blockAt(plan_, index);
    int64_t reported = -1; // where the last reported tensor begins
    for (const BlockMatrix &matrix : matricesOf(plan_, index, isJoined))
      if (taken < block.numel && matrix.isCutBy(block.stateShard) &&
          std::exchange(reported, matrix.begin) != matrix.begin)
        report_.addAbout(finding::ShardCutsMatrix, {}, matrix.param->name, block.name,
                         block.stateShard, matrix.end - matrix.begin, matrix.param->offset);
  }

  /// Checks that ranks with parts of matrices compute all Newton-Schulz steps together, beginning
  /// with the updates of the op's shard, and that the workspace is large enough for these matrices.
  void checkDivided(Spot at, const Segment &segment, const Op &op, int32_t index) {
    constexpr size_t kLeft = operandIndex<OpKind::Muon>("u");
    const int16_t tensor = groupOfParts(index);
    const int64_t steps = op.getInt(AttrKey::ns_steps);
    ValueId x = op.operands.size() > kLeft ? op.operands[kLeft] : kNone;
    for (int64_t n = steps; n >= 0 && x != kNone; --n)
      x = tensor < 0 ? kNone : operandOfStep(at, segment, op, x, n, tensor);
    if (x == kNone || !isGathered(segment, op, x, /*tensor=*/-1))
      return void(report_.add(finding::StepsNotDivided, at, blockAt(plan_, index).name, steps));
    reportCuts(index, /*isJoined=*/true, segment.values[x].type.numel());
  }

  /// The input from which step `n` computes `y`; kNone if `y` is not the result of such a step over
  /// the group `tensor`.
  ValueId operandOfStep(Spot at, const Segment &segment, const Op &op, ValueId y, int64_t n,
                        int16_t tensor) {
    constexpr size_t kMoment = operandIndex<OpKind::MuonStep>("m"),
                     kSums = operandIndex<OpKind::MuonStep>("sums");
    auto isOfStep = [&](const Op &each) {
      auto has = [&](AttrKey key) { return each.getInt(key) == op.getInt(key); };
      return each.getInt(AttrKey::ns_step) == n && has(AttrKey::block) && has(AttrKey::products) &&
             each.operands[kMoment] == op.operands[operandIndex<OpKind::Muon>("m")] &&
             each.pred == op.pred;
    };
    const Op *step = producerOf(segment, y);
    if (step == nullptr || step->kind != OpKind::MuonStep || !isOfStep(*step) ||
        step->getInt(AttrKey::ns_coefficients) != op.getInt(AttrKey::ns_coefficients))
      return kNone;
    const Op *added = producerOf(segment, step->operands[kSums]);
    if (added == nullptr || added->kind != OpKind::AllReduce || added->group != tensor ||
        added->getBool(AttrKey::average) || added->pred != op.pred)
      return kNone;
    const Op *sums = producerOf(segment, added->operands[0]);
    if (sums == nullptr || sums->kind != OpKind::MuonSums || !isOfStep(*sums) ||
        sums->operands[0] != step->operands[0] ||
        sums->getInt(AttrKey::sum_ranks) != plan_.groupSize(tensor))
      return kNone;
    checkRoom(at, segment, *sums, *step);
    return step->operands[0];
  }

  void checkRoom(Spot at, const Segment &segment, const Op &sums, const Op &step) {
    const auto index = static_cast<int32_t>(step.getInt(AttrKey::block));
    const MatrixSums needed = matrixSumsOf(plan_, index);
    const bool isFirst = step.getInt(AttrKey::ns_step) == 0;
    const int64_t found = segment.values[sums.results[0]].type.numel(),
                  most = isFirst ? needed.matrices : needed.products;
    if (found < most)
      report_.add(finding::TooFewSums, at, found, blockAt(plan_, index).name, most);
    for (const Op *each : {&sums, &step})
      if (each->getInt(AttrKey::largest_matrix) < needed.largest)
        report_.add(finding::MatrixTooLarge, at, each->getInt(AttrKey::largest_matrix),
                    needed.largest, blockAt(plan_, index).name);
  }

  /// Checks that the op has each matrix whole: in its own shard, or in the updates that it reads.
  void checkWhole(Spot at, const Segment &segment, const Op &op, int32_t index) {
    constexpr size_t kWhole = operandIndex<OpKind::Muon>("u");
    if (op.getBool(AttrKey::divided))
      return checkDivided(at, segment, op, index);
    const Block &block = blockAt(plan_, index);
    const bool isJoined = joinsMatrixParts(plan_, index);
    const bool takesWhole = op.operands.size() > kWhole;
    const ValueId whole = takesWhole ? op.operands[kWhole] : kNone;
    const int16_t tensor = groupOfParts(index);
    if (!isGathered(segment, op, whole, tensor))
      return void(report_.add(finding::UpdatesNotWhole, at, block.name));
    const int64_t parts = isJoined ? plan_.groupSize(tensor) : 1;
    const int64_t taken =
        takesWhole ? segment.values[whole].type.numel() / parts : block.stateShard;
    reportCuts(index, isJoined, taken);
    int64_t largest = 0;
    for (const BlockMatrix &matrix : matricesOf(plan_, index, isJoined))
      largest = std::max(largest, matrix.tensorNumel());
    if (op.getInt(AttrKey::largest_matrix) < largest)
      report_.add(finding::MatrixTooLarge, at, op.getInt(AttrKey::largest_matrix), largest,
                  block.name);
  }

  /// Whether `whole` consists of the updates of the op's shard, gathered first over ranks with
  /// other shards (optional), then over `tensor` unless it is -1. If `whole` is kNone, `tensor`
  /// must be -1.
  bool isGathered(const Segment &segment, const Op &op, ValueId whole, int16_t tensor) const {
    if (whole == kNone)
      return tensor < 0 && op.getInt(AttrKey::tensor_parts) == 1;
    const Block &block = blockAt(plan_, static_cast<int32_t>(op.getInt(AttrKey::block)));
    const Op *producer = producerOf(segment, whole);
    auto goesOver = [&](int16_t group) {
      bool is =
          producer != nullptr && producer->kind == OpKind::AllGather && producer->group == group;
      if (is)
        producer = producerOf(segment, producer->operands[0]);
      return is;
    };
    int64_t parts = 1;
    if (tensor >= 0 && !goesOver(tensor))
      return false;
    if (tensor >= 0)
      parts = plan_.groupSize(tensor);
    if (op.getInt(AttrKey::tensor_parts) != parts)
      return false;
    const bool isOfBlock = block.stateGroup >= 0 && goesOver(block.stateGroup);
    if (segment.values[whole].type.numel() != parts * (isOfBlock ? block.numel : block.stateShard))
      return false;
    return producer != nullptr && isUpdateOf(*producer, op);
  }

  /// Whether `update` computes the values that the op would orthogonalise for its own shard.
  static bool isUpdateOf(const Op &update, const Op &op) {
    if (update.kind != OpKind::MuonUpdate || update.operands.size() > op.operands.size() ||
        !std::equal(update.operands.begin(), update.operands.end(), op.operands.begin()))
      return false;
    for (AttrKey key : {AttrKey::block, AttrKey::nesterov, AttrKey::decoupled})
      if (update.getInt(key) != op.getInt(key))
        return false;
    for (AttrKey key : {AttrKey::momentum, AttrKey::weight_decay})
      if (update.getFloat(key) != op.getFloat(key))
        return false;
    return update.pred == op.pred;
  }

  Inspection &report_;
  const Plan &plan_;
  std::vector<std::optional<Optimizer>> optimizers_; ///< by block
};

} // namespace

void checkMatrices(Inspection &inspection) { MatrixCheck(inspection).run(); }

} // namespace shardc::plan::verifier
