// A Megatron indexed dataset on disk: PREFIX.idx and PREFIX.bin, as preprocess_data.py writes them.
#pragma once

#include "runtime/data/DataFile.h"
#include "runtime/data/IndexFile.h"
#include "runtime/data/TokenStore.h"

namespace shardc::data {

class IndexedDataset : public TokenStore {
public:
  /// Opens and checks both files. `path` is their prefix or one of the files. Only the .bin file
  /// stays open.
  static Result<IndexedDataset> open(const std::string &path);

  /// Whether both files of the dataset exist.
  static bool exists(const std::string &path);

  /// Returns the prefix that a path refers to: the path without its suffix .bin or .idx, unless a
  /// dataset has the whole path as its prefix.
  static std::string prefixOf(const std::string &path);

  const IndexFile &index() const { return index_; }

  const std::string &name() const override { return prefix_; }
  std::span<const int32_t> sequenceLengths() const override { return index_.lengths(); }
  Status read(int64_t sequence, int64_t offset, std::span<int32_t> out) const override;

private:
  std::string prefix_;
  IndexFile index_;
  DataFile bin_;
};

} // namespace shardc::data
