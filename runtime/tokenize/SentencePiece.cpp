#include "runtime/tokenize/SentencePiece.h"

#include "runtime/base/Reports.h"

#if SHARDC_WITH_SENTENCEPIECE
#include <sentencepiece_processor.h>
#endif

namespace shardc::tokenize {

#if SHARDC_WITH_SENTENCEPIECE
namespace {

using Processor = sentencepiece::SentencePieceProcessor;

/// Encoding does not modify the processor, so threads share it.
class SentencePieceEncoder : public Encoder {
public:
  explicit SentencePieceEncoder(std::shared_ptr<const Processor> processor)
      : processor_(std::move(processor)) {}

  Status encode(std::span<const std::string> texts, Encoding &out) override {
    out.tokens.clear();
    out.lengths.clear();
    for (const std::string &text : texts) {
      sentencepiece::util::Status status = processor_->Encode(text, &ids_);
      if (!status.ok())
        return makeStatus(report::DataRefused, "SentencePiece cannot encode a text: {}",
                          status.ToString());
      out.tokens.insert(out.tokens.end(), ids_.begin(), ids_.end());
      out.lengths.push_back(static_cast<uint32_t>(ids_.size()));
    }
    return Status::ok();
  }

private:
  std::shared_ptr<const Processor> processor_;
  std::vector<int> ids_;
};

/// Takes the end token that the user named, else that of the settings beside the model, else the
/// model's own. No id is set if the model does not have this token.
Status findEnd(const Processor &processor, const TokenizerFiles &files, const std::string &named,
               TokenizerFacts &facts) {
  facts.endToken = named.empty() ? files.endToken : named;
  if (facts.endToken.empty() && processor.eos_id() < 0)
    return Status::ok();
  int id = facts.endToken.empty() ? processor.eos_id() : processor.PieceToId(facts.endToken);
  if (facts.endToken.empty())
    facts.endToken = processor.IdToPiece(id);
  if (id >= 0 && id < processor.GetPieceSize() && processor.IdToPiece(id) == facts.endToken)
    facts.endId = id;
  return Status::ok();
}

} // namespace

/// Loads the model once for all `count` encoders. Tokens that a tokenizer_config.json adds are not
/// in the model, so the model alone would encode them wrongly; that is refused.
Result<Encoders> openSentencePiece(const TokenizerFiles &files, const std::string &endToken,
                                   int64_t count) {
  ASSIGN_OR_RETURN(std::string model, readWhole(files.path));
  auto processor = std::make_shared<Processor>();
  sentencepiece::util::Status loaded = processor->LoadFromSerializedProto(model);
  if (!loaded.ok())
    return makeStatus(report::DataRefused, "'{}' is not a model of SentencePiece: {}", files.path,
                      loaded.ToString());
  Encoders encoders;
  encoders.facts.library = "sentencepiece " SHARDC_SENTENCEPIECE_VERSION;
  encoders.facts.vocabSize = processor->GetPieceSize();
  if (files.addedIdMax >= encoders.facts.vocabSize)
    return makeStatus(report::DataRefused,
                      "the tokenizer_config.json beside '{}' adds tokens up to id {}, but the "
                      "model has {} tokens; a tokenizer.json of the same tokenizer has them all",
                      files.path, files.addedIdMax, encoders.facts.vocabSize);
  RETURN_IF_ERROR(findEnd(*processor, files, endToken, encoders.facts));
  for (int64_t i = 0; i < count; ++i)
    encoders.each.push_back(std::make_unique<SentencePieceEncoder>(processor));
  return encoders;
}

#else

Result<Encoders> openSentencePiece(const TokenizerFiles &files, const std::string &, int64_t) {
  return makeStatus(StatusCode::Unavailable,
                    "'{}' is a model of SentencePiece, without which this program was built; "
                    "build it where libsentencepiece-dev is installed, or use a tokenizer.json",
                    files.path);
}

#endif

} // namespace shardc::tokenize
