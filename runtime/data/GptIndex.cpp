#include "runtime/data/GptIndex.h"

#include <algorithm>
#include <limits>
#include <new>
#include <numeric>

#include "runtime/base/Reports.h"
#include "runtime/data/NumpyRandom.h"

namespace shardc::data {
namespace {

/// If less than this share of the last epoch is used, it is shuffled separately.
constexpr double kFinalEpochThreshold = 0.80;

struct Epochs {
  int64_t count = 1;
  int64_t samplesBeforeFinal = 0; ///< samples for which the epochs before the last one suffice
  bool separateFinal = false;
};

/// Decides how many epochs provide enough tokens, and whether the last one is shuffled separately.
/// It is if less than 80 % of its samples are used: a joint shuffle would then spread a partial
/// epoch over all samples.
Result<Epochs> planEpochs(const GptIndexSpec &spec, int64_t tokensPerEpoch) {
  Epochs epochs;
  if (!spec.numSamples)
    return epochs;
  int64_t tokensNeeded = 0;
  if (__builtin_mul_overflow(*spec.numSamples, spec.sequenceLength, &tokensNeeded) ||
      tokensNeeded > std::numeric_limits<int64_t>::max() - tokensPerEpoch)
    return makeStatus(StatusCode::Exhausted, "{} samples of {} tokens are more than can be counted",
                      *spec.numSamples, spec.sequenceLength);
  tokensNeeded += 1; // the last sample needs the token that follows it
  epochs.count = std::max<int64_t>(1, (tokensNeeded + tokensPerEpoch - 1) / tokensPerEpoch);
  if (epochs.count == 1)
    return epochs;
  epochs.samplesBeforeFinal = ((epochs.count - 1) * tokensPerEpoch - 1) / spec.sequenceLength;
  int64_t samplesPerEpoch = (tokensPerEpoch - 1) / spec.sequenceLength;
  int64_t samplesFromFinal = *spec.numSamples - epochs.samplesBeforeFinal;
  epochs.separateFinal =
      samplesFromFinal <
      static_cast<int64_t>(kFinalEpochThreshold * static_cast<double>(samplesPerEpoch));
  return epochs;
}

/// Appends the sequences of the spec `epochs` times, and shuffles the appended part.
void appendShuffled(std::vector<int32_t> &documents, const GptIndexSpec &spec, int64_t epochs,
                    NumpyRandom &random) {
  size_t begin = documents.size();
  for (int64_t epoch = 0; epoch < epochs; ++epoch)
    for (int64_t sequence = spec.firstSequence; sequence < spec.endSequence; ++sequence)
      documents.push_back(static_cast<int32_t>(sequence));
  random.shuffle(std::span(documents).subspan(begin));
}

/// Fails if the index would exceed the limit or the range of its types.
Status checkSize(const GptIndexSpec &spec, int64_t epochs, int64_t samples) {
  int64_t sequences = spec.endSequence - spec.firstSequence;
  constexpr int64_t kEntriesMax = std::numeric_limits<uint32_t>::max() - 1;
  int64_t documents = 0;
  bool fits = !__builtin_mul_overflow(sequences, epochs, &documents) && documents <= kEntriesMax &&
              samples < kEntriesMax;
  if (fits && documents * 4 + samples * 12 <= spec.bytesMax)
    return Status::ok();
  return makeStatus(
      StatusCode::Exhausted,
      "the order of {} samples from {} epochs of {} sequences needs more than the limit "
      "of {} bytes",
      samples, epochs, sequences, spec.bytesMax);
}

} // namespace

/// Cuts the concatenated documents into samples. Each begins at the last token of the previous one.
void GptIndex::cutSamples(std::span<const int32_t> lengths, int64_t sequenceLength,
                          int64_t numSamples) {
  positions_.reserve(static_cast<size_t>(numSamples) + 1);
  TokenPosition at{0, 0};
  positions_.push_back(at);
  for (int64_t cut = 0; cut < numSamples; ++cut) {
    int64_t needed = sequenceLength + 1;
    while (true) {
      int32_t length = lengths[static_cast<size_t>(documents_[at.document])];
      int64_t available = length - at.offset;
      if (available >= needed) {
        at.offset += static_cast<int32_t>(needed - 1);
        break;
      }
      if (at.document + 1 == documents_.size()) { // happens only for a partial sample
        at.offset = length - 1;
        break;
      }
      needed -= available;
      at = {at.document + 1, 0};
    }
    positions_.push_back(at);
  }
}

/// Uses one random generator for documents first and samples then, in this order, as Megatron-Core
/// does. Another order of calls gives other samples.
Status GptIndex::build(std::span<const int32_t> lengths, const GptIndexSpec &spec,
                       int64_t tokensPerEpoch) {
  ASSIGN_OR_RETURN(Epochs epochs, planEpochs(spec, tokensPerEpoch));
  numEpochs_ = epochs.count;
  separateFinalEpoch_ = epochs.separateFinal;
  int64_t tokens = epochs.count * tokensPerEpoch - 1;
  int64_t samples = tokens / spec.sequenceLength;
  if (!spec.dropLastPartial && tokens % spec.sequenceLength != 0)
    ++samples;
  RETURN_IF_ERROR(checkSize(spec, epochs.count, samples));

  NumpyRandom random(spec.seed);
  documents_.reserve(static_cast<size_t>((spec.endSequence - spec.firstSequence) * epochs.count));
  appendShuffled(documents_, spec, epochs.count - (epochs.separateFinal ? 1 : 0), random);
  if (epochs.separateFinal)
    appendShuffled(documents_, spec, 1, random);
  cutSamples(lengths, spec.sequenceLength, samples);

  shuffle_.resize(static_cast<size_t>(samples));
  std::iota(shuffle_.begin(), shuffle_.end(), uint32_t{0});
  size_t first = static_cast<size_t>(epochs.separateFinal ? epochs.samplesBeforeFinal : samples);
  random.shuffle(std::span(shuffle_).first(first));
  random.shuffle(std::span(shuffle_).subspan(first));
  return Status::ok();
}

/// Checks the arguments and counts the tokens of one epoch. Out of memory is a status, since the
/// sizes come from the user's settings.
Result<GptIndex> GptIndex::build(std::span<const int32_t> lengths, const GptIndexSpec &spec,
                                 const std::string &name) {
  SHARDC_CHECK(spec.firstSequence >= 0 && spec.firstSequence <= spec.endSequence &&
                   spec.endSequence <= static_cast<int64_t>(lengths.size()),
               "sequences {} to {} of {}", spec.firstSequence, spec.endSequence, lengths.size());
  if (spec.sequenceLength < 1 || spec.sequenceLength >= std::numeric_limits<int32_t>::max())
    return makeStatus(report::DataRefused, "a sequence length of {} is not between 1 and {}",
                      spec.sequenceLength, std::numeric_limits<int32_t>::max() - 1);
  int64_t tokensPerEpoch = 0;
  for (int64_t i = spec.firstSequence; i < spec.endSequence; ++i)
    tokensPerEpoch += lengths[static_cast<size_t>(i)];
  if (tokensPerEpoch == 0)
    return makeStatus(report::DataRefused, "the {} sequences of '{}' contain no tokens",
                      spec.endSequence - spec.firstSequence, name);
  try {
    GptIndex index;
    RETURN_IF_ERROR(
        index.build(lengths, spec, tokensPerEpoch).withContext(fmt::format("'{}'", name)));
    return index;
  } catch (const std::bad_alloc &) {
    return makeStatus(StatusCode::Exhausted, "not enough memory for the order of samples of '{}'",
                      name);
  }
}

} // namespace shardc::data
