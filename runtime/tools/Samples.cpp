#include "runtime/tools/Samples.h"

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "runtime/base/Reports.h"
#include "runtime/base/Utf8.h"
#include "runtime/data/ByteTokenizer.h"
#include "runtime/data/DataSets.h"
#include "runtime/generate/Generator.h"
#include "runtime/tokenize/TokenizerFiles.h"

namespace shardc::tools {
namespace {

/// The packs of the validation data, or the first of them.
Result<data::PackFiles> packsOf(const plan::Job::Dataset &dataset) {
  data::DataConfig config;
  RETURN_IF_ERROR(data::setBlends({/*isSynthetic=*/false, dataset.blend, dataset.dataPath,
                                   dataset.trainDataPath, dataset.validDataPath},
                                  config));
  const std::optional<data::Blend> &own =
      config.blendPerSplit[static_cast<size_t>(data::Split::Valid)];
  const std::optional<data::Blend> &blend = own ? own : config.blend;
  return data::PackFiles::open(blend && !blend->paths.empty() ? blend->paths.front() : "");
}

/// The text of bytes, of which some may be no characters.
std::string textOf(std::string_view bytes) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  std::string text;
  while (std::optional<size_t> wrong = findInvalidUtf8(bytes)) {
    text += bytes.substr(0, *wrong);
    text += kReplacement;
    bytes.remove_prefix(*wrong + 1);
  }
  return text += bytes;
}

} // namespace

Result<std::unique_ptr<Samples>> Samples::create(const plan::Plan &plan, const plan::Plan *forward,
                                                 const run::JobSource &source, bool isFirst) {
  const int64_t count = plan.job.validation.samples, tokens = plan.job.validation.sampleTokens;
  if (count == 0)
    return std::unique_ptr<Samples>();
  if (forward == nullptr)
    return makeStatus(report::PlanCannotRun,
                      "'validation.samples' is {}, and the plan has no forward body of one row; "
                      "compile the recipe again",
                      count);
  std::unique_ptr<Samples> samples(new Samples(*forward));
  samples->tokensMax_ = tokens;
  if (!isFirst)
    return samples;
  ASSIGN_OR_RETURN(samples->begun_, source.begunTexts(count, tokens));
  RETURN_IF_ERROR(samples->openTokenizer(plan));
  return samples;
}

/// Opens the tokenizer that made the packs, whose SHA-256 must be the one in their manifest. Data
/// of bytes need none.
Status Samples::openTokenizer(const plan::Plan &plan) {
  if (plan.job.dataset.kind != plan::Job::DatasetKind::Packed) {
    ends_ = {data::kByteEndToken};
    return Status::ok();
  }
  ASSIGN_OR_RETURN(data::PackFiles packs, packsOf(plan.job.dataset));
  const data::PackManifest &manifest = packs.manifest();
  if (manifest.tokenizer.empty())
    return makeStatus(report::DataRefused,
                      "the packs '{}' name no tokenizer, which 'validation.samples' needs",
                      packs.prefix());
  ASSIGN_OR_RETURN(tokenize::TokenizerFiles files, tokenize::findTokenizer(manifest.tokenizer));
  if (files.sha256 != manifest.tokenizerSha256)
    return makeStatus(
        report::DataRefused,
        "'{}' is another tokenizer than the one that made the packs '{}': its SHA-256 "
        "is {}, and needs to be {}",
        files.path, packs.prefix(), files.sha256, manifest.tokenizerSha256);
  ::signal(SIGPIPE, SIG_IGN); // a process that has ended is an error, not the end
  process_.emplace();
  RETURN_IF_ERROR(process_->startPrompts("python3", files.path, "", ""));
  Result<tokenize::RowFacts> facts = process_->meet();
  if (!facts.isOk())
    return Status(facts.status())
        .withMessage(fmt::format("{}; 'validation.samples' takes the first 'python3' of PATH",
                                 facts.status().message()));
  ends_ =
      tokenize::endsOfTexts(std::filesystem::path(files.path).parent_path().string(), facts->endId);
  return Status::ok();
}

Result<std::vector<std::string>> Samples::textsOf(std::span<const std::vector<int32_t>> lists) {
  if (process_)
    return process_->textsOf(lists);
  std::vector<std::string> texts;
  for (const std::vector<int32_t> &tokens : lists)
    texts.push_back(textOf(data::bytesOf(tokens)));
  return texts;
}

Result<std::vector<run::SaidText>> Samples::make(exec::Executable &executable, hal::Peers *peers,
                                                 const ReportSink &emit) {
  ASSIGN_OR_RETURN(save::WholeWeights weights, save::WholeWeights::gather(executable, peers));
  std::vector<run::SaidText> said;
  if (Status status = continueAll(weights, said); !status.isOk()) {
    emit(makeReport(report::SamplesLost, status.message()));
    begun_.clear();
  }
  return said;
}

/// Loads the weights once, then continues all texts. A model with learned positions limits the
/// length.
Status Samples::continueAll(save::WholeWeights &weights, std::vector<run::SaidText> &said) {
  if (begun_.empty())
    return Status::ok();
  ASSIGN_OR_RETURN(auto model, generate::Generator::onHost());
  RETURN_IF_ERROR(model->load(
      forward_, [&](const std::string &name, const plan::Type &type, int64_t first, int64_t count,
                    void *dst) { return weights.take(name, type, first, count, dst); }));
  const int64_t most = forward_.job.model.maxPositionEmbeddings;
  for (const run::BegunText &begun : begun_) {
    generate::Continuation how{
        .plans = std::span(&forward_, 1), .tokensMax = tokensMax_, .ends = ends_};
    if (most > 0)
      how.tokensMax = std::min(tokensMax_, most - std::ssize(begun.prompt));
    generate::BegunText text{begun.prompt};
    RETURN_IF_ERROR(generate::continueTexts(*model, std::span(&text, 1), how).status());
    ASSIGN_OR_RETURN(std::vector<std::string> texts,
                     textsOf(std::array{begun.prompt, text.made, begun.answer}));
    said.push_back({std::move(texts[0]), std::move(texts[1]), std::move(texts[2])});
  }
  return Status::ok();
}

} // namespace shardc::tools
