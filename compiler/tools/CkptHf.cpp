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

int runImport(const HfCommand &command) {
  std::vector<std::string> unused;
  auto import = [&](const checkpoint::SaveTarget &target, const checkpoint::ConvertRank &rank,
                    const checkpoint::ConvertProgress &progress) {
    checkpoint::HfImportOptions options;
    options.vocabDivisor = command.vocabDivisor;
    options.weightType =
        checkpoint::elementOfTorchName(command.weightType).value_or(options.weightType);
    options.acceptedFields = command.acceptedFields;
    if (rank.rank == 0)
      options.emit = reportCkpt;
    options.progress = progress;
    return importHf(command.in, target, options, rank, &unused);
  };
  return runOnRanks({command.in, command.out, "importing", command.threads,
                     [&] { return outputTarget(command.out, /*iteration=*/0); }, import,
                     [&] { remarkUnused(unused); }});
}

bool hasTokenizer(const std::string &folder) {
  std::error_code error;
  return std::filesystem::exists(folder + "/tokenizer.json", error) ||
         std::filesystem::exists(folder + "/tokenizer.model", error) ||
         std::filesystem::exists(folder + "/vocab.json", error);
}

/// Exports on one rank only, into a folder that is locked meanwhile.
Status exportModel(const HfCommand &command) {
  ASSIGN_OR_RETURN(std::string in, checkpoint::findCheckpoint(command.in));
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
  FolderLock lock;
  RETURN_IF_ERROR(lockOutput(command.out, lock));
  {
    ProgressBar bar("exporting");
    options.progress = bar.callback();
    options.observers = ckptObservers();
    RETURN_IF_ERROR(checkpoint::exportHf(in, command.config, command.out, options));
  }
  printOut("exported '{}' to '{}' ({}{})\n", plan::printable(in), plan::printable(command.out),
           type, hasTokenizer(command.out) ? "" : "; no tokenizer");
  return Status::ok();
}

Status reshardCheckpoint(const ReshardCommand &command) {
  ASSIGN_OR_RETURN(CkptEnds ends, findEnds(command.in, command.out));
  FolderLock lock;
  RETURN_IF_ERROR(lockTarget(ends.target, lock));
  {
    ProgressBar bar("resharding");
    checkpoint::ReshardOptions options;
    options.emit = reportCkpt;
    options.ranks = command.ranks;
    options.threads = std::min(command.threads, command.ranks);
    options.keptNames = command.keptNames;
    options.progress = bar.callback();
    RETURN_IF_ERROR(reshard(ends.in, ends.target, options));
  }
  reportMade(ends.in, ends.target);
  return Status::ok();
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
  writer.onUse(
      [exported, &status] { status = runOnFirst([&] { return exportModel(*exported); }); });
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
  app.onUse(
      [command, &status] { status = runOnFirst([&] { return reshardCheckpoint(*command); }); });
}

} // namespace shardc::tools
