// Files of measured rates. `shardc-run --measure` writes them, `cluster.rates` reads them, and
// `shardc doctor` compares two of them. Each line is a JSON object. The first one has kind
// `machine` and says what was measured; every other one is a rate. RateKinds.def defines their
// fields.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/DType.h"

namespace shardc {

/// The kinds of measured work, in the order of their rows.
enum class RateKind : uint8_t {
#define RATE_KIND(enumerator, ...) enumerator,
#include "runtime/base/RateKinds.def"
};
inline constexpr size_t kRateKinds = 0
#define RATE_KIND(...) +1
#include "runtime/base/RateKinds.def"
    ;
inline constexpr size_t kRateSizesMax = 5;
inline constexpr size_t kRateLinesMax = 10'000;
inline constexpr size_t kRateFileBytesMax = size_t{4} << 20;

/// One row: the words of a line of this kind, and its unit.
struct RateKindInfo {
  std::string_view name, unit;
  double unitSize; ///< operations or bytes per second in one unit
  std::vector<std::string_view> ops, sizes;
  std::string_view doc;
};
const RateKindInfo &infoOf(RateKind kind);

/// One measured rate: the time of a piece of work with these sizes.
struct Rate {
  RateKind kind = RateKind::Product;
  std::string op;
  DType dtype = DType::BF16;                     ///< type of the operands
  std::array<int64_t, kRateSizesMax> sizes = {}; ///< in the order of RateKinds.def
  double seconds = 0;

  /// The size with this name, which must be a size of the kind.
  int64_t size(std::string_view name) const;
  /// Number of operations or bytes.
  double work() const;
  /// The rate in the kind's unit.
  double rate() const;
  /// Whether both measure the same work, regardless of the time.
  bool isLike(const Rate &other) const;
  /// Which ranks a collective joins: `node`, `nodes` (one rank of each), or `all`. Empty for other
  /// kinds.
  std::string_view group() const;
  /// text() is for people, such as `product matmul bf16 4096 4096 4096`. words() is for plans and
  /// has the seconds appended.
  std::string text() const;
  std::string words() const;
  /// Parses words(). Nothing if the text is malformed or no such rate can exist.
  static std::optional<Rate> ofWords(std::string_view words);
};

/// The first line of a file: the machine that was measured.
struct RatedMachine {
  std::string backend; ///< `host` or `cuda`
  std::string device;  ///< device name from the driver or the operating system
  int64_t ranks = 1, nodes = 1;
  std::string versions; ///< versions of this program and its libraries
};

/// A file of measured rates.
struct RateFile {
  RatedMachine machine;
  std::vector<Rate> rates;
  std::vector<size_t> lines; ///< line numbers of the rates, from 1
};

/// An error in a file, and the number of its line, from 1.
struct RateFault {
  size_t line = 1;
  std::string text;
};

/// Parses a file of at most kRateFileBytesMax bytes. Unknown keys, values out of range, rates that
/// do not follow from sizes and seconds, and repeated work are errors.
std::optional<RateFile> parseRates(std::string_view text, RateFault &fault);

/// The text of a file with these rates.
std::string printRates(const RateFile &file);

/// Whether a device with this name is of a kind of the device table: the name contains all words of
/// the kind, possibly divided by blanks. For example, `h100` matches "NVIDIA H100 80GB HBM3",
/// a100_40gb matches "NVIDIA A100-SXM4-40GB", and rtx4090 matches "NVIDIA GeForce RTX 4090".
bool isGpuOfKind(std::string_view name, std::string_view kind);

/// The work to measure on one device, by kind, without times. `isQuick` selects one size per
/// series, as for the check before a run. collectiveGrid() has the collectives.
std::vector<Rate> computeGrid(bool isQuick);
/// The collectives to measure in a group with this many members.
std::vector<Rate> collectiveGrid(int64_t members, int64_t inNode, bool isQuick);

} // namespace shardc
