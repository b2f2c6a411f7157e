// The sources of samples that are not cut from a dataset's documents.
#pragma once

#include <memory>

#include "runtime/data/Blend.h"
#include "runtime/data/PackFiles.h"
#include "runtime/data/Sample.h"

namespace shardc::data {

/// Draws tokens in [0, vocabSize) from a skewed distribution, so that a model has something to
/// learn (small tokens are frequent) and every machine draws the same tokens. The seed and the
/// split select the random stream. The source has no end.
Result<std::unique_ptr<DataSource>> openSynthetic(int64_t vocabSize, int64_t sequenceLength,
                                                  uint64_t seed, Split split);

/// The packs [firstPack, endPack): each is a sample, and its rows are documents. The rest of the
/// sequence is a further document, which does not count in the loss. InvalidInput if the length of
/// the packs is not `sequenceLength`, or their vocabulary is larger than `vocabSize`; rows that are
/// not packed may be shorter. DataRefused if the packs have no pairs although the run needs them,
/// or the other way round.
Result<std::unique_ptr<DataSource>> openPacks(std::shared_ptr<const PackFiles> files,
                                              int64_t firstPack, int64_t endPack,
                                              int64_t sequenceLength, int64_t vocabSize,
                                              Pairs pairs = Pairs::None);

} // namespace shardc::data
