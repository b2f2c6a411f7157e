#include "runtime/launch/Exchange.h"

#include <algorithm>

#include "runtime/launch/RankReports.h"

namespace shardc::launch {

bool Exchange::add(int64_t rank, const std::string &body, double now) {
  Unpacker in(body);
  Part part;
  part.name = in.text();
  part.bytes = in.text();
  part.since = now;
  if (!in.isComplete() || part.bytes.size() > kBlobBytesMax)
    return false;
  parts_[static_cast<size_t>(rank)] = std::move(part);
  return true;
}

bool Exchange::isComplete() const {
  return std::ranges::all_of(parts_, [](const auto &part) { return part.has_value(); });
}

std::optional<int64_t> Exchange::findOther(int64_t rank) const {
  const std::string &name = part(rank)->name;
  for (size_t other = 0; other < parts_.size(); ++other)
    if (parts_[other] && parts_[other]->name != name)
      return static_cast<int64_t>(other);
  return std::nullopt;
}

std::string Exchange::take() {
  Packer all;
  for (std::optional<Part> &part : parts_) {
    all.text(part->bytes);
    part.reset();
  }
  return all.take();
}

const Exchange::Part *Exchange::part(int64_t rank) const {
  const std::optional<Part> &part = parts_[static_cast<size_t>(rank)];
  return part ? &*part : nullptr;
}

std::optional<int64_t> Exchange::longestWaiting() const {
  std::optional<int64_t> longest;
  for (size_t rank = 0; rank < parts_.size(); ++rank)
    if (parts_[rank] && (!longest || parts_[rank]->since < part(*longest)->since))
      longest = static_cast<int64_t>(rank);
  return longest;
}

std::string Exchange::missingRanks() const {
  std::vector<int64_t> missing;
  for (size_t rank = 0; rank < parts_.size(); ++rank)
    if (!parts_[rank])
      missing.push_back(static_cast<int64_t>(rank));
  return rangesOf(missing);
}

} // namespace shardc::launch
