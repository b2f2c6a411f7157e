#include "runtime/tokenize/Pipeline.h"

#include <exception>
#include <new>

#include "runtime/base/Reports.h"
#include "runtime/base/Thread.h"
#include "runtime/data/Jsonl.h"

namespace shardc::tokenize {
namespace {

/// The non-empty texts of a batch's lines, and the number of texts of each document.
struct BatchTexts {
  std::vector<std::string> texts;
  std::vector<uint32_t> perDocument;
};

/// Splits a batch into lines and extracts their texts. Blank lines are skipped; a document without
/// text has the count 0.
Status extractBatch(const Batch &batch, const std::string &path, const std::string &key,
                    BatchTexts &out) {
  std::vector<std::string> texts;
  size_t begin = 0;
  for (size_t i = 0; i < batch.ends.size(); ++i) {
    std::string_view line = std::string_view(batch.text).substr(begin, batch.ends[i] - begin);
    begin = batch.ends[i];
    if (line.find_first_not_of(" \t\r") == std::string_view::npos)
      continue;
    Status status = data::extractTexts(line, key, texts);
    if (!status.isOk())
      return std::move(status).withContext(
          fmt::format("'{}:{}'", path, batch.firstLine + static_cast<int64_t>(i)));
    uint32_t count = 0;
    for (std::string &text : texts)
      if (!text.empty()) {
        out.texts.push_back(std::move(text));
        ++count;
      }
    out.perDocument.push_back(count);
  }
  return Status::ok();
}

/// Returns the documents of the encoded texts.
Documents collect(const BatchTexts &batch, const Encoding &encoding, std::optional<int32_t> endId) {
  Documents result;
  result.tokens.reserve(encoding.tokens.size() + batch.perDocument.size());
  size_t text = 0, token = 0;
  for (uint32_t count : batch.perDocument) {
    uint32_t sequences = 0;
    for (uint32_t i = 0; i < count; ++i, ++text) {
      uint32_t length = encoding.lengths[text];
      result.tokens.insert(result.tokens.end(),
                           encoding.tokens.begin() + static_cast<int64_t>(token),
                           encoding.tokens.begin() + static_cast<int64_t>(token + length));
      token += length;
      if (length == 0)
        continue;
      result.lengths.push_back(length);
      ++sequences;
    }
    if (sequences > 0 && endId) {
      result.tokens.push_back(*endId);
      ++result.lengths.back();
    }
    result.sequences.push_back(sequences);
    result.counts.emptyDocuments += sequences == 0 ? 1 : 0;
  }
  for (const std::string &one : batch.texts)
    result.counts.textBytes += static_cast<int64_t>(one.size());
  result.counts.tokens = static_cast<int64_t>(result.tokens.size());
  result.counts.sequences = static_cast<int64_t>(result.lengths.size());
  result.counts.documents = static_cast<int64_t>(result.sequences.size());
  return result;
}

} // namespace

/// Runs on an encoding thread. Failures become the status of the result, so that they are reported
/// in the order of the lines.
EncodedBatch encodeBatch(const Batch &batch, const std::string &path, const EncodeOptions &options,
                         Encoder &encoder) {
  EncodedBatch result;
  result.next = batch.next;
  result.finished = batch.finished;
  result.bytesRead = batch.bytesRead;
  try {
    BatchTexts texts;
    result.status = extractBatch(batch, path, options.jsonKey, texts);
    Encoding encoding;
    if (result.status.isOk() && !texts.texts.empty())
      result.status = encoder.encode(texts.texts, encoding)
                          .withContext(fmt::format(
                              "'{}', lines {} to {}", path, batch.firstLine,
                              batch.firstLine + static_cast<int64_t>(batch.ends.size()) - 1));
    if (result.status.isOk())
      result.documents = collect(texts, encoding, options.endId);
  } catch (const std::bad_alloc &) {
    result.status =
        makeStatus(StatusCode::Exhausted, "not enough memory for the texts of '{}'", path);
  } catch (const std::exception &error) { // thrown by SentencePiece
    result.status = makeStatus(StatusCode::Internal, "'{}': {}", path, error.what());
  }
  return result;
}

Pipeline::Pipeline(BatchReader &reader, const std::vector<std::string> &paths,
                   const EncodeOptions &options, std::vector<std::unique_ptr<Encoder>> &encoders)
    : reader_(reader), paths_(paths), options_(options), encoders_(encoders) {}

Status Pipeline::start() {
  for (std::unique_ptr<Encoder> &encoder : encoders_) {
    std::thread thread;
    RETURN_IF_ERROR(startThread(thread, [this, &encoder] { run(*encoder); }));
    threads_.push_back(std::move(thread));
  }
  return Status::ok();
}

/// Cancels encoders only if batches are left, so that the threads end soon.
Pipeline::~Pipeline() {
  bool isCutShort;
  {
    std::lock_guard lock(mutex_);
    isStopped_ = true;
    isCutShort = !isRead_ || taken_ < read_;
  }
  changed_.notify_all();
  if (isCutShort)
    for (std::unique_ptr<Encoder> &encoder : encoders_)
      encoder->cancel();
  for (std::thread &thread : threads_)
    thread.join();
}

void Pipeline::put(int64_t number, EncodedBatch encoded) {
  {
    std::lock_guard lock(mutex_);
    done_.emplace(number, std::move(encoded));
  }
  changed_.notify_all();
}

/// Takes the next batch and its number. One thread reads at a time, since the numbers must be those
/// of the order in the input. After a failure the status takes the place of a batch, and no thread
/// reads on.
bool Pipeline::read(Batch &batch, int64_t &number) {
  std::lock_guard turn(reading_);
  {
    // The limit on batches that were read but not yet returned bounds the memory use.
    const int64_t ahead = 4 * static_cast<int64_t>(encoders_.size());
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return isStopped_ || isRead_ || read_ < taken_ + ahead; });
    if (isStopped_ || isRead_)
      return false;
  }
  Result<bool> isMore(false);
  try {
    isMore = reader_.next(batch);
  } catch (const std::bad_alloc &) {
    isMore = makeStatus(StatusCode::Exhausted, "not enough memory for a line of the input");
  }
  std::unique_lock lock(mutex_);
  isRead_ = !isMore.isOk() || !*isMore;
  if (isMore.isOk() && *isMore) {
    number = read_++;
    return true;
  }
  if (!isMore.isOk())
    done_[read_++].status = isMore.status();
  lock.unlock();
  changed_.notify_all();
  return false;
}

void Pipeline::run(Encoder &encoder) {
  Batch batch;
  int64_t number = 0;
  while (read(batch, number))
    put(number, encodeBatch(batch, paths_[batch.file], options_, encoder));
}

std::optional<EncodedBatch> Pipeline::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_.count(taken_) > 0 || (isRead_ && taken_ == read_); });
  auto found = done_.find(taken_);
  if (found == done_.end())
    return std::nullopt;
  EncodedBatch result = std::move(found->second);
  done_.erase(found);
  ++taken_;
  lock.unlock();
  changed_.notify_all();
  return result;
}

} // namespace shardc::tokenize
