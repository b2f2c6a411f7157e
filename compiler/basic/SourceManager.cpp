#include "compiler/basic/SourceManager.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "compiler/basic/Library.h"
#include "compiler/basic/Suggest.h"
#include "compiler/basic/Utf8.h"
#include "runtime/base/Io.h"
#include "runtime/base/RecipeVariables.h"

namespace shardc {

static constexpr size_t kNamesMax = 10'000; ///< maximum number of files to compare in a folder

/// Text `; did you mean 'x'?` with the most similar file name in the same folder. `path`: the
/// missing file. `asked`: the name by which it was requested.
static std::string nearFile(const std::string &path, const std::string &asked) {
  std::filesystem::path wanted(path), folder = wanted.parent_path();
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder.empty() ? "." : folder, error), end;
       !error && at != end && names.size() < kNamesMax; at.increment(error))
    names.push_back(at->path().filename().string());
  std::ranges::sort(names); // directory entries are unordered
  std::vector<llvm::StringRef> known(names.begin(), names.end());
  std::string name = wanted.filename().string();
  std::optional<llvm::StringRef> near = suggest(name, known).theOne();
  return near ? "; did you mean '" +
                    (std::filesystem::path(asked).parent_path() / near->str()).string() + "'?"
              : "";
}

Result<BufferId> SourceManager::loadFile(const std::string &name, bool isFromUser) {
  bool isLibrary = isLibraryName(name);
  std::string path = isLibrary ? normalLibraryName(name) : name;
  for (uint32_t i = 0; i < buffers_.size(); ++i)
    if ((buffers_[i].isFile || isLibrary) && buffers_[i].name == path)
      return BufferId{i};
  if (isClosed_ && !isLibrary)
    return makeStatus(StatusCode::InvalidInput, "'{}' is not a file of the folder", path);
  Result<std::string> read = isFromUser ? readFile(filePathOf(path), kRecipeBytesMax)
                                        : readRegular(filePathOf(path), kRecipeBytesMax);
  if (!read.isOk() && read.status().code() == StatusCode::NotFound)
    return Status(read.status())
        .withMessage(read.status().message() + nearFile(filePathOf(path), path));
  ASSIGN_OR_RETURN(std::string text, std::move(read));
  std::error_code error; // a link in a stranger's folder; messages would show the file
  if (path.ends_with(".recipe") && !beginsAsRecipe(text) &&
      std::filesystem::is_symlink(std::filesystem::symlink_status(path, error)))
    return makeStatus(StatusCode::InvalidInput, "'{}' is a link to a file that is not a recipe",
                      path);
  if (text.size() > std::numeric_limits<uint32_t>::max() - nextBase_ - 1)
    return makeStatus(StatusCode::InvalidInput, "'{}': the recipes together are larger than 4 GiB",
                      path);
  if (isLibrary)
    return addBuffer(std::move(path), std::move(text));
  return addFile(std::move(path), std::move(text));
}

BufferId SourceManager::addFile(std::string path, std::string text) {
  BufferId id = addBuffer(std::move(path), std::move(text));
  buffers_[id.index].isFile = true;
  return id;
}

BufferId SourceManager::addBuffer(std::string name, std::string text, unsigned firstLine) {
  SHARDC_CHECK(text.size() < std::numeric_limits<uint32_t>::max() - nextBase_,
               "no room for {} bytes of source text", text.size());
  Buffer buffer;
  buffer.name = std::move(name);
  buffer.text = std::move(text);
  buffer.base = nextBase_;
  buffer.firstLine = firstLine;
  // Adds one, because the end of the text is a location, too.
  nextBase_ += static_cast<uint32_t>(buffer.text.size()) + 1;
  buffers_.push_back(std::move(buffer));
  return BufferId{static_cast<uint32_t>(buffers_.size() - 1)};
}

BufferId SourceManager::addSetting(llvm::StringRef setting) {
  return addBuffer("<--set " + printable(shardc::withoutSecrets(setting)) + ">", setting.str());
}

void SourceManager::copyFrom(const SourceManager &other) {
  SHARDC_CHECK(buffers_.empty(), "{} source buffers would be replaced", buffers_.size());
  buffers_ = other.buffers_;
  nextBase_ = other.nextBase_;
}

const SourceManager::Buffer &SourceManager::buffer(BufferId id) const {
  SHARDC_CHECK(id.index < buffers_.size(), "no source buffer {}", id.index);
  return buffers_[id.index];
}

SourceLoc SourceManager::loc(BufferId id, size_t offset) const {
  const Buffer &b = buffer(id);
  SHARDC_CHECK(offset <= b.text.size(), "offset {} beyond {} bytes", offset, b.text.size());
  return SourceLoc::fromRaw(b.base + static_cast<uint32_t>(offset));
}

BufferId SourceManager::bufferOf(SourceLoc loc) const {
  SHARDC_CHECK(loc.isValid() && loc.raw() < nextBase_, "location {} is in no buffer", loc.raw());
  auto after = std::upper_bound(buffers_.begin(), buffers_.end(), loc.raw(),
                                [](uint32_t raw, const Buffer &b) { return raw < b.base; });
  return BufferId{static_cast<uint32_t>(after - buffers_.begin()) - 1};
}

size_t SourceManager::offset(SourceLoc loc) const { return loc.raw() - buffer(bufferOf(loc)).base; }

const std::vector<uint32_t> &SourceManager::lineStarts(const Buffer &buffer) {
  if (buffer.lineStarts.empty()) {
    buffer.lineStarts.push_back(0);
    for (size_t i = 0; i < buffer.text.size(); ++i)
      if (buffer.text[i] == '\n')
        buffer.lineStarts.push_back(static_cast<uint32_t>(i + 1));
  }
  return buffer.lineStarts;
}

size_t SourceManager::lineIndex(const Buffer &buffer, size_t offset) {
  const std::vector<uint32_t> &starts = lineStarts(buffer);
  return static_cast<size_t>(std::upper_bound(starts.begin(), starts.end(), offset) -
                             starts.begin()) -
         1;
}

LineColumn SourceManager::lineColumn(SourceLoc loc) const {
  const Buffer &b = buffer(bufferOf(loc));
  size_t at = loc.raw() - b.base;
  size_t line = lineIndex(b, at);
  size_t begin = lineStarts(b)[line];
  llvm::StringRef before = llvm::StringRef(b.text).slice(begin, at);
  return {b.name, b.firstLine + static_cast<unsigned>(line),
          static_cast<unsigned>(countCodePoints(before)) + 1};
}

unsigned SourceManager::utf16Column(SourceLoc loc) const {
  return static_cast<unsigned>(countUtf16Units(text({lineBegin(loc), loc}))) + 1;
}

llvm::StringRef SourceManager::text(SourceRange range) const {
  const Buffer &b = buffer(bufferOf(range.begin));
  return llvm::StringRef(b.text).slice(range.begin.raw() - b.base, range.end.raw() - b.base);
}

llvm::StringRef SourceManager::shown(SourceRange range) const {
  const Buffer &b = buffer(bufferOf(range.begin));
  findSecrets(b);
  return llvm::StringRef(b.shown).slice(range.begin.raw() - b.base, range.end.raw() - b.base);
}

void SourceManager::findSecrets(const Buffer &b) const {
  if (!b.shown.empty())
    return;
  b.secrets = secretsIn(b.text);
  b.shown = withoutValues(withoutValues(shardc::withoutSecrets(b.text), b.secrets), hidden_);
}

std::string SourceManager::withoutSecrets(std::string text) const {
  for (const Buffer &b : buffers_) {
    findSecrets(b);
    text = withoutValues(std::move(text), b.secrets);
  }
  return withoutValues(std::move(text), hidden_);
}

SourceLoc SourceManager::lineBegin(SourceLoc loc) const {
  const Buffer &b = buffer(bufferOf(loc));
  return SourceLoc::fromRaw(b.base + lineStarts(b)[lineIndex(b, loc.raw() - b.base)]);
}

SourceLoc SourceManager::lineBegin(BufferId id, unsigned line) const {
  const Buffer &b = buffer(id);
  const std::vector<uint32_t> &starts = lineStarts(b);
  if (line < b.firstLine || line - b.firstLine >= starts.size())
    return {};
  return SourceLoc::fromRaw(b.base + starts[line - b.firstLine]);
}

llvm::StringRef SourceManager::lineText(SourceLoc loc) const {
  const Buffer &b = buffer(bufferOf(loc));
  size_t begin = lineStarts(b)[lineIndex(b, loc.raw() - b.base)];
  llvm::StringRef rest = llvm::StringRef(b.text).drop_front(begin);
  return rest.take_until([](char c) { return c == '\n'; }).rtrim('\r');
}

SourceRange SourceManager::removalRange(SourceRange range) const {
  const Buffer &b = buffer(bufferOf(range.begin));
  llvm::StringRef text = b.text;
  size_t begin = range.begin.raw() - b.base;
  size_t end = range.end.raw() - b.base;
  auto isBlank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  size_t left = begin;
  while (left > 0 && isBlank(text[left - 1]))
    --left;
  size_t right = end;
  while (right < text.size() && isBlank(text[right]))
    ++right;
  bool fromLineBegin = left == 0 || text[left - 1] == '\n';
  bool toLineEnd = right == text.size() || text[right] == '\n';
  if (fromLineBegin && toLineEnd)
    right += right < text.size() ? 1 : 0;
  else if (fromLineBegin)
    left = begin; // keeps the indentation of the text that follows
  else
    right = end;
  auto at = [&](size_t offset) {
    return SourceLoc::fromRaw(b.base + static_cast<uint32_t>(offset));
  };
  return {at(left), at(right)};
}

} // namespace shardc
