#include "runtime/launch/Standing.h"

#include <algorithm>

#include "runtime/launch/Wire.h"

namespace shardc::launch {
namespace {

constexpr double kSecondsMax = 1e9;

uint64_t millisecondsOf(double seconds) {
  return static_cast<uint64_t>(std::clamp(seconds, 0.0, kSecondsMax) * 1e3);
}

double secondsOf(Unpacker &in) {
  return static_cast<double>(in.bounded(millisecondsOf(kSecondsMax))) * 1e-3;
}

} // namespace

void Standing::Longest::take(const Longest &other) {
  if (other.rank >= 0 && (rank < 0 || other.seconds > seconds))
    *this = other;
}

void Standing::merge(const Standing &other) {
  if (other.hasRanks() && (!hasRanks() || other.stepsLeast < stepsLeast)) {
    stepsLeast = other.stepsLeast;
    last = other.last;
  }
  stepsMost = std::max(stepsMost, other.stepsMost);
  inside.take(other.inside);
  making.take(other.making);
  silent.take(other.silent);
  isAsked = isAsked || other.isAsked;
  still = std::min(still, other.still);
}

Standing Standing::after(double seconds) const {
  Standing later = *this;
  for (Longest *each : {&later.inside, &later.making, &later.silent})
    each->seconds += seconds;
  later.still += seconds;
  return later;
}

std::string Standing::pack() const {
  Packer out;
  out.number(stepsLeast).number(static_cast<uint64_t>(last + 1)).number(stepsMost);
  for (const Longest *each : {&inside, &making, &silent})
    out.number(static_cast<uint64_t>(each->rank + 1)).number(millisecondsOf(each->seconds));
  return out.number(isAsked).number(millisecondsOf(still)).take();
}

std::optional<Standing> Standing::unpack(std::string_view body, int64_t ranks) {
  Unpacker in(body);
  auto rankOf = [&] { return static_cast<int64_t>(in.bounded(static_cast<uint64_t>(ranks))) - 1; };
  Standing standing;
  standing.stepsLeast = in.number();
  standing.last = rankOf();
  standing.stepsMost = in.number();
  for (Longest *each : {&standing.inside, &standing.making, &standing.silent}) {
    each->rank = rankOf();
    each->seconds = secondsOf(in);
  }
  standing.isAsked = in.bounded(1) != 0;
  standing.still = secondsOf(in);
  return in.isComplete() ? std::optional(standing) : std::nullopt;
}

} // namespace shardc::launch
