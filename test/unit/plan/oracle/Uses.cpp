// Each use of a weight in the forward pass must contribute to its gradient: compares the number of
// rows in the contributions, per rank and microbatch, with the number of rows for which the rank
// has used the block's weights.
#include <map>
#include <set>

#include <fmt/format.h>

#include "Terms.h"
#include "runtime/plan/FactorExtents.h"

namespace shardc::plan::oracle {
namespace {

/// Whether the op computes a new value from activations in the forward pass.
bool isUse(const Term &term) {
  const Op &op = *term.op;
  bool isAgain = op.kind == OpKind::RmsNormAgain || op.kind == OpKind::LayerNormAgain;
  bool changesForm = op.epilogue == Epilogue::None &&
                     (op.kind == OpKind::Quantize || op.kind == OpKind::QuantizeBlocks ||
                      op.kind == OpKind::QuantizeDelayed || op.kind == OpKind::Amax);
  return isContribution(term) && term.result == 0 && op.phase == Phase::Forward &&
         op.role == ProductRole::Forward && !op.isRecomputed && !isAgain && !changesForm &&
         op.kind != OpKind::Transpose && op.kind != OpKind::AdapterSquares;
}

/// The term before quantization and transposition.
int originOf(const std::vector<Term> &terms, int id) {
  for (const Term *term = &terms[size_t(id)]; term->op != nullptr; term = &terms[size_t(id)]) {
    OpKind kind = term->op->kind;
    bool isNumbers = dtypeBytes(term->dtype) == 1 && term->op->epilogue == Epilogue::None &&
                     (kind == OpKind::Quantize || kind == OpKind::QuantizeBlocks ||
                      kind == OpKind::QuantizeDelayed);
    if (!isNumbers && kind != OpKind::Transpose)
      break;
    id = term->from[0];
  }
  return id;
}

using Place = std::tuple<int64_t, int64_t, int64_t, int32_t>; ///< step, rank, microbatch, block

} // namespace

std::string findUseBreak(const Plan &plan, const Positions &positions,
                         const std::vector<Term> &terms, const Gradients &gradients,
                         const Makers &makers) {
  std::map<Place, int64_t> uses;
  std::set<std::tuple<int64_t, int64_t, const Op *, size_t>> seen; // segments may run again
  std::map<std::pair<int64_t, int64_t>, int64_t> stepOf;           // by rank and microbatch
  for (const Term &term : terms) {
    if (term.batch >= 0)
      stepOf[{term.rank, term.batch}] = term.step;
    if (term.op == nullptr || !isUse(term))
      continue;
    for (size_t k = 0; k < term.from.size(); ++k)
      if (auto weights = weightsOf(plan, positions, terms, originOf(terms, term.from[k])))
        if (seen.insert({term.rank, term.batch, term.op, k}).second)
          uses[{term.step, term.rank, term.batch, weights->block}] +=
              rowsOfOperand(plan, *term.segment, *term.op, k);
  }
  for (const auto &[taken, contributions] : gradients) {
    std::map<Place, int64_t> made;
    for (const auto &[place, rows] : uses)
      if (std::get<0>(place) == taken.step && std::get<3>(place) == taken.block)
        made[place] = 0;
    for (Number contribution : contributions)
      for (const auto &[maker, id] : makers.at(contribution)) {
        const Term &term = terms[static_cast<size_t>(id)];
        made[{stepOf.at(maker), maker.first, maker.second, taken.block}] +=
            rowsOfResult(plan, *term.segment, *term.op, term.result);
      }
    for (const auto &[place, rows] : made)
      if (rows != uses[place])
        return fmt::format("step {}, rank {}, microbatch {}: weights of block {} are used for {} "
                           "rows, and their gradient has contributions of {}",
                           taken.step, std::get<1>(place), std::get<2>(place), taken.block,
                           uses[place], rows);
  }
  return {};
}

} // namespace shardc::plan::oracle
