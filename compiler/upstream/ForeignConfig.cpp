// Imports configurations of programs whose names ForeignNames.def has: torchtitan's TOML,
// DeepSpeed's JSON, and the YAML of Axolotl, TRL and LLaMA-Factory.

#include "compiler/basic/Format.h"
#include "compiler/config/ForeignNames.h"
#include "compiler/upstream/ImportedRecipe.h"
#include "compiler/upstream/ReadValue.h"
#include "compiler/upstream/Yaml.h"
#include "llvm/ADT/STLExtras.h"

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

class ForeignReader {
public:
  explicit ForeignReader(RecipeBuilder &recipe) : recipe_(recipe) {}

  void read(const std::string &path, const Tree &value) {
    if (value.kind != Tree::Kind::Map)
      return numFields_++ < kFieldsMax ? readField(path, value) : void();
    for (const auto &[key, item] : value.entries)
      read(path.empty() ? key : path + "." + key, *item);
  }

private:
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

  void readField(const std::string &path, const Tree &value) {
    if (value.isNone())
      return;
    const config::ForeignName *foreign = config::findForeignName(path);
    std::optional<Opt> opt = optionOf(path, foreign);
    if (opt && set(*opt, value))
      return;
    const std::string text = fmt::format("{} = {}", path, describe(value));
    const std::string advice = foreign != nullptr && !opt ? foreign->advice : "";
    if (advice.empty())
      return recipe_.leaveOut(text, value.range);
    const bool isOff = value.saysNothing() && llvm::StringRef(advice).startswith("write ");
    if (isOff || llvm::StringRef(advice).startswith("remove it"))
      return recipe_.leaveOutIdle(text, isOff ? "it is off" : advice, value.range);
    // What a switch that is on asks for: "write 'path = value'", and nothing else.
    auto [option, word] = llvm::StringRef(advice).split(" = ");
    const bool isOn = value.kind == Tree::Kind::Bool && option.consume_front("write '") &&
                      word.consume_back("'") && !word.contains('\'');
    std::optional<Opt> target = isOn ? config::findOption(option) : std::nullopt;
    if (isOn && !target) // the kind of a section, as in `mixed_precision = bf16_mixed`
      if (std::optional<config::Section> section = config::findSection(option))
        target = config::info(*section).kind;
    if (!target || !set(*target, *makeScalar(word, value.range)))
      recipe_.leaveToUser(text, advice, value.range);
  }

  bool set(Opt opt, const Tree &value) {
    std::optional<config::Value> read = readValue(config::info(opt).type, value);
    if (read)
      recipe_.set(opt, *read, value.range);
    return read.has_value();
  }

  RecipeBuilder &recipe_;
  size_t numFields_ = 0;
};

} // namespace

std::optional<std::string> importForeign(BufferId input, SourceManager &sources,
                                         const ImportOptions &options, DiagEngine &diags) {
  if (!checkInput(input, diags))
    return std::nullopt;
  if (llvm::StringRef(options.source).endswith(".toml"))
    input = sources.addBuffer(sources.name(input).str(), yamlOfToml(sources.text(input)));
  TreePtr tree = readYaml(input, diags);
  if (tree == nullptr)
    return std::nullopt;
  if (tree->kind != Tree::Kind::Map) {
    diags.report(diag::ImportMalformed, tree->range, "expected fields with their values");
    return std::nullopt;
  }
  RecipeBuilder recipe(diags);
  ForeignReader(recipe).read("", *tree);
  return printRecipe(recipe, options, diags);
}

} // namespace shardc::upstream
