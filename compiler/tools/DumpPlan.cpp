// shardc dump-plan: prints the plan of a recipe, after all passes or after any of them: as text, as
// a JSON document for scripts, as a timeline, or as the order of its passes.
#include <cmath>
#include <fmt/format.h>
#include <map>
#include <string>

#include "compiler/basic/Suggest.h"
#include "compiler/lower/Lower.h"
#include "compiler/model/ScheduleFile.h"
#include "compiler/page/Work.h"
#include "compiler/passes/PipelineStages.h"
#include "compiler/predict/DeviceTable.h"
#include "compiler/predict/Kernels.h"
#include "compiler/predict/StepTime.h"
#include "compiler/predict/Transfers.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/ElasticPlans.h"
#include "compiler/tools/SamplePlan.h"
#include "compiler/tools/Session.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Json.h"
#include "runtime/plan/Coordinates.h"
#include "runtime/plan/Plan.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Text.h"
#include "runtime/trace/ChromeTrace.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

/// Maximum number of intervals in a trace; that of a run's trace is equal.
constexpr size_t kSpansMax = size_t{1} << 22;

int64_t toNs(double seconds) { return std::llround(seconds * 1e9); }

/// The predicted timeline of a step in Perfetto's format, with a thread per stream. One rank per
/// role stands for all ranks of the role. Names and streams are those of a real trace, so both can
/// be compared.
std::string planTrace(const predict::Device &device, const plan::Plan &plan) {
  std::vector<std::vector<predict::Interval>> timelines =
      predict::timelinesOf(device, plan, kSpansMax);
  std::vector<trace::Span> spans;
  std::map<int, std::string> names; // by rank
  for (size_t r = 0; r < plan.roles.size(); ++r) {
    const plan::Role &role = plan.roles[r];
    int32_t rank = page::firstRank(plan, role);
    names[rank] = fmt::format("rank {}{}", rank, plan::stageOf(plan, static_cast<uint32_t>(r)));
    std::vector<std::vector<std::string>> labels; // by segment and op
    for (const plan::Segment &segment : role.segments)
      labels.push_back(plan::opLabels(plan, segment));
    for (const predict::Interval &interval : timelines[r]) {
      const plan::Op &op = role.segments[interval.segment].ops[interval.op];
      trace::Span span;
      span.rank = rank;
      span.stream = plan.streams[op.stream].name;
      span.label = labels[interval.segment][interval.op];
      span.work = plan::opInfo(op).name;
      span.beginNs = toNs(interval.begin);
      span.endNs = toNs(interval.end);
      span.microbatch = interval.microbatch;
      spans.push_back(std::move(span));
    }
  }
  return trace::chromeTrace(spans, [&](int rank) { return names.at(rank); });
}

using Json = nlohmann::ordered_json;

Json groupJson(const plan::Plan &plan, int16_t group) {
  return group < 0 ? Json(nullptr) : Json(plan.groups[static_cast<size_t>(group)].name);
}

Json placeJson(const plan::Plan &plan, const plan::Place &place) {
  if (!place.placed)
    return nullptr;
  Json json = {{"arena", plan::toString(place.arena)},
               {"offset", place.offset},
               {"coef", place.coef},
               {"group", groupJson(plan, place.group)}};
  if (place.slots > 1)
    json.update({{"slots", place.slots}, {"stride", place.stride}, {"shift", place.shift}});
  return json;
}

Json typeJson(const plan::Type &type) {
  Json shape = Json::array();
  for (int d = 0; d < type.rank; ++d)
    shape.push_back(type.shape[static_cast<size_t>(d)]);
  return {{"dtype", dtypeName(type.dtype)}, {"shape", shape}, {"bytes", type.bytes()}};
}

Json attrsJson(const plan::Op &op) {
  Json attrs = Json::object();
  for (const plan::Attr &attr : op.attrs) {
    const plan::AttrInfo &info = plan::attrInfo(attr.key);
    std::string name(info.name);
    if (info.type == plan::AttrInfo::Float)
      attrs[name] = attr.f;
    else if (info.type == plan::AttrInfo::Bool)
      attrs[name] = attr.i != 0;
    else
      attrs[name] = attr.i;
  }
  return attrs;
}

/// Fields that an op does not have are absent.
Json opJson(const plan::Plan &plan, const plan::Segment &segment, const plan::Op &op) {
  auto names = [&](const std::vector<plan::ValueId> &values) {
    Json list = Json::array();
    for (plan::ValueId value : values)
      list.push_back(segment.values[value].name);
    return list;
  };
  Json json = {{"op", plan::opInfo(op).name},   {"operands", names(op.operands)},
               {"results", names(op.results)},  {"stream", plan.streams[op.stream].name},
               {"if", plan::toString(op.pred)}, {"attrs", attrsJson(op)}};
  if (op.unit >= 0)
    json["unit"] = plan.units[static_cast<size_t>(op.unit)].name;
  if (op.group >= 0)
    json["group"] = plan.groups[static_cast<size_t>(op.group)].name;
  if (op.channel != plan::kNoChannel) {
    json["channel"] = plan.channels[static_cast<size_t>(op.channel)].name;
    json["transport"] = plan::toString(plan.transportOf(op));
  }
  for (const plan::Tie &tie : op.ties)
    json["ties"].push_back({{"kind", tie.kind == plan::Tie::Acc ? "acc" : "else"},
                            {"result", tie.result},
                            {"value", segment.values[tie.value].name},
                            {"if", plan::toString(tie.pred)}});
  if (!op.waits.empty())
    json["after"] = op.waits;
  json["phase"] = plan::toString(op.phase);
  if (op.isRecomputed)
    json["recomputed"] = true;
  if (op.loc != plan::kNone)
    json["loc"] = op.loc;
  return json;
}

/// With a device, ops that have a choice of kernels also get the one that they take on it.
Json segmentJson(const plan::Plan &plan, const plan::Role &role, const plan::Segment &segment,
                 const std::optional<predict::Device> &device) {
  Json json = {{"name", segment.name}, {"kind", plan::segmentKindInfo(segment.kind).word},
               {"body", segment.body}, {"values", Json::array()},
               {"in", Json::array()},  {"ops", Json::array()},
               {"out", Json::array()}};
  if (segment.before < role.segments.size())
    json["before"] = role.segments[segment.before].name;
  for (const plan::Value &value : segment.values) {
    json["values"].push_back({{"name", value.name},
                              {"type", typeJson(value.type)},
                              {"purpose", plan::toString(value.purpose)},
                              {"place", placeJson(plan, value.place)}});
    if (value.counts != plan::kNone)
      json["values"].back()["rows"] = segment.values[value.counts].name;
  }
  for (const plan::Segment::Boundary &in : segment.ins) {
    json["in"].push_back(
        {{"value", segment.values[in.value].name}, {"cell", role.cells[in.cell].name}});
    if (in.shift != 0)
      json["in"].back()["shift"] = in.shift;
  }
  for (const plan::Op &op : segment.ops) {
    json["ops"].push_back(opJson(plan, segment, op));
    if (KernelPath path = device ? predict::pathOf(*device, segment, op) : KernelPath::None;
        path != KernelPath::None)
      json["ops"].back()["kernels"] = info(path).word;
  }
  for (const plan::Segment::Boundary &out : segment.outs) {
    json["out"].push_back(
        {{"cell", role.cells[out.cell].name}, {"value", segment.values[out.value].name}});
    if (out.shift != 0)
      json["out"].back()["shift"] = out.shift;
  }
  return json;
}

Json programJson(const plan::Role &role, const std::vector<plan::ProgramNode> &nodes) {
  static constexpr const char *kKinds[] = {"start", "run", "steps", "every", "loop"};
  Json list = Json::array();
  for (const plan::ProgramNode &node : nodes) {
    Json json = {{"kind", kKinds[node.kind]}, {"count", node.count}};
    if (node.segment != plan::kNone)
      json["segment"] = role.segments[node.segment].name;
    if (node.microbatch)
      json["microbatch"] = {{"coef", node.microbatch->coef}, {"base", node.microbatch->base}};
    if (!node.children.empty())
      json["children"] = programJson(role, node.children);
    list.push_back(std::move(json));
  }
  return list;
}

Json summaryJson(const plan::Plan &plan, const plan::Role &role) {
  plan::MemoryByPurpose memory = plan::memoryByPurpose(role);
  Json bytes = Json::object();
  for (int p = 0; p < plan::kPurposeCount; ++p) {
    auto index = static_cast<size_t>(p);
    bytes[std::string(plan::toString(static_cast<plan::Purpose>(p)))] = {
        {"cells", memory.cells[index]}, {"transient", memory.transient[index]}};
  }
  Json traffic = Json::array();
  for (const plan::TrafficRow &row : plan::trafficOfStep(plan, role))
    traffic.push_back({{"op", plan::opInfo(row.kind).name},
                       {"dtype", dtypeName(row.dtype)},
                       {"calls", row.calls},
                       {"full_bytes", row.fullBytes},
                       {"sent_bytes", row.sentBytes}});
  return {{"bytes", bytes}, {"traffic", traffic}};
}

Json cellJson(const plan::Plan &plan, const plan::Cell &cell) {
  const plan::CellKindInfo &kind = plan::cellKindInfo(cell.kind);
  Json json = {{"name", cell.name},
               {"kind", kind.word},
               {"type", typeJson(cell.type)},
               {"purpose", plan::toString(cell.purpose)},
               {"place", placeJson(plan, cell.place)}};
  if (cell.isRing())
    json["slots"] = cell.slots;
  if (kind.of == plan::CellKindInfo::Block)
    json["block"] = plan.blocks[static_cast<size_t>(cell.of)].name;
  if (kind.of == plan::CellKindInfo::Param)
    json["param"] = plan.params[static_cast<size_t>(cell.of)].name;
  return json;
}

Json roleJson(const plan::Plan &plan, const plan::Role &role) {
  Json json = {{"name", role.name}, {"why", role.why}, {"summary", summaryJson(plan, role)}};
  for (int a = 0; a < plan::kArenaCount; ++a)
    json["arenas"][std::string(plan::toString(static_cast<plan::Arena>(a)))] =
        role.arenaBytes[static_cast<size_t>(a)];
  for (int b = 0; b < plan::kBesideCount; ++b)
    if (int64_t bytes = role.besideBytes[static_cast<size_t>(b)]; bytes >= 0)
      json["beside"][std::string(plan::toString(static_cast<plan::Beside>(b)))] = bytes;
  for (const plan::Cell &cell : role.cells)
    json["cells"].push_back(cellJson(plan, cell));
  std::optional<predict::Device> device = predict::plannedDevice(plan);
  for (const plan::Segment &segment : role.segments)
    json["segments"].push_back(segmentJson(plan, role, segment, device));
  json["program"] = programJson(role, role.program);
  return json;
}

Json splitsJson(const plan::Plan &plan, const plan::Param &param) {
  Json json = Json::array();
  for (const plan::Split &split : param.splits)
    json.push_back(
        {{"dim", split.dim}, {"group", groupJson(plan, split.group)}, {"parts", split.parts}});
  return json;
}

Json copiesJson(const plan::Plan &plan, const plan::Param &param) {
  Json json = Json::array();
  for (int16_t group : param.copies)
    json.push_back(groupJson(plan, group));
  return json;
}

/// Everything before the roles: job, mesh, groups, units, blocks, parameters, locations and
/// sources.
Json tablesJson(const plan::Plan &plan) {
  Json json = Json::object();
  for (const auto &[path, value] : plan.job.entries())
    json["job"][path] = std::visit([](const auto &held) { return Json(held); }, value);
  for (const plan::MeshAxis &axis : plan.mesh)
    json["mesh"][axis.name] = axis.size;
  for (const plan::Group &group : plan.groups) {
    json["groups"][group.name] = Json::array();
    for (uint16_t axis : group.axes)
      json["groups"][group.name].push_back(plan.mesh[axis].name);
  }
  json["data"] = groupJson(plan, plan::groupOfKind(plan, plan::GroupKind::Data));
  for (size_t kind = 0; kind < plan::kGroupKindCount; ++kind)
    if (plan.kindGroups[kind] >= 0)
      json["group_kinds"][plan::groupKindInfo(static_cast<plan::GroupKind>(kind)).word] =
          groupJson(plan, plan.kindGroups[kind]);
  for (const plan::Unit &unit : plan.units)
    json["units"].push_back({{"name", unit.name}, {"kind", plan::toString(unit.kind)}});
  for (const plan::Block &block : plan.blocks) {
    json["blocks"].push_back({{"name", block.name},
                              {"unit", block.unit},
                              {"numel", block.numel},
                              {"shard", block.shard},
                              {"group", groupJson(plan, block.group)},
                              {"state_shard", block.stateShard},
                              {"state_group", groupJson(plan, block.stateGroup)},
                              {"sum_group", groupJson(plan, block.sumGroup)}});
    if (!plan.classOf(block).isTrained)
      json["blocks"].back()["frozen"] = true;
  }
  for (const plan::Param &param : plan.params)
    json["params"].push_back({{"name", param.name},
                              {"type", typeJson(param.type)},
                              {"stacked_row", param.stackedRow},
                              {"whole", typeJson(param.wholeType())},
                              {"splits", splitsJson(plan, param)},
                              {"copies", copiesJson(plan, param)},
                              {"block", param.block},
                              {"offset", param.offset},
                              {"lr_mult", param.lrMult},
                              {"wd_mult", param.wdMult},
                              {"decoupled", param.isDecoupled},
                              {"init", plan::toString(param.init)},
                              {"init_std", param.initStd}});
  for (const plan::Loc &loc : plan.locs)
    json["locs"].push_back({{"file", loc.file}, {"line", loc.line}, {"column", loc.column}});
  for (const plan::Source &source : plan.sources)
    json["sources"].push_back(
        {{"kind", plan::toString(source.kind)}, {"name", source.name}, {"text", source.text}});
  return json;
}

/// A plan as one JSON document, for scripts; only the text form can be read back. Keys are the
/// words of the text form; indices refer to lists in the same document.
std::string planJson(const plan::Plan &plan) {
  Json json = {{"format", plan::kFormatVersion},
               {"level", plan::toString(plan.level)},
               {"name", plan.name},
               {"needs",
                {{"backend", plan.needsBackend},
                 {"gpu", plan.needsGpu},
                 {"device_bytes", plan.deviceBytes}}}};
  json.update(tablesJson(plan));
  for (const plan::Role &role : plan.roles)
    json["roles"].push_back(roleJson(plan, role));
  return toText(json, 1) + "\n";
}

struct DumpOptions {
  CommonOptions common;
  std::string output;
  std::string emit = "text";
  std::string segment, unit;
  std::vector<std::string> printAfter, disabled, enabled;
  bool printAfterAll = false;
  bool timePasses = false;
  bool isSpecification = false;
  ElasticOption elastic;

  bool prints(std::string_view step) const {
    return printAfterAll ||
           std::find(printAfter.begin(), printAfter.end(), step) != printAfter.end();
  }
};

/// The steps that --print-after accepts: those of the configuration, lowering, and all passes.
std::vector<std::string> stepNames() {
  std::vector<std::string> names = {"resolve", "defaults", "adjust", "validate", "lower"};
  for (passes::PassId id : passes::allPasses())
    names.emplace_back(passes::passInfo(id).flag);
  return names;
}

/// Text that tells plans of different batch sizes apart.
std::string sizeText(const plan::Plan &plan) {
  int64_t samples = plan.job.derived.stepSamples;
  return samples > 0 ? fmt::format(", steps of {} samples", samples) : "";
}

void printStep(std::string_view step, const std::string &text) {
  llvm::outs() << "// after " << llvm::StringRef(step.data(), step.size()) << "\n" << text;
}

/// The ops of the selected segment or unit, one per line.
std::string selectedOps(const plan::Plan &plan, const DumpOptions &options) {
  std::string text;
  for (const plan::Role &role : plan.roles)
    for (const plan::Segment &segment : role.segments) {
      if (!options.segment.empty() && segment.name != options.segment)
        continue;
      for (uint32_t i = 0; i < segment.ops.size(); ++i) {
        int32_t unit = segment.ops[i].unit;
        if (!options.unit.empty() &&
            (unit < 0 || plan.units[static_cast<size_t>(unit)].name != options.unit))
          continue;
        text +=
            fmt::format("{}.{}: {}\n", role.name, segment.name, plan::printOp(plan, segment, i));
      }
    }
  return text;
}

void printTimes(const std::vector<passes::PassTime> &times) {
  double total = 0;
  for (const passes::PassTime &time : times)
    total += time.ms;
  llvm::errs() << fmt::format("{:<22} {:>9} {:>6}\n", "pass", "ms", "share");
  for (const passes::PassTime &time : times)
    llvm::errs() << fmt::format("{:<22} {:>9.3f} {:>5.1f}%\n", passes::passInfo(time.id).flag,
                                time.ms, 100 * time.ms / total);
  llvm::errs() << fmt::format("{:<22} {:>9.3f}\n", "total", total);
}

/// Whether `name` is empty or a name in the plan; otherwise prints an error.
bool isKnown(const char *what, const std::string &name, const std::vector<llvm::StringRef> &known) {
  if (name.empty() || llvm::is_contained(known, name))
    return true;
  llvm::errs() << "shardc: error: the plan has no " << what << " '" << name << "'; ";
  if (Suggestion near = suggest(name, known); !near.names.empty())
    llvm::errs() << "did you mean " << quotedList(near.names) << "?\n";
  else
    llvm::errs() << "it has " << quotedList(known) << "\n";
  return false;
}

bool areSelectorsKnown(const plan::Plan &plan, const DumpOptions &options) {
  std::vector<llvm::StringRef> segments, units;
  for (const plan::Role &role : plan.roles)
    for (const plan::Segment &segment : role.segments)
      segments.push_back(segment.name);
  for (const plan::Unit &unit : plan.units)
    units.push_back(unit.name);
  return isKnown("segment", options.segment, segments) && isKnown("unit", options.unit, units);
}

/// The selected ops of each plan.
std::string selectedText(const Compiled &compiled, const DumpOptions &options) {
  if (compiled.before.empty())
    return selectedOps(compiled.plan, options);
  std::string text;
  auto add = [&](const plan::Plan &plan) {
    text += "// the plan" + sizeText(plan) + "\n" + selectedOps(plan, options);
  };
  for (const Compiled &smaller : compiled.before)
    add(smaller.plan);
  add(compiled.plan);
  return text;
}

/// One JSON document: the plan, or a list of plans if there are several.
std::string jsonText(const Compiled &compiled) {
  if (compiled.before.empty())
    return planJson(compiled.plan);
  std::string text = "[";
  for (const Compiled &smaller : compiled.before)
    text += planJson(smaller.plan) + ",\n";
  return text + planJson(compiled.plan) + "]\n";
}

ExitStatus emit(const Compiled &compiled, const DumpOptions &options) {
  if (!areSelectorsKnown(compiled.plan, options))
    return kUsage;
  if (!options.segment.empty() || !options.unit.empty())
    return writeOutput(options.output, selectedText(compiled, options));
  if (options.emit == "trace") {
    std::optional<predict::Device> device = predict::plannedDevice(compiled.plan);
    if (!device || !device->isPredicted()) {
      llvm::errs() << "shardc: error: '--emit=trace' shows the predicted step, but no step is "
                      "predicted on the host; set 'cluster.gpu' to a GPU\n";
      return kUsage;
    }
    return writeOutput(options.output, planTrace(*device, compiled.plan));
  }
  if (options.emit == "schedule") {
    const plan::Job &job = compiled.plan.job;
    if (job.model.pipelineModelParallelSize == 1 && !job.model.overlapMoeExpertParallelComm) {
      llvm::errs() << "shardc: error: '--emit=schedule' shows the passes of pipeline stages; the "
                      "plan has one stage\n";
      return kUsage;
    }
    return writeOutput(options.output, model::writeSchedule(passes::passOrderOf(job)));
  }
  return writeOutput(options.output,
                     options.emit == "json" ? jsonText(compiled) : planText(compiled));
}

bool isWholeText(const DumpOptions &options) {
  return options.emit == "text" && options.segment.empty() && options.unit.empty();
}

/// The text that follows the recipe's plans in a file: the plans for fewer ranks, and the plan that
/// continues texts. Nothing after an error.
std::optional<std::string> furtherText(const config::Config &config, const DumpOptions &options,
                                       CompileOptions compileOptions, DiagEngine &diags) {
  compileOptions.afterLower = nullptr;
  compileOptions.pipeline.after = nullptr;
  std::optional<std::vector<Compiled>> smaller =
      compileSizes(config, options.elastic.sizes, options.common, diags, compileOptions);
  if (!smaller)
    return std::nullopt;
  std::string text;
  for (const Compiled &each : *smaller)
    text += planText(each);
  if (!isWholeText(options))
    return text;
  std::optional<std::string> samples = sampleText(config, options.common, diags);
  return samples ? std::optional(text + *samples) : std::nullopt;
}

/// Checks that plans of several sizes are written as text, because runs read them as text.
bool isElasticText(const DumpOptions &options) {
  const bool isText = isWholeText(options);
  if (!options.elastic.sizes.empty() && !isText)
    llvm::errs()
        << "shardc: error: '--elastic' writes whole plans as text; it cannot be given with "
           "'--emit', '--segment' or '--unit'\n";
  return options.elastic.sizes.empty() || isText;
}

/// Writes the specification: what every plan of the recipe must compute.
ExitStatus emitSpecification(const config::Config &config, const SourceManager &sources,
                             const DumpOptions &options) {
  if (std::vector<lower::Missing> missing = lower::findMissing(config); !missing.empty())
    return refuseUsage("no op of plans is " + missing.front().what);
  return writeOutput(options.output, plan::print(specificationOf(config, sources)));
}

/// Compiles the recipe with hooks that print the plan after the chosen steps. With a specification,
/// only the configuration is compiled.
int runDumpPlan(DumpOptions &options) {
  if (ExitStatus status = options.elastic.read(); status != kFine)
    return status;
  if (!isElasticText(options))
    return kUsage;
  Session session(options.common);
  auto afterStep = [&](config::Step step, const config::Config &config) {
    if (std::string_view name(config::stepName(step).data(), config::stepName(step).size());
        options.prints(name))
      printStep(name, config::printRecipe(config));
  };
  std::optional<config::Config> config =
      config::loadConfig(session.sources(), session.diags(), options.common.load, afterStep);
  if (!config)
    return session.finish();
  if (std::string why = whyKept(options.output, filesOf(*config, session.sources())); !why.empty())
    return refuseUsage(why);
  if (options.isSpecification) {
    ExitStatus status = session.finish();
    return status == kFine ? emitSpecification(*config, session.sources(), options) : status;
  }
  CompileOptions compileOptions;
  // Printed plans are for people, so only plans in files contain the recipe and the specification.
  compileOptions.keepsSources = compileOptions.keepsSpecification =
      !options.output.empty() && options.output != "-";
  for (const std::string &flag : options.disabled)
    compileOptions.pipeline.disabled.push_back(*passes::findPass(flag));
  for (const std::string &flag : options.enabled)
    compileOptions.pipeline.enabled.push_back(*passes::findPass(flag));
  compileOptions.afterLower = [&](const plan::Plan &plan) {
    if (options.prints("lower"))
      printStep("lower" + sizeText(plan), plan::print(plan));
  };
  compileOptions.pipeline.after = [&](passes::PassId id, const plan::Plan &plan) {
    if (options.prints(passes::passInfo(id).flag))
      printStep(std::string(passes::passInfo(id).flag) + sizeText(plan), plan::print(plan));
  };
  std::optional<Compiled> compiled =
      compile(*config, session.sources(), session.diags(), options.common, compileOptions);
  std::optional<std::string> further;
  if (compiled)
    further = furtherText(*config, options, compileOptions, session.diags());
  if (ExitStatus status = session.finish(); status != kFine || !further)
    return status == kFine ? kInputErrors : status;
  if (options.timePasses)
    printTimes(compiled->times);
  bool dumped = options.printAfterAll || !options.printAfter.empty();
  if (dumped && options.output.empty())
    return kFine;
  return further->empty() ? emit(*compiled, options)
                          : writeOutput(options.output, planText(*compiled) + *further);
}

} // namespace

void addDumpPlan(cli::Command &app, int &status) {
  auto options = std::make_shared<DumpOptions>();
  cli::Command &command = app.addCommand("dump-plan", "compile a recipe and print its plan")
                              .alsoCalled({"compile", "plan", "build"});
  options->common.addTo(command);
  std::vector<std::string> optional, onRequest;
  for (passes::PassId id : passes::allPasses()) {
    if (passes::isOptional(id))
      optional.emplace_back(passes::passInfo(id).flag);
    if (passes::isOnRequest(id))
      onRequest.emplace_back(passes::passInfo(id).flag);
  }
  command.option("-o", options->output, "file to write; default: standard output");
  command.option("--emit", options->emit, "form of the plan")
      .oneOf({"text", "json", "trace", "schedule"});
  command.option("--segment", options->segment, "print only the ops of this segment");
  command.option("--unit", options->unit, "print only the ops of this unit");
  command.option("--disable-pass", options->disabled, "skip a fusion").repeatable().oneOf(optional);
  command.option("--enable-pass", options->enabled, "run a pass that only runs on request")
      .repeatable()
      .oneOf(onRequest);
  command.option("--print-after", options->printAfter, "print the plan after this step")
      .repeatable()
      .oneOf(stepNames());
  command.flag("--print-after-all", options->printAfterAll, "print the plan after every step");
  command.flag(
      "--specification", options->isSpecification,
      "print what the plan has to compute instead: the recipe before it is divided among ranks");
  options->elastic.addTo(command);
  command.flag("--time-passes", options->timePasses,
               "print the time of each pass on standard error");
  command.onUse([options, &status] { status = runDumpPlan(*options); });
}

} // namespace shardc::tools
