// Owns the text of every recipe in a compilation, and resolves locations. Buffers come from files
// or from the command line (`<--set a.b=c>`). They are neither changed nor freed while the manager
// lives, so string references into them stay valid.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "compiler/basic/SourceLoc.h"
#include "runtime/base/Status.h"
#include "llvm/ADT/StringRef.h"

namespace shardc {

/// Maximum size of a recipe. A larger file is refused without reading it.
inline constexpr uint64_t kRecipeBytesMax = uint64_t{16} << 20;

/// A location in human-readable form.
struct LineColumn {
  llvm::StringRef file;
  unsigned line = 0;   ///< from 1
  unsigned column = 0; ///< from 1, in code points
};

class SourceManager {
public:
  SourceManager() = default;
  SourceManager(const SourceManager &) = delete;
  SourceManager &operator=(const SourceManager &) = delete;

  /// Reads a file of at most kRecipeBytesMax bytes. For a path that was read before, returns the
  /// same buffer. Only a path that the user names may be that of a descriptor of this program.
  /// Returns NotFound, Io or InvalidInput, with the path in the message.
  Result<BufferId> loadFile(const std::string &path, bool isFromUser = true);

  /// Adds the text of a file that was read elsewhere, such as the unsaved text of an editor.
  /// loadFile returns this buffer for the same path.
  BufferId addFile(std::string path, std::string text);

  /// From now on, files that are not read yet are refused, except those of the library.
  void closeFiles() { isClosed_ = true; }

  /// Adds text without a file, or a part of a file whose first line has number `firstLine`.
  BufferId addBuffer(std::string name, std::string text, unsigned firstLine = 1);

  /// Adds the text of `--set SETTING` under the name `<--set SETTING>`.
  BufferId addSetting(llvm::StringRef setting);

  /// Copies the buffers of another manager and keeps their locations. This manager must be empty.
  void copyFrom(const SourceManager &other);

  llvm::StringRef name(BufferId id) const { return buffer(id).name; }
  llvm::StringRef text(BufferId id) const { return buffer(id).text; }
  /// Whether the text comes from a file that can be written back.
  bool isFile(BufferId id) const { return buffer(id).isFile; }
  /// Line number of the buffer's first line.
  unsigned firstLine(BufferId id) const { return buffer(id).firstLine; }

  /// The location of byte `offset`. The offset may be the end of the text.
  SourceLoc loc(BufferId id, size_t offset) const;
  SourceRange range(BufferId id, size_t begin, size_t end) const {
    return {loc(id, begin), loc(id, end)};
  }
  BufferId bufferOf(SourceLoc loc) const;
  /// Byte offset in the buffer.
  size_t offset(SourceLoc loc) const;
  LineColumn lineColumn(SourceLoc loc) const;
  /// Column in UTF-16 code units, counted from 1, as editors and SARIF count.
  unsigned utf16Column(SourceLoc loc) const;

  llvm::StringRef text(SourceRange range) const;
  /// The text with asterisks, one a byte, in the place of values of secrets.
  llvm::StringRef shown(SourceRange range) const;
  /// A text with asterisks in the place of values of secrets in all buffers, and of hide().
  std::string withoutSecrets(std::string text) const;
  void hide(std::vector<std::string> values) { hidden_ = std::move(values); }
  /// The line that contains a location, without its line break.
  llvm::StringRef lineText(SourceLoc loc) const;
  /// First byte of the line that contains a location.
  SourceLoc lineBegin(SourceLoc loc) const;
  /// First byte of line `line` (numbered as in lineColumn), or an invalid location.
  SourceLoc lineBegin(BufferId id, unsigned line) const;

  /// The range to delete so that `range` leaves no trace: the whole line with its line break if it
  /// contains nothing else, otherwise the range and the blanks before it.
  SourceRange removalRange(SourceRange range) const;

private:
  struct Buffer {
    std::string name;
    std::string text;
    uint32_t base = 0; ///< raw location of the first byte
    unsigned firstLine = 1;
    bool isFile = false;
    mutable std::vector<uint32_t> lineStarts; ///< computed when a line is first needed
    mutable std::string shown;                ///< computed when it is first needed
    mutable std::vector<std::string> secrets; ///< computed with it
  };

  const Buffer &buffer(BufferId id) const;
  /// Computes what is shown of a buffer, and its secrets.
  void findSecrets(const Buffer &buffer) const;
  static const std::vector<uint32_t> &lineStarts(const Buffer &buffer);
  static size_t lineIndex(const Buffer &buffer, size_t offset);

  std::deque<Buffer> buffers_;
  std::vector<std::string> hidden_;
  bool isClosed_ = false;
  uint32_t nextBase_ = 1;
};

} // namespace shardc
