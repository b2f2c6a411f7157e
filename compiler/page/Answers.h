// Answers the first questions about a plan: what bounds the step, what fills the memory, and what
// other settings would change. The page adds tables of the figures.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/page/PlanData.h"

namespace shardc::page {

struct Answer {
  std::string question;
  std::vector<std::string> lines;
};

std::vector<Answer> answersOf(const Subject &subject, const std::optional<Prediction> &prediction);

} // namespace shardc::page
