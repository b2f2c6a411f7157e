#include "runtime/tokenize/Sft.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <map>
#include <thread>

#include "runtime/base/Reports.h"
#include "runtime/base/Utf8.h"
#include "runtime/base/Version.h"
#include "runtime/data/InputFiles.h"
#include "runtime/tokenize/BatchReader.h"
#include "runtime/tokenize/TokenizerFiles.h"

namespace shardc::tokenize {
namespace {

namespace fs = std::filesystem;
using Ordered = nlohmann::ordered_json;

/// A batch of lines that was sent to a process, and the position of each line in its file.
struct Sent {
  size_t file = 0;
  std::vector<int64_t> lines;
  std::vector<std::string> texts;
};

/// A row of a process's answer.
struct RowView {
  std::span<const int32_t> tokens;
  std::span<const uint8_t> masks;
  uint8_t flags; ///< see Rows

  RowView(std::span<const int32_t> tokens, std::span<const uint8_t> masks, uint8_t flags)
      : tokens(tokens), masks(masks), flags(flags) {}
  bool isSupervised() const {
    return tokens.size() > 1 && std::count(masks.begin() + 1, masks.end(), uint8_t{1}) > 0;
  }
};

/// A labelled answer whose pair is another line.
struct Answer {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> masks;
  uint8_t flags = 0;
  std::string place;
  int64_t number = 0; ///< in the order of lines
};

class SftWork {
public:
  SftWork(const std::string &prefix, const SftOptions &options)
      : prefix_(prefix), options_(options) {}

  /// Sends a batch to every process, then receives the answers in the same order, so that the rows
  /// do not depend on the number of processes.
  Result<SftSummary> run(std::span<const std::string> inputs,
                         const std::function<void(int64_t)> &emit) {
    RETURN_IF_ERROR(data::checkPrefix(prefix_));
    RETURN_IF_ERROR(findInputs(inputs));
    RETURN_IF_ERROR(startProcesses());
    ASSIGN_OR_RETURN(store_, RowStore::create(prefix_, facts_.vocabSize));
    std::vector<Sent> sent(processes_.size());
    for (bool isMore = true; isMore;) { // answers are received in the order of the lines
      size_t asked = 0;
      for (; asked < processes_.size() && isMore; asked += isMore ? 1 : 0) {
        ASSIGN_OR_RETURN(isMore, send(*processes_[asked], sent[asked]));
      }
      for (size_t i = 0; i < asked; ++i)
        RETURN_IF_ERROR(receive(*processes_[i], sent[i]));
      emit(store_->numRows());
    }
    RETURN_IF_ERROR(finishAnswers());
    if (auto note = std::ranges::find(notes_, "refused", &SftNote::kind);
        store_->numRows() == 0 && note != notes_.end())
      return makeStatus(report::DataRefused,
                        "no row is left of the inputs: {} lines are refused, the first at {}: {}",
                        note->count, note->place, note->text);
    RETURN_IF_ERROR(store_->pack({options_.packing, options_.rows.length, options_.seed,
                                  facts_.vocabSize, options_.rows.rowsOfLine()},
                                 manifest(), counts_));
    return SftSummary{counts_, notes_, std::ssize(paths_), facts_.vocabSize, facts_.isMarked};
  }

private:
  /// No input may be one of the files that this writes.
  Status findInputs(std::span<const std::string> inputs) {
    ASSIGN_OR_RETURN(paths_, data::expandInputs(inputs, data::PackedInputs::Taken));
    for (const std::string &path : paths_)
      for (const char *suffix : {".bin", ".idx", ".json", ".mask.bin", ".mask.idx"})
        if (path == prefix_ + suffix)
          return makeStatus(report::DataRefused, "'{}' is both input and output", path);
    ASSIGN_OR_RETURN(tokenizer_, findTokenizer(options_.tokenizer));
    if (tokenizer_.kind != TokenizerKind::HuggingFace)
      return makeStatus(
          report::DataRefused,
          "'{}' is a model of SentencePiece; rows need a tokenizer.json, whose offsets "
          "say which tokens an answer has",
          tokenizer_.path);
    return Status::ok();
  }

  /// Starts all processes before it waits for any, since loading a tokenizer takes seconds.
  Status startProcesses() {
    int64_t count = options_.processes > 0
                        ? options_.processes
                        : std::max<int64_t>(1, std::thread::hardware_concurrency());
    RowSettings settings = options_.rows;
    if (settings.isPairs) // each of the two answers may have half of the positions
      settings.length /= settings.rowsOfLine();
    if (settings.endToken.empty())
      settings.endToken = tokenizer_.endToken;
    for (int64_t i = 0; i < count; ++i) { // all processes read the tokenizer at the same time
      processes_.push_back(std::make_unique<RowProcess>());
      RETURN_IF_ERROR(processes_.back()->startRows(options_.python, tokenizer_.path, settings));
    }
    for (std::unique_ptr<RowProcess> &process : processes_) {
      ASSIGN_OR_RETURN(facts_, process->meet());
    }
    return Status::ok();
  }

  /// Reads the next batch of lines. Returns false if none is left.
  Result<bool> read(Sent &sent) {
    for (; file_ < paths_.size(); ++file_) {
      sent = {file_, {}, {}};
      ASSIGN_OR_RETURN(bool isMore, isTable(paths_[file_]) ? readTable(sent) : readLines(sent));
      if (isMore)
        return true;
    }
    return false;
  }

  static bool isTable(const std::string &path) {
    return path.ends_with(".parquet") || path.ends_with(".csv") || path.ends_with(".tsv");
  }

  /// Read the next batch of the input file_: lines of text, or rows of a table. Blank lines
  /// are skipped, so `sent` has the line number of each text, for messages.
  Result<bool> readLines(Sent &sent) {
    if (!reader_) {
      ReaderOptions reading;
      reading.lineBytesMax = options_.lineBytesMax;
      reading.form = FileForm::JsonRows;
      reading.batchLines = 512;
      reader_.emplace(std::vector<std::string>{paths_[file_]}, reading, Position{});
    }
    for (Batch batch; sent.texts.empty();) {
      ASSIGN_OR_RETURN(bool isMore, reader_->next(batch));
      if (!isMore) {
        reader_.reset();
        return false;
      }
      size_t begin = 0;
      for (size_t i = 0; i < batch.ends.size(); begin = batch.ends[i++]) {
        std::string line = batch.text.substr(begin, batch.ends[i] - begin);
        if (line.find_first_not_of(" \t\r") == std::string::npos)
          continue;
        sent.lines.push_back(batch.firstLine + static_cast<int64_t>(i));
        if (!isUtf8(line))
          return makeStatus(report::DataRefused, "{} is not in UTF-8; 'iconv -t UTF-8' converts it",
                            placeOf(sent, sent.lines.size() - 1));
        sent.texts.push_back(std::move(line));
      }
      if (batch.finished)
        finished_.push_back({file_, batch.finished->lines, batch.finished->sha256});
    }
    return true;
  }

  Result<bool> readTable(Sent &sent) {
    if (!table_) {
      table_ = std::make_unique<RowProcess>();
      tableRows_ = 0;
      RETURN_IF_ERROR(table_->startTable(options_.python, paths_[file_]));
      RETURN_IF_ERROR(table_->meet().status());
    }
    ASSIGN_OR_RETURN(sent.texts, table_->nextLines());
    for (size_t i = 0; i < sent.texts.size(); ++i)
      sent.lines.push_back(++tableRows_);
    if (!sent.texts.empty())
      return true;
    table_.reset();
    ASSIGN_OR_RETURN(std::string sha256, digestOf(paths_[file_]));
    finished_.push_back({file_, tableRows_, sha256});
    return false;
  }

  /// Sends a batch to the process. Returns false if none is left.
  Result<bool> send(RowProcess &process, Sent &sent) {
    ASSIGN_OR_RETURN(bool isMore, read(sent));
    if (!isMore)
      return false;
    std::vector<std::string_view> texts(sent.texts.begin(), sent.texts.end());
    RETURN_IF_ERROR(process.send(texts));
    return true;
  }

  Status receive(RowProcess &process, const Sent &sent) {
    Rows rows;
    std::optional<size_t> refused;
    Status status = process.receive(rows, refused);
    if (refused && *refused < sent.lines.size())
      return std::move(status).withContext(placeOf(sent, *refused));
    RETURN_IF_ERROR(std::move(status).withContext(fmt::format("{} or after it", placeOf(sent, 0))));
    if (std::ssize(rows.lengths) != std::ssize(sent.lines) * options_.rows.rowsOfLine())
      return makeStatus(StatusCode::Io, "the process that makes rows answers for another number of "
                                        "lines");
    addNotes(sent, rows);
    return add(sent, rows);
  }

  /// Adds the rows of each line. A line with one answer of a pair waits for the other one.
  Status add(const Sent &sent, const Rows &rows) {
    const auto together = static_cast<size_t>(options_.rows.rowsOfLine());
    size_t at = 0;
    for (size_t row = 0; row < rows.lengths.size(); row += together) {
      std::vector<RowView> line;
      for (size_t i = row; i < row + together; at += rows.lengths[i++])
        line.emplace_back(std::span(rows.tokens).subspan(at, rows.lengths[i]),
                          std::span(rows.masks).subspan(at, rows.lengths[i]), rows.flags[i]);
      if ((rows.flags[row] & kRefused) != 0)
        continue; // the notes have the reason
      const std::string place = placeOf(sent, row / together);
      RETURN_IF_ERROR((rows.flags[row] & (kWanted | kUnwanted)) == 0 ? addLine(place, line)
                                                                     : addAnswer(place, line[0]));
    }
    return Status::ok();
  }

  /// Drops a line that is too long, or that has a row without supervised tokens, and counts its
  /// rows.
  Status addLine(const std::string &place, std::span<const RowView> line) {
    int64_t places = 0;
    for (const RowView &row : line)
      places += std::ssize(row.tokens) - 1;
    if (places > options_.rows.length) {
      if (options_.rows.overlong == "error")
        return makeStatus(report::DataRefused, "{} has {} tokens; --length has room for {}", place,
                          places, options_.rows.length);
      counts_.tooLong += std::ssize(line);
      return Status::ok();
    }
    if (!std::ranges::all_of(line, &RowView::isSupervised)) {
      counts_.withoutLoss += std::ssize(line);
      return Status::ok();
    }
    for (const RowView &row : line) {
      counts_.cut += (row.flags & kCut) != 0 ? 1 : 0;
      RETURN_IF_ERROR(store_->add(row.tokens, row.masks));
    }
    return Status::ok();
  }

  /// The first answer that was not wanted and the first one that was wanted are a pair if their
  /// prompts have the same tokens: those before the first one that counts.
  Status addAnswer(const std::string &place, const RowView &row) {
    const auto prompt = static_cast<size_t>(std::ranges::find(row.masks, 1) - row.masks.begin());
    auto own =
        waiting_
            .try_emplace({row.tokens.begin(), row.tokens.begin() + static_cast<ptrdiff_t>(prompt)})
            .first;
    std::deque<Answer> &waiting = own->second;
    const uint8_t other = (row.flags & kWanted) != 0 ? kUnwanted : kWanted;
    if (waiting.empty() || (waiting.front().flags & other) == 0) {
      waiting.push_back({{row.tokens.begin(), row.tokens.end()},
                         {row.masks.begin(), row.masks.end()},
                         row.flags,
                         place,
                         answers_++});
      return Status::ok();
    }
    const Answer first = std::move(waiting.front());
    waiting.pop_front();
    if (waiting.empty())
      waiting_.erase(own); // most prompts have two answers: memory is for those that still wait
    std::vector<RowView> line = {{first.tokens, first.masks, first.flags}, row};
    if (other == kUnwanted)
      std::swap(line[0], line[1]);
    return addLine(place, line);
  }

  /// Refuses answers without a second one, or leaves them out and counts them.
  Status finishAnswers() {
    const Answer *first = nullptr;
    int64_t count = 0;
    for (const auto &[prompt, answers] : waiting_)
      for (const Answer &answer : answers) {
        ++count;
        if (first == nullptr || answer.number < first->number)
          first = &answer;
      }
    if (first == nullptr)
      return Status::ok();
    const char *why = "no row with the other label has its prompt; a loss of preferences needs two "
                      "answers to a prompt";
    if (!options_.rows.skipsRefused)
      return makeStatus(report::DataRefused, "{}{}: {}", first->place,
                        count > 1 ? fmt::format(" and {} more", count - 1) : "", why);
    notes_.push_back({"refused", why, first->place, count});
    return Status::ok();
  }

  void addNotes(const Sent &sent, const Rows &rows) {
    for (const RowNote &note : rows.notes) {
      auto found = std::ranges::find_if(notes_, [&](const SftNote &other) {
        return other.kind == note.kind && other.text == note.text;
      });
      if (found != notes_.end())
        found->count += note.count;
      else
        notes_.push_back({note.kind, note.text, placeOf(sent, note.first), note.count});
    }
  }

  std::string placeOf(const Sent &sent, size_t line) const {
    return fmt::format("'{}:{}'", paths_[sent.file], sent.lines[line]);
  }

  /// The record of how the packs were made: the settings, and the digests of tokenizer, template
  /// and inputs.
  Ordered manifest() const {
    const RowSettings &rows = options_.rows;
    Ordered inputs = Ordered::array();
    for (const FinishedInput &input : finished_)
      inputs.push_back(
          {{"path", paths_[input.file]}, {"lines", input.lines}, {"sha256", input.sha256}});
    Ordered tokenizer = {
        {"path", tokenizer_.path}, {"sha256", tokenizer_.sha256}, {"library", facts_.library}};
    Ordered json = {{"packs_format", data::kPackFormat},
                    {"shardc", versionNumber()},
                    {"tokenizer", tokenizer},
                    {"vocab_size", facts_.vocabSize},
                    {"pad_token", facts_.endId.value_or(0)},
                    {"length", rows.length},
                    {"packing", packingName(options_.packing)},
                    {"seed", options_.seed},
                    {"mask", rows.mask},
                    {"overlong", rows.overlong},
                    {"date", rows.date}};
    if (rows.isPairs)
      json["pairs"] = true;
    json["template_sha256"] =
        facts_.templateSha256.empty() ? Ordered() : Ordered(facts_.templateSha256);
    json["inputs"] = inputs;
    if (!notes_.empty())
      json["notes"] = Ordered::array();
    for (const SftNote &note : notes_)
      json["notes"].push_back({{"kind", note.kind}, {"text", note.text}, {"lines", note.count}});
    return json;
  }

  const std::string &prefix_;
  const SftOptions &options_;
  TokenizerFiles tokenizer_;
  std::vector<std::string> paths_;
  std::vector<FinishedInput> finished_;
  size_t file_ = 0; ///< the input that is being read
  std::optional<BatchReader> reader_;
  std::unique_ptr<RowProcess> table_; ///< instead of reader_ for a Parquet file
  int64_t tableRows_ = 0;
  std::vector<SftNote> notes_;
  std::vector<std::unique_ptr<RowProcess>> processes_;
  RowFacts facts_;
  std::unique_ptr<RowStore> store_;
  PackCounts counts_;
  std::map<std::vector<int32_t>, std::deque<Answer>> waiting_; ///< by the tokens of their prompt
  int64_t answers_ = 0;
};

} // namespace

Result<SftSummary> makeSft(std::span<const std::string> inputs, const std::string &prefix,
                           const SftOptions &options, const std::function<void(int64_t)> &emit) {
  return SftWork(prefix, options).run(inputs, emit);
}

} // namespace shardc::tokenize
