#include "compiler/lsp/Completion.h"

#include "compiler/basic/Library.h"
#include "compiler/config/Config.h"
#include "compiler/config/ForeignNames.h"
#include "compiler/lsp/Context.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/Path.h"

namespace shardc::lsp {

namespace {

using config::OptionInfo;
using config::ValueType;

std::string typeText(const OptionInfo &option) {
  std::string text = config::describeType(option.type);
  std::string limit = config::describeConstraint(option);
  if (!limit.empty())
    text += "; " + limit;
  return text + (option.hasDefault() ? "; default " + option.defaultText.str() : std::string());
}

class Completer {
public:
  Completer(const Context &context, llvm::StringRef behind, std::string folder)
      : context_(context), folder_(std::move(folder)) {
    // Insert ` = ` after a name unless the text already has a `=` there.
    assign_ = behind.ltrim(" \t").startswith("=") ? "" : " = ";
  }

  std::vector<CompletionItem> run() {
    switch (context_.expect) {
    case Expect::Nothing:
      break;
    case Expect::Base:
      bases();
      break;
    case Expect::Recipe:
      add({"recipe", ItemKind::Keyword, "a recipe", "recipe NAME { ... }", "recipe "});
      add({"extends", ItemKind::Keyword, "bases of the recipe", "extends \"base.recipe\"",
           "extends "});
      break;
    case Expect::Item:
      items();
      break;
    case Expect::Option:
      options();
      break;
    case Expect::Kind:
      if (context_.section && config::info(*context_.section).kind)
        values(config::info(*config::info(*context_.section).kind));
      break;
    case Expect::Value:
      value();
      break;
    }
    return std::move(items_);
  }

private:
  void add(CompletionItem item) {
    if (llvm::StringRef(item.label).startswith_insensitive(context_.word))
      items_.push_back(std::move(item));
  }

  /// Offers the recipes that come with the program, and those below the document's folder.
  void bases() {
    constexpr size_t kMaxEntries = 5000; // the folder may be any
    std::error_code ignored;             // then none is offered
    for (const std::string &name : recipesBelow(filePathOf(kLibraryPrefix), ignored)) {
      std::string base = kLibraryPrefix.str() + name;
      add({base, ItemKind::File, "comes with shardc", "", base});
    }
    for (const std::string &name : recipesBelow(folder_, ignored, kMaxEntries))
      add({name, ItemKind::File, "", "", name});
  }

  void items() {
    for (const config::SectionInfo &section : config::sections())
      add({section.name.str(), ItemKind::Module, "section", section.doc.str(),
           section.name.str() + (section.kind ? " " : " { ")});
    add({"let", ItemKind::Keyword, "a constant", "let NAME = value", "let "});
  }

  void options() {
    if (!context_.section)
      return;
    for (const OptionInfo &option : config::options()) {
      bool isKind = option.path == option.name;
      bool isWritten = llvm::is_contained(context_.written, option.opt);
      if (option.section == *context_.section && !isKind && !isWritten)
        add({option.name.str(), ItemKind::Property, typeText(option), summary(option).str(),
             option.name.str() + assign_});
    }
    llvm::StringRef section = config::info(*context_.section).name;
    for (const config::AliasInfo &alias : config::aliases())
      if (auto [head, name] = alias.path.split('.'); head == section)
        add({name.str(), ItemKind::Property, "shorthand", alias.doc.str(), name.str() + assign_});
    if (!context_.word.empty()) // foreign names only complete a typed prefix
      foreignNames();
  }

  /// Offers names that other programs use for an option; choosing one inserts our name.
  void foreignNames() {
    for (const config::ForeignName &foreign : config::foreignNames()) {
      if (!foreign.option || llvm::is_contained(context_.written, *foreign.option))
        continue;
      const OptionInfo &option = config::info(*foreign.option);
      if (option.section == *context_.section)
        add({foreign.name, ItemKind::Property, config::describeForeignName(foreign),
             summary(option).str(), config::nameInSection(option).str() + assign_});
    }
  }

  void value() {
    if (const config::AliasInfo *alias = config::findAlias(context_.path))
      values(config::info(alias->targets.front()));
    else if (std::optional<config::Opt> opt = config::findOption(context_.path))
      values(config::info(*opt));
    for (const std::string &name : context_.constants)
      add({name, ItemKind::Constant, "constant", "", name});
  }

  void values(const OptionInfo &option) {
    ValueType type = option.type.type;
    if (type == ValueType::Bool)
      for (const char *word : {"true", "false"})
        add({word, ItemKind::Value, "", "", word});
    if (type == ValueType::Enum || type == ValueType::EnumList) {
      size_t count = config::enumSpellings(option.type.enumKind).size();
      config::OptionType one{ValueType::Enum, option.type.enumKind};
      for (size_t i = 0; i < count; ++i) {
        std::string text = config::toRecipeText(config::Value::ofIndex(i), one);
        add({text, ItemKind::Enumerator, option.path.str(), "", text});
      }
      for (const config::ShorthandInfo &shorthand : config::shorthands())
        if (shorthand.option == option.opt)
          add({shorthand.word.str(), ItemKind::Enumerator, "shorthand", "", shorthand.word.str()});
    } else if (type != ValueType::Bool && option.hasDefault()) {
      add({option.defaultText.str(), ItemKind::Value, "default", "", option.defaultText.str()});
    }
    if (context_.expect == Expect::Value && !context_.isInList)
      add({"none", ItemKind::Keyword, "clears an inherited value", "", "none"});
  }

  const Context &context_;
  std::string folder_; ///< of the document
  std::string assign_;
  std::vector<CompletionItem> items_;
};

} // namespace

Completion complete(const Document &document, Position at) {
  size_t offset = document.offsetOf(at);
  Context context = contextAt(document.text, offset);
  Completion out;
  out.begin = document.positionOf(context.wordBegin);
  size_t end = wordAt(document.text, offset).second;
  if (context.expect == Expect::Base)
    end = std::min(llvm::StringRef(document.text).find_first_of("\"\n", offset),
                   document.text.size());
  out.end = document.positionOf(std::max(end, offset));
  llvm::StringRef behind = llvm::StringRef(document.text).drop_front(std::max(end, offset));
  out.items = Completer(context, behind, llvm::sys::path::parent_path(document.path).str()).run();
  return out;
}

} // namespace shardc::lsp
