#include "runtime/data/PackFiles.h"

#include <filesystem>
#include <limits>

#include "runtime/base/Json.h"
#include "runtime/base/Reports.h"
#include "runtime/base/Utf8.h"

namespace shardc::data {
namespace {

constexpr std::string_view kMask = ".mask", kManifest = ".json";
constexpr uint64_t kManifestBytesMax = uint64_t{64} << 20;

std::string prefixOf(const std::string &path) {
  if (path.ends_with(kManifest))
    return path.substr(0, path.size() - kManifest.size());
  return IndexedDataset::prefixOf(path);
}

/// A missing manifest is the usual sign of a wrong path, so the message says which command makes
/// packs. The size limit protects against reading an unrelated file.
Result<std::string> readManifest(const std::string &prefix, const std::string &path) {
  Result<DataFile> file = DataFile::open(prefix + std::string(kManifest));
  if (!file.isOk() && file.status().code() == StatusCode::NotFound)
    return makeStatus(
        report::DataNotFound,
        "there are no packs '{0}': '{0}.json' does not exist; 'shardc data sft "
        "ROWS.jsonl -o PREFIX --tokenizer=FOLDER --length=N --pack=balanced' makes "
        "packs of rows{1}",
        prefix,
        path.ends_with(".jsonl")
            ? fmt::format(", and 'dataset.data_path' names their prefix, not '{}'", path)
            : "");
  RETURN_IF_ERROR(file.status());
  if (file->size() > kManifestBytesMax)
    return makeStatus(report::DataDamaged, file->path(), "the manifest is too large");
  std::string text(file->size(), '\0');
  RETURN_IF_ERROR(file->readAt(0, {reinterpret_cast<uint8_t *>(text.data()), text.size()}));
  return text;
}

/// Reads the boundaries of documents: the last numbers of an index, which IndexFile has checked.
Result<std::vector<int64_t>> readDocuments(const std::string &prefix, int64_t documents) {
  ASSIGN_OR_RETURN(DataFile idx, DataFile::open(prefix + ".idx"));
  std::vector<int64_t> starts(static_cast<size_t>(documents) + 1);
  uint64_t bytes = starts.size() * sizeof(int64_t);
  if (idx.size() < bytes)
    return makeStatus(report::DataChanged, "'{}' became shorter", idx.path());
  RETURN_IF_ERROR(
      idx.readAt(idx.size() - bytes, {reinterpret_cast<uint8_t *>(starts.data()), bytes}));
  return starts;
}

} // namespace

/// Each number has a range, and the first that is missing or outside is reported. Fields that older
/// versions did not write have defaults.
Result<PackManifest> parsePackManifest(std::string_view text, const std::string &path) {
  auto wrong = [&](const std::string &what) { return makeStatus(report::DataDamaged, path, what); };
  nlohmann::json json = parseJson(text);
  if (!json.is_object())
    return wrong("the manifest is no JSON object");
  Status status;
  auto number = [&](const char *name, int64_t least, int64_t most) -> int64_t {
    auto found = json.find(name);
    bool is =
        found != json.end() && found->is_number_integer() && found->get<int64_t>() >= least &&
        found->get<int64_t>() <= most &&
        (!found->is_number_unsigned() || found->get<uint64_t>() <= static_cast<uint64_t>(most));
    if (!is && status.isOk())
      status = wrong(fmt::format("the manifest has no '{}' from {} to {}", name, least, most));
    return is ? found->get<int64_t>() : least;
  };
  constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
  constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();
  // The format comes first, since the other numbers of another format may be missing.
  if (number("packs_format", kPackFormat, kPackFormat); !status.isOk())
    return wrong(fmt::format("the manifest is not that of packs of format {}; data of 'shardc data "
                             "tokenize' are of 'dataset.kind = indexed'",
                             kPackFormat));
  PackManifest out;
  out.vocabSize = number("vocab_size", 1, kInt32Max);
  out.length = number("length", 1, kInt32Max);
  out.padToken = static_cast<int32_t>(number("pad_token", 0, kInt32Max));
  out.rows = number("rows", 1, kInt64Max);
  out.packs = number("packs", 1, kInt64Max);
  out.tokens = number("tokens", 1, kInt64Max);
  RETURN_IF_ERROR(status);
  auto packing = json.find("packing");
  if (packing == json.end() || !packing->is_string())
    return wrong("the manifest has no text 'packing'");
  out.isPacked = packing->get<std::string>() != "none";
  if (auto pairs = json.find("pairs"); pairs != json.end() && pairs->is_boolean())
    out.isPairs = pairs->get<bool>();
  if (auto sha256 = json.find("sha256"); sha256 != json.end() && sha256->is_string())
    out.sha256 = sha256->get<std::string>();
  if (out.padToken >= out.vocabSize)
    return wrong("'pad_token' is outside of the vocabulary");
  if (auto tokenizer = json.find("tokenizer"); tokenizer != json.end() && tokenizer->is_object())
    for (auto [key, to] : {std::pair("path", &out.tokenizer), {"sha256", &out.tokenizerSha256}})
      if (auto found = tokenizer->find(key); found != tokenizer->end() && found->is_string())
        *to = found->get<std::string>();
  if (escapeControls(out.tokenizer) != out.tokenizer) // messages name it
    return wrong("the tokenizer's path has control characters");
  return out;
}

/// Compares rows, masks and manifest: a file that was replaced alone would otherwise give wrong
/// loss masks without an error. A row of n tokens has n - 1 places, since the last token is only a
/// label.
Status PackFiles::check() const {
  auto wrong = [&](const std::string &what) {
    return makeStatus(report::DataDamaged, prefix(), what);
  };
  int64_t tokens = 0, most = 0;
  for (int32_t length : lengths()) {
    if (length < 2)
      return wrong(fmt::format("a row has {} tokens; each needs 2", length));
    tokens += length;
  }
  if (!std::ranges::equal(lengths(), masks_.sequenceLengths()))
    return wrong("rows and masks have different lengths");
  auto rows = static_cast<int64_t>(lengths().size());
  if (rows != manifest_.rows || numPacks() != manifest_.packs || tokens != manifest_.tokens)
    return wrong(fmt::format("it has {} packs, {} rows and {} tokens; the manifest says {}, {} and "
                             "{}",
                             numPacks(), rows, tokens, manifest_.packs, manifest_.rows,
                             manifest_.tokens));
  for (int64_t pack = 0; pack < numPacks(); ++pack) {
    int64_t places = 0;
    for (int64_t row = firstRow(pack); row < firstRow(pack + 1); ++row)
      places += lengths()[static_cast<size_t>(row)] - 1;
    if (places == 0)
      return wrong(fmt::format("pack {} has no rows", pack));
    if (manifest_.isPairs && (firstRow(pack + 1) - firstRow(pack)) % 2 != 0)
      return wrong(fmt::format("pack {} has {} rows, which are not pairs", pack,
                               firstRow(pack + 1) - firstRow(pack)));
    most = std::max(most, places);
  }
  if (most > manifest_.length)
    return wrong(fmt::format("a pack has {} places; the manifest says {}", most, manifest_.length));
  return Status::ok();
}

void PackDigest::addRow(std::span<const int32_t> tokens, std::span<const int32_t> masks) {
  for (std::span<const int32_t> list : {tokens, masks})
    sum_.add({reinterpret_cast<const char *>(list.data()), list.size_bytes()});
}

Status PackFiles::readRow(int64_t row, std::vector<int32_t> &tokens,
                          std::vector<int32_t> &masks) const {
  tokens.resize(static_cast<size_t>(lengths()[static_cast<size_t>(row)]));
  masks.resize(tokens.size());
  RETURN_IF_ERROR(tokens_.read(row, 0, tokens));
  return masks_.read(row, 0, masks);
}

Status PackFiles::verify() const {
  PackDigest digest;
  std::vector<int32_t> tokens, masks;
  for (int64_t pack = 0; pack < numPacks(); ++pack) {
    for (int64_t row = firstRow(pack); row < firstRow(pack + 1); ++row) {
      RETURN_IF_ERROR(readRow(row, tokens, masks));
      digest.addRow(tokens, masks);
    }
    digest.endPack();
  }
  if (digest.hex() == manifest_.sha256)
    return Status::ok();
  return makeStatus(
      report::DataDamaged, prefix(),
      fmt::format("rows and masks do not have the SHA-256 that '{}{}' states; make the "
                  "packs again, or copy all of their files again",
                  prefix(), kManifest));
}

Result<PackFiles> PackFiles::open(const std::string &path) {
  std::string prefix = data::prefixOf(path);
  PackFiles files;
  ASSIGN_OR_RETURN(files.text_, readManifest(prefix, path));
  ASSIGN_OR_RETURN(files.manifest_,
                   parsePackManifest(files.text_, prefix + std::string(kManifest)));
  ASSIGN_OR_RETURN(files.tokens_, IndexedDataset::open(prefix));
  ASSIGN_OR_RETURN(files.masks_, IndexedDataset::open(prefix + std::string(kMask)));
  ASSIGN_OR_RETURN(files.starts_, readDocuments(prefix, files.tokens_.index().numDocuments()));
  RETURN_IF_ERROR(files.check());
  return files;
}

Result<PackWriter> PackWriter::create(const std::string &prefix, int64_t vocabSize) {
  RETURN_IF_ERROR(checkPrefix(prefix));
  std::filesystem::path folder = std::filesystem::path(prefix).parent_path();
  std::error_code error;
  if (!folder.empty() && !std::filesystem::create_directories(folder, error) && error)
    return makeStatus(StatusCode::InvalidInput, "cannot create the folder '{}': {}",
                      folder.string(), error.message());
  ASSIGN_OR_RETURN(IndexedBuilder tokens, IndexedBuilder::create(prefix, tokenTypeFor(vocabSize)));
  ASSIGN_OR_RETURN(IndexedBuilder masks,
                   IndexedBuilder::create(prefix + std::string(kMask), TokenType::UInt8));
  return PackWriter(prefix, std::move(tokens), std::move(masks));
}

Status PackWriter::addRow(std::span<const int32_t> tokens, std::span<const int32_t> masks) {
  SHARDC_CHECK(tokens.size() == masks.size(), "{} tokens, {} masks", tokens.size(), masks.size());
  RETURN_IF_ERROR(tokens_.addTokens(tokens));
  RETURN_IF_ERROR(masks_.addTokens(masks));
  RETURN_IF_ERROR(tokens_.endSequence());
  return masks_.endSequence();
}

Status PackWriter::endPack() {
  RETURN_IF_ERROR(tokens_.endDocument());
  return masks_.endDocument();
}

Status PackWriter::finish(std::string_view manifest) {
  const std::string path = prefix_ + std::string(kManifest);
  ASSIGN_OR_RETURN(StagedFile file, StagedFile::create(path));
  RETURN_IF_ERROR(file.append(manifest));
  RETURN_IF_ERROR(file.sync());
  std::error_code error;
  if (!std::filesystem::remove(path, error) && error)
    return makeStatus(StatusCode::Io, "cannot replace '{}': {}", path, error.message());
  RETURN_IF_ERROR(masks_.finalize());
  RETURN_IF_ERROR(tokens_.finalize());
  return file.commit();
}

} // namespace shardc::data
