// shardc data sft, preference, pack and show: creates rows for fine-tuning, and packs of rows.
#include <csignal>
#include <ctime>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "compiler/basic/Numbers.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/Session.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Output.h"
#include "runtime/base/Report.h"
#include "runtime/base/Reports.h"
#include "runtime/data/ByteTokenizer.h"
#include "runtime/data/IndexedDataset.h"
#include "runtime/plan/Text.h"
#include "runtime/tokenize/Sft.h"
#include "runtime/tokenize/TokenizerFiles.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

using data::PackFiles;
using tokenize::PackCounts;

int refuse(const Status &status) {
  llvm::errs() << "shardc: " << lineOf(status.report()) << "\n";
  return exitStatusOf(status);
}

std::optional<data::PackingKind> packingOf(const std::string &word) {
  return word == "balanced"    ? std::optional(data::PackingKind::Balanced)
         : word == "first_fit" ? std::optional(data::PackingKind::FirstFit)
         : word == "none"      ? std::optional(data::PackingKind::None)
                               : std::nullopt;
}

/// The current date in UTC, for templates that contain it.
std::string today() {
  std::time_t now = std::time(nullptr);
  std::tm date = {};
  ::gmtime_r(&now, &date);
  return fmt::format("{:04}-{:02}-{:02}", date.tm_year + 1900, date.tm_mon + 1, date.tm_mday);
}

void printCounts(const std::string &prefix, const PackCounts &counts, int64_t length) {
  auto share = [](int64_t part, int64_t whole) {
    return whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  };
  printOut("{0}.bin, {0}.mask.bin, {0}.json: {1} in {2} for 'model.seq_length = {3}'\n", prefix,
           formatCount(counts.rows, "row"), formatCount(counts.packs, "pack"), length);
  printOut(
      "{:.1f} % of the places have a token, and {:.1f} % of these count in the loss; up to {} a "
      "pack\n",
      share(counts.places, counts.packs * length), share(counts.supervised, counts.places),
      formatCount(counts.mostRows, "row"));
  if (counts.cut + counts.tooLong + counts.withoutLoss > 0)
    printOut("{} cut, {} left out as too long, {} without a token that counts\n",
             formatCount(counts.cut, "row"), counts.tooLong, counts.withoutLoss);
}

// --- sft ---

/// Keys that were ignored are on one line; the other notes on one each, up to a limit.
void printNotes(const std::vector<tokenize::SftNote> &notes) {
  constexpr size_t kNotesMax = 20;
  std::vector<std::string> ignored, told;
  for (const tokenize::SftNote &note : notes) {
    if (note.kind == "ignored")
      ignored.push_back(
          fmt::format("'{}' ({})", plan::printable(note.text), formatCount(note.count, "line")));
    else
      told.push_back(fmt::format(
          "{}: {} {}: {}", note.kind == "refused" ? "left out" : "note",
          formatCount(note.count, "line"),
          note.count == 1 ? "at " + note.place : "from " + note.place + " on", note.text));
  }
  if (!ignored.empty())
    printOut("keys that are ignored: {}\n", fmt::join(ignored, ", "));
  for (size_t i = 0; i < std::min(told.size(), kNotesMax); ++i)
    printOut("{}\n", plan::printable(told[i]));
  if (told.size() > kNotesMax)
    printOut("and {} more notes, which the manifest has\n", told.size() - kNotesMax);
}

struct SftCommand {
  std::vector<std::string> inputs;
  std::string prefix, pack = "balanced", separator;
  int64_t seed = 1234;
  tokenize::SftOptions options;
};

int runSft(SftCommand &command) {
  ::signal(SIGPIPE, SIG_IGN); // if the tokenizer has ended, writing to it is an error, not the end
  tokenize::SftOptions &options = command.options;
  options.packing = *packingOf(command.pack);
  options.seed = static_cast<uint32_t>(command.seed);
  if (options.rows.date.empty())
    options.rows.date = today();
  if (!command.separator.empty())
    options.rows.separator = command.separator == "none" ? "" : command.separator;
  const bool isTerminal = ::isatty(STDERR_FILENO) == 1;
  auto emit = [&](int64_t rows) {
    if (isTerminal)
      llvm::errs() << fmt::format("\r\x1b[Kshardc: {}", formatCount(rows, "row"));
  };
  Result<tokenize::SftSummary> summary =
      tokenize::makeSft(command.inputs, command.prefix, options, emit);
  if (isTerminal)
    llvm::errs() << "\r\x1b[K";
  if (!summary.isOk())
    return refuse(summary.status());
  printCounts(command.prefix, summary->counts, options.rows.length);
  printNotes(summary->notes);
  return kFine;
}

void addRowOptions(cli::Command &command, SftCommand &options) {
  tokenize::RowSettings &rows = options.options.rows;
  command.option("--mask", rows.mask, "what counts in the loss: answers, the last one, or all")
      .oneOf({"assistant", "last_turn", "full"});
  command.option("--overlong", rows.overlong, "rows that are longer than --length")
      .oneOf({"drop", "truncate", "error"});
  command.option("--cut", rows.cut, "side that truncation takes from prompts and completions")
      .oneOf({"left", "right"});
  command.option("--template", rows.templateFile,
                 "chat template; default: that of the tokenizer's folder");
  command.option("--date", rows.date, "YYYY-MM-DD that templates may state; default: today");
  command.option("--eos", rows.endToken,
                 "token that ends rows; default: the tokenizer's eos_token");
  command.option("--prompt-key", rows.promptKey, "key of prompts; default: prompt, or input");
  command.option("--completion-key", rows.completionKey,
                 "key of completions; default: completion, or output");
  command.option("--prompt-template", rows.promptTemplate,
                 "text of prompts, with keys in braces: 'Question: {question} Answer:'");
  command.option("--separator", options.separator,
                 "text between prompt and completion; 'none' for none");
  command.flag("--skip-refused", rows.skipsRefused,
               "leave out rows that are refused, and count them by reason");
  command.flag("--add-bos", rows.addBos, "begin prompts with the tokenizer's bos_token");
  command.flag("!--no-add-eos", rows.addEos, "do not end completions with the eos_token");
}

void addSft(cli::Command &data, int &status, bool isPairs) {
  auto options = std::make_shared<SftCommand>();
  options->options.rows.isPairs = isPairs;
  cli::Command &command =
      isPairs ? data.addCommand("preference", "make packs of pairs from JSON lines with a chosen "
                                              "and a rejected answer")
              : data.addCommand("sft", "make packs for fine-tuning from JSON lines with "
                                       "conversations, or with prompts and completions");
  command
      .option(
          "inputs", options->inputs,
          "files of JSON lines or of a JSON array, also packed (.gz, .zst), of CSV, or of Parquet")
      .required();
  command
      .option("--tokenizer", options->options.tokenizer, "folder of a tokenizer, or tokenizer.json")
      .required();
  command.option("-o,--output", options->prefix, "prefix of the output").required();
  command
      .option("--length", options->options.rows.length,
              "tokens of a pack: the model's sequence length")
      .positive()
      .required();
  command.option("--pack", options->pack, "how rows share packs")
      .oneOf({"balanced", "first_fit", "none"});
  addRowOptions(command, *options);
  command.option("--seed", options->seed, "seed of the order of packs");
  command
      .option("--processes", options->options.processes,
              "processes that encode; default: all cores")
      .positive();
  command.option("--python", options->options.python,
                 "Python with the packages 'tokenizers' and 'jinja2'");
  command.onUse([options, &status] { status = runSft(*options); });
}

// --- pack ---

struct PackCommand {
  std::vector<std::string> inputs;
  std::string prefix, pack = "keep", overlong = "error";
  int64_t seed = 1234;
  tokenize::RepackOptions options;
};

int runPack(PackCommand &command) {
  ::signal(SIGPIPE, SIG_IGN);
  command.options.packing = packingOf(command.pack);
  command.options.dropsTooLong = command.overlong == "drop";
  command.options.seed = static_cast<uint32_t>(command.seed);
  Result<PackCounts> counts = tokenize::repack(command.inputs, command.prefix, command.options);
  if (!counts.isOk())
    return refuse(counts.status());
  Result<PackFiles> files = PackFiles::open(command.prefix);
  if (!files.isOk())
    return refuse(files.status());
  printCounts(command.prefix, *counts, files->manifest().length);
  return kFine;
}

void addPack(cli::Command &data, int &status) {
  auto options = std::make_shared<PackCommand>();
  cli::Command &command =
      data.addCommand("pack", "pack the rows of packs anew, of one set or of several, or take over "
                              "Megatron-Bridge's (.parquet, .npy)");
  command.option("inputs", options->inputs, "prefixes of packs, or files of Megatron-Bridge's")
      .required();
  command.option("-o,--output", options->prefix, "prefix of the output").required();
  command
      .option("--length", options->options.length, "tokens of a pack; default: that of the inputs")
      .positive();
  command.option("--pack", options->pack, "how rows share packs")
      .oneOf({"keep", "balanced", "first_fit", "none"});
  command.option("--overlong", options->overlong, "rows that are longer than --length")
      .oneOf({"drop", "error"});
  command.option("--seed", options->seed, "seed of the order of packs");
  command.option("--python", options->options.python,
                 "Python with the package 'pyarrow' or 'numpy', for files of Megatron-Bridge's");
  command.onUse([options, &status] { status = runPack(*options); });
}

// --- show ---

struct ShowCommand {
  std::string path;
  std::vector<std::string> numbers;
  std::string tokenizer, python = "python3", color = "auto";
};

/// Consecutive tokens of a row that either all count in the loss, or do not count.
struct Run {
  int64_t row = 0;
  bool counts = false;
  std::vector<int32_t> tokens;
};

Result<std::vector<Run>> runsOf(const PackFiles &files, int64_t pack) {
  std::vector<Run> runs;
  for (int64_t row = files.firstRow(pack); row < files.firstRow(pack + 1); ++row) {
    std::vector<int32_t> tokens, masks;
    RETURN_IF_ERROR(files.readRow(row, tokens, masks));
    for (size_t i = 0; i < tokens.size(); ++i) {
      bool counts = i > 0 && masks[i] != 0; // no token predicts the first one
      if (i == 0 || runs.back().counts != counts)
        runs.push_back({row, counts, {}});
      runs.back().tokens.push_back(tokens[i]);
    }
  }
  return runs;
}

/// Bytes of the byte tokenizer as text; its end of a document as a line.
std::string textOfBytes(const std::vector<int32_t> &tokens) {
  std::string text;
  for (int32_t token : tokens)
    text += token >= 0 && token < data::kByteEndToken ? std::string(1, static_cast<char>(token))
                                                      : "\n--- end\n";
  return text;
}

/// The text of each list of tokens. Without a tokenizer, the numbers of its tokens.
Result<std::vector<std::string>> textsOf(const std::vector<std::vector<int32_t>> &lists,
                                         const ShowCommand &command,
                                         const data::PackManifest &manifest) {
  const std::string &path = command.tokenizer.empty() ? manifest.tokenizer : command.tokenizer;
  if (path.empty() || path == "none") {
    std::vector<std::string> texts;
    for (const std::vector<int32_t> &list : lists)
      texts.push_back(fmt::format("{} ", fmt::join(list, " ")));
    return texts;
  }
  if (path == "bytes") {
    std::vector<std::string> texts;
    for (const std::vector<int32_t> &list : lists)
      texts.push_back(textOfBytes(list));
    return texts;
  }
  ASSIGN_OR_RETURN(tokenize::TokenizerFiles files, tokenize::findTokenizer(path));
  if (!manifest.tokenizerSha256.empty() && files.sha256 != manifest.tokenizerSha256)
    return makeStatus(report::DataRefused,
                      "'{}' is not the tokenizer that the packs were made with; --tokenizer=none "
                      "shows the numbers of tokens",
                      files.path);
  tokenize::RowProcess process;
  RETURN_IF_ERROR(process.startText(command.python, files.path));
  RETURN_IF_ERROR(process.meet().status());
  return process.textsOf(lists);
}

void printPack(const PackFiles &files, int64_t pack, const std::vector<Run> &runs,
               const std::vector<std::string> &texts, bool isColored) {
  int64_t places = 0;
  for (int64_t row = files.firstRow(pack); row < files.firstRow(pack + 1); ++row)
    places += files.lengths()[static_cast<size_t>(row)] - 1;
  int64_t rows = files.firstRow(pack + 1) - files.firstRow(pack);
  llvm::outs() << fmt::format("--- pack {} of {}: {}, {} of {} places\n", pack, files.numPacks(),
                              formatCount(rows, "row"), places, files.manifest().length);
  int64_t row = -1;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].row != row) {
      row = runs[i].row;
      llvm::outs() << fmt::format("{}--- row {}, {} tokens\n", i == 0 ? "" : "\n", row,
                                  files.lengths()[static_cast<size_t>(row)]);
    }
    const char *open = isColored ? "\x1b[1;32m" : "[[", *close = isColored ? "\x1b[0m" : "]]";
    std::string text = plan::printableLines(texts[i]);
    llvm::outs() << (runs[i].counts ? open + text + close : text);
  }
  llvm::outs() << "\n";
}

/// Prints sequences of an indexed dataset, which are documents unless they were joined.
int showIndexed(const ShowCommand &command) {
  Result<data::IndexedDataset> dataset = data::IndexedDataset::open(command.path);
  if (!dataset.isOk())
    return refuse(dataset.status());
  std::span<const int32_t> lengths = dataset->sequenceLengths();
  for (llvm::StringRef number : command.numbers) {
    int64_t at = 0;
    if (number.getAsInteger(10, at) || at < 0 || at >= std::ssize(lengths))
      return refuse(makeStatus(report::DataRefused, "'{}' has {} sequences; {} does not exist",
                               dataset->name(), lengths.size(), number.str()));
    std::vector<int32_t> tokens(static_cast<size_t>(lengths[static_cast<size_t>(at)]));
    if (Status status = dataset->read(at, 0, tokens); !status.isOk())
      return refuse(status);
    Result<std::vector<std::string>> texts = textsOf({tokens}, command, {});
    if (!texts.isOk())
      return refuse(texts.status());
    llvm::outs() << fmt::format("--- sequence {} of {}: {}\n{}\n", at, lengths.size(),
                                formatCount(std::ssize(tokens), "token"),
                                plan::printableLines(texts->front()));
  }
  return kFine;
}

/// Shows packs, which have masks beside them, or other indexed files.
int runShow(ShowCommand &command) {
  ::signal(SIGPIPE, SIG_IGN);
  if (command.numbers.empty())
    command.numbers.emplace_back("0");
  if (data::IndexedDataset::exists(command.path) &&
      !data::IndexedDataset::exists(data::IndexedDataset::prefixOf(command.path) + ".mask"))
    return showIndexed(command);
  Result<PackFiles> files = PackFiles::open(command.path);
  if (Status status = files.isOk() ? files->verify() : files.status(); !status.isOk())
    return refuse(status);
  bool isColored =
      command.color == "always" || (command.color == "auto" && ::isatty(STDOUT_FILENO) == 1);
  for (llvm::StringRef number : command.numbers) {
    int64_t pack = 0;
    if (number.getAsInteger(10, pack) || pack < 0 || pack >= files->numPacks())
      return refuse(makeStatus(report::DataRefused, "'{}' has {} packs; pack {} does not exist",
                               files->prefix(), files->numPacks(), number.str()));
    Result<std::vector<Run>> runs = runsOf(*files, pack);
    if (!runs.isOk())
      return refuse(runs.status());
    std::vector<std::vector<int32_t>> lists;
    for (const Run &run : *runs)
      lists.push_back(run.tokens);
    Result<std::vector<std::string>> texts = textsOf(lists, command, files->manifest());
    if (!texts.isOk())
      return refuse(texts.status());
    printPack(*files, pack, *runs, *texts, isColored);
  }
  return kFine;
}

void addShow(cli::Command &data, int &status) {
  auto options = std::make_shared<ShowCommand>();
  cli::Command &command =
      data.addCommand("show", "print data as text: sequences of indexed files, or packs, with what "
                              "counts in the loss");
  command.option("packs", options->path, "prefix of packs, or of .bin and .idx").required();
  command.option("numbers", options->numbers,
                 "numbers of packs or sequences, from 0; default: the first one");
  command.option("--tokenizer", options->tokenizer,
                 "folder or tokenizer.json, 'bytes', or none; default: as the manifest says");
  command.option("--color", options->color, "colour what counts in the loss; else it is in [[ ]]")
      .oneOf({"auto", "always", "never"});
  command.option("--python", options->python, "Python with the package 'tokenizers'");
  command.onUse([options, &status] { status = runShow(*options); });
}

} // namespace

void addDataPacks(cli::Command &data, int &status) {
  addSft(data, status, /*isPairs=*/false);
  addSft(data, status, /*isPairs=*/true);
  addPack(data, status);
  addShow(data, status);
}

} // namespace shardc::tools
