// Samples from packs: each pack is a sample, and its rows are documents.
#include "runtime/data/Sources.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "runtime/base/Reports.h"
#include "runtime/data/PackReference.h"

namespace shardc::data {
namespace {

/// Begins a document of `places` positions at position `at` of the sample. Its position ids begin
/// at 0.
void beginDocument(Sample &out, int64_t at, int64_t places) {
  if (!out.documentStarts.empty())
    out.documentStarts[static_cast<size_t>(out.numDocuments)] = static_cast<int32_t>(at);
  ++out.numDocuments;
  if (!out.positionIds.empty()) {
    auto positions = out.positionIds.subspan(static_cast<size_t>(at), static_cast<size_t>(places));
    std::iota(positions.begin(), positions.end(), 0);
  }
}

class PackedSource : public DataSource {
public:
  /// Computes the cost of each pack: the sum of squares of the lengths of its documents, including
  /// the padding, which is a document too. Attention takes time in this proportion.
  PackedSource(std::shared_ptr<const PackFiles> files, int64_t firstPack, int64_t endPack,
               int64_t sequenceLength, int64_t vocabSize, std::vector<double> reference)
      : files_(std::move(files)), firstPack_(firstPack), endPack_(endPack),
        sequenceLength_(sequenceLength), vocabSize_(vocabSize), reference_(std::move(reference)) {
    for (int64_t pack = firstPack; pack < endPack; ++pack) {
      int64_t cost = 0, rest = sequenceLength;
      for (int64_t row = files_->firstRow(pack); row < files_->firstRow(pack + 1); ++row) {
        int64_t places = files_->lengths()[static_cast<size_t>(row)] - 1;
        cost += places * places;
        rest -= places;
      }
      costs_.push_back(cost + rest * rest);
    }
  }

  const std::string &name() const override { return files_->prefix(); }
  int64_t numSamples() const override { return endPack_ - firstPack_; }
  int64_t sequenceLength() const override { return sequenceLength_; }
  /// For each pack, the sum of the squared document lengths, to which the time of attention is
  /// proportional.
  std::span<const int64_t> costs() const override { return costs_; }

  /// For pairs, `reference` has the log-probability of a row at its first position, and zeros
  /// elsewhere. Without a reference model it has ones.
  Status sample(int64_t index, Sample &out) const override {
    if (index < 0 || index >= numSamples())
      return makeStatus(report::DataRefused, "'{}' has {} packs; pack {} does not exist", name(),
                        numSamples(), index);
    SHARDC_CHECK(static_cast<int64_t>(out.tokens.size()) == sequenceLength_,
                 "a sample of {} tokens for sequences of {}", out.tokens.size(), sequenceLength_);
    const int64_t pack = firstPack_ + index;
    int64_t at = 0;
    out.numDocuments = 0;
    for (int64_t row = files_->firstRow(pack); row < files_->firstRow(pack + 1); ++row) {
      int64_t places = files_->lengths()[static_cast<size_t>(row)] - 1;
      beginDocument(out, at, places);
      RETURN_IF_ERROR(fillRow(row, at, places, out));
      if (!out.reference.empty()) {
        auto begin = out.reference.begin() + at;
        std::fill_n(begin, places, reference_.empty() ? 1.0f : 0.0f);
        if (!reference_.empty())
          *begin = static_cast<float>(reference_[static_cast<size_t>(row)]);
      }
      at += places;
    }
    // The rest of the sample is padding, as a document of its own that does not count in the loss.
    auto end = static_cast<size_t>(at);
    std::ranges::fill(out.tokens.subspan(end), files_->manifest().padToken);
    std::ranges::fill(out.labels.subspan(end), files_->manifest().padToken);
    std::ranges::fill(out.lossMask.subspan(end), 0.0f);
    if (!out.reference.empty())
      std::ranges::fill(out.reference.subspan(end), 0.0f);
    if (at < sequenceLength_)
      beginDocument(out, at, sequenceLength_ - at);
    if (!out.documentStarts.empty())
      std::fill(out.documentStarts.begin() + out.numDocuments, out.documentStarts.end(),
                static_cast<int32_t>(sequenceLength_));
    return Status::ok();
  }

private:
  /// Writes one row to `places` positions from `at`. Labels are the tokens one position later; the
  /// mask belongs to the predicted token, so it is shifted too. Masks are read in parts, which fit
  /// a buffer on the stack.
  Status fillRow(int64_t row, int64_t at, int64_t places, Sample &out) const {
    auto begin = static_cast<size_t>(at), count = static_cast<size_t>(places);
    std::span<int32_t> tokens = out.tokens.subspan(begin, count);
    std::span<int32_t> labels = out.labels.subspan(begin, count);
    RETURN_IF_ERROR(files_->tokens().read(row, 0, tokens));
    RETURN_IF_ERROR(files_->tokens().read(row, 1, labels));
    for (auto list : {tokens.first(1), labels})
      for (int32_t token : list)
        if (token < 0 || (vocabSize_ > 0 && token >= vocabSize_)) [[unlikely]]
          return makeStatus(report::DataRefused,
                            "'{}' holds the token {}, outside of the vocabulary of {}", name(),
                            token, vocabSize_);
    std::array<int32_t, 1024> masks;
    for (size_t done = 0; done < count; done += masks.size()) {
      std::span<int32_t> part = std::span(masks).first(std::min(masks.size(), count - done));
      RETURN_IF_ERROR(files_->masks().read(row, static_cast<int64_t>(done) + 1, part));
      for (size_t i = 0; i < part.size(); ++i)
        out.lossMask[begin + done + i] = part[i] != 0 ? 1.0f : 0.0f;
    }
    return Status::ok();
  }

  std::shared_ptr<const PackFiles> files_;
  int64_t firstPack_, endPack_, sequenceLength_, vocabSize_;
  std::vector<double> reference_; ///< by row; empty if there is no reference
  std::vector<int64_t> costs_;
};

} // namespace

Result<std::unique_ptr<DataSource>> openPacks(std::shared_ptr<const PackFiles> files,
                                              int64_t firstPack, int64_t endPack,
                                              int64_t sequenceLength, int64_t vocabSize,
                                              Pairs pairs) {
  const PackManifest &manifest = files->manifest();
  if (manifest.isPairs && pairs == Pairs::None)
    return makeStatus(report::DataRefused,
                      "the packs '{}' have pairs of answers, and 'preference.loss' is not set",
                      files->prefix());
  if (!manifest.isPairs && pairs != Pairs::None)
    return makeStatus(report::DataRefused,
                      "the packs '{}' have no pairs of answers, which 'preference.loss' needs; "
                      "'shardc data preference' makes such packs",
                      files->prefix());
  if (vocabSize > 0 && manifest.vocabSize > vocabSize)
    return makeStatus(report::DataRefused,
                      "the packs '{}' were made for a vocabulary of {} tokens; 'model.vocab_size' "
                      "is {}",
                      files->prefix(), manifest.vocabSize, vocabSize);
  bool isLonger = manifest.length > sequenceLength;
  if (isLonger || (manifest.isPacked && manifest.length != sequenceLength))
    return makeStatus(
        report::DataRefused,
        "the packs '{0}' were made for sequences of {1} tokens; 'model.seq_length' is "
        "{2}; 'shardc data pack {0} -o PREFIX --length={2}{3}' packs their rows anew",
        files->prefix(), manifest.length, sequenceLength, isLonger ? " --overlong=drop" : "");
  std::vector<double> reference;
  if (pairs == Pairs::WithReference) {
    ASSIGN_OR_RETURN(PackReference read, readPackReference(*files));
    reference = std::move(read.logProbabilities);
  }
  return std::unique_ptr<DataSource>(new PackedSource(
      std::move(files), firstPack, endPack, sequenceLength, vocabSize, std::move(reference)));
}

} // namespace shardc::data
