// Fuzzes the front end: no text may crash or hang it, or be accepted and then change its meaning
// when formatted. The first byte selects a recipe file or the text of a --set.
#include <cstddef>
#include <cstdint>
#include <string>

#include "compiler/ast/Dump.h"
#include "compiler/diag/Consumers.h"
#include "compiler/diag/FixItApply.h"
#include "compiler/diag/VerifyConsumer.h"
#include "compiler/parse/Format.h"
#include "compiler/parse/Parse.h"

namespace shardc {
namespace {

/// Parses the text, and prints its messages in every form. Returns the dumped tree; empty after an
/// error.
std::string check(const std::string &text, bool isSetting) {
  SourceManager sources;
  DiagEngine engine(sources);
  std::string shown;
  llvm::raw_string_ostream out(shown);
  const std::unique_ptr<DiagConsumer> consumers[] = {
      makeTextConsumer(sources, out, {.color = ColorMode::Never}), makeJsonConsumer(sources, out),
      makeSarifConsumer(sources, out)};
  for (const auto &consumer : consumers)
    engine.addConsumer(*consumer);
  BufferId buffer = isSetting ? sources.addSetting(text) : sources.addBuffer("fuzz.recipe", text);
  VerifyConsumer verify(sources, buffer);
  engine.addConsumer(verify);
  auto ast = isSetting ? parseSetting(buffer, engine) : parseRecipe(buffer, engine);
  std::string dump = ast::dump(ast->recipe(), sources);
  applyFixIts(sources, engine.pending(), /*recommended=*/true);
  engine.finish();
  verify.check(out);
  return engine.hasErrors() ? std::string()
                            : ast::dump(ast->recipe(), sources, /*withPlaces=*/false);
}

/// The formatted text; empty if the text has errors.
std::string format(const std::string &text) {
  SourceManager sources;
  DiagEngine engine(sources);
  return formatRecipe(sources.addBuffer("fuzz.recipe", text), engine).value_or("");
}

void checkFormat(const std::string &text, const std::string &dump) {
  std::string once = format(text);
  SHARDC_CHECK(once.empty() == dump.empty(), "parser and formatter do not agree");
  SHARDC_CHECK(once.empty() || format(once) == once, "formatting is not idempotent:\n{}", once);
  SHARDC_CHECK(once.empty() || check(once, false) == dump, "formatting changed the tree");
}

} // namespace
} // namespace shardc

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0)
    return 0;
  std::string text(reinterpret_cast<const char *>(data + 1), size - 1);
  bool isSetting = data[0] == '=';
  std::string dump = shardc::check(text, isSetting);
  if (!isSetting)
    shardc::checkFormat(text, dump);
  return 0;
}
