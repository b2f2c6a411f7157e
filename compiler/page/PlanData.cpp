#include "compiler/page/PlanData.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <numeric>
#include <utility>

#include "compiler/basic/Numbers.h"
#include "compiler/page/AddressMap.h"
#include "compiler/predict/Overheads.h"
#include "runtime/plan/Coordinates.h"
#include "runtime/plan/Summary.h"

namespace shardc::page {
namespace {

/// The answer to a first question about a plan: what bounds the step, what fills the memory, or
/// what other settings would change. The page adds tables of the figures.
struct Answer {
  std::string question;
  std::vector<std::string> lines;
};

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

std::vector<Answer> answersOf(const Subject &subject, const std::optional<Prediction> &prediction) {
  return {boundOf(subject, prediction), fillOf(subject), changeOf(subject)};
}

/// Maximum number of intervals in a predicted step, over all roles.
constexpr size_t kIntervalsMax = size_t{1} << 22;

/// Rounds to 0.1 microseconds; shorter times are not visible.
double toUs(double seconds) { return std::round(seconds * 1e7) / 10; }

Json groupJson(const plan::Plan &plan, int16_t group) {
  if (group < 0 || plan.groupSize(group) == 1)
    return "every rank alone";
  return fmt::format("{} ({})", plan.groups[static_cast<size_t>(group)].name,
                     plan.groupSize(group));
}

Json meshJson(const plan::Plan &plan) {
  Json axes = Json::array();
  for (const plan::MeshAxis &axis : plan.mesh)
    axes.push_back({{"name", axis.name}, {"size", axis.size}});
  return axes;
}

Json predictedJson(const plan::Plan &plan, const predict::StepTime &time, const Shares &shares) {
  double tokens = static_cast<double>(tokensOfStep(plan));
  return {{"step_s", time.step},
          {"compute_s", time.compute},
          {"transfers_s", time.transfers},
          {"exposed_s", time.exposed},
          {"waiting_s", time.waiting},
          {"idle_s", shares.idle},
          {"tokens_per_s", tokens / time.step},
          {"tokens_per_s_per_device", tokens / time.step / static_cast<double>(plan.worldSize())}};
}

Json sumsJson(const Work &work, const std::vector<OpSum> &sums) {
  Json rows = Json::array();
  const std::vector<std::string> &names = work.names.list();
  for (const OpSum &sum : sums)
    rows.push_back({{"op", names[sum.op]},
                    {"group", names[sum.group]},
                    {"transfer", sum.isTransfer},
                    {"count", sum.count},
                    {"s", sum.seconds},
                    {"exposed_s", sum.exposed}});
  return rows;
}

/// Memory of a role. `kept` are bytes of cells, `peak` those of other buffers at the moment of the
/// peak, `outside` those of the device and its libraries.
Json memoryJson(const Subject &subject, const plan::Role &role, const Limits &limits) {
  plan::MemoryByPurpose memory = plan::memoryByPurpose(role);
  Json purposes = Json::array();
  for (size_t p = 0; p < memory.cells.size(); ++p)
    if (memory.cells[p] + memory.transient[p] > 0)
      purposes.push_back({{"purpose", plan::toString(static_cast<plan::Purpose>(p))},
                          {"kept", memory.cells[p]},
                          {"peak", memory.transient[p]}});
  Json outside = Json::array();
  if (subject.device) {
    predict::Overheads over = predict::overheadsOf(*subject.device, *subject.plan, role);
    for (auto [what, bytes] : {std::pair{"context of the device", over.context},
                               {"communicators", over.communicators},
                               {"receive buffers", over.receiveBuffers},
                               {"workspaces of kernels", over.workspaces},
                               {"libraries", over.libraries}})
      if (bytes > 0)
        outside.push_back({{"what", what}, {"bytes", bytes}});
  }
  Json arenas = Json::object();
  for (size_t a = 0; a < plan::kArenaCount; ++a)
    if (role.arenaBytes[a] > 0)
      arenas[std::string(plan::toString(static_cast<plan::Arena>(a)))] = role.arenaBytes[a];
  Json holders = Json::array();
  std::vector<Holder> all = holdersOf(role);
  for (size_t i = 0; i < std::min(all.size(), limits.rows); ++i)
    holders.push_back({{"what", wordsOf(all[i])},
                       {"name", all[i].pattern},
                       {"purpose", plan::toString(all[i].purpose)},
                       {"kept", all[i].isKept},
                       {"count", all[i].count},
                       {"bytes", all[i].bytes}});
  return {{"role", role.name},
          {"needed", subject.deviceBytes},
          {"device", subject.memoryBytes},
          {"purposes", purposes},
          {"outside", outside},
          {"arenas", arenas},
          {"holders", holders},
          {"holders_omitted", all.size() - holders.size()}};
}

/// Rectangles are arrays instead of objects, and their names are numbers in a list, since there may
/// be many.
Json mapJson(const plan::Role &role, size_t rectsMax) {
  AddressMap map = addressMapOf(role, rectsMax);
  Names names;
  Json segments = Json::array(), rects = Json::array();
  for (const Stretch &segment : map.segments)
    segments.push_back({{"name", segment.name}, {"begin", segment.begin}, {"end", segment.end}});
  for (const Rect &rect : map.rects)
    rects.push_back({static_cast<int>(rect.arena), rect.offset, rect.bytes, rect.begin, rect.end,
                     static_cast<int>(rect.purpose), rect.isKept ? 1 : 0, names.idOf(rect.name),
                     names.idOf(rect.madeBy)});
  Json arenas = Json::array(), purposes = Json::array();
  for (int a = 0; a < plan::kArenaCount; ++a)
    arenas.push_back({{"name", plan::toString(static_cast<plan::Arena>(a))},
                      {"bytes", role.arenaBytes[static_cast<size_t>(a)]}});
  for (int p = 0; p < plan::kPurposeCount; ++p)
    purposes.push_back(plan::toString(static_cast<plan::Purpose>(p)));
  return {{"role", role.name},      {"segments", segments},
          {"arenas", arenas},       {"purposes", purposes},
          {"rects", rects},         {"names", names.list()},
          {"omitted", map.omitted}, {"omitted_bytes", map.omittedBytes},
          {"peak_at", map.peakAt}};
}

/// The units that have blocks on this role's ranks, as name patterns with counts.
Json unitsOf(const plan::Plan &plan, const plan::Role &role) {
  std::vector<bool> has(plan.units.size());
  for (const plan::Cell &cell : role.cells)
    if (plan::cellKindInfo(cell.kind).of == plan::CellKindInfo::Block)
      if (int32_t unit = plan.blocks[static_cast<size_t>(cell.of)].unit; unit >= 0)
        has[static_cast<size_t>(unit)] = true;
  std::vector<std::pair<std::string, int>> counts;
  for (size_t u = 0; u < has.size(); ++u) {
    if (!has[u])
      continue;
    std::string pattern = patternOf(plan.units[u].name);
    if (counts.empty() || counts.back().first != pattern)
      counts.emplace_back(pattern, 0);
    ++counts.back().second;
  }
  Json list = Json::array();
  for (const auto &[pattern, count] : counts)
    list.push_back({{"name", pattern}, {"count", count}});
  return list;
}

Json stagesJson(const Subject &subject, const std::optional<Prediction> &prediction) {
  const plan::Plan &plan = *subject.plan;
  Json rows = Json::array();
  for (size_t r = 0; r < plan.roles.size(); ++r) {
    const plan::Role &role = plan.roles[r];
    int64_t bytes = 0;
    for (size_t a = 0; a < plan::kArenaCount; ++a)
      bytes += static_cast<plan::Arena>(a) == plan::Arena::Host ? 0 : role.arenaBytes[a];
    Json row = {{"name", role.name},
                {"why", role.why},
                {"rank", firstRank(plan, role)},
                {"ranks", rankCount(plan, role)},
                {"units", unitsOf(plan, role)},
                {"arena_bytes", bytes}};
    if (prediction) {
      const predict::StepTime &time = prediction->times[r];
      row.update({{"compute_s", time.compute},
                  {"exposed_s", time.exposed},
                  {"waiting_s", time.waiting},
                  {"step_s", time.step}});
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

Json groupsJson(const plan::Plan &plan) {
  Json rows = Json::array();
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    Json axes = Json::array();
    for (uint16_t axis : plan.groups[g].axes)
      axes.push_back(plan.mesh[axis].name);
    rows.push_back({{"name", plan.groups[g].name},
                    {"axes", axes},
                    {"ranks", plan.groupSize(static_cast<int>(g))}});
  }
  return rows;
}

/// Collects table rows. Rows that differ only in the numbers of their names become one row with a
/// count.
class PatternRows {
public:
  void add(const std::string &name, Json row) {
    std::string pattern = patternOf(name);
    Json key = {pattern, row};
    for (size_t i = 0; i < keys_.size(); ++i)
      if (keys_[i] == key) {
        rows_[i]["count"] = rows_[i]["count"].get<int64_t>() + 1;
        return;
      }
    keys_.push_back(key);
    Json out = {{"name", pattern}, {"first", name}, {"count", 1}};
    out.update(row);
    rows_.push_back(std::move(out));
  }
  Json take() { return std::move(rows_); }

private:
  std::vector<Json> keys_;
  Json rows_ = Json::array();
};

Json blocksJson(const plan::Plan &plan) {
  PatternRows rows;
  for (const plan::Block &block : plan.blocks)
    rows.add(block.name, {{"elements", block.numel},
                          {"weights_over", groupJson(plan, block.group)},
                          {"weights_each", block.shard},
                          {"state_over", groupJson(plan, block.stateGroup)},
                          {"state_each", block.stateShard}});
  return rows.take();
}

Json shapeJson(const plan::Type &type) {
  Json shape = Json::array();
  for (int d = 0; d < type.rank; ++d)
    shape.push_back(type.shape[static_cast<size_t>(d)]);
  return shape;
}

/// One row per pattern of names: parameters that differ only in the numbers in their names are one
/// row.
Json paramsJson(const plan::Plan &plan) {
  PatternRows rows;
  for (const plan::Param &param : plan.params) {
    Json splits = Json::array(), copies = Json::array();
    for (const plan::Split &split : param.splits)
      splits.push_back({{"dim", split.dim}, {"over", groupJson(plan, split.group)}});
    for (int16_t group : param.copies)
      copies.push_back(groupJson(plan, group));
    std::string block =
        param.block < 0 ? "" : patternOf(plan.blocks[static_cast<size_t>(param.block)].name);
    rows.add(param.name, {{"whole", shapeJson(param.wholeType())},
                          {"each", shapeJson(param.type)},
                          {"splits", splits},
                          {"copies", copies},
                          {"block", block}});
  }
  return rows.take();
}

Json trafficJson(const plan::Plan &plan, const plan::Role &role) {
  Json rows = Json::array();
  for (const plan::TrafficRow &row : plan::trafficOfStep(plan, role))
    rows.push_back({{"op", plan::opInfo(row.kind).name},
                    {"group", groupJson(plan, row.group)},
                    {"dtype", dtypeName(row.dtype)},
                    {"calls", row.calls},
                    {"full", row.fullBytes},
                    {"sent", row.sentBytes}});
  return rows;
}

Json timelinesJson(const Subject &subject, const Prediction &prediction, const Limits &limits) {
  const plan::Plan &plan = *subject.plan;
  Json rows = Json::array();
  size_t roles = plan.roles.size();
  for (size_t r = 0; r < roles; ++r) {
    Json row = {{"name", fmt::format("rank {}{}", firstRank(plan, plan.roles[r]),
                                     plan::stageOf(plan, static_cast<uint32_t>(r)))}};
    row.update(timelineData(prediction.works[r], prediction.exposed[r], limits.blocks / roles,
                            limits.exposed / roles));
    rows.push_back(std::move(row));
  }
  return rows;
}

Json alternativesJson(const Subject &subject) {
  Json rows = Json::array();
  for (const Alternative &other : subject.alternatives)
    rows.push_back({{"what", other.what},
                    {"set", other.sets},
                    {"bytes", other.bytes},
                    {"fits", subject.memoryBytes == 0 || other.bytes <= subject.memoryBytes},
                    {"step_s", other.seconds}});
  return rows;
}

Json jobJson(const plan::Plan &plan) {
  Json job = Json::object();
  for (const auto &[path, value] : plan.job.entries())
    job[path] = std::visit([](const auto &held) { return Json(held); }, value);
  return job;
}

} // namespace

int64_t tokensOfStep(const plan::Plan &plan) {
  return plan.job.train.globalBatchSize * plan.job.model.seqLength;
}

std::optional<Prediction> predictionOf(const Subject &subject) {
  if (!subject.device)
    return std::nullopt;
  const plan::Plan &plan = *subject.plan;
  Prediction prediction;
  prediction.times = predict::predictSteps(*subject.device, plan);
  std::vector<std::vector<predict::Interval>> timelines =
      predict::timelinesOf(*subject.device, plan, kIntervalsMax);
  for (size_t r = 0; r < plan.roles.size(); ++r) {
    prediction.works.push_back(predictedWork(plan, plan.roles[r], timelines[r]));
    prediction.exposed.push_back(exposedOf(prediction.works.back()));
    prediction.passes.push_back(passesOf(plan.roles[r], prediction.works.back()));
    timelines[r] = {};
    if (prediction.times[r].compute > prediction.times[prediction.slowest].compute)
      prediction.slowest = r;
  }
  const Work &work = prediction.works[prediction.slowest];
  prediction.shares = sharesOf(work, prediction.exposed[prediction.slowest]);
  prediction.sums = sumsOf(work, prediction.exposed[prediction.slowest]);
  return prediction;
}

Json timelineData(const Work &work, const std::vector<Exposed> &exposed, size_t blocksMax,
                  size_t exposedMax) {
  Timeline timeline = timelineOf(work, blocksMax);
  Names names;
  Json blocks = Json::array(), bare = Json::array(), classes = Json::array();
  for (const Block &block : timeline.blocks) {
    double busy = std::accumulate(block.busy.begin(), block.busy.end(), 0.0);
    Json row = {block.lane,
                toUs(block.begin),
                toUs(block.end - block.begin),
                toUs(busy),
                static_cast<int>(block.of),
                block.count,
                names.idOf(block.name),
                block.microbatch};
    if (block.isMixed) // shares of the classes, in percent
      for (double part : block.busy)
        row.push_back(std::round(100 * part / std::max(busy, 1e-12)));
    blocks.push_back(std::move(row));
  }
  for (const Exposed &stretch : thinned(exposed, exposedMax)) {
    const Piece &piece = work.pieces[stretch.piece];
    const std::vector<std::string> &texts = work.names.list();
    bare.push_back(
        {toUs(stretch.begin), toUs(stretch.end - stretch.begin),
         names.idOf(texts[piece.group].empty() ? texts[piece.op]
                                               : texts[piece.op] + " over " + texts[piece.group]),
         toUs(stretch.seconds)});
  }
  for (int c = 0; c < kClassCount; ++c)
    classes.push_back(toString(static_cast<Class>(c)));
  return {{"grain", toString(timeline.grain)},
          {"pieces", work.pieces.size()},
          {"lanes", work.lanes},
          {"classes", classes},
          {"names", names.list()},
          {"blocks", blocks},
          {"exposed", bare},
          {"exposed_of", exposed.size()}};
}

Json planData(const Subject &subject, const std::optional<Prediction> &prediction,
              const Limits &limits) {
  const plan::Plan &plan = *subject.plan;
  const plan::Role &largest = predict::largestRole(plan);
  Json json = {{"title", subject.title},
               {"name", plan.name},
               {"source", subject.source},
               {"compiled", subject.isCompiledPlan},
               {"gpu", plan.needsGpu.empty() ? "host" : plan.needsGpu},
               {"measured", subject.device && subject.device->measured},
               {"ranks", plan.worldSize()},
               {"mesh", meshJson(plan)},
               {"tokens_per_step", tokensOfStep(plan)},
               {"answers", Json::array()},
               {"memory", memoryJson(subject, largest, limits)},
               {"map", mapJson(largest, limits.rects)},
               {"stages", stagesJson(subject, prediction)},
               {"groups", groupsJson(plan)},
               {"blocks", blocksJson(plan)},
               {"params", paramsJson(plan)},
               {"traffic", trafficJson(plan, largest)},
               {"alternatives", alternativesJson(subject)},
               {"options", subject.options},
               {"job", jobJson(plan)}};
  for (const Answer &answer : answersOf(subject, prediction))
    json["answers"].push_back({{"question", answer.question}, {"lines", answer.lines}});
  if (!prediction)
    return json;
  json["predicted"] = predictedJson(plan, prediction->time(), prediction->shares);
  json["slowest"] = prediction->slowest;
  json["ops"] = sumsJson(prediction->works[prediction->slowest], prediction->sums);
  json["timelines"] = timelinesJson(subject, *prediction, limits);
  json["schedule"] = Json::array();
  for (size_t r = 0; r < plan.roles.size() && hasSchedule(plan); ++r)
    json["schedule"].push_back(
        scheduleRow(plan.roles[r], prediction->passes[r], plan.roles[r].name + ", predicted"));
  return json;
}

} // namespace shardc::page
