// Reads torch's zip archives: the directory at the end of an archive, including zip64, and the
// records.
#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "runtime/base/Crc32.h"
#include "runtime/base/ParseNumber.h"
#include "runtime/base/Reports.h"
#include "runtime/checkpoint/TorchArchive.h"

namespace shardc::checkpoint {
namespace {

constexpr uint64_t kEocdSize = 22, kLocatorSize = 20, kEocd64Size = 56, kCentralSize = 46,
                   kLocalSize = 30;
constexpr uint64_t kCommentMax = 64 * 1024;
constexpr uint64_t kEntriesMax = 100'000;
constexpr uint32_t kSaturated32 = 0xffffffffu;

template <typename... Args> Status archiveError(fmt::format_string<Args...> text, Args &&...args) {
  return makeStatus(report::CheckpointDamaged,
                    "torch archive: " + fmt::format(text, std::forward<Args>(args)...));
}

/// Reads a little endian value. The caller has checked the bounds.
template <typename T> T readAt(std::span<const uint8_t> bytes, uint64_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

struct Directory {
  uint64_t at = 0, size = 0, entries = 0;
  uint64_t end = 0; ///< where the end records of the directory begin
};

/// An entry of the zip directory. `dataAt` follows from the entry's own header.
struct RawEntry {
  std::string_view name;
  uint64_t size = 0, headerAt = 0;
  uint32_t crc = 0;
  uint64_t dataAt = 0;
};

/// Searches backwards for the end record, which may be followed by a comment that ends with the
/// file.
Result<uint64_t> findEocd(std::span<const uint8_t> bytes) {
  if (bytes.size() < kEocdSize)
    return archiveError("{} bytes are too few for an archive", bytes.size());
  uint64_t last = bytes.size() - kEocdSize;
  uint64_t first = last > kCommentMax ? last - kCommentMax : 0;
  for (uint64_t at = last + 1; at-- > first;)
    if (readAt<uint32_t>(bytes, at) == 0x06054b50 &&
        at + kEocdSize + readAt<uint16_t>(bytes, at + 20) == bytes.size())
      return at;
  return archiveError("its end record is missing; the record is cut short or is not an archive");
}

/// Replaces the fields of the 32-bit end record by those of the zip64 end record, if there is one.
Status readEocd64(std::span<const uint8_t> bytes, uint64_t eocd, Directory &directory) {
  bool isSaturated =
      directory.entries == 0xffff || directory.size == kSaturated32 || directory.at == kSaturated32;
  bool hasLocator =
      eocd >= kLocatorSize && readAt<uint32_t>(bytes, eocd - kLocatorSize) == 0x07064b50;
  if (!hasLocator)
    return isSaturated ? archiveError("its zip64 locator is missing") : Status::ok();
  uint64_t at = readAt<uint64_t>(bytes, eocd - kLocatorSize + 8);
  if (eocd - kLocatorSize < kEocd64Size || at > eocd - kLocatorSize - kEocd64Size ||
      readAt<uint32_t>(bytes, at) != 0x06064b50)
    return archiveError("its zip64 end record is missing");
  if (readAt<uint32_t>(bytes, at + 16) != 0 || readAt<uint32_t>(bytes, at + 20) != 0)
    return archiveError("it spans several disks");
  directory.entries = readAt<uint64_t>(bytes, at + 32);
  directory.size = readAt<uint64_t>(bytes, at + 40);
  directory.at = readAt<uint64_t>(bytes, at + 48);
  directory.end = at;
  return Status::ok();
}

/// Reads the end record of a zip file, or the end record with 64 bits if there is one. Offsets in
/// the record: 4 and 6 numbers of disks, 10 entries, 12 size and 16 position of the directory.
Result<Directory> findDirectory(std::span<const uint8_t> bytes) {
  ASSIGN_OR_RETURN(uint64_t eocd, findEocd(bytes));
  Directory directory;
  directory.entries = readAt<uint16_t>(bytes, eocd + 10);
  directory.size = readAt<uint32_t>(bytes, eocd + 12);
  directory.at = readAt<uint32_t>(bytes, eocd + 16);
  directory.end = eocd;
  if (readAt<uint16_t>(bytes, eocd + 4) != 0 || readAt<uint16_t>(bytes, eocd + 6) != 0)
    return archiveError("it spans several disks");
  RETURN_IF_ERROR(readEocd64(bytes, eocd, directory));
  if (directory.entries > kEntriesMax)
    return archiveError("{} entries; the limit is {}", directory.entries, kEntriesMax);
  if (directory.at > directory.end || directory.size > directory.end - directory.at)
    return archiveError("its directory ({} bytes at {}) does not end before byte {}",
                        directory.size, directory.at, directory.end);
  return directory;
}

/// Reads the saturated fields of a central entry from its zip64 extra field, in their fixed order.
Status readZip64Extra(std::span<const uint8_t> extra, uint64_t &size, uint64_t &compressed,
                      uint64_t &headerAt) {
  if (size != kSaturated32 && compressed != kSaturated32 && headerAt != kSaturated32)
    return Status::ok();
  while (extra.size() >= 4) {
    uint16_t id = readAt<uint16_t>(extra, 0), length = readAt<uint16_t>(extra, 2);
    if (length > extra.size() - 4)
      return archiveError("an extra field is longer than its entry");
    std::span<const uint8_t> field = extra.subspan(4, length);
    extra = extra.subspan(4u + length);
    if (id != 1)
      continue;
    for (uint64_t *value : {&size, &compressed, &headerAt}) {
      if (*value != kSaturated32)
        continue;
      if (field.size() < 8)
        return archiveError("a zip64 field is too short");
      *value = readAt<uint64_t>(field, 0);
      field = field.subspan(8);
    }
    return Status::ok();
  }
  return Status::ok(); // without zip64, the value is exactly 2^32-1
}

/// Reads the central entry at `at`, and advances `at` past it.
Result<RawEntry> readCentral(std::span<const uint8_t> bytes, uint64_t &at, uint64_t end) {
  if (end - at < kCentralSize || readAt<uint32_t>(bytes, at) != 0x02014b50)
    return archiveError("no directory entry at byte {}", at);
  uint16_t flags = readAt<uint16_t>(bytes, at + 8), method = readAt<uint16_t>(bytes, at + 10);
  uint64_t compressed = readAt<uint32_t>(bytes, at + 20);
  uint64_t nameLength = readAt<uint16_t>(bytes, at + 28),
           extraLength = readAt<uint16_t>(bytes, at + 30);
  uint64_t commentLength = readAt<uint16_t>(bytes, at + 32);
  RawEntry entry;
  entry.crc = readAt<uint32_t>(bytes, at + 16);
  entry.size = readAt<uint32_t>(bytes, at + 24);
  entry.headerAt = readAt<uint32_t>(bytes, at + 42);
  if (nameLength + extraLength + commentLength > end - at - kCentralSize)
    return archiveError("the directory entry at byte {} is longer than the directory", at);
  entry.name = {reinterpret_cast<const char *>(bytes.data() + at + kCentralSize), nameLength};
  RETURN_IF_ERROR(readZip64Extra(bytes.subspan(at + kCentralSize + nameLength, extraLength),
                                 entry.size, compressed, entry.headerAt));
  if ((flags & 1) != 0)
    return archiveError("entry '{}' is encrypted", entry.name);
  if (method != 0)
    return archiveError("entry '{}' is compressed (method {}); torch stores entries", entry.name,
                        method);
  if (compressed != entry.size)
    return archiveError("entry '{}' has {} bytes stored but {} unpacked", entry.name, compressed,
                        entry.size);
  at += kCentralSize + nameLength + extraLength + commentLength;
  return entry;
}

/// Finds the data after the local header, and checks that both headers agree.
Status locateData(std::span<const uint8_t> bytes, uint64_t limit, RawEntry &entry) {
  if (entry.headerAt > limit || limit - entry.headerAt < kLocalSize ||
      readAt<uint32_t>(bytes, entry.headerAt) != 0x04034b50)
    return archiveError("entry '{}' has no header at byte {}", entry.name, entry.headerAt);
  uint64_t nameLength = readAt<uint16_t>(bytes, entry.headerAt + 26);
  uint64_t extraLength = readAt<uint16_t>(bytes, entry.headerAt + 28);
  uint64_t bytesLeft = limit - entry.headerAt - kLocalSize;
  if (nameLength + extraLength > bytesLeft || entry.size > bytesLeft - nameLength - extraLength)
    return archiveError("entry '{}' ({} bytes) reaches into the directory", entry.name, entry.size);
  std::string_view name(reinterpret_cast<const char *>(bytes.data() + entry.headerAt + kLocalSize),
                        nameLength);
  if (name != entry.name)
    return archiveError("entry '{}' has the name '{}' in its own header", entry.name, name);
  if ((readAt<uint16_t>(bytes, entry.headerAt + 6) & 1) != 0 ||
      readAt<uint16_t>(bytes, entry.headerAt + 8) != 0)
    return archiveError("entry '{}' is not a plain stored entry", entry.name);
  entry.dataAt = entry.headerAt + kLocalSize + nameLength + extraLength;
  return Status::ok();
}

Status checkEntriesApart(std::vector<RawEntry> entries) {
  std::sort(entries.begin(), entries.end(),
            [](const RawEntry &a, const RawEntry &b) { return a.headerAt < b.headerAt; });
  for (size_t i = 1; i < entries.size(); ++i)
    if (entries[i - 1].dataAt + entries[i - 1].size > entries[i].headerAt)
      return archiveError("entries '{}' and '{}' overlap", entries[i - 1].name, entries[i].name);
  return Status::ok();
}

Status checkName(std::string_view name, std::string_view prefix) {
  if (name.size() <= prefix.size() + 1 || !name.starts_with(prefix) || name[prefix.size()] != '/')
    return archiveError("entry '{}' is not under '{}/'", name, prefix);
  std::string_view rest = name.substr(prefix.size() + 1);
  if (rest.find("..") != std::string_view::npos || rest.find('\\') != std::string_view::npos ||
      rest[0] == '/' || rest.find('\0') != std::string_view::npos)
    return archiveError("entry name '{}' points outside the archive", name);
  return Status::ok();
}

std::string_view entryText(const ArchiveEntry &entry) {
  return {reinterpret_cast<const char *>(entry.data.data()), entry.data.size()};
}

/// Checks the entries that torch writes in addition to storages: `data.pkl`, the version of the
/// format, which has two possible names, and the byte order, which may be missing.
Status checkRequired(const ArchiveReader &archive) {
  if (archive.find("data.pkl") == nullptr)
    return archiveError("it has no 'data.pkl'");
  const ArchiveEntry *version = archive.find("version");
  if (version == nullptr)
    version = archive.find(".data/version");
  if (version == nullptr)
    return archiveError("it has no 'version'");
  std::string_view text = entryText(*version);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r'))
    text.remove_suffix(1);
  int number = 0;
  if (!parseNumber(text, number) || number < 1 || number > 10)
    return archiveError("version '{}'; versions 1 to 10 are supported", text.substr(0, 20));
  const ArchiveEntry *order = archive.find("byteorder");
  if (order != nullptr && entryText(*order) != "little")
    return archiveError("byte order '{}'; only 'little' is supported",
                        entryText(*order).substr(0, 20));
  return Status::ok();
}

} // namespace

/// Reads the directory and checks that entries lie in the file, do not overlap and have distinct
/// names in one folder. The small entries are verified at once, data when they are read.
Result<ArchiveReader> ArchiveReader::open(std::span<const uint8_t> bytes) {
  ASSIGN_OR_RETURN(Directory directory, findDirectory(bytes));
  std::vector<RawEntry> raw;
  uint64_t at = directory.at, end = directory.at + directory.size;
  ArchiveReader archive;
  std::unordered_set<std::string_view> names;
  for (uint64_t i = 0; i < directory.entries; ++i) {
    ASSIGN_OR_RETURN(RawEntry entry, readCentral(bytes, at, end));
    RETURN_IF_ERROR(locateData(bytes, directory.at, entry));
    if (i == 0)
      archive.prefix_ = entry.name.substr(0, entry.name.find('/'));
    RETURN_IF_ERROR(checkName(entry.name, archive.prefix_));
    if (!names.insert(entry.name).second)
      return archiveError("two entries are named '{}'", entry.name);
    raw.push_back(entry);
    archive.hasChecksums_ |= entry.crc != 0;
    archive.entries_.push_back({entry.name.substr(archive.prefix_.size() + 1),
                                bytes.subspan(entry.dataAt, entry.size), entry.crc});
  }
  if (at != end)
    return archiveError("its directory has {} bytes too many", end - at);
  RETURN_IF_ERROR(checkEntriesApart(std::move(raw)));
  for (const ArchiveEntry &entry : archive.entries_)
    if (!entry.name.starts_with("data/"))
      RETURN_IF_ERROR(archive.verify(entry));
  RETURN_IF_ERROR(checkRequired(archive));
  return archive;
}

const ArchiveEntry *ArchiveReader::find(std::string_view name) const {
  for (const ArchiveEntry &entry : entries_)
    if (entry.name == name)
      return &entry;
  return nullptr;
}

Status ArchiveReader::verify(const ArchiveEntry &entry, const BeforePiece &before) const {
  if (!hasChecksums_)
    return Status::ok();
  uint32_t crc = 0;
  for (size_t at = 0; at < entry.data.size(); at += kVerifyPiece) {
    std::span<const uint8_t> piece =
        entry.data.subspan(at, std::min(kVerifyPiece, entry.data.size() - at));
    if (before)
      before(piece);
    crc = crc32(crc, piece.data(), piece.size());
  }
  if (crc == entry.crc)
    return Status::ok();
  return archiveError(
      "entry '{}' has the checksum {:08x} but its bytes give {:08x}; the file is damaged",
      entry.name, entry.crc, crc);
}

Status ArchiveReader::verifyAll(const BeforePiece &before) const {
  for (const ArchiveEntry &entry : entries_)
    RETURN_IF_ERROR(verify(entry, before));
  return Status::ok();
}

} // namespace shardc::checkpoint
