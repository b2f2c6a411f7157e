// Opens the files of a checkpoint's folder without following links, and verifies their checksums,
// if there are any, before any part is used. Our own files have a checksum per block. In files of
// other programs, each record has the checksums of its archive, and the first access verifies the
// complete record.
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
  bool isInMemory = false; ///< it was just read completely, to be verified
};

/// The data files of one checkpoint: mapped on first use, and verified with the checksums that
/// exist.
class RecordFiles {
public:
  /// `emit`, if set, receives one warning if records have no checksums at all (PyTorch has an
  /// option to write none). Any thread that reads may call it.
  RecordFiles(UntrustedFolder folder, bool comparesBoth, ReportSink emit)
      : folder_(std::move(folder)), comparesBoth_(comparesBoth), emit_(std::move(emit)) {}

  /// Reads `.shardc_integrity`, which checkpoints of other programs lack.
  Status loadIntegrity();
  bool hasIntegrity() const { return hasIntegrity_; }
  const IntegrityTable &integrity() const { return integrity_; }
  const UntrustedFolder &folder() const { return folder_; }

  /// Registers the metadata's records. NotFound or InvalidInput for a file that is missing, too
  /// short, not a regular file, or without checksums in our table.
  Status addRecords(const Metadata &metadata);
  /// Opens a file other than those of records. The whole file is verified with our checksums. An
  /// archive (`.pt`) without such checksums is verified with those of its entries.
  Result<std::unique_ptr<CheckedFile>> openOther(const std::string &name) const;

  /// Opens a record that addRecords has registered. A record in another program's file is returned
  /// only after it was verified completely. In our own files, the caller verifies what it uses
  /// (CheckedFile::ensure).
  Result<OpenRecord> open(const RecordRef &record);
  /// Verifies the record with all existing checksums.
  Status verify(const RecordRef &record);
  /// Verifies all files that our table names.
  Status verifyFiles() const;

  /// Counts bytes that were read, and releases the memory of all files if there are many.
  void touch(uint64_t bytes);

private:
  /// A file that the metadata names; it is mapped on first use.
  struct DataFile {
    std::string name;
    uint64_t bytesNeeded = 0;
    const BlockChecksums *checksums = nullptr;
    std::once_flag once;
    std::unique_ptr<CheckedFile> file;
    Status status;
    std::vector<uint64_t> records;                ///< offsets of its records, ascending
    std::unique_ptr<std::atomic<bool>[]> isRight; ///< by record: whether it was verified
  };

  Status checkFile(const DataFile &file) const;
  Result<CheckedFile *> map(DataFile &file);
  Status compare(OpenRecord &open, const RecordRef &record, DataFile &file);
  /// Verifies all entries of an archive as a stream: the disk starts to read each piece before it
  /// is verified, and the memory of verified pieces is released.
  Status compareEntries(CheckedFile &file, const ArchiveReader &archive);
  void warnOfUnchecked(const RecordRef &record);

  UntrustedFolder folder_;
  bool comparesBoth_ = false; ///< also verifies the archives' checksums in our own files
  ReportSink emit_;
  std::atomic<bool> hasWarned_{false};
  IntegrityTable integrity_;
  bool hasIntegrity_ = false;
  std::unordered_map<std::string, DataFile> files_;
  /// One thread verifies a record while others that need it wait. Indexed by the record's number,
  /// modulo.
  std::array<std::mutex, 64> compareMutexes_;
  std::atomic<uint64_t> touched_{0};
  std::mutex openMutex_; ///< guards the next member
  std::vector<const CheckedFile *> openFiles_;
};

} // namespace shardc::checkpoint
