#include "runtime/tokenize/HuggingFace.h"

#include <cstring>
#include <numeric>

#include "runtime/base/Json.h"
#include "runtime/base/Reports.h"
#include "runtime/tokenize/PythonProcess.h"

namespace shardc::tokenize {
namespace {

using Json = nlohmann::json;

#define ASSET(name, text) text "\n"
constexpr const char *kScript =
#include "runtime/tokenize/EncodeTexts.inc"
    ;
#undef ASSET

class HuggingFaceEncoder : public Encoder {
public:
  Status start(const TokenizerFiles &files, const HuggingFaceOptions &options) {
    path_ = files.path;
    endToken_ = options.endToken.empty() ? files.endToken : options.endToken;
    return process_.start(options.python, kScript, {path_, endToken_});
  }

  /// Waits until the process has read the tokenizer, and reads the facts about it. Token ids must
  /// be contiguous, because the vocabulary size of the model is taken from the highest one.
  Status meet(TokenizerFacts &facts) {
    ASSIGN_OR_RETURN(char kind, process_.readAnswer(answer_));
    if (kind != 'H')
      return refuse(kind);
    Json json = parseJson(answer_);
    auto number = [&](const char *name) {
      auto found = json.is_object() ? json.find(name) : json.end();
      return json.is_object() && found != json.end() && found->is_number_integer()
                 ? std::optional<int64_t>(found->get<int64_t>())
                 : std::nullopt;
    };
    std::optional<int64_t> tokens = number("tokens"), highest = number("highest");
    if (!tokens || !highest || *highest > std::numeric_limits<int32_t>::max())
      return refuse('?');
    if (*tokens <= 0)
      return makeStatus(report::DataRefused, "the tokenizer '{}' has no tokens", path_);
    if (std::optional<int64_t> gap = number("gap"))
      return makeStatus(
          report::DataRefused,
          "the ids of the tokenizer '{}' are not contiguous: it has {} tokens with ids "
          "up to {}, and none with id {}",
          path_, *tokens, *highest, *gap);
    vocabSize_ = *highest + 1;
    facts.vocabSize = vocabSize_;
    auto library = json.find("library");
    facts.library =
        library != json.end() && library->is_string() ? library->get<std::string>() : "tokenizers";
    facts.endToken = endToken_;
    if (std::optional<int64_t> end = number("end"); end && *end >= 0 && *end < vocabSize_)
      facts.endId = static_cast<int32_t>(*end);
    return Status::ok();
  }

  Status encode(std::span<const std::string> texts, Encoding &out) override {
    std::vector<std::string_view> views(texts.begin(), texts.end());
    RETURN_IF_ERROR(process_.ask(views));
    ASSIGN_OR_RETURN(char kind, process_.readAnswer(answer_));
    if (kind != 'T')
      return refuse(kind);
    return parseTokens(answer_, texts.size(), vocabSize_, out);
  }
  void cancel() override { process_.kill(); }

private:
  Status refuse(char kind) const { return process_.refusal(kind, answer_, path_); }

  PythonProcess process_;
  std::string path_, endToken_, answer_;
  int64_t vocabSize_ = 0;
};

} // namespace

/// The payload is: the number of texts, the number of tokens of each text, and all tokens, as
/// 32-bit numbers in little-endian order. Every size is checked, since a script that fails may
/// write anything.
Status parseTokens(std::string_view payload, size_t texts, int64_t vocabSize, Encoding &out) {
  auto wrong = [](std::string_view what) {
    return makeStatus(StatusCode::Io, "the process that encodes texts answers {}", what);
  };
  uint32_t count = 0;
  if (payload.size() < sizeof(count))
    return wrong("without a count");
  std::memcpy(&count, payload.data(), sizeof(count));
  payload.remove_prefix(sizeof(count));
  if (count != texts || payload.size() / sizeof(uint32_t) < count)
    return wrong("for another number of texts");
  out.lengths.resize(count);
  if (count > 0)
    std::memcpy(out.lengths.data(), payload.data(), count * sizeof(uint32_t));
  payload.remove_prefix(count * sizeof(uint32_t));
  uint64_t tokens = std::accumulate(out.lengths.begin(), out.lengths.end(), uint64_t{0});
  if (payload.size() != tokens * sizeof(int32_t))
    return wrong("with another number of tokens than it announces");
  out.tokens.resize(tokens);
  if (tokens > 0)
    std::memcpy(out.tokens.data(), payload.data(), payload.size());
  for (int32_t token : out.tokens)
    if (token < 0 || token >= vocabSize)
      return wrong(fmt::format("with token {}, which is not below {}", token, vocabSize));
  return Status::ok();
}

Result<Encoders> openHuggingFace(const TokenizerFiles &files, const HuggingFaceOptions &options) {
  Encoders encoders;
  std::vector<HuggingFaceEncoder *> started;
  for (int64_t i = 0; i < options.processes; ++i) { // all read the tokenizer at the same time
    auto encoder = std::make_unique<HuggingFaceEncoder>();
    RETURN_IF_ERROR(encoder->start(files, options));
    started.push_back(encoder.get());
    encoders.each.push_back(std::move(encoder));
  }
  for (HuggingFaceEncoder *encoder : started)
    RETURN_IF_ERROR(encoder->meet(encoders.facts));
  return encoders;
}

} // namespace shardc::tokenize
