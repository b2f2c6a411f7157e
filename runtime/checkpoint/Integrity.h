// Checksums of our own checkpoints: a CRC-32 per block of every file, in one small text file that
// other programs ignore. A reader verifies each block that it reads once, so damage is found even
// if only a part of a record is read.
#pragma once

#include <atomic>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/Io.h"
#include "runtime/base/Status.h"

namespace shardc::checkpoint {

inline constexpr const char *kIntegrityFile = ".shardc_integrity";
inline constexpr uint64_t kIntegrityBlock = uint64_t{1} << 20;

/// Computes block checksums of one file as its bytes are written.
class BlockChecksums {
public:
  /// Adds bytes. Returns the CRC-32 of these bytes alone, which is combined from the CRCs of their
  /// blocks, so that each byte is processed once.
  uint32_t add(const void *data, size_t size);
  uint64_t size() const { return size_; }
  const std::vector<uint32_t> &blocks() const { return blocks_; }

private:
  friend class IntegrityTable;
  std::vector<uint32_t> blocks_;
  uint64_t size_ = 0;
};

/// The checksums of all files of a checkpoint, by file name.
class IntegrityTable {
public:
  std::map<std::string, BlockChecksums> files;

  /// The text form, which ends with a checksum of itself.
  std::string text() const;
  /// Reads one line per file: name, size, and 8 hexadecimal digits per block. The last line has the
  /// checksum of the table itself, so damage to it is not taken for damage to a file.
  static Result<IntegrityTable> parse(std::string_view text);
};

/// An identifier in the form of a UUID that is derived from the saved contents, so that equal saves
/// have equal bytes. It is stored in `.metadata`.
std::string saveIdOf(std::string_view contents);
/// Whether saveIdOf created the identifier. If so, shardc has written the checkpoint, with a file
/// of checksums.
bool isOwnSaveId(std::string_view id);

/// Releases the memory of a mapped file's pages. They count as memory of this process, so code that
/// streams through a large file releases them regularly.
void dropMapped(std::span<const uint8_t> bytes);

/// Starts to read a part of a mapped file. Otherwise, each access to a page that is not in memory
/// waits for a small read.
void readAhead(std::span<const uint8_t> bytes);

/// A mapped file whose blocks are verified before they are used. Several threads may use it.
class CheckedFile {
public:
  static constexpr uint64_t kReadAhead = uint64_t{32} << 20;

  CheckedFile() = default;
  ~CheckedFile();
  /// `checksums` must outlive the file. If it is null, nothing is verified.
  static Result<std::unique_ptr<CheckedFile>> open(MappedFile map, const BlockChecksums *checksums);

  const std::string &path() const { return map_.path(); }
  std::span<const uint8_t> bytes() const { return map_.bytes(); }
  bool isChecked() const { return checksums_ != nullptr; }
  /// Verifies the blocks of a range, which must be inside the file.
  Status ensure(uint64_t offset, uint64_t length);
  /// Announces that a range will be read now, so that the disk can start. As long as ranges are
  /// consecutive, another thread reads ahead, by as many bytes as were read consecutively, but at
  /// most `kReadAhead`.
  void prefetch(uint64_t offset, uint64_t length);
  /// Releases the memory of pages that were read. They may be read again.
  void drop() const { dropMapped(bytes()); }

private:
  void readOn(uint64_t begin);

  MappedFile map_;
  const BlockChecksums *checksums_ = nullptr;
  std::unique_ptr<std::atomic<bool>[]> isGood_;
  std::mutex mutex_;                    ///< guards readEnd_ and streak_
  uint64_t readEnd_ = 0;                ///< end of the range that was read last
  uint64_t streak_ = 0;                 ///< bytes of consecutive ranges so far
  std::atomic<uint64_t> aheadBegin_{0}; ///< position of the read-ahead thread
  std::atomic<uint64_t> aheadEnd_{0};   ///< where the read-ahead thread stops
  std::atomic<bool> isReadingOn_{false};
  std::future<void> readsOn_; ///< last member, so that destruction waits for it first
};

} // namespace shardc::checkpoint
