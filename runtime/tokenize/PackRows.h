// Rows become packs: rows lie in temporary files until all lengths are known.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Json.h"
#include "runtime/data/PackFiles.h"
#include "runtime/data/Packing.h"

namespace shardc::tokenize {

/// Counts of how rows were packed.
struct PackCounts {
  int64_t rows = 0, packs = 0, tokens = 0;
  int64_t places = 0;                  ///< that rows take: each token but a row's last one
  int64_t supervised = 0;              ///< places whose next token counts in the loss
  int64_t cut = 0;                     ///< rows that were shortened
  int64_t tooLong = 0;                 ///< rows that were left out
  int64_t withoutLoss = 0;             ///< likewise, since nothing in them counts
  int64_t longest = 0;                 ///< places of a row
  int64_t mostRows = 0;                ///< of a pack
  int64_t leastCost = 0, mostCost = 0; ///< of a pack: the sum of squares of its rows' places
};

class RowStore {
public:
  /// Its files are beside those of `prefix`, and go with it. Tokens are below `vocabSize`.
  static Result<std::unique_ptr<RowStore>> create(const std::string &prefix, int64_t vocabSize);
  RowStore(const RowStore &) = delete;
  RowStore &operator=(const RowStore &) = delete;
  ~RowStore();

  Status add(std::span<const int32_t> tokens, std::span<const uint8_t> masks);
  /// The rows that follow belong to a pack of their own; only packs that are kept ask.
  void beginPack() { starts_.push_back(numRows()); }
  int64_t numRows() const { return std::ssize(places_); }
  /// Places of each row.
  std::span<const int32_t> places() const { return places_; }

  struct Packing {
    std::optional<data::PackingKind> kind; ///< unset: packs as they began
    int64_t length = 0;
    uint32_t seed = 0;
    int64_t vocabSize = 0; ///< of the packs
    int64_t together = 1;  ///< rows in turn that stay together: 2 of pairs
  };
  /// Writes the packs and their manifest, to which it adds counts and the digest of the contents.
  /// Fills in the counts of what was packed.
  Status pack(const Packing &packing, nlohmann::ordered_json manifest, PackCounts &counts);

private:
  RowStore() = default;
  Result<std::vector<std::vector<uint32_t>>> choose(const Packing &packing) const;
  Result<std::vector<std::vector<uint32_t>>> chooseTogether(const Packing &packing) const;

  std::string prefix_, own_;
  std::optional<data::IndexedBuilder> tokens_, masks_;
  std::vector<int32_t> places_, wide_;
  std::vector<int64_t> starts_;
};

struct RepackOptions {
  std::optional<data::PackingKind> packing; ///< unset: packs stay as they are
  int64_t length = 0;                       ///< 0: that of the inputs
  bool dropsTooLong = false;                ///< else they are an error
  uint32_t seed = 1234;
  std::string python = "python3";
};

/// Packs the rows of other packs: ours by their prefixes, Megatron-Bridge's as .parquet or .npy.
Result<PackCounts> repack(std::span<const std::string> inputs, const std::string &prefix,
                          const RepackOptions &options);

/// A word of the manifest.
std::string_view packingName(std::optional<data::PackingKind> kind);

} // namespace shardc::tokenize
