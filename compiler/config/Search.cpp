#include "compiler/config/Search.h"

#include "compiler/basic/Format.h"
#include "compiler/config/Rules.h"

namespace shardc::config {
namespace {

constexpr size_t kWordMin = 3;
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
std::string matches(const char *heading, llvm::ArrayRef<Entry> table, llvm::StringRef word,
                    size_t linesMax) {
  std::vector<Entry> found;
  for (bool inName : {true, false})
    for (const Entry &entry : table)
      if (entry.name.contains_insensitive(word) ? inName
                                                : !inName && entry.text.contains_insensitive(word))
        found.push_back(entry);
  if (found.empty())
    return {};
  std::string out = fmt::format("{}:\n", heading);
  for (const Entry &entry : llvm::makeArrayRef(found).take_front(linesMax))
    out += line(entry);
  if (found.size() > linesMax)
    out += fmt::format("  ... and {} more\n", found.size() - linesMax);
  return out;
}

} // namespace

std::vector<Opt> optionsNamed(llvm::StringRef name) {
  std::vector<Opt> found;
  for (const OptionInfo &option : options())
    if (option.name == name)
      found.push_back(option.opt);
  for (const AliasInfo &alias : aliases())
    if (alias.path.split('.').second == name)
      for (Opt target : alias.targets)
        if (!llvm::is_contained(found, target))
          found.push_back(target);
  return found;
}

std::string listOptions(llvm::ArrayRef<Opt> options) {
  std::string out;
  for (Opt opt : options)
    out += line({info(opt).path, summary(info(opt))});
  return out;
}

std::string listSection(llvm::StringRef section) {
  std::optional<Section> found = findSection(section);
  if (!found)
    return {};
  std::string out = fmt::format("section {}: {}\n", section, info(*found).doc);
  for (const OptionInfo &option : options())
    if (option.section == *found)
      out += line({option.path, summary(option)});
  return out;
}

std::string searchTables(llvm::StringRef word, size_t linesMax) {
  if (word.size() < kWordMin)
    return {};
  std::vector<Entry> optionRows, ruleRows, diagRows;
  for (const OptionInfo &option : options())
    optionRows.push_back({option.path, summary(option)});
  for (const RuleInfo &rule : rules())
    ruleRows.push_back({rule.id, rule.text.empty() ? rule.reason : rule.text});
  for (const DiagRow &row : diagTable())
    diagRows.push_back({row.info.id, row.info.text});
  return matches("options", optionRows, word, linesMax) +
         matches("rules", ruleRows, word, linesMax) + matches("messages", diagRows, word, linesMax);
}

} // namespace shardc::config
