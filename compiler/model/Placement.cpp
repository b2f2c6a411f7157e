#include "compiler/model/Placement.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shardc::model {

Placement::Placement(std::vector<int32_t> stageOf) : stageOf_(std::move(stageOf)) {
  chunksOf_.resize(static_cast<size_t>(*std::ranges::max_element(stageOf_)) + 1);
  for (int32_t chunk = 0; chunk < chunks(); ++chunk)
    chunksOf_[static_cast<size_t>(this->stageOf(chunk))].push_back(chunk);
}

Placement Placement::looped(int64_t stages, int64_t chunksPerStage) {
  std::vector<int32_t> stageOf;
  for (int64_t chunk = 0; chunk < stages * chunksPerStage; ++chunk)
    stageOf.push_back(static_cast<int32_t>(chunk % stages));
  return Placement(std::move(stageOf));
}

Placement Placement::v(int64_t stages, int64_t chunksPerStage) {
  std::vector<int32_t> stageOf;
  for (int64_t chunk = 0; chunk < stages * chunksPerStage; ++chunk) {
    bool isBack = chunk / stages % 2 == 1;
    stageOf.push_back(static_cast<int32_t>(isBack ? stages - 1 - chunk % stages : chunk % stages));
  }
  return Placement(std::move(stageOf));
}

std::optional<Placement> Placement::read(std::string_view text, int64_t stages,
                                         int64_t chunksPerStage) {
  if (text == "looped" || text.empty())
    return looped(stages, chunksPerStage);
  if (text == "v")
    return v(stages, chunksPerStage);
  std::vector<int32_t> stageOf;
  std::vector<uint8_t> isUsed(static_cast<size_t>(stages));
  for (const char *at = text.data(), *end = at + text.size();;) {
    while (at != end && *at == ' ')
      ++at;
    int32_t stage = -1;
    auto [rest, error] = std::from_chars(at, end, stage);
    if (error != std::errc() || stage < 0 || stage >= stages)
      return std::nullopt;
    stageOf.push_back(stage);
    isUsed[static_cast<size_t>(stage)] = 1;
    at = rest;
    if (at == end)
      break;
    if (*at++ != ',')
      return std::nullopt;
  }
  bool isWhole = static_cast<int64_t>(stageOf.size()) == stages * chunksPerStage &&
                 std::ranges::count(isUsed, 1) == stages;
  return isWhole ? std::optional(Placement(std::move(stageOf))) : std::nullopt;
}

std::string Placement::text() const {
  int64_t perStage = chunks() / stages();
  return *this == looped(stages(), perStage) ? "looped"
         : *this == v(stages(), perStage)    ? "v"
                                             : fmt::format("{}", fmt::join(stageOf_, ","));
}

int32_t Placement::indexOn(int32_t chunk) const {
  const std::vector<int32_t> &own = chunksOf(stageOf(chunk));
  return static_cast<int32_t>(std::ranges::lower_bound(own, chunk) - own.begin());
}

} // namespace shardc::model
