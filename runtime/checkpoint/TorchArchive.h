// The zip archive that torch.save writes, one per item of a checkpoint: uncompressed entries at
// multiples of 64 bytes, with a common prefix, and zip64 if sizes require it. The writer produces
// the bytes of torch 2.11. The reader accepts archives of all torch versions, validates everything,
// and copies nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc::checkpoint {

/// One file of an archive; it points into the archive's bytes.
struct ArchiveEntry {
  std::string_view name; ///< without the archive's prefix
  std::span<const uint8_t> data;
  uint32_t crc = 0;
};

/// An archive in memory, usually a part of a mapped file, which must outlive the reader.
class ArchiveReader {
public:
  /// Parses and validates the structure: entries are inside `bytes`, do not overlap each other or
  /// the directory, are uncompressed, unencrypted and uniquely named; `data.pkl` and a version from
  /// 1 to 10 exist; the byte order is little endian. Entries other than `data/...` are verified
  /// with their CRC if they have one.
  static Result<ArchiveReader> open(std::span<const uint8_t> bytes);

  std::span<const ArchiveEntry> entries() const { return entries_; }
  const ArchiveEntry *find(std::string_view name) const;
  std::string_view prefix() const { return prefix_; }
  /// False for archives that were written without checksums: all their CRCs are 0.
  bool hasChecksums() const { return hasChecksums_; }
  /// Verifies an entry's CRC; ok if the archive has none. `before` is called with each piece of at
  /// most kVerifyPiece bytes before the piece is read.
  using BeforePiece = std::function<void(std::span<const uint8_t> piece)>;
  static constexpr size_t kVerifyPiece = size_t{4} << 20;
  Status verify(const ArchiveEntry &entry, const BeforePiece &before = {}) const;
  /// Verifies all entries in this way.
  Status verifyAll(const BeforePiece &before = {}) const;

private:
  std::vector<ArchiveEntry> entries_;
  std::string_view prefix_;
  bool hasChecksums_ = false;
};

/// The destination of an archive's bytes.
class ByteSink {
public:
  virtual ~ByteSink() = default;
  virtual Status write(const void *data, size_t size) = 0;
  /// Writes the bytes and sets `crc` to the CRC-32 of these bytes alone. A sink that computes
  /// checksums anyway combines it from those.
  virtual Status writeSummed(const void *data, size_t size, uint32_t &crc);
};

/// TakeBytes receives the bytes of an entry in parts and in order. GiveBytes calls it.
using TakeBytes = std::function<Status(std::string_view part)>;
using GiveBytes = std::function<Status(const TakeBytes &take)>;

/// A sink in memory.
class StringSink : public ByteSink {
public:
  Status write(const void *data, size_t size) override {
    bytes.append(static_cast<const char *>(data), size);
    return Status::ok();
  }
  std::string bytes;
};

/// Writes entries one after the other, and the directory at the end.
class ArchiveWriter {
public:
  /// `prefix` is `archive`, or the name of a file without its extension.
  explicit ArchiveWriter(ByteSink &sink, std::string_view prefix = "archive")
      : sink_(sink), prefix_(prefix) {}

  /// Adds an entry with these bytes.
  Status add(std::string_view name, std::string_view data) {
    return addParts(name, data.size(), {&data, 1});
  }
  /// Adds an entry of `size` bytes, given in parts.
  Status addParts(std::string_view name, uint64_t size, std::span<const std::string_view> parts);
  /// Like addParts(), but `give` produces the parts one after the other.
  Status addGiven(std::string_view name, uint64_t size, const GiveBytes &give);
  /// Writes torch's id of the archive, the central directory and the end records.
  Status finish();
  /// Bytes written so far.
  uint64_t size() const { return cursor_; }

private:
  struct Written {
    std::string name;
    uint64_t size, headerAt;
    uint32_t crc;
  };

  Status emit(std::string_view bytes);
  /// The records of the zip format: of an entry, of an entry in the directory, and the end of the
  /// archive.
  std::string localHeader(const Written &entry) const;
  std::string centralEntry(const Written &entry) const;
  std::string ending(uint64_t directoryAt, uint64_t directorySize) const;
  std::string serializationId() const;

  ByteSink &sink_;
  std::string prefix_;
  std::vector<Written> entries_;
  uint64_t cursor_ = 0;
};

/// The complete record of one pickled object, as torch.save writes it, with the storages of its
/// tensors. For `prefix`, see ArchiveWriter.
Result<std::string> objectRecord(std::string_view pickle,
                                 std::span<const ArchiveEntry> storages = {},
                                 std::string_view prefix = "archive");

} // namespace shardc::checkpoint
