// shardc data reference: computes the log-probabilities that a reference model assigns to the
// answers of packs of preference pairs.
#include <map>

#include <fmt/format.h>

#include "compiler/basic/Numbers.h"
#include "compiler/lower/Lower.h"
#include "compiler/tools/CkptTools.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/HostModel.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Output.h"
#include "runtime/base/Reports.h"
#include "runtime/checkpoint/WeightSources.h"
#include "runtime/data/PackReference.h"
#include "runtime/generate/Generator.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

struct ReferenceCommand {
  CommonOptions common;
  std::string packs, model, base;
};

class Reference {
public:
  Status load(const config::Config &config, const SourceManager &sources, const ModelPlace &place,
              const std::string &base, const data::PackManifest &packs) {
    plans_ = forwardPlans(config, sources, packs.length);
    const plan::Plan &one = plans_.front();
    if (one.job.model.vocabSize > 0 && packs.vocabSize > one.job.model.vocabSize)
      return makeStatus(report::DataRefused,
                        "the packs were made for a vocabulary of {} tokens; the model has {}",
                        packs.vocabSize, one.job.model.vocabSize);
    ASSIGN_OR_RETURN(std::vector<std::string> folders, weightFolders(place, base, one));
    ASSIGN_OR_RETURN(auto weights, checkpoint::WeightSources::open(folders, one, reportCkpt));
    ASSIGN_OR_RETURN(fingerprints_, weights->fingerprints());
    ASSIGN_OR_RETURN(model_, generate::Generator::onHost());
    return model_->load(
        one, [&](const std::string &name, const plan::Type &type, int64_t first, int64_t count,
                 void *dst) { return weights->read(name, type, first, count, dst); });
  }

  const std::map<std::string, std::string> &fingerprints() const { return fingerprints_; }

  /// The sum of the log-probabilities of the tokens that count.
  Result<double> of(const data::PackFiles &files, int64_t row) {
    std::vector<int32_t> tokens, masks;
    RETURN_IF_ERROR(files.readRow(row, tokens, masks));
    ASSIGN_OR_RETURN(auto each, model_->scoreAll(plans_, tokens));
    double sum = 0;
    for (size_t i = 0; i < each.size(); ++i)
      sum += masks[i + 1] != 0 ? each[i].logProbability : 0;
    return sum;
  }

private:
  std::vector<plan::Plan> plans_;
  std::map<std::string, std::string> fingerprints_;
  std::unique_ptr<generate::Generator> model_;
};

Status makeReference(const ReferenceCommand &command, const data::PackFiles &files,
                     const ModelPlace &place, const config::Config &config,
                     const SourceManager &sources) {
  Reference reference;
  RETURN_IF_ERROR(reference.load(config, sources, place, command.base, files.manifest()));
  data::PackReference found{command.model, reference.fingerprints(), {}};
  for (int64_t row = 0; row < files.manifest().rows; ++row) {
    ASSIGN_OR_RETURN(double sum, reference.of(files, row));
    found.logProbabilities.push_back(sum);
  }
  RETURN_IF_ERROR(data::writePackReference(files, found));
  printOut("{}.reference.json: the log-probabilities of {} by '{}'\n", files.prefix(),
           formatCount(files.manifest().rows, "answer"), command.model);
  return Status::ok();
}

int runReference(const ReferenceCommand &command) {
  Result<data::PackFiles> files = data::PackFiles::open(command.packs);
  if (Status status = files.isOk() ? files->verify() : files.status(); !status.isOk())
    return finishCkpt(status);
  if (!files->manifest().isPairs)
    return finishCkpt(makeStatus(report::DataRefused,
                                 "the packs '{}' have no pairs of answers; 'shardc data "
                                 "preference' makes such packs",
                                 files->prefix()));
  Result<ModelPlace> place = findModel(command.model);
  if (!place.isOk())
    return finishCkpt(place.status());
  Session session(command.common);
  Result<std::optional<config::Config>> config =
      configOf(*place, command.common.load.sets, session);
  if (!config.isOk())
    return finishCkpt(config.status());
  if (ExitStatus status = session.finish(); status != kFine || !*config)
    return status == kFine ? kInputErrors : status;
  if (std::vector<lower::Missing> missing = lower::findMissing(**config); !missing.empty())
    return finishCkpt(makeStatus(StatusCode::InvalidInput, "the model needs {}, which shardc lacks",
                                 missing.front().what));
  return finishCkpt(makeReference(command, *files, *place, **config, session.sources()));
}

} // namespace

void addDataReference(cli::Command &data, int &status) {
  auto options = std::make_shared<ReferenceCommand>();
  cli::Command &command = data.addCommand(
      "reference", "write what a reference model says of the answers of packs of pairs");
  options->common.remarks = "hidden";
  options->common.addMessageOptions(command);
  command.option("packs", options->packs, "prefix of packs of pairs").required();
  command
      .option(
          "--model", options->model,
          "the reference: a checkpoint, a folder of such, or the folder of a Hugging Face model")
      .required();
  command.option("--base", options->base,
                 "for adapters, the weights; default: those that their run was for");
  command.option("--set", options->common.load.sets, "path=value, over the model's recipe")
      .repeatableOneByOne();
  command.onUse([options, &status] { status = runReference(*options); });
}

} // namespace shardc::tools
