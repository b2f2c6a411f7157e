// Hugging Face's safetensors: a single file (a JSON header and the tensors' bytes), or a model's
// folder with several files and an index. Readers map the files; writers stream tensor by tensor.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Io.h"
#include "runtime/base/Json.h"
#include "runtime/base/Status.h"
#include "runtime/base/UntrustedFolder.h"
#include "runtime/checkpoint/Element.h"
#include "runtime/checkpoint/FileOps.h"
#include "runtime/checkpoint/TorchArchive.h"

namespace shardc::checkpoint {

/// A tensor in a file. Its bytes are at [begin, end) after the header, dense and row-major.
struct SafeTensor {
  std::string name;
  Element type = Element::F32;
  Shape shape;
  uint64_t begin = 0, end = 0;
};

/// A validated header: the tensors cover the data exactly, sizes match shapes, names are unique.
struct SafeTensorsHeader {
  std::vector<SafeTensor> tensors; ///< sorted by position in the file
  std::map<std::string, std::string> metadata;
  uint64_t dataAt = 0; ///< where the data begin in the file
};
/// Reads the header from the bytes of a whole file. InvalidInput, with the tensor's name, on
/// failure.
Result<SafeTensorsHeader> readSafeTensorsHeader(std::span<const uint8_t> file);

/// One file, mapped for reading.
class SafeTensorsFile {
public:
  /// Maps a file of the folder and validates its header.
  static Result<SafeTensorsFile> open(const UntrustedFolder &folder, const std::string &name);

  const SafeTensorsHeader &header() const { return header_; }
  /// The tensor with this name; null if there is none.
  const SafeTensor *find(std::string_view name) const;
  /// A tensor's bytes; they may be unaligned.
  std::span<const uint8_t> bytes(const SafeTensor &tensor) const;
  /// The whole file, for dropMapped.
  std::span<const uint8_t> mapped() const { return map_.bytes(); }

private:
  MappedFile map_;
  SafeTensorsHeader header_;
  std::map<std::string, size_t, std::less<>> indexOf_;
};

/// A model: `model.safetensors`, or the files that `model.safetensors.index.json` names, or all
/// files `model-*-of-*.safetensors`.
class SafeTensorsModel {
public:
  /// Looks for a single file, then for an index, then for numbered parts without an index, as
  /// transformers does.
  static Result<SafeTensorsModel> open(const std::string &folder);

  /// Names in sorted order, with the index of their file.
  const std::map<std::string, size_t, std::less<>> &names() const { return fileOf_; }
  const SafeTensor *find(std::string_view name) const;
  std::span<const uint8_t> bytes(std::string_view name) const;
  /// Releases the memory of the files' pages that were read; see dropMapped.
  void drop() const;
  /// Whether an index is beside the single file that was read.
  bool hasUnreadIndex() const { return hasUnreadIndex_; }

private:
  /// Reads the files that the index names. Of a tensor in several files, the index says which one
  /// is read.
  Status readIndex(const UntrustedFolder &folder);
  Status readAll(const UntrustedFolder &folder, const std::set<std::string> &names,
                 const nlohmann::json &places);

  std::vector<std::unique_ptr<SafeTensorsFile>> files_;
  std::map<std::string, size_t, std::less<>> fileOf_;
  bool hasUnreadIndex_ = false;
};

/// A tensor to write. `write` writes its bytes to the sink, row by row.
struct SafeTensorSource {
  std::string name;
  Element type = Element::F32;
  Shape shape;
  std::function<Status(ByteSink &)> write;
};

/// The bytes of the header, preceded by its length, in canonical order, and padded to a multiple of
/// 8. Sorts `tensors` in the same order.
Result<std::string> safeTensorsHeader(std::vector<SafeTensorSource> &tensors,
                                      const std::map<std::string, std::string> &metadata);
/// Writes one file under a temporary name, syncs it and renames it.
Status writeSafeTensors(const std::string &path, std::vector<SafeTensorSource> tensors,
                        const std::map<std::string, std::string> &metadata = {{"format", "pt"}},
                        const Observers &observers = {});
/// Writes a model's folder: one file if everything fits into `shardBytesMax`, otherwise several
/// files and the index. A tensor larger than that gets a file of its own.
Status writeSafeTensorsModel(const std::string &folder, std::vector<SafeTensorSource> tensors,
                             uint64_t shardBytesMax, const Observers &observers = {});

} // namespace shardc::checkpoint
