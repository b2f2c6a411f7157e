#include "compiler/model/PassOrder.h"

#include <algorithm>

#include <fmt/format.h>

namespace shardc::model {

std::string nameOf(const StagePass &pass) {
  constexpr std::string_view kLetters = " FI W BB"; // by kind
  return fmt::format("{}{}{}", pass.part.chunk, kLetters[static_cast<size_t>(pass.part.kind)],
                     pass.microbatch);
}

std::optional<Handover> PassIndex::operandOf(const StagePart &part) const {
  if (hasForward(part.kind))
    return part.chunk > 0 ? std::optional(Handover{false, part.chunk}) : std::nullopt;
  return hasInputs(part.kind) && part.chunk + 1 < chunks_
             ? std::optional(Handover{true, part.chunk})
             : std::nullopt;
}

std::array<const PassPlace *, 2> PassIndex::needsOf(const StagePass &pass) const {
  std::array<const PassPlace *, 2> needs{};
  const auto [kind, chunk] = pass.part;
  if (!hasForward(kind))
    needs[0] =
        &at(hasInputs(kind) ? PassResult::Output : PassResult::Inputs, chunk, pass.microbatch);
  if (std::optional<Handover> of = operandOf(pass.part))
    needs[1] = &at(of->result(), of->maker(), pass.microbatch);
  return needs;
}

std::vector<PassPlace> PassOrder::places() const {
  std::vector<PassPlace> places;
  for (size_t row = 0; row < rows.size(); ++row)
    for (size_t pass = 0; pass < rows[row].size(); ++pass)
      places.push_back({row, pass});
  return places;
}

std::optional<PassWait> PassOrder::waitOf(const PassIndex &index, const PassSpans &done,
                                          size_t row) const {
  for (PassPlace place{row, done[row].size()}; place.pass < rows[row].size(); ++place.pass) {
    for (const PassPlace *needed : index.needsOf(at(place)))
      if (needed != nullptr && done[needed->row].size() <= needed->pass &&
          (needed->row != row || needed->pass > place.pass)) // parts of one pass share a cell
        return PassWait{place, *needed};
    if (!at(place).isPair)
      break;
  }
  return std::nullopt;
}

PassSpans PassOrder::run(const PassIndex &index, const SecondsOf &seconds) const {
  PassSpans done(rows.size());
  for (bool moves = true; moves;) {
    moves = false;
    for (size_t row = 0; row < rows.size(); ++row)
      while (done[row].size() < rows[row].size() && !waitOf(index, done, row)) {
        const size_t first = done[row].size(), end = cellEnd({row, first});
        PassSpan span{first == 0 ? 0 : done[row].back().end, 0};
        double length = 0;
        for (size_t i = first; i < end; ++i) {
          length += seconds(rows[row][i].part);
          for (const PassPlace *needed : index.needsOf(rows[row][i]))
            if (needed != nullptr && needed->pass < done[needed->row].size())
              span.begin = std::max(span.begin, done[needed->row][needed->pass].end);
        }
        span.end = span.begin + length;
        done[row].resize(end, span);
        moves = true;
      }
  }
  return done;
}

} // namespace shardc::model
