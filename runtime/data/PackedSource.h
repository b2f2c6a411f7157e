// A source of samples from packs: each pack is a sample, and its rows are documents. The rest of
// the sequence is a further document, which does not count in the loss.
#pragma once

#include <memory>
#include <string>

#include "runtime/data/PackFiles.h"
#include "runtime/data/Sample.h"

namespace shardc::data {

class PackedSource : public DataSource {
public:
  /// Creates a source of the packs [firstPack, endPack). InvalidInput if the length of the packs is
  /// not `sequenceLength`, or their vocabulary is larger than `vocabSize`; rows that are not packed
  /// may be shorter. DataRefused if the packs have no pairs although the run needs them, or the
  /// other way round.
  static Result<std::unique_ptr<PackedSource>> create(std::shared_ptr<const PackFiles> files,
                                                      int64_t firstPack, int64_t endPack,
                                                      int64_t sequenceLength, int64_t vocabSize,
                                                      Pairs pairs = Pairs::None);

  const std::string &name() const override { return files_->prefix(); }
  int64_t numSamples() const override { return endPack_ - firstPack_; }
  int64_t sequenceLength() const override { return sequenceLength_; }
  /// For each pack, the sum of the squared document lengths, to which the time of attention is
  /// proportional.
  std::span<const int64_t> costs() const override { return costs_; }
  Status sample(int64_t index, Sample &out) const override;

private:
  PackedSource(std::shared_ptr<const PackFiles> files, int64_t firstPack, int64_t endPack,
               int64_t sequenceLength, int64_t vocabSize);
  Status fillRow(int64_t row, int64_t at, int64_t places, Sample &out) const;

  std::shared_ptr<const PackFiles> files_;
  int64_t firstPack_, endPack_, sequenceLength_, vocabSize_;
  std::vector<int64_t> costs_;
  std::vector<double> reference_; ///< by row; empty if there is no reference
};

} // namespace shardc::data
