// A token store of the bytes of text files, without building a dataset first. Each file is cut into
// documents, each of which ends with kByteEndToken, so that a small corpus has enough documents to
// split and shuffle.
#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "runtime/base/Reports.h"
#include "runtime/data/ByteTokenizer.h"
#include "runtime/data/DataFile.h"
#include "runtime/data/InputFiles.h"
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
  /// Only the boundaries of documents are kept in memory. The texts are read from the files when a
  /// sample needs them.
  static Result<TextCorpus> open(const std::string &name, std::span<const std::string> inputs,
                                 const TextOptions &options) {
    if (options.documentBytes < 0 || options.documentBytes > kDocumentBytesMax)
      return makeStatus(
          report::DataRefused,
          "documents of {} bytes are requested; the size must be from 0 (whole files) to {}",
          options.documentBytes, kDocumentBytesMax);
    ASSIGN_OR_RETURN(std::vector<std::string> paths, expandInputs(inputs));
    TextCorpus corpus;
    corpus.name_ = name;
    for (const std::string &path : paths)
      RETURN_IF_ERROR(corpus.addFile(path, options));
    if (corpus.lengths_.empty())
      return makeStatus(report::DataRefused, "the text '{}' is empty", name);
    return corpus;
  }

  int64_t numFiles() const { return static_cast<int64_t>(files_.size()); }

  const std::string &name() const override { return name_; }
  std::span<const int32_t> sequenceLengths() const override { return lengths_; }
  /// Reads bytes as tokens; position `textBytes` is the end token.
  Status read(int64_t sequence, int64_t offset, std::span<int32_t> out) const override {
    const DocumentStart &start = starts_[static_cast<size_t>(sequence)];
    const File &file = files_[start.file];
    int64_t textBytes = lengths_[static_cast<size_t>(sequence)] - 1;
    auto bytes = static_cast<size_t>(
        std::clamp<int64_t>(textBytes - offset, 0, static_cast<int64_t>(out.size())));
    uint8_t buffer[1 << 14];
    for (size_t begin = 0; begin < bytes;) {
      size_t length = std::min(bytes - begin, sizeof buffer);
      RETURN_IF_ERROR(readFileAt(file.path, file.size,
                                 start.offset + static_cast<uint64_t>(offset) + begin,
                                 {buffer, length}));
      std::copy_n(buffer, length, out.begin() + static_cast<ptrdiff_t>(begin));
      begin += length;
    }
    std::fill(out.begin() + static_cast<ptrdiff_t>(bytes), out.end(), kByteEndToken);
    return Status::ok();
  }

private:
  /// The greatest length of a document in bytes: with the end token, it must fit an int32.
  static constexpr int64_t kDocumentBytesMax = std::numeric_limits<int32_t>::max() - 1;

  /// Returns the number of bytes of `window`, without its last byte, that belong to the document:
  /// up to the last line end, otherwise up to the beginning of a character that extends beyond the
  /// window, otherwise all.
  static size_t cutPoint(std::span<const uint8_t> window) {
    size_t whole = window.size() - 1;
    for (size_t i = whole; i > 0; --i)
      if (window[i - 1] == '\n')
        return i;
    for (size_t i = whole; i > 0 && i + 4 > whole; --i)
      if ((window[i] & 0xc0) != 0x80) // not in the middle of a UTF-8 character
        return i;
    return whole;
  }

  /// Returns the length of the document that begins at `begin`, at most `bytesMax`.
  static Result<uint64_t> documentLength(const DataFile &file, uint64_t begin, uint64_t bytesMax,
                                         std::vector<uint8_t> &scratch) {
    uint64_t rest = file.size() - begin;
    if (rest <= bytesMax)
      return rest;
    // Only the last 64 KiB, and at most the second half, are searched, so that documents have at
    // least half the length. The byte after them shows whether a character ends there.
    uint64_t looked = std::min(bytesMax - bytesMax / 2, uint64_t{1} << 16);
    scratch.resize(looked + 1);
    uint64_t windowBegin = bytesMax - looked;
    RETURN_IF_ERROR(file.readAt(begin + windowBegin, scratch));
    return windowBegin + cutPoint(scratch);
  }

  struct File {
    std::string path;
    uint64_t size;
  };
  struct DocumentStart {
    uint64_t offset;
    uint32_t file;
  };

  /// Cuts a file into documents of at most `documentBytes` bytes each. A length of the store
  /// includes the end token, hence one more than the bytes.
  Status addFile(const std::string &path, const TextOptions &options) {
    if (path.ends_with(".jsonl"))
      return makeStatus(
          report::DataRefused,
          "'{}' has JSON lines, whose braces and keys would be text; 'shardc data build "
          "{} OUT --tokenizer=bytes' makes indexed data of their texts",
          path, path);
    ASSIGN_OR_RETURN(DataFile file, DataFile::open(path));
    auto bytesMax = static_cast<uint64_t>(options.documentBytes == 0 ? kDocumentBytesMax
                                                                     : options.documentBytes);
    if (options.documentBytes == 0 && file.size() > bytesMax)
      return makeStatus(report::DataRefused,
                        "'{}' has {} bytes; the limit of a document that is not split is {}", path,
                        file.size(), bytesMax);
    std::vector<uint8_t> scratch;
    auto fileIndex = static_cast<uint32_t>(files_.size());
    for (uint64_t begin = 0; begin < file.size();) {
      ASSIGN_OR_RETURN(uint64_t length, documentLength(file, begin, bytesMax, scratch));
      if (lengths_.size() >= static_cast<size_t>(std::numeric_limits<int32_t>::max()))
        return makeStatus(StatusCode::Exhausted, "the text '{}' has more than {} documents", name_,
                          std::numeric_limits<int32_t>::max());
      starts_.push_back({begin, fileIndex});
      lengths_.push_back(static_cast<int32_t>(length + 1));
      begin += length;
    }
    files_.push_back({path, file.size()});
    return Status::ok();
  }

  std::string name_;
  std::vector<File> files_;
  std::vector<DocumentStart> starts_;
  std::vector<int32_t> lengths_;
};

} // namespace shardc::data
