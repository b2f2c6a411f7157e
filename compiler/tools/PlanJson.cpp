#include "compiler/tools/PlanJson.h"

#include "compiler/predict/Kernels.h"
#include "compiler/predict/Transfers.h"
#include "runtime/base/Json.h"
#include "runtime/plan/Summary.h"

namespace shardc::tools {
namespace {

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

} // namespace

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

} // namespace shardc::tools
