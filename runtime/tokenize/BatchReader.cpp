// Keeps the position of the next line, so that a run that was interrupted can continue there.
#include "runtime/tokenize/BatchReader.h"

#include "runtime/base/Reports.h"

namespace shardc::tokenize {

Status BatchReader::open() {
  ASSIGN_OR_RETURN(stream_,
                   LineStream::open(paths_[position_.file], options_.lineBytesMax, options_.form));
  std::string line;
  while (stream_->lineNumber() < skipped_) {
    ASSIGN_OR_RETURN(bool isMore, stream_->next(line));
    if (!isMore)
      return makeStatus(report::DataChanged,
                        "'{}' has {} lines, but had at least {} when the run that is continued "
                        "read it",
                        stream_->path(), stream_->lineNumber(), skipped_);
  }
  skipped_ = 0;
  return Status::ok();
}

/// A batch has whole lines of one file, up to a limit of bytes or lines. The last batch of a file
/// also has its number of lines and its SHA-256. A lock is the caller's task.
Result<bool> BatchReader::next(Batch &batch) {
  if (position_.file >= paths_.size())
    return false;
  if (!stream_)
    RETURN_IF_ERROR(open());
  batch = Batch();
  batch.file = position_.file;
  batch.firstLine = stream_->lineNumber() + 1;
  std::string line;
  bool isMore = true;
  while (batch.text.size() < options_.batchBytes && batch.ends.size() < options_.batchLines) {
    ASSIGN_OR_RETURN(isMore, stream_->next(line));
    if (!isMore)
      break;
    batch.text += line;
    batch.ends.push_back(batch.text.size());
  }
  position_.line = stream_->lineNumber();
  batch.bytesRead = bytesBefore_ + stream_->position();
  if (!isMore) {
    batch.finished = FinishedInput{position_.file, stream_->lineNumber(), stream_->digest()};
    bytesBefore_ += stream_->position();
    stream_.reset();
    position_ = {position_.file + 1, 0};
  }
  batch.next = position_;
  return true;
}

} // namespace shardc::tokenize
