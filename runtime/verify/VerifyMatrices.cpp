// Optimizers of blocks: that each is that of its block's class, and that one of whole matrices has
// them.
#include <algorithm>
#include <numeric>

#include "runtime/plan/Optimizers.h"
#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {
namespace {

/// Elements of one of its matrices; 0 if it has none.
int64_t matrixOf(const Param &param) {
  uint8_t first = param.isStacked() ? 1 : 0;
  if (param.type.rank != first + 2)
    return 0;
  return param.type.shape[first] * param.type.shape[first + 1];
}

/// Whether a boundary of shards lies inside of a matrix.
bool isCut(const Block &block, const Param &param, int64_t matrix) {
  int64_t end = param.offset + param.type.numel();
  for (int64_t at = (param.offset / block.stateShard + 1) * block.stateShard; at < end;
       at += block.stateShard)
    if ((at - param.offset) % matrix != 0)
      return true;
  return false;
}

class MatrixCheck {
public:
  explicit MatrixCheck(Inspection &report) : report_(report), plan_(report.plan()) {}

  void run() {
    for (const Block &block : plan_.blocks)
      optimizers_.push_back(optimizerOf(plan_, block));
    largest_.resize(plan_.blocks.size());
    for (const Param &param : plan_.params)
      if (param.block >= 0 && updatesMatrices(param.block) &&
          plan_.classOf(blockAt(plan_, param.block)).isTrained)
        checkParam(param);
    if (report_.size() != 0)
      return;
    forEachOp(plan_, [&](Spot at, const Segment &, const Op &op) {
      if (opInfo(op).isOptimizer())
        checkUpdate(at, op);
    });
  }

private:
  bool updatesMatrices(int32_t block) const {
    const std::optional<Optimizer> &own = optimizers_[static_cast<size_t>(block)];
    return own && needsMatrices(*own);
  }

  void checkParam(const Param &param) {
    const Block &block = blockAt(plan_, param.block);
    int64_t matrix = matrixOf(param);
    if (matrix == 0)
      return void(report_.addAbout(finding::NoMatrix, {}, param.name, block.name));
    if (isCut(block, param, matrix))
      report_.addAbout(finding::ShardCutsMatrix, {}, param.name, block.name, block.stateShard,
                       matrix, param.offset);
    int64_t &largest = largest_[static_cast<size_t>(param.block)];
    largest = std::max(largest, matrix);
  }

  void checkUpdate(Spot at, const Op &op) {
    auto block = static_cast<int32_t>(op.getInt(AttrKey::block));
    if (block < 0 || static_cast<size_t>(block) >= plan_.blocks.size())
      return; // which another rule reports
    const std::optional<Optimizer> &own = optimizers_[static_cast<size_t>(block)];
    bool isNamed = plan_.classOf(blockAt(plan_, block)).optimizer.has_value();
    bool isOfMatrices = op.kind == OpKind::Muon || updatesMatrices(block);
    if (own && (isNamed || isOfMatrices) && optimizerInfo(*own).op != op.kind)
      report_.add(finding::OtherOptimizer, at, blockAt(plan_, block).name,
                  plan_.classOf(blockAt(plan_, block)).name, optimizerInfo(*own).word);
    else if (updatesMatrices(block) &&
             op.getInt(AttrKey::largest_matrix) < largest_[static_cast<size_t>(block)])
      report_.add(finding::MatrixTooLarge, at, op.getInt(AttrKey::largest_matrix),
                  largest_[static_cast<size_t>(block)], blockAt(plan_, block).name);
  }

  Inspection &report_;
  const Plan &plan_;
  std::vector<std::optional<Optimizer>> optimizers_; ///< by block
  std::vector<int64_t> largest_;                     ///< by block: elements of a matrix
};

} // namespace

void checkMatrices(Inspection &inspection) { MatrixCheck(inspection).run(); }

} // namespace shardc::plan::verifier
