#include "runtime/checkpoint/Integrity.h"

#include <algorithm>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/Crc32.h"
#include "runtime/base/ParseNumber.h"
#include "runtime/base/Philox.h"
#include "runtime/base/Reports.h"
#include "runtime/checkpoint/DcpMetadata.h"

namespace shardc::checkpoint {
namespace {

constexpr std::string_view kHeader = "shardc-integrity 1 crc32 1048576\n";
constexpr size_t kTrailerSize = 4 + 8 + 1; // "end ", the checksum and a newline

/// The first half of an identifier is a hash of the contents. The second half is a hash of the
/// first half, so that the identifier can be recognised.
std::string saveIdOf(uint64_t hash) {
  uint64_t second = hashName(fmt::format("save {}", hash));
  return fmt::format("{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}", hash >> 32, (hash >> 16) & 0xffff,
                     hash & 0xfff, second >> 52, second & 0xffffffffffff);
}

/// Removes and returns the text up to the separator, or the whole text if there is none.
std::string_view takeUntil(std::string_view &text, char separator) {
  size_t end = text.find(separator);
  std::string_view part = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return part;
}

bool isPlainByte(unsigned char c) { return c > ' ' && c != '%' && c != 0x7f; }

/// The name with special bytes escaped as % and two hexadecimal digits, so that it is one word.
std::string escaped(std::string_view name) {
  std::string text;
  for (unsigned char c : name)
    text += isPlainByte(c) ? std::string(1, static_cast<char>(c)) : fmt::format("%{:02x}", c);
  return text;
}

/// The reverse of escaped(). False if a `%` is not followed by two hexadecimal digits.
bool unescape(std::string_view text, std::string &name) {
  name.clear();
  while (!text.empty()) {
    size_t length = text[0] == '%' ? 3 : 1;
    unsigned char byte = static_cast<unsigned char>(text[0]);
    if (length == 3 && (text.size() < 3 || !parseNumber(text.substr(1, 2), byte, 16)))
      return false;
    name.push_back(static_cast<char>(byte));
    text.remove_prefix(length);
  }
  return true;
}

Status damaged() {
  return makeStatus(report::CheckpointDamaged,
                    "'{}' is damaged; the checkpoint's checksums cannot be trusted",
                    kIntegrityFile);
}

constexpr uint64_t kWorthAdvice = uint64_t{1} << 20;
constexpr uint64_t kGapMax = uint64_t{1} << 20; ///< largest gap between consecutive ranges
constexpr uint64_t kAheadStep = uint64_t{4} << 20;
#ifndef MADV_POPULATE_READ // since Linux 5.14; others refuse it, and pages are read on access
#define MADV_POPULATE_READ 22
#endif

/// Advises the system about a range of a mapped file, limited to the map. Errors do not matter.
void advise(std::span<const uint8_t> map, uint64_t offset, uint64_t length, int advice) {
  if (offset >= map.size())
    return;
  uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  uint64_t begin = offset / page * page, end = std::min<uint64_t>(map.size(), offset + length);
  ::madvise(const_cast<uint8_t *>(map.data()) + begin, end - begin, advice);
}

} // namespace

std::string saveIdOf(std::string_view contents) { return saveIdOf(hashName(contents)); }

bool isOwnSaveId(std::string_view id) {
  constexpr size_t kHigh = 8, kMiddle = 9, kLow = 15; // where parts of the hash begin and end
  uint64_t high = 0, middle = 0, low = 0;
  if (id.size() != saveIdOf(uint64_t{0}).size() || !parseNumber(id.substr(0, kHigh), high, 16) ||
      !parseNumber(id.substr(kMiddle, 4), middle, 16) || !parseNumber(id.substr(kLow, 3), low, 16))
    return false;
  for (uint64_t bits = 0; bits < 16; ++bits) // four bits of the hash are not in the identifier
    if (saveIdOf(high << 32 | middle << 16 | bits << 12 | low) == id)
      return true;
  return false;
}

uint32_t BlockChecksums::add(const void *data, size_t size) {
  const auto *bytes = static_cast<const uint8_t *>(data);
  uint32_t all = 0;
  while (size != 0) {
    uint64_t filled = size_ % kIntegrityBlock;
    if (filled == 0)
      blocks_.push_back(0);
    size_t piece = static_cast<size_t>(std::min<uint64_t>(kIntegrityBlock - filled, size));
    uint32_t sum = crc32(0, bytes, piece);
    blocks_.back() = filled == 0 ? sum : crc32Combine(blocks_.back(), sum, piece);
    all = all == 0 ? sum : crc32Combine(all, sum, piece);
    bytes += piece;
    size -= piece;
    size_ += piece;
  }
  return all;
}

std::string IntegrityTable::text() const {
  std::string text(kHeader);
  for (const auto &[name, sums] : files) {
    text += fmt::format("{} {} ", escaped(name), sums.size_);
    for (uint32_t block : sums.blocks_)
      text += fmt::format("{:08x}", block);
    text.push_back('\n');
  }
  return text + fmt::format("end {:08x}\n", crc32(0, text.data(), text.size()));
}

Result<IntegrityTable> IntegrityTable::parse(std::string_view text) {
  if (!text.starts_with(kHeader) || text.size() < kHeader.size() + kTrailerSize)
    return damaged();
  std::string_view body = text.substr(0, text.size() - kTrailerSize);
  if (text.substr(body.size()) != fmt::format("end {:08x}\n", crc32(0, body.data(), body.size())))
    return damaged();
  IntegrityTable table;
  body.remove_prefix(kHeader.size());
  while (!body.empty()) {
    std::string_view line = takeUntil(body, '\n');
    std::string name;
    BlockChecksums sums;
    if (!unescape(takeUntil(line, ' '), name) || !isPlainPath(name) ||
        !parseNumber(takeUntil(line, ' '), sums.size_, 10))
      return damaged();
    uint64_t blocks = sums.size_ / kIntegrityBlock + (sums.size_ % kIntegrityBlock != 0 ? 1 : 0);
    if (line.size() % 8 != 0 || line.size() / 8 != blocks)
      return damaged();
    sums.blocks_.resize(static_cast<size_t>(blocks));
    for (size_t i = 0; i < sums.blocks_.size(); ++i)
      if (!parseNumber(line.substr(8 * i, 8), sums.blocks_[i], 16))
        return damaged();
    table.files[name] = std::move(sums);
  }
  return table;
}

void dropMapped(std::span<const uint8_t> bytes) {
  if (!bytes.empty()) // a hint, so errors do not matter
    ::madvise(const_cast<uint8_t *>(bytes.data()), bytes.size(), MADV_DONTNEED);
}

void readAhead(std::span<const uint8_t> bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t before = reinterpret_cast<uintptr_t>(bytes.data()) % page;
  if (!bytes.empty()) // also a hint
    ::madvise(const_cast<uint8_t *>(bytes.data()) - before, bytes.size() + before, MADV_WILLNEED);
}

Result<std::unique_ptr<CheckedFile>> CheckedFile::open(MappedFile map,
                                                       const BlockChecksums *checksums) {
  auto file = std::make_unique<CheckedFile>();
  file->map_ = std::move(map);
  if (checksums == nullptr)
    return file;
  if (checksums->size() != file->bytes().size())
    return makeStatus(report::CheckpointDamaged, "'{}' has {} bytes but {} were written",
                      file->path(), file->bytes().size(), checksums->size());
  file->checksums_ = checksums;
  file->isGood_ = std::make_unique<std::atomic<bool>[]>(checksums->blocks().size());
  return file;
}

Status CheckedFile::ensure(uint64_t offset, uint64_t length) {
  if (checksums_ == nullptr || length == 0)
    return Status::ok();
  for (uint64_t block = offset / kIntegrityBlock; block <= (offset + length - 1) / kIntegrityBlock;
       ++block) {
    if (isGood_[block].load(std::memory_order_relaxed))
      continue;
    uint64_t at = block * kIntegrityBlock;
    std::span<const uint8_t> data =
        bytes().subspan(at, std::min(kIntegrityBlock, bytes().size() - at));
    if (crc32(0, data.data(), data.size()) != checksums_->blocks()[block])
      return makeStatus(report::CheckpointDamaged,
                        "'{}' is damaged between bytes {} and {}: its checksum is wrong",
                        map_.path(), at, at + data.size());
    isGood_[block].store(true, std::memory_order_relaxed);
  }
  return Status::ok();
}

CheckedFile::~CheckedFile() { aheadEnd_ = 0; }

void CheckedFile::prefetch(uint64_t offset, uint64_t length) {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || length == 0) // several threads read, which keeps the disk busy
    return length >= kWorthAdvice ? advise(bytes(), offset, length, MADV_WILLNEED) : void();
  bool isNext = offset >= readEnd_ && offset - readEnd_ <= kGapMax;
  streak_ = (isNext ? streak_ : 0) + length;
  readEnd_ = offset + length;
  bool isAhead = isNext && readEnd_ <= aheadBegin_;
  if (length >= kWorthAdvice && !isAhead)
    advise(bytes(), offset, length, MADV_WILLNEED);
  uint64_t end = std::min<uint64_t>(bytes().size(), readEnd_ + std::min(streak_, kReadAhead));
  aheadEnd_ = isNext ? end : 0;
  uint64_t begin = isAhead ? aheadBegin_.load() : readEnd_;
  if (!isNext || isReadingOn_ || begin + kAheadStep > end)
    return;
  isReadingOn_ = true;
  readsOn_ = std::async(std::launch::async, [this, begin] { readOn(begin); });
}

void CheckedFile::readOn(uint64_t begin) {
  for (uint64_t at = begin; at < aheadEnd_; at += kAheadStep) {
    advise(bytes(), at + kAheadStep, kAheadStep, MADV_WILLNEED); // starts the next read
    advise(bytes(), at, kAheadStep, MADV_POPULATE_READ);
    aheadBegin_ = at + kAheadStep;
  }
  isReadingOn_ = false;
}

} // namespace shardc::checkpoint
