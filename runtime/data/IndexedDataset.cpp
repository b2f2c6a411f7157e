// Reads tokens by position: IndexFile gives the byte offset, and pread reads from the .bin file.
#include "runtime/data/IndexedDataset.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <unistd.h>

#include "runtime/base/Reports.h"

namespace shardc::data {
namespace {

/// Converts tokens of type T to int32. Returns false, with the position of the first token that
/// does not fit, on failure.
template <typename T> bool widen(const uint8_t *bytes, std::span<int32_t> out, size_t &bad) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
    if constexpr (sizeof(T) > sizeof(int32_t)) {
      if (value < std::numeric_limits<int32_t>::min() ||
          value > std::numeric_limits<int32_t>::max()) {
        bad = i;
        return false;
      }
    }
    out[i] = static_cast<int32_t>(value);
  }
  return true;
}

/// Calls `widen` for the integer type that `type` names at run time.
bool widenAs(TokenType type, const uint8_t *bytes, std::span<int32_t> out, size_t &bad) {
  switch (type) {
  case TokenType::UInt8:
    return widen<uint8_t>(bytes, out, bad);
  case TokenType::Int8:
    return widen<int8_t>(bytes, out, bad);
  case TokenType::Int16:
    return widen<int16_t>(bytes, out, bad);
  case TokenType::UInt16:
    return widen<uint16_t>(bytes, out, bad);
  case TokenType::Int32:
    return widen<int32_t>(bytes, out, bad);
  case TokenType::Int64:
    return widen<int64_t>(bytes, out, bad);
  case TokenType::Float32:
  case TokenType::Float64:
    break; // refused when the index is parsed
  }
  return false;
}

} // namespace

std::string IndexedDataset::prefixOf(const std::string &path) {
  constexpr size_t kEnding = 4;
  bool isFile = path.ends_with(".bin") || path.ends_with(".idx");
  bool isPrefix = !isFile || ::access((path + ".idx").c_str(), F_OK) == 0;
  return isPrefix ? path : path.substr(0, path.size() - kEnding);
}

bool IndexedDataset::exists(const std::string &path) {
  std::string prefix = prefixOf(path);
  return ::access((prefix + ".idx").c_str(), F_OK) == 0 &&
         ::access((prefix + ".bin").c_str(), F_OK) == 0;
}

Result<IndexedDataset> IndexedDataset::open(const std::string &path) {
  std::string prefix = prefixOf(path);
  ASSIGN_OR_RETURN(DataFile idx, DataFile::open(prefix + ".idx"));
  ASSIGN_OR_RETURN(DataFile bin, DataFile::open(prefix + ".bin"));
  auto read = [&idx](uint64_t offset, std::span<uint8_t> out) { return idx.readAt(offset, out); };
  IndexedDataset dataset;
  ASSIGN_OR_RETURN(dataset.index_, IndexFile::parse(idx.path(), idx.size(), bin.size(), read));
  dataset.prefix_ = prefix;
  dataset.bin_ = std::move(bin);
  return dataset;
}

/// Reads in chunks that fit a buffer on the stack. `offset` counts tokens of the sequence; the
/// caller ensures that the range lies in it.
Status IndexedDataset::read(int64_t sequence, int64_t offset, std::span<int32_t> out) const {
  auto width = static_cast<size_t>(tokenBytes(index_.type()));
  uint64_t position =
      static_cast<uint64_t>(index_.offsetOf(sequence)) + static_cast<uint64_t>(offset) * width;
  uint8_t buffer[1 << 14];
  for (size_t begin = 0; begin < out.size();) {
    size_t length = std::min(out.size() - begin, sizeof buffer / width);
    RETURN_IF_ERROR(bin_.readAt(position + begin * width, {buffer, length * width}));
    size_t bad = 0;
    if (!widenAs(index_.type(), buffer, out.subspan(begin, length), bad))
      return makeStatus(report::DataRefused, "'{}': token {} of sequence {} does not fit 32 bits",
                        bin_.path(), static_cast<uint64_t>(offset) + begin + bad, sequence);
    begin += length;
  }
  return Status::ok();
}

} // namespace shardc::data
