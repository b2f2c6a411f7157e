// Parses the description of a fault. InjectedFault.cpp causes it.
#include "runtime/run/Fault.h"

#include <string>

#include "runtime/base/ParseNumber.h"
#include "runtime/base/Reports.h"

namespace shardc::run {
namespace {

struct Row {
  FaultKind kind;
  std::string_view text;
  bool isOfStep;
};
constexpr Row kRows[] = {
#define FAULT(Name, text, isOfStep) {FaultKind::Name, text, isOfStep},
#include "runtime/run/Faults.def"
};

std::string kindsText() {
  std::string text;
  for (const Row &row : kRows)
    text +=
        fmt::format("{}{}@RANK{}", text.empty() ? "" : ", ", row.text, row.isOfStep ? ":STEP" : "");
  return text;
}

struct MomentName {
  FaultMoment moment;
  std::string_view text;
};
constexpr MomentName kMoments[] = {{FaultMoment::Collective, "/collective"},
                                   {FaultMoment::Evaluation, "/evaluation"},
                                   {FaultMoment::Save, "/save"}};

} // namespace

/// Reads the parts from the end, since each is optional: suffix, moment, step, rank. The whole text
/// is refused if one part does not fit the kind of fault.
Result<Fault> Fault::parse(std::string_view text) {
  Fault fault;
  if (text.empty())
    return fault;
  std::string_view whole = text;
  for (auto [suffix, flag] : {std::pair(std::string_view("/again"), &fault.strikesAgain),
                              {std::string_view("/kept"), &fault.awaitsKept}})
    if (text.ends_with(suffix)) {
      *flag = true;
      text.remove_suffix(suffix.size());
    }
  for (const MomentName &row : kMoments)
    if (text.ends_with(row.text)) {
      fault.moment = row.moment;
      text.remove_suffix(row.text.size());
    }
  size_t at = text.find('@'), colon = text.find(':');
  for (const Row &row : kRows)
    if (at != std::string_view::npos && text.substr(0, at) == row.text &&
        (colon != std::string_view::npos) == row.isOfStep)
      fault.kind = row.kind;
  bool hasRank = fault.kind != FaultKind::Nothing &&
                 parseNumber(text.substr(at + 1, colon - at - 1), fault.rank) && fault.rank >= 0;
  bool hasStep = colon == std::string_view::npos ||
                 (parseNumber(text.substr(colon + 1), fault.step) && fault.step >= 1);
  bool hasMoment = fault.moment == FaultMoment::Begin || colon != std::string_view::npos;
  if (!hasRank || !hasStep || !hasMoment)
    return makeStatus(report::FaultRefused, whole, kindsText());
  return fault;
}

} // namespace shardc::run
