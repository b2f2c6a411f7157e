// Streams the inputs through IndexedBuilder: only one chunk of a text file, or one line, is in
// memory. Tokens are bytes; each document may end with kByteEndToken.
#include "runtime/tokenize/BuildIndexed.h"

#include <algorithm>
#include <filesystem>
#include <new>
#include <string_view>
#include <vector>

#include "runtime/base/Reports.h"
#include "runtime/data/ByteTokenizer.h"
#include "runtime/data/IndexedBuilder.h"
#include "runtime/data/InputFiles.h"
#include "runtime/tokenize/LineStream.h"

namespace shardc::tokenize {
namespace {

using data::IndexedBuilder;

bool isJsonl(std::string_view path, InputFormat format) {
  if (format != InputFormat::Auto)
    return format == InputFormat::Jsonl;
  return path.ends_with(".jsonl") || path.ends_with(".json") || path.ends_with(".ndjson");
}

Status addBytes(std::string_view bytes, IndexedBuilder &builder) {
  int32_t tokens[4096];
  while (!bytes.empty()) {
    size_t length = std::min(bytes.size(), std::size(tokens));
    for (size_t i = 0; i < length; ++i)
      tokens[i] = static_cast<uint8_t>(bytes[i]);
    RETURN_IF_ERROR(builder.addTokens({tokens, length}));
    bytes.remove_prefix(length);
  }
  return Status::ok();
}

/// A text file is one document. It is read in chunks of 1 MiB.
Status addText(const std::string &path, bool appendsEnd, IndexedBuilder &builder) {
  ASSIGN_OR_RETURN(data::DataFile file, data::DataFile::open(path));
  std::string chunk;
  for (uint64_t offset = 0; offset < file.size(); offset += chunk.size()) {
    chunk.resize(std::min(uint64_t{1} << 20, file.size() - offset));
    RETURN_IF_ERROR(file.readAt(offset, {reinterpret_cast<uint8_t *>(chunk.data()), chunk.size()}));
    RETURN_IF_ERROR(addBytes(chunk, builder).withContext(fmt::format("'{}'", path)));
  }
  if (appendsEnd && file.size() > 0)
    RETURN_IF_ERROR(builder.addTokens({&data::kByteEndToken, 1}));
  if (file.size() > 0)
    RETURN_IF_ERROR(builder.endSequence());
  return builder.endDocument();
}

/// The document of a line: its texts that are not empty, of which the last has the end token.
Status addLine(std::string_view line, const BuildOptions &options, IndexedBuilder &builder) {
  std::vector<std::string> texts;
  RETURN_IF_ERROR(data::extractTexts(line, options.jsonKey, texts));
  std::erase_if(texts, [](const std::string &text) { return text.empty(); });
  for (const std::string &text : texts) {
    RETURN_IF_ERROR(addBytes(text, builder));
    if (options.appendEod && &text == &texts.back())
      RETURN_IF_ERROR(builder.addTokens({&data::kByteEndToken, 1}));
    RETURN_IF_ERROR(builder.endSequence());
  }
  return builder.endDocument();
}

Status addJsonl(const std::string &path, const BuildOptions &options, IndexedBuilder &builder) {
  ASSIGN_OR_RETURN(LineStream lines,
                   LineStream::open(path, options.lineBytesMax, FileForm::JsonRows));
  for (std::string line;;) {
    ASSIGN_OR_RETURN(bool isMore, lines.next(line));
    if (!isMore)
      return Status::ok();
    if (line.find_first_not_of(" \t\r") != std::string::npos)
      RETURN_IF_ERROR(addLine(line, options, builder)
                          .withContext(fmt::format("'{}:{}'", path, lines.lineNumber())));
  }
}

/// Refuses to overwrite an input. Nothing is written if the input has no text, since only
/// finalize() moves the files into place.
Result<BuildSummary> build(std::span<const std::string> inputs, const std::string &outPrefix,
                           const BuildOptions &options) {
  ASSIGN_OR_RETURN(std::vector<std::string> files, data::expandInputs(inputs));
  for (const std::string &file : files)
    if (file == outPrefix + ".bin" || file == outPrefix + ".idx")
      return makeStatus(report::DataRefused, "'{}' is both input and output", file);
  std::filesystem::path folder = std::filesystem::path(outPrefix).parent_path();
  std::error_code error;
  if (!folder.empty() && !std::filesystem::create_directories(folder, error) && error)
    return makeStatus(StatusCode::InvalidInput, "cannot create the folder '{}': {}",
                      folder.string(), error.message());
  ASSIGN_OR_RETURN(IndexedBuilder builder,
                   IndexedBuilder::create(outPrefix, data::tokenTypeFor(data::kByteVocabSize)));
  for (const std::string &file : files)
    RETURN_IF_ERROR(isJsonl(file, options.format) ? addJsonl(file, options, builder)
                                                  : addText(file, options.appendEod, builder));
  if (builder.numTokens() == 0)
    return makeStatus(report::DataRefused, "the input contains no text; '{}' was not written",
                      outPrefix);
  RETURN_IF_ERROR(builder.finalize());
  return BuildSummary{static_cast<int64_t>(files.size()), builder.numDocuments(),
                      builder.numEmptyDocuments(), builder.numTokens()};
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

} // namespace shardc::tokenize
