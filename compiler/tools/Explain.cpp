// shardc explain: prints effective settings with provenance and reasons, or explains an option, a
// rule or a diagnostic.
//
//   explain R.recipe                every setting that is not at its default
//   explain R.recipe ddp            the settings of a section
//   explain R.recipe ddp.nccl_ub    one setting
//   explain R.recipe adjustments    every remark of `check`, with reasons
//   explain fsdp-checkpoint-format  an option, a rule or a diagnostic, without a recipe
//   explain ddp                     the options of a section
//   explain lr                      the options of that name
//   explain warmup                  everything with that word in its name or text
//   explain "part of a message"     the rules that report it, or whose upstream text contains it
#include <array>
#include <fmt/format.h>
#include <string>
#include <vector>

#include "compiler/basic/Format.h"
#include "compiler/basic/Suggest.h"
#include "compiler/basic/Utf8.h"
#include "compiler/config/Explain.h"
#include "compiler/config/ForeignNames.h"
#include "compiler/config/Options.h"
#include "compiler/config/Rules.h"
#include "compiler/diag/Remarks.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/Session.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Launcher.h"
#include "runtime/verify/Verify.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

constexpr size_t kWordMin = 3;
constexpr size_t kLinesMax = 25;   ///< of each table
constexpr size_t kTextWidth = 100; ///< characters of a line's text; explain prints the rest

struct Entry {
  llvm::StringRef name;
  llvm::StringRef text;
};

std::string line(const Entry &entry) {
  llvm::StringRef text = entry.text.split('\n').first;
  std::string shown = text.take_front(kTextWidth).str();
  if (text.size() > kTextWidth) // break between words
    shown = text.take_front(text.take_front(kTextWidth).rfind(' ')).str() + " ...";
  return fmt::format("  {:<46} {}\n", entry.name, shown);
}

/// Lists entries that contain the word in their name, then those that contain it in their text.
std::string matches(const char *heading, llvm::ArrayRef<Entry> table, llvm::StringRef word) {
  std::vector<Entry> found;
  for (bool inName : {true, false})
    for (const Entry &entry : table)
      if (entry.name.contains_insensitive(word) ? inName
                                                : !inName && entry.text.contains_insensitive(word))
        found.push_back(entry);
  if (found.empty())
    return {};
  std::string out = fmt::format("{}:\n", heading);
  for (const Entry &entry : llvm::makeArrayRef(found).take_front(kLinesMax))
    out += line(entry);
  if (found.size() > kLinesMax)
    out += fmt::format("  ... and {} more\n", found.size() - kLinesMax);
  return out;
}

/// The options whose name inside their section is `name` (`lr`, `save`), including targets of
/// aliases.
std::vector<config::Opt> optionsNamed(llvm::StringRef name) {
  std::vector<config::Opt> found;
  for (const config::OptionInfo &option : config::options())
    if (option.name == name)
      found.push_back(option.opt);
  for (const config::AliasInfo &alias : config::aliases())
    if (alias.path.split('.').second == name)
      for (config::Opt target : alias.targets)
        if (!llvm::is_contained(found, target))
          found.push_back(target);
  return found;
}

/// One line per option: path and doc.
std::string listOptions(llvm::ArrayRef<config::Opt> options) {
  std::string out;
  for (config::Opt opt : options)
    out += line({config::info(opt).path, config::summary(config::info(opt))});
  return out;
}

/// Describes a section, with a line for each of its options. Returns an empty text for an unknown
/// section.
std::string listSection(llvm::StringRef section) {
  std::optional<config::Section> found = config::findSection(section);
  if (!found)
    return {};
  std::string out = fmt::format("section {}: {}\n", section, config::info(*found).doc);
  for (const config::OptionInfo &option : config::options())
    if (option.section == *found)
      out += line({option.path, config::summary(option)});
  return out;
}

/// Lists every option, rule and message whose name or text contains the word, ignoring case: one
/// line each, names before texts, at most kLinesMax of each table. Empty if nothing matches, or if
/// the word has fewer than three letters, which would match nearly everything.
std::string searchTables(llvm::StringRef word) {
  if (word.size() < kWordMin)
    return {};
  std::vector<Entry> optionRows, ruleRows, diagRows;
  for (const config::OptionInfo &option : config::options())
    optionRows.push_back({option.path, config::summary(option)});
  for (const config::RuleInfo &rule : config::rules())
    ruleRows.push_back({rule.id, rule.text.empty() ? rule.reason : rule.text});
  for (const DiagRow &row : diagTable())
    diagRows.push_back({row.info.id, row.info.text});
  return matches("options", optionRows, word) + matches("rules", ruleRows, word) +
         matches("messages", diagRows, word);
}

constexpr const char *kAdjustments = "adjustments";

struct ExplainOptions {
  CommonOptions common;
  std::vector<std::string> words; ///< [recipe] [what]
};

/// Explains a rule of the plan's verifier; empty if none has this id.
std::string explainPlanRule(const std::string &id) {
  for (int i = 0; i < plan::kRuleCount; ++i)
    if (auto rule = static_cast<plan::Rule>(i); plan::ruleId(rule) == id)
      return fmt::format("{} (error of a plan)\n  {}\n", id, plan::ruleDoc(rule));
  return {};
}

int unknown(const std::string &what) {
  llvm::errs() << "shardc: error: nothing is called '" << what << "'";
  std::vector<llvm::StringRef> names = config::explainableNames();
  for (int i = 0; i < plan::kRuleCount; ++i)
    names.emplace_back(plan::ruleId(static_cast<plan::Rule>(i)));
  if (Suggestion near = suggest(what, names); !near.names.empty())
    llvm::errs() << "; did you mean " << quotedList(near.names) << "?";
  llvm::errs() << "\n";
  return kInputErrors;
}

/// Suggests meanings of a word that is not a name: a section, the last part of option paths, or a
/// word in names and texts. A word with a dot is more likely a misspelt path.
std::string couldBe(llvm::StringRef what) {
  std::string out = listSection(what);
  std::vector<config::Opt> named = optionsNamed(what);
  if (out.empty() && named.size() == 1)
    return config::explainOption(config::info(named.front()).path);
  if (out.empty() && !named.empty())
    return fmt::format("'{}' is the name of\n{}", what, listOptions(named));
  if (out.empty() && !what.contains('.'))
    if (std::string found = searchTables(what); !found.empty())
      return fmt::format("nothing is called '{}'; it occurs in these\n{}", what, found);
  return out;
}

/// Explains another program's name and the option that it stands for; empty if no program has the
/// name.
std::string explainForeign(llvm::StringRef what) {
  const config::ForeignName *foreign = config::findForeignName(what);
  if (!foreign)
    return {};
  std::string text = config::describeForeignName(*foreign) + "\n";
  return foreign->option ? text + config::explainOption(config::info(*foreign->option).path) : text;
}

/// Explains a variable by which launchers tell a process its place; empty if none does.
std::string explainVariable(std::string_view what) {
  std::string text;
  auto add = [&](std::string_view name, std::string_view meaning, std::string_view launcher) {
    if (name == what)
      text += fmt::format("  {}, as {} sets it\n", meaning, launcher);
  };
  for (const NodeVariables &each : nodeLaunchers()) {
    add(each.nodes, "the number of nodes of a job, where LOCAL_RANK is not set", each.text);
    add(each.node, "the number of this node, where LOCAL_RANK is not set", each.text);
    add(each.ranks, "the number of ranks of a node", each.text);
    add(each.address, "the address of node 0", each.text);
    add(each.port, "the port before the one where ranks meet", each.text);
  }
  for (const LauncherVariables &each : launchers()) {
    add(each.rank, "the rank of this process", each.text);
    add(each.worldSize, "the number of ranks", each.text);
    add(each.localRank, "the number of this rank on its node", each.text);
    add(each.localSize, "the number of ranks of this node", each.text);
    add(each.node, "the number of this node", each.text);
    for (const char *name : each.job)
      add(name ? name : "", "tells the job from others", each.text);
  }
  return text.empty() ? text : fmt::format("{} (environment variable)\n{}", what, text);
}

int explainAlone(const std::string &what) {
  if (const config::AliasInfo *alias = config::findAlias(what)) {
    std::string text;
    for (config::Opt target : alias->targets)
      text += config::explainOption(config::info(target).path);
    return writeOutput("", text);
  }
  std::string option = config::explainOption(what);
  if (!option.empty() && config::findSection(what)) // `model` is an option and a section
    option += "\n" + listSection(what);
  for (const std::string &text :
       {option, config::explainRule(what), config::explainDiagnostic(what), explainPlanRule(what),
        explainVariable(what), explainForeign(what), config::explainText(what), couldBe(what)})
    if (!text.empty())
      return writeOutput("", text);
  return unknown(what);
}

bool isRecipe(const std::string &word) { return llvm::StringRef(word).endswith(".recipe"); }

/// One remark: location and text, followed by the reason.
std::string remarkText(const Diagnostic &remark, const SourceManager &sources) {
  std::string place;
  if (remark.range.isValid()) {
    LineColumn at = sources.lineColumn(remark.range.begin);
    place = fmt::format("{}:{}:{}: ", at.file, at.line, at.column);
  }
  const config::RuleInfo *rule = config::findRule(remark.id);
  return fmt::format("  {} [{}]\n{}", printable(place + remark.text), remark.id,
                     rule ? fmt::format("      {}\n", rule->reason) : "");
}

/// Prints all remarks of `check` by kind, with reasons. Errors follow.
int explainAdjustments(ExplainOptions &options) {
  options.common.remarks = "hidden";
  Session session(options.common);
  checkRecipe(session, options.common);
  // Consequences of other settings are printed after the remarks of all kinds.
  constexpr size_t kFollowing = kRemarkKinds;
  std::array<std::string, kRemarkKinds + 1> texts;
  std::array<unsigned, kRemarkKinds + 1> counts = {};
  for (const Diagnostic &remark : session.diags().pending()) {
    if (remark.severity != Severity::Remark)
      continue;
    auto kind = static_cast<size_t>(findRemarkKind(remark.group).value_or(RemarkKind::Other));
    size_t part = remark.isConsequence ? kFollowing : kind;
    texts[part] += remarkText(remark, session.sources());
    ++counts[part];
  }
  std::string text;
  for (size_t k = 0; k < counts.size(); ++k)
    if (counts[k] > 0)
      text += fmt::format("{} {}:\n{}", counts[k],
                          k < kFollowing ? remarkKindName(static_cast<RemarkKind>(k), counts[k])
                                         : consequenceName(counts[k]),
                          texts[k]);
  ExitStatus written =
      writeOutput("", text.empty() ? "nothing is adjusted or recommended\n" : text);
  return std::max(session.finish(), written);
}

/// Prints the part of a configuration that a word names. If it names none, explains the word
/// itself.
int explainPart(const config::Config &config, const SourceManager &sources,
                const std::string &what) {
  if (what.empty() || config::findSection(what))
    return writeOutput("", config::explainAll(config, sources, what));
  std::vector<config::Opt> targets;
  if (const config::AliasInfo *alias = config::findAlias(what))
    targets = alias->targets.vec();
  else if (std::optional<config::Opt> option = config::findOption(what))
    targets = {*option};
  else if (const config::ForeignName *foreign = config::findForeignName(what);
           foreign && foreign->option)
    targets = {*foreign->option};
  else
    targets = optionsNamed(what);
  if (targets.empty())
    return explainAlone(what);
  std::string text;
  for (config::Opt target : targets)
    text += config::explainOption(config, sources, config::info(target).path);
  return writeOutput("", text);
}

/// The first word is a recipe, or the name of something that is explained without one.
int runExplain(ExplainOptions &options) {
  if (options.words.empty()) {
    llvm::errs() << "shardc: error: 'explain' takes a recipe, or the name of an option, a rule or "
                    "a diagnostic\n";
    return kUsage;
  }
  if (!isRecipe(options.words[0]))
    return explainAlone(options.words[0]);
  options.common.load.path = options.words[0];
  std::string what = options.words.size() > 1 ? options.words[1] : "";
  if (what == kAdjustments)
    return explainAdjustments(options);
  Session session(options.common);
  std::optional<config::Config> config =
      config::loadConfig(session.sources(), session.diags(), options.common.load);
  return config ? explainPart(*config, session.sources(), what) : session.finish();
}

} // namespace

void addExplain(cli::Command &app, int &status) {
  auto options = std::make_shared<ExplainOptions>();
  cli::Command &command =
      app.addCommand("explain", "print effective settings, where they come from and why");
  command
      .option("words", options->words,
              "[R.recipe] [option, section, rule, diagnostic, any word, or adjustments]")
      .takes(0, 2);
  options->common.addTo(command, /*needsRecipe=*/false);
  command.onUse([options, &status] { status = runExplain(*options); });
}

} // namespace shardc::tools
