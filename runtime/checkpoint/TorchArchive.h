// The zip archive that torch.save writes, one per item of a checkpoint: stored entries on 64-byte
// boundaries under one prefix, with zip64 where sizes ask for it. The writer's bytes are those of
// torch 2.11; the reader takes what any torch wrote, trusts nothing in it, and copies nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc::checkpoint {

struct ArchiveEntry {
  std::string_view name; ///< without the archive's prefix
  std::span<const uint8_t> data;
  uint32_t crc = 0;
};

/// An archive in memory, usually a slice of a mapped file, which must outlive the reader.
class ArchiveReader {
public:
  /// Parses and checks the structure: entries inside the slice, apart from each other and from the
  /// directory, stored, unencrypted, uniquely named; `data.pkl` and a version of 1 to 10 there;
  /// little endian. Entries other than `data/...` are checked against their CRC where there is one.
  static Result<ArchiveReader> open(std::span<const uint8_t> bytes);

  std::span<const ArchiveEntry> entries() const { return entries_; }
  const ArchiveEntry *find(std::string_view name) const;
  std::string_view prefix() const { return prefix_; }
  /// False for archives written without checksums: all of them are 0.
  bool hasChecksums() const { return hasChecksums_; }
  /// Compares an entry's CRC with its bytes; ok where the archive has none. `before` is called with
  /// each piece of at most kVerifyPiece bytes before that is read.
  using BeforePiece = std::function<void(std::span<const uint8_t> piece)>;
  static constexpr size_t kVerifyPiece = size_t{4} << 20;
  Status verify(const ArchiveEntry &entry, const BeforePiece &before = {}) const;
  /// The same for all entries.
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
  /// Writes the bytes and sets `crc` to the CRC-32 of these alone. A sink that makes checksums of
  /// its own combines it from them.
  virtual Status writeSummed(const void *data, size_t size, uint32_t &crc);
};

/// Calls `take` with the bytes of an entry, in parts and in order.
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

/// Writes entries one after the other and the directory at the end.
class ArchiveWriter {
public:
  /// `prefix` is `archive`, or a file's name without its extension.
  explicit ArchiveWriter(ByteSink &sink, std::string_view prefix = "archive")
      : sink_(sink), prefix_(prefix) {}

  Status add(std::string_view name, std::string_view data) {
    return addParts(name, data.size(), {&data, 1});
  }
  /// An entry of `size` bytes that come in parts.
  Status addParts(std::string_view name, uint64_t size, std::span<const std::string_view> parts);
  /// The same of parts that `give` makes one after the other.
  Status addGiven(std::string_view name, uint64_t size, const GiveBytes &give);
  /// Writes torch's id of the archive, the central directory and its ends.
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
  std::string localHeader(const Written &entry) const;
  std::string centralEntry(const Written &entry) const;
  std::string ending(uint64_t directoryAt, uint64_t directorySize) const;
  std::string serializationId() const;

  ByteSink &sink_;
  std::string prefix_;
  std::vector<Written> entries_;
  uint64_t cursor_ = 0;
};

/// The complete record of one pickled object, as torch.save writes it, with the storages of the
/// tensors in it. `prefix` as in ArchiveWriter.
Result<std::string> objectRecord(std::string_view pickle,
                                 std::span<const ArchiveEntry> storages = {},
                                 std::string_view prefix = "archive");

} // namespace shardc::checkpoint
