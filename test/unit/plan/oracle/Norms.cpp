// A norm must contain the square of each element of each gradient once.
#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "Blocks.h"
#include "Contract.h"
#include "Splits.h"
#include "Terms.h"

namespace shardc::plan::oracle {
namespace {

class Norms {
public:
  Norms(const Plan &plan, const Positions &positions, const std::vector<Term> &terms)
      : plan_(plan), positions_(positions), splits_(plan, positions), terms_(terms) {}

  std::string run() {
    for (const Term &term : terms_)
      if (term.op != nullptr && term.op->kind == OpKind::StepFinish && problem_.empty())
        checkNorm(term);
    return problem_;
  }

private:
  const Term &at(int id) const { return terms_[static_cast<size_t>(id)]; }

  /// Adds to `packs` the number of times that each rank's packed values occur in a sum over ranks.
  void countPacked(int id, double weight, std::map<int, double> &packs) const {
    const Term &term = at(id);
    if (term.op == nullptr || term.op->kind != OpKind::AllReduce) {
      packs[id] += weight;
      return;
    }
    if (term.op->getBool(AttrKey::average))
      weight /= static_cast<double>(term.members.size());
    for (int member : term.members)
      countPacked(member, weight, packs);
  }

  /// The number by which the op divides the squares of a block; 0 if the op does not square the
  /// block, or divides by several numbers.
  static int64_t copiesOf(const Op &squares, int32_t block) {
    int64_t copies = 0;
    for (const ListedBlock &each : squares.blocks)
      if (each.block == block && copies != 0 && copies != each.copies)
        return 0;
      else if (each.block == block)
        copies = each.copies;
    return copies;
  }

  /// Whether the squares are of rank `like`'s part of the block, or of the block's parameter.
  bool isIn(int squares, int32_t index, const Param *param, int64_t like) const {
    const Term &sum = at(squares);
    if (sum.op == nullptr || sum.op->kind != OpKind::SumSquares)
      return false;
    const Block &block = plan_.blocks[static_cast<size_t>(index)];
    bool hasBlock = copiesOf(*sum.op, index) > 0;
    bool hasPart = block.stateShard == block.numel || positions_.in(block.stateGroup, sum.rank) ==
                                                          positions_.in(block.stateGroup, like);
    bool hasParam = param == nullptr ||
                    (splits_.areSame(*param, sum.rank, like) && splits_.counts(*param, sum.rank));
    return hasBlock && hasPart && hasParam;
  }

  void checkNorm(const Term &finish) {
    std::map<int, double> packs;
    countPacked(finish.from[1], 1, packs);
    bool isEach = std::ssize(packs) == plan_.worldSize() &&
                  std::ranges::all_of(packs, [](const auto &each) { return each.second == 1; });
    if (!isEach)
      problem_ = fmt::format("rank {}: step {} counts what ranks have packed otherwise than once",
                             finish.rank, finish.step);
    for (int32_t b = 0; b < static_cast<int32_t>(plan_.blocks.size()); ++b) {
      checkPart(finish, packs, b, nullptr);
      for (const Param &param : plan_.params)
        if (param.block == b)
          checkPart(finish, packs, b, &param);
    }
  }

  /// Checks one parameter. A block without parameters is checked as a whole, with its padding.
  void checkPart(const Term &finish, const std::map<int, double> &packs, int32_t block,
                 const Param *param) {
    bool hasParams =
        std::ranges::any_of(plan_.params, [&](const Param &each) { return each.block == block; });
    if (param == nullptr && hasParams)
      return;
    for (int64_t like = 0; like < plan_.worldSize() && problem_.empty(); ++like) {
      bool isOwn = finish.op->getBool(AttrKey::norm_replicated);
      double count =
          isOwn ? isIn(finish.from[2], block, param, like) : countOf(packs, block, param, like);
      double needed = isTrainedBlock(plan_, block) ? 1 : 0;
      if (!(count > needed - 1e-9 && count < needed + 1e-9))
        problem_ = fmt::format("rank {}: the norm of step {} counts what rank {} has of block {} "
                               "{} times",
                               finish.rank, finish.step, like, block, count);
    }
  }

  double countOf(const std::map<int, double> &packs, int32_t block, const Param *param,
                 int64_t like) const {
    double count = 0;
    for (auto [id, weight] : packs) {
      const Term &pack = at(id);
      if (pack.op == nullptr || pack.op->kind != OpKind::StepPack ||
          pack.op->getBool(AttrKey::norm_replicated) || !isIn(pack.from[1], block, param, like))
        continue;
      count += weight / static_cast<double>(copiesOf(*at(pack.from[1]).op, block));
    }
    return count;
  }

  const Plan &plan_;
  const Positions &positions_;
  Splits splits_;
  const std::vector<Term> &terms_;
  std::string problem_;
};

} // namespace

bool isOfProduct(const Term &squares) {
  return squares.op != nullptr && squares.op->kind == OpKind::GroupedMatMulBwdSquares &&
         squares.result == 1;
}

int sumOf(const std::vector<Term> &terms, int term) {
  const Term &squares = terms[static_cast<size_t>(term)];
  bool isMade = squares.op != nullptr && squares.result == 1 &&
                (squares.op->kind == OpKind::ReduceScatter || isOfProduct(squares));
  if (squares.numel != 1 || !isMade)
    return term;
  for (size_t other = 0; other < terms.size(); ++other)
    if (terms[other].op == squares.op && terms[other].run == squares.run &&
        terms[other].rank == squares.rank && terms[other].result == 0)
      return static_cast<int>(other);
  return term;
}

std::string findSquareBreak(const Plan &plan, const std::vector<Term> &terms,
                            const std::vector<Update> &updates, const Norm &norm,
                            const PiecesOf &piecesOf, Gradients &gradients) {
  std::map<int32_t, std::vector<Pieces>> squared; // for each block with squares of products
  for (auto [term, block] : norm.gradients)
    if (isOfProduct(terms[static_cast<size_t>(term)]))
      squared[block];
  for (auto [term, block] : norm.gradients)
    if (auto of = squared.find(block); of != squared.end())
      of->second.push_back(piecesOf(sumOf(terms, term)));
  for (auto &[block, all] : squared) {
    for (const Pieces &pieces : all)
      for (const Piece &piece : pieces)
        for (auto [number, times] : piece.counts)
          gradients[{true, norm.step, block}].insert(number);
    auto update = std::ranges::find_if(updates, [&, block = block](const Update &each) {
      return each.rank == norm.rank && each.step == norm.step && each.block == block;
    });
    if (update == updates.end()) // no update uses these squares
      continue;
    Pieces taken = piecesOf(update->terms[0]);
    int64_t params = std::ranges::count(plan.params, block, &Param::block);
    bool isEach = std::ssize(all) == params;
    for (const Param &param : plan.params)
      if (param.block == block)
        isEach &= param.copies.empty() &&
                  std::ranges::count(all, cut(taken, param.offset, param.type.numel())) == 1;
    if (!isEach)
      return fmt::format("rank {}, step {}: the norm has other squares than those of block {}",
                         norm.rank, norm.step, block);
  }
  return {};
}

std::string findNormBreak(const Plan &plan, const Positions &positions,
                          const std::vector<Term> &terms) {
  return Norms(plan, positions, terms).run();
}

} // namespace shardc::plan::oracle
