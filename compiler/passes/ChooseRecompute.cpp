// Searches for the best choice of recomputed layers in four steps.
//
// - Costs: for each way to recompute a layer, one body is compiled. It gives the bytes that a layer
//   then keeps, the additional bytes that the layer needs while its gradients are computed, and its
//   time.
// - Memory: a stage needs the sum of the bytes that all microbatches in flight keep, plus a maximum
//   over the layers, since earlier layers still keep their activations while a layer's gradients
//   are computed. The address maps of two plans give the number of microbatches in flight.
// - Candidates: choices that another choice beats in both memory and time are dropped.
// - Search: a binary search finds the fastest choice whose address map fits, since a choice with a
//   smaller estimate nearly always has a smaller map. Maps have gaps that the costs of layers do
//   not predict, so at the end the search tries some faster choices whose estimates are slightly
//   too large.
#include "compiler/passes/ChooseRecompute.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "compiler/model/LayerList.h"
#include "compiler/passes/Clocks.h"
#include "compiler/passes/PipelineStages.h"
#include "compiler/passes/PlanNames.h"
#include "compiler/predict/Overheads.h"
#include "compiler/predict/StepTime.h"
#include "compiler/predict/Transfers.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/Summary.h"

namespace shardc::passes {

using model::LayerParts;
using plan::Job;
using plan::Phase;

namespace {

/// Resolution of the table: of choices whose bytes differ by less than 1/kGrid, only one is kept.
constexpr int64_t kGrid = 256;
/// The maximum number of plans that the search places, and of plans that are placed afterwards for
/// choices whose estimates exceed the limit by at most kGaps times the range of all estimates.
constexpr int kTriesMax = 20, kMoreTries = 16;
constexpr double kGaps = 0.125;
/// The search ends after some plans with this many ops in all, which take about a second. Large
/// plans have many layers, so that the first guesses are good and gaps small.
constexpr int kTriesMin = 5;
constexpr int64_t kOpsMax = 150'000;

const plan::Segment *trainingBody(const plan::Plan &plan) {
  for (const plan::Segment &segment : plan.roles.front().segments)
    if (segment.body && countForwardOps(segment) < segment.ops.size())
      return &segment;
  return nullptr;
}

std::vector<size_t> layersOf(const plan::Plan &plan) {
  std::vector<size_t> units;
  for (size_t unit = 0; unit < plan.units.size(); ++unit)
    if (isLayer(plan, static_cast<int32_t>(unit)))
      units.push_back(unit);
  return units;
}

/// Seconds of ops, at rates without a power limit.
struct Load {
  double products = 0, attention = 0, others = 0;

  void add(const Op &op, double seconds) {
    plan::CostClass cost = plan::opInfo(op).work.cost;
    (predict::takesPower(op)              ? products
     : cost == plan::CostClass::Attention ? attention
                                          : others) += seconds;
  }
  void add(const Load &more, double times = 1) {
    products += times * more.products;
    attention += times * more.attention;
    others += times * more.others;
  }
  double all() const { return products + attention + others; }
  double powerFactor() const { return all() > 0 ? predict::powerFactor(products / all()) : 1; }
  /// Seconds at the clock that the power limit allows. Products draw the most power: more of them
  /// slow products and attention; more of anything else raises the clock for these.
  double seconds() const { return seconds(powerFactor()); }
  double seconds(double factor) const { return (products + attention) / factor + others; }
};

} // namespace

/// Costs of bodies that have the same ops and differ only in what all of their layers recompute.
/// Thread-safe.
struct RecomputeCosts {
  struct Body {
    std::vector<int64_t> kept, peaks; ///< by unit
    std::vector<Load> loads;          ///< by unit
    Load all;
  };
  std::mutex mutex;
  std::map<std::pair<bool, uint32_t>, std::shared_ptr<const Body>> known;
};

std::shared_ptr<RecomputeCosts> newRecomputeCosts() { return std::make_shared<RecomputeCosts>(); }

namespace {

/// Cost of one layer for one microbatch, in bytes and seconds.
struct LayerCost {
  int64_t kept = 0;
  int64_t beside = 0; ///< peak of its backward pass, without bytes that layers keep
  Load load;          ///< of the layer's ops
  double seconds = 0; ///< of the layer's ops, at the clock of a step without recomputation
};

/// A way to recompute a layer, and its cost for each layer.
struct RecomputeWay {
  LayerParts what;
  std::vector<LayerCost> layers;
};

void request(plan::Plan &plan, const std::vector<LayerParts> &layers) {
  plan.job.put(plan::JobField::model_recomputeLayers, model::layerListText(layers));
}

/// By unit: the peak bytes of live activations during the unit's backward pass.
std::vector<int64_t> peaksOfUnits(const plan::Segment &body, size_t units) {
  std::vector<size_t> last(body.values.size());
  for (size_t i = 0; i < body.ops.size(); ++i)
    for (plan::ValueId operand : body.ops[i].operands)
      last[operand] = i;
  std::vector<std::vector<plan::ValueId>> ending(body.ops.size());
  std::vector<int64_t> peaks(units);
  int64_t live = 0;
  for (size_t i = 0; i < body.ops.size(); ++i) {
    const Op &op = body.ops[i];
    for (plan::ValueId result : op.results) {
      const plan::Value &value = body.values[result];
      if (isAlias(op) || value.purpose != plan::Purpose::Activations || last[result] <= i)
        continue;
      live += value.type.bytes();
      ending[last[result]].push_back(result);
    }
    if (op.phase == Phase::Backward && op.unit >= 0)
      peaks[static_cast<size_t>(op.unit)] = std::max(peaks[static_cast<size_t>(op.unit)], live);
    for (plan::ValueId value : ending[i])
      live -= body.values[value].type.bytes();
  }
  return peaks;
}

/// A choice for the first layers of a stage. `peak` is the peak of bytes with a single microbatch.
struct Prefix {
  int64_t kept = 0, peak = 0;
  double added = 0;    ///< seconds of recomputation
  uint32_t before = 0; ///< index of the prefix that is one layer shorter
  uint16_t way = 0;    ///< way of the last layer
};

/// A choice for all layers of a stage.
struct Choice {
  int64_t kept = 0, peak = 0;
  double added = 0;
  double addedAtMost = 0;     ///< at the most power that a step can have
  std::vector<uint16_t> ways; ///< of each layer of the stage
  double bytes = 0;           ///< expected, of all microbatches that are in flight
};

struct StageChoices {
  std::vector<size_t> layers; ///< layer numbers in the model, ascending
  std::vector<Choice> all;
  std::vector<Choice> choices; ///< in order of decreasing estimated bytes
  size_t tooMuch = 0;          ///< index of the last choice that was found not to fit
  size_t fits = 0;             ///< index of the first choice that fits; the last one if unknown
  bool isKnown = false;        ///< whether placing has shown that `fits` fits
  size_t tried = 0;
  size_t stride =
      1; ///< distance from the last guess to the next, while one end of the range is unknown
  int64_t bytes = 0; ///< placed bytes of `fits`, if it is known

  bool isDone() const { return isKnown && (fits == 0 || fits == tooMuch + 1); }
};

/// Finds the choices for a stage's layers by dynamic programming over prefixes of its layers.
class StageTable {
public:
  /// `body`: the load of a microbatch without recomputation.
  StageTable(const std::vector<RecomputeWay> &ways, const std::vector<size_t> &layers,
             const Load &body)
      : ways_(ways), layers_(layers), body_(body) {
    int64_t most = 1;
    for (size_t layer : layers) {
      int64_t largest = 0;
      for (const RecomputeWay &way : ways)
        largest = std::max(largest, way.layers[layer].kept);
      most += largest;
    }
    step_ = std::max<int64_t>(most / kGrid, 1);
  }

  std::vector<Choice> choices() {
    table_ = {{Prefix()}};
    for (size_t layer : layers_)
      table_.push_back(extended(table_.back(), layer));
    std::vector<Choice> all;
    for (const Prefix &whole : table_.back())
      all.push_back(choiceOf(whole));
    // Adds the choices that a person would make: one kind of recomputation in the first layers and
    // none in the others. The table may miss these, because a layer may save fewer bytes than the
    // table's resolution.
    for (size_t way = 1; way < ways_.size(); ++way)
      for (size_t count = 1; count <= layers_.size(); ++count)
        all.push_back(ofFirst(count, static_cast<uint16_t>(way)));
    for (Choice &choice : all)
      addSeconds(choice);
    return all;
  }

  Choice ofFirst(size_t count, uint16_t way) const {
    Choice choice;
    choice.ways.assign(layers_.size(), 0);
    std::fill_n(choice.ways.begin(), count, way);
    Prefix whole;
    for (size_t place = 0; place < layers_.size(); ++place)
      whole = with(whole, layers_[place], choice.ways[place]);
    choice.kept = whole.kept, choice.peak = whole.peak, choice.added = whole.added;
    return choice;
  }

private:
  /// Extends each prefix by one layer. Of prefixes with about the same memory it keeps the fastest.
  std::vector<Prefix> extended(const std::vector<Prefix> &prefixes, size_t layer) const {
    std::map<std::pair<int64_t, int64_t>, Prefix> best;
    for (size_t i = 0; i < prefixes.size(); ++i)
      for (size_t way = 0; way < ways_.size(); ++way) {
        Prefix next = with(prefixes[i], layer, way);
        next.before = static_cast<uint32_t>(i);
        next.way = static_cast<uint16_t>(way);
        auto [slot, isNew] = best.try_emplace({next.kept / step_, next.peak / step_}, next);
        if (!isNew && isBetter(next, slot->second))
          slot->second = next;
      }
    std::vector<Prefix> kept;
    int64_t bucket = -1, peak = 0;
    double added = 0;
    // Of prefixes that keep the same bytes, drops those that another prefix beats in both peak and
    // time.
    for (const auto &[key, prefix] : best) {
      if (key.first == bucket && prefix.peak >= peak && prefix.added >= added)
        continue;
      bucket = key.first, peak = prefix.peak, added = prefix.added;
      kept.push_back(prefix);
    }
    return kept;
  }

  /// The prefix, extended by one layer.
  Prefix with(Prefix prefix, size_t layer, size_t way) const {
    const LayerCost &cost = ways_[way].layers[layer];
    prefix.kept += cost.kept;
    prefix.peak = std::max(prefix.peak, prefix.kept + cost.beside);
    prefix.added += std::max(cost.seconds - ways_.front().layers[layer].seconds, 0.0);
    return prefix;
  }

  /// Computes the time exactly, since the slowdown by power depends on the whole choice.
  void addSeconds(Choice &choice) const {
    Load load = body_;
    for (size_t place = 0; place < layers_.size(); ++place) {
      load.add(ways_[choice.ways[place]].layers[layers_[place]].load);
      load.add(ways_.front().layers[layers_[place]].load, -1);
    }
    choice.added = std::max(load.seconds() - body_.seconds(), 0.0);
    load.add(body_, -1);
    choice.addedAtMost = std::max(load.seconds(predict::powerFactor(0)), 0.0);
  }

  static bool isBetter(const Prefix &a, const Prefix &b) {
    return std::tie(a.added, a.peak, a.kept) < std::tie(b.added, b.peak, b.kept);
  }

  Choice choiceOf(Prefix prefix) const {
    Choice choice = {.kept = prefix.kept, .peak = prefix.peak, .added = prefix.added};
    choice.ways.resize(layers_.size());
    for (size_t place = layers_.size(); place-- > 0;) {
      choice.ways[place] = prefix.way;
      prefix = table_[place][prefix.before];
    }
    return choice;
  }

  const std::vector<RecomputeWay> &ways_;
  const std::vector<size_t> &layers_;
  const Load &body_;
  std::vector<std::vector<Prefix>> table_; ///< by number of layers in the prefix
  int64_t step_;
};

class Chooser {
public:
  Chooser(plan::Plan &plan, const PipelineOptions &options, Notes &notes)
      : plan_(plan), options_(options), notes_(notes), units_(layersOf(plan)) {
    options_.after = nullptr;
  }

  /// False if the plan is not wanted.
  bool run() {
    chosen_.assign(units_.size(), LayerParts());
    request(plan_, chosen_);
    Notes notes;
    before_ = plan_;
    runPasses(before_, options_, notes, PassId::Partition, PassId::Recompute);
    keepSplit(notes);
    plan::Plan placed = before_;
    runPasses(placed, options_, notes, PassId::Recompute, std::nullopt);
    if (units_.empty() || plan_.deviceBytes == 0 || !trainingBody(placed))
      return true;
    std::vector<int64_t> bytes = bytesOfRoles(placed);
    findStages(placed);
    if (std::ranges::all_of(bytes, [&](int64_t b) { return b <= plan_.deviceBytes; })) {
      noteChoice(std::ranges::max(bytes), 0);
      return true;
    }
    if (placed.roles.size() == 1 || options_.isWanted)
      stepSeconds_ =
          predict::slowestOf(predict::predictSteps(predict::deviceOf(placed), placed)).step;
    if (!isWanted(std::vector<double>(stages_.size())))
      return false;
    costWays();
    for (StageChoices &stage : stages_)
      stage.choices = StageTable(ways_, stage.layers, load_).choices();
    expect(bytes);
    if (std::ranges::any_of(stages_,
                            [this](const StageChoices &stage) { return exceeds(stage); })) {
      takeLeast();
      return true;
    }
    if (!isWanted(leastAdded()))
      return false;
    search(bytes);
    tryMore();
    finish();
    return true;
  }

private:
  /// Takes over the pipeline layout that was chosen for the plan without recomputation.
  void keepSplit(const Notes &notes) {
    const std::string &layout = before_.job.model.pipelineModelParallelLayout;
    if (layout == plan_.job.model.pipelineModelParallelLayout)
      return;
    plan_.job.put(plan::JobField::model_pipelineModelParallelLayout, layout);
    for (const Note &note : notes)
      if (note.id == "balanced-stages")
        notes_.push_back(note);
  }

  std::vector<int64_t> bytesOfRoles(const plan::Plan &placed) const {
    std::vector<int64_t> bytes;
    for (const plan::Role &role : placed.roles)
      bytes.push_back(predict::deviceBytesOf(placed, role));
    return bytes;
  }

  /// Assigns layers to stages. A plan with one role counts as one stage.
  void findStages(const plan::Plan &placed) {
    PipelineStages stages = readStages(plan_);
    bool isDivided = static_cast<int64_t>(placed.roles.size()) == stages.count;
    stages_.resize(placed.roles.size());
    for (size_t layer = 0; layer < units_.size(); ++layer) {
      auto stage = static_cast<size_t>(stages.stageOf(units_[layer]));
      stages_[isDivided ? stage : 0].layers.push_back(layer);
    }
  }

  std::vector<LayerCost> costsWith(LayerParts what) {
    std::shared_ptr<const RecomputeCosts::Body> body = bodyWith(what);
    if (ways_.empty())
      load_ = withRest(body->all);
    std::vector<LayerCost> costs;
    int64_t before = 0;
    for (size_t unit : units_) {
      before += body->kept[unit];
      Load with = load_;
      with.add(body->loads[unit]);
      costs.push_back({body->kept[unit], std::max<int64_t>(body->peaks[unit] - before, 0),
                       body->loads[unit], with.seconds() - load_.seconds()});
    }
    return costs;
  }

  /// The costs of a body in which all layers recompute the same, from the cache if it has them.
  std::shared_ptr<const RecomputeCosts::Body> bodyWith(LayerParts what) {
    std::pair key(what.isFull, what.modules);
    if (options_.costs) {
      std::scoped_lock lock(options_.costs->mutex);
      auto known = options_.costs->known.find(key);
      if (known != options_.costs->known.end() &&
          known->second->kept.size() == before_.units.size())
        return known->second;
    }
    plan::Plan body = before_;
    request(body, std::vector<LayerParts>(units_.size(), what));
    Notes ignored;
    runPass(PassId::Recompute, body, ignored);
    // Modules that no layer has, or that others include, change nothing.
    std::shared_ptr<const RecomputeCosts::Body> &same = bodies_[recomputedOps(*trainingBody(body))];
    if (same)
      return same;
    finishBody(body, PassId::Quantize);
    const plan::Segment &segment = *trainingBody(body);
    const predict::Device device = predict::deviceOf(body);
    auto made = std::make_shared<RecomputeCosts::Body>();
    made->kept = keptBytesOfUnits(segment, body.units.size());
    made->peaks = peaksOfUnits(segment, body.units.size());
    made->loads.resize(body.units.size());
    for (const Op &op : segment.ops) {
      if (isAlias(op))
        continue;
      double seconds = predict::timeOf(device, body, segment, op);
      if (op.unit >= 0)
        made->loads[static_cast<size_t>(op.unit)].add(op, seconds);
      made->all.add(op, seconds);
    }
    if (options_.costs) {
      std::scoped_lock lock(options_.costs->mutex);
      options_.costs->known[key] = made;
    }
    return same = made;
  }

  static std::vector<std::pair<plan::OpKind, int32_t>> recomputedOps(const plan::Segment &body) {
    std::vector<std::pair<plan::OpKind, int32_t>> ops;
    for (const Op &op : body.ops)
      if (op.isRecomputed)
        ops.emplace_back(op.kind, op.unit);
    return ops;
  }

  /// Adds the time of the rest of the step to the load of the body. That time is known only without
  /// stages.
  Load withRest(const Load &ops) const {
    double passes = static_cast<double>(std::max<int64_t>(plan_.job.derived.numMicrobatches, 1));
    Load load = ops;
    constexpr int kRounds = 4; // power depends on the rest, and the rest on power
    for (int round = 0; round < kRounds && stages_.size() == 1; ++round)
      load.others = ops.others + std::max(stepSeconds_ / passes - ops.others -
                                              (ops.products + ops.attention) / load.powerFactor(),
                                          0.0);
    return load;
  }

  static bool isSame(const std::vector<LayerCost> &a, const std::vector<LayerCost> &b) {
    return std::ranges::equal(a, b, {}, &LayerCost::kept, &LayerCost::kept);
  }

  /// Costs three kinds of ways: no recomputation, each set of modules that changes the kept bytes,
  /// and full recomputation.
  void costWays() {
    ways_.push_back({{}, costsWith({})});
    uint32_t modules = 0;
    const auto &words = plan::jobInfo(plan::JobField::model_recomputeModules).words;
    for (size_t module = 0; module < words.size(); ++module) {
      LayerParts what = {.modules = uint32_t{1} << module};
      std::vector<LayerCost> costs = costsWith(what);
      if (isSame(costs, ways_.front().layers))
        continue;
      modules |= what.modules;
      ways_.push_back({what, std::move(costs)});
    }
    for (uint32_t set = 1; set <= modules; ++set)
      if ((set & ~modules) == 0 && (set & (set - 1)) != 0)
        ways_.push_back({{.modules = set}, costsWith({.modules = set})});
    ways_.push_back({{.isFull = true}, costsWith({.isFull = true})});
  }

  std::vector<LayerParts> tried() const {
    std::vector<LayerParts> layers(units_.size());
    for (const StageChoices &stage : stages_)
      for (size_t place = 0; place < stage.layers.size(); ++place)
        layers[stage.layers[place]] = ways_[stage.choices[stage.tried].ways[place]].what;
    return layers;
  }

  std::vector<int64_t> placedBytes() {
    plan::Plan placed = before_;
    request(placed, tried());
    Notes notes;
    runPasses(placed, options_, notes, PassId::Recompute, std::nullopt);
    ++triedPlans_;
    for (const plan::Role &role : placed.roles)
      for (const plan::Segment &segment : role.segments)
        triedOps_ += static_cast<int64_t>(segment.ops.size());
    return bytesOfRoles(placed);
  }

  bool canTryMore() const { return triedPlans_ < kTriesMin || triedOps_ < kOpsMax; }

  /// Estimates the bytes of each choice from two placed plans: the one that recomputes nothing, and
  /// the one that keeps the fewest bytes. Drops choices that another one beats in both bytes and
  /// time.
  void expect(const std::vector<int64_t> &bytes) {
    for (StageChoices &stage : stages_) {
      auto least = std::ranges::min_element(stage.choices, {}, &Choice::kept);
      stage.tried = static_cast<size_t>(least - stage.choices.begin());
    }
    std::vector<int64_t> fewest = placedBytes();
    for (size_t i = 0; i < stages_.size(); ++i) {
      StageChoices &stage = stages_[i];
      Choice none = nothing(stage);
      const Choice &least = stage.choices[stage.tried];
      auto kept = static_cast<double>(none.kept - least.kept);
      auto rest = static_cast<double>(bytes[i] - fewest[i] - (none.peak - least.peak));
      double others = kept > 0 ? std::max(rest / kept, 0.0) : 0; // other microbatches in flight
      auto expected = [&](const Choice &choice) {
        return static_cast<double>(bytes[i]) + static_cast<double>(choice.peak - none.peak) +
               others * static_cast<double>(choice.kept - none.kept);
      };
      for (Choice &choice : stage.choices)
        choice.bytes = expected(choice);
      none.bytes = static_cast<double>(bytes[i]);
      stage.all = stage.choices;
      thin(stage.choices, std::move(none));
    }
  }

  Choice nothing(const StageChoices &stage) const {
    return StageTable(ways_, stage.layers, load_).ofFirst(0, 0);
  }

  /// Sorts the choices: no recomputation first, then choices in order of decreasing bytes. Drops a
  /// choice if a faster one needs no more bytes.
  static void thin(std::vector<Choice> &choices, Choice none) {
    std::ranges::sort(choices, [](const Choice &a, const Choice &b) {
      return std::tie(a.added, a.bytes) < std::tie(b.added, b.bytes);
    });
    std::vector<Choice> best = {std::move(none)};
    for (Choice &choice : choices)
      if (choice.bytes < best.back().bytes)
        best.push_back(std::move(choice));
    choices = std::move(best);
  }

  /// The error to expect of a choice's estimated bytes.
  static double gapsOf(const StageChoices &stage) {
    return kGaps * (stage.choices.front().bytes - stage.choices.back().bytes);
  }

  /// Asks PipelineOptions::isWanted. If the plan is not wanted, the choice is open again.
  bool isWanted(const std::vector<double> &added) {
    bool isWanted = !options_.isWanted || options_.isWanted(stepSeconds_, added);
    if (!isWanted)
      request(plan_, {});
    return isWanted;
  }

  /// For each stage the least seconds that a choice adds whose estimate is not clearly too large.
  std::vector<double> leastAdded() const {
    std::vector<double> added;
    for (const StageChoices &stage : stages_) {
      double least = HUGE_VAL;
      for (const Choice &choice : stage.all)
        if (choice.bytes < static_cast<double>(plan_.deviceBytes) + gapsOf(stage))
          least = std::min(least, choice.addedAtMost);
      added.push_back(std::isinf(least) ? 0 : least);
    }
    return added;
  }

  /// Whether even the choice with the smallest estimate cannot fit. The estimate of the choice that
  /// keeps the fewest bytes is exact, and others of about this size nearly are.
  bool exceeds(const StageChoices &stage) const {
    return stage.choices.back().bytes > (1 + kGaps) * static_cast<double>(plan_.deviceBytes);
  }

  /// Takes the choice that needs the least memory, if none fits.
  void takeLeast() {
    for (StageChoices &stage : stages_)
      stage.tried = stage.fits = stage.choices.size() - 1;
    place();
    finish();
  }

  void search(const std::vector<int64_t> &bytes) {
    for (size_t i = 0; i < stages_.size(); ++i) {
      StageChoices &stage = stages_[i];
      stage.isKnown = bytes[i] <= plan_.deviceBytes;
      stage.bytes = bytes[i];
      stage.fits = stage.isKnown ? 0 : stage.choices.size() - 1;
      auto first = std::ranges::lower_bound(stage.choices, -static_cast<double>(plan_.deviceBytes),
                                            {}, [](const Choice &choice) { return -choice.bytes; });
      stage.tried = std::min(static_cast<size_t>(first - stage.choices.begin()), stage.fits);
    }
    for (int tries = 0; tries < kTriesMax && canTryMore() && !std::ranges::all_of(stages_, isFinal);
         ++tries) {
      place();
      for (StageChoices &stage : stages_)
        stage.tried = isFinal(stage) ? stage.fits : next(stage);
    }
  }

  /// Whether the search of a stage is over: the best choice is known, or no choice fits.
  static bool isFinal(const StageChoices &stage) {
    return stage.isDone() || stage.tooMuch + 1 >= stage.choices.size();
  }

  /// Places a plan with the tried choices of all stages, and records which of them fit.
  void place() {
    std::vector<int64_t> bytes = placedBytes();
    for (size_t i = 0; i < stages_.size(); ++i) {
      StageChoices &stage = stages_[i];
      if (bytes[i] > plan_.deviceBytes)
        stage.tooMuch = std::max(stage.tooMuch, stage.tried);
      else
        stage.fits = stage.tried, stage.isKnown = true;
      if (stage.tried == stage.fits)
        stage.bytes = bytes[i];
    }
  }

  /// The next choice to try. Moves away from the first guess in growing steps until one choice fits
  /// and another one does not; then takes the middle between them.
  static size_t next(StageChoices &stage) {
    bool isTooMuchKnown = stage.tooMuch > 0;
    if (!stage.isKnown && stage.tooMuch + 1 >= stage.fits)
      return stage.fits;
    if (isTooMuchKnown == stage.isKnown || stage.tooMuch + stage.stride >= stage.fits)
      return stage.tooMuch + (stage.fits - stage.tooMuch + (stage.isKnown ? 0 : 1)) / 2;
    size_t at = stage.isKnown ? stage.fits - stage.stride : stage.tooMuch + stage.stride;
    stage.stride *= 2;
    return at;
  }

  /// Further choices to try, in order of increasing estimates: those that are faster than the found
  /// choice, or all if none fits.
  std::vector<Choice> moreOf(const StageChoices &stage) const {
    const Choice &found = stage.choices[stage.fits];
    double least = stage.choices.back().bytes;
    double limit = std::max(static_cast<double>(plan_.deviceBytes), least) + gapsOf(stage);
    std::vector<Choice> more;
    for (const Choice &choice : stage.all)
      if ((!stage.isKnown || choice.added < found.added) && choice.bytes < limit)
        more.push_back(choice);
    std::ranges::sort(more, [](const Choice &a, const Choice &b) {
      return std::tie(a.bytes, a.added) < std::tie(b.bytes, b.added);
    });
    more.resize(std::min<size_t>(more.size(), kMoreTries));
    return more;
  }

  /// Tries further choices of each stage. In each iteration every stage tries one, since placing
  /// the buffers gives the bytes of all stages at once. A choice that fits is taken if it is faster
  /// than the best one so far, or if no choice was known to fit.
  void tryMore() {
    std::vector<std::vector<Choice>> more;
    size_t most = 0;
    for (StageChoices &stage : stages_) {
      more.push_back(moreOf(stage));
      most = std::max(most, more.back().size());
      stage.choices = {stage.choices[stage.fits], {}}; // the best choice so far, and the tried one
      stage.fits = 0;
    }
    for (size_t round = 0; round < most && canTryMore(); ++round) {
      for (size_t i = 0; i < stages_.size(); ++i) {
        stages_[i].tried = round < more[i].size() ? 1 : 0;
        if (round < more[i].size())
          stages_[i].choices[1] = more[i][round];
      }
      std::vector<int64_t> bytes = placedBytes();
      for (size_t i = 0; i < stages_.size(); ++i) {
        StageChoices &stage = stages_[i];
        bool isFaster = !stage.isKnown || stage.choices[1].added < stage.choices[0].added;
        if (stage.tried == 0 || bytes[i] > plan_.deviceBytes || !isFaster)
          continue;
        stage.choices[0] = stage.choices[1];
        stage.isKnown = true;
        stage.bytes = bytes[i];
      }
    }
  }

  void finish() {
    int64_t bytes = 0;
    double added = 0;
    for (StageChoices &stage : stages_) {
      stage.tried = stage.fits;
      bytes = std::max(bytes, stage.bytes);
      added = std::max(added, stage.choices[stage.fits].added);
    }
    chosen_ = tried();
    request(plan_, chosen_);
    noteChoice(bytes, added);
  }

  void noteChoice(int64_t bytes, double added) {
    notes_.push_back(
        {fmt::format("'model.recompute_granularity = auto' recomputes {}: {} of {} are needed, and "
                     "recomputation is predicted to take {:.3g} ms of a microbatch",
                     joined(model::layerListText(chosen_)), plan::formatBytes(bytes),
                     plan::formatBytes(plan_.deviceBytes), 1e3 * added),
         "chosen-recomputation"});
  }

  static std::string joined(const std::vector<std::string> &entries) {
    std::string text;
    for (const std::string &entry : entries)
      text += fmt::format("{}'{}'", text.empty() ? "" : ", ", entry);
    return text;
  }

  plan::Plan &plan_;
  plan::Plan before_; ///< the plan before pass recompute
  PipelineOptions options_;
  Notes &notes_;
  std::vector<size_t> units_;      ///< the units that are layers
  std::vector<RecomputeWay> ways_; ///< the first recomputes nothing
  double stepSeconds_ = 0;         ///< without recomputation, of a plan without stages or if asked
  Load load_;                      ///< of a microbatch without recomputation
  /// By the kinds and units of the recomputed ops.
  std::map<std::vector<std::pair<plan::OpKind, int32_t>>,
           std::shared_ptr<const RecomputeCosts::Body>>
      bodies_;
  std::vector<StageChoices> stages_;
  int triedPlans_ = 0;
  int64_t triedOps_ = 0;           ///< of the tried plans
  std::vector<LayerParts> chosen_; ///< by layer
};

} // namespace

std::vector<int64_t> keptBytesOfUnits(const plan::Segment &body, size_t units) {
  std::vector<int64_t> bytes(units);
  std::vector<uint8_t> isKept(body.values.size());
  auto keep = [&](const Op &reader, plan::ValueId value) {
    const plan::Value &kept = body.values[value];
    if (reader.phase != Phase::Backward || isKept[value] != 0 || kept.def == plan::kNone ||
        kept.purpose != plan::Purpose::Activations)
      return;
    const Op &producer = body.ops[kept.def];
    if (producer.phase != Phase::Forward || isAlias(producer) || producer.unit < 0)
      return;
    isKept[value] = 1;
    bytes[static_cast<size_t>(producer.unit)] += kept.type.bytes();
  };
  for (const Op &op : body.ops)
    for (plan::ValueId operand : op.operands)
      keep(op, operand);
  return bytes;
}

bool choosesRecompute(const plan::Plan &plan) {
  return plan.job.model.recomputeGranularity == Job::RecomputeGranularity::Auto &&
         plan.job.model.recomputeLayers.empty();
}

bool chooseRecompute(plan::Plan &plan, const PipelineOptions &options, Notes &notes) {
  return Chooser(plan, options, notes).run();
}

} // namespace shardc::passes
