#include "runtime/checkpoint/Integrity.h"

#include <algorithm>
#include <charconv>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/Crc32.h"
#include "runtime/checkpoint/DcpMetadata.h"

namespace shardc::checkpoint {
namespace {

constexpr std::string_view kHeader = "shardc-integrity 1 crc32 1048576\n";
constexpr size_t kTrailerSize = 4 + 8 + 1; // "end " checksum newline

template <typename T> bool parseNumber(std::string_view text, T &value, int base) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return error == std::errc() && end == text.data() + text.size();
}

/// Cuts off the text up to a separator; the whole text if there is none.
std::string_view takeUntil(std::string_view &text, char separator) {
  size_t end = text.find(separator);
  std::string_view part = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return part;
}

Status damaged() {
  return makeStatus(StatusCode::InvalidInput,
                    "'{}' is damaged; the checkpoint's checksums cannot be trusted",
                    kIntegrityFile);
}

} // namespace

void BlockChecksums::add(const void *data, size_t size) {
  const auto *bytes = static_cast<const uint8_t *>(data);
  while (size != 0) {
    uint64_t filled = size_ % kIntegrityBlock;
    if (filled == 0)
      blocks_.push_back(0);
    size_t piece = static_cast<size_t>(std::min<uint64_t>(kIntegrityBlock - filled, size));
    blocks_.back() = crc32(blocks_.back(), bytes, piece);
    bytes += piece;
    size -= piece;
    size_ += piece;
  }
}

std::string IntegrityTable::text() const {
  std::string text(kHeader);
  for (const auto &[name, sums] : files) {
    text += fmt::format("{} {} ", name, sums.size_);
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
    std::string_view name = takeUntil(line, ' ');
    BlockChecksums sums;
    if (!isPlainFileName(name) || !parseNumber(takeUntil(line, ' '), sums.size_, 10))
      return damaged();
    uint64_t blocks = sums.size_ / kIntegrityBlock + (sums.size_ % kIntegrityBlock != 0 ? 1 : 0);
    if (line.size() % 8 != 0 || line.size() / 8 != blocks)
      return damaged();
    sums.blocks_.resize(static_cast<size_t>(blocks));
    for (size_t i = 0; i < sums.blocks_.size(); ++i)
      if (!parseNumber(line.substr(8 * i, 8), sums.blocks_[i], 16))
        return damaged();
    table.files[std::string(name)] = std::move(sums);
  }
  return table;
}

void dropMapped(std::span<const uint8_t> bytes) {
  if (!bytes.empty()) // advice only, so the result does not matter
    ::madvise(const_cast<uint8_t *>(bytes.data()), bytes.size(), MADV_DONTNEED);
}

Result<std::unique_ptr<CheckedFile>> CheckedFile::open(const std::string &path,
                                                       const BlockChecksums *checksums) {
  auto file = std::make_unique<CheckedFile>();
  ASSIGN_OR_RETURN(file->map_, MappedFile::open(path));
  if (checksums == nullptr)
    return file;
  if (checksums->size() != file->bytes().size())
    return makeStatus(StatusCode::InvalidInput, "'{}' has {} bytes but {} were written", path,
                      file->bytes().size(), checksums->size());
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
      return makeStatus(StatusCode::InvalidInput,
                        "'{}' is damaged between bytes {} and {}: its checksum is wrong",
                        map_.path(), at, at + data.size());
    isGood_[block].store(true, std::memory_order_relaxed);
  }
  return Status::ok();
}

void CheckedFile::prefetch(uint64_t offset, uint64_t length) const {
  uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  uint64_t begin = offset / page * page;
  if (length != 0) // advice only, so the result does not matter
    ::madvise(const_cast<uint8_t *>(bytes().data()) + begin, offset + length - begin,
              MADV_WILLNEED);
}

} // namespace shardc::checkpoint
