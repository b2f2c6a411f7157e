// Rates that were measured on a machine, as predictions look them up. A file of rates
// (runtime/base/Rates.h) becomes a list of words in the plan's job, so that a plan alone says what
// its times were predicted by.
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

/// What is known of the collectives of a group: the time by the bytes that a member receives.
struct RatedLink {
  struct Point {
    double bytes, seconds;
  };
  std::vector<Point> points; ///< by ascending bytes, at least one
  double faster = 1;         ///< the bandwidth as a multiple of the points'
};

class MeasuredRates {
public:
  explicit MeasuredRates(const std::vector<Rate> &rates);
  /// Of the words in a plan; null if there are none. Words that are no rate are left out: the
  /// compiler wrote them.
  static std::shared_ptr<const MeasuredRates> ofPlan(std::span<const std::string> words);

  /// TFLOP/s of products whose smallest extent is `extent`, linear in its logarithm between two
  /// measurements. Nothing if products of the type were not measured.
  std::optional<double> productTflops(DType type, double extent) const;
  /// TFLOP/s of attention by head size, the nearest, and sequence, likewise.
  std::optional<double> attentionTflops(DType type, int64_t channels, double positions,
                                        bool isBackward) const;
  /// The rate of the largest copy inside the device, GB/s: smaller ones fit into caches.
  std::optional<double> memoryGBs() const { return largestOf("copy"); }
  /// Of the largest copies from and to pinned memory, the slower of both.
  std::optional<double> hostGBs() const;
  /// Of the group that is placed most alike: inside a node as large or larger, between nodes with
  /// as many members on each, or another number, whose bandwidth each member's adapter adds to.
  std::optional<RatedLink> link(CollectiveKind kind, int64_t members, int64_t inNode) const;

  /// Makes the sustained rates of memory and of the bus those that were measured.
  void applyTo(Device &device) const;

  /// What predictions of these sizes ask for and the file has not, for people.
  std::vector<std::string> lacking(DType compute, bool usesFp8, int64_t gpusPerNode,
                                   int64_t nodes) const;

private:
  /// Rates by a size.
  using Curve = std::map<double, double>;
  struct Group {
    int64_t members, inNode;
    std::vector<RatedLink::Point> points;
  };

  std::optional<double> largestOf(const std::string &op) const;

  std::map<DType, Curve> products_; ///< by extent; those of 8 bits as F8E4M3
  std::map<std::pair<DType, bool>, std::map<int64_t, Curve>>
      attention_; ///< of a type, forward or backward: by channels and positions
  std::map<std::string, Curve> memory_;             ///< of each op by bytes
  std::map<std::string, std::vector<Group>> links_; ///< of each collective
};

} // namespace shardc::predict
