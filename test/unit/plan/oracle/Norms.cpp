// Of each element of each gradient the norm has the square once.
#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "Contract.h"
#include "Terms.h"

namespace shardc::plan::oracle {
namespace {

class Norms {
public:
  Norms(const Plan &plan, const Positions &positions, const std::vector<Term> &terms)
      : plan_(plan), positions_(positions), terms_(terms) {}

  std::string run() {
    for (const Term &term : terms_)
      if (term.op != nullptr && term.op->kind == OpKind::StepFinish && problem_.empty())
        checkNorm(term);
    return problem_;
  }

private:
  const Term &at(int id) const { return terms_[static_cast<size_t>(id)]; }

  /// How often what each rank has packed is in a sum over ranks.
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

  /// Whether a rank has squared the part of the block.
  bool isIn(int squares, int32_t index, int64_t part) const {
    const Term &sum = at(squares);
    if (sum.op == nullptr || sum.op->kind != OpKind::SumSquares)
      return false;
    const Block &block = plan_.blocks[static_cast<size_t>(index)];
    int64_t first = std::max<int64_t>(sum.op->getInt(AttrKey::block), 0);
    bool hasBlock = index >= first && index - first < std::ssize(sum.from);
    return hasBlock &&
           (block.stateShard == block.numel || positions_.in(block.stateGroup, sum.rank) == part);
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
      const Block &block = plan_.blocks[static_cast<size_t>(b)];
      for (int64_t part = 0; part < block.numel / block.stateShard; ++part) {
        double count = finish.op->getBool(AttrKey::norm_replicated) ? isIn(finish.from[2], b, part)
                                                                    : countOf(packs, b, part);
        if (problem_.empty() && !(count > 1 - 1e-9 && count < 1 + 1e-9))
          problem_ = fmt::format("rank {}: the norm of step {} counts part {} of block {} {} times",
                                 finish.rank, finish.step, part, b, count);
      }
    }
  }

  double countOf(const std::map<int, double> &packs, int32_t block, int64_t part) const {
    double count = 0;
    for (auto [id, weight] : packs) {
      const Term &pack = at(id);
      if (pack.op == nullptr || pack.op->kind != OpKind::StepPack ||
          pack.op->getBool(AttrKey::norm_replicated) || !isIn(pack.from[1], block, part))
        continue;
      count += weight / static_cast<double>(pack.op->getInt(AttrKey::copies));
    }
    return count;
  }

  const Plan &plan_;
  const Positions &positions_;
  const std::vector<Term> &terms_;
  std::string problem_;
};

} // namespace

std::string findNormBreak(const Plan &plan, const Positions &positions,
                          const std::vector<Term> &terms) {
  return Norms(plan, positions, terms).run();
}

} // namespace shardc::plan::oracle
