#include "runtime/tokenize/PackRows.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>
#include <utility>

#include "runtime/base/Io.h"
#include "runtime/base/Reports.h"
#include "runtime/base/Version.h"
#include "runtime/tokenize/NumpyPacks.h"
#include "runtime/tokenize/RowProcess.h"
#include "runtime/tokenize/TokenizerFiles.h"

namespace shardc::tokenize {
namespace {

namespace fs = std::filesystem;
using Ordered = nlohmann::ordered_json;

/// Adds the rows of a pack to the counts.
void count(std::span<const int32_t> places, std::span<const uint32_t> rows, PackCounts &counts) {
  int64_t cost = data::attentionCost(places, rows);
  counts.leastCost = counts.packs == 0 ? cost : std::min(counts.leastCost, cost);
  counts.mostCost = std::max(counts.mostCost, cost);
  counts.mostRows = std::max(counts.mostRows, std::ssize(rows));
  counts.rows += std::ssize(rows);
  ++counts.packs;
  for (uint32_t row : rows) {
    counts.longest = std::max<int64_t>(counts.longest, places[row]);
    counts.places += places[row];
    counts.tokens += places[row] + 1;
  }
}

void addCounts(const PackCounts &counts, int64_t length, Ordered &json) {
  json["rows"] = counts.rows;
  json["packs"] = counts.packs;
  json["tokens"] = counts.tokens;
  json["supervised_tokens"] = counts.supervised;
  json["rows_cut"] = counts.cut;
  json["rows_too_long"] = counts.tooLong;
  json["rows_without_loss"] = counts.withoutLoss;
  json["longest_row"] = counts.longest;
  json["most_rows"] = counts.mostRows;
  json["least_sum_of_squares"] = counts.leastCost;
  json["most_sum_of_squares"] = counts.mostCost;
  json["filled"] = static_cast<double>(counts.places) / static_cast<double>(counts.packs * length);
}

} // namespace

std::string_view packingName(std::optional<data::PackingKind> kind) {
  if (!kind)
    return "kept";
  return *kind == data::PackingKind::None       ? "none"
         : *kind == data::PackingKind::FirstFit ? "first_fit"
                                                : "balanced";
}

/// Rows are written to temporary indexed datasets beside the output, since packing needs all
/// lengths and the tokens may not fit into memory.
Result<std::unique_ptr<RowStore>> RowStore::create(const std::string &prefix, int64_t vocabSize) {
  RETURN_IF_ERROR(data::checkPrefix(prefix));
  fs::path folder = fs::path(prefix).parent_path();
  std::error_code error;
  if (!folder.empty() && !fs::create_directories(folder, error) && error)
    return makeStatus(StatusCode::InvalidInput, "cannot create the folder '{}': {}",
                      folder.string(), error.message());
  std::unique_ptr<RowStore> store(new RowStore);
  store->prefix_ = prefix;
  store->own_ = temporaryOf(prefix + ".rows");
  data::TokenType type = data::tokenTypeFor(vocabSize);
  ASSIGN_OR_RETURN(store->tokens_, data::IndexedBuilder::create(store->own_, type));
  ASSIGN_OR_RETURN(store->masks_,
                   data::IndexedBuilder::create(store->own_ + ".mask", data::TokenType::UInt8));
  return store;
}

RowStore::~RowStore() { removeFiles(); }

void RowStore::removeFiles() const {
  std::error_code error;
  for (const char *suffix : {".bin", ".idx", ".mask.bin", ".mask.idx"})
    fs::remove(own_ + suffix, error);
}

Status RowStore::add(std::span<const int32_t> tokens, std::span<const uint8_t> masks) {
  wide_.assign(masks.begin(), masks.end());
  RETURN_IF_ERROR(tokens_->addTokens(tokens));
  RETURN_IF_ERROR(masks_->addTokens(wide_));
  RETURN_IF_ERROR(tokens_->endSequence());
  RETURN_IF_ERROR(masks_->endSequence());
  places_.push_back(static_cast<int32_t>(tokens.size()) - 1);
  return Status::ok();
}

/// Returns the row numbers of each pack. Without a packing kind, the packs are those in which the
/// rows were added; each must fit the length.
Result<std::vector<std::vector<uint32_t>>> RowStore::choose(const Packing &packing) const {
  if (packing.kind && packing.together == 1)
    return data::packRows(places_, packing.length, *packing.kind, packing.seed);
  if (packing.kind)
    return chooseTogether(packing);
  std::vector<std::vector<uint32_t>> packs;
  for (size_t pack = 0; pack < starts_.size(); ++pack) {
    int64_t end = pack + 1 < starts_.size() ? starts_[pack + 1] : numRows(), places = 0;
    if (end == starts_[pack])
      continue;
    std::vector<uint32_t> &rows = packs.emplace_back(end - starts_[pack]);
    std::iota(rows.begin(), rows.end(), static_cast<uint32_t>(starts_[pack]));
    for (uint32_t row : rows)
      places += places_[row];
    if (places > packing.length)
      return makeStatus(report::DataRefused, "pack {} has {} tokens; found room for {}", pack,
                        places, packing.length);
  }
  return packs;
}

/// Packs several consecutive rows as one unit, such as both answers of a pair, so that they get
/// into the same pack.
Result<std::vector<std::vector<uint32_t>>> RowStore::chooseTogether(const Packing &packing) const {
  std::vector<int32_t> sums;
  for (size_t row = 0; row < places_.size(); row += static_cast<size_t>(packing.together))
    sums.push_back(std::accumulate(places_.begin() + static_cast<int64_t>(row),
                                   places_.begin() + static_cast<int64_t>(row) + packing.together,
                                   int32_t{0}));
  ASSIGN_OR_RETURN(auto packs, data::packRows(sums, packing.length, *packing.kind, packing.seed));
  for (std::vector<uint32_t> &pack : packs) {
    std::vector<uint32_t> rows;
    for (uint32_t unit : pack)
      for (int64_t i = 0; i < packing.together; ++i)
        rows.push_back(static_cast<uint32_t>(unit * packing.together + i));
    pack = std::move(rows);
  }
  return packs;
}

/// Copies the rows from the temporary files in the order of the packs, and writes the manifest
/// last. Its SHA-256 is over tokens, masks and pack boundaries, so it identifies the data whatever
/// the file names are.
Status RowStore::pack(const Packing &packing, Ordered manifest, PackCounts &counts) {
  if (places_.empty())
    return makeStatus(report::DataRefused,
                      "no row is left of the inputs: {} do not fit --length={}, and {} have "
                      "nothing that counts in the loss; '{}' was not written",
                      counts.tooLong, packing.length, counts.withoutLoss, prefix_);
  ASSIGN_OR_RETURN(auto packs, choose(packing));
  // Rows were appended in the order of the inputs. They are complete now and can be read.
  for (data::IndexedBuilder *builder : {&*tokens_, &*masks_}) {
    RETURN_IF_ERROR(builder->endDocument());
    RETURN_IF_ERROR(builder->finalize());
  }
  ASSIGN_OR_RETURN(data::IndexedDataset tokens, data::IndexedDataset::open(own_));
  ASSIGN_OR_RETURN(data::IndexedDataset masks, data::IndexedDataset::open(own_ + ".mask"));
  removeFiles(); // they stay open, and nothing of them is left if this process is killed
  ASSIGN_OR_RETURN(data::PackWriter writer, data::PackWriter::create(prefix_, packing.vocabSize));
  data::PackDigest digest;
  std::vector<int32_t> ids, marks;
  for (const std::vector<uint32_t> &rows : packs) {
    count(places_, rows, counts);
    for (uint32_t row : rows) {
      ids.resize(static_cast<size_t>(places_[row]) + 1);
      marks.resize(ids.size());
      RETURN_IF_ERROR(tokens.read(row, 0, ids));
      RETURN_IF_ERROR(masks.read(row, 0, marks));
      counts.supervised += std::count(marks.begin() + 1, marks.end(), 1);
      RETURN_IF_ERROR(writer.addRow(ids, marks));
      digest.addRow(ids, marks);
    }
    digest.endPack();
    RETURN_IF_ERROR(writer.endPack());
  }
  addCounts(counts, packing.length, manifest);
  manifest["sha256"] = digest.hex();
  return writer.finish(toText(manifest, 1) + "\n");
}

namespace {

/// The whole numbers of a list; empty if it is something else.
std::vector<int64_t> wholeNumbers(const nlohmann::json &row, const char *key) {
  constexpr double kWholeMax = 1e15;
  std::vector<int64_t> numbers;
  auto list = row.find(key);
  if (list == row.end() || !list->is_array())
    return numbers;
  for (const nlohmann::json &value : *list) {
    if (!value.is_boolean() && !value.is_number())
      return {};
    const double number = value.is_boolean() ? value.get<bool>() : value.get<double>();
    if (number != std::floor(number) || std::abs(number) > kWholeMax)
      return {};
    numbers.push_back(static_cast<int64_t>(number));
  }
  return numbers;
}

/// The settings on which all inputs of a repacking must agree, and the collected rows of all
/// inputs.
class Repacking {
public:
  Repacking(const std::string &prefix, const RepackOptions &options)
      : prefix_(prefix), options_(options) {}

  /// Checks all inputs before it copies any, so that a mistake is reported within seconds.
  Result<PackCounts> run(std::span<const std::string> inputs) {
    for (const std::string &input : inputs)
      RETURN_IF_ERROR(look(input));
    if (options_.length > 0)
      length_ = options_.length;
    if (length_ == 0)
      return makeStatus(report::DataRefused, "packs of Megatron-Bridge do not say for which length "
                                             "they are; --length=N does");
    ASSIGN_OR_RETURN(store_, RowStore::create(prefix_, std::numeric_limits<int32_t>::max()));
    for (const std::string &input : inputs)
      RETURN_IF_ERROR(isForeign(input) ? addForeign(input) : addOwn(input));
    Ordered manifest = {{"packs_format", data::kPackFormat},
                        {"shardc", versionNumber()},
                        {"tokenizer", tokenizer_},
                        {"vocab_size", vocabSize_},
                        {"pad_token", padToken_},
                        {"length", length_},
                        {"packing", packingName(options_.packing)},
                        {"seed", options_.seed},
                        {"inputs", inputs_}};
    if (*isPairs_)
      manifest["pairs"] = true;
    RETURN_IF_ERROR(
        store_->pack({options_.packing, length_, options_.seed, vocabSize_, *isPairs_ ? 2 : 1},
                     manifest, counts_));
    return counts_;
  }

private:
  static bool isForeign(const std::string &path) {
    return path.ends_with(".parquet") || path.ends_with(".npy");
  }

  /// First look at an input: its settings and digest, before any row is copied. Packs of
  /// Megatron-Bridge (.parquet, .npy) have no settings.
  Status look(const std::string &input) {
    if (isForeign(input)) {
      RETURN_IF_ERROR(takeForm(input, /*isPairs=*/false));
      ASSIGN_OR_RETURN(std::string sha256, digestOf(input));
      inputs_.push_back({{"path", input}, {"sha256", sha256}});
      return Status::ok();
    }
    ASSIGN_OR_RETURN(data::PackFiles files, data::PackFiles::open(input));
    if (fs::path(files.prefix()).lexically_normal() == fs::path(prefix_).lexically_normal())
      return makeStatus(report::DataRefused, "'{}' is both input and output", prefix_);
    const data::PackManifest &manifest = files.manifest();
    if (!sha256_.empty() && sha256_ != manifest.tokenizerSha256)
      return makeStatus(report::DataRefused,
                        "'{}' has tokens of another tokenizer than the inputs before it", input);
    RETURN_IF_ERROR(takeForm(input, manifest.isPairs));
    sha256_ = manifest.tokenizerSha256;
    vocabSize_ = std::max(vocabSize_, manifest.vocabSize);
    length_ = std::max(length_, manifest.length);
    padToken_ = manifest.padToken;
    Ordered json = Ordered::parse(files.manifestText());
    if (json.contains("tokenizer"))
      tokenizer_ = json["tokenizer"];
    inputs_.push_back({{"path", input}, {"sha256", json.value("sha256", "")}});
    return Status::ok();
  }

  /// Refuses an input of single rows after inputs with pairs, and the other way round.
  Status takeForm(const std::string &input, bool isPairs) {
    if (isPairs_ && *isPairs_ != isPairs)
      return makeStatus(report::DataRefused, "'{}' has {}, unlike the inputs before it", input,
                        isPairs ? "pairs of answers" : "rows that are no pairs");
    isPairs_ = isPairs;
    return Status::ok();
  }

  /// Adds all rows of packs that shardc made, with their pack boundaries.
  Status addOwn(const std::string &input) {
    ASSIGN_OR_RETURN(data::PackFiles files, data::PackFiles::open(input));
    std::vector<int32_t> tokens, marks;
    std::vector<uint8_t> masks;
    for (int64_t pack = 0; pack < files.numPacks(); ++pack) {
      store_->beginPack();
      for (int64_t row = files.firstRow(pack); row < files.firstRow(pack + 1); ++row) {
        RETURN_IF_ERROR(files.readRow(row, tokens, marks));
        masks.assign(marks.begin(), marks.end());
        RETURN_IF_ERROR(add(input, tokens, masks));
      }
    }
    return Status::ok();
  }

  /// Adds all rows of packs of Megatron-Bridge. A Python process reads Parquet files in batches; an
  /// empty batch is the end.
  Status addForeign(const std::string &input) {
    if (input.ends_with(".npy")) {
      ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(input));
      return forNumpyPacks(file.bytes(), input, [&](auto tokens, auto masks, auto starts) {
        return addPack(input, tokens, masks, starts);
      });
    }
    RowProcess process;
    RETURN_IF_ERROR(process.startTable(options_.python, input));
    RETURN_IF_ERROR(process.meet().status());
    for (;;) {
      ASSIGN_OR_RETURN(std::vector<std::string> lines, process.nextLines());
      if (lines.empty())
        return Status::ok();
      for (const std::string &line : lines) {
        const nlohmann::json row = parseJson(line);
        RETURN_IF_ERROR(addPack(input, wholeNumbers(row, "input_ids"),
                                wholeNumbers(row, "loss_mask"), wholeNumbers(row, "seq_start_id")));
      }
    }
  }

  /// Adds the rows of a pack of Megatron-Bridge, where each mask belongs to the token after it.
  Status addPack(const std::string &input, std::span<const int64_t> tokens,
                 std::span<const int64_t> masks, std::span<const int64_t> starts) {
    auto count = std::ssize(tokens);
    bool agrees = std::ssize(masks) == count && !starts.empty() && starts.front() == 0 &&
                  std::ranges::is_sorted(starts) && starts.back() <= count &&
                  std::ranges::all_of(tokens, [](int64_t token) {
                    return token >= 0 && token <= std::numeric_limits<int32_t>::max() - 1;
                  });
    if (!agrees)
      return makeStatus(report::DataRefused,
                        "'{}': a pack's seq_start_id, loss_mask and input_ids do not agree", input);
    bool isFirst = true;
    for (size_t i = 0; i < starts.size(); ++i) {
      int64_t begin = starts[i], end = i + 1 < starts.size() ? starts[i + 1] : count;
      if (begin == end)
        continue;
      std::vector<int32_t> row(tokens.begin() + begin, tokens.begin() + end);
      std::vector<uint8_t> marks(row.size());
      for (size_t at = 1; at < marks.size(); ++at)
        marks[at] = masks[static_cast<size_t>(begin) + at - 1] != 0;
      if (std::exchange(isFirst, false))
        store_->beginPack();
      RETURN_IF_ERROR(add(input, row, marks));
    }
    return Status::ok();
  }

  /// Adds a row, or counts it as dropped. A row of n tokens needs n - 1 positions, since its last
  /// token is only a label.
  Status add(const std::string &input, std::span<const int32_t> tokens,
             std::span<const uint8_t> masks) {
    if (std::ssize(tokens) - 1 > length_) {
      if (!options_.dropsTooLong || *isPairs_) // one answer alone is not a pair
        return makeStatus(report::DataRefused,
                          "'{}' has a row of {} tokens; a pack has room for {}; --overlong=drop "
                          "leaves such rows out",
                          input, tokens.size() - 1, length_);
      ++counts_.tooLong;
      return Status::ok();
    }
    if (tokens.size() < 2) {
      ++counts_.withoutLoss;
      return Status::ok();
    }
    // Packs of Megatron-Bridge do not contain the vocabulary size.
    vocabSize_ = std::max<int64_t>(vocabSize_, *std::ranges::max_element(tokens) + int64_t{1});
    return store_->add(tokens, masks);
  }

  const std::string &prefix_;
  const RepackOptions &options_;
  std::unique_ptr<RowStore> store_;
  PackCounts counts_;
  int64_t vocabSize_ = 0, length_ = 0;
  int32_t padToken_ = 0;
  std::optional<bool> isPairs_;
  std::string sha256_;
  Ordered tokenizer_, inputs_ = Ordered::array();
};

} // namespace

Result<PackCounts> repack(std::span<const std::string> inputs, const std::string &prefix,
                          const RepackOptions &options) {
  return Repacking(prefix, options).run(inputs);
}

} // namespace shardc::tokenize
