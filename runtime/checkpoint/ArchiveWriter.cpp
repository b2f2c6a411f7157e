// Writes torch's zip archives record by record, with the checksums and the id that torch adds.
#include <algorithm>
#include <functional>
#include <unordered_set>

#include "runtime/base/Crc32.h"
#include "runtime/checkpoint/TorchArchive.h"

namespace shardc::checkpoint {
namespace {

constexpr uint64_t kSaturated = 0xffffffffu;
constexpr uint64_t kAlignment = 64;
constexpr size_t kCachedBytes = size_t{256} << 10; ///< fits into a core's cache

/// Appends little endian fields.
class RecordFields {
public:
  RecordFields &u16(uint64_t value) { return raw(value, 2); }
  RecordFields &u32(uint64_t value) { return raw(value, 4); }
  RecordFields &u64(uint64_t value) { return raw(value, 8); }
  RecordFields &text(std::string_view value) {
    bytes_.append(value);
    return *this;
  }
  std::string take() { return std::move(bytes_); }
  size_t size() const { return bytes_.size(); }

private:
  RecordFields &raw(uint64_t value, size_t width) {
    bytes_.append(reinterpret_cast<const char *>(&value), width);
    return *this;
  }
  std::string bytes_;
};

uint64_t saturated(uint64_t value) { return std::min(value, kSaturated); }

/// The zip64 extra field: only the numbers that do not fit into 32 bits, in fixed order. In a local
/// header, the compressed size is not known yet and is written as 0.
std::string zip64Extra(uint64_t size, uint64_t compressed, uint64_t headerAt) {
  RecordFields values;
  if (size >= kSaturated)
    values.u64(size).u64(compressed);
  if (headerAt >= kSaturated)
    values.u64(headerAt);
  if (values.size() == 0)
    return {};
  RecordFields field;
  uint64_t length = values.size();
  return field.u16(1).u16(length).text(values.take()).take();
}

/// Mixes a value into a seed as boost does; torch computes its ids this way.
uint64_t mix(uint64_t seed, uint64_t value) {
  return seed ^ (value + 0x9e3779b9 + (seed << 6) + (seed >> 2));
}

uint64_t flagsOf(uint64_t size) {
  return size != 0 ? 0x0808 : 0x0800;
} // UTF-8 name; descriptor follows

} // namespace

Status ByteSink::writeSummed(const void *data, size_t size, uint32_t &crc) {
  crc = crc32(0, data, size);
  return write(data, size);
}

Status ArchiveWriter::emit(std::string_view bytes) {
  cursor_ += bytes.size();
  return sink_.write(bytes.data(), bytes.size());
}

std::string ArchiveWriter::localHeader(const Written &entry) const {
  std::string zip64 = zip64Extra(entry.size, 0, entry.headerAt);
  uint64_t dataAt = entry.headerAt + 30 + entry.name.size() + zip64.size() + 4;
  uint64_t padding = (kAlignment - dataAt % kAlignment) % kAlignment;
  RecordFields header;
  header.u32(0x04034b50).u16(0).u16(flagsOf(entry.size)).u16(0).u16(0).u16(0).u32(0).u32(0).u32(0);
  header.u16(entry.name.size()).u16(zip64.size() + 4 + padding).text(entry.name).text(zip64);
  return header.text("FB").u16(padding).text(std::string(padding, 'Z')).take();
}

Status ArchiveWriter::addParts(std::string_view name, uint64_t size,
                               std::span<const std::string_view> parts) {
  return addGiven(name, size, [&](const TakeBytes &take) {
    for (std::string_view part : parts)
      RETURN_IF_ERROR(take(part));
    return Status::ok();
  });
}

/// Adds an entry of `size` bytes that `give` provides in parts. The checksum is known only at the
/// end, so it follows the data in a descriptor. Sizes and offsets of 4 GiB or more need the zip64
/// form.
Status ArchiveWriter::addGiven(std::string_view name, uint64_t size, const GiveBytes &give) {
  Written entry{fmt::format("{}/{}", prefix_, name), size, cursor_, 0};
  RETURN_IF_ERROR(emit(localHeader(entry)));
  uint64_t total = 0;
  RETURN_IF_ERROR(give([&](std::string_view part) {
    total += part.size();
    for (; !part.empty(); part.remove_prefix(std::min(part.size(), kCachedBytes))) {
      std::string_view piece =
          part.substr(0, kCachedBytes); // each piece is read from memory once, then from the cache
      uint32_t crc = 0;
      cursor_ += piece.size();
      RETURN_IF_ERROR(sink_.writeSummed(piece.data(), piece.size(), crc));
      entry.crc = crc32Combine(entry.crc, crc, piece.size());
    }
    return Status::ok();
  }));
  SHARDC_CHECK(total == size, "entry '{}' was announced with {} bytes and got {}", name, size,
               total);
  if (size != 0) {
    RecordFields descriptor;
    descriptor.u32(0x08074b50).u32(entry.crc);
    if (size >= kSaturated || entry.headerAt >= kSaturated)
      descriptor.u64(size).u64(size);
    else
      descriptor.u32(size).u32(size);
    RETURN_IF_ERROR(emit(descriptor.take()));
  }
  entries_.push_back(std::move(entry));
  return Status::ok();
}

std::string ArchiveWriter::serializationId() const {
  // torch iterates over a std::unordered_set of names, so the digits depend on the standard
  // library. With libstdc++, they equal torch's. Readers accept any digits.
  std::unordered_set<std::string> names;
  uint64_t checksums = 0, hash = 0;
  for (const Written &entry : entries_) {
    names.insert(entry.name.substr(prefix_.size() + 1));
    if (entry.size != 0)
      checksums = mix(checksums, entry.crc);
  }
  for (const std::string &name : names)
    hash = mix(hash, std::hash<std::string>{}(name));
  return fmt::format("{:020}{:020}", hash, checksums);
}

/// The entry of a file in the zip directory. The zeros are, in order: the two versions, no
/// compression, time and date; then the length of the comment, the disk and the attributes.
std::string ArchiveWriter::centralEntry(const Written &entry) const {
  std::string zip64 = zip64Extra(entry.size, entry.size, entry.headerAt);
  RecordFields central;
  central.u32(0x02014b50)
      .u16(0)
      .u16(0)
      .u16(flagsOf(entry.size))
      .u16(0)
      .u16(0)
      .u16(0)
      .u32(entry.crc);
  central.u32(saturated(entry.size))
      .u32(saturated(entry.size))
      .u16(entry.name.size())
      .u16(zip64.size());
  central.u16(0).u16(0).u16(0).u32(0).u32(saturated(entry.headerAt)).text(entry.name).text(zip64);
  return central.take();
}

/// Three records: the end record with 64 bits, its locator, and the end record of old zip files,
/// whose fields are as large as possible where a value does not fit.
std::string ArchiveWriter::ending(uint64_t directoryAt, uint64_t directorySize) const {
  uint64_t count = entries_.size(), short16 = std::min<uint64_t>(count, 0xffff);
  uint64_t end64At = directoryAt + directorySize;
  RecordFields end;
  end.u32(0x06064b50)
      .u64(44)
      .u16(0x031e)
      .u16(45)
      .u32(0)
      .u32(0)
      .u64(count)
      .u64(count)
      .u64(directorySize)
      .u64(directoryAt);
  end.u32(0x07064b50).u32(0).u64(end64At).u32(1);
  end.u32(0x06054b50).u16(0).u16(0).u16(short16).u16(short16);
  end.u32(saturated(directorySize)).u32(saturated(directoryAt)).u16(0);
  return end.take();
}

Status ArchiveWriter::finish() {
  RETURN_IF_ERROR(add(".data/serialization_id", serializationId()));
  uint64_t directoryAt = cursor_;
  std::string directory;
  for (const Written &entry : entries_)
    directory += centralEntry(entry);
  RETURN_IF_ERROR(emit(directory));
  return emit(ending(directoryAt, directory.size()));
}

Result<std::string> objectRecord(std::string_view pickle, std::span<const ArchiveEntry> storages,
                                 std::string_view prefix) {
  StringSink sink;
  ArchiveWriter archive(sink, prefix);
  RETURN_IF_ERROR(archive.add("data.pkl", pickle));
  RETURN_IF_ERROR(archive.add(".format_version", "1"));
  RETURN_IF_ERROR(archive.add(".storage_alignment", "64"));
  RETURN_IF_ERROR(archive.add("byteorder", "little"));
  for (const ArchiveEntry &entry : storages)
    RETURN_IF_ERROR(archive.add(
        entry.name, {reinterpret_cast<const char *>(entry.data.data()), entry.data.size()}));
  RETURN_IF_ERROR(archive.add("version", "3\n"));
  RETURN_IF_ERROR(archive.finish());
  return std::move(sink.bytes);
}

} // namespace shardc::checkpoint
