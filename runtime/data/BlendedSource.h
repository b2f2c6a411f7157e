// A source whose samples come from several sources, in the order of a BlendIndex.
#pragma once

#include <memory>
#include <vector>

#include "runtime/data/Blend.h"
#include "runtime/data/Sample.h"

namespace shardc::data {

class BlendedSource : public DataSource {
public:
  /// `sources`: one or more, of equal sequence length. InvalidInput if the index refers to more
  /// samples of a source than it has.
  static Result<std::unique_ptr<BlendedSource>>
  create(const std::string &name, std::vector<std::unique_ptr<DataSource>> sources,
         BlendIndex index);

  const BlendIndex &index() const { return index_; }

  const std::string &name() const override { return name_; }
  int64_t numSamples() const override { return static_cast<int64_t>(index_.dataset.size()); }
  int64_t sequenceLength() const override { return sources_.front()->sequenceLength(); }
  Status sample(int64_t index, Sample &out) const override;

private:
  BlendedSource(const std::string &name, std::vector<std::unique_ptr<DataSource>> sources,
                BlendIndex index)
      : name_(name), sources_(std::move(sources)), index_(std::move(index)) {}

  std::string name_;
  std::vector<std::unique_ptr<DataSource>> sources_;
  BlendIndex index_;
};

} // namespace shardc::data
