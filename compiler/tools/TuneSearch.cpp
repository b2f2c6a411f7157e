#include "compiler/tools/TuneSearch.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "compiler/lower/Lower.h"
#include "compiler/passes/ChooseRecompute.h"
#include "compiler/tools/FitCheck.h"
#include "compiler/tools/TuneSmall.h"
#include "runtime/base/Thread.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/Execution.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/Optimizers.h"

namespace shardc::tools {
namespace {

/// Layouts that are compiled before the best one is looked at again, whatever the threads. The
/// first batch has one, and each twice as many as that before it up to this number.
constexpr size_t kBatch = 16;
/// Number of meshes with which a body is tried. A body that works with none of them counts as
/// refused.
constexpr size_t kTriesMax = 6;
constexpr size_t kOfKindInRound = 2;
/// A layout is compiled if its estimate, times the least ratio of a plan's seconds to its estimate
/// among layouts of its kind and times this, is not above the best step. If none of its kind was
/// compiled, the ratio is the least of all kinds, which says less.
constexpr double kSlack = 0.93, kSlackOfOthers = 0.8;
/// Used instead of a rule id if the search was stopped first.
constexpr const char *kNotTried = "-";

/// Calls `work` with each number below `count`, on several threads, until the search is stopped.
void parallelFor(size_t count, const TuneRequest &request,
                 const std::function<void(size_t)> &work) {
  static_cast<void>(runOnThreads(request.threads, count, [&](size_t i, size_t) {
    if (!request.isStopped())
      work(i);
    return Status::ok();
  }));
}

/// The recipe with these settings. Empty if a rule refuses it; `why` is then the rule's id.
std::optional<config::Config> load(const CommonOptions &common, SourceManager &sources,
                                   const std::vector<std::string> &sets, std::string &why) {
  DiagEngine diags(sources);
  config::LoadOptions load = common.load;
  load.sets.insert(load.sets.end(), sets.begin(), sets.end());
  std::optional<config::Config> config = config::loadConfig(sources, diags, load);
  if (config && lower::findMissing(*config).empty())
    return config;
  auto error = std::ranges::find(diags.pending(), Severity::Error, &Diagnostic::severity);
  why = config || error == diags.pending().end() ? "not-executed" : error->id;
  return std::nullopt;
}

/// Bytes of moments per element, in the block whose optimizer keeps the fewest.
int64_t leastMomentBytes(const plan::Plan &plan) {
  std::optional<int64_t> least;
  for (const plan::Block &block : plan.blocks) {
    int64_t bytes = 0;
    if (std::optional<plan::Optimizer> own = plan::optimizerOf(plan, block))
      for (const plan::Moment &moment : plan::optimizerInfo(*own).moments)
        bytes += dtypeBytes(moment.type(plan.job.optimizer));
    least = std::min(least.value_or(bytes), bytes);
  }
  return least.value_or(0);
}

/// The costs of the whole model's body for a layout, before it is split into stages.
std::optional<BodyCost> bodyCost(const CommonOptions &common, const std::vector<std::string> &sets,
                                 std::string &why) {
  SourceManager sources;
  std::optional<config::Config> config = load(common, sources, sets, why);
  if (!config)
    return std::nullopt;
  plan::Plan plan = lower::lower(*config, sources);
  passes::finishBody(plan, passes::PassId::Partition);
  BodyCost cost = costOfBody(plan);
  cost.momentBytes = leastMomentBytes(plan);
  return cost;
}

ElementBytes elementBytes(const config::Config &config) {
  const config::Derived &d = config.derived();
  int64_t params = dtypeBytes(d.params), sums = dtypeBytes(d.mainGrads);
  return {.weights = params,
          .gathered = config.isOn(config::Opt::DdpFp8ParamGather) ? 1 : params,
          .gradients = std::min(sums, static_cast<int64_t>(dtypeBytes(d.wire))),
          .sums = sums,
          .state = d.masterBytes,
          .dividesInstances = d.fsdp && d.outerStrategy != config::OuterStrategy::NoShard};
}

bool canRun(const plan::Plan &plan) {
  return std::ranges::none_of(plan.roles, [&](const plan::Role &role) {
    return plan::graphsBeyondLimit(plan, role).has_value() ||
           std::ranges::any_of(role.arenaBytes,
                               [](int64_t bytes) { return bytes > plan::limits::kBytesMax; });
  });
}

/// Seconds of recomputed ops in a step, averaged over the stages.
double recomputedSeconds(const plan::Plan &plan) {
  predict::Device device = predict::deviceOf(plan);
  double seconds = 0;
  for (const plan::Role &role : plan.roles)
    for (const plan::Segment &segment : role.segments)
      for (const plan::Op &op : segment.ops)
        if (op.isRecomputed)
          seconds += predict::timeOf(device, plan, segment, op);
  return seconds * static_cast<double>(plan.job.derived.numMicrobatches) /
         static_cast<double>(plan.roles.size());
}

/// The cost of a layout whose recomputation the compiler chooses: the time of a layout that
/// recomputes nothing, with the memory of one that recomputes whole layers.
std::optional<BodyCost> costOfAuto(BodyCost cost, const BodyCost &full) {
  if (full.layers.size() != cost.layers.size())
    return std::nullopt;
  for (size_t layer = 0; layer < cost.layers.size(); ++layer)
    cost.layers[layer].keptBytes =
        std::min(cost.layers[layer].keptBytes, full.layers[layer].keptBytes);
  return cost;
}

/// The same, if the costs of these two layouts are not known from other layouts.
std::optional<BodyCost> costOfAuto(const CommonOptions &common, std::vector<std::string> sets,
                                   std::string &why) {
  sets.emplace_back("model.recompute_granularity=none");
  std::optional<BodyCost> cost = bodyCost(common, sets, why);
  for (const char *set : {"model.recompute_granularity=full", "model.recompute_method=uniform",
                          "model.recompute_num_layers=1"})
    sets.emplace_back(set);
  std::optional<BodyCost> full = cost ? bodyCost(common, sets, why) : std::nullopt;
  return full ? costOfAuto(std::move(*cost), *full) : std::nullopt;
}

struct Candidate {
  size_t body, mesh;
  Estimate estimate;
  size_t round = 0;
};

class Search {
public:
  Search(const TuneSpace &space, const TuneRequest &request) : space_(space), request_(request) {
    result_.all = space.count();
  }

  TuneResult run() {
    costBodies();
    estimate();
    compile();
    result_.isStopped = request_.isStopped();
    for (std::vector<Tuned> *tuned : {&result_.found, &result_.tooLarge})
      std::ranges::sort(*tuned, {}, [](const Tuned &each) {
        return std::tuple(each.time.step, each.bytes, each.order);
      });
    if (request_.own && (best() == nullptr || request_.own->time.step < result_.found[0].time.step))
      result_.found.insert(result_.found.begin(), *request_.own);
    return std::move(result_);
  }

private:
  const std::vector<Layout> &meshesOf(size_t body) const {
    return space_.meshes[space_.meshesOf[body]];
  }
  Layout layoutOf(const Candidate &at) const {
    return joined(space_.bodies[at.body], meshesOf(at.body)[at.mesh]);
  }

  /// The rule that refuses a mesh that does not divide the batch into whole microbatches, or whose
  /// chunks cannot interleave these; null if no rule does.
  const char *refusalOf(size_t body, const Layout &mesh) const {
    int64_t microbatches = microbatchesOf(space_.bodies[body], mesh, space_.sizes);
    int64_t stages = mesh.size(Knob::Stages);
    if (microbatches == 0)
      return "global-batch-divides";
    if (mesh.is(Knob::Schedule, "dual_pipe_v") && microbatches < 2 * stages)
      return "dual-pipe-v-needs-microbatches";
    bool takesTurns = mesh.is(Knob::Schedule, "interleaved") ||
                      mesh.is(Knob::Schedule, "one_forward_one_backward");
    return mesh.size(Knob::Chunks) > 1 && takesTurns &&
                   !model::canInterleave(stages, stages, microbatches)
               ? "interleaved-microbatches"
               : nullptr;
  }

  /// Whether the mesh is listed for a body. With automatic recomputation, two choices are excluded:
  /// balanced splits, because recomputation changes the times of layers, and double buffers,
  /// because the chosen recomputation depends on them.
  bool isListed(size_t body, size_t mesh) const {
    const Layout &of = meshesOf(body)[mesh];
    return !isAuto(body) || !(of.is(Knob::Split, "balanced") || of.is(Knob::Buffers, "two"));
  }

  std::vector<size_t> possible(size_t body) const {
    std::vector<size_t> meshes;
    for (size_t i = 0; i < meshesOf(body).size(); ++i)
      if (isListed(body, i) && refusalOf(body, meshesOf(body)[i]) == nullptr)
        meshes.push_back(i);
    return meshes;
  }

  void refuse(const std::string &why, size_t layouts) {
    result_.refused += layouts;
    result_.refusals[why] += layouts;
  }

  bool isAuto(size_t body) const { return space_.bodies[body].is(Knob::Recompute, "auto"); }

  std::optional<BodyCost> costOf(size_t body, const std::vector<std::string> &sets) {
    return isAuto(body) ? costOfAuto(request_.common, sets, refusals_[body])
                        : bodyCost(request_.common, sets, refusals_[body]);
  }

  std::optional<BodyCost> costWhole(size_t body) {
    std::vector<size_t> meshes = possible(body);
    size_t tries = std::min(kTriesMax, meshes.size());
    for (size_t i = 0; i < tries; ++i)
      if (std::optional<BodyCost> cost =
              costOf(body, layoutOf({body, meshes[i * meshes.size() / tries], {}, 0}).sets()))
        return cost;
    return std::nullopt;
  }

  /// The cost of a body, from a model with fewer layers of the same kinds.
  std::optional<BodyCost> costSmall(size_t body, const SmallModel &model) {
    std::vector<size_t> meshes = possible(body);
    if (meshes.empty() || !model.isSmaller())
      return std::nullopt;
    std::optional<BodyCost> cost =
        costOf(body, model.sets(layoutOf({body, meshes.front(), {}, 0}), space_.sizes));
    return cost ? model.grown(std::move(*cost)) : std::nullopt;
  }

  /// The small model, if it gives the same cost for the first body that has one. `first` becomes
  /// the index of the following body.
  std::optional<SmallModel> findSmall(size_t &first) {
    for (; first < costs_.size() && !request_.isStopped(); ++first) {
      if (!(costs_[first] = costWhole(first)))
        continue;
      const BodyCost &whole = *costs_[first];
      SourceManager sources;
      std::string why;
      std::optional<config::Config> config = load(request_.common, sources, {}, why);
      if (!config)
        return std::nullopt;
      SmallModel model(whole, *config);
      std::optional<BodyCost> small = costSmall(first++, model);
      return small && small->hasSameParts(whole) ? std::optional(std::move(model)) : std::nullopt;
    }
    return std::nullopt;
  }

  void costBodies() {
    costs_.resize(space_.bodies.size());
    refusals_.assign(space_.bodies.size(), kNotTried);
    size_t first = 0;
    std::optional<SmallModel> small = findSmall(first);
    for (bool areAuto : {false, true}) // second, since they take the costs of other bodies
      parallelFor(costs_.size() - first, request_, [&](size_t i) {
        size_t body = first + i;
        if (isAuto(body) != areAuto)
          return;
        costs_[body] = costByOthers(body);
        if (!costs_[body] && small)
          costs_[body] = costSmall(body, *small);
        if (!costs_[body])
          costs_[body] = costWhole(body);
      });
  }

  /// The cost of a body whose recomputation is chosen automatically, from the costs of two bodies:
  /// one recomputes nothing, the other whole layers.
  std::optional<BodyCost> costByOthers(size_t body) const {
    if (!isAuto(body))
      return std::nullopt;
    size_t none = bodyWith(Knob::Recompute, "none", body),
           full = bodyWith(Knob::Recompute, "full", body);
    bool areKnown = std::max(none, full) < costs_.size() && costs_[none] && costs_[full];
    return areKnown ? costOfAuto(*costs_[none], *costs_[full]) : std::nullopt;
  }

  /// Removes layouts that cannot be valid or fit, and sorts the others by their estimates.
  void estimate() {
    estimates_.resize(space_.bodies.size());
    for (size_t body = 0; body < space_.bodies.size(); ++body) {
      std::vector<size_t> meshes = possible(body);
      for (size_t mesh = 0; mesh < meshesOf(body).size(); ++mesh)
        if (!isListed(body, mesh))
          --result_.all;
        else if (const char *why = refusalOf(body, meshesOf(body)[mesh]))
          refuse(why, 1);
      if (isAsRows(body)) {
        result_.slower += meshes.size();
        continue;
      }
      if (!costs_[body]) {
        if (refusals_[body] == kNotTried)
          result_.unseen += meshes.size();
        else
          refuse(refusals_[body], meshes.size());
        continue;
      }
      estimates_[body] = std::make_unique<Estimates>(
          *costs_[body], space_.bodies[body], space_.sizes,
          [this, body](const Layout &mesh) { return elementsOf(body, mesh); });
      for (size_t mesh : meshes) {
        loadElements(body, mesh);
        const Layout &of = meshesOf(body)[mesh];
        if (!estimates_[body]->divides(of)) {
          refuse("pipeline-stages", 1);
          continue;
        }
        int64_t bytes = estimates_[body]->bytesOf(of);
        if (request_.prunes && request_.memoryBytes > 0 && bytes > request_.memoryBytes) {
          ++result_.beyondMemory;
          result_.leastBeyond = std::min(result_.leastBeyond, bytes);
          continue;
        }
        candidates_.push_back({body, mesh, {estimates_[body]->secondsOf(of), bytes}});
        estimateAuto(candidates_.back());
      }
    }
    std::ranges::sort(candidates_, {}, [this](const Candidate &candidate) {
      return std::tuple(!isLikely(candidate), candidate.estimate.seconds, candidate.body,
                        candidate.mesh);
    });
    inRounds();
  }

  std::string keyOfElements(size_t body, const Layout &mesh) const {
    return space_.bodies[body].word(Knob::Precision) + " " + mesh.word(Knob::Sharding) + " " +
           mesh.word(Knob::Gradients);
  }

  /// Loads the bytes per element, from one of the first layouts that no rule refuses. Refused
  /// layouts need no estimate.
  void loadElements(size_t body, size_t mesh) {
    Elements &known = elements_[keyOfElements(body, meshesOf(body)[mesh])];
    if (known.isLoaded || known.tries == kTriesMax)
      return;
    SourceManager sources;
    std::string why;
    ++known.tries;
    std::optional<config::Config> config =
        load(request_.common, sources, layoutOf({body, mesh, {}, 0}).sets(), why);
    known.isLoaded = config.has_value();
    if (config)
      known.bytes = elementBytes(*config);
  }

  ElementBytes elementsOf(size_t body, const Layout &mesh) const {
    ElementBytes bytes = elements_.at(keyOfElements(body, mesh)).bytes;
    bytes.state += costs_[body]->momentBytes;
    return bytes;
  }

  /// With automatic recomputation, interpolates between the estimates of the layouts that recompute
  /// nothing and whole layers, as far as the memory requires.
  void estimateAuto(Candidate &candidate) const {
    if (!isAuto(candidate.body) || request_.memoryBytes == 0)
      return;
    std::optional<Estimate> none = estimateWith("none", candidate),
                            full = estimateWith("full", candidate);
    if (!none || !full || full->bytes >= none->bytes)
      return;
    double share = static_cast<double>(none->bytes - request_.memoryBytes) /
                   static_cast<double>(none->bytes - full->bytes);
    share = std::clamp(share, 0.0, 1.0);
    candidate.estimate = {none->seconds + share * (full->seconds - none->seconds), full->bytes};
  }

  /// The estimate of the layout that differs only in what it recomputes; empty if it has none yet.
  std::optional<Estimate> estimateWith(const char *recompute, const Candidate &candidate) const {
    const Layout &mesh = meshesOf(candidate.body)[candidate.mesh];
    size_t at = bodyWith(Knob::Recompute, recompute, candidate.body);
    if (at >= candidate.body || !estimates_[at] || !estimates_[at]->divides(mesh))
      return std::nullopt;
    return Estimate{estimates_[at]->secondsOf(mesh), estimates_[at]->bytesOf(mesh)};
  }

  /// Whether the body allows row pieces but uses none, so that it equals the body with whole rows.
  bool isAsRows(size_t body) const {
    const Layout &of = space_.bodies[body];
    if (!request_.prunes || !of.is(Knob::Rows, "pieces") || !costs_[body] ||
        costs_[body]->movesPieces)
      return false;
    return bodyWith(Knob::Rows, "rows", body) < space_.bodies.size();
  }

  /// The body that differs only in this choice; the number of bodies if there is none. Such bodies
  /// are not far apart.
  size_t bodyWith(Knob knob, std::string_view word, size_t body) const {
    auto isSame = [&](size_t other) {
      for (size_t k = 0; k < kKnobCount; ++k)
        if (auto each = static_cast<Knob>(k);
            space_.bodies[other].word(each) !=
            (each == knob ? word : std::string_view(space_.bodies[body].word(each))))
          return false;
      return true;
    };
    for (size_t away = 0; away < space_.bodies.size(); ++away)
      for (size_t at : {body - away, body + away})
        if (at < space_.bodies.size() && isSame(at))
          return at;
    return space_.bodies.size();
  }

  /// Whether a plan probably fits, considering that it needs more than its estimate.
  bool isLikely(const Candidate &candidate) const {
    constexpr double kShare = 0.88;
    return request_.memoryBytes == 0 || static_cast<double>(candidate.estimate.bytes) <
                                            kShare * static_cast<double>(request_.memoryBytes);
  }

  /// Orders candidates in rounds with a few of each kind, so that a good layout is found before all
  /// layouts of the most promising kind are compiled.
  void inRounds() {
    std::map<std::string, size_t> seen;
    for (Candidate &candidate : candidates_)
      candidate.round = hasExactSlots(candidate)
                            ? seen[layoutOf(candidate).kindKey()]++ / kOfKindInRound
                            : seen[layoutOf(candidate).kindKey()] / kOfKindInRound + 1;
    std::ranges::stable_sort(candidates_, {}, &Candidate::round);
  }

  /// Layouts that differ only in their slots have the same ops. The one with exact addresses is
  /// compiled first, since with layers of one block the other one takes as long.
  bool hasExactSlots(const Candidate &candidate) const {
    return meshesOf(candidate.body)[candidate.mesh].is(Knob::Buffers, "exact");
  }

  /// Compiles candidates in batches of growing size, since the first results remove most of the
  /// others. Results are taken in the order of candidates, so the outcome does not depend on the
  /// number of threads.
  void compile() {
    for (size_t body = 0; body < space_.bodies.size(); ++body)
      recomputeCosts_.push_back(isAuto(body) ? passes::newRecomputeCosts() : nullptr);
    size_t size = 1;
    for (size_t begin = 0; begin < candidates_.size(); size = std::min(2 * size, kBatch)) {
      std::vector<size_t> batch;
      size_t end = begin, count = std::min(size, request_.most - result_.compiled);
      for (; end < candidates_.size() && batch.size() < count; ++end)
        if (isPossible(end) && isFirstOfAlike(candidates_[end]))
          batch.push_back(end);
      if (request_.isStopped() || result_.compiled >= request_.most) {
        result_.unseen += batch.size();
        countRest(end);
        return;
      }
      std::vector<std::optional<Tuned>> tuned(batch.size());
      std::vector<std::string> refusals(batch.size(), kNotTried);
      parallelFor(batch.size(), request_, [&](size_t i) {
        refusals[i].clear();
        const Candidate &candidate = candidates_[batch[i]];
        tuned[i] = evaluate(request_.common, layoutOf(candidate).sets(), refusals[i],
                            optionsOf(candidate));
      });
      for (size_t i = 0; i < tuned.size(); ++i)
        if (refusals[i] == kNotTried)
          ++result_.unseen;
        else if (++result_.compiled; tuned[i])
          take(candidates_[batch[i]], std::move(*tuned[i]));
        else if (refusals[i].empty())
          ++result_.givenUp;
        else
          ++result_.refusedCompiled, ++result_.refusals[refusals[i]];
      begin = end;
      request_.onProgress(result_.compiled, candidates_.size() - begin, best());
    }
  }

  /// For its compilation: with recomputation that makes it too slow, it is not wanted.
  passes::PipelineOptions optionsOf(const Candidate &candidate) const {
    passes::PipelineOptions options{.costs = recomputeCosts_[candidate.body]};
    if (request_.prunes && isAuto(candidate.body))
      options.isWanted = [this, &candidate, most = leastSeconds()](double step, const auto &added) {
        const Layout &mesh = meshesOf(candidate.body)[candidate.mesh];
        double without = estimates_[candidate.body]->secondsOf(mesh);
        // Recomputation adds what it adds to the estimate.
        return step * estimates_[candidate.body]->secondsOf(mesh, added) <= most * without;
      };
    return options;
  }

  /// Counts the candidates from `begin` on, which were not compiled.
  void countRest(size_t begin) {
    for (size_t i = begin; i < candidates_.size(); ++i)
      if (isPossible(i) && isFirstOfAlike(candidates_[i]))
        ++result_.unseen;
  }

  /// Whether a candidate must be compiled; otherwise counts the reason.
  bool isPossible(size_t at) {
    const Candidate &candidate = candidates_[at];
    bool wins = canWin(candidate) && !isAsWithout(candidate);
    result_.slower += wins ? 0 : 1;
    return wins;
  }

  /// Whether no layout with the same ops and slots was compiled before.
  bool isFirstOfAlike(const Candidate &candidate) {
    std::string slots = meshesOf(candidate.body)[candidate.mesh].word(Knob::Buffers);
    if (!request_.prunes || alike_.insert(keyOf(candidate) + slots).second)
      return true;
    ++result_.slower;
    return false;
  }

  /// Whether the candidate has nothing to recompute, because the layout without recomputation fits.
  /// That one precedes it.
  bool isAsWithout(const Candidate &candidate) const {
    return isAuto(candidate.body) && without_.contains(keyWithout(candidate));
  }

  /// A key that is equal for layouts that differ only in what they recompute.
  std::string keyWithout(const Candidate &candidate) const {
    std::string key;
    Layout layout = layoutOf(candidate);
    for (size_t knob = 0; knob < kKnobCount; ++knob)
      key += static_cast<Knob>(knob) == Knob::Recompute ? "" : layout.words[knob] + " ";
    return key;
  }

  /// A key that is equal for layouts of a body whose plans differ only in their slots.
  std::string keyOf(const Candidate &candidate) const {
    const Layout &mesh = meshesOf(candidate.body)[candidate.mesh];
    std::string key = std::to_string(candidate.body) + " ";
    for (Knob knob : {Knob::Stages, Knob::Chunks, Knob::Schedule, Knob::Sharding, Knob::Instances,
                      Knob::Gradients})
      key += mesh.word(knob) + " ";
    std::vector<int64_t> layers = estimates_[candidate.body]->layersOf(mesh);
    key += layers.empty() ? mesh.word(Knob::Split) : "";
    for (int64_t each : layers)
      key += fmt::format("{} ", each);
    return key;
  }

  /// The step time of the layout with the same ops and exact slots, which is also that of fixed
  /// slots; 0 if it is not known. Fixed slots may take less if layers have several blocks, since
  /// these are gathered earlier into them (passes/Schedule.cpp).
  double exactSeconds(const Candidate &candidate) const {
    if (hasExactSlots(candidate))
      return 0;
    auto known = exact_.find(keyOf(candidate));
    return known == exact_.end() ? 0 : known->second;
  }

  /// A key that is equal for layouts whose estimates are wrong by similar ratios.
  std::string keyOfTrust(const Candidate &candidate) const {
    std::string key;
    Layout layout = layoutOf(candidate);
    for (Knob knob : {Knob::Tensor, Knob::Rows, Knob::Context, Knob::Exchange, Knob::Experts,
                      Knob::ExpertTensor, Knob::Precision, Knob::Stages, Knob::Schedule,
                      Knob::Sharding, Knob::Buffers})
      key += layout.word(knob) + " ";
    return key;
  }

  bool canWin(const Candidate &candidate) const {
    if (!request_.prunes)
      return true;
    auto known = trust_.find(keyOfTrust(candidate));
    double trust = known == trust_.end() ? kSlackOfOthers * leastTrust_ : kSlack * known->second;
    return std::max(trust * candidate.estimate.seconds, exactSeconds(candidate)) <= leastSeconds();
  }

  /// The step time of the fastest layout so far.
  double leastSeconds() const {
    double own = request_.own ? request_.own->time.step : HUGE_VAL;
    return best() == nullptr ? own : std::min(own, best()->time.step);
  }

  const Tuned *best() const { return result_.found.empty() ? nullptr : &result_.found[best_]; }

  /// Takes over one compiled layout. Its time tells how far to trust the estimates of its kind.
  void take(const Candidate &candidate, Tuned tuned) {
    tuned.estimate = candidate.estimate;
    double ratio = tuned.time.step / candidate.estimate.seconds;
    double &trust = trust_.try_emplace(keyOfTrust(candidate), ratio).first->second;
    trust = std::min(trust, ratio);
    leastTrust_ = trust_.size() == 1 ? trust : std::min(leastTrust_, trust);
    if (hasExactSlots(candidate) && tuned.gathersLayersWhole)
      exact_.try_emplace(keyOf(candidate), tuned.time.step);
    tuned.layout = layoutOf(candidate);
    tuned.order = {candidate.body, candidate.mesh};
    if (request_.memoryBytes > 0 && tuned.bytes > request_.memoryBytes) {
      result_.tooLarge.push_back(std::move(tuned));
      return;
    }
    ++result_.fit;
    if (isAsWithout(candidate))
      return;
    if (tuned.layout.is(Knob::Recompute, "none"))
      without_.insert(keyWithout(candidate));
    result_.found.push_back(std::move(tuned));
    if (result_.found.back().time.step < result_.found[best_].time.step)
      best_ = result_.found.size() - 1;
  }

  const TuneSpace &space_;
  const TuneRequest &request_;
  std::vector<std::optional<BodyCost>> costs_; ///< by body
  std::vector<std::string> refusals_;          ///< by body: why it has no cost
  std::vector<Candidate> candidates_;
  /// Bytes per element under a sharding. Unset until a layout with this sharding has been loaded.
  struct Elements {
    ElementBytes bytes;
    bool isLoaded = false;
    size_t tries = 0;
  };
  std::map<std::string, Elements> elements_;
  std::vector<std::unique_ptr<Estimates>> estimates_;                   ///< by body
  std::vector<std::shared_ptr<passes::RecomputeCosts>> recomputeCosts_; ///< by body
  /// By kind of layouts, the least ratio of a compiled plan's seconds to its estimate; and that of
  /// all kinds, which holds for the others.
  std::map<std::string, double> trust_;
  double leastTrust_ = 0;
  std::map<std::string, double> exact_; ///< by key: step time of the layout with exact slots
  std::set<std::string> alike_;
  std::set<std::string> without_; ///< keys of layouts that recompute nothing and fit
  TuneResult result_;
  size_t best_ = 0;
};

} // namespace

std::optional<Tuned> evaluate(const CommonOptions &common, const std::vector<std::string> &sets,
                              std::string &why, const passes::PipelineOptions &options) {
  SourceManager sources;
  std::optional<config::Config> config = load(common, sources, sets, why);
  if (!config)
    return std::nullopt;
  plan::Plan plan = placedPlan(*config, sources, options);
  if (passes::choosesRecompute(plan))
    return std::nullopt;
  if (!canRun(plan)) {
    why = "too-many-graphs";
    return std::nullopt;
  }
  Tuned tuned;
  tuned.bytes = deviceBytesOf(plan);
  tuned.time = predictedStep(plan).value_or(predict::StepTime());
  tuned.recomputed = recomputedSeconds(plan);
  for (size_t block = 1; block < plan.blocks.size(); ++block)
    tuned.gathersLayersWhole &= plan.blocks[block].unit != plan.blocks[block - 1].unit ||
                                !plan::isLayer(plan, plan.blocks[block].unit);
  if (plan.job.model.pipelineSplit == plan::Job::PipelineSplit::Balanced)
    tuned.stages = plan.job.model.pipelineModelParallelLayout;
  return tuned;
}

TuneResult search(const TuneSpace &space, const TuneRequest &request) {
  return Search(space, request).run();
}

} // namespace shardc::tools
