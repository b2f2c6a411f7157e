// Runs fused ops as the other ops that they equal (runtime/plan/Steps.def), one after the other,
// with the values between them in the call's workspace. The kernels of any backend can be the
// steps' kernels.
#pragma once

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <string_view>

#include "kernels/api/Kernel.h"
#include "runtime/plan/OpInfo.h"

namespace shardc::kernels {

/// Returns the backend's kernel of an op, by its name in Ops.def; null if it has none.
using KernelFinder = const Kernel *(*)(std::string_view opName);

/// Each finds the kernels of steps by `find`. Steps whose results the call lacks are left out.
void runSteps(KernelFinder find, plan::OpForm form, const Call &call);
/// Null, or why the steps cannot execute the call.
const char *refusalOfSteps(KernelFinder find, plan::OpForm form, const Call &call);
/// Bytes of all values between the steps, and of the largest workspace of a step.
size_t bytesOfSteps(KernelFinder find, plan::OpForm form, const Call &call);

/// The names of ops in Ops.def.
inline constexpr std::string_view kOpNames[] = {
#define OP(enumerator, name, operands, results, traits, doc) name,
#include "runtime/plan/Ops.def"
};

/// The kernel that runs the steps of an op by the kernels of a backend.
template <KernelFinder kFind, plan::OpKind kKind, plan::Epilogue kEpilogue = plan::Epilogue::None>
class StepsKernel {
  static constexpr plan::OpForm kForm = {kKind, kEpilogue};
  static constexpr auto kName = [] {
    std::array<char, 64> name{};
    char *end = name.data();
    auto add = [&](std::string_view text) { end = std::ranges::copy(text, end).out; };
    add(kOpNames[static_cast<size_t>(kKind)]);
    if constexpr (kEpilogue != plan::Epilogue::None) {
      add(".");
      add(kOpNames[static_cast<size_t>(plan::opOfEpilogue(kEpilogue))]);
    }
    add("_by_steps");
    return name;
  }();

  static void run(const Call &call) { runSteps(kFind, kForm, call); }
  static const char *accepts(const Call &call) { return refusalOfSteps(kFind, kForm, call); }
  static size_t workspaceBytes(const Call &call) { return bytesOfSteps(kFind, kForm, call); }

public:
  static constexpr Kernel kKernel = {kName.data(), run, accepts, workspaceBytes};
};

/// The kernel that runs the steps of the op with this name; null if the op has no row FUSED or
/// FORM.
template <KernelFinder kFind> const Kernel *stepsKernelOf(std::string_view opName) {
  struct Row {
    plan::OpForm form;
    const Kernel *kernel;
  };
  using plan::Epilogue;
  using plan::OpKind;
  static constexpr Row kRows[] = {
#define FUSED(op, values, steps) {{OpKind::op}, &StepsKernel<kFind, OpKind::op>::kKernel},
#define FORM(op, epilogue, steps)                                                                  \
  {{OpKind::op, Epilogue::epilogue}, &StepsKernel<kFind, OpKind::op, Epilogue::epilogue>::kKernel},
#include "runtime/plan/Steps.def"
  };
  std::optional<plan::OpForm> form = plan::parseOpForm(opName);
  if (!form)
    return nullptr;
  const Row *row = std::ranges::find_if(kRows, [&](const Row &each) {
    return each.form.kind == form->kind && each.form.epilogue == form->epilogue;
  });
  return row == std::end(kRows) ? nullptr : row->kernel;
}

} // namespace shardc::kernels
