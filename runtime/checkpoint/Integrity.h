// Checksums of our own checkpoints: a CRC-32 for every block of every file, in one small text file
// beside them, which others ignore. A reader checks each block that it reads once, so damage is
// found even if only a part of a record is read.
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

/// Block checksums of one file, made as its bytes pass by.
class BlockChecksums {
public:
  /// Returns the CRC-32 of these bytes alone, which is combined from those of their blocks: each
  /// byte is read once for both.
  uint32_t add(const void *data, size_t size);
  uint64_t size() const { return size_; }
  const std::vector<uint32_t> &blocks() const { return blocks_; }

private:
  friend class IntegrityTable;
  std::vector<uint32_t> blocks_;
  uint64_t size_ = 0;
};

/// The checksums of all files of a checkpoint, by name.
class IntegrityTable {
public:
  std::map<std::string, BlockChecksums> files;

  /// The text form; ends with a checksum of itself.
  std::string text() const;
  static Result<IntegrityTable> parse(std::string_view text);
};

/// An identifier in the form of a uuid, derived from the saved contents, so that equal saves have
/// equal bytes. `.metadata` has it.
std::string saveIdOf(std::string_view contents);
/// Whether an identifier is of that kind: then shardc has written the checkpoint, and the file of
/// checksums with it.
bool isOwnSaveId(std::string_view id);

/// Gives back the memory that the pages of a mapped file occupy. They count as this process's, so
/// code that streams through a large file drops them regularly.
void dropMapped(std::span<const uint8_t> bytes);

/// A mapped file whose blocks are checked before they are used. Safe for use by several threads.
class CheckedFile {
public:
  static constexpr uint64_t kReadAhead = uint64_t{32} << 20;

  CheckedFile() = default;
  ~CheckedFile();
  /// `checksums` may be null: nothing is checked then. It must outlive the file.
  static Result<std::unique_ptr<CheckedFile>> open(MappedFile map, const BlockChecksums *checksums);

  const std::string &path() const { return map_.path(); }
  std::span<const uint8_t> bytes() const { return map_.bytes(); }
  bool isChecked() const { return checksums_ != nullptr; }
  /// Checks the blocks under a range that lies in the file.
  Status ensure(uint64_t offset, uint64_t length);
  /// Says that a range is read now: the disk begins with it. While ranges follow each other another
  /// thread reads on, as far as was read in one go but no further than `kReadAhead`.
  void prefetch(uint64_t offset, uint64_t length);
  /// Releases the memory of pages that were read; they may be read again.
  void drop() const { dropMapped(bytes()); }

private:
  void readOn(uint64_t begin);

  MappedFile map_;
  const BlockChecksums *checksums_ = nullptr;
  std::unique_ptr<std::atomic<bool>[]> isGood_;
  std::mutex mutex_;                    ///< guards the next two
  uint64_t readEnd_ = 0;                ///< of the range read last
  uint64_t streak_ = 0;                 ///< bytes of ranges that followed each other
  std::atomic<uint64_t> aheadBegin_{0}; ///< where the other thread is
  std::atomic<uint64_t> aheadEnd_{0};   ///< where it stops
  std::atomic<bool> isReadingOn_{false};
  std::future<void> readsOn_; ///< waited for before all else is gone
};

} // namespace shardc::checkpoint
