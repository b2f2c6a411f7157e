// A source whose samples come from a token store in the order of a GptIndex.
#pragma once

#include <memory>

#include "runtime/data/GptIndex.h"
#include "runtime/data/Sample.h"
#include "runtime/data/TokenStore.h"

namespace shardc::data {

class GptSource : public DataSource {
public:
  /// Builds the index of `spec` over `store`. A token outside [0, vocabSize) is an error when it is
  /// read; vocabSize 0: every token is valid.
  static Result<std::unique_ptr<GptSource>> create(std::shared_ptr<const TokenStore> store,
                                                   const GptIndexSpec &spec,
                                                   const DocumentOptions &options,
                                                   int64_t vocabSize);

  const GptIndex &index() const { return index_; }

  const std::string &name() const override { return store_->name(); }
  int64_t numSamples() const override { return index_.numSamples(); }
  int64_t sequenceLength() const override { return sequenceLength_; }
  Status sample(int64_t index, Sample &out) const override;

private:
  GptSource(std::shared_ptr<const TokenStore> store, GptIndex index)
      : store_(std::move(store)), index_(std::move(index)) {}

  Result<int64_t> readText(int64_t cut, std::span<int32_t> tokens, int32_t &following) const;
  void fillDocuments(int64_t cut, Sample &out) const;
  Status readPart(int32_t sequence, int64_t offset, int64_t count, int64_t written,
                  std::span<int32_t> tokens, int32_t &following) const;
  Status badToken(int32_t token) const;

  std::shared_ptr<const TokenStore> store_;
  GptIndex index_;
  DocumentOptions options_;
  int64_t sequenceLength_ = 0;
  int64_t vocabSize_ = 0;
};

} // namespace shardc::data
