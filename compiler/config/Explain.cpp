#include "compiler/config/Explain.h"

#include <algorithm>

#include "compiler/basic/Format.h"
#include "compiler/basic/Markdown.h"
#include "compiler/basic/Utf8.h"
#include "compiler/config/Effect.h"
#include "compiler/config/Evaluate.h"
#include "compiler/config/Rules.h"
#include "compiler/config/Steps.h"
#include "compiler/diag/Diag.h"

namespace shardc::config {

namespace {

/// The option with this path, or the only target of this alias.
std::optional<Opt> optionOf(llvm::StringRef path) {
  if (std::optional<Opt> opt = findOption(path))
    return opt;
  const AliasInfo *alias = findAlias(path);
  return alias && alias->targets.size() == 1 ? std::optional(alias->targets[0]) : std::nullopt;
}

std::string place(const SourceManager &sources, SourceRange range) {
  LineColumn at = sources.lineColumn(range.begin);
  return fmt::format("{}:{}:{}", printable(at.file), at.line, at.column);
}

std::string describeProvenance(const Config &config, const SourceManager &sources,
                               const Provenance &from, Opt opt) {
  std::string because;
  if (from.cause && *from.cause != opt)
    because = fmt::format(", because '{} = {}'", info(*from.cause).path,
                          toRecipeText(config, *from.cause));
  switch (from.origin) {
  case Origin::Unset:
    return "not set";
  case Origin::Default:
    return "default";
  case Origin::Family:
    return fmt::format("default of 'model {}'", toRecipeText(config, Opt::ModelFamily));
  case Origin::Preset:
    return "preset" + because;
  case Origin::Derived:
    return fmt::format("derived by rule '{}'{}", info(*from.rule).id, because);
  case Origin::Recipe:
    return place(sources, from.value);
  case Origin::Overlay:
    return place(sources, from.value) + " (overlay)";
  case Origin::CommandLine:
    return place(sources, from.value) + " (command line)";
  case Origin::Rule:
    return fmt::format("changed by rule '{}'{}", info(*from.rule).id, because);
  }
  return {};
}

/// Describes when an option has an effect and where it shows, or why it has none.
std::string effectOf(const OptionInfo &option) {
  std::string text = reasonOf(option.ignored).str();
  if (!option.with.empty())
    text = fmt::format("only with {}", describeNeeds(option));
  if (!option.seen.empty())
    text += fmt::format("{}shows only {}", text.empty() ? "" : "; ", option.seen);
  if (!option.why.empty())
    text += fmt::format("{}{}", text.empty() ? "" : "; ", option.why);
  return text;
}

/// Describes the table's row of an option.
std::string describeRow(const OptionInfo &option) {
  std::string out = option.doc.empty() ? "" : fmt::format("  {}\n", option.doc);
  out += "  takes " + describeType(option.type);
  std::string limit = describeConstraint(option);
  out += limit.empty() ? "\n" : fmt::format("; {}\n", limit);
  out += option.hasDefault() ? fmt::format("  default: {}\n", option.defaultText)
                             : std::string("  default: not set\n");
  if (!option.flag.empty())
    out += fmt::format("  Megatron-LM: {}{}\n", option.flag,
                       option.flagNegates ? " (switches it off)" : "");
  if (!option.bridge.empty())
    out += fmt::format("  Megatron-Bridge: {}\n", option.bridge);
  for (const AliasInfo &alias : aliases())
    if (llvm::is_contained(alias.targets, option.opt))
      out += fmt::format("  also written: {} ({})\n", alias.path, alias.doc);
  if (!option.with.empty())
    out += fmt::format("  has an effect only with {}\n", describeNeeds(option));
  if (option.status == OptionStatus::CheckedOnly)
    out += fmt::format("  checked: the rules check it, and training ignores it: {}\n",
                       effectOf(option));
  if (option.status == OptionStatus::NotExecuted)
    out += fmt::format("  not executed: it changes training, and any other value than the default "
                       "is an error; {}\n",
                       option.why);
  if (option.status == OptionStatus::Planned)
    out += "  planned: the rules check it, but recipes that need it cannot be compiled yet\n";
  return out;
}

std::string ruleReason(RuleId rule) {
  const RuleInfo &row = info(rule);
  return row.reason.empty() ? std::string() : fmt::format("    {}\n", row.reason);
}

/// A row of Deviations.def.
struct Deviation {
  llvm::StringRef upstream, theirs, ours, reason;
};

llvm::ArrayRef<Deviation> deviations() {
  static constexpr Deviation kDeviations[] = {
#define DEVIATION(upstream, theirs, ours, reason) {upstream, theirs, ours, reason},
#include "compiler/config/Deviations.def"
  };
  return kDeviations;
}

/// Whether two lists of upstream's numbers have a common number.
bool shareNumber(llvm::StringRef a, llvm::StringRef b) {
  llvm::SmallVector<llvm::StringRef, 8> left, right;
  a.split(left, ' ', -1, /*KeepEmpty=*/false);
  b.split(right, ' ', -1, /*KeepEmpty=*/false);
  return llvm::any_of(left,
                      [&](llvm::StringRef number) { return llvm::is_contained(right, number); });
}

/// The table of values that each model family sets.
void addFamilies(Tables &tables) {
  tables.begin("family | sets");
  tables.row("`gpt`", "nothing: the table's defaults apply");
  llvm::ArrayRef<KindRow<ModelFamily>> rows = familyRows();
  for (const auto *row = rows.begin(); row != rows.end();) {
    const ModelFamily family = row->kind;
    std::string sets;
    for (; row != rows.end() && row->kind == family; ++row)
      sets += fmt::format("{}`{} = {}`", sets.empty() ? "" : ", ", info(row->opt).name,
                          row->text.str());
    tables.row(code(spelling(family)), sets);
  }
}

} // namespace

std::string describeOrigin(const Config &config, const SourceManager &sources, Opt opt) {
  return describeProvenance(config, sources, config[opt].from, opt);
}

/// Describes the GPU for which times are predicted: its row in the device table, assumed figures,
/// and measured rates.
static std::string describeDevice(const Config &config) {
  const predict::Device &device = predict::device(*config.derived().gpu);
  std::string out = fmt::format("\n  device table: {}; source: {}\n", device.doc, device.source);
  for (const std::string &line : predict::assumedFigures(device))
    out += fmt::format("  assumed: {}\n", line);
  if (!config.rates().empty())
    out += fmt::format("  'cluster.rates' has {} measured rates in their place\n",
                       config.rates().size());
  return out;
}

std::string explainOption(const Config &config, const SourceManager &sources,
                          llvm::StringRef path) {
  std::optional<Opt> opt = optionOf(path);
  if (!opt)
    return {};
  const OptionInfo &option = info(*opt);
  const Setting &setting = config[*opt];
  std::string out = fmt::format("{} = {}\n", option.path, toRecipeText(config, *opt));
  out += fmt::format("  {}\n", describeOrigin(config, sources, *opt));
  if (setting.from.rule)
    out += ruleReason(*setting.from.rule);
  for (auto past = setting.history.rbegin(); past != setting.history.rend(); ++past)
    out += fmt::format("  before: {} ({})\n", toRecipeText(past->first, option.type),
                       describeProvenance(config, sources, past->second, *opt));
  out += "\n" + describeRow(option);
  if (*opt == Opt::ClusterGpu && config.derived().gpu)
    out += describeDevice(config);
  return out;
}

std::string explainOption(llvm::StringRef path) {
  std::optional<Opt> opt = optionOf(path);
  return opt ? fmt::format("{}\n{}", info(*opt).path, describeRow(info(*opt))) : std::string();
}

std::string explainAll(const Config &config, const SourceManager &sources,
                       llvm::StringRef section) {
  std::string out;
  for (const OptionInfo &option : options()) {
    bool isShown = section.empty()
                       ? config.has(option.opt) && config[option.opt].from.origin != Origin::Default
                       : info(option.section).name == section;
    if (isShown)
      out += fmt::format("{} = {}  // {}\n", option.path, toRecipeText(config, option.opt),
                         describeOrigin(config, sources, option.opt));
  }
  return out;
}

std::string readableText(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i, 2) == "{{" || text.substr(i, 2) == "}}") {
      out += text[i++];
      continue;
    }
    if (text[i] != '{') {
      out += text[i];
      continue;
    }
    size_t end = text.find('}', i);
    std::string_view inside = text.substr(i + 1, end - i - 1);
    if (size_t words = inside.find('?'); words != std::string_view::npos)
      out += fmt::format("({})", inside.substr(words + 1));
    else if (inside.ends_with(":s"))
      out += "(s)";
    else
      out += "...";
    i = end;
  }
  return out;
}

std::string explainRule(llvm::StringRef id) {
  const RuleInfo *rule = findRule(id);
  if (!rule)
    return {};
  std::string out = fmt::format("{} ({})\n", rule->id, ruleKindName(rule->kind));
  if (!rule->text.empty())
    out += fmt::format("  {}\n", readableText({rule->text.data(), rule->text.size()}));
  if (!rule->reason.empty())
    out += fmt::format("  {}\n", rule->reason);
  if (!rule->group.empty())
    out += fmt::format("  group: -W{0}, -Wno-{0}, -Werror={0}\n", rule->group);
  if (!rule->upstream.empty())
    out += fmt::format("  upstream: {}\n", rule->upstream);
  llvm::SmallVector<llvm::StringRef, 4> older;
  rule->older.split(older, " | ", -1, /*KeepEmpty=*/false);
  for (llvm::StringRef text : older)
    out += fmt::format("  upstream says or said: {}\n", text);
  for (const Deviation &row : deviations())
    if (shareNumber(row.upstream, rule->upstream) || shareNumber(row.upstream, rule->id))
      out += fmt::format("  deviation: upstream: {}; shardc: {}; because {}\n", row.theirs,
                         row.ours, row.reason);
  return out;
}

std::string explainText(llvm::StringRef words) {
  constexpr size_t kWordsMin = 8; // shorter texts match too many rules
  std::string out;
  if (words.size() < kWordsMin || !words.contains(' '))
    return out;
  for (const RuleInfo &rule : rules())
    if (rule.text.contains_insensitive(words) || rule.older.contains_insensitive(words))
      out += (out.empty() ? "" : "\n") + explainRule(rule.id);
  return out;
}

std::string explainDiagnostic(llvm::StringRef id) {
  for (const DiagRow &row : diagTable()) {
    if (row.info.id != id)
      continue;
    std::string out = fmt::format("{} ({})\n  {}\n", id, severityName(row.info.severity),
                                  readableText({row.info.text.data(), row.info.text.size()}));
    if (!row.info.group.empty())
      out += fmt::format("  group: -W{0}, -Wno-{0}, -Werror={0}\n", row.info.group);
    return out;
  }
  if (const ReportInfo *row = findReport({id.data(), id.size()}))
    return fmt::format("{} ({} of a run)\n  {}\n  {}\n", row->id, severityWord(row->severity),
                       readableText(row->text), row->explanation);
  return {};
}

std::vector<llvm::StringRef> explainableNames() {
  std::vector<llvm::StringRef> names;
  for (const OptionInfo &option : options())
    names.push_back(option.path);
  for (const AliasInfo &alias : aliases())
    names.push_back(alias.path);
  for (const RuleInfo &rule : rules())
    names.push_back(rule.id);
  for (const DiagRow &row : diagTable())
    names.push_back(row.info.id);
  for (const ReportInfo &row : reportTable())
    names.emplace_back(row.id);
  return names;
}

/// Adds a table of the options of a section that have a status, if there are any.
static void addOptions(Tables &tables, const SectionInfo &section, OptionStatus status) {
  bool isFirst = true;
  for (const OptionInfo &option : options()) {
    if (option.section != section.section || option.status != status)
      continue;
    if (std::exchange(isFirst, false))
      tables.section(fmt::format("### {}\n\n{}.", section.name, section.doc),
                     "option | takes | default | Megatron-LM | | effect");
    std::string limit = describeConstraint(option);
    std::string takes = describeType(option.type) + (limit.empty() ? "" : "; " + limit);
    tables.row(code(option.name), markedCell(takes), orDash(option.defaultText),
               orDash(option.flag), markedCell(option.doc), orDash(effectOf(option)));
  }
}

std::vector<std::string> optionReference() {
  struct Part {
    OptionStatus status;
    const char *title;
    int before; ///< number of options with that status before values could be refused
  };
  constexpr Part kParts[] = {{OptionStatus::Executed, "Executed", 194},
                             {OptionStatus::Planned, "Planned", 168},
                             {OptionStatus::NotExecuted, "Not executed", 0},
                             {OptionStatus::CheckedOnly, "Checked", 407}};
  Tables tables;
  tables.begin("status | options > | formerly, when options that change training were ignored >");
  for (const Part &part : kParts) {
    auto count = llvm::count_if(
        options(), [&](const OptionInfo &option) { return option.status == part.status; });
    std::string anchor = llvm::StringRef(part.title).lower();
    std::replace(anchor.begin(), anchor.end(), ' ', '-');
    tables.row(fmt::format("[{}](#{})", part.title, anchor), count, part.before);
  }
  for (const Part &part : kParts) {
    tables.texts.emplace_back();
    for (const SectionInfo &section : sections())
      addOptions(tables, section, part.status);
  }
  addFamilies(tables);
  tables.begin("name | sets |");
  for (const AliasInfo &alias : aliases()) {
    std::string targets;
    for (Opt target : alias.targets)
      targets += (targets.empty() ? "`" : ", `") + info(target).path.str() + "`";
    tables.row(code(alias.path), targets, alias.doc);
  }
  return tables.texts;
}

std::vector<std::string> ruleReference() {
  Tables tables;
  for (RuleKind kind : {RuleKind::Derive, RuleKind::Adjust, RuleKind::Error, RuleKind::Unsupported,
                        RuleKind::Warning, RuleKind::Remark}) {
    tables.begin("rule | text | reason | upstream");
    for (const RuleInfo &rule : rules())
      if (rule.kind == kind)
        tables.row(code(rule.id), markedCell(orDash(rule.text)), markedCell(rule.reason),
                   orDash(rule.upstream));
  }
  tables.begin("upstream | does | shardc | because");
  for (const Deviation &row : deviations())
    tables.row(row.upstream, row.theirs, row.ours, row.reason);
  tables.begin("upstream | because");
#define UNDECIDED(upstream, why) tables.row(upstream, why);
#include "compiler/config/Undecided.def"
  return tables.texts;
}

} // namespace shardc::config
