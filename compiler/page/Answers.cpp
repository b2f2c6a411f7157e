#include "compiler/page/Answers.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "compiler/basic/Numbers.h"
#include "compiler/page/AddressMap.h"
#include "compiler/predict/Overheads.h"
#include "runtime/plan/Summary.h"

namespace shardc::page {
namespace {

/// Maximum number of items that a sentence lists; the page's tables contain all.
constexpr size_t kListMax = 4;

std::string percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f} %", 100 * part / whole) : "0.0 %";
}

std::string joined(const std::vector<std::string> &items) {
  return fmt::format("{}", fmt::join(items, ", "));
}

/// The `kListMax` ops with the largest `secondsOf`, each as text with its share of `whole`.
template <typename Seconds>
std::vector<std::string> longest(const Prediction &prediction, double whole,
                                 const Seconds &secondsOf) {
  std::vector<const OpSum *> sums;
  for (const OpSum &sum : prediction.sums)
    if (secondsOf(sum) > 0)
      sums.push_back(&sum);
  std::stable_sort(sums.begin(), sums.end(),
                   [&](const OpSum *a, const OpSum *b) { return secondsOf(*a) > secondsOf(*b); });
  sums.resize(std::min(sums.size(), kListMax));
  const std::vector<std::string> &names = prediction.works[prediction.slowest].names.list();
  std::vector<std::string> items;
  for (const OpSum *sum : sums)
    items.push_back(fmt::format("{}{} {}", names[sum->op],
                                names[sum->group].empty() ? "" : " over " + names[sum->group],
                                percent(secondsOf(*sum), whole)));
  return items;
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
  struct Part {
    const char *verdict, *name;
    double seconds;
  };
  std::array<Part, 4> parts = {{{"Kernels bound it", "kernels", time.compute},
                                {"Communication bounds it", "exposed communication", time.exposed},
                                {"Other stages bound it", "waiting for other stages", time.waiting},
                                {"Gaps bound it", "gaps between ops", idle}}};
  const Part &most =
      *std::max_element(parts.begin(), parts.end(),
                        [](const Part &a, const Part &b) { return a.seconds < b.seconds; });
  std::vector<std::string> items;
  for (const Part &part : parts)
    if (part.seconds > 0)
      items.push_back(fmt::format("{} {} ({})", part.name, formatDuration(part.seconds),
                                  percent(part.seconds, time.step)));
  answer.lines.push_back(fmt::format("{}: of a predicted step of {}, {}.", most.verdict,
                                     formatDuration(time.step), joined(items)));
  answer.lines.push_back(fmt::format("Longest kernels, as shares of the step: {}.",
                                     joined(longest(*prediction, time.step, [](const OpSum &sum) {
                                       return sum.isTransfer ? 0 : sum.seconds;
                                     }))));
  std::vector<std::string> bare =
      longest(*prediction, time.step, [](const OpSum &sum) { return sum.exposed; });
  if (bare.empty())
    answer.lines.push_back(time.transfers > 0 ? "Kernels overlap all communication."
                                              : "There is no communication.");
  else
    answer.lines.push_back(fmt::format("Exposed communication, as shares of the step: {}. All "
                                       "communication takes {}.",
                                       joined(bare), formatDuration(time.transfers)));
  if (subject.plan->roles.size() > 1)
    answer.lines.push_back(idleText(*subject.plan, prediction->passes, time.step));
  if (!subject.device->measured)
    answer.lines.push_back(
        fmt::format("Rates of {} are assumed, not measured.", subject.device->name.str()));
  return answer;
}

/// The role that needs most memory, its bytes by purpose, and its largest buffers.
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
  plan::MemoryByPurpose memory = plan::memoryByPurpose(role);
  std::vector<std::pair<int64_t, std::string>> purposes;
  for (size_t p = 0; p < memory.cells.size(); ++p)
    purposes.emplace_back(memory.cells[p] + memory.transient[p],
                          plan::toString(static_cast<plan::Purpose>(p)));
  if (subject.device)
    purposes.emplace_back(predict::overheadsOf(*subject.device, *subject.plan, role).total(),
                          "what the device and its libraries need outside the plan");
  std::stable_sort(purposes.begin(), purposes.end(),
                   [](const auto &a, const auto &b) { return a.first > b.first; });
  std::vector<std::string> items;
  for (size_t i = 0; i < kListMax && purposes[i].first > 0; ++i)
    items.push_back(purposes[i].second + " " + plan::formatBytes(purposes[i].first));
  answer.lines.push_back(fmt::format("By purpose: {}.", joined(items)));
  std::vector<Holder> holders = holdersOf(role);
  items.clear();
  for (size_t i = 0; i < std::min(kListMax, holders.size()); ++i)
    items.push_back(holders[i].count == 1
                        ? fmt::format("{} ({}), {}", wordsOf(holders[i]), holders[i].pattern,
                                      plan::formatBytes(holders[i].bytes))
                        : fmt::format("{} ({} x {}), {}", wordsOf(holders[i]), holders[i].count,
                                      holders[i].pattern, plan::formatBytes(holders[i].bytes)));
  answer.lines.push_back(fmt::format("Largest buffers at the peak: {}.", fmt::join(items, "; ")));
  return answer;
}

std::string changeText(const Subject &subject, const Alternative &other, double seconds) {
  std::string text = fmt::format("{}: {} instead of {}", other.what, plan::formatBytes(other.bytes),
                                 plan::formatBytes(subject.deviceBytes));
  if (subject.memoryBytes > 0 && other.bytes > subject.memoryBytes)
    text += ", which does not fit";
  if (other.seconds > 0 && seconds > 0)
    text += fmt::format("; a step of {} instead of {} ({:+.1f} %)", formatDuration(other.seconds),
                        formatDuration(seconds), 100 * (other.seconds / seconds - 1));
  return text + ".";
}

Answer changeOf(const Subject &subject, double seconds) {
  Answer answer{"What would change if ...?", {}};
  if (subject.isCompiledPlan)
    answer.lines = {
        "A compiled plan has no recipe whose settings could be changed. Pass the recipe "
        "for the usual changes, or several plans to compare them."};
  else if (!subject.areAlternativesTried)
    answer.lines = {"No changes were compiled, as '--seconds=0' asks."};
  else if (subject.alternatives.empty())
    answer.lines = {"None of the usual changes gives another plan that can be executed."};
  for (const Alternative &other : subject.alternatives)
    if (answer.lines.size() < kListMax + 1)
      answer.lines.push_back(changeText(subject, other, seconds));
  return answer;
}

} // namespace

std::vector<Answer> answersOf(const Subject &subject, const std::optional<Prediction> &prediction) {
  return {boundOf(subject, prediction), fillOf(subject),
          changeOf(subject, prediction ? prediction->time().step : 0)};
}

} // namespace shardc::page
