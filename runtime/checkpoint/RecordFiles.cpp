#include "runtime/checkpoint/RecordFiles.h"

#include <algorithm>

#include "runtime/base/Reports.h"
#include "runtime/checkpoint/Reading.h"

namespace shardc::checkpoint {
namespace {

constexpr uint64_t kMappedTouchedMax = uint64_t{128}
                                       << 20; ///< bytes of mapped files to keep in memory
constexpr uint64_t kIntegrityBytesMax = uint64_t{256} << 20;

} // namespace

Status RecordFiles::loadIntegrity() {
  Result<std::string> text = folder_.read(kIntegrityFile, kIntegrityBytesMax);
  if (!text.isOk()) // a checkpoint of another program
    return text.status().code() == StatusCode::NotFound ? Status::ok() : text.status();
  ASSIGN_OR_RETURN(integrity_, IntegrityTable::parse(*text));
  hasIntegrity_ = true;
  return Status::ok();
}

Status RecordFiles::checkFile(const DataFile &file) const {
  Result<uint64_t> size = folder_.sizeOf(file.name);
  if (!size.isOk() && size.status().code() == StatusCode::NotFound)
    return makeStatus(StatusCode::NotFound,
                      "checkpoint '{}' has no file '{}', which '.metadata' names", folder_.path(),
                      file.name)
        .as(report::CheckpointDamaged.info());
  RETURN_IF_ERROR(size.status());
  if (*size < file.bytesNeeded)
    return damaged("'{}/{}' is truncated: {} bytes are needed{}, but it has {}", folder_.path(),
                   file.name, file.bytesNeeded, hasIntegrity_ ? "" : " by '.metadata'", *size);
  return Status::ok();
}

Status RecordFiles::addRecords(const Metadata &metadata) {
  auto need = [&](const RecordRef &record) {
    DataFile &file = files_[record.file];
    file.bytesNeeded = std::max(file.bytesNeeded, record.offset + record.length);
    file.records.push_back(record.offset);
  };
  for (const TensorMeta &tensor : metadata.tensors)
    for (const Chunk &chunk : tensor.chunks)
      need(chunk.record);
  for (const ObjectMeta &object : metadata.objects)
    need(object.record);
  for (auto &[name, file] : files_) {
    file.name = name;
    std::ranges::sort(file.records);
    file.isRight = std::make_unique<std::atomic<bool>[]>(file.records.size());
    auto sums = integrity_.files.find(name);
    if (sums != integrity_.files.end())
      file.checksums = &sums->second;
    else if (hasIntegrity_)
      return damaged("'{}/{}' has no checksums for '{}'", folder_.path(), kIntegrityFile, name);
    RETURN_IF_ERROR(checkFile(file));
  }
  return Status::ok();
}

Result<std::unique_ptr<CheckedFile>> RecordFiles::openOther(const std::string &name) const {
  ASSIGN_OR_RETURN(MappedFile map, folder_.map(name));
  auto sums = integrity_.files.find(name);
  bool isListed = sums != integrity_.files.end();
  ASSIGN_OR_RETURN(std::unique_ptr<CheckedFile> file,
                   CheckedFile::open(std::move(map), isListed ? &sums->second : nullptr));
  RETURN_IF_ERROR(file->ensure(0, file->bytes().size()));
  if (isListed || !name.ends_with(".pt"))
    return file;
  Result<ArchiveReader> archive = ArchiveReader::open(file->bytes());
  Status status = archive.isOk() ? archive->verifyAll() : archive.status();
  if (!status.isOk())
    return std::move(status).withContext(fmt::format("'{}'", file->path()));
  return file;
}

Result<CheckedFile *> RecordFiles::map(DataFile &file) {
  std::call_once(file.once, [&] {
    Result<MappedFile> map = folder_.map(file.name);
    Result<std::unique_ptr<CheckedFile>> opened =
        map.isOk() ? CheckedFile::open(std::move(*map), file.checksums) : map.status();
    if (!opened.isOk()) {
      file.status = opened.status();
      return;
    }
    if ((*opened)->bytes().size() < file.bytesNeeded) { // it shrank after the check of its size
      file.status = damaged("'{}' is truncated: {} bytes are needed, but it has {}",
                            (*opened)->path(), file.bytesNeeded, (*opened)->bytes().size());
      return;
    }
    file.file = std::move(*opened);
    std::lock_guard lock(openMutex_);
    openFiles_.push_back(file.file.get());
  });
  RETURN_IF_ERROR(file.status);
  return file.file.get();
}

Status RecordFiles::compareEntries(CheckedFile &file, const ArchiveReader &archive) {
  return archive.verifyAll([&](std::span<const uint8_t> piece) {
    file.prefetch(static_cast<uint64_t>(piece.data() - file.bytes().data()), piece.size());
    touch(piece.size());
  });
}

void RecordFiles::warnOfUnchecked(const RecordRef &record) {
  if (emit_ && !hasWarned_.exchange(true))
    emit_(makeReport(report::UncheckedRecords, folder_.path(), record.offset, record.file));
}

Status RecordFiles::compare(OpenRecord &open, const RecordRef &record, DataFile &file) {
  bool comparesEntries = !open.file->isChecked() || comparesBoth_;
  auto index = static_cast<size_t>(std::ranges::lower_bound(file.records, record.offset) -
                                   file.records.begin());
  std::atomic<bool> &isRight = file.isRight[index];
  if (!comparesEntries || isRight.load(std::memory_order_acquire))
    return Status::ok();
  std::lock_guard lock(compareMutexes_[index % compareMutexes_.size()]);
  if (isRight.load(std::memory_order_relaxed)) // another thread has verified it meanwhile
    return Status::ok();
  if (!open.file->isChecked() && !open.archive.hasChecksums())
    warnOfUnchecked(record);
  RETURN_IF_ERROR(compareEntries(*open.file, open.archive));
  RETURN_IF_ERROR(open.file->ensure(record.offset, record.length));
  isRight.store(true, std::memory_order_release);
  open.isInMemory = true;
  return Status::ok();
}

Result<OpenRecord> RecordFiles::open(const RecordRef &record) {
  DataFile &data = files_.at(record.file);
  OpenRecord open;
  ASSIGN_OR_RETURN(open.file, map(data));
  ASSIGN_OR_RETURN(open.archive,
                   ArchiveReader::open(open.file->bytes().subspan(record.offset, record.length)));
  RETURN_IF_ERROR(compare(open, record, data));
  return open;
}

Status RecordFiles::verify(const RecordRef &record) {
  ASSIGN_OR_RETURN(OpenRecord opened, open(record));
  if (opened.file->isChecked() && !comparesBoth_)
    RETURN_IF_ERROR(compareEntries(*opened.file, opened.archive));
  return opened.file->ensure(record.offset, record.length);
}

Status RecordFiles::verifyFiles() const {
  for (const auto &[name, sums] : integrity_.files) {
    ASSIGN_OR_RETURN(MappedFile map, folder_.map(name));
    ASSIGN_OR_RETURN(std::unique_ptr<CheckedFile> file, CheckedFile::open(std::move(map), &sums));
    for (uint64_t at = 0; at < file->bytes().size(); at += kMappedTouchedMax) {
      RETURN_IF_ERROR(file->ensure(at, std::min(kMappedTouchedMax, file->bytes().size() - at)));
      file->drop();
    }
  }
  return Status::ok();
}

void RecordFiles::touch(uint64_t bytes) {
  if (touched_.fetch_add(bytes, std::memory_order_relaxed) + bytes < kMappedTouchedMax)
    return;
  std::lock_guard lock(openMutex_);
  if (touched_.exchange(0, std::memory_order_relaxed) < kMappedTouchedMax)
    return; // another thread has released the memory
  for (const CheckedFile *file : openFiles_)
    file->drop();
}

} // namespace shardc::checkpoint
