// The kinds of parameters: the rows of ParamKinds.def. Modules declare the kind of each parameter.
// Weight decay, learning rate, optimizer and freezing depend on the kind, not on the parameter's
// name.
#pragma once

#include <cstdint>
#include <string_view>

namespace shardc::model {

/// The kinds, in the order of their rows.
enum class ParamKind : uint8_t {
#define PARAM_KIND(enumerator, word, shape, decay, rate, takesMuon, names) enumerator,
#include "compiler/model/ParamKinds.def"
};

/// One row: what a parameter of the kind gets from the optimizer.
struct ParamKindInfo {
  enum Shape : uint8_t { Matrix, Vector, Filter };
  enum Decay : uint8_t { Decayed, NotDecayed, AsAsked };
  enum Rate : uint8_t { Common, Decoupled };

  std::string_view word; ///< in recipes
  Shape shape;           ///< shape of one tensor, also if several are stacked
  Decay decay;
  Rate rate;
  bool takesMuon;
  std::string_view names; ///< ends of upstream's names, separated by blanks
};

inline constexpr ParamKindInfo kParamKinds[] = {
#define PARAM_KIND(enumerator, word, shape, decay, rate, takesMuon, names)                         \
  {word, ParamKindInfo::shape, ParamKindInfo::decay, ParamKindInfo::rate, takesMuon, names},
#include "compiler/model/ParamKinds.def"
};

constexpr const ParamKindInfo &paramKindInfo(ParamKind kind) {
  return kParamKinds[static_cast<size_t>(kind)];
}

/// Whether it is one of an adapter's factors, its bias, or DoRA's magnitude.
constexpr bool isOfAdapter(ParamKind kind) {
  return kind == ParamKind::AdapterIn || kind == ParamKind::AdapterOut ||
         kind == ParamKind::AdapterBias || kind == ParamKind::Magnitude;
}

} // namespace shardc::model
