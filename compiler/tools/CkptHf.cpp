// shardc ckpt import hf, export hf, reshard: conversions between forms of the same weights.
#include <filesystem>

#include <fmt/format.h>

#include "compiler/tools/CkptTools.h"
#include "compiler/tools/ImportHf.h"
#include "compiler/tools/Session.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Output.h"
#include "runtime/base/Reports.h"
#include "runtime/checkpoint/HfConvert.h"
#include "runtime/checkpoint/Reading.h"
#include "runtime/plan/Text.h"

namespace shardc::tools {
namespace {

using checkpoint::FolderLock;

struct HfCommand {
  std::string in, out, config;
  std::string weightType, packing;
  std::vector<std::string> acceptedFields;
  int threads = 0;
  int64_t vocabDivisor = 128;
  int64_t shardMegabytes = 5 << 10;
};

struct ReshardCommand {
  std::string in, out;
  int ranks = 1, threads = defaultThreads();
  checkpoint::KeptNames keptNames = {};
};

constexpr const char *kPackings[] = {"nf4", "nf4_double"};

std::vector<std::string> weightTypes() { return {"float32", "bfloat16", "float16"}; }

void remarkUnused(const std::vector<std::string> &names) {
  if (!names.empty())
    reportCkpt(makeReport(report::TensorsLeftOut, names.size(), checkpoint::listed(names)));
}

/// Imports with all ranks of a launcher, or alone. A failure of one rank ends the work of all.
int runImport(const HfCommand &command) {
  Result<JobRanks> ranks = JobRanks::fromEnvironment();
  if (!ranks.isOk())
    return finishCkpt(ranks.status());
  StopOnSignal stop;
  if (Status status = ranks->join(command.out); !status.isOk())
    return StopOnSignal::finish(status);
  Result<checkpoint::SaveTarget> target = outputTarget(command.out, /*iteration=*/0);
  Status status = ranks->begin(target);
  if (!status.isOk()) {
    ranks->leave(Status::ok()); // all ranks know the failure
    return ranks->finish(status);
  }
  std::vector<std::string> unused;
  {
    ProgressBar bar("importing", ranks->isFirst());
    checkpoint::HfImportOptions options;
    options.vocabDivisor = command.vocabDivisor;
    options.weightType =
        checkpoint::elementOfTorchName(command.weightType).value_or(options.weightType);
    options.acceptedFields = command.acceptedFields;
    if (ranks->isFirst())
      options.emit = reportCkpt;
    options.progress = bar.callback();
    status = importHf(command.in, *target, options,
                      ranks->convertRank(ranks->threadsOr(command.threads)), &unused);
  }
  ranks->leave(status);
  if (ranks->isFirst())
    remarkUnused(unused);
  if (status.isOk() && ranks->isFirst())
    reportMade(command.in, *target);
  return ranks->finish(status);
}

bool hasTokenizer(const std::string &folder) {
  std::error_code error;
  return std::filesystem::exists(folder + "/tokenizer.json", error) ||
         std::filesystem::exists(folder + "/tokenizer.model", error) ||
         std::filesystem::exists(folder + "/vocab.json", error);
}

/// Exports on one rank only, into a folder that is locked meanwhile.
int runExport(const HfCommand &command) {
  if (std::optional<int> done = leftToFirst())
    return *done;
  Result<std::string> in = checkpoint::findCheckpoint(command.in);
  if (!in.isOk())
    return finishCkpt(in.status());
  checkpoint::HfExportOptions options;
  options.emit = reportCkpt;
  options.weightType = checkpoint::elementOfTorchName(command.weightType);
  std::string type;
  options.reportType = [&](checkpoint::Element chosen) { type = torchName(chosen); };
  options.acceptedFields = command.acceptedFields;
  using Packing = checkpoint::HfExportOptions;
  options.packing = command.packing == kPackings[0]   ? Packing::Nf4
                    : command.packing == kPackings[1] ? Packing::Nf4Nested
                                                      : Packing::Plain;
  options.shardBytes = static_cast<uint64_t>(command.shardMegabytes) << 20;
  StopOnSignal stop;
  FolderLock lock;
  Status status = lockOutput(command.out, lock);
  if (status.isOk()) {
    ProgressBar bar("exporting");
    options.progress = bar.callback();
    options.observers = ckptObservers();
    status = checkpoint::exportHf(*in, command.config, command.out, options);
  }
  if (status.isOk())
    printOut("exported '{}' to '{}' ({}{})\n", plan::printable(*in), plan::printable(command.out),
             type, hasTokenizer(command.out) ? "" : "; no tokenizer");
  return StopOnSignal::finish(status);
}

int runReshard(const ReshardCommand &command) {
  if (std::optional<int> done = leftToFirst())
    return *done;
  Result<CkptEnds> ends = findEnds(command.in, command.out);
  if (!ends.isOk())
    return finishCkpt(ends.status());
  const auto &[in, target] = *ends;
  StopOnSignal stop;
  FolderLock lock;
  Status status = lockTarget(target, lock);
  if (status.isOk()) {
    ProgressBar bar("resharding");
    checkpoint::ReshardOptions options;
    options.emit = reportCkpt;
    options.ranks = command.ranks;
    options.threads = std::min(command.threads, command.ranks);
    options.keptNames = command.keptNames;
    options.progress = bar.callback();
    status = reshard(in, target, options);
  }
  if (status.isOk())
    reportMade(in, target);
  return StopOnSignal::finish(status);
}

cli::Command &addHf(cli::Command &outer, HfCommand &command) {
  outer.requireCommand();
  cli::Command &app = outer.addCommand("hf", "a Hugging Face model: config.json and safetensors");
  app.option("in", command.in, "input").required();
  app.option("out", command.out, "output").required();
  return app;
}

} // namespace

void addCkptHf(cli::Command &ckpt, int &status) {
  auto import = std::make_shared<HfCommand>();
  cli::Command &importer =
      ckpt.addCommand("import", "convert a model of another project into a checkpoint");
  cli::Command &reader = addHf(importer, *import);
  reader.option("--weight-dtype", import->weightType, "type of the master weights")
      .oneOf(weightTypes())
      .showsDefault("float32");
  reader
      .option("--vocab-divisor", import->vocabDivisor,
              "rows of embeddings are padded to a multiple of this")
      .positive()
      .showsDefault();
  addAcceptedFields(reader, import->acceptedFields);
  addThreads(reader, import->threads);
  reader.onUse([import, &status] { status = runImport(*import); });
  addPeftImport(importer, status);

  auto exported = std::make_shared<HfCommand>();
  cli::Command &exporter =
      ckpt.addCommand("export", "convert a checkpoint into a model of another project");
  cli::Command &writer = addHf(exporter, *exported);
  writer.option("--config", exported->config,
                "folder of the model's config.json and tokenizer, which are copied; default: "
                "the files kept by an import, otherwise generated from the run's options");
  writer
      .option(
          "--weight-dtype", exported->weightType,
          "type of the weights; default: the type in config.json, or else the type that the run "
          "computed with")
      .oneOf(weightTypes());
  writer
      .option(
          "--pack", exported->packing,
          "keep weights of linear layers in 4 bits, as bitsandbytes does: nf4, or nf4_double with "
          "scales in 8 bits")
      .oneOf({kPackings[0], kPackings[1]});
  addAcceptedFields(writer, exported->acceptedFields);
  writer.option("--shard-size", exported->shardMegabytes, "size of a safetensors file in MiB")
      .positive()
      .showsDefault();
  writer.onUse([exported, &status] { status = runExport(*exported); });
  addPeftExport(exporter, status);
}

void addCkptReshard(cli::Command &ckpt, int &status) {
  auto command = std::make_shared<ReshardCommand>();
  cli::Command &app =
      ckpt.addCommand("reshard", "write a checkpoint as another number of ranks would save it");
  app.option("in", command->in, "a checkpoint, or a folder of checkpoints").required();
  app.option("out", command->out, "output: a folder of checkpoints, or a folder iter_*").required();
  app.option("--ranks", command->ranks, "data files, one per rank")
      .between(1, 65'536, "1..65536")
      .showsDefault();
  app.option("--threads", command->threads, "threads that write").threadCount().showsDefault();
  addKeptNames(app, command->keptNames);
  app.onUse([command, &status] { status = runReshard(*command); });
}

} // namespace shardc::tools
