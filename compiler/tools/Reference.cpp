#include "compiler/tools/Reference.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "compiler/basic/Markdown.h"
#include "compiler/basic/Numbers.h"
#include "compiler/config/Explain.h"
#include "compiler/config/ForeignNames.h"
#include "compiler/config/Options.h"
#include "compiler/diag/Diag.h"
#include "compiler/passes/Pipeline.h"
#include "compiler/predict/DeviceTable.h"
#include "runtime/base/Launcher.h"
#include "runtime/base/Rates.h"
#include "runtime/plan/FactorExtents.h"
#include "runtime/verify/Verify.h"

namespace shardc::tools {

namespace {

std::string_view view(llvm::StringRef text) { return {text.data(), text.size()}; }

const char *traitsText(plan::OpTraits traits) {
  switch (traits) {
  case plan::OpTraits::None:
    return "has effects beyond its results";
  case plan::OpTraits::Alias:
    return "executes nothing: its result names bytes of its operands";
  case plan::OpTraits::Collective:
    return "every member of its group issues it";
  case plan::OpTraits::Pure:
    return "has no effect but its results";
  case plan::OpTraits::Copy:
    return "the stream copies the bytes, without a kernel";
  }
  return "";
}

std::string inPlaceText(const plan::OpInfo &op) {
  std::string out;
  for (size_t r = 0; r < op.inPlace.size(); ++r)
    if (op.inPlace[r] >= 0)
      out += fmt::format("{}result {} takes over the buffer of operand {}", out.empty() ? "" : "; ",
                         r, op.inPlace[r]);
  return out;
}

const char *attrTypeText(plan::AttrInfo::Type type) {
  switch (type) {
  case plan::AttrInfo::Bool:
    return "true or false";
  case plan::AttrInfo::Int:
    return "integer";
  case plan::AttrInfo::Float:
    return "number";
  case plan::AttrInfo::Enum:
    return "one of";
  }
  return "";
}

void addAttr(Tables &tables, plan::AttrKey key, std::string_view doc) {
  const plan::AttrInfo &info = plan::attrInfo(key);
  std::string takes = attrTypeText(info.type);
  if (info.type == plan::AttrInfo::Enum)
    takes += fmt::format(" {}", cell(info.enumerators));
  if (info.most < INT64_MAX && info.type == plan::AttrInfo::Int)
    takes += fmt::format(", {} to {}", formatNumber(info.least), formatNumber(info.most));
  else if (info.least > INT64_MIN && info.type == plan::AttrInfo::Int)
    takes += fmt::format(", {} or more", info.least);
  tables.row(code(info.name), takes, cell(doc));
}

std::string takesText(const plan::JobFieldInfo &field) {
  if (field.words.empty()) {
    std::string range = field.range.text();
    return fmt::format("{}{}{}", field.type, range.empty() ? "" : ", ", range);
  }
  return fmt::format("{}: {}", field.type, fmt::join(field.words, ", "));
}

/// The default of a field; empty if it is "unset".
std::string defaultText(plan::JobField field) {
  plan::JobValue value = plan::Job().value(field);
  if (plan::Job().set(plan::jobInfo(field).path, value) != plan::Job::Fault::None)
    return "";
  if (const auto *items = std::get_if<std::vector<std::string>>(&value))
    return fmt::format("{}", fmt::join(*items, ", "));
  return std::visit([](const auto &held) { return fmt::format("{}", held); }, value);
}

std::string docOf(const plan::JobFieldInfo &field) {
  std::optional<config::Opt> option = config::findOption({field.path.data(), field.path.size()});
  return std::string(option ? view(config::info(*option).doc) : field.doc);
}

} // namespace

std::vector<std::string> diagnosticReference() {
  Tables tables;
  for (Severity severity : {Severity::Error, Severity::Warning, Severity::Remark, Severity::Note}) {
    tables.section(fmt::format("## {}s", view(severityName(severity))), "id | text | group");
    for (const DiagRow &row : diagTable())
      if (row.info.severity == severity)
        tables.row(code(view(row.info.id)), cell(config::readableText(view(row.info.text))),
                   orDash(view(row.info.group)));
  }
  tables.begin("id | what a plan must satisfy");
  for (int rule = 0; rule < plan::kRuleCount; ++rule)
    tables.row(code(plan::ruleId(static_cast<plan::Rule>(rule))),
               cell(plan::ruleDoc(static_cast<plan::Rule>(rule))));
  return tables.texts;
}

std::vector<std::string> messageReference() {
  Tables tables;
  for (Severity severity : {Severity::Error, Severity::Warning, Severity::Remark, Severity::Note}) {
    tables.section(fmt::format("## {}s", severityWord(severity)),
                   "id | text | causes, and what to do");
    for (const ReportInfo &row : reportTable())
      if (row.severity == severity)
        tables.row(code(row.id), cell(config::readableText(row.text)), cell(row.explanation));
  }
  return tables.texts;
}

/// The tables of facts about ops, and the entries of their columns.
void addOpColumns(Tables &tables) {
  auto nameOf = [](plan::OpKind kind) { return code(plan::opInfo(kind).name); };
  tables.begin("op | the rank with index i has the i-th of n equal parts:");
  for (const plan::OpInfo &op : plan::kOpInfos)
    if (op.takesIndex())
      tables.row(code(op.name), op.indexed);
  tables.begin("op | if the rank has a part of the rows");
  for (const plan::OpInfo &op : plan::kOpInfos)
    if (op.takesOwnRows())
      tables.row(code(op.name), op.ownRows);
  tables.begin("op | result | where");
#define MINUS_INFINITY(op, result, where) tables.row(nameOf(plan::OpKind::op), result, where);
#include "runtime/plan/Ops.def"
  tables.begin("op | nodes at most");
  for (const plan::OpInfo &op : plan::kOpInfos)
    if (op.nodes > 1 || op.tensorNodes > 0)
      tables.row(code(op.name),
                 op.tensorNodes == 0
                     ? fmt::format("{}", op.nodes)
                     : fmt::format("{}, {} more for each tensor that does not begin with zeros",
                                   op.nodes, op.tensorNodes));
  tables.begin("op | conjugate");
  for (const plan::OpInfo &op : plan::kOpInfos)
    if (op.collective)
      tables.row(code(op.name), op.collective->conjugate ? nameOf(*op.collective->conjugate)
                                                         : "none: the gradient is the same");
  tables.begin("mark | meaning");
#define FACTOR_MARKS(mark, meaning) tables.row(code(markedCell(mark)), cell(meaning));
#include "runtime/plan/OpColumns.def"
  tables.begin("word | meaning");
#define FACTOR_ROLES(word, role, meaning) tables.row(code(word), meaning);
#include "runtime/plan/OpColumns.def"
  tables.begin("type | meaning");
#define VALUE_TYPES(enumerator, word, meaning) tables.row(code(word), meaning);
#include "runtime/plan/OpColumns.def"
  tables.begin("fact | entry | meaning");
#define TRAFFICS(enumerator, meaning) tables.row("TRAFFIC", #enumerator, cell(meaning));
#define WORKSPACES(enumerator, meaning) tables.row("WORKSPACE", #enumerator, cell(meaning));
#define BLOCK_USES(enumerator, meaning) tables.row("BLOCK", #enumerator, cell(meaning));
#define SUM_ROLES(enumerator, meaning) tables.row("SUM", #enumerator, cell(meaning));
#define RECOMPUTES(enumerator, meaning) tables.row("RECOMPUTE", #enumerator, cell(meaning));
#define WORKS(entry_, meaning) tables.row("WORK", entry_, cell(meaning));
#include "runtime/plan/OpColumns.def"
}

std::string attrsText(const plan::OpInfo &op) {
  std::string out;
  for (int i = 0; i < plan::kAttrCount; ++i)
    if (auto key = static_cast<plan::AttrKey>(i); op.attrs.has(key))
      out += fmt::format("{}`{}{}{}`", out.empty() ? "" : ", ", plan::kAttrNames[i],
                         op.unmeant.has(key) ? "~" : "", op.needed.has(key) ? "!" : "");
  return orDash(out);
}

std::vector<std::string> opReference() {
  Tables tables;
  std::string &out = tables.texts.emplace_back();
  auto add = [&](plan::OpKind kind, std::string_view facts) {
    const plan::OpInfo &op = plan::opInfo(kind);
    out += fmt::format("\n## {}\n\n", op.name);
    out += op.doc.empty() ? "" : cell(op.doc) + "\n\n";
    out += fmt::format("- values: `{}`\n", op.signature);
    if (!op.steps.empty())
      out += fmt::format("- steps: `{}`\n- factors: `{}`\n", op.steps,
                         plan::printFactors(plan::factorsOf(kind)));
    out += fmt::format("- {}\n- attributes: {}\n", traitsText(op.traits), attrsText(op));
    if (!facts.empty())
      out += fmt::format("- facts: `{}`\n", facts);
    if (std::string text = inPlaceText(op); !text.empty())
      out += fmt::format("- {}\n", text);
  };
#define OP(enumerator, name, signature, attrs, facts, doc) add(plan::OpKind::enumerator, #facts);
#define FUSED(enumerator, name, values, steps, facts, doc) add(plan::OpKind::enumerator, #facts);
#define FORM(producer, quantizer, name, values, steps, facts)                                      \
  add(plan::OpKind::producer##quantizer, #facts);
#include "runtime/plan/Ops.def"
  addOpColumns(tables);
  tables.begin("attribute | takes | meaning");
#define ATTR_BOOL(field, default_, doc) addAttr(tables, plan::AttrKey::field, doc);
#define ATTR_INT(field, default_, least, most, doc) addAttr(tables, plan::AttrKey::field, doc);
#define ATTR_FLOAT(field, default_, doc) addAttr(tables, plan::AttrKey::field, doc);
#include "runtime/base/Attrs.def"
  return tables.texts;
}

std::vector<std::string> kindReference() {
  Tables tables;
  tables.begin("kind | of a | the host | what it holds");
  constexpr std::string_view kOf[] = {"-", "block", "parameter"};
  constexpr std::string_view kHost[] = {"-", "writes it", "reads it", "saves and loads it"};
#define CELL_KIND(enumerator, word, of, host, doc)                                                 \
  tables.row(code(word), kOf[plan::CellKindInfo::of], kHost[plan::CellKindInfo::host], doc);
#include "runtime/plan/Kinds.def"
  tables.begin("kind | what its parameters are");
#define UNIT_KIND(enumerator, word, doc) tables.row(code(word), doc);
#include "runtime/plan/Kinds.def"
  tables.begin("kind | division | in what its ranks differ");
  constexpr std::string_view kDivision[] = {"of layers", "of experts", "of both", "-"};
#define GROUP_KIND(enumerator, word, division, doc)                                                \
  tables.row(code(word), kDivision[plan::GroupKindInfo::division], doc);
#include "runtime/plan/Kinds.def"
  tables.begin("kind | what runs on it");
#define STREAM_KIND(enumerator, word, doc) tables.row(code(word), doc);
#include "runtime/plan/Kinds.def"
  tables.begin("kind | form | phase of its ops | what it does");
  constexpr std::string_view kForm[] = {"any", "body", "straight", "in the background"};
#define SEGMENT_KIND(enumerator, word, form, phase, doc)                                           \
  tables.row(code(word), kForm[plan::SegmentKindInfo::form], plan::toString(plan::Phase::phase),   \
             doc);
#include "runtime/plan/Kinds.def"
  tables.begin("role | what the product is");
#define PRODUCT_ROLE(enumerator, word, doc) tables.row(code(word), doc);
#include "runtime/plan/Kinds.def"
  tables.begin("phase | what the op is part of");
#define PHASE(enumerator, word, doc) tables.row(code(word), doc);
#include "runtime/plan/Kinds.def"
  return tables.texts;
}

std::vector<std::string> passReference() {
  Tables tables;
  std::string_view level;
  for (passes::PassId id : passes::allPasses()) {
    const passes::PassInfo &pass = passes::passInfo(id);
    if (plan::toString(pass.level) != level) {
      level = plan::toString(pass.level);
      tables.section(fmt::format("## Level afterwards: {}", level),
                     "flag | optional | what it does");
    }
    tables.row(code(pass.flag),
               passes::isOptional(id)    ? "yes"
               : passes::isOnRequest(id) ? "on request"
                                         : "-",
               cell(pass.doc));
  }
  return tables.texts;
}

namespace {

/// A rate of the table; `assumed` rates get a star.
std::string rateText(double rate, bool isAssumed) {
  return rate == 0 ? "-" : formatNumber(rate) + (isAssumed ? "*" : "");
}

/// The ops whose rates were not measured, as text `a, b and c`.
std::string assumedOps() {
  std::string out;
  const std::set<plan::OpKind> measured = {
#define MEMORY(op, gbs) plan::OpKind::op,
#include "compiler/predict/KernelTable.def"
  };
  for (int i = 0; i < plan::kOpCount; ++i)
    if (const plan::OpInfo &op = plan::opInfo(static_cast<plan::OpKind>(i));
        op.work.cost == plan::CostClass::Memory &&
        measured.count(static_cast<plan::OpKind>(i)) == 0)
      out += fmt::format("{}`{}`", out.empty() ? "" : ", ", op.name);
  return out;
}

} // namespace

std::vector<std::string> deviceReference() {
  Tables tables;
  tables.begin(
      "name | device | memory, GiB > | watts > | peers | bf16, TFLOP/s: peak > | sustained > "
      "| fp8: peak > | sustained > | fp32: peak > | memory, GB/s: peak > | sustained > | "
      "NVLink, GB/s: peak > | sustained > | host, GB/s: peak > | sustained > | "
      "nodes, GB/s > | source of peaks");
  for (const predict::Device &device : predict::devices()) {
    const predict::DeviceRates &peak = device.peak, &sustained = device.sustained;
    bool isAssumed = !device.measured;
    tables.row(code(view(device.name)), view(device.doc),
               device.memoryBytes == 0
                   ? "-"
                   : formatNumber(static_cast<double>(device.memoryBytes >> 20) / 1024),
               rateText(device.watts, false), device.hasPeers ? "yes" : "no",
               rateText(peak.bf16Tflops, false), rateText(sustained.bf16Tflops, isAssumed),
               rateText(peak.fp8Tflops, false), rateText(sustained.fp8Tflops, isAssumed),
               rateText(peak.fp32Tflops, false), rateText(peak.memoryGBs, false),
               rateText(sustained.memoryGBs, isAssumed), rateText(peak.nvlinkGBs, false),
               rateText(sustained.nvlinkGBs, isAssumed), rateText(peak.hostGBs, false),
               rateText(sustained.hostGBs, isAssumed), rateText(device.networkGBs, true),
               view(device.source));
  }
  tables.texts.push_back(assumedOps() + ".");
  tables.begin("kind | `op` | sizes | `rate` in | what");
  for (size_t k = 0; k < kRateKinds; ++k) {
    const RateKindInfo &kind = infoOf(static_cast<RateKind>(k));
    tables.row(code(kind.name), fmt::join(kind.ops, ", "), fmt::join(kind.sizes, ", "), kind.unit,
               kind.doc);
  }
  return tables.texts;
}

namespace {

/// What to write instead of another program's name. Advice has code between apostrophes.
std::string ownName(const config::ForeignName &foreign) {
  if (foreign.option)
    return fmt::format("`{}`", config::info(*foreign.option).path.str());
  if (foreign.section)
    return fmt::format("section `{}`", config::info(*foreign.section).name.str());
  std::string advice = foreign.advice;
  std::replace(advice.begin(), advice.end(), '\'', '`');
  return markedCell(advice);
}

} // namespace

std::vector<std::string> foreignReference() {
  std::vector<std::string_view> programs; // in the order of the table
  for (const config::ForeignName &foreign : config::foreignNames())
    if (std::string_view program = view(foreign.program);
        program != "Megatron-LM" && std::ranges::find(programs, program) == programs.end())
      programs.push_back(program);
  Tables tables;
  for (std::string_view program : programs) {
    tables.section(fmt::format("## {}", program), "name there | here");
    for (const config::ForeignName &foreign : config::foreignNames())
      if (view(foreign.program) == program)
        tables.row(code(foreign.name), ownName(foreign));
  }
  return tables.texts;
}

std::vector<std::string> jobReference() {
  Tables tables;
  llvm::StringRef section;
  for (size_t i = 0; i < plan::kJobFields; ++i) {
    auto field = static_cast<plan::JobField>(i);
    const plan::JobFieldInfo &about = plan::jobInfo(field);
    if (llvm::StringRef of = llvm::StringRef(about.path).split('.').first; of != section) {
      section = of;
      tables.section(fmt::format("## {}", view(section)), "name | takes | default | meaning");
    }
    tables.row(code(about.path), cell(takesText(about)), cell(orDash(defaultText(field))),
               cell(docOf(about)));
  }
  return tables.texts;
}

std::vector<std::string> launcherReference() {
  auto names = [](std::initializer_list<const char *> all) {
    std::string out;
    for (const char *name : all)
      if (name && *name)
        out += (out.empty() ? "`" : ", `") + std::string(name) + "`";
    return orDash(out);
  };
  Tables tables;
  tables.begin(
      "starts a process per rank | rank, number of ranks | number on its node, ranks there, "
      "node | job");
  for (const LauncherVariables &each : launchers())
    tables.row(each.text, names({each.rank, each.worldSize}),
               names({each.localRank, each.localSize, each.node}),
               names({each.job[0], each.job[1], each.job[2]}));
  tables.section("",
                 "starts a process per node | nodes | node | ranks of a node | address and port");
  for (const NodeVariables &each : nodeLaunchers())
    tables.row(each.text, *each.nodes ? names({each.nodes}) : "`--nodes`", names({each.node}),
               *each.ranks ? names({each.ranks}) : "the recipe's",
               names({each.address, each.port}));
  return tables.texts;
}

} // namespace shardc::tools
