#include "runtime/tokenize/Shards.h"

#include <algorithm>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <unistd.h>
#include <utility>

#include "runtime/base/Crc32.h"
#include "runtime/base/Json.h"
#include "runtime/base/Reports.h"
#include "runtime/tokenize/TokenizerFiles.h"

namespace shardc::tokenize {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using data::DataFile;
using data::StagedFile;

constexpr const char *kTokensSuffix = ".tokens", *kRecordSuffix = ".json", *kJobFile = "job.json",
                     *kLockFile = "lock";

template <typename T> std::string_view bytesOf(const std::vector<T> &values) {
  return {reinterpret_cast<const char *>(values.data()), values.size() * sizeof(T)};
}

Status writeFile(const std::string &path, std::string_view text) {
  ASSIGN_OR_RETURN(StagedFile file, StagedFile::create(path));
  RETURN_IF_ERROR(file.append(text));
  RETURN_IF_ERROR(file.sync());
  return file.commit();
}

Json toJson(const ShardRecord &record) {
  const Counts &counts = record.counts;
  Json finished = Json::array();
  for (const FinishedInput &input : record.finished)
    finished.push_back({{"input", input.file}, {"lines", input.lines}, {"sha256", input.sha256}});
  return {{"tokens", counts.tokens},
          {"sequences", counts.sequences},
          {"documents", counts.documents},
          {"empty_documents", counts.emptyDocuments},
          {"text_bytes", counts.textBytes},
          {"next", {{"input", record.next.file}, {"line", record.next.line}}},
          {"finished", finished},
          {"crc32", record.crc}};
}

/// Reads numbers and texts of a record. `isRight` becomes false if one is missing.
class RecordReader {
public:
  bool isRight = true;

  int64_t number(const Json &json, const char *name) {
    const Json *value = member(json, name);
    isRight = isRight && value && value->is_number_integer() && value->get<int64_t>() >= 0 &&
              value->get<int64_t>() <= kNumberMax;
    return isRight ? value->get<int64_t>() : 0;
  }
  std::string text(const Json &json, const char *name) {
    const Json *value = member(json, name);
    isRight = isRight && value && value->is_string();
    return isRight ? value->get<std::string>() : "";
  }
  Json object(const Json &json, const char *name) {
    const Json *value = member(json, name);
    isRight = isRight && value;
    return isRight ? *value : Json();
  }

private:
  /// Sums and products of numbers up to this one do not overflow.
  static constexpr int64_t kNumberMax = int64_t{1} << 48;

  static const Json *member(const Json &json, const char *name) {
    auto found = json.is_object() ? json.find(name) : json.end();
    return json.is_object() && found != json.end() ? &*found : nullptr;
  }
};

std::optional<ShardRecord> parseRecord(std::string_view text) {
  Json json = parseJson(text);
  RecordReader reader;
  ShardRecord record;
  record.counts = {reader.number(json, "tokens"), reader.number(json, "sequences"),
                   reader.number(json, "documents"), reader.number(json, "empty_documents"),
                   reader.number(json, "text_bytes")};
  Json next = reader.object(json, "next");
  record.next = {static_cast<size_t>(reader.number(next, "input")), reader.number(next, "line")};
  for (const Json &input : reader.object(json, "finished"))
    record.finished.push_back({static_cast<size_t>(reader.number(input, "input")),
                               reader.number(input, "lines"), reader.text(input, "sha256")});
  record.crc = static_cast<uint32_t>(reader.number(json, "crc32"));
  return reader.isRight ? std::optional(record) : std::nullopt;
}

uint64_t fileBytes(const Counts &counts, data::TokenType type) {
  return static_cast<uint64_t>(counts.tokens) * static_cast<uint64_t>(data::tokenBytes(type)) +
         sizeof(uint32_t) * static_cast<uint64_t>(counts.sequences + counts.documents);
}

/// Reads the file of a shard from its beginning, in pieces, and computes its CRC.
class ShardReader {
public:
  explicit ShardReader(DataFile file) : file_(std::move(file)) {}

  Status read(void *out, uint64_t bytes) {
    RETURN_IF_ERROR(file_.readAt(at_, {static_cast<uint8_t *>(out), bytes}));
    at_ += bytes;
    crc_ = crc32(crc_, out, bytes);
    return Status::ok();
  }
  uint32_t crc() const { return crc_; }

private:
  DataFile file_;
  uint64_t at_ = 0;
  uint32_t crc_ = 0;
};

} // namespace

void Counts::add(const Counts &other) {
  tokens += other.tokens;
  sequences += other.sequences;
  documents += other.documents;
  emptyDocuments += other.emptyDocuments;
  textBytes += other.textBytes;
}

ShardFolder::ShardFolder(ShardFolder &&other) noexcept { *this = std::move(other); }

ShardFolder &ShardFolder::operator=(ShardFolder &&other) noexcept {
  folder_ = std::move(other.folder_);
  type_ = other.type_;
  std::swap(lock_, other.lock_);
  std::swap(records_, other.records_);
  std::swap(open_, other.open_);
  std::swap(file_, other.file_);
  std::swap(lengths_, other.lengths_);
  std::swap(sequences_, other.sequences_);
  return *this;
}

ShardFolder::~ShardFolder() {
  if (!lock_.isOpen())
    return;
  file_.reset();
  if (records_.empty())
    static_cast<void>(remove()); // the next run removes what remains
}

std::string ShardFolder::pathOf(size_t shard, const char *suffix) const {
  return fmt::format("{}/{:06}{}", folder_, shard, suffix);
}

Status ShardFolder::lock() {
  std::string path = folder_ + "/" + kLockFile;
  lock_ = Descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!lock_.isOpen())
    return data::systemError("create", path);
  if (::flock(lock_.fd(), LOCK_EX | LOCK_NB) == 0)
    return Status::ok();
  lock_.close();
  return makeStatus(StatusCode::Unavailable, "another process works in '{}'", folder_);
}

/// A run may continue only if tokenizer, inputs and options are the same. The job file is written
/// when the first shard is not yet complete; later runs compare with it and name the first
/// difference.
Status ShardFolder::checkJob(const std::string &job) const {
  std::string path = folder_ + "/" + kJobFile;
  std::error_code ignored;
  if (!fs::exists(path, ignored) || !fs::exists(pathOf(0, kRecordSuffix), ignored))
    return writeFile(path, job);
  ASSIGN_OR_RETURN(std::string text, readWhole(path));
  if (text == job)
    return Status::ok();
  Json found = parseJson(text), wanted = parseJson(job);
  std::string different = "its record is damaged";
  if (found.is_object())
    for (const auto &item : wanted.items())
      if (auto other = found.find(item.key()); other == found.end() || *other != item.value()) {
        std::string now = toText(item.value());
        std::string then = other == found.end() ? "nothing" : toText(*other);
        different = fmt::format("'{}' was other than now", item.key());
        if (now.size() + then.size() < 400)
          different = fmt::format("'{}' was {}, and is {}", item.key(), then, now);
        break;
      }
  return makeStatus(report::DataRefused,
                    "'{}' holds parts of a run that cannot be continued: {}; delete that folder to "
                    "begin anew, or repeat the earlier command to continue it",
                    folder_, different);
}

/// Reads the records of complete shards, which have the numbers from 0 without gaps.
Status ShardFolder::readRecords(size_t inputs) {
  std::error_code ignored;
  for (size_t shard = 0; fs::exists(pathOf(shard, kRecordSuffix), ignored); ++shard) {
    ASSIGN_OR_RETURN(std::string text, readWhole(pathOf(shard, kRecordSuffix)));
    std::optional<ShardRecord> record = parseRecord(text);
    uintmax_t bytes = fs::file_size(pathOf(shard, kTokensSuffix), ignored);
    if (!record || bytes != fileBytes(record->counts, type_) || record->next.file > inputs)
      return makeStatus(report::DataRefused,
                        "'{}' does not fit its record; delete the folder '{}' to begin anew",
                        pathOf(shard, kTokensSuffix), folder_);
    records_.push_back(std::move(*record));
  }
  return Status::ok();
}

/// Removes temporary files, and shards from `firstShard` on. Their records are removed first: a
/// record without its file would count as a complete shard.
Status ShardFolder::removeFiles(size_t firstShard) const {
  std::error_code error;
  std::vector<fs::path> ours;
  for (fs::directory_iterator entry(folder_, error), end; !error && entry != end;
       entry.increment(error)) {
    std::string name = entry->path().filename().string();
    bool isShard = name.size() > 6 && name.find_first_not_of("0123456789") >= 6 && name[6] == '.';
    bool isTemporary = name.find(".tmp.") != std::string::npos;
    if (isTemporary || (isShard && std::stoull(name.substr(0, 12)) >= firstShard))
      ours.push_back(entry->path());
  }
  // Remove each record before the file that it describes.
  std::sort(ours.begin(), ours.end(), [](const fs::path &a, const fs::path &b) {
    return std::pair(a.extension() != kRecordSuffix, b) <
           std::pair(b.extension() != kRecordSuffix, a);
  });
  for (const fs::path &path : ours)
    if (!error)
      fs::remove(path, error);
  return error ? makeStatus(StatusCode::Io, "cannot remove files of '{}': {}", folder_,
                            error.message())
               : Status::ok();
}

Result<ShardFolder> ShardFolder::open(const std::string &folder, const std::string &job,
                                      data::TokenType type, size_t inputs) {
  ShardFolder shards;
  shards.folder_ = folder;
  shards.type_ = type;
  std::error_code error;
  if (fs::is_symlink(folder, error)) // its files would be written where the link leads
    return makeStatus(StatusCode::InvalidInput, "'{}' is a link, not a folder", folder);
  fs::create_directories(folder, error);
  if (error)
    return makeStatus(StatusCode::InvalidInput, "cannot create the folder '{}': {}", folder,
                      error.message());
  RETURN_IF_ERROR(shards.lock());
  Status usable = shards.checkJob(job);
  if (usable.isOk())
    usable = shards.readRecords(inputs);
  if (usable.isOk())
    usable = shards.removeFiles(shards.records_.size());
  if (!usable.isOk()) {
    shards.lock_.close(); // keeps the files in the folder
    return usable;
  }
  return shards;
}

Status ShardFolder::append(std::string_view bytes) {
  open_.crc = crc32(open_.crc, bytes.data(), bytes.size());
  return file_->append(bytes);
}

/// Appends the documents to the open shard; the lengths stay in memory until it is closed. Tokens
/// are 2 bytes if the vocabulary fits, otherwise 4.
Status ShardFolder::add(const Documents &documents, const std::optional<FinishedInput> &finished) {
  if (!file_) {
    ASSIGN_OR_RETURN(file_, StagedFile::create(pathOf(records_.size(), kTokensSuffix)));
  }
  if (data::tokenBytes(type_) == sizeof(int32_t)) {
    RETURN_IF_ERROR(append(bytesOf(documents.tokens)));
  } else {
    SHARDC_CHECK(type_ == data::TokenType::UInt16, "shards of another type");
    std::vector<uint16_t> narrow(documents.tokens.begin(), documents.tokens.end());
    RETURN_IF_ERROR(append(bytesOf(narrow)));
  }
  lengths_.insert(lengths_.end(), documents.lengths.begin(), documents.lengths.end());
  sequences_.insert(sequences_.end(), documents.sequences.begin(), documents.sequences.end());
  open_.counts.add(documents.counts);
  if (finished)
    open_.finished.push_back(*finished);
  return Status::ok();
}

/// Writes the lengths, makes the file durable, and then writes the record. A shard without a record
/// is not complete and is removed on the next start.
Status ShardFolder::close(const Position &next) {
  if (!file_)
    return Status::ok();
  RETURN_IF_ERROR(append(bytesOf(lengths_)));
  RETURN_IF_ERROR(append(bytesOf(sequences_)));
  RETURN_IF_ERROR(file_->sync());
  RETURN_IF_ERROR(file_->commit());
  file_.reset();
  open_.next = next;
  RETURN_IF_ERROR(
      writeFile(pathOf(records_.size(), kRecordSuffix), toText(toJson(open_), 1) + "\n"));
  records_.push_back(std::exchange(open_, {}));
  lengths_.clear();
  sequences_.clear();
  return Status::ok();
}

/// Appends the documents of a shard to the dataset. The file is checked by its size and CRC, and
/// while reading no length may exceed the tokens that are left.
Status ShardFolder::copyShard(size_t shard, data::IndexedBuilder &builder) const {
  const ShardRecord &record = records_[shard];
  auto count = [](int64_t value) { return static_cast<size_t>(value); };
  std::vector<uint32_t> lengths(count(record.counts.sequences)),
      sequences(count(record.counts.documents));
  std::string path = pathOf(shard, kTokensSuffix);
  ASSIGN_OR_RETURN(DataFile file, DataFile::open(path));
  auto damaged = [&] {
    return makeStatus(report::DataRefused, "'{}' is damaged; delete the folder '{}' to begin anew",
                      path, folder_);
  };
  if (file.size() != fileBytes(record.counts, type_))
    return damaged();
  // The file has all tokens, then the length of each sequence, then the number of sequences of each
  // document. The latter two are in memory; tokens are read as they are copied.
  uint64_t width = static_cast<uint64_t>(data::tokenBytes(type_));
  uint64_t at = static_cast<uint64_t>(record.counts.tokens) * width;
  auto asBytes = [](std::vector<uint32_t> &values) {
    return std::span(reinterpret_cast<uint8_t *>(values.data()), values.size() * sizeof(uint32_t));
  };
  RETURN_IF_ERROR(file.readAt(at, asBytes(lengths)));
  RETURN_IF_ERROR(file.readAt(at + lengths.size() * sizeof(uint32_t), asBytes(sequences)));
  ShardReader reader(std::move(file));
  std::vector<int32_t> tokens;
  std::vector<uint16_t> narrow;
  size_t sequence = 0;
  int64_t left = record.counts.tokens;
  for (uint32_t inDocument : sequences) {
    for (uint32_t i = 0; i < inDocument; ++i, ++sequence) {
      if (sequence >= lengths.size() || lengths[sequence] > left)
        return damaged();
      left -= lengths[sequence];
      tokens.resize(lengths[sequence]);
      if (width == sizeof(int32_t)) {
        RETURN_IF_ERROR(reader.read(tokens.data(), tokens.size() * width));
      } else {
        narrow.resize(tokens.size());
        RETURN_IF_ERROR(reader.read(narrow.data(), narrow.size() * width));
        std::copy(narrow.begin(), narrow.end(), tokens.begin());
      }
      RETURN_IF_ERROR(builder.addTokens(tokens));
      RETURN_IF_ERROR(builder.endSequence());
    }
    RETURN_IF_ERROR(builder.endDocument());
  }
  uint32_t crc = reader.crc();
  crc = crc32(crc, lengths.data(), lengths.size() * sizeof(uint32_t));
  crc = crc32(crc, sequences.data(), sequences.size() * sizeof(uint32_t));
  return left == 0 && sequence == lengths.size() && crc == record.crc ? Status::ok() : damaged();
}

Status ShardFolder::copyTo(data::IndexedBuilder &builder) const {
  for (size_t shard = 0; shard < records_.size(); ++shard)
    RETURN_IF_ERROR(copyShard(shard, builder));
  return Status::ok();
}

Status ShardFolder::remove() {
  RETURN_IF_ERROR(removeFiles(0));
  records_.clear();
  std::error_code error;
  fs::remove(folder_ + "/" + kJobFile, error);
  fs::remove(folder_ + "/" + kLockFile, error);
  lock_.close();
  fs::remove(folder_, error); // fails if somebody put other files there
  return Status::ok();
}

} // namespace shardc::tokenize
