#include "compiler/page/Answers.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "compiler/basic/Numbers.h"
#include "compiler/predict/Overheads.h"
#include "runtime/plan/Summary.h"

namespace shardc::page {
namespace {

std::string percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f} %", 100 * part / whole) : "0.0 %";
}

/// Divides the predicted step into kernels, exposed communication, waiting for other stages, and
/// gaps. The largest part is what bounds the step.
Answer boundOf(const Subject &subject, const std::optional<Prediction> &prediction) {
  Answer answer{"What bounds the step?", {}};
  if (!prediction) {
    answer.lines = {"No step is predicted on the host. A trace of a run shows where its time goes; "
                    "for a prediction, set 'cluster.gpu' to a GPU."};
    return answer;
  }
  const predict::StepTime &time = prediction->time();
  double idle = std::max(time.step - time.compute - time.exposed - time.waiting, 0.0);
  const auto [seconds, verdict] =
      std::max({std::pair(time.compute, "Kernels bound it"),
                std::pair(time.exposed, "Communication that no kernel hides bounds it"),
                std::pair(time.waiting, "Waiting for other stages bounds it"),
                std::pair(idle, "Gaps between ops bound it")},
               [](const auto &a, const auto &b) { return a.first < b.first; });
  answer.lines.push_back(fmt::format("{}: {} of the step.", verdict, percent(seconds, time.step)));
  if (subject.plan->roles.size() > 1)
    answer.lines.push_back(idleText(*subject.plan, prediction->passes, time.step));
  if (!subject.device->measured)
    answer.lines.push_back(
        fmt::format("Rates of {} are assumed, not measured.", subject.device->name.str()));
  return answer;
}

/// The role that needs most memory, and its bytes.
Answer fillOf(const Subject &subject) {
  Answer answer{"What fills the memory?", {}};
  const plan::Role &role = predict::largestRole(*subject.plan);
  std::string of = subject.memoryBytes > 0
                       ? fmt::format(" of {} ({})", plan::formatBytes(subject.memoryBytes),
                                     percent(static_cast<double>(subject.deviceBytes),
                                             static_cast<double>(subject.memoryBytes)))
                       : "";
  std::string where =
      subject.plan->roles.size() > 1 ? fmt::format(" in {}, which needs most", role.name) : "";
  answer.lines.push_back(fmt::format("A run takes {}{} on each device{}.",
                                     plan::formatBytes(subject.deviceBytes), of, where));
  return answer;
}

Answer changeOf(const Subject &subject) {
  Answer answer{"What would change if ...?", {}};
  if (subject.isCompiledPlan)
    answer.lines = {
        "A compiled plan has no recipe whose settings could be changed. Pass the recipe "
        "for the usual changes, or several plans to compare them."};
  else if (!subject.areAlternativesTried)
    answer.lines = {"No changes were compiled, as '--seconds=0' asks."};
  else if (subject.alternatives.empty())
    answer.lines = {"None of the usual changes gives another plan that can be executed."};
  return answer;
}

} // namespace

std::vector<Answer> answersOf(const Subject &subject, const std::optional<Prediction> &prediction) {
  return {boundOf(subject, prediction), fillOf(subject), changeOf(subject)};
}

} // namespace shardc::page
