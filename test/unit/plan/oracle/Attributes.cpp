#include "Attributes.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan::oracle {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();

std::vector<Attr> valuesOf(AttrKey key, const Op &op) {
  const AttrInfo &info = attrInfo(key);
  std::vector<Attr> values;
  auto whole = [&](int64_t value) {
    Attr &attr = values.emplace_back(Attr{key, {}});
    attr.i = value;
  };
  auto real = [&](double value) {
    Attr &attr = values.emplace_back(Attr{key, {}});
    attr.f = value;
  };
  if (info.type == AttrInfo::Float) {
    for (double value :
         {0.0, 1.0, 2 * op.getFloat(key), -1.0, 1e308, std::numeric_limits<double>::infinity(),
          std::numeric_limits<double>::quiet_NaN()})
      real(value);
    return values;
  }
  for (int64_t value : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{-1}, kMost})
    whole(value);
  if (info.type != AttrInfo::Int)
    return values;
  int64_t own = op.getInt(key), doubled = 0;
  whole(__builtin_mul_overflow(own, 2, &doubled) ? kLeast : doubled);
  whole(own / 2);
  whole(-std::max(own, -kMost));
  whole(int64_t{1} << 31);
  whole(int64_t{1} << 62);
  whole(info.least);
  whole(info.most);
  whole(info.most < kMost ? info.most + 1 : kLeast);
  return values;
}

/// Sets the attribute, also to its default.
void put(Op &op, const Attr &attr) {
  auto at = std::ranges::lower_bound(op.attrs, attr.key, {}, &Attr::key);
  if (at != op.attrs.end() && at->key == attr.key)
    *at = attr;
  else
    op.attrs.insert(at, attr);
}

Result<Plan> parsedBack(const Plan &plan) {
  return parse(print(plan, summary(plan)), "printed.plan");
}

void judge(const Plan &mutant, AttributeTally &tally) {
  auto began = std::chrono::steady_clock::now();
  Result<Plan> read = parsedBack(mutant);
  if (!read.isOk() || !verify(*read).empty())
    ++tally.refused;
  else if (Result<Plan> again = parsedBack(*read); !again.isOk() || print(*again) != print(*read))
    ++tally.changed;
  std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  tally.slowestSeconds = std::max(tally.slowestSeconds, took.count());
}

} // namespace

int64_t AttributeTally::total() const {
  return std::accumulate(mutants.begin(), mutants.end(), int64_t{0});
}

void setEveryAttribute(const Plan &plan, int64_t stride, AttributeTally &tally) {
  Plan mutant = plan;
  int64_t turn = 0;
  for (Role &role : mutant.roles)
    for (Segment &segment : role.segments)
      for (Op &op : segment.ops) {
        const std::vector<Attr> before = op.attrs;
        for (int k = 0; k < kAttrCount; ++k) {
          auto key = static_cast<AttrKey>(k);
          bool isSet = std::ranges::find(before, key, &Attr::key) != before.end();
          for (const Attr &attr : valuesOf(key, op)) {
            if (!isSet && turn++ % stride != 0)
              continue;
            put(op, attr);
            judge(mutant, tally);
            ++tally.mutants[static_cast<size_t>(op.kind)];
            op.attrs = before;
          }
        }
      }
}

Plan planOfOne(OpKind kind) {
  Result<Plan> read = parse("shardc.plan 2 logical \"one\"\nmesh { dp = 2 }\ngroups { dp = [dp] }\n"
                            "data dp\nunit a\nblock a unit a numel 256 shard 128 over dp\n"
                            "param \"a\" : f32[16,16] block a at 0 init zeros\n"
                            "role all \"w\" {\n  segment s {\n"
                            "    %x = fill : f32[4,2,8,4] activations\n  }\n"
                            "  program { run s }\n}\n",
                            "one.plan");
  SHARDC_CHECK(read.isOk(), "{}", read.isOk() ? "" : read.status().message());
  Plan plan = std::move(*read);
  Segment &segment = plan.roles[0].segments[0];
  const OpInfo &info = opInfo(kind);
  Op op{.kind = kind};
  op.group = info.collective || info.takesIndex() ? 0 : -1;
  op.operands.assign(info.operandsMax == kAnyNumber ? info.operandsMin + 1u : info.operandsMax, 0);
  for (AttrKey needed : attrKeys(info.needed))
    put(op, valuesOf(needed, op)[attrInfo(needed).defaultValue == 0 ? 1 : 0]);
  if (info.block == BlockUse::List)
    op.blocks.assign(op.operands.size(), {0});
  size_t results = info.resultsMax == kAnyNumber ? info.resultsMin + 1u : info.resultsMax;
  for (size_t r = 0; r < results; ++r) {
    Value value = segment.values[0];
    value.name = "y" + std::to_string(r);
    value.def = 1, value.defResult = static_cast<uint8_t>(r);
    op.results.push_back(static_cast<ValueId>(segment.values.size()));
    segment.values.push_back(value);
  }
  segment.ops.push_back(op);
  return plan;
}

} // namespace shardc::plan::oracle
