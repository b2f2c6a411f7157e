// Fuzzes the importers: no text may crash or hang them, and their output must be a formatted
// recipe. The first byte selects the form.
#include <cstddef>
#include <cstdint>
#include <string>

#include "compiler/parse/Format.h"
#include "compiler/upstream/Import.h"
#include "compiler/upstream/ReadValue.h"

namespace shardc {
namespace {

std::optional<std::string> import(char form, BufferId input, DiagEngine &diags) {
  upstream::ImportOptions options{"fuzz", "fuzz", {{"SET", "--lr 3e-4"}}};
  if (form == 'y')
    return upstream::importBridgeYaml(input, options, diags);
  return upstream::importMegatronArgs(input, diags.sources().text(input), options, diags);
}

void run(const std::string &text, char form) {
  SourceManager sources;
  DiagEngine diags(sources);
  BufferId input = sources.addBuffer("fuzz", text);
  std::optional<std::string> recipe = import(form, input, diags);
  diags.finish();
  SHARDC_CHECK(recipe.has_value() || diags.hasErrors(), "no recipe and no error");
  if (!recipe)
    return;
  SourceManager formattedSources;
  DiagEngine formatDiags(formattedSources);
  std::optional<std::string> again =
      formatRecipe(formattedSources.addBuffer("fuzz.recipe", *recipe), formatDiags);
  SHARDC_CHECK(again == *recipe, "the recipe is not formatted:\n{}", *recipe);
}

} // namespace
} // namespace shardc

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0)
    return 0;
  std::string text(reinterpret_cast<const char *>(data + 1), size - 1);
  shardc::upstream::readPattern(text);
  shardc::run(text, static_cast<char>(data[0]));
  return 0;
}
