// Rows for fine-tuning, produced by encode_rows.py in a Python process: from JSON lines with the
// tokenizer and the chat template of a model, or from Parquet files. Also converts tokens to text.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Json.h"
#include "runtime/base/Status.h"
#include "runtime/tokenize/PythonProcess.h"

namespace shardc::tokenize {

/// How lines are converted to rows.
struct RowSettings {
  std::string mask = "assistant"; ///< tokens that count in the loss: assistant, last_turn or full
  std::string overlong = "drop";  ///< what is done with too long rows: drop, truncate or error
  std::string cut = "right";      ///< the side that `truncate` shortens: left or right
  std::string templateFile;       ///< chat template; replaces that of the tokenizer
  std::string date;               ///< YYYY-MM-DD, for templates that use the date
  std::string endToken;           ///< replaces the eos_token of the tokenizer
  std::string promptKey, completionKey, promptTemplate; ///< empty: by a line's keys
  std::optional<std::string> separator;                 ///< between prompt and completion
  bool addBos = false, addEos = true;                   ///< around prompt and completion
  int64_t length = 0;                                   ///< positions; a row has one token more
  bool skipsRefused = false; ///< leaves out lines that are refused, and counts them
  /// A line has two answers and gives two rows, the chosen one first. The second row is empty if
  /// the line has one answer, which is wanted or unwanted (kWanted, kUnwanted).
  bool isPairs = false;

  int64_t rowsOfLine() const { return isPairs ? 2 : 1; }
};

/// Properties that are known once the process is ready.
struct RowFacts {
  std::string library;
  int64_t vocabSize = 0;
  std::optional<int32_t> beginId, endId;
  std::string templateSha256; ///< empty if there is no template
  bool isMarked = false;      ///< the template marks the generated text itself
};

/// A note on some of the rows. Its kind is "ignored" (a key of them that is not used), "told" (what
/// the chat template lost or does), or "refused" (the reason).
struct RowNote {
  std::string kind, text;
  int64_t count = 0; ///< lines
  size_t first = 0;  ///< index of the first of them in the request
};

struct Rows {
  std::vector<uint32_t> lengths;
  std::vector<uint8_t> flags; ///< kCut and so on
  std::vector<int32_t> tokens;
  std::vector<uint8_t> masks; ///< 0 or 1 for each token
  std::vector<RowNote> notes;
};
inline constexpr uint8_t kCut = 1, kRefused = 4, kWanted = 8, kUnwanted = 16;

/// Parses the payload of an answer with rows, for a vocabulary of `vocabSize` tokens.
Status parseRows(std::string_view payload, int64_t vocabSize, Rows &out);
/// Parses an answer with notes. Returns false if it is malformed.
bool parseNotes(std::string_view payload, std::vector<RowNote> &out);

class RowProcess {
public:
  /// Starts a process that converts lines to rows. meet() waits until it is ready, so that several
  /// processes can start at the same time.
  Status startRows(const std::string &python, const std::string &tokenizer,
                   const RowSettings &settings);
  /// Starts a process that reads the rows of a Parquet file as lines of JSON.
  Status startTable(const std::string &python, const std::string &path);
  /// Starts a process that converts tokens to text and also prompts to tokens, by the tokenizer's
  /// chat template or by the one of `templateFile`.
  Status startPrompts(const std::string &python, const std::string &tokenizer,
                      const std::string &templateFile, const std::string &date);
  /// Starts a process that converts tokens to text.
  Status startText(const std::string &python, const std::string &tokenizer);

  /// Waits until the process is ready. Unavailable, with what to install, if Python or a package is
  /// missing.
  Result<RowFacts> meet();

  /// Requests the rows of the lines. receive() waits for them.
  Status send(std::span<const std::string_view> texts);
  /// Receives the rows of the lines that were sent, in their order. If a line is refused, sets
  /// `refused` to its index.
  Status receive(Rows &out, std::optional<size_t> &refused);
  /// Returns the next lines of a Parquet file; none after the last one.
  Result<std::vector<std::string>> nextLines();
  /// Returns the tokens of the row's `prompt`, including those with which the tokenizer begins
  /// texts, or of its `messages` and `tools`, by the chat template. `isChat`: a prompt is a user's
  /// message to be answered.
  Result<std::vector<int32_t>> tokensOf(const nlohmann::json &row, bool isChat);
  /// Returns the text of each list of tokens.
  Result<std::vector<std::string>> textsOf(std::span<const std::vector<int32_t>> lists);

private:
  Result<std::vector<std::string>> answersTo(std::span<const std::string> requests);
  Result<std::vector<std::string>> readTexts();
  Status start(const std::string &python, const std::string &name, const std::string &settings);
  Status refuse(char kind) const { return process_.refusal(kind, answer_, name_); }

  PythonProcess process_;
  std::string name_, answer_;
  int64_t vocabSize_ = 0;
};

} // namespace shardc::tokenize
