// The index of a Megatron indexed dataset (.idx): nine magic bytes, version 1, the token type, two
// counts, then sequence lengths (int32), byte offsets (int64) and document boundaries (int64), all
// little endian and unaligned. Parsing checks every field, so that reading tokens afterwards needs
// no checks.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc::data {

/// Type of the tokens in a .bin file. The enumerators have the values that the file format uses.
enum class TokenType : uint8_t {
  UInt8 = 1,
  Int8 = 2,
  Int16 = 3,
  Int32 = 4,
  Int64 = 5,
  Float64 = 6,
  Float32 = 7,
  UInt16 = 8,
};

/// Size of one token in bytes.
int64_t tokenBytes(TokenType type);

/// NumPy's name of the type.
std::string_view tokenTypeName(TokenType type);

/// Returns the smallest type that Megatron uses for a vocabulary: uint16 below 65500 tokens,
/// otherwise int32.
TokenType tokenTypeFor(int64_t vocabSize);

inline constexpr std::string_view kIndexMagic{"MMIDIDX\0\0", 9};
inline constexpr uint64_t kIndexVersion = 1;
/// Bytes of magic, version, token type, count of sequences, count of document boundaries.
inline constexpr uint64_t kIndexHeaderBytes = 34;

/// The part of an index that stays in memory. Byte offsets are the running sum of the lengths, so
/// every kOffsetStride-th of them suffices to compute the others.
class IndexFile {
public:
  /// Reads `out.size()` bytes at an offset of the index.
  using Reader = std::function<Status(uint64_t, std::span<uint8_t>)>;

  /// Parses an index of `indexBytes` bytes for a .bin file of `binBytes` bytes. InvalidInput,
  /// naming `name` and the wrong field, if it is malformed. Memory use is bounded by `indexBytes`.
  static Result<IndexFile> parse(const std::string &name, uint64_t indexBytes, uint64_t binBytes,
                                 const Reader &read);

  TokenType type() const { return type_; }
  std::span<const int32_t> lengths() const { return lengths_; }
  int64_t numSequences() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t numDocuments() const { return numDocuments_; }

  /// Byte offset of the first token of a sequence in the .bin file.
  int64_t offsetOf(int64_t sequence) const;

private:
  static constexpr int64_t kOffsetStride = 64;

  TokenType type_ = TokenType::Int32;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> strideOffsets_;
  int64_t numDocuments_ = 0;

  friend class IndexParser;
};

} // namespace shardc::data
