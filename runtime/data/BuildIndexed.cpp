// Streams the inputs through IndexedBuilder: only one chunk of a text file, or one line, is in
// memory. Tokens are bytes; each document may end with kByteEndToken.
#include "runtime/data/BuildIndexed.h"

#include <algorithm>
#include <filesystem>
#include <new>
#include <string_view>
#include <vector>

#include "runtime/base/Reports.h"
#include "runtime/data/ByteTokenizer.h"
#include "runtime/data/DataFile.h"
#include "runtime/data/IndexedBuilder.h"
#include "runtime/data/InputFiles.h"
#include "runtime/data/Jsonl.h"

namespace shardc::data {
namespace {

class DatasetWriter {
public:
  DatasetWriter(IndexedBuilder &builder, const BuildOptions &options)
      : builder_(builder), options_(options) {}

  Status addFile(const std::string &path) {
    ++summary_.files;
    return isJsonl(path) ? addJsonl(path) : addText(path);
  }

  BuildSummary summary() const {
    BuildSummary result = summary_;
    result.documents = builder_.numDocuments();
    result.tokens = builder_.numTokens();
    return result;
  }

private:
  bool isJsonl(std::string_view path) const {
    if (options_.format != InputFormat::Auto)
      return options_.format == InputFormat::Jsonl;
    return path.ends_with(".jsonl") || path.ends_with(".json") || path.ends_with(".ndjson");
  }

  Status addText(const std::string &path);
  Status addJsonl(const std::string &path);
  Status addBytes(std::string_view bytes);

  IndexedBuilder &builder_;
  const BuildOptions &options_;
  BuildSummary summary_;
};

Status DatasetWriter::addBytes(std::string_view bytes) {
  int32_t tokens[4096];
  while (!bytes.empty()) {
    size_t length = std::min(bytes.size(), std::size(tokens));
    for (size_t i = 0; i < length; ++i)
      tokens[i] = static_cast<uint8_t>(bytes[i]);
    RETURN_IF_ERROR(builder_.addTokens({tokens, length}));
    bytes.remove_prefix(length);
  }
  return Status::ok();
}

/// A text file is one document. It is read in chunks of 1 MiB.
Status DatasetWriter::addText(const std::string &path) {
  ASSIGN_OR_RETURN(DataFile file, DataFile::open(path));
  std::string chunk;
  for (uint64_t offset = 0; offset < file.size(); offset += chunk.size()) {
    chunk.resize(std::min(uint64_t{1} << 20, file.size() - offset));
    RETURN_IF_ERROR(file.readAt(offset, {reinterpret_cast<uint8_t *>(chunk.data()), chunk.size()}));
    RETURN_IF_ERROR(addBytes(chunk).withContext(fmt::format("'{}'", path)));
  }
  if (file.size() == 0) {
    ++summary_.emptyDocuments;
    return builder_.endDocument();
  }
  if (options_.appendEod)
    RETURN_IF_ERROR(builder_.addTokens({&kByteEndToken, 1}));
  RETURN_IF_ERROR(builder_.endSequence());
  return builder_.endDocument();
}

Status DatasetWriter::addJsonl(const std::string &path) {
  std::vector<std::string> texts;
  return forEachLine(path, options_.lineBytesMax, [&](std::string_view line) {
    RETURN_IF_ERROR(extractTexts(line, options_.jsonKey, texts));
    std::erase_if(texts, [](const std::string &text) { return text.empty(); });
    for (size_t i = 0; i < texts.size(); ++i) {
      RETURN_IF_ERROR(addBytes(texts[i]));
      if (options_.appendEod && i + 1 == texts.size()) // the end token belongs to the last sentence
        RETURN_IF_ERROR(builder_.addTokens({&kByteEndToken, 1}));
      RETURN_IF_ERROR(builder_.endSequence());
    }
    summary_.emptyDocuments += texts.empty() ? 1 : 0;
    return builder_.endDocument();
  });
}

/// Refuses to overwrite an input. Nothing is written if the input has no text, since only
/// finalize() moves the files into place.
Result<BuildSummary> build(std::span<const std::string> inputs, const std::string &outPrefix,
                           const BuildOptions &options) {
  ASSIGN_OR_RETURN(std::vector<std::string> files, expandInputs(inputs));
  for (const std::string &file : files)
    if (file == outPrefix + ".bin" || file == outPrefix + ".idx")
      return makeStatus(report::DataRefused, "'{}' is both input and output", file);
  std::filesystem::path folder = std::filesystem::path(outPrefix).parent_path();
  std::error_code error;
  if (!folder.empty() && !std::filesystem::create_directories(folder, error) && error)
    return makeStatus(StatusCode::InvalidInput, "cannot create the folder '{}': {}",
                      folder.string(), error.message());
  ASSIGN_OR_RETURN(IndexedBuilder builder,
                   IndexedBuilder::create(outPrefix, tokenTypeFor(kByteVocabSize)));
  DatasetWriter writer(builder, options);
  for (const std::string &file : files)
    RETURN_IF_ERROR(writer.addFile(file));
  if (builder.numTokens() == 0)
    return makeStatus(report::DataRefused, "the input contains no text; '{}' was not written",
                      outPrefix);
  RETURN_IF_ERROR(builder.finalize());
  return writer.summary();
}

} // namespace

Result<BuildSummary> buildIndexed(std::span<const std::string> inputs, const std::string &outPrefix,
                                  const BuildOptions &options) {
  try {
    return build(inputs, outPrefix, options);
  } catch (const std::bad_alloc &) {
    return makeStatus(StatusCode::Exhausted, "not enough memory for the index of '{}'", outPrefix);
  }
}

} // namespace shardc::data
