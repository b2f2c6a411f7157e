#include "compiler/upstream/RecipeBuilder.h"

#include "compiler/basic/Format.h"
#include "compiler/config/Effect.h"
#include "compiler/config/Evaluate.h"
#include "compiler/config/Steps.h"
#include "compiler/upstream/FlagTable.h"
#include "compiler/upstream/ReadValue.h"
#include "runtime/base/RecipeVariables.h"
#include "runtime/base/Utf8.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/Twine.h"

namespace shardc::upstream {
namespace {

using config::Opt;
using config::Origin;
using config::Value;

/// Maximum length of a line in the list of omitted settings.
constexpr size_t kCommentMax = 300;

/// Makes `text` a single line for a comment, without characters that control a terminal, and
/// shortens it to `kCommentMax`.
std::string commentText(llvm::StringRef text) {
  std::string out;
  for (std::string rest = withoutSecrets(text); !rest.empty();) {
    if (out.size() >= kCommentMax)
      return out + " ...";
    size_t control = controlLength(rest), length = std::max<size_t>(utf8Length(rest), 1);
    out += control > 0 ? " " : rest.substr(0, length);
    rest.erase(0, std::max(control, length));
  }
  return out;
}

/// The value of an unset option in this recipe, which may set a family.
Value silentValue(const config::OptionInfo &option, const config::Config &recipe) {
  for (const auto &row : config::familyRows())
    if (row.opt == option.opt && recipe.is(Opt::ModelFamily, row.kind))
      return config::parseTableValue(row.text, option);
  return config::tableDefault(option.opt);
}

bool equalNumbers(const Value &a, const Value &b) {
  const double *x = a.asFloat(), *y = b.asFloat();
  return x != nullptr && y != nullptr && *x == *y;
}

bool hasReference(const Tree &tree) {
  if (tree.isWord())
    return llvm::StringRef(tree.text).contains("${");
  for (const TreePtr &item : tree.items)
    if (item->isWord() && hasReference(*item))
      return true;
  return false;
}

} // namespace

void RecipeBuilder::set(Opt opt, Value value, SourceRange range) {
  llvm::erase_if(asked_, [&](const auto &asked) { return asked.first == opt; });
  setting(opt) = {std::move(value), {.origin = Origin::Recipe, .value = range}};
  unknown_.erase(opt);
}

void RecipeBuilder::setUnknown(Opt opt, llvm::StringRef what, SourceRange range) {
  clear(opt);
  unknown_[opt] = {what.str(), range};
}

void RecipeBuilder::setUnknownData(llvm::StringRef what, SourceRange range) {
  unknownData_ = {what.str(), range};
}

void RecipeBuilder::finishUnknown() {
  for (const auto &[opt, about] : unknown_)
    doubt(about.first, opt, about.second);
  if (savesNever_ && has(Opt::CheckpointSave)) {
    set(Opt::CheckpointSave, Value(), *savesNever_);
    meant("upstream saves nothing if the interval is 0; the recipe has no folder to save to",
          *savesNever_);
  }
  bool hasPath = false, isUnknown = !unknownData_.first.empty();
  for (Opt paths : {Opt::DatasetDataPath, Opt::DatasetTrainDataPath, Opt::DatasetBlend}) {
    isUnknown |= isDoubted(paths);
    hasPath |= has(paths);
    // Data given by path are always in Megatron's indexed format.
    if (has(paths) && !has(Opt::DatasetKind))
      setEnum(Opt::DatasetKind, config::DatasetKind::Indexed, range(paths));
  }
  if (hasPath || !isUnknown || has(Opt::DatasetKind))
    return;
  setEnum(Opt::DatasetKind, config::DatasetKind::Indexed, unknownData_.second);
  if (!unknownData_.first.empty())
    ask(unknownData_.first, Opt::DatasetDataPath, unknownData_.second);
}

bool RecipeBuilder::read(Opt opt, const Tree &tree, llvm::StringRef name) {
  const config::OptionInfo &option = config::info(opt);
  // Runs refuse options of Weights & Biases, and they do not affect training.
  if (option.path.startswith("logger.wandb_")) {
    leaveToUser(fmt::format("{} {}", name.str(), describe(tree)),
                "set 'logger.tensorboard_dir', whose folder 'wandb sync' sends", tree.range);
    return false;
  }
  bool isText = option.type.type == config::ValueType::String ||
                option.type.type == config::ValueType::StringList ||
                option.type.type == config::ValueType::Blend;
  if (tree.isUnknown || (hasReference(tree) && !isText)) {
    doubt(fmt::format("{} {}", name.str(), describe(tree)), opt, tree.range);
    return false;
  }
  if (std::optional<Value> value = readValue(option.type, tree)) {
    bool isOff = value->asInt() != nullptr && *value->asInt() == 0 &&
                 findName(NameKind::OffAtZero, option.path) != nullptr;
    if (isOff)
      value = Value();
    if (opt == Opt::CheckpointSaveInterval)
      savesNever_ = isOff ? std::optional(tree.range) : std::nullopt;
    set(opt, std::move(*value), tree.range);
    return true;
  }
  // Upstream may have more enumerators.
  bool takesWords = option.type.type == config::ValueType::Enum ||
                    option.type.type == config::ValueType::EnumList;
  if (takesWords && tree.kind != Tree::Kind::Bool)
    leaveOut(fmt::format("{} {}", name.str(), describe(tree)), tree.range);
  else
    diags_.report(diag::ImportValue, tree.range, name, config::describeType(option.type),
                  describe(tree));
  return false;
}

void RecipeBuilder::setUpstreamDefault(Opt opt, Value value) {
  if (!isSet(opt) && !isDoubted(opt))
    setting(opt) = {std::move(value), {.origin = Origin::Default}};
}

void RecipeBuilder::setVariable(llvm::StringRef name, Value value, SourceRange range) {
  if (std::optional<Opt> opt = config::findOption(("env." + name).str()))
    return set(*opt, std::move(value), range);
  if (useOfVariable(name) != VariableUse::Settable) // the value may be a secret
    return leaveOutIdle(("env." + name).str(),
                        "a recipe does not set it; the run's environment does", range);
  auto at = llvm::partition_point(
      env(), [&](const config::EnvVariable &held) { return held.name < name; });
  if (at == env().end() || at->name != name)
    at = env().insert(at, {name.str(), {}});
  at->setting.value = std::move(value);
}

void RecipeBuilder::leaveOut(llvm::StringRef text, SourceRange range) {
  if (!leftOut_.empty() && leftOut_.back() == commentText(text))
    return; // one statement with several targets is reported once
  diags_.report(diag::ImportNoCounterpart, range, commentText(text));
  leftOut_.push_back(commentText(text));
}

void RecipeBuilder::leaveOutMisspelt(llvm::StringRef flag, llvm::StringRef text,
                                     llvm::StringRef meant, SourceRange range) {
  diags_.report(diag::ImportMisspelt, range, commentText(flag), meant);
  leftOut_.push_back(commentText(text));
}

void RecipeBuilder::leaveOutIdle(llvm::StringRef text, llvm::StringRef why, SourceRange range) {
  diags_.report(diag::ImportIdle, range, commentText(text), why);
  leftOut_.push_back(commentText((text + ": " + why).str()));
}

void RecipeBuilder::leaveToUser(llvm::StringRef text, llvm::StringRef how, SourceRange range) {
  diags_.report(diag::ImportByHand, range, commentText(text), how);
  leftOut_.push_back(commentText((text + ": " + how).str()));
}

void RecipeBuilder::doubt(llvm::StringRef what, Opt opt, SourceRange range) {
  clear(opt);
  ask(what, config::info(opt).path, range, opt);
}

void RecipeBuilder::ask(llvm::StringRef what, llvm::StringRef path, SourceRange range,
                        std::optional<Opt> doubted) {
  diags_.report(diag::ImportUnknown, range, commentText(what), path);
  listAsked((path + ": " + what).str(), doubted);
}

void RecipeBuilder::askVocabulary(const Tree &tokenizer) {
  llvm::StringRef path = config::info(Opt::ModelVocabSize).path;
  if (has(Opt::ModelVocabSize) || tokenizer.text.empty())
    return;
  diags_.report(diag::ImportVocabulary, tokenizer.range, commentText(tokenizer.text), path);
  listAsked((path + ": the vocabulary of " + tokenizer.text).str());
}

void RecipeBuilder::listAsked(llvm::StringRef line, std::optional<Opt> doubted) {
  std::pair<std::optional<Opt>, std::string> asked(doubted, commentText(line));
  if (!llvm::is_contained(asked_, asked))
    asked_.push_back(std::move(asked));
}

bool RecipeBuilder::isDoubted(Opt opt) const {
  return unknown_.count(opt) > 0 ||
         llvm::any_of(asked_, [&](const auto &asked) { return asked.first == opt; });
}

void RecipeBuilder::askWords(llvm::StringRef what, SourceRange range) {
  diags_.report(diag::ImportUnknownWords, range, commentText(what));
  listAsked(("whatever '" + what + "' holds").str());
}

void RecipeBuilder::setUnnamedOfFamily() {
  for (const auto &row : config::familyRows())
    if (is(Opt::ModelFamily, row.kind) && !isSet(row.opt) &&
        config::info(row.opt).status == config::OptionStatus::Executed)
      set(row.opt, Value(), {});
}

void RecipeBuilder::dropDefaults() {
  for (const config::OptionInfo &option : config::options()) {
    const Value &value = (*this)[option.opt].value, silent = silentValue(option, *this);
    if (option.opt != Opt::ModelFamily && (value == silent || equalNumbers(value, silent)))
      clear(option.opt);
  }
}

config::Config RecipeBuilder::withDefaults() const {
  SourceManager sources;
  DiagEngine quiet(sources); // a check of the recipe reports what is wrong in it
  return config::deriveDefaults(*this, quiet);
}

void RecipeBuilder::dropIdle() {
  const config::Config whole = withDefaults();
  auto isKnown = [&](const config::NeededSetting &needed) { return !isDoubted(needed.opt); };
  for (const config::OptionInfo &option : config::options())
    if (has(option.opt) && option.section == config::Section::Model && !isOfLayout(option) &&
        !hasEffect(whole, option) && llvm::all_of(neededSettings(option), isKnown))
      clear(option.opt);
}

bool RecipeBuilder::isEmpty() const {
  return env().empty() &&
         llvm::none_of(config::options(),
                       [this](const config::OptionInfo &option) { return isSet(option.opt); });
}

/// The sections with the settings of one origin.
std::string RecipeBuilder::printSections(Origin origin) const {
  std::string out;
  for (const config::SectionInfo &section : config::sections()) {
    std::string kind, body;
    for (const config::OptionInfo &option : config::options()) {
      if (option.section != section.section || (*this)[option.opt].from.origin != origin)
        continue;
      std::string text = toRecipeText(*this, option.opt);
      if (section.kind == option.opt && text != "none" && text.front() != '"')
        kind = " " + text;
      else
        body += fmt::format("{} = {}\n", option.name, text);
    }
    if (section.section == config::Section::Env && origin == Origin::Recipe)
      for (const config::EnvVariable &variable : env())
        body += fmt::format("{} = {}\n", variable.name,
                            toRecipeText(variable.setting.value, {config::ValueType::String}));
    if (!body.empty() || !kind.empty())
      out += fmt::format("{}{} {{\n{}}}\n", section.name, kind, body);
  }
  return out;
}

std::string RecipeBuilder::print(llvm::StringRef name, llvm::StringRef source) const {
  std::string out = fmt::format("// Imported from {}.\n", commentText(source));
  if (!asked_.empty())
    out += "//\n// Fill in these settings, which the input does not contain:\n";
  for (const auto &[opt, line] : asked_)
    out += "//   " + line + "\n";
  if (!leftOut_.empty())
    out += "//\n// Left out, because a recipe has no counterpart:\n";
  for (const std::string &line : leftOut_)
    out += "//   " + line + "\n";
  out += fmt::format("recipe {} {{\n{}", name, printSections(Origin::Recipe));
  if (std::string defaults = printSections(Origin::Default); !defaults.empty())
    out += fmt::format(
        "\n// {}'s defaults that the input relies on and that differ from shardc's.\n{}", program_,
        defaults);
  return out + "}\n";
}

} // namespace shardc::upstream
