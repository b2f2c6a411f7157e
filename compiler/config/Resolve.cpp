// Step 1. Applies files in order of strength: the bases of a recipe, the recipe, overlays, --set. A
// later value replaces an earlier one and remembers it. If two bases have a common base, that file
// is applied only once, where it is reached first, so that a sibling does not undo the changes of
// the other.
#include <algorithm>
#include <set>

#include "compiler/basic/Format.h"
#include "compiler/basic/Library.h"
#include "compiler/basic/Suggest.h"
#include "compiler/basic/Utf8.h"
#include "compiler/config/Effect.h"
#include "compiler/config/Evaluate.h"
#include "compiler/config/ForeignNames.h"
#include "compiler/config/Steps.h"
#include "compiler/parse/Parse.h"
#include "runtime/base/RecipeVariables.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

namespace shardc::config {

namespace {

/// The settings of one file so far, to report options that are set twice.
struct FileState {
  struct Written {
    SourceRange name;
    std::string text;
  };
  std::vector<std::optional<Written>> options{kNumOptions};
  llvm::StringMap<Written> variables;
  llvm::StringMap<SourceRange> constants;
};

/// A file, and the location of its `extends` entry that is being applied.
struct Extending {
  BufferId file;
  SourceRange base;
};

/// An assignment that is being applied.
struct Target {
  SourceRange item;
  SourceRange name;
  const Constant &constant;
};

std::string joinPath(llvm::ArrayRef<ast::Ident> path) {
  std::string text;
  for (const ast::Ident &part : path)
    text += (text.empty() ? "" : ".") + part.text.str();
  return text;
}

bool isVariableName(llvm::StringRef name) {
  return !name.empty() && !llvm::isDigit(name[0]) &&
         llvm::all_of(name, [](char c) { return llvm::isAlnum(c) || c == '_'; });
}

/// The names that a section may contain, including aliases.
std::vector<llvm::StringRef> namesIn(Section section) {
  std::vector<llvm::StringRef> names;
  for (const OptionInfo &option : options())
    if (option.section == section && option.name != option.path) // not the section's kind
      names.push_back(option.name);
  for (const AliasInfo &alias : aliases())
    if (alias.path.split('.').first == info(section).name)
      names.push_back(alias.path.split('.').second);
  return names;
}

/// Canonical paths of options with this name in other sections.
std::vector<llvm::StringRef> sameNameElsewhere(llvm::StringRef name) {
  std::vector<llvm::StringRef> paths;
  for (const OptionInfo &option : options())
    if (option.name == name && option.path != name)
      paths.push_back(option.path);
  return paths;
}

class Resolver {
public:
  Resolver(SourceManager &sources, DiagEngine &diags) : sources_(sources), diags_(diags) {}
  /// Continues after another resolver, with a copy of its sources.
  Resolver(const Resolver &read, SourceManager &sources, DiagEngine &diags)
      : sources_(sources), diags_(diags), config_(read.config_), scope_(read.scope_),
        variables_(read.variables_), hasTooManyVariables_(read.hasTooManyVariables_),
        rank_(read.rank_), main_(read.main_), isStructureKnown_(read.isStructureKnown_) {}

  void applyFiles(BufferId recipe, const LoadOptions &options) {
    main_ = recipe;
    origin_ = Origin::Recipe;
    applyFile(recipe);
    origin_ = Origin::Overlay;
    for (const std::string &path : options.overlays)
      if (std::optional<BufferId> overlay = load(path, {}))
        applyFile(*overlay);
  }

  void applySettings(const std::vector<std::string> &settings) {
    origin_ = Origin::CommandLine;
    for (const std::string &setting : settings)
      applySetting(setting);
  }

  /// Leaves out what is not of the model: its layout, its training, and what shardc ignores.
  void keepModel() {
    for (const OptionInfo &option : options())
      if (!info(option.section).isOfModel || isOfLayout(option) ||
          option.status == OptionStatus::CheckedOnly)
        config_.setting(option.opt) = Setting();
  }

  std::optional<Config> take() {
    if (!isStructureKnown_)
      return std::nullopt;
    settleData();
    llvm::sort(config_.env(),
               [](const EnvVariable &a, const EnvVariable &b) { return a.name < b.name; });
    return std::move(config_);
  }

private:
  std::optional<BufferId> load(const std::string &path, SourceRange from) {
    Result<BufferId> loaded = sources_.loadFile(path, /*isFromUser=*/!from.isValid());
    if (loaded.isOk())
      return *loaded;
    if (from.isValid())
      diags_.report(diag::CannotReadBase, from, path, loaded.status().message());
    else
      diags_.report(diag::CannotReadFile, from, loaded.status().message());
    return std::nullopt;
  }

  /// Applies a file after its bases, so that its settings are stronger. `chain_` has the files that
  /// are being read, which finds bases that extend each other.
  void applyFile(BufferId id) {
    std::unique_ptr<ast::Ast> tree = parseRecipe(id, diags_);
    const ast::Recipe &recipe = tree->recipe();
    applied_.insert(id);
    // If braces do not match, any setting may be in the wrong section, so no values can be derived.
    if (!recipe.isStructureKnown) {
      isStructureKnown_ = false;
      return;
    }
    for (const ast::StringValue *base : recipe.bases) {
      chain_.push_back({id, base->range});
      applyBase(id, *base);
      chain_.pop_back();
    }
    ++rank_;
    config_.sources().push_back({id, origin_, !chain_.empty()});
    if (id == main_)
      noteMain(recipe);
    FileState state;
    for (const ast::Item *item : recipe.items)
      applyItem(*item, state);
  }

  void applyBase(BufferId from, const ast::StringValue &base) {
    if (chain_.size() > kExtendsDepthMax) {
      diags_.report(diag::ExtendsTooDeep, base.range, kExtendsDepthMax);
      return;
    }
    if (applied_.size() >= kRecipeFilesMax) {
      diags_.report(diag::TooManyRecipes, base.range, kRecipeFilesMax);
      return;
    }
    std::optional<BufferId> id = load(baseFile(from, base.value), base.range);
    if (!id)
      return;
    if (reportCycle(*id, base.range))
      return;
    if (!beginsAsRecipe(sources_.text(*id))) { // a message must not show a file of another kind
      diags_.report(diag::NotARecipe, base.range, base.value);
      return;
    }
    if (!applied_.count(*id))
      applyFile(*id);
  }

  /// Whether the bases of the file are already being applied. If so, reports the cycle.
  bool reportCycle(BufferId id, SourceRange base) {
    auto first = llvm::find_if(chain_, [&](const Extending &step) { return step.file == id; });
    if (first == chain_.end())
      return false;
    DiagBuilder report = diags_.report(diag::ExtendsItself, base, sources_.name(id));
    for (auto step = first; step + 1 < chain_.end(); ++step)
      report.note(diag::ExtendedHere, step->base, sources_.name((step + 1)->file));
    return true;
  }

  /// The file of a base. A path is relative to the folder of the file that extends it, unless it is
  /// the name of a recipe that comes with the programs.
  std::string baseFile(BufferId from, llvm::StringRef base) const {
    bool isAbsolute = llvm::sys::path::is_absolute(base);
    if (isLibraryName(base))
      return base.str();
    if (isLibraryName(sources_.name(from)) && !isAbsolute)
      return besideInLibrary(sources_.name(from), base);
    llvm::SmallString<256> path;
    if (!isAbsolute)
      path = llvm::sys::path::parent_path(sources_.name(from));
    llvm::sys::path::append(path, base);
    llvm::sys::path::remove_dots(path, /*remove_dot_dot=*/false);
    // Shortens `a/../b` to `b`, unless `a` is a link that leads elsewhere.
    llvm::SmallString<256> shorter = path;
    llvm::sys::path::remove_dots(shorter, /*remove_dot_dot=*/true);
    std::string file(llvm::sys::fs::equivalent(path, shorter) ? shorter.str() : path.str());
    return isLibraryName(file) ? "./" + file : file;
  }

  void noteMain(const ast::Recipe &recipe) {
    config_.setName(recipe.name.text.str(), main_);
    llvm::StringRef text = sources_.text(recipe.range);
    if (text.endswith("}"))
      config_.setBodyEnd(recipe.range.end.advanced(-1));
  }

  void applySetting(const std::string &setting) {
    BufferId id = sources_.addSetting(withUnderscores(setting));
    ++rank_;
    config_.sources().push_back({id, origin_, /*isExtended=*/false});
    FileState state;
    if (applyPlainText(id, state))
      return;
    std::unique_ptr<ast::Ast> tree = parseSetting(id, diags_);
    for (const ast::Item *item : tree->recipe().items)
      applyItem(*item, state);
  }

  /// Replaces hyphens in names on the command line: `--set train.train-iters=5` means train_iters.
  static std::string withUnderscores(std::string setting) {
    size_t end = setting.find('=');
    if (end != std::string::npos)
      std::replace(setting.begin(), setting.begin() + static_cast<std::ptrdiff_t>(end), '-', '_');
    return setting;
  }

  /// Applies what needs no parser. Shells remove quotes, so if an option is a string, --set takes
  /// the text after the '=' as it is: `checkpoint.save=/tmp/ck`. Quotes, brackets, `none` and
  /// constants keep their meaning.
  bool applyPlainText(BufferId id, FileState &state) {
    llvm::StringRef text = sources_.text(id), path = text.split('=').first.rtrim();
    if (path.size() == text.size() || findInvalidUtf8(text))
      return false; // the parser reports the error
    llvm::StringRef value = text.drop_front(text.find('=') + 1).trim();
    Constant constant;
    if (scope_.constants.count(value) ||
        !(isPlainWord(path, value, constant) || isText(path, value)))
      return false;
    auto offset = [&](llvm::StringRef part) {
      return static_cast<size_t>(part.data() - text.data());
    };
    if (constant.kind == Constant::Kind::Error) {
      constant.kind = Constant::Kind::String;
      constant.text = value.str();
    }
    constant.range = sources_.range(id, offset(value), offset(value) + value.size());
    Target target{sources_.range(id, 0, text.size()), sources_.range(id, 0, path.size()), constant};
    if (std::optional<Opt> opt = findOption(path))
      set(*opt, target, state);
    else if (const AliasInfo *alias = findAlias(path))
      setAlias(*alias, target, state);
    else
      setVariable(path.split('.').second, target, state);
    return true;
  }

  /// Whether the value of an option is text that the parser would read otherwise.
  static bool isText(llvm::StringRef path, llvm::StringRef value) {
    return takesPlainText(path) && !value.empty() &&
           !llvm::StringRef("\"'[(").contains(value.front()) && value != "none";
  }

  /// The value, if it is a whole number, a boolean, an enumerator or `none`, which need no parser;
  /// otherwise nothing.
  static bool isPlainWord(llvm::StringRef path, llvm::StringRef value, Constant &constant) {
    using Kind = Constant::Kind;
    std::optional<Opt> opt = findOption(path);
    if (!opt)
      return false;
    const OptionType &type = info(*opt).type;
    bool isNumber = !value.empty() && value.size() < 18 && llvm::all_of(value, llvm::isDigit) &&
                    (value.front() != '0' || value.size() == 1);
    if (value == "none")
      constant.kind = Kind::None;
    else if (type.type == ValueType::Bool && (value == "true" || value == "false"))
      constant.kind = Kind::Bool, constant.boolean = value == "true";
    else if (type.type == ValueType::Int && isNumber && !value.getAsInteger(10, constant.integer))
      constant.kind = Kind::Int;
    else if (type.type == ValueType::Enum && findEnumerator(type.enumKind, value))
      constant.kind = Kind::Name, constant.text = value.str();
    return constant.kind != Kind::Error;
  }

  /// Whether the option of this path, or a variable of the environment, is one text or several.
  static bool takesPlainText(llvm::StringRef path) {
    auto isText = [](Opt opt) {
      ValueType type = info(opt).type.type;
      return type == ValueType::String || type == ValueType::StringList || type == ValueType::Blend;
    };
    if (std::optional<Opt> opt = findOption(path))
      return isText(*opt);
    if (const AliasInfo *alias = findAlias(path))
      return alias->targets.size() == 1 && isText(alias->targets.front());
    return path.startswith("env.") && isVariableName(path.drop_front(4));
  }

  void applyItem(const ast::Item &item, FileState &state) {
    if (const auto *let = ast::dynCast<ast::Let>(&item))
      applyLet(*let, state);
    else if (const auto *section = ast::dynCast<ast::Section>(&item))
      applySection(*section, state);
    else if (const auto *assignment = ast::dynCast<ast::Assignment>(&item))
      applyAssignment(*assignment, state);
  }

  void applyLet(const ast::Let &let, FileState &state) {
    Constant value = evaluate(*let.value, scope_, diags_);
    auto [before, isNew] = state.constants.try_emplace(let.name.text, let.name.range);
    if (!isNew)
      diags_.report(diag::DuplicateConstant, let.name.range, let.name.text)
          .note(diag::ConstantDefinedHere, before->second, let.name.text);
    if (value.kind == Constant::Kind::Name) {
      diags_.report(diag::UnknownConstant, value.range, value.text);
      value.kind = Constant::Kind::Error;
    }
    scope_.constants[let.name.text] = {std::move(value), let.name.range};
  }

  // --- sections and names ------------------------------------------------------------------------

  void reportUnknownSection(const ast::Ident &name, const Suggestion &near) {
    std::vector<llvm::StringRef> all;
    for (const SectionInfo &section : sections())
      all.push_back(section.name);
    if (near.names.empty())
      diags_.report(diag::UnknownSection, name.range, name.text, quotedList(all, 20));
    else if (near.isSure())
      diags_.report(diag::MisspeltSection, name.range, name.text, quotedList(near.names))
          .fixIt(FixIt::replace(name.range, near.names.front()));
    else
      diags_.report(diag::MisspeltSection, name.range, name.text, quotedList(near.names));
  }

  /// The section that a name stands for. Reports a misspelt or foreign name; if the repair is
  /// certain, returns the repaired section.
  std::optional<Section> sectionOf(const ast::Ident &name) {
    if (std::optional<Section> section = findSection(name.text))
      return section;
    std::vector<llvm::StringRef> all;
    for (const SectionInfo &section : sections())
      all.push_back(section.name);
    if (const ForeignName *foreign = findForeignSection(name.text)) {
      llvm::StringRef ours = info(*foreign->section).name;
      diags_.report(diag::ForeignName, name.range, name.text, foreign->program, ours)
          .fixIt(FixIt::replace(name.range, ours));
      return foreign->section;
    }
    if (const ForeignName *foreign = findForeignName(name.text); foreign && !foreign->option) {
      diags_.report(diag::ForeignSetting, name.range, name.text, foreign->program, foreign->advice);
      return std::nullopt;
    }
    Suggestion near = suggest(name.text, all);
    reportUnknownSection(name, near);
    return near.isSure() ? findSection(near.names.front()) : std::nullopt;
  }

  void applySection(const ast::Section &node, FileState &state) {
    std::optional<Section> section = sectionOf(node.name);
    if (!section)
      return; // errors in its options would only follow from this one
    sectionHead_ = node.head.begin;
    SourceLoc lastEnd = node.openBrace.advanced(1);
    if (node.label)
      applyKind(*section, *node.label, node.head, state);
    for (const ast::Item *item : node.items) {
      lastEnd = item->range.end;
      if (const auto *inner = ast::dynCast<ast::Section>(item))
        diags_.report(diag::NestedSection, inner->head, inner->name.text, node.name.text);
      else if (const auto *assignment = ast::dynCast<ast::Assignment>(item))
        applyInSection(*section, assignment->path, *assignment, state);
    }
    config_.sites().push_back({*section, node.head, node.openBrace, node.closeBrace, lastEnd});
  }

  void applyKind(Section section, const ast::Ident &label, SourceRange head, FileState &state) {
    std::optional<Opt> kind = info(section).kind;
    if (!kind) {
      diags_.report(diag::SectionTakesNoKind, label.range, info(section).name, label.text)
          .fixIt(FixIt::remove(sources_.removalRange(label.range)));
      return;
    }
    Constant constant;
    constant.kind = Constant::Kind::Name;
    constant.range = label.range;
    constant.text = label.text.str();
    set(*kind, {head, label.range, constant}, state);
  }

  void applyAssignment(const ast::Assignment &node, FileState &state) {
    if (node.path.size() == 1) {
      std::optional<Section> section = findSection(node.path[0].text);
      if (section && info(*section).kind) {
        Constant constant = evaluate(*node.value, scope_, diags_);
        set(*info(*section).kind, {node.range, node.pathRange, constant}, state);
      } else if (const ForeignName *foreign = findForeignName(node.path[0].text)) {
        Target target{node.range, node.pathRange, evaluate(*node.value, scope_, diags_)};
        setForeign(*foreign, {}, target, node.pathRange, state);
      } else {
        reportWithoutSection(node.path[0]);
      }
      return;
    }
    if (std::optional<Section> section = sectionOf(node.path.front()))
      applyInSection(*section, node.path.drop_front(), node, state);
  }

  void reportWithoutSection(const ast::Ident &name) {
    std::vector<llvm::StringRef> paths = sameNameElsewhere(name.text);
    if (paths.empty()) {
      diags_.report(diag::OptionWithoutSection, name.range, name.text);
      return;
    }
    DiagBuilder report =
        diags_.report(diag::OptionElsewhere, name.range, name.text, "recipe", quotedList(paths));
    if (paths.size() == 1)
      report.fixIt(FixIt::replace(name.range, paths.front()));
  }

  void applyInSection(Section section, llvm::ArrayRef<ast::Ident> path, const ast::Assignment &node,
                      FileState &state) {
    Constant constant = evaluate(*node.value, scope_, diags_);
    std::string name = joinPath(path);
    Target target{node.range, {path.front().range.begin, path.back().range.end}, constant};
    std::string full = info(section).name.str() + "." + name;
    if (std::optional<Opt> opt = findOption(full))
      set(*opt, target, state);
    else if (const AliasInfo *alias = findAlias(full))
      setAlias(*alias, target, state);
    else if (section == Section::Env)
      setVariable(name, target, state);
    else if (const ForeignName *foreign = findForeignName(name))
      setForeign(*foreign, section, target, node.pathRange, state);
    else
      setMisspelt(section, name, target, state);
  }

  /// Reports a name of another program, and sets the option that it stands for. `written`: the
  /// range of the assignment's whole path, which may be inside a section or name one.
  void setForeign(const ForeignName &foreign, std::optional<Section> section, const Target &target,
                  SourceRange written, FileState &state) {
    llvm::StringRef name = sources_.text(target.name);
    if (!foreign.option) {
      diags_.report(diag::ForeignSetting, target.name, name, foreign.program, foreign.advice);
      return;
    }
    const OptionInfo &option = info(*foreign.option);
    bool isHere = section == option.section,
         isInSection = section && written.begin == target.name.begin;
    llvm::StringRef ours = isHere ? nameInSection(option) : option.path;
    DiagBuilder report = diags_.report(diag::ForeignName, target.name, name, foreign.program, ours);
    if (isHere)
      report.fixIt(FixIt::replace(target.name, ours));
    else if (!isInSection)
      report.fixIt(FixIt::replace(written, ours));
    else
      report.fixIt(moveBefore(sectionHead_, ours, target));
    set(*foreign.option, target, state);
  }

  /// A fix-it that moves an assignment out of its section to the line before, with its full path.
  FixIt moveBefore(SourceLoc head, llvm::StringRef path, const Target &target) const {
    std::string line = fmt::format("{} = {}\n", path, sources_.text(target.constant.range));
    llvm::StringRef before =
        sources_.lineText(head).take_while([](char c) { return c == ' ' || c == '\t'; });
    return FixIt::remove(sources_.removalRange(target.item))
        .andReplace(SourceRange(head), line + before.str());
  }

  /// Handles a name that the section does not have. The message prefers, in this order: another
  /// section that has this name, names that are near, all others. A sure correction is also
  /// applied, as its fix-it would.
  void setMisspelt(Section section, llvm::StringRef name, const Target &target, FileState &state) {
    llvm::StringRef sectionName = info(section).name;
    std::vector<llvm::StringRef> elsewhere = sameNameElsewhere(name);
    if (!elsewhere.empty()) {
      diags_.report(diag::OptionElsewhere, target.name, name, sectionName, quotedList(elsewhere));
      return;
    }
    Suggestion near = suggest(name, namesIn(section));
    if (near.names.empty()) {
      diags_.report(diag::UnknownOption, target.name, name, sectionName);
      return;
    }
    DiagBuilder report =
        diags_.report(diag::MisspeltOption, target.name, name, sectionName, quotedList(near.names));
    if (!near.isSure())
      return;
    report.fixIt(FixIt::replace(target.name, near.names.front()));
    std::string full = (sectionName + "." + near.names.front()).str();
    if (const AliasInfo *alias = findAlias(full))
      setAlias(*alias, target, state);
    else
      set(*findOption(full), target, state);
  }

  // --- values ------------------------------------------------------------------------------------

  void setAlias(const AliasInfo &alias, const Target &target, FileState &state) {
    const Constant &constant = target.constant;
    if (alias.targets.size() == 1 || constant.kind == Constant::Kind::None ||
        constant.kind == Constant::Kind::Error) {
      for (Opt opt : alias.targets)
        set(opt, target, state);
      return;
    }
    size_t found = constant.kind == Constant::Kind::List ? constant.elements.size() : 1;
    if (constant.kind != Constant::Kind::List || found != alias.targets.size()) {
      diags_.report(diag::WrongNumberOfValues, constant.range, alias.path, alias.targets.size(),
                    found);
      return;
    }
    for (size_t i = 0; i < found; ++i)
      set(alias.targets[i], {target.item, target.name, constant.elements[i]}, state);
  }

  void set(Opt opt, const Target &target, FileState &state) {
    const Constant &constant = target.constant;
    for (const ShorthandInfo &shorthand : shorthands()) {
      bool isWord =
          constant.kind == Constant::Kind::Name || constant.kind == Constant::Kind::String;
      if (shorthand.option == opt && isWord && constant.text == shorthand.word) {
        store(opt, parseTableValue(shorthand.value, info(opt)), target, state);
        store(shorthand.other, parseTableValue(shorthand.otherValue, info(shorthand.other)), target,
              state);
        return;
      }
    }
    if (clears(opt, constant))
      return store(opt, Value(), target, state);
    bool isOurs = opt == Opt::DatasetDataPath &&
                  isLibraryName(sources_.name(sources_.bufferOf(constant.range.begin)));
    store(opt, convert(isOurs ? withInstalledData(constant) : constant, info(opt), diags_), target,
          state);
  }

  static Constant withInstalledData(Constant constant) {
    if (constant.kind == Constant::Kind::String)
      constant.text = dataPathOf(constant.text);
    for (Constant &element : constant.elements)
      element = withInstalledData(std::move(element));
    return constant;
  }

  /// Whether `none` clears the option; some enumerations have a value called none.
  static bool clears(Opt opt, const Constant &constant) {
    const OptionType &type = info(opt).type;
    return constant.kind == Constant::Kind::None &&
           !(type.type == ValueType::Enum && findEnumerator(type.enumKind, "none"));
  }

  /// Replaces the option's value, or marks it as unreadable if there is no value.
  void store(Opt opt, std::optional<Value> value, const Target &target, FileState &state) {
    std::optional<FileState::Written> &before = state.options[static_cast<size_t>(opt)];
    if (before)
      diags_.report(diag::DuplicateOption, target.name, info(opt).path)
          .note(diag::OptionSetBefore, before->name, before->text);
    before = {target.name, sources_.text(target.constant.range).str()};
    replace(config_.setting(opt), std::move(value), target);
  }

  /// Synthetic data belong to the layer that asks for them. If a stronger layer names data or
  /// trained weights, the kind is derived from these. If synthetic data are asked for in the
  /// stronger layer, they replace the data that the weaker one names.
  void settleData() {
    const Setting &kind = config_[Opt::DatasetKind];
    if (!kind.from.isWritten() || !config_.is(Opt::DatasetKind, DatasetKind::Synthetic))
      return;
    auto isReplaced = [&](Opt opt) {
      return isNamed(config_, opt) && config_[opt].from.isAbove(kind.from);
    };
    if (llvm::any_of(kDataPaths, isReplaced) || isReplaced(Opt::CheckpointPretrainedCheckpoint) ||
        isReplaced(Opt::CheckpointFinetune))
      return unset(config_.setting(Opt::DatasetKind));
    for (Opt paths : kDataPaths)
      if (isNamed(config_, paths) && kind.from.isAbove(config_[paths].from)) {
        diags_.report(diag::DataReplaced, config_[paths].from.name, info(paths).path)
            .note(diag::OptionIsSetHere, kind.from.value, info(Opt::DatasetKind).path, "synthetic");
        unset(config_.setting(paths));
      }
  }

  static void unset(Setting &setting) {
    setting.history.emplace_back(std::exchange(setting.value, Value()), setting.from);
    setting.from = {};
  }

  void replace(Setting &setting, std::optional<Value> value, const Target &target) {
    if (setting.from.origin != Origin::Unset)
      unset(setting);
    setting.isPoisoned = !value.has_value();
    setting.value = value ? std::move(*value) : Value();
    setting.from.origin = origin_;
    setting.from.rank = static_cast<uint16_t>(rank_);
    setting.from.item = target.item;
    setting.from.name = target.name;
    setting.from.value = target.constant.range;
  }

  /// Sets an environment variable of section `env`, whose names are free. `none` removes the
  /// variable that an earlier file has set.
  void setVariable(llvm::StringRef name, const Target &target, FileState &state) {
    if (!isVariableName(name)) {
      diags_.report(diag::BadVariableName, target.name, name);
      return;
    }
    warnIfMisspelt(name, target);
    OptionInfo asText = info(Opt::EnvNcclAlgo);
    std::string path = "env." + name.str();
    asText.path = path;
    constexpr const char *kHidden = "***"; // a rule refuses the variable; nothing shows its value
    bool isSecret = useOfVariable(name) == VariableUse::Secret;
    std::optional<Value> value = isSecret ? Value::ofString(kHidden)
                                 : target.constant.kind == Constant::Kind::None
                                     ? std::optional(Value())
                                     : convert(target.constant, asText, diags_);
    auto [before, isNew] = state.variables.try_emplace(name);
    if (!isNew)
      diags_.report(diag::DuplicateOption, target.name, path)
          .note(diag::OptionSetBefore, before->second.name, before->second.text);
    before->second = {target.name, isSecret ? kHidden : sources_.text(target.constant.range).str()};
    std::vector<EnvVariable> &all = config_.env();
    auto [index, isFirst] = variables_.try_emplace(name, all.size());
    if (isFirst && all.size() == kVariablesMax) {
      if (!hasTooManyVariables_)
        diags_.report(diag::TooManyVariables, target.name, name, kVariablesMax);
      hasTooManyVariables_ = true;
      variables_.erase(name);
      return;
    }
    if (isFirst)
      all.push_back({name.str(), {}});
    replace(all[index->second].setting, std::move(value), target);
  }

  void warnIfMisspelt(llvm::StringRef name, const Target &target) {
    static const std::vector<llvm::StringRef> kKnown = namesIn(Section::Env);
    Suggestion near = suggest(name, kKnown);
    if (near.isSure())
      diags_.report(diag::MisspeltVariable, target.name, name, quotedList(near.names));
  }

  SourceManager &sources_;
  DiagEngine &diags_;
  Config config_;
  Scope scope_;
  llvm::StringMap<size_t> variables_; ///< by name: index in config_.env()
  bool hasTooManyVariables_ = false;
  Origin origin_ = Origin::Recipe;
  unsigned rank_ = 0;
  SourceLoc sectionHead_; ///< the beginning of the section whose settings are being applied
  BufferId main_;
  bool isStructureKnown_ = true; ///< false if the braces of a file do not match
  std::set<BufferId> applied_;
  std::vector<Extending> chain_; ///< files whose bases are being applied, outermost first
};

} // namespace

struct ReadRecipe {
  SourceManager sources;
  DiagEngine diags{sources};
  Resolver resolver{sources, diags};
};

std::shared_ptr<const ReadRecipe> readRecipe(const LoadOptions &options) {
  auto read = std::make_shared<ReadRecipe>();
  Result<BufferId> recipe = read->sources.loadFile(options.path);
  if (!recipe.isOk())
    return nullptr;
  read->resolver.applyFiles(*recipe, options);
  read->resolver.applySettings(options.sets);
  return read->diags.hasErrors() ? nullptr : read;
}

void copySources(const ReadRecipe &read, SourceManager &sources) { sources.copyFrom(read.sources); }

std::optional<Config> resolve(SourceManager &sources, DiagEngine &diags, BufferId recipe,
                              const LoadOptions &options) {
  Resolver resolver =
      options.read ? Resolver(options.read->resolver, sources, diags) : Resolver(sources, diags);
  if (!options.read)
    resolver.applyFiles(recipe, options);
  resolver.applySettings(options.sets);
  if (options.oneRank) {
    resolver.keepModel();
    // Blocks of 8-bit formats divide 128 tokens.
    resolver.applySettings({"cluster.gpu=host", "cluster.nodes=1", "cluster.gpus_per_node=1",
                            "train.micro_batch_size=128", "mixed_precision.fp8_param_gather=false",
                            "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag=false"});
    resolver.applySettings(*options.oneRank);
  }
  return resolver.take();
}

} // namespace shardc::config
