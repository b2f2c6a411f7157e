// Fills what follows from a sample's tokens: labels, loss mask, position ids and document starts.
#include "runtime/data/Sample.h"

#include <algorithm>

namespace shardc::data {
namespace {

void fillPositions(Sample &out, const DocumentOptions &options) {
  int32_t position = 0;
  for (size_t i = 0; i < out.positionIds.size(); ++i) {
    out.positionIds[i] = position++;
    if (options.resetPositionIds && out.tokens[i] == options.endToken)
      position = 0;
  }
}

void fillDocumentStarts(Sample &out, const DocumentOptions &options) {
  auto length = static_cast<int32_t>(out.tokens.size());
  std::fill(out.documentStarts.begin(), out.documentStarts.end(), length);
  out.documentStarts[0] = 0;
  out.numDocuments = 1;
  if (!options.resetAttentionMask)
    return;
  for (int32_t i = 0; i + 1 < length; ++i) // an end token in the last position begins no document
    if (out.tokens[static_cast<size_t>(i)] == options.endToken)
      out.documentStarts[static_cast<size_t>(out.numDocuments++)] = i + 1;
}

/// Excludes pad tokens from the loss, and replaces them by 0 so that every token is in the
/// vocabulary.
void maskPads(Sample &out, int32_t padToken) {
  for (size_t i = 0; i < out.tokens.size(); ++i) {
    if (out.labels[i] == padToken) {
      out.labels[i] = 0;
      out.lossMask[i] = 0.0f;
    }
    if (out.tokens[i] == padToken)
      out.tokens[i] = 0;
  }
}

} // namespace

/// Labels are the tokens one position later, with `following` as the last. Only the first
/// `numLabels` count in the loss. Pad tokens are replaced last, since the steps before compare
/// tokens with the end token, which may be the pad token.
void fillTargets(Sample &out, int32_t following, int64_t numLabels,
                 const DocumentOptions &options) {
  size_t length = out.tokens.size();
  std::copy(out.tokens.begin() + 1, out.tokens.end(), out.labels.begin());
  out.labels[length - 1] = following;
  for (size_t i = 0; i < length; ++i)
    out.lossMask[i] = options.eodMaskLoss && out.tokens[i] == options.endToken ? 0.0f : 1.0f;
  for (auto i = static_cast<size_t>(numLabels); i < length; ++i) {
    out.labels[i] = 0;
    out.lossMask[i] = 0.0f;
  }
  if (!out.positionIds.empty())
    fillPositions(out, options);
  if (!out.documentStarts.empty())
    fillDocumentStarts(out, options);
  if (options.padToken >= 0)
    maskPads(out, options.padToken);
}

} // namespace shardc::data
