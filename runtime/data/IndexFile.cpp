#include "runtime/data/IndexFile.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <new>

#include "runtime/base/Reports.h"

namespace shardc::data {

static_assert(std::endian::native == std::endian::little, "indexes are read as they lie on disk");

int64_t tokenBytes(TokenType type) {
  switch (type) {
  case TokenType::UInt8:
  case TokenType::Int8:
    return 1;
  case TokenType::Int16:
  case TokenType::UInt16:
    return 2;
  case TokenType::Int32:
  case TokenType::Float32:
    return 4;
  case TokenType::Int64:
  case TokenType::Float64:
    return 8;
  }
  return 0;
}

std::string_view tokenTypeName(TokenType type) {
  switch (type) {
  case TokenType::UInt8:
    return "uint8";
  case TokenType::Int8:
    return "int8";
  case TokenType::Int16:
    return "int16";
  case TokenType::Int32:
    return "int32";
  case TokenType::Int64:
    return "int64";
  case TokenType::Float64:
    return "float64";
  case TokenType::Float32:
    return "float32";
  case TokenType::UInt16:
    return "uint16";
  }
  return "unknown";
}

TokenType tokenTypeFor(int64_t vocabSize) {
  return vocabSize < 65500 ? TokenType::UInt16 : TokenType::Int32;
}

int64_t IndexFile::offsetOf(int64_t sequence) const {
  int64_t tokens = 0;
  for (int64_t i = sequence / kOffsetStride * kOffsetStride; i < sequence; ++i)
    tokens += lengths_[static_cast<size_t>(i)];
  return strideOffsets_[static_cast<size_t>(sequence / kOffsetStride)] + tokens * tokenBytes(type_);
}

/// The state of parsing one file; each method checks one field.
class IndexParser {
public:
  IndexParser(const std::string &name, uint64_t indexBytes, uint64_t binBytes,
              const IndexFile::Reader &read)
      : name_(name), indexBytes_(indexBytes), binBytes_(binBytes), read_(read) {}

  Result<IndexFile> parse() {
    RETURN_IF_ERROR(parseHeader());
    RETURN_IF_ERROR(checkSize());
    RETURN_IF_ERROR(parseLengths());
    RETURN_IF_ERROR(checkPointers());
    RETURN_IF_ERROR(checkDocuments());
    return std::move(index_);
  }

private:
  template <typename... Args> Status fail(fmt::format_string<Args...> text, Args &&...args) const {
    return makeStatus(report::DataDamaged, name_, fmt::format(text, std::forward<Args>(args)...));
  }

  /// Bytes 0 to 8 are the magic number, 9 to 16 the version, 17 the token type, 18 to 25 the number
  /// of sequences and 26 to 33 the number of document boundaries. There is one boundary more than
  /// documents.
  Status parseHeader() {
    if (indexBytes_ < kIndexHeaderBytes)
      return fail("the header needs {} bytes, the file has {}", kIndexHeaderBytes, indexBytes_);
    uint8_t header[kIndexHeaderBytes];
    RETURN_IF_ERROR(read_(0, header));
    if (std::memcmp(header, kIndexMagic.data(), kIndexMagic.size()) != 0)
      return fail(
          "field 'magic' is not 'MMIDIDX' and two zero bytes; this is not an index of a Megatron "
          "indexed dataset in the memory-mapped format");
    uint64_t version = 0;
    std::memcpy(&version, header + 9, 8);
    if (version != kIndexVersion)
      return fail("field 'version' is {}; only {} is supported", version, kIndexVersion);
    uint8_t code = header[17];
    if (code < static_cast<uint8_t>(TokenType::UInt8) ||
        code > static_cast<uint8_t>(TokenType::UInt16))
      return fail("field 'dtype' is {}, supported are 1 to 8", code);
    index_.type_ = static_cast<TokenType>(code);
    if (index_.type_ == TokenType::Float32 || index_.type_ == TokenType::Float64)
      return fail("field 'dtype' is {} ({}), but tokens are integers", code,
                  tokenTypeName(index_.type_));
    std::memcpy(&sequenceCount_, header + 18, 8);
    std::memcpy(&boundaryCount_, header + 26, 8);
    return Status::ok();
  }

  /// Compares the size of the file with the size that the counts imply. One more byte per sequence
  /// is the mode of a multimodal dataset, which is named in the message.
  Status checkSize() const {
    // Samples refer to sequences by int32, as they do upstream.
    if (sequenceCount_ > std::numeric_limits<int32_t>::max())
      return fail("field 'sequence count' is {}; the limit is {}", sequenceCount_,
                  std::numeric_limits<int32_t>::max());
    if (boundaryCount_ == 0)
      return fail("field 'document count' is 0, but document boundaries begin with a 0");
    if (boundaryCount_ > (indexBytes_ - kIndexHeaderBytes) / 8)
      return fail("field 'document count' is {}, which needs more than the {} bytes of the file",
                  boundaryCount_, indexBytes_);
    uint64_t needed = kIndexHeaderBytes + sequenceCount_ * 12 + boundaryCount_ * 8;
    if (indexBytes_ < needed)
      return fail(
          "truncated: {} sequences and {} document boundaries need {} bytes, the file has {}",
          sequenceCount_, boundaryCount_, needed, indexBytes_);
    if (indexBytes_ == needed)
      return checkEnds(needed);
    if (indexBytes_ == needed + sequenceCount_)
      return fail(
          "contains a mode for each sequence, so the dataset is multimodal; only text can be "
          "trained on");
    return fail("{} sequences and {} document boundaries need {} bytes, the file has {}",
                sequenceCount_, boundaryCount_, needed, indexBytes_);
  }

  /// What contradicts without a look at each sequence: a small file may claim billions of them.
  Status checkEnds(uint64_t end) const {
    uint64_t last = 0;
    RETURN_IF_ERROR(read_(end - 8, {reinterpret_cast<uint8_t *>(&last), 8}));
    if (last != sequenceCount_)
      return fail("field 'document indices' ends with {}, but there are {} sequences",
                  static_cast<int64_t>(last), sequenceCount_);
    if (binBytes_ == 0 && sequenceCount_ > 0)
      return fail("field 'sequence count' is {}, and the .bin file is empty; the .bin file is "
                  "truncated or belongs to another index",
                  sequenceCount_);
    return Status::ok();
  }

  /// Adds up the lengths to the byte at which each sequence ends, and checks that the last is the
  /// end of the .bin file. Keeps only every kOffsetStride-th offset; the others follow from the
  /// lengths. Takes no memory before the lengths are known to fit the .bin file.
  Status parseLengths() {
    RETURN_IF_ERROR(addLengths(/*keeps=*/false));
    index_.lengths_.reserve(sequenceCount_);
    index_.strideOffsets_.reserve(sequenceCount_ / IndexFile::kOffsetStride + 1);
    return addLengths(/*keeps=*/true);
  }

  Status addLengths(bool keeps) {
    uint64_t end = 0; // <= binBytes_ < 2^63 after every step, so the addition cannot overflow
    auto width = static_cast<uint64_t>(tokenBytes(index_.type_));
    RETURN_IF_ERROR(
        forEach<int32_t>(kIndexHeaderBytes, sequenceCount_, [&](uint64_t i, int32_t length) {
          if (length < 0)
            return fail("field 'sequence lengths' holds {} at sequence {}", length, i);
          if (keeps && i % IndexFile::kOffsetStride == 0)
            index_.strideOffsets_.push_back(static_cast<int64_t>(end));
          end += static_cast<uint64_t>(length) * width;
          if (keeps)
            index_.lengths_.push_back(length);
          if (end > binBytes_)
            return fail(
                "field 'sequence lengths': sequence {} ends at byte {} of a .bin file of {} bytes; "
                "the .bin file is truncated or belongs to another index",
                i, end, binBytes_);
          return Status::ok();
        }));
    if (end != binBytes_)
      return fail(
          "field 'sequence lengths' adds up to {} bytes, the .bin file has {}; it belongs to "
          "another index",
          end, binBytes_);
    return Status::ok();
  }

  Status checkPointers() const {
    auto width = static_cast<int64_t>(tokenBytes(index_.type_));
    int64_t expected = 0;
    return forEach<int64_t>(
        kIndexHeaderBytes + sequenceCount_ * 4, sequenceCount_, [&](uint64_t i, int64_t pointer) {
          if (pointer != expected)
            return fail(
                "field 'sequence pointers' holds {} at sequence {}, the lengths before it add "
                "up to {}",
                pointer, i, expected);
          expected += index_.lengths_[i] * width;
          return Status::ok();
        });
  }

  /// Boundaries must ascend from 0 to the number of sequences.
  Status checkDocuments() {
    int64_t previous = 0;
    auto sequences = static_cast<int64_t>(sequenceCount_);
    index_.numDocuments_ = static_cast<int64_t>(boundaryCount_ - 1);
    return forEach<int64_t>(
        kIndexHeaderBytes + sequenceCount_ * 12, boundaryCount_, [&](uint64_t i, int64_t boundary) {
          if (i == 0 && boundary != 0)
            return fail("field 'document indices' begins with {}, not with 0", boundary);
          if (boundary < previous || boundary > sequences)
            return fail("field 'document indices' holds {} at {}; from {} to {} was expected",
                        boundary, i, previous, sequences);
          previous = boundary;
          return Status::ok();
        });
  }

  /// Calls `visit(i, value)` for the `count` values of type T at `offset`; stops at the first
  /// failure.
  template <typename T, typename Visit>
  Status forEach(uint64_t offset, uint64_t count, Visit visit) const {
    constexpr uint64_t kChunk = 2048;
    T values[kChunk];
    for (uint64_t begin = 0; begin < count; begin += kChunk) {
      uint64_t length = std::min(kChunk, count - begin);
      RETURN_IF_ERROR(read_(offset + begin * sizeof(T),
                            {reinterpret_cast<uint8_t *>(values), length * sizeof(T)}));
      for (uint64_t i = 0; i < length; ++i)
        RETURN_IF_ERROR(visit(begin + i, values[i]));
    }
    return Status::ok();
  }

  const std::string &name_;
  uint64_t indexBytes_;
  uint64_t binBytes_;
  const IndexFile::Reader &read_;
  IndexFile index_;
  uint64_t sequenceCount_ = 0;
  uint64_t boundaryCount_ = 0;
};

/// Out of memory is a status: the counts come from a file, which may be damaged.
Result<IndexFile> IndexFile::parse(const std::string &name, uint64_t indexBytes, uint64_t binBytes,
                                   const Reader &read) {
  if (binBytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    return makeStatus(report::DataRefused, "'{}': its .bin file has {} bytes", name, binBytes);
  try {
    return IndexParser(name, indexBytes, binBytes, read).parse();
  } catch (const std::bad_alloc &) {
    return makeStatus(StatusCode::Exhausted, "'{}': not enough memory for an index of {} bytes",
                      name, indexBytes);
  }
}

} // namespace shardc::data
