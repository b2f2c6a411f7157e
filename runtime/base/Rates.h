// Files of measured rates: `shardc-run --measure` writes them, `cluster.rates` reads them, and
// `shardc doctor` compares two of them. Each line is a JSON object. The first one is of kind
// `machine` and says what was measured; every other one is a rate. RateKinds.def has their fields.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/DType.h"

namespace shardc {

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

struct RateKindInfo {
  std::string_view name, unit;
  double unitSize; ///< operations or bytes a second
  std::vector<std::string_view> ops, sizes;
  std::string_view doc;
};
const RateKindInfo &infoOf(RateKind kind);

/// One measured rate: how long a piece of work of these sizes took.
struct Rate {
  RateKind kind = RateKind::Product;
  std::string op;
  DType dtype = DType::BF16;                     ///< of the operands
  std::array<int64_t, kRateSizesMax> sizes = {}; ///< in the order of the table
  double seconds = 0;

  /// The size of this name, which the kind has.
  int64_t size(std::string_view name) const;
  /// Operations, or bytes.
  double work() const;
  /// The rate in the kind's unit.
  double rate() const;
  /// Whether both are of the same work, whatever it took.
  bool isLike(const Rate &other) const;
  /// Which ranks a collective joins: `node`, `nodes` (one rank of each), or `all`. Empty for other
  /// kinds.
  std::string_view group() const;
  /// `product matmul bf16 4096 4096 4096`, for people; with `seconds` behind it, for plans.
  std::string text() const;
  std::string words() const;
  /// Reads words() back. Nothing if it is something else, or no rate that can be.
  static std::optional<Rate> ofWords(std::string_view words);
};

/// What a file says of the machine.
struct RatedMachine {
  std::string backend; ///< `host` or `cuda`
  std::string device;  ///< as the driver or the system names it
  int64_t ranks = 1, nodes = 1;
  std::string versions; ///< of this program and its libraries
};

struct RateFile {
  RatedMachine machine;
  std::vector<Rate> rates;
  std::vector<size_t> lines; ///< of the rates, from 1
};

/// An error in a file, with its line from 1.
struct RateFault {
  size_t line = 1;
  std::string text;
};

/// Reads a whole file of at most kRateFileBytesMax bytes. Keys that are not known, values out of
/// range, rates that do not follow from sizes and seconds, and the same work twice are faults.
std::optional<RateFile> parseRates(std::string_view text, RateFault &fault);

/// The text of a file.
std::string printRates(const RateFile &file);

/// Whether a device of this name is of a kind of the device table: all words of the kind are words
/// of the name. `h100` is "NVIDIA H100 80GB HBM3", and a100_40gb is "NVIDIA A100-SXM4-40GB".
bool isGpuOfKind(std::string_view name, std::string_view kind);

/// The work that is measured, by kind, without times. If `isQuick`, one size of each series, as
/// before a run. Collectives are those of one group; see collectiveGrid.
std::vector<Rate> computeGrid(bool isQuick);
/// The collectives of a group of so many members.
std::vector<Rate> collectiveGrid(int64_t members, int64_t inNode, bool isQuick);

} // namespace shardc
