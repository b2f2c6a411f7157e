#include "runtime/tokenize/Tokenize.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <sys/stat.h>
#include <thread>
#include <vector>

#include "runtime/base/Json.h"
#include "runtime/base/Reports.h"
#include "runtime/base/Thread.h"
#include "runtime/base/Version.h"
#include "runtime/data/IndexedBuilder.h"
#include "runtime/data/InputFiles.h"
#include "runtime/tokenize/BatchReader.h"
#include "runtime/tokenize/Encoder.h"
#include "runtime/tokenize/HuggingFace.h"
#include "runtime/tokenize/TokenizerFiles.h"

#if SHARDC_WITH_SENTENCEPIECE
#include <sentencepiece_processor.h>
#endif

namespace shardc::tokenize {
namespace {

#if SHARDC_WITH_SENTENCEPIECE
using Processor = sentencepiece::SentencePieceProcessor;

/// Encoding does not modify the processor, so threads share it.
class SentencePieceEncoder : public Encoder {
public:
  explicit SentencePieceEncoder(std::shared_ptr<const Processor> processor)
      : processor_(std::move(processor)) {}

  Status encode(std::span<const std::string> texts, Encoding &out) override {
    out.tokens.clear();
    out.lengths.clear();
    for (const std::string &text : texts) {
      sentencepiece::util::Status status = processor_->Encode(text, &ids_);
      if (!status.ok())
        return makeStatus(report::DataRefused, "SentencePiece cannot encode a text: {}",
                          status.ToString());
      out.tokens.insert(out.tokens.end(), ids_.begin(), ids_.end());
      out.lengths.push_back(static_cast<uint32_t>(ids_.size()));
    }
    return Status::ok();
  }

private:
  std::shared_ptr<const Processor> processor_;
  std::vector<int> ids_;
};

/// Takes the end token that the user named, else that of the settings beside the model, else the
/// model's own. No id is set if the model does not have this token.
Status findEnd(const Processor &processor, const TokenizerFiles &files, const std::string &named,
               TokenizerFacts &facts) {
  facts.endToken = named.empty() ? files.endToken : named;
  if (facts.endToken.empty() && processor.eos_id() < 0)
    return Status::ok();
  int id = facts.endToken.empty() ? processor.eos_id() : processor.PieceToId(facts.endToken);
  if (facts.endToken.empty())
    facts.endToken = processor.IdToPiece(id);
  if (id >= 0 && id < processor.GetPieceSize() && processor.IdToPiece(id) == facts.endToken)
    facts.endId = id;
  return Status::ok();
}

/// Reads the model once for all `count` encoders. `endToken`: the end token that the user
/// specifies; empty for the one of the files, or otherwise of the model. Unavailable if this
/// program was built without the library; InvalidInput if the model or the end token is wrong, or
/// if tokenizer_config.json adds tokens that the model does not have: the model alone would encode
/// them wrongly.
Result<Encoders> openSentencePiece(const TokenizerFiles &files, const std::string &endToken,
                                   int64_t count) {
  ASSIGN_OR_RETURN(std::string model, readWhole(files.path));
  auto processor = std::make_shared<Processor>();
  sentencepiece::util::Status loaded = processor->LoadFromSerializedProto(model);
  if (!loaded.ok())
    return makeStatus(report::DataRefused, "'{}' is not a model of SentencePiece: {}", files.path,
                      loaded.ToString());
  Encoders encoders;
  encoders.facts.library = "sentencepiece " SHARDC_SENTENCEPIECE_VERSION;
  encoders.facts.vocabSize = processor->GetPieceSize();
  if (files.addedIdMax >= encoders.facts.vocabSize)
    return makeStatus(report::DataRefused,
                      "the tokenizer_config.json beside '{}' adds tokens up to id {}, but the "
                      "model has {} tokens; a tokenizer.json of the same tokenizer has them all",
                      files.path, files.addedIdMax, encoders.facts.vocabSize);
  RETURN_IF_ERROR(findEnd(*processor, files, endToken, encoders.facts));
  for (int64_t i = 0; i < count; ++i)
    encoders.each.push_back(std::make_unique<SentencePieceEncoder>(processor));
  return encoders;
}

#else

Result<Encoders> openSentencePiece(const TokenizerFiles &files, const std::string &, int64_t) {
  return makeStatus(StatusCode::Unavailable,
                    "'{}' is a model of SentencePiece, without which this program was built; "
                    "build it where libsentencepiece-dev is installed, or use a tokenizer.json",
                    files.path);
}

#endif

namespace fs = std::filesystem;
using Ordered = nlohmann::ordered_json;

struct Input {
  std::string path;
  uint64_t bytes = 0;
  int64_t modified = 0; ///< ns since 1970
};

/// One call of tokenize(), with the properties of its tokenizer and inputs.
struct Work {
  const TokenizeOptions &options;
  const std::string &prefix;
  TokenizerFiles tokenizer;
  TokenizerFacts facts;
  std::vector<Input> inputs;
  std::vector<std::string> paths;

  bool appendsEnd() const { return options.appendEod; }
};

/// Whether the file is one of this command's own outputs, which happens if the output is in a
/// folder of inputs.
bool isOwnFile(const std::string &path, const std::string &prefix) {
  std::string name = fs::path(path).lexically_normal().string();
  std::string own = fs::path(prefix).lexically_normal().string();
  for (const char *rest : {".parts/", ".bin.tmp.", ".idx.tmp.", ".json.tmp."})
    if (name.starts_with(own + rest))
      return true;
  return false;
}

/// Lists the inputs with size and time of modification, which are part of the job's identity.
Status findInputs(std::span<const std::string> inputs, Work &work) {
  ASSIGN_OR_RETURN(std::vector<std::string> found,
                   data::expandInputs(inputs, data::PackedInputs::Taken));
  for (std::string &path : found)
    if (!isOwnFile(path, work.prefix))
      work.paths.push_back(std::move(path));
  for (const std::string &path : work.paths) {
    for (const char *suffix : {".bin", ".idx", ".json"})
      if (path == work.prefix + suffix)
        return makeStatus(report::DataRefused, "'{}' is both input and output", path);
    struct stat info = {};
    if (::stat(path.c_str(), &info) != 0)
      return data::systemError("read", path);
    work.inputs.push_back({path, static_cast<uint64_t>(info.st_size),
                           int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec});
  }
  return Status::ok();
}

/// SentencePiece encodes in threads of this process. Hugging Face's library runs in Python
/// processes of one thread, since a process returns the tokens of one text after the other.
Result<Encoders> openEncoders(const Work &work) {
  int64_t threads = work.options.threads > 0
                        ? work.options.threads
                        : std::max<int64_t>(1, std::thread::hardware_concurrency());
  if (work.tokenizer.kind == TokenizerKind::SentencePiece)
    return openSentencePiece(work.tokenizer, work.options.endToken, threads);
  HuggingFaceOptions options;
  options.python = work.options.python;
  options.endToken = work.options.endToken;
  options.processes = threads;
  return openHuggingFace(work.tokenizer, options);
}

Status checkEnd(const Work &work) {
  if (!work.appendsEnd() || work.facts.endId)
    return Status::ok();
  if (work.facts.endToken.empty())
    return makeStatus(report::DataRefused,
                      "'{}' defines no end-of-document token (eos_token of tokenizer_config.json); "
                      "name one with --eod=TOKEN, or leave it out with --no-append-eod",
                      work.options.tokenizer);
  return makeStatus(report::DataRefused, "the tokenizer '{}' has no token '{}', the end token",
                    work.tokenizer.path, work.facts.endToken);
}

Ordered tokenizerJson(const Work &work) {
  Ordered json = {{"file", fs::path(work.tokenizer.path).filename().string()},
                  {"sha256", work.tokenizer.sha256},
                  {"library", work.facts.library},
                  {"vocab_size", work.facts.vocabSize}};
  if (work.appendsEnd())
    json["end_token"] = {{"text", work.facts.endToken}, {"id", *work.facts.endId}};
  else
    json["end_token"] = nullptr;
  return json;
}

/// Returns the settings that must be equal for a run to be continued.
std::string identityOf(const Work &work) {
  Ordered inputs = Ordered::array();
  for (const Input &input : work.inputs)
    inputs.push_back(
        {{"path", input.path}, {"bytes", input.bytes}, {"modified_ns", input.modified}});
  Ordered json = {{"tokenizer", tokenizerJson(work)},
                  {"json_key", work.options.jsonKey},
                  {"line_bytes_max", work.options.lineBytesMax},
                  {"inputs", inputs}};
  return toText(json, 1) + "\n";
}

/// Returns the digests of all inputs, from the records of all shards; nothing if one is missing.
std::optional<std::vector<FinishedInput>> finishedInputs(const Work &work,
                                                         const ShardFolder &shards) {
  std::vector<FinishedInput> all;
  for (const ShardRecord &record : shards.records())
    for (const FinishedInput &input : record.finished) {
      if (input.file != all.size())
        return std::nullopt;
      all.push_back(input);
    }
  return all.size() == work.inputs.size() ? std::optional(all) : std::nullopt;
}

/// The record beside the dataset: how it was made, from which inputs, and how large it is.
std::string manifestOf(const Work &work, const std::vector<FinishedInput> &finished,
                       const Counts &counts, data::TokenType type) {
  Ordered inputs = Ordered::array();
  for (size_t i = 0; i < work.inputs.size(); ++i)
    inputs.push_back({{"path", work.inputs[i].path},
                      {"bytes", work.inputs[i].bytes},
                      {"lines", finished[i].lines},
                      {"sha256", finished[i].sha256}});
  Ordered json = {{"shardc", versionNumber()},        {"tokenizer", tokenizerJson(work)},
                  {"json_key", work.options.jsonKey}, {"dtype", data::tokenTypeName(type)},
                  {"tokens", counts.tokens},          {"sequences", counts.sequences},
                  {"documents", counts.documents},    {"empty_documents", counts.emptyDocuments},
                  {"text_bytes", counts.textBytes},   {"inputs", inputs}};
  return toText(json, 1) + "\n";
}

/// Removes the temporary files of an earlier merge that was killed. Because the folder of shards is
/// locked, no other process is writing them.
void removeTemporaries(const std::string &prefix) {
  fs::path folder = fs::path(prefix).parent_path();
  std::string name = fs::path(prefix).filename().string();
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator entry(folder.empty() ? "." : folder, error), end;
       !error && entry != end; entry.increment(error))
    for (const char *suffix : {".bin.tmp.", ".idx.tmp.", ".json.tmp."})
      if (entry->path().filename().string().starts_with(name + suffix))
        found.push_back(entry->path());
  for (const fs::path &path : found)
    fs::remove(path, error);
}

struct EncodeOptions {
  std::string jsonKey = "text";
  std::optional<int32_t> endId; ///< appended to each document that has tokens
};

/// The result of encoding a batch.
struct EncodedBatch {
  Status status; ///< names the line of an error
  Documents documents;
  Position next;
  std::optional<FinishedInput> finished;
  uint64_t bytesRead = 0; ///< bytes read so far from all inputs
};

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

/// Extracts the texts of a batch's lines and encodes them. As Megatron's preprocess_data.py does,
/// texts without tokens give no sequence, and the end token is added to the last sequence of a
/// document.
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

/// Several threads take turns in reading batches and encode them; one thread takes the results in
/// order.
class Pipeline {
public:
  /// Uses one thread for each encoder. All arguments must outlive the object.
  Pipeline(BatchReader &reader, const std::vector<std::string> &paths, const EncodeOptions &options,
           std::vector<std::unique_ptr<Encoder>> &encoders)
      : reader_(reader), paths_(paths), options_(options), encoders_(encoders) {}

  Status start() {
    for (std::unique_ptr<Encoder> &encoder : encoders_) {
      std::thread thread;
      RETURN_IF_ERROR(startThread(thread, [this, &encoder] { run(*encoder); }));
      threads_.push_back(std::move(thread));
    }
    return Status::ok();
  }

  /// Stops the threads. Texts that are being encoded are abandoned.
  /// Cancels encoders only if batches are left, so that the threads end soon.
  ~Pipeline() {
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

  /// Waits for the next batch, in the order of the inputs. Returns nothing after the last batch; a
  /// failed batch is the last one.
  std::optional<EncodedBatch> next() {
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

private:
  void run(Encoder &encoder) {
    Batch batch;
    int64_t number = 0;
    while (read(batch, number))
      put(number, encodeBatch(batch, paths_[batch.file], options_, encoder));
  }

  /// Takes the next batch and its number. One thread reads at a time, since the numbers must be
  /// those of the order in the input. After a failure the status takes the place of a batch, and no
  /// thread reads on.
  bool read(Batch &batch, int64_t &number) {
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

  void put(int64_t number, EncodedBatch encoded) {
    {
      std::lock_guard lock(mutex_);
      done_.emplace(number, std::move(encoded));
    }
    changed_.notify_all();
  }

  BatchReader &reader_;
  const std::vector<std::string> &paths_;
  const EncodeOptions &options_;
  std::vector<std::unique_ptr<Encoder>> &encoders_;
  std::mutex reading_; ///< held by the one thread that reads

  std::mutex mutex_; ///< protects the members below
  std::condition_variable changed_;
  std::map<int64_t, EncodedBatch> done_;
  int64_t taken_ = 0;   ///< batches that next() returned
  int64_t read_ = 0;    ///< batches that were read, including a failed one
  bool isRead_ = false; ///< there are no more batches
  bool isStopped_ = false;

  std::vector<std::thread> threads_;
};

/// Reads and encodes the inputs and writes shards, until the inputs end.
Status encodeAll(const Work &work, Encoders &encoders, ShardFolder &shards, Progress &progress,
                 const std::function<void(const Progress &)> &emit) {
  EncodeOptions options;
  options.jsonKey = work.options.jsonKey;
  if (work.appendsEnd())
    options.endId = work.facts.endId;
  ReaderOptions reading;
  reading.lineBytesMax = work.options.lineBytesMax;
  BatchReader reader(work.paths, reading, shards.next());
  for (size_t i = 0; i < shards.next().file; ++i)
    progress.bytesRead += work.inputs[i].bytes;
  uint64_t before = progress.bytesRead;
  Pipeline pipeline(reader, work.paths, options, encoders.each);
  RETURN_IF_ERROR(pipeline.start());
  Position next = shards.next();
  while (std::optional<EncodedBatch> batch = pipeline.next()) {
    RETURN_IF_ERROR(batch->status);
    RETURN_IF_ERROR(shards.add(batch->documents, batch->finished));
    next = batch->next;
    progress.counts.add(batch->documents.counts);
    progress.bytesRead = before + batch->bytesRead;
    const Counts &open = shards.openCounts();
    if (open.tokens + open.sequences + open.documents >= work.options.shardTokens)
      RETURN_IF_ERROR(shards.close(next));
    emit(progress);
  }
  return shards.close(next);
}

/// Joins the shards to one dataset. The manifest is prepared first and committed last, so that it
/// never describes data that do not exist.
Status mergeShards(const Work &work, ShardFolder &shards, const Counts &counts,
                   data::TokenType type) {
  std::optional<std::vector<FinishedInput>> finished = finishedInputs(work, shards);
  if (!finished)
    return makeStatus(report::DataRefused,
                      "'{0}.parts' does not have each input once; delete that folder to begin anew",
                      work.prefix);
  removeTemporaries(work.prefix);
  ASSIGN_OR_RETURN(data::StagedFile manifest, data::StagedFile::create(work.prefix + ".json"));
  RETURN_IF_ERROR(manifest.append(manifestOf(work, *finished, counts, type)));
  RETURN_IF_ERROR(manifest.sync());
  ASSIGN_OR_RETURN(data::IndexedBuilder builder, data::IndexedBuilder::create(work.prefix, type));
  RETURN_IF_ERROR(shards.copyTo(builder));
  // A manifest must describe the data next to it, so remove the old one first.
  std::error_code error;
  if (!fs::remove(work.prefix + ".json", error) && error)
    return makeStatus(StatusCode::Io, "cannot replace '{}.json': {}", work.prefix, error.message());
  RETURN_IF_ERROR(builder.finalize());
  RETURN_IF_ERROR(manifest.commit());
  return shards.remove();
}

/// Continues after the last complete shard, if there are some of the same job. Encoders end before
/// the merge, which frees their memory.
Result<TokenizeSummary> run(std::span<const std::string> inputs, const std::string &prefix,
                            const TokenizeOptions &options,
                            const std::function<void(const Progress &)> &emit) {
  RETURN_IF_ERROR(data::checkPrefix(prefix));
  Work work{options, prefix, {}, {}, {}, {}};
  RETURN_IF_ERROR(findInputs(inputs, work));
  ASSIGN_OR_RETURN(work.tokenizer, findTokenizer(options.tokenizer));
  ASSIGN_OR_RETURN(Encoders encoders, openEncoders(work));
  work.facts = encoders.facts;
  RETURN_IF_ERROR(checkEnd(work));
  data::TokenType type = data::tokenTypeFor(work.facts.vocabSize);
  ASSIGN_OR_RETURN(ShardFolder shards, ShardFolder::open(prefix + ".parts", identityOf(work), type,
                                                         work.inputs.size()));
  Progress progress;
  for (const Input &input : work.inputs)
    progress.bytesTotal += input.bytes;
  for (const ShardRecord &record : shards.records())
    progress.counts.add(record.counts);
  progress.resumedTokens = progress.counts.tokens;
  RETURN_IF_ERROR(encodeAll(work, encoders, shards, progress, emit));
  if (progress.counts.tokens == 0) {
    RETURN_IF_ERROR(shards.remove());
    return makeStatus(report::DataRefused, "the input contains no text; '{}' was not written",
                      prefix);
  }
  encoders.each.clear();
  progress.isMerging = true;
  emit(progress);
  RETURN_IF_ERROR(mergeShards(work, shards, progress.counts, type));
  return TokenizeSummary{progress.counts, static_cast<int64_t>(work.inputs.size()),
                         work.facts.vocabSize, work.appendsEnd() ? work.facts.endToken : "",
                         progress.resumedTokens};
}

} // namespace

Result<TokenizeSummary> tokenize(std::span<const std::string> inputs, const std::string &prefix,
                                 const TokenizeOptions &options,
                                 const std::function<void(const Progress &)> &emit) {
  try {
    return run(inputs, prefix, options, emit);
  } catch (const std::bad_alloc &) {
    return makeStatus(StatusCode::Exhausted, "not enough memory for the dataset '{}'", prefix);
  }
}

} // namespace shardc::tokenize
