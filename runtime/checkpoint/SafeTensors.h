// Hugging Face's safetensors: one file (a JSON header and the tensors' bytes), or a model's folder
// of several with an index. Reading maps the files; writing streams tensor by tensor.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Io.h"
#include "runtime/base/Status.h"
#include "runtime/checkpoint/Element.h"
#include "runtime/checkpoint/FileOps.h"
#include "runtime/checkpoint/TorchArchive.h"

namespace shardc::checkpoint {

/// A tensor of a file; the bytes lie at [begin, end) after the header, dense and row-major.
struct SafeTensor {
  std::string name;
  Element type = Element::F32;
  Shape shape;
  uint64_t begin = 0, end = 0;
};

/// A checked header: tensors tile the data exactly, sizes fit shapes, names are unique.
struct SafeTensorsHeader {
  std::vector<SafeTensor> tensors; ///< by place in the file
  std::map<std::string, std::string> metadata;
  uint64_t dataAt = 0; ///< where the data begin in the file
};
/// Reads the header of a whole file's bytes. Fails with InvalidInput that names the tensor.
Result<SafeTensorsHeader> readSafeTensorsHeader(std::span<const uint8_t> file);

class SafeTensorsFile {
public:
  static Result<SafeTensorsFile> open(const std::string &path);

  const SafeTensorsHeader &header() const { return header_; }
  const SafeTensor *find(std::string_view name) const;
  /// A tensor's bytes; not aligned.
  std::span<const uint8_t> bytes(const SafeTensor &tensor) const;
  /// The whole file, for dropMapped.
  std::span<const uint8_t> mapped() const { return map_.bytes(); }

private:
  MappedFile map_;
  SafeTensorsHeader header_;
  std::map<std::string, size_t, std::less<>> indexOf_;
};

/// A model: `model.safetensors`, or what `model.safetensors.index.json` names, or all files
/// `model-*-of-*.safetensors`.
class SafeTensorsModel {
public:
  static Result<SafeTensorsModel> open(const std::string &folder);

  /// Names in order, with the file of each.
  const std::map<std::string, size_t, std::less<>> &names() const { return fileOf_; }
  const SafeTensor *find(std::string_view name) const;
  std::span<const uint8_t> bytes(std::string_view name) const;
  /// Releases the memory of pages of the files that were read; see dropMapped.
  void drop() const;
  /// Tensors in the files that the index does not name.
  const std::vector<std::string> &unlisted() const { return unlisted_; }

private:
  Status readIndex(const std::string &folder, const std::string &indexPath);
  Status readAll(const std::vector<std::string> &paths);

  std::vector<std::unique_ptr<SafeTensorsFile>> files_;
  std::map<std::string, size_t, std::less<>> fileOf_;
  std::vector<std::string> unlisted_;
};

/// A tensor to be written; `write` puts its bytes into the sink, in the order of rows.
struct SafeTensorSource {
  std::string name;
  Element type = Element::F32;
  Shape shape;
  std::function<Status(ByteSink &)> write;
};

/// The header's bytes with its length before it, in the canonical order, padded to 8; sorts
/// `tensors` into that order.
Result<std::string> safeTensorsHeader(std::vector<SafeTensorSource> &tensors,
                                      const std::map<std::string, std::string> &metadata);
/// Writes one file under a temporary name, syncs it and puts it in place.
Status writeSafeTensors(const std::string &path, std::vector<SafeTensorSource> tensors,
                        const std::map<std::string, std::string> &metadata = {{"format", "pt"}},
                        const Observers &observers = {});
/// Writes a model's folder: one file if all fits `shardBytesMax`, else several and the index. A
/// tensor larger than that has a file of its own.
Status writeSafeTensorsModel(const std::string &folder, std::vector<SafeTensorSource> tensors,
                             uint64_t shardBytesMax, const Observers &observers = {});

} // namespace shardc::checkpoint
