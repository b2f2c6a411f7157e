// Optimizers of blocks: that each is that of its block's class, and that one of whole matrices has
// them: in its shard, or in updates that it takes, which ranks have gathered.
#include <algorithm>
#include <utility>

#include "runtime/plan/Matrices.h"
#include "runtime/plan/Optimizers.h"
#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {
namespace {

/// Whether the parameter has rows and columns, of one tensor or of several.
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
      return; // which another rule reports
    const std::optional<Optimizer> &own = optimizers_[static_cast<size_t>(block)];
    bool isNamed = plan_.classOf(blockAt(plan_, block)).optimizer.has_value();
    bool isOfMatrices = op.kind == OpKind::Muon || updatesMatrices(block);
    if (own && (isNamed || isOfMatrices) && optimizerInfo(*own).op != op.kind)
      report_.add(finding::OtherOptimizer, at, blockAt(plan_, block).name,
                  plan_.classOf(blockAt(plan_, block)).name, optimizerInfo(*own).word);
    else if (updatesMatrices(block))
      checkWhole(at, segment, op, block);
  }

  /// That the op has each matrix whole: in its shard, or in the updates that it takes.
  void checkWhole(Spot at, const Segment &segment, const Op &op, int32_t index) {
    constexpr size_t kWhole = operandIndex<OpKind::Muon>("u");
    const Block &block = blockAt(plan_, index);
    const bool isJoined = joinsMatrixParts(plan_, index);
    const bool takesWhole = op.operands.size() > kWhole;
    const ValueId whole = takesWhole ? op.operands[kWhole] : kNone;
    const int16_t tensor = isJoined ? groupOfMatrixParts(plan_, index) : int16_t{-1};
    if (!isGathered(segment, op, whole, tensor))
      return void(report_.add(finding::UpdatesNotWhole, at, block.name));
    const int64_t parts = isJoined ? plan_.groupSize(tensor) : 1;
    const int64_t taken =
        takesWhole ? segment.values[whole].type.numel() / parts : block.stateShard;
    int64_t largest = 0, reported = -1; // the beginning of a tensor
    for (const BlockMatrix &matrix : matricesOf(plan_, index, isJoined)) {
      if (taken < block.numel && matrix.isCutBy(block.stateShard) &&
          std::exchange(reported, matrix.begin) != matrix.begin)
        report_.addAbout(finding::ShardCutsMatrix, {}, matrix.param->name, block.name,
                         block.stateShard, matrix.end - matrix.begin, matrix.param->offset);
      largest = std::max(largest, matrix.tensorNumel());
    }
    if (op.getInt(AttrKey::largest_matrix) < largest)
      report_.add(finding::MatrixTooLarge, at, op.getInt(AttrKey::largest_matrix), largest,
                  block.name);
  }

  /// Whether `whole` is the updates of the op's shard, gathered over the ranks with other shards or
  /// not, and then over `tensor` if that is a group. Without `whole`, this is no group.
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

  /// Whether `update` makes what the op would orthogonalise of its own shard.
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
