#include "runtime/data/GptSource.h"

#include <algorithm>

#include "runtime/base/Reports.h"

namespace shardc::data {

/// The end token is needed only by options that depend on where documents end. `vocabSize` 0 means
/// that tokens are not checked.
Result<std::unique_ptr<GptSource>> GptSource::create(std::shared_ptr<const TokenStore> store,
                                                     const GptIndexSpec &spec,
                                                     const DocumentOptions &options,
                                                     int64_t vocabSize) {
  bool usesEnd = options.resetPositionIds || options.resetAttentionMask || options.eodMaskLoss;
  if (usesEnd && options.endToken < 0)
    return makeStatus(report::DataRefused,
                      "'{}': options for document ends are set, but no token ends documents",
                      store->name());
  if (vocabSize > 0 && options.endToken >= vocabSize)
    return makeStatus(report::DataRefused,
                      "'{}': the token {} that ends documents is outside of the vocabulary of {}",
                      store->name(), options.endToken, vocabSize);
  ASSIGN_OR_RETURN(GptIndex index, GptIndex::build(store->sequenceLengths(), spec, store->name()));
  std::unique_ptr<GptSource> source(new GptSource(std::move(store), std::move(index)));
  source->options_ = options;
  source->sequenceLength_ = spec.sequenceLength;
  source->vocabSize_ = vocabSize;
  return source;
}

/// Reads `count` tokens of a sequence to position `written` of the text, which consists of `tokens`
/// and the token `following` after them.
Status GptSource::readPart(int32_t sequence, int64_t offset, int64_t count, int64_t written,
                           std::span<int32_t> tokens, int32_t &following) const {
  int64_t inTokens = std::min(count, sequenceLength_ - written);
  if (inTokens > 0)
    RETURN_IF_ERROR(
        store_->read(sequence, offset,
                     tokens.subspan(static_cast<size_t>(written), static_cast<size_t>(inTokens))));
  if (count > inTokens)
    RETURN_IF_ERROR(store_->read(sequence, offset + inTokens, {&following, 1}));
  return Status::ok();
}

/// Reads the text of a cut and returns its length: sequenceLength + 1, or less if the cut is
/// partial.
Result<int64_t> GptSource::readText(int64_t cut, std::span<int32_t> tokens,
                                    int32_t &following) const {
  GptIndex::TokenPosition begin = index_.position(cut), end = index_.position(cut + 1);
  std::span<const int32_t> lengths = store_->sequenceLengths();
  int64_t written = 0;
  for (uint32_t document = begin.document; document <= end.document; ++document) {
    int32_t sequence = index_.sequence(document);
    int64_t from = document == begin.document ? begin.offset : 0;
    int64_t to =
        document == end.document ? int64_t{end.offset} + 1 : lengths[static_cast<size_t>(sequence)];
    if (to > from)
      RETURN_IF_ERROR(readPart(sequence, from, to - from, written, tokens, following));
    written += to - from;
  }
  return written;
}

/// Fills positions and document starts according to the documents of the store. Padding belongs to
/// the last document.
void GptSource::fillDocuments(int64_t cut, Sample &out) const {
  GptIndex::TokenPosition begin = index_.position(cut), end = index_.position(cut + 1);
  std::span<const int32_t> lengths = store_->sequenceLengths();
  auto length = static_cast<int32_t>(sequenceLength_);
  int64_t next = 0; // position where the next document begins
  int32_t count = 0, start = 0;
  for (uint32_t document = begin.document; document <= end.document && next < length; ++document) {
    int64_t from = document == begin.document ? begin.offset : 0;
    int64_t to = document == end.document ? int64_t{end.offset} + 1
                                          : lengths[static_cast<size_t>(index_.sequence(document))];
    if (to <= from)
      continue;
    start = static_cast<int32_t>(next);
    next += to - from;
    if (!out.documentStarts.empty())
      out.documentStarts[static_cast<size_t>(count++)] = start;
    for (auto i = static_cast<size_t>(start); i < out.positionIds.size(); ++i)
      out.positionIds[i] = static_cast<int32_t>(i) - start;
  }
  out.numDocuments = std::max(count, 1);
  if (!out.documentStarts.empty())
    std::fill(out.documentStarts.begin() + out.numDocuments, out.documentStarts.end(), length);
}

Status GptSource::badToken(int32_t token) const {
  return makeStatus(report::DataRefused, "'{}' holds the token {}, outside of the vocabulary of {}",
                    name(), token, vocabSize_);
}

/// A sample has sequenceLength tokens; the label of the last one is the token `following` them. A
/// partial sample is filled with tokens 0 that do not count in the loss.
Status GptSource::sample(int64_t index, Sample &out) const {
  if (index < 0 || index >= numSamples())
    return makeStatus(report::DataRefused, "'{}' has {} samples, there is no sample {}", name(),
                      numSamples(), index);
  SHARDC_CHECK(static_cast<int64_t>(out.tokens.size()) == sequenceLength_,
               "a sample of {} tokens for sequences of {}", out.tokens.size(), sequenceLength_);
  int32_t following = 0;
  ASSIGN_OR_RETURN(int64_t length, readText(index_.shuffled(index), out.tokens, following));
  auto numTokens = static_cast<size_t>(std::min(length, sequenceLength_));
  if (vocabSize_ > 0) {
    for (int32_t token : out.tokens.first(numTokens))
      if (token < 0 || token >= vocabSize_) [[unlikely]]
        return badToken(token);
    if (following < 0 || following >= vocabSize_)
      return badToken(following);
  }
  // The missing tokens of a partial sample must not count as document ends.
  std::span<int32_t> missing = out.tokens.subspan(numTokens);
  std::fill(missing.begin(), missing.end(), -1);
  fillTargets(out, following, std::min(length - 1, sequenceLength_), options_);
  if (options_.byDocument)
    fillDocuments(index_.shuffled(index), out);
  std::fill(missing.begin(), missing.end(), 0);
  return Status::ok();
}

} // namespace shardc::data
