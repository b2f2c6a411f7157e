// Streams tokens to the .bin file in the narrowest type for the vocabulary, and writes the .idx
// file at the end.
#include "runtime/data/IndexedBuilder.h"

#include <cerrno>
#include <cstring>
#include <limits>
#include <unistd.h>

#include "runtime/base/Reports.h"

namespace shardc::data {
namespace {

template <typename T> std::string_view asBytes(const T &value) {
  return {reinterpret_cast<const char *>(&value), sizeof(T)};
}

/// Converts tokens to the narrower type T, contiguously in `out`. Returns the index of the first
/// token that does not fit, or -1.
template <typename T> int64_t narrow(std::span<const int32_t> tokens, uint8_t *out) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (static_cast<int64_t>(tokens[i]) < static_cast<int64_t>(std::numeric_limits<T>::min()) ||
        static_cast<int64_t>(tokens[i]) > static_cast<int64_t>(std::numeric_limits<T>::max()))
      return static_cast<int64_t>(i);
    T value = static_cast<T>(tokens[i]);
    std::memcpy(out + i * sizeof(T), &value, sizeof(T));
  }
  return -1;
}

/// Calls `narrow` for the integer type that `type` names at run time.
int64_t narrowAs(TokenType type, std::span<const int32_t> tokens, uint8_t *out) {
  switch (type) {
  case TokenType::UInt8:
    return narrow<uint8_t>(tokens, out);
  case TokenType::Int8:
    return narrow<int8_t>(tokens, out);
  case TokenType::Int16:
    return narrow<int16_t>(tokens, out);
  case TokenType::UInt16:
    return narrow<uint16_t>(tokens, out);
  case TokenType::Int32:
    return narrow<int32_t>(tokens, out);
  case TokenType::Int64:
    return narrow<int64_t>(tokens, out);
  case TokenType::Float32:
  case TokenType::Float64:
    break; // refused by create
  }
  return 0;
}

} // namespace

Status checkPrefix(const std::string &prefix) {
  if (prefix.empty() || prefix.ends_with('/'))
    return makeStatus(report::DataRefused,
                      "the output '{}' is a folder; it needs the prefix of the files' names, as "
                      "'{}corpus' for 'corpus.bin'",
                      prefix, prefix);
  return Status::ok();
}

Result<IndexedBuilder> IndexedBuilder::create(const std::string &prefix, TokenType type) {
  if (type == TokenType::Float32 || type == TokenType::Float64)
    return makeStatus(report::DataRefused, "tokens are integers, not {}", tokenTypeName(type));
  RETURN_IF_ERROR(checkPrefix(prefix));
  IndexedBuilder builder;
  builder.prefix_ = prefix;
  builder.type_ = type;
  ASSIGN_OR_RETURN(builder.bin_, StagedFile::create(prefix + ".bin"));
  return builder;
}

/// Appends tokens to the current sequence. They are converted in chunks, so the buffer is on the
/// stack.
Status IndexedBuilder::addTokens(std::span<const int32_t> tokens) {
  if (openTokens_ + static_cast<int64_t>(tokens.size()) > std::numeric_limits<int32_t>::max())
    return makeStatus(report::DataRefused,
                      "sequence {} has more than the {} tokens that an index can record",
                      lengths_.size(), std::numeric_limits<int32_t>::max());
  constexpr size_t kChunk = 2048;
  uint8_t buffer[kChunk * sizeof(int64_t)];
  for (size_t begin = 0; begin < tokens.size(); begin += kChunk) {
    std::span<const int32_t> chunk = tokens.subspan(begin, std::min(kChunk, tokens.size() - begin));
    if (int64_t bad = narrowAs(type_, chunk, buffer); bad >= 0)
      return makeStatus(report::DataRefused, "token {} does not fit {} in '{}'",
                        chunk[static_cast<size_t>(bad)], tokenTypeName(type_), bin_.path());
    RETURN_IF_ERROR(bin_.append({reinterpret_cast<const char *>(buffer),
                                 chunk.size() * static_cast<size_t>(tokenBytes(type_))}));
  }
  openTokens_ += static_cast<int64_t>(tokens.size());
  return Status::ok();
}

Status IndexedBuilder::endSequence() {
  if (lengths_.size() >= static_cast<size_t>(std::numeric_limits<int32_t>::max()))
    return makeStatus(StatusCode::Exhausted, "'{}' cannot hold more than {} sequences", prefix_,
                      std::numeric_limits<int32_t>::max());
  lengths_.push_back(static_cast<int32_t>(openTokens_));
  numTokens_ += openTokens_;
  openTokens_ = 0;
  return Status::ok();
}

Status IndexedBuilder::endDocument() {
  SHARDC_CHECK(openTokens_ == 0, "a document ends in the middle of a sequence");
  numEmptyDocuments_ += boundaries_.back() == numSequences() ? 1 : 0;
  boundaries_.push_back(numSequences());
  return Status::ok();
}

/// The index has the lengths, the byte offsets and the document boundaries, after a header;
/// IndexFile.h describes the format.
Status IndexedBuilder::writeIndex(StagedFile &idx) const {
  RETURN_IF_ERROR(idx.append(kIndexMagic));
  RETURN_IF_ERROR(idx.append(asBytes(kIndexVersion)));
  RETURN_IF_ERROR(idx.append(asBytes(type_)));
  RETURN_IF_ERROR(idx.append(asBytes(static_cast<uint64_t>(lengths_.size()))));
  RETURN_IF_ERROR(idx.append(asBytes(static_cast<uint64_t>(boundaries_.size()))));
  for (int32_t length : lengths_)
    RETURN_IF_ERROR(idx.append(asBytes(length)));
  int64_t pointer = 0;
  for (int32_t length : lengths_) {
    RETURN_IF_ERROR(idx.append(asBytes(pointer)));
    pointer += length * tokenBytes(type_);
  }
  for (int64_t boundary : boundaries_)
    RETURN_IF_ERROR(idx.append(asBytes(boundary)));
  return Status::ok();
}

Status IndexedBuilder::finalize() {
  SHARDC_CHECK(openTokens_ == 0, "finalize in the middle of a sequence");
  SHARDC_CHECK(boundaries_.back() == numSequences(), "finalize in the middle of a document");
  ASSIGN_OR_RETURN(StagedFile idx, StagedFile::create(prefix_ + ".idx"));
  RETURN_IF_ERROR(writeIndex(idx));
  RETURN_IF_ERROR(idx.sync());
  RETURN_IF_ERROR(bin_.sync());
  if (::unlink(idx.path().c_str()) != 0 && errno != ENOENT)
    return systemError("replace", idx.path());
  RETURN_IF_ERROR(bin_.commit());
  return idx.commit();
}

} // namespace shardc::data
