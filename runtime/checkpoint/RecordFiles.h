// The files of a checkpoint's folder: opened beneath it, following no links, and compared with
// their checksums, if they have any, before anything of them is used. Our own files have a checksum
// for each block. In other programs' files, each record has those of its archive; the first access
// compares the complete record.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/base/UntrustedFolder.h"
#include "runtime/checkpoint/DcpMetadata.h"
#include "runtime/checkpoint/Integrity.h"
#include "runtime/checkpoint/TorchArchive.h"

namespace shardc::checkpoint {

/// A record in its mapped file.
struct OpenRecord {
  CheckedFile *file = nullptr;
  ArchiveReader archive;
  bool isInMemory = false; ///< just read whole, to be compared
};

class RecordFiles {
public:
  /// `emit`, if there is one, takes a warning where records have no checksums at all (PyTorch has
  /// an option to write none), once, from any thread that reads.
  RecordFiles(UntrustedFolder folder, bool comparesBoth, ReportSink emit)
      : folder_(std::move(folder)), comparesBoth_(comparesBoth), emit_(std::move(emit)) {}

  /// Reads `.shardc_integrity`, which other programs' checkpoints lack.
  Status loadIntegrity();
  bool hasIntegrity() const { return hasIntegrity_; }
  const IntegrityTable &integrity() const { return integrity_; }
  const UntrustedFolder &folder() const { return folder_; }

  /// Makes the metadata's records known; NotFound or InvalidInput for a file that is missing, cut
  /// short, no regular file or without checksums in our table.
  Status addRecords(const Metadata &metadata);
  /// A file other than those of records, all of it compared with our checksums, or, where they do
  /// not name it and it is an archive (`.pt`), with those of its entries.
  Result<std::unique_ptr<CheckedFile>> openOther(const std::string &name) const;

  /// A record that addRecords knows. A record in another program's file is returned only after all
  /// of it was compared; in our own files the caller compares what it uses (CheckedFile::ensure).
  Result<OpenRecord> open(const RecordRef &record);
  /// Compares the record by all checksums that there are.
  Status verify(const RecordRef &record);
  /// Compares all that our table names with it.
  Status verifyFiles() const;

  /// Counts bytes that were read; drops all from memory once there are many.
  void touch(uint64_t bytes);

private:
  /// A file that the metadata names, mapped at its first use.
  struct DataFile {
    std::string name;
    uint64_t bytesNeeded = 0;
    const BlockChecksums *checksums = nullptr;
    std::once_flag once;
    std::unique_ptr<CheckedFile> file;
    Status status;
    std::vector<uint64_t> records;                ///< where they begin, ascending
    std::unique_ptr<std::atomic<bool>[]> isRight; ///< which of them were compared
  };

  Status checkFile(const DataFile &file) const;
  Result<CheckedFile *> map(DataFile &file);
  Status compare(OpenRecord &open, const RecordRef &record, DataFile &file);
  Status compareEntries(CheckedFile &file, const ArchiveReader &archive);
  void warnOfUnchecked(const RecordRef &record);

  UntrustedFolder folder_;
  bool comparesBoth_ = false; ///< of our own files the archives' checksums too
  ReportSink emit_;
  std::atomic<bool> hasWarned_{false};
  IntegrityTable integrity_;
  bool hasIntegrity_ = false;
  std::unordered_map<std::string, DataFile> files_;
  /// A record is compared by one thread while others that need it wait; by its number.
  std::array<std::mutex, 64> compareMutexes_;
  std::atomic<uint64_t> touched_{0};
  std::mutex openMutex_; ///< guards the next
  std::vector<const CheckedFile *> openFiles_;
};

} // namespace shardc::checkpoint
