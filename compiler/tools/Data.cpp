// shardc data build: converts text or JSON lines to Megatron's indexed format.
#include <fmt/format.h>

#include "compiler/basic/Numbers.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/DataPacks.h"
#include "compiler/tools/DataTokenize.h"
#include "compiler/tools/Session.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Output.h"
#include "runtime/base/Report.h"
#include "runtime/tokenize/BuildIndexed.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

struct DataOptions {
  std::vector<std::string> paths; ///< inputs, then the output's prefix
  std::string tokenizer = "bytes";
  std::string format = "auto";
  std::string jsonKey = "text";
  bool appendEod = true;
};

int runBuild(const DataOptions &options) {
  if (options.paths.size() < 2) {
    llvm::errs() << "shardc: error: 'data build' takes one input or several, then the prefix of "
                    "the output; found "
                 << options.paths.size() << " path\n";
    return kUsage;
  }
  tokenize::BuildOptions build;
  build.jsonKey = options.jsonKey;
  build.appendEod = options.appendEod;
  build.format = options.format == "text"    ? tokenize::InputFormat::Text
                 : options.format == "jsonl" ? tokenize::InputFormat::Jsonl
                                             : tokenize::InputFormat::Auto;
  std::vector<std::string> inputs(options.paths.begin(), options.paths.end() - 1);
  Result<tokenize::BuildSummary> summary =
      tokenize::buildIndexed(inputs, options.paths.back(), build);
  if (!summary.isOk()) {
    llvm::errs() << "shardc: " << lineOf(summary.status().report()) << "\n";
    return exitStatusOf(summary.status());
  }
  printOut("{0}.bin, {0}.idx: {1} in {2} from {3} ({4})\n", options.paths.back(),
           formatCount(summary->tokens, "token"), formatCount(summary->documents, "document"),
           formatCount(summary->files, "file"),
           formatCount(summary->emptyDocuments, "empty document"));
  return kFine;
}

void addBuild(cli::Command &command, int &status) {

  auto options = std::make_shared<DataOptions>();
  cli::Command &build = command.addCommand("build", "convert text or JSON lines to OUT.bin and "
                                                    "OUT.idx");
  build.option("paths", options->paths, "IN... OUT").required();
  build.option("--tokenizer", options->tokenizer, "how text becomes tokens").oneOf({"bytes"});
  build.option("--format", options->format, "form of the inputs").oneOf({"auto", "text", "jsonl"});
  build.option("--json-key", options->jsonKey, "key of a JSON line's text");
  build.flag("!--no-append-eod", options->appendEod,
             "do not end documents with the document-end token");
  build.onUse([options, &status] { status = runBuild(*options); });
}

} // namespace

void addData(cli::Command &app, int &status) {
  cli::Command &command = app.addCommand("data", "make datasets");
  command.requireCommand();
  addBuild(command, status);
  addDataTokenize(command, status);
  addDataPacks(command, status);
  addDataReference(command, status);
}

} // namespace shardc::tools
