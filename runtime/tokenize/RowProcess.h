// Rows for fine-tuning, by encode_rows.py in a process of Python: from lines of JSON with the
// tokenizer and the chat template of a model, or from packs of Megatron-Bridge; and tokens as text.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/tokenize/PythonProcess.h"

namespace shardc::tokenize {

/// How lines become rows.
struct RowSettings {
  std::string mask = "assistant"; ///< what counts in the loss: assistant, last_turn or full
  std::string overlong = "drop";  ///< rows that are too long: drop, truncate or error
  std::string cut = "right";      ///< side that `truncate` takes from: left or right
  std::string templateFile;       ///< chat template in place of the tokenizer's
  std::string date;               ///< YYYY-MM-DD, for templates that state a date
  std::string endToken;           ///< in place of the tokenizer's eos_token
  std::string promptKey, completionKey, promptTemplate; ///< empty: by the keys of a line
  std::optional<std::string> separator;                 ///< between prompt and completion
  bool addBos = false, addEos = true;                   ///< around prompt and completion
  int64_t length = 0;                                   ///< places: a row has one token more
  bool isPairs = false; ///< a line has two answers and becomes two rows, the chosen one first

  int64_t rowsOfLine() const { return isPairs ? 2 : 1; }
};

/// What is known once the process is ready.
struct RowFacts {
  std::string library;
  int64_t vocabSize = 0;
  std::optional<int32_t> endId;
  std::string templateSha256; ///< empty if there is none
  bool isMarked = false;      ///< the template says itself what is generated
};

struct Rows {
  std::vector<uint32_t> lengths;
  std::vector<uint8_t> flags; ///< kCut, kBeginsPack
  std::vector<int32_t> tokens;
  std::vector<uint8_t> masks; ///< 0 or 1 for each token
};
inline constexpr uint8_t kCut = 1, kBeginsPack = 2;

/// Reads the payload of an answer with rows of a vocabulary of `vocabSize` tokens.
Status parseRows(std::string_view payload, int64_t vocabSize, Rows &out);

class RowProcess {
public:
  /// Starts a process that makes rows of lines; meet() waits until it is ready, so that several
  /// can start at the same time.
  Status startRows(const std::string &python, const std::string &tokenizer,
                   const RowSettings &settings);
  /// One that reads the packs of a file.
  Status startPacks(const std::string &python, const std::string &path);
  /// One that also makes prompts tokens, by the tokenizer's chat template or by this one.
  Status startPrompts(const std::string &python, const std::string &tokenizer,
                      const std::string &templateFile, const std::string &date);
  /// One that makes tokens text.
  Status startText(const std::string &python, const std::string &tokenizer);

  /// Unavailable, with what to install, without Python or a package.
  Result<RowFacts> meet();

  /// Asks for rows of the lines, or for the next rows of packs; receive() waits for them.
  Status send(std::span<const std::string_view> texts);
  /// The rows of the lines that were sent, in their order. If a line is refused, `refused` is its
  /// index.
  Status receive(Rows &out, std::optional<size_t> &refused);
  /// The tokens of a prompt, with those that the tokenizer begins texts with; `isChat`: as the
  /// message of a user to answer.
  Result<std::vector<int32_t>> tokensOf(const std::string &prompt, bool isChat);
  /// The text of each list of tokens.
  Result<std::vector<std::string>> textsOf(std::span<const std::vector<int32_t>> lists);

private:
  Result<std::vector<std::string>> answersTo(std::span<const std::string> requests);
  Status start(const std::string &python, const std::string &name, const std::string &settings);
  Status refuse(char kind) const;

  PythonProcess process_;
  std::string python_, name_, answer_;
  int64_t vocabSize_ = 0;
};

} // namespace shardc::tokenize
