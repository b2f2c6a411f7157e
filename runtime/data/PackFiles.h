// Packs of rows for fine-tuning on disk:
//
//   P.bin, P.idx            an indexed dataset: each sequence is a row, each document is a pack
//   P.mask.bin, P.mask.idx  another one, of uint8: 1 if the token's prediction counts in the loss,
//                           otherwise 0
//   P.json                  the manifest in JSON: what the packs are for and were made from
//   P.reference.json        of pairs: the log-probability of each row by a reference model
//
// Rows 2i and 2i + 1 of packs of pairs are a chosen and a rejected answer, each after its prompt. A
// row of n tokens takes n - 1 positions of a sample, since each token predicts the next one of its
// row. The manifest is written last and removed first, so files with a manifest belong together.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Sha256.h"
#include "runtime/base/Status.h"
#include "runtime/data/IndexedBuilder.h"
#include "runtime/data/IndexedDataset.h"

namespace shardc::data {

inline constexpr int64_t kPackFormat = 1;

/// The kind of packs that a run needs: single rows, rows in pairs, or pairs with their
/// log-probabilities by a reference model.
enum class Pairs : uint8_t { None, Alone, WithReference };

/// The fields of the manifest that a run needs.
struct PackManifest {
  int64_t vocabSize = 0;
  int64_t length = 0;    ///< positions of a pack
  bool isPacked = false; ///< packs may have several rows
  int32_t padToken = 0;  ///< fills the rest of a sample; excluded from the loss
  std::string tokenizer; ///< its file as the user named it; empty if unknown
  std::string tokenizerSha256;
  std::string sha256;   ///< checksum of rows and masks
  bool isPairs = false; ///< rows 2i and 2i + 1 belong together
  int64_t rows = 0, packs = 0, tokens = 0;
};

/// Reads a manifest; errors name `path` and the field.
Result<PackManifest> parsePackManifest(std::string_view text, const std::string &path);

class PackFiles {
public:
  /// Opens and checks all files of a prefix. `path` is the prefix or one of the files.
  /// DataNotFound, with the command that creates packs, if there is no manifest.
  static Result<PackFiles> open(const std::string &path);

  /// Reads all rows and masks, and compares them with the checksum of the manifest.
  Status verify() const;

  const PackManifest &manifest() const { return manifest_; }
  /// The unparsed manifest.
  const std::string &manifestText() const { return text_; }
  const std::string &prefix() const { return tokens_.name(); }
  int64_t numPacks() const { return static_cast<int64_t>(starts_.size()) - 1; }
  /// The rows of a pack are [firstRow(pack), firstRow(pack + 1)).
  int64_t firstRow(int64_t pack) const { return starts_[static_cast<size_t>(pack)]; }
  /// Number of tokens of each row, at least 2.
  std::span<const int32_t> lengths() const { return tokens_.sequenceLengths(); }
  const IndexedDataset &tokens() const { return tokens_; }
  const IndexedDataset &masks() const { return masks_; }
  /// Reads the tokens of a row and their masks, and sets the sizes of both.
  Status readRow(int64_t row, std::vector<int32_t> &tokens, std::vector<int32_t> &masks) const;

private:
  Status check() const;

  PackManifest manifest_;
  std::string text_;
  IndexedDataset tokens_, masks_;
  std::vector<int64_t> starts_;
};

/// The checksum in a manifest. It covers tokens, masks and the ends of packs, but not the names of
/// the files.
class PackDigest {
public:
  void addRow(std::span<const int32_t> tokens, std::span<const int32_t> masks);
  void endPack() { sum_.add("pack"); }
  std::string hex() const { return sum_.hex(); }

private:
  Sha256 sum_;
};

/// Writes the files of a prefix. No file has its final name before finish().
class PackWriter {
public:
  static Result<PackWriter> create(const std::string &prefix, int64_t vocabSize);

  /// `masks` has a 0 or 1 for each token: whether its prediction counts in the loss.
  Status addRow(std::span<const int32_t> tokens, std::span<const int32_t> masks);
  Status endPack();
  /// Renames the files to their final names, the manifest last.
  Status finish(std::string_view manifest);

  int64_t numRows() const { return tokens_.numSequences(); }
  int64_t numPacks() const { return tokens_.numDocuments(); }
  int64_t numTokens() const { return tokens_.numTokens(); }

private:
  PackWriter(std::string prefix, IndexedBuilder tokens, IndexedBuilder masks)
      : prefix_(std::move(prefix)), tokens_(std::move(tokens)), masks_(std::move(masks)) {}

  std::string prefix_;
  IndexedBuilder tokens_, masks_;
};

} // namespace shardc::data
