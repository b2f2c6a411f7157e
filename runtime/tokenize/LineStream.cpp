// Has two buffers: packed_ with bytes of the file, and text_ with text that was unpacked but not
// yet returned.
#include "runtime/tokenize/LineStream.h"

#include <algorithm>

#include "runtime/base/Reports.h"

namespace shardc::tokenize {

constexpr uint64_t kReadBytes = uint64_t{1} << 20;

Result<LineStream> LineStream::open(const std::string &path, uint64_t lineBytesMax, FileForm form) {
  LineStream stream;
  ASSIGN_OR_RETURN(stream.file_, data::DataFile::open(path));
  stream.lineBytesMax_ = lineBytesMax;
  RETURN_IF_ERROR(stream.readPacked());
  ASSIGN_OR_RETURN(stream.unpacker_, makeUnpacker(path, stream.packed_));
  if (form == FileForm::JsonRows)
    RETURN_IF_ERROR(stream.beginRows());
  return stream;
}

Status LineStream::readPacked() {
  packed_.resize(std::min(kReadBytes, file_.size() - position_));
  RETURN_IF_ERROR(
      file_.readAt(position_, {reinterpret_cast<uint8_t *>(packed_.data()), packed_.size()}));
  position_ += packed_.size();
  digest_.add(packed_);
  taken_ = 0;
  return Status::ok();
}

/// Adds text until there is at least one more byte, and returns false at the end of the file. An
/// unpacker may consume bytes without producing any, hence the loop.
Result<bool> LineStream::fill() {
  text_.erase(0, given_);
  given_ = 0;
  for (size_t before = text_.size(); text_.size() == before;) {
    if (taken_ == packed_.size() && position_ < file_.size())
      RETURN_IF_ERROR(readPacked());
    bool isLast = taken_ == packed_.size();
    if (!unpacker_) {
      text_.append(packed_, taken_);
      taken_ = packed_.size();
      return !isLast;
    }
    std::string_view left = std::string_view(packed_).substr(taken_);
    RETURN_IF_ERROR(unpacker_->unpack(left, text_).withContext(fmt::format("'{}'", path())));
    taken_ = packed_.size() - left.size();
    if (isLast && text_.size() == before) {
      if (!unpacker_->isComplete())
        return makeStatus(report::DataRefused,
                          "'{}' ends in the middle of its {} stream; it is truncated", path(),
                          unpacker_->format());
      return false;
    }
  }
  return true;
}

Status LineStream::beginRows() {
  constexpr std::string_view kMark = "\xef\xbb\xbf"; // Windows begins files with it
  for (bool isMore = true; isMore && text_.size() < kMark.size();) {
    ASSIGN_OR_RETURN(isMore, fill());
  }
  if (text_.starts_with(kMark))
    given_ = kMark.size();
  ASSIGN_OR_RETURN(char first, peek());
  isArray_ = first == '[';
  given_ += isArray_ ? 1 : 0;
  return Status::ok();
}

Result<char> LineStream::peek() {
  for (;;) {
    given_ = std::min(text_.find_first_not_of(" \t\r\n", given_), text_.size());
    if (given_ < text_.size())
      return text_[given_];
    ASSIGN_OR_RETURN(bool isMore, fill());
    if (!isMore)
      return '\0';
  }
}

/// An element ends at the comma or bracket that follows it outside of strings and other brackets.
/// Whether it is JSON is for its reader to find out.
Result<bool> LineStream::nextElement(std::string &element) {
  auto wrong = [&](std::string_view what) {
    return makeStatus(report::DataRefused, "'{}' is a JSON array, and {} after element {}", path(),
                      what, lineNumber_);
  };
  ASSIGN_OR_RETURN(char first, peek());
  if (lineNumber_ > 0 && first == ',') {
    ++given_;
    ASSIGN_OR_RETURN(first, peek());
  }
  if (first == ']') {
    ++given_;
    ASSIGN_OR_RETURN(char after, peek());
    isArray_ = false;
    return after == '\0' ? Result<bool>(false) : wrong("it ends, but the file does not,");
  }
  int64_t depth = 0;
  bool isString = false, isEscaped = false;
  for (size_t at = 0;; ++at) { // counted from given_, which fill() moves to the front
    if (given_ + at == text_.size()) {
      ASSIGN_OR_RETURN(bool isMore, fill());
      if (!isMore)
        return wrong("the file ends");
    }
    char byte = text_[given_ + at];
    if (at > lineBytesMax_)
      return wrong("there is one of more bytes than the limit");
    bool isEnd = !isString && depth == 0 && (byte == ',' || byte == ']');
    if (!isString)
      depth += byte == '{' || byte == '[' ? 1 : byte == '}' || byte == ']' ? -1 : 0;
    isString = isString != (byte == '"' && !isEscaped);
    isEscaped = isString && byte == '\\' && !isEscaped;
    if (!isEnd)
      continue;
    element.assign(text_, given_, at);
    given_ += at;
    ++lineNumber_;
    return true;
  }
}

/// Searches only bytes that were not searched before, so that a long line costs time in proportion
/// to its length. The last line need not end with a newline.
Result<bool> LineStream::next(std::string &line) {
  if (isArray_)
    return nextElement(line);
  size_t searched = given_;
  size_t end = text_.find('\n', searched);
  while (end == std::string::npos) {
    if (text_.size() - given_ > lineBytesMax_)
      break;
    searched = text_.size() - given_; // fill() moves the unreturned text to the front
    ASSIGN_OR_RETURN(bool isMore, fill());
    if (!isMore)
      break;
    end = text_.find('\n', searched);
  }
  size_t bytes = std::min(end, text_.size()) - given_;
  if (bytes > lineBytesMax_)
    return makeStatus(report::DataRefused, "'{}:{}': the line has more than {} bytes, the limit",
                      path(), lineNumber_ + 1, lineBytesMax_);
  if (end == std::string::npos && bytes == 0)
    return false;
  line.assign(text_, given_, bytes);
  given_ += bytes + (end == std::string::npos ? 0 : 1);
  ++lineNumber_;
  return true;
}

} // namespace shardc::tokenize
