// Weights in 4 bits as bitsandbytes stores them in a Hugging Face model: a tensor of codes, and
// beside it the scales of blocks (`.absmax`), the table of values (`.quant_map`), and a JSON text
// with the other settings (`.quant_state.bitsandbytes__nf4`). Scales in 8 bits have scales and a
// table of their own.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/Nf4Scales.h"
#include "runtime/checkpoint/SafeTensors.h"

namespace shardc::checkpoint {

/// Suffixes of the tensors that belong to a tensor of codes; their names begin with its name.
inline constexpr const char *kNf4State = ".quant_state.bitsandbytes__nf4";
/// Whether the end is that of any of them; sets `of` to the name of the codes.
bool isBesideNf4(const std::string &name, std::string &of);

/// A matrix of codes.
struct Nf4Matrix {
  int64_t rows = 0, columns = 0,
          block = 64; ///< numbers in a block; they are consecutive in a row
  const uint8_t *codes = nullptr;
  std::array<float, 16> values{};
  std::vector<float> scales; ///< of blocks
  /// The scales in 8 bits, if blocks, groups and values are those of NestedScales.
  std::optional<Nf4Scales> nested;

  /// Numbers of a row: values times scales, in fp32.
  void unpack(int64_t row, float *numbers) const;
};

/// Finds a tensor by its name, and its bytes; null if there is none.
using FindBytes =
    std::function<const SafeTensor *(const std::string &name, std::span<const uint8_t> &bytes)>;

/// The matrix with these codes. TensorsMissing or InvalidInput with what is wrong.
Result<std::shared_ptr<const Nf4Matrix>> openNf4(const std::string &name, const FindBytes &find);

/// Writes the numbers of a tensor, of type `type`.
using WriteNumbers = std::function<Status(ByteSink &sink)>;

/// The tensors that store a matrix of numbers in 4 bits. `isNested`: with scales in 8 bits. Reads
/// the numbers once now, for their scales, and once more for their codes.
Result<std::vector<SafeTensorSource>> packNf4(const std::string &name, const Shape &shape,
                                              Element type, bool isNested, WriteNumbers write);

/// `quantization_config` of such a model.
std::string nf4Config(bool isNested);

} // namespace shardc::checkpoint
