// shardc data build, tokenize: convert text or JSON lines to Megatron's indexed format, byte by
// byte or with external tokenizers.
#include <chrono>
#include <csignal>
#include <fmt/format.h>
#include <unistd.h>

#include "compiler/basic/Numbers.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/Session.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Output.h"
#include "runtime/base/Report.h"
#include "runtime/tokenize/BuildIndexed.h"
#include "runtime/tokenize/Tokenize.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

using Clock = std::chrono::steady_clock;

struct TokenizeCommand {
  std::vector<std::string> inputs;
  std::string prefix;
  tokenize::TokenizeOptions options;
};

/// Prints progress on standard error: on a terminal a line that is overwritten, elsewhere one line
/// every ten seconds.
class ProgressLines {
public:
  void show(const tokenize::Progress &progress) {
    Clock::time_point now = Clock::now();
    if (!isBegun_) {
      isBegun_ = true;
      bytesBegun_ = progress.bytesRead; // bytes that an earlier run has read take no time
      begun_ = shown_ = now;
    }
    std::chrono::duration<double> since = now - shown_;
    if (since.count() < (isTerminal_ ? 0.5 : 10.0) && !progress.isMerging)
      return;
    shown_ = now;
    llvm::errs() << (isTerminal_ ? "\r\x1b[K" : "") << lineOf(progress)
                 << (isTerminal_ ? "" : "\n");
    isOpen_ = isTerminal_;
  }
  /// Ends the line that is overwritten.
  void end() {
    if (isOpen_)
      llvm::errs() << "\n";
    isOpen_ = false;
  }

private:
  std::string lineOf(const tokenize::Progress &progress) const {
    if (progress.isMerging)
      return fmt::format("shardc: all inputs are read; writing {:.1f}M tokens",
                         static_cast<double>(progress.counts.tokens) / 1e6);
    double seconds = std::chrono::duration<double>(shown_ - begun_).count();
    double read = static_cast<double>(progress.bytesRead);
    double total = static_cast<double>(progress.bytesTotal);
    double rate = seconds > 0 ? (read - static_cast<double>(bytesBegun_)) / seconds : 0;
    std::string left =
        rate > 0 ? fmt::format(", {:.0f} s left", std::max(0.0, total - read) / rate) : "";
    return fmt::format("shardc: {:.1f} of {:.1f} MB, {:.1f}M tokens, {:.2f} MB/s{}", read / 1e6,
                       total / 1e6, static_cast<double>(progress.counts.tokens) / 1e6, rate / 1e6,
                       left);
  }

  const bool isTerminal_ = ::isatty(STDERR_FILENO) == 1;
  bool isBegun_ = false, isOpen_ = false;
  Clock::time_point begun_, shown_;
  uint64_t bytesBegun_ = 0;
};

int runTokenize(const TokenizeCommand &command) {
  ::signal(SIGPIPE, SIG_IGN); // if the tokenizer has ended, writing to it is an error, not the end
  ProgressLines lines;
  Result<tokenize::TokenizeSummary> summary =
      tokenize::tokenize(command.inputs, command.prefix, command.options,
                         [&](const tokenize::Progress &progress) { lines.show(progress); });
  lines.end();
  if (!summary.isOk()) {
    llvm::errs() << "shardc: " << lineOf(summary.status().report()) << "\n";
    return exitStatusOf(summary.status());
  }
  if (summary->resumedTokens > 0)
    printOut("continued after {} tokens of an earlier run\n", summary->resumedTokens);
  printOut(
      "{0}.bin, {0}.idx, {0}.json: {1} in {2} from {3} ({4}); the vocabulary has {5}, and {6}\n",
      command.prefix, formatCount(summary->counts.tokens, "token"),
      formatCount(summary->counts.documents, "document"), formatCount(summary->files, "file"),
      formatCount(summary->counts.emptyDocuments, "empty document"),
      formatCount(summary->vocabSize, "token"),
      summary->endToken.empty() ? "documents have no end token"
                                : fmt::format("documents end with '{}'", summary->endToken));
  return kFine;
}

void addTokenize(cli::Command &data, int &status) {
  auto options = std::make_shared<TokenizeCommand>();
  cli::Command &command = data.addCommand(
      "tokenize", "convert JSON lines to OUT.bin and OUT.idx with the tokenizer of a model");
  command.option("inputs", options->inputs, "files of JSON lines, also packed (.gz, .zst)")
      .required();
  command
      .option("--tokenizer", options->options.tokenizer,
              "folder of a tokenizer, tokenizer.json or tokenizer.model")
      .required();
  command.option("-o,--output", options->prefix, "prefix of the output").required();
  command.option("--json-key", options->options.jsonKey, "key of a JSON line's text");
  cli::Option end = command.option("--eod", options->options.endToken,
                                   "token that ends documents; default: the tokenizer's eos_token");
  cli::Option bare = command.flag("!--no-append-eod", options->options.appendEod,
                                  "do not end documents with a token");
  end.excludes(bare);
  command.option("--threads", options->options.threads, "threads that encode; default: all cores")
      .threadCount();
  command.option("--python", options->options.python,
                 "Python with the package 'tokenizers', for a tokenizer.json");
  command
      .option("--shard-tokens", options->options.shardTokens,
              "tokens after which a part is complete, from which a run can continue")
      .positive();
  command.onUse([options, &status] { status = runTokenize(*options); });
}

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
  addTokenize(command, status);
  addDataPacks(command, status);
  addDataReference(command, status);
}

} // namespace shardc::tools
