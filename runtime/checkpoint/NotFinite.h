// Finds numbers that are not finite while threads convert tensors.
#pragma once

#include <algorithm>
#include <mutex>
#include <set>
#include <string>

#include "runtime/base/Reports.h"
#include "runtime/checkpoint/Element.h"
#include "runtime/checkpoint/Reading.h"

namespace shardc::checkpoint {

/// The tensors in which threads have found numbers that are not finite.
class NotFinite {
public:
  void look(const std::string &name, Element type, const void *numbers, int64_t count) {
    auto isBad = [&](auto bits, unsigned exponent) {
      const auto *at = static_cast<const decltype(bits) *>(numbers);
      return std::any_of(at, at + count,
                         [&](auto number) { return (number & exponent) == exponent; });
    };
    constexpr unsigned kF32 = 0x7f800000, kBF16 = 0x7f80, kF16 = 0x7c00;
    bool isFound = type == Element::F32 ? isBad(uint32_t{}, kF32)
                                        : isBad(uint16_t{}, type == Element::F16 ? kF16 : kBF16);
    if (!isFound)
      return;
    std::lock_guard lock(mutex_);
    names_.insert(name);
  }
  void report(const std::string &folder, const ReportSink &emit) const {
    if (!names_.empty() && emit)
      emit(makeReport(report::WeightsNotFinite, folder, names_.size(),
                      listed({names_.begin(), names_.end()})));
  }

private:
  std::mutex mutex_;
  std::set<std::string> names_;
};

} // namespace shardc::checkpoint
