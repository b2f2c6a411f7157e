// The first byte selects what the others are: the manifest of packs, the reference of pairs, the
// answer of a process that makes rows, or a .npy file of packs.
#include <algorithm>
#include <numeric>
#include <string_view>

#include "runtime/data/PackReference.h"
#include "runtime/tokenize/NumpyPacks.h"
#include "runtime/tokenize/RowProcess.h"

namespace shardc {
namespace {

void readManifest(std::string_view bytes) {
  Result<data::PackManifest> manifest = data::parsePackManifest(bytes, "fuzz.json");
  if (!manifest.isOk()) {
    SHARDC_CHECK(!manifest.status().message().empty(), "refused without a reason");
    return;
  }
  SHARDC_CHECK(manifest->vocabSize > 0 && manifest->length > 0 && manifest->rows > 0,
               "an empty manifest");
  SHARDC_CHECK(manifest->padToken >= 0 && manifest->padToken < manifest->vocabSize,
               "the pad token {}", manifest->padToken);
}

void readReference(std::string_view bytes) {
  data::PackManifest manifest;
  manifest.rows = 2;
  Result<data::PackReference> read = data::parsePackReference(bytes, "fuzz.json", manifest);
  bool isRight = read.isOk() ? read->logProbabilities.size() == 2 &&
                                   std::ranges::max(read->logProbabilities) <= 0
                             : !read.status().message().empty();
  SHARDC_CHECK(isRight, "a wrong reference, or a refusal without a reason");
}

void readAnswer(std::string_view bytes) {
  constexpr int64_t kVocabulary = 1000;
  tokenize::Rows rows;
  tokenize::parseNotes(bytes, rows.notes);
  Status status = tokenize::parseRows(bytes, kVocabulary, rows);
  if (!status.isOk()) {
    SHARDC_CHECK(!status.message().empty(), "refused without a reason");
    return;
  }
  uint64_t tokens = std::accumulate(rows.lengths.begin(), rows.lengths.end(), uint64_t{0});
  SHARDC_CHECK(rows.tokens.size() == tokens && rows.masks.size() == tokens &&
                   rows.flags.size() == rows.lengths.size(),
               "{} tokens and {} masks of {}", rows.tokens.size(), rows.masks.size(), tokens);
  for (int32_t token : rows.tokens)
    SHARDC_CHECK(token >= 0 && token < kVocabulary, "the token {}", token);
}

void readNumpy(std::span<const uint8_t> bytes) {
  size_t tokens = 0;
  Status status = tokenize::forNumpyPacks(bytes, "fuzz.npy", [&](auto ids, auto, auto) -> Status {
    tokens += ids.size();
    return Status::ok();
  });
  SHARDC_CHECK(status.isOk() || !status.message().empty(), "refused without a reason");
  SHARDC_CHECK(tokens <= bytes.size(), "{} tokens of {} bytes", tokens, bytes.size());
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0)
    return 0;
  std::string_view bytes(reinterpret_cast<const char *>(data) + 1, size - 1);
  if (data[0] == 'N')
    readNumpy(std::span(data, size).subspan(1));
  else
    data[0] % 3 == 0   ? readManifest(bytes)
    : data[0] % 3 == 1 ? readAnswer(bytes)
                       : readReference(bytes);
  return 0;
}

} // namespace shardc
