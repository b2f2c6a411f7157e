// Looks up measured rates of a machine for predictions. A rates file (runtime/base/Rates.h) is
// stored as a list of words in the plan's job, so the plan alone documents the basis of its
// predictions.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/CollectiveKind.h"
#include "runtime/base/Rates.h"

namespace shardc::predict {

struct Device;

/// Measurements of a collective in one group: time as a function of the bytes that a member
/// receives.
struct RatedLink {
  struct Point {
    double bytes, seconds;
  };
  std::vector<Point> points; ///< ascending in bytes, at least one
  double faster = 1;         ///< factor by which the requested link has more bandwidth
};

/// Rates that `shardc measure` found on a device, by kind and size. Immutable, so copies of a
/// Device share it.
class MeasuredRates {
public:
  explicit MeasuredRates(const std::vector<Rate> &rates);
  /// Parses the measured rates that a plan lists; null if there is none. The compiler wrote the
  /// list, so an entry that does not parse is ignored.
  static std::shared_ptr<const MeasuredRates> ofPlan(std::span<const std::string> words);

  /// TFLOP/s of products whose smallest extent is `extent`, interpolated linearly in its logarithm.
  /// Empty if products of the type were not measured.
  std::optional<double> productTflops(DType type, double extent) const;
  /// TFLOP/s of attention for the nearest measured head size, interpolated linearly in the
  /// logarithm of the sequence length.
  std::optional<double> attentionTflops(DType type, int64_t channels, double positions,
                                        bool isBackward) const;
  /// GB/s of the largest measured copy within the device; smaller copies fit into caches.
  std::optional<double> memoryGBs() const { return largestOf("copy"); }
  /// GB/s of the largest copies from and to pinned host memory, the slower direction.
  std::optional<double> hostGBs() const;
  /// Rates of the most similar measured group. Within a node, that is one of the same size or
  /// larger. Between nodes, it is one with as many members per node or, if there is none, one with
  /// another number, which scales the bandwidth with the number of network adapters.
  std::optional<RatedLink> link(CollectiveKind kind, int64_t members, int64_t inNode) const;

  /// Replaces the device's sustained memory and bus rates by the measured ones.
  void applyTo(Device &device) const;

  /// The rates that predictions for such a job need and the file lacks, as text for users.
  std::vector<std::string> lacking(DType compute, bool usesFp8, int64_t gpusPerNode,
                                   int64_t nodes) const;

private:
  /// Rates by size.
  using Curve = std::map<double, double>;
  struct Group {
    int64_t members, inNode;
    std::vector<RatedLink::Point> points;
  };

  std::optional<double> largestOf(const std::string &op) const;

  std::map<DType, Curve> products_; ///< by extent; 8-bit products under F8E4M3
  std::map<std::pair<DType, bool>, std::map<int64_t, Curve>>
      attention_; ///< by type and direction, then by head size and sequence length
  std::map<std::string, Curve> memory_;             ///< by op, then bytes
  std::map<std::string, std::vector<Group>> links_; ///< by collective
};

} // namespace shardc::predict
