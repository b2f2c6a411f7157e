// Combines rows into packs. The rows are in temporary files until all lengths are known.
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

/// Statistics about packed rows.
struct PackCounts {
  int64_t rows = 0, packs = 0, tokens = 0;
  int64_t places = 0;      ///< positions in all rows: every token except the last one of each row
  int64_t supervised = 0;  ///< positions whose next token counts in the loss
  int64_t cut = 0;         ///< rows that were shortened
  int64_t tooLong = 0;     ///< rows that were left out
  int64_t withoutLoss = 0; ///< rows left out because no token counts in the loss
  int64_t longest = 0;     ///< positions of the longest row
  int64_t mostRows = 0;    ///< most rows of a pack
  int64_t leastCost = 0, mostCost = 0; ///< cost of a pack: the sum of its rows' squared lengths
};

class RowStore {
public:
  /// Creates its files next to those of `prefix`; they are deleted with the object. Tokens must be
  /// below `vocabSize`.
  static Result<std::unique_ptr<RowStore>> create(const std::string &prefix, int64_t vocabSize);
  RowStore(const RowStore &) = delete;
  RowStore &operator=(const RowStore &) = delete;
  ~RowStore();

  Status add(std::span<const int32_t> tokens, std::span<const uint8_t> masks);
  /// Begins a new pack with the next row. Needed only if packs are kept as they are.
  void beginPack() { starts_.push_back(numRows()); }
  int64_t numRows() const { return std::ssize(places_); }
  /// Number of positions of each row.
  std::span<const int32_t> places() const { return places_; }

  struct Packing {
    std::optional<data::PackingKind> kind; ///< unset: as set by beginPack
    int64_t length = 0;
    uint32_t seed = 0;
    int64_t vocabSize = 0; ///< of the packs
    int64_t together = 1;  ///< consecutive rows that stay together: 2 for pairs
  };
  /// Writes the packs and their manifest, to which it adds counts and the digest of the contents.
  /// Also fills in `counts`.
  Status pack(const Packing &packing, nlohmann::ordered_json manifest, PackCounts &counts);

private:
  RowStore() = default;
  void removeFiles() const;
  Result<std::vector<std::vector<uint32_t>>> choose(const Packing &packing) const;
  Result<std::vector<std::vector<uint32_t>>> chooseTogether(const Packing &packing) const;

  std::string prefix_, own_;
  std::optional<data::IndexedBuilder> tokens_, masks_;
  std::vector<int32_t> places_, wide_;
  std::vector<int64_t> starts_;
};

struct RepackOptions {
  std::optional<data::PackingKind> packing; ///< unset: packs stay as they are
  int64_t length = 0;                       ///< 0: the length of the inputs
  bool dropsTooLong = false;                ///< otherwise they are an error
  uint32_t seed = 1234;
  std::string python = "python3";
};

/// Packs the rows of other packs: those of shardc, given by prefix, or those of Megatron-Bridge as
/// .parquet or .npy.
Result<PackCounts> repack(std::span<const std::string> inputs, const std::string &prefix,
                          const RepackOptions &options);

/// Returns the name of the packing kind in the manifest.
std::string_view packingName(std::optional<data::PackingKind> kind);

} // namespace shardc::tokenize
