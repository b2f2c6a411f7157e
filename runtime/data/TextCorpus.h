// A token store of the bytes of text files, without building a dataset first. Each file is cut into
// documents, each of which ends with kByteEndToken, so that a small corpus has enough documents to
// split and shuffle.
#pragma once

#include <string>
#include <vector>

#include "runtime/data/TokenStore.h"

namespace shardc::data {

struct TextOptions {
  /// Maximum bytes of a document. A larger file is cut after a line end if there is one in the
  /// second half of a document, otherwise between two characters. 0: each file is one document.
  int64_t documentBytes = 8192;
};

class TextCorpus : public TokenStore {
public:
  /// Opens all files of `inputs` (see expandInputs). Empty files give no document.
  static Result<TextCorpus> open(const std::string &name, std::span<const std::string> inputs,
                                 const TextOptions &options);

  int64_t numFiles() const { return static_cast<int64_t>(files_.size()); }

  const std::string &name() const override { return name_; }
  std::span<const int32_t> sequenceLengths() const override { return lengths_; }
  Status read(int64_t sequence, int64_t offset, std::span<int32_t> out) const override;

private:
  struct File {
    std::string path;
    uint64_t size;
  };
  struct DocumentStart {
    uint64_t offset;
    uint32_t file;
  };

  Status addFile(const std::string &path, const TextOptions &options);

  std::string name_;
  std::vector<File> files_;
  std::vector<DocumentStart> starts_;
  std::vector<int32_t> lengths_;
};

} // namespace shardc::data
