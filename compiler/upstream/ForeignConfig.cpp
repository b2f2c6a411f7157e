// Imports configurations of the programs of ForeignForms.def: TOML, JSON or YAML with names that
// ForeignNames.def has.

#include <cmath>
#include <map>
#include <set>

#include "compiler/basic/Format.h"
#include "compiler/config/Effect.h"
#include "compiler/config/ForeignNames.h"
#include "compiler/upstream/FlagTable.h"
#include "compiler/upstream/ImportedRecipe.h"
#include "compiler/upstream/ReadValue.h"
#include "compiler/upstream/Yaml.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"

namespace shardc::upstream {
namespace {

using config::Opt;

constexpr size_t kFieldsMax = 10'000; // aliases may repeat maps without limit

/// YAML with the lines of a TOML text: `[table]` becomes `table:`, and `key = value` a line in it.
/// Values are alike in both.
std::string yamlOfToml(llvm::StringRef text) {
  std::string yaml;
  while (!text.empty()) {
    auto [line, rest] = text.split('\n');
    text = rest;
    line = line.trim();
    const size_t assign = line.find_first_of("=#");
    if (line.startswith("["))
      yaml += line.split(']').first.trim("[ ").str() + ":";
    else if (assign != line.npos && line[assign] == '=')
      yaml += "  " + line.take_front(assign).trim().str() + ": " +
              line.drop_front(assign + 1).trim().str();
    else
      yaml += "    " + line.str(); // of a list in several lines
    yaml += "\n";
  }
  return yaml;
}

constexpr llvm::StringLiteral kSections =
#define FORM_SECTION(paths) paths " "
#include "compiler/upstream/ForeignForms.def"
    ;

/// A row FORM_DEFAULT, or FORM_FIELD if it has a value.
struct FormRow {
  llvm::StringRef forms, settings, text, value;
};
constexpr FormRow kRows[] = {
#define FORM_DEFAULT(forms, settings, advice) {forms, settings, advice, {}},
#define FORM_FIELD(forms, settings, path, value) {forms, settings, path, value},
#include "compiler/upstream/ForeignForms.def"
};

/// A part of advice that an import follows.
struct Part {
  enum class Kind : uint8_t { Write, Set, Without };
  Kind kind;
  Opt opt;
  std::string value; ///< of Write; of Set: its arithmetic
  bool isWeak;       ///< other fields win
};

/// The option of a path; of a section, its kind.
std::optional<Opt> optionAt(llvm::StringRef path) {
  std::optional<config::Section> section = config::findSection(path);
  return section ? config::info(*section).kind : config::findOption(path);
}

/// The parts of advice; empty if an import cannot follow it.
std::vector<Part> partsOf(llvm::StringRef advice) {
  std::vector<Part> parts;
  auto kind = Part::Kind::Write;
  for (llvm::StringRef text : llvm::split(advice, ", ")) {
    const bool isWeak = text.consume_back(" if unset");
    if (text.consume_front("set "))
      kind = Part::Kind::Set;
    else if (text.consume_front("without "))
      kind = Part::Kind::Without;
    else if (text.consume_front("write "))
      kind = Part::Kind::Write;
    else if (parts.empty())
      return {};
    if (!text.consume_front("'"))
      return {};
    auto [quoted, rest] = text.split('\'');
    auto [path, value] = quoted.split(" = ");
    std::optional<Opt> opt = optionAt(path);
    const bool isSet = kind == Part::Kind::Set;
    const size_t blanks = rest.count(' ') - (isSet ? 2 : 0); // of ` to `
    if (!opt ||
        (isSet ? !rest.consume_front(" to ") || (blanks != 0 && blanks != 2) : !rest.empty()))
      return {};
    parts.push_back({kind, *opt, (isSet ? rest : value.trim('"')).str(), isWeak});
  }
  return parts;
}

/// Whether a value is one of the words of a row FOREIGN_VALUE.
bool matches(const Tree &value, llvm::StringRef words) {
  const std::string text = llvm::StringRef(describe(value)).trim("[]").lower();
  double number = 0, limit = 0;
  const bool isNumber = readNumber(text, number);
  for (llvm::StringRef word : llvm::split(words, ' ')) {
    if (word == "regex" && value.isWord() &&
        value.text.find_first_of("\\[(|+^$*") != std::string::npos)
      return true;
    if (word == text || (isNumber && word == "0" && number == 0))
      return true;
    if (word.consume_front("<") && isNumber && !word.getAsDouble(limit) && number < limit)
      return true;
    if (word.consume_back("*") && text != "auto" && llvm::StringRef(text).startswith(word))
      return true;
  }
  return false;
}

class ForeignReader {
public:
  ForeignReader(RecipeBuilder &recipe, llvm::StringRef form) : recipe_(recipe), form_(form) {}

  void read(const Tree &tree) {
    readAll("", tree);
    auto isWeak = [](const Part &part) { return part.isWeak; };
    followLater(isWeak);
    if (recipe_.isEmpty())
      return;
    for (const FormRow &row : kRows)
      if (isOneOf(row.forms, form_) && config::holds(recipe_, row.settings)) {
        applyRow(row, tree.range);
        followLater(isWeak);
      }
    for (const config::OptionInfo &option : config::options())
      if (option.section == config::Section::Peft && !recipe_.has(Opt::PeftScheme))
        drop(option.opt, "no adapters are trained");
    followLater([](const Part &part) { return part.kind == Part::Kind::Set; });
    followLater([](const Part &part) { return part.kind == Part::Kind::Without; });
    if (recipe_.has(Opt::PreferenceBeta) && !recipe_.has(Opt::PreferenceLoss))
      recipe_.ask("the loss on pairs of answers", Opt::PreferenceLoss,
                  recipe_.range(Opt::PreferenceBeta));
  }

private:
  /// A field, and the advice of which a part is followed after all fields are read.
  struct Later {
    Part part;
    std::string text, advice;
    Tree value;
  };

  void readAll(const std::string &path, const Tree &value) {
    if (value.kind != Tree::Kind::Map || !value.call.empty())
      return numFields_++ < kFieldsMax ? readField(path, value) : void();
    for (const auto &[key, item] : value.entries)
      readAll(path.empty() ? key : path + "." + key, *item);
  }

  /// The option that a field sets: our own in the section of that name, the one that another
  /// program calls so, or else the only one with the name.
  static std::optional<Opt> optionOf(llvm::StringRef path, const config::ForeignName *foreign) {
    llvm::StringRef name = lastPart(path), section = lastPart(path.rsplit('.').first);
    if (const config::ForeignName *own = config::findForeignSection(section))
      section = config::info(*own->section).name;
    const bool isInSection = path.contains('.') && config::findSection(section);
    std::optional<Opt> found;
    if (isInSection)
      found = config::findOption((section + "." + name).str());
    if (found || isInSection || foreign != nullptr)
      return found || foreign == nullptr ? found : foreign->option;
    for (const config::OptionInfo &option : config::options())
      if (option.name == name) {
        if (found)
          return std::nullopt;
        found = option.opt;
      }
    return found;
  }

  void readField(const std::string &path, const Tree &value, llvm::StringRef why = {}) {
    if (value.isNone())
      return;
    paths_.insert(path);
    llvm::StringRef section = llvm::StringRef(path).rsplit('.').first;
    const bool isKnown = section == path || isOneOf(kSections, section);
    const config::ForeignName *foreign =
        isKnown ? config::findForeignName(path) : config::findForeignPath(path);
    const std::string text = fmt::format("{} = {}{}", path, describe(value), why);
    if (foreign != nullptr)
      for (const config::ForeignValue &row : foreign->values)
        if (matches(value, row.words))
          return follow(row.advice, text, value);
    std::optional<Opt> opt;
    if (isKnown || foreign != nullptr)
      opt = optionOf(path, foreign);
    if (opt && set(*opt, value, text))
      return;
    if (opt)
      left_.insert(*opt);
    while (foreign == nullptr && !isKnown && !section.empty()) { // what is said of the section
      foreign = config::findForeignName(section);
      section = section.contains('.') ? section.rsplit('.').first : "";
    }
    if (describe(value) == "auto")
      return recipe_.leaveToUser(text, "the program that reads the file chooses it", value.range);
    std::string advice;
    if (foreign != nullptr && !opt)
      advice = foreign->other.empty() ? foreign->advice : foreign->other;
    if (advice.empty())
      return recipe_.leaveOut(text, value.range);
    const std::vector<Part> parts = partsOf(advice);
    const bool isSwitch =
        llvm::none_of(parts, [](const Part &part) { return part.kind == Part::Kind::Set; });
    const bool isOff = value.saysNothing() && llvm::StringRef(advice).startswith("write ");
    if (isOff)
      recipe_.leaveOutIdle(text, "it is off", value.range);
    else if (parts.empty() || isSwitch == (value.kind == Tree::Kind::Bool))
      follow(advice, text, value);
    else
      leaveToUser(text, advice, value.range);
  }

  /// Does what advice says, as far as that does not depend on other fields.
  void follow(llvm::StringRef advice, const std::string &text, const Tree &value) {
    if (advice.startswith("remove it"))
      return recipe_.leaveOutIdle(text, advice, value.range);
    const std::vector<Part> parts = partsOf(advice);
    if (parts.empty())
      return leaveToUser(text, advice, value.range);
    for (const Part &part : parts) {
      const bool isLater =
          part.isWeak || part.kind == Part::Kind::Without ||
          (part.kind == Part::Kind::Set && part.value.find(' ') != std::string::npos);
      Later later{part, text, advice.str(), value};
      isLater ? later_.push_back(std::move(later)) : followNow(later);
    }
  }

  template <typename Predicate> void followLater(Predicate isDue) {
    for (const Later &each : later_)
      if (isDue(each.part))
        followNow(each);
    llvm::erase_if(later_, [&](const Later &each) { return isDue(each.part); });
  }

  void followNow(const Later &later) {
    const Part &part = later.part;
    if (part.kind == Part::Kind::Without)
      return drop(part.opt, fmt::format("'{}' wins", later.text));
    if (part.isWeak && recipe_.isSet(part.opt))
      return;
    TreePtr made = resultOf(part, later.value);
    if (part.value.find(config::info(part.opt).path) != std::string::npos)
      setBy_.erase(part.opt); // the result contains its value
    if (made == nullptr || !set(part.opt, *made, later.text))
      leaveToUser(later.text, later.advice, later.value.range);
  }

  TreePtr operand(llvm::StringRef word, const Tree &it) const {
    size_t index = 0;
    if (word == "it")
      return std::make_shared<Tree>(it);
    if (word.consume_front("it["))
      return !word.consumeInteger(10, index) && index < it.items.size() ? it.items[index] : nullptr;
    if (!word.consume_front("'"))
      return makeScalar(word, it.range);
    std::optional<Opt> opt = config::findOption(word.drop_back());
    return opt && recipe_.has(*opt)
               ? makeScalar(llvm::StringRef(toRecipeText(recipe_, *opt)).trim('"'), it.range)
               : nullptr;
  }

  /// The value that a part sets; `/` joins texts. Null if an operand is not known.
  TreePtr resultOf(const Part &part, const Tree &it) const {
    if (part.kind == Part::Kind::Write)
      return makeScalar(part.value, it.range);
    llvm::SmallVector<llvm::StringRef> parts(llvm::split(part.value, ' '));
    TreePtr left = operand(parts.front(), it);
    if (parts.size() != 3 || left == nullptr)
      return left;
    TreePtr right = operand(parts[2], it);
    if (right == nullptr)
      return nullptr;
    double a = 0, b = 0;
    const bool areNumbers = readNumber(describe(*left), a) && readNumber(describe(*right), b);
    if (!areNumbers)
      return parts[1] == "/" ? makeText(describe(*left) + "/" + describe(*right), it.range)
                             : nullptr;
    const double result = parts[1] == "*" ? a * b : parts[1] == "/" ? a / b : std::pow(a, b);
    constexpr int kDigits = 12; // 2e-5 * 0.1 is 2e-6
    return makeScalar(fmt::format("{:.{}g}", result, kDigits), it.range);
  }

  bool set(Opt opt, const Tree &value, const std::string &text) {
    const config::OptionInfo &option = config::info(opt);
    std::optional<config::Value> read = readValue(option.type, value);
    if (!read && value.items.size() == 1)
      read = readValue(option.type, *value.items.front());
    if (!read)
      return false;
    auto [at, isFirst] = setBy_.try_emplace(opt, text);
    if (!isFirst && recipe_[opt].value != *read) {
      if (const config::Value::List *more = read->asList()) { // both count
        config::Value::List all = recipe_.getList(opt);
        llvm::copy_if(*more, std::back_inserter(all),
                      [&](const config::Value &item) { return !llvm::is_contained(all, item); });
        read = config::Value::ofList(std::move(all));
      } else {
        recipe_.leaveToUser(at->second, fmt::format("'{}' sets '{}' too", text, option.path),
                            recipe_.range(opt));
      }
    }
    at->second = text;
    left_.erase(opt);
    recipe_.set(opt, std::move(*read), value.range);
    return true;
  }

  /// Reports advice, and notes the option that the user will set.
  void leaveToUser(const std::string &text, llvm::StringRef advice, SourceRange range) {
    if (std::optional<Opt> opt =
            optionAt(advice.split('\'').second.split('\'').first.split(" = ").first))
      left_.insert(*opt);
    recipe_.leaveToUser(text, advice, range);
  }

  void drop(Opt opt, llvm::StringRef why) {
    if (auto found = setBy_.find(opt); found != setBy_.end()) {
      recipe_.leaveOutIdle(found->second, why, recipe_.range(opt));
      setBy_.erase(found);
    }
    recipe_.clear(opt);
  }

  void applyRow(const FormRow &row, SourceRange range) {
    if (!row.value.empty() && paths_.count(row.text) == 0)
      readField(row.text.str(), *makeScalar(row.value, range), " by default");
    for (const Part &part : partsOf(row.text))
      if (left_.count(part.opt) == 0 && !recipe_.isSet(part.opt))
        if (std::optional<config::Value> value =
                readValue(config::info(part.opt).type, *resultOf(part, Tree())))
          recipe_.setUpstreamDefault(part.opt, std::move(*value));
  }

  RecipeBuilder &recipe_;
  llvm::StringRef form_;
  size_t numFields_ = 0;
  llvm::StringSet<> paths_;
  std::map<Opt, std::string> setBy_; ///< the field that sets an option
  std::set<Opt> left_;               ///< options whose fields are left to the user
  std::vector<Later> later_;
};

} // namespace

std::optional<std::string> importForeign(BufferId input, llvm::StringRef form,
                                         const ImportOptions &options, DiagEngine &diags) {
  if (!checkInput(input, diags))
    return std::nullopt;
  TreePtr tree = llvm::StringRef(options.source).endswith(".toml")
                     ? readYaml(input, yamlOfToml(diags.sources().text(input)), diags)
                     : readYaml(input, diags);
  if (tree == nullptr)
    return std::nullopt;
  if (tree->kind != Tree::Kind::Map) {
    diags.report(diag::ImportMalformed, tree->range,
                 fmt::format("expected fields with their values; found {}",
                             tree->isNone() ? "nothing" : describe(*tree)));
    return std::nullopt;
  }
  const ForeignForm *row =
      llvm::find_if(kForeignForms, [&](const ForeignForm &each) { return each.name == form; });
  RecipeBuilder recipe(diags, row->program);
  ForeignReader(recipe, form).read(*tree);
  return printRecipe(recipe, options, diags);
}

} // namespace shardc::upstream
