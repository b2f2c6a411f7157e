// The tensors of a Hugging Face model as rows of numbers: under the names that text models have,
// transposed, one expert of all, and unpacked from fp8 with scales, from mxfp4 or from nf4.
#pragma once

#include <atomic>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/checkpoint/HfModel.h"
#include "runtime/checkpoint/HfNf4.h"
#include "runtime/checkpoint/SafeTensors.h"

namespace shardc::checkpoint {

/// The name that the tensor has in a text model. Tensors of GPT-2 may have a prefix, those of
/// models without an output layer have none, and those of models with several parts name the part.
std::string plainHfName(const std::string &name);

/// Ok if an import can unpack the packing that `quantization_config` names; otherwise
/// HfWeightsPacked with its name. Which tensors are packed follows from the tensors themselves.
Status checkPacking(const HfConfig &config);

/// A hub's tensor in place, as rows and columns.
struct HfRows {
  Element type = Element::F32;
  int64_t rows = 0, columns = 1;
  int64_t rowStride = 1, columnStride = 1; ///< in elements
  int64_t slabs = 1;                       ///< number of slabs of the tensor
  bool isVector = false;
  const uint8_t *data = nullptr;
  /// For a tensor in mxfp4: the scales, one per 32 values of a row. `data` has two values per byte.
  const uint8_t *scales = nullptr;
  std::shared_ptr<const Nf4Matrix> nf4 = nullptr; ///< of a tensor of bitsandbytes' codes
};

/// The tensors from which an import reads.
class HfSource {
public:
  /// Finds tensors also by other names that the library has for them. If the model has only an
  /// output layer, and ties it to the embeddings, these are it.
  HfSource(const SafeTensorsModel &model, const HfConfig &config);

  bool has(const std::string &name) const {
    return plain_.contains(name) || plain_.contains(blocksOf(name));
  }
  /// Whether two existing tensors have the same bytes.
  bool areEqual(const std::string &one, const std::string &other) const {
    return std::ranges::equal(model_.bytes(plain_.at(one)), model_.bytes(plain_.at(other)));
  }
  /// The rows of a tensor, or of one of its slabs if `slab` is not negative.
  Result<HfRows> rowsOf(const std::string &name, bool isTransposed, int64_t slab = -1) const;
  /// Reads rows `first` to `first + rows` of the segment.
  Status readRows(const HfSegment &segment, bool isTransposed, int64_t first, int64_t rows,
                  Element type, uint8_t *dst) const;
  std::vector<std::string> unused(const std::set<std::string> &used, const HfConfig &config) const;

private:
  static std::string blocksOf(const std::string &name) { return name + "_blocks"; }
  static std::string scalesOf(const std::string &name) { return name + "_scales"; }
  /// Describes a tensor whose last dimension is packed in blocks of 16 bytes, each with a scale.
  Result<HfRows> packedRowsOf(const std::string &name, bool isTransposed, int64_t slab) const;
  /// Rows of a tensor of bitsandbytes' codes. Its shape is stored in another tensor.
  Result<HfRows> nf4RowsOf(const std::string &name, bool isTransposed, int64_t slab) const;
  /// A row in fp32. The low half of a byte comes first. The largest scale is infinite, as in
  /// torch's ldexp.
  void unpack(const HfRows &source, int64_t row, float *values) const;
  /// Counts bytes that were read, and releases all pages if there are many.
  void touch(int64_t bytes) const;
  /// Multiplies fp8 values by the scale of their block. The tensor's name says "inverse", but the
  /// scale is a factor.
  void unscale(const HfRows &source, const SafeTensor &scales, int64_t first, int64_t rows,
               float *values) const;

  const SafeTensorsModel &model_;
  std::unordered_map<std::string, std::string> plain_;
  mutable std::atomic<int64_t> touched_{0};
};

} // namespace shardc::checkpoint
