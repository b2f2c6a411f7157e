// The first byte selects what the others are: a file of lines, plain or packed; the record of a
// shard with its tokens; or the answer of a process that encodes texts.
#include <filesystem>
#include <string>

#include <fcntl.h>
#include <unistd.h>

#include "runtime/tokenize/HuggingFace.h"
#include "runtime/tokenize/LineStream.h"
#include "runtime/tokenize/Shards.h"

namespace shardc::tokenize {
namespace {

/// A temporary folder of this process, which is not removed.
const std::string &folder() {
  static const std::string path = [] {
    std::string name = (std::filesystem::temp_directory_path() / "fuzz-tokenize-XXXXXX").string();
    SHARDC_CHECK(::mkdtemp(name.data()) != nullptr, "no folder");
    return name;
  }();
  return path;
}

std::string write(const std::string &name, std::string_view bytes) {
  std::string path = folder() + "/" + name;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  SHARDC_CHECK(fd >= 0 &&
                   ::write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
               "cannot write {} bytes", bytes.size());
  ::close(fd);
  return path;
}

void checkReason(const Status &status) {
  SHARDC_CHECK(status.isOk() || !status.message().empty(), "refused without a reason");
}

void readLines(const char *name, std::string_view bytes, FileForm form = FileForm::Lines) {
  constexpr uint64_t kLineBytesMax = 4096;
  Result<LineStream> stream = LineStream::open(write(name, bytes), kLineBytesMax, form);
  Status status = stream.status();
  std::string line;
  for (int64_t lines = 0; status.isOk() && lines < 100'000; ++lines) {
    Result<bool> isMore = stream->next(line);
    status = isMore.status();
    if (!isMore.isOk() || !*isMore)
      break;
    SHARDC_CHECK(line.size() <= kLineBytesMax, "a line of {} bytes", line.size());
    SHARDC_CHECK(form == FileForm::JsonRows || line.find('\n') == std::string::npos,
                 "two lines in one");
  }
  checkReason(status);
}

/// The bytes before the first zero are the record, the others the tokens.
void readShard(std::string_view bytes) {
  size_t end = std::min(bytes.find('\0'), bytes.size());
  write("x.parts/000000.json", bytes.substr(0, end));
  write("x.parts/000000.tokens", bytes.substr(std::min(end + 1, bytes.size())));
  write("x.parts/job.json", "{}");
  Result<ShardFolder> shards =
      ShardFolder::open(folder() + "/x.parts", "{}", data::TokenType::UInt16, 3);
  checkReason(shards.status());
  if (!shards.isOk())
    return;
  auto builder = data::IndexedBuilder::create(folder() + "/out", data::TokenType::UInt16);
  SHARDC_CHECK(builder.isOk(), "no output");
  Status copied = shards->copyTo(*builder);
  checkReason(copied);
  int64_t tokens = 0;
  for (const ShardRecord &record : shards->records())
    tokens += record.counts.tokens;
  SHARDC_CHECK(!copied.isOk() || builder->numTokens() == tokens, "tokens are lost");
}

void readAnswer(std::string_view bytes) {
  if (bytes.empty())
    return;
  Encoding encoding;
  size_t texts = static_cast<uint8_t>(bytes[0]);
  Status status = parseTokens(bytes.substr(1), texts, 1000, encoding);
  checkReason(status);
  SHARDC_CHECK(!status.isOk() || encoding.lengths.size() == texts, "lengths are lost");
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0)
    return 0;
  std::string_view bytes(reinterpret_cast<const char *>(data) + 1, size - 1);
  switch (data[0] % 5) {
  case 0:
    readLines("lines", bytes);
    break;
  case 1:
    readLines("lines.gz", bytes);
    break;
  case 2:
    readLines("lines.zst", bytes);
    break;
  case 3:
    readShard(bytes);
    break;
  default:
    readAnswer(bytes);
  }
  return 0;
}

} // namespace shardc::tokenize
