// Work of one rank's streams, predicted or as it ran, in one form for both.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compiler/predict/StepTime.h"
#include "runtime/plan/Plan.h"
#include "runtime/trace/Span.h"

namespace shardc::page {

/// Texts by number, each once.
class Names {
public:
  uint32_t idOf(const std::string &text);
  const std::vector<std::string> &list() const { return list_; }

private:
  std::map<std::string, uint32_t> ids_;
  std::vector<std::string> list_;
};

/// The classes of work that a timeline colours differently.
enum class Class : uint8_t { Forward, Backward, Recompute, Update, Other, Transfer };
inline constexpr int kClassCount = 6;
const char *toString(Class);

/// One op on one stream. Texts are numbers in Work::names.
struct Piece {
  uint32_t lane = 0; ///< in Work::lanes
  double begin = 0;  ///< seconds since the step, or the trace, began
  double end = 0;
  Class of = Class::Other;
  uint32_t label = 0;   ///< `micro: matmul %y (a.recipe:12)`
  uint32_t op = 0;      ///< name in the op table
  uint32_t group = 0;   ///< of a transfer: its ranks; else empty
  uint32_t unit = 0;    ///< empty if the op is of no unit
  uint32_t segment = 0; ///< empty for work without an op
  int64_t microbatch = -1;

  double seconds() const { return end - begin; }
};

struct Work {
  std::vector<std::string> lanes; ///< names of streams
  std::vector<Piece> pieces;      ///< by lane, then by begin
  Names names;
};

/// The predicted step of a role.
Work predictedWork(const plan::Plan &plan, const plan::Role &role,
                   const std::vector<predict::Interval> &intervals);

/// Spans of one rank, which has the role. `known` is set to the number of spans that an op of the
/// role has as label, `steps` to that of steps that begin.
Work tracedWork(const plan::Plan &plan, const plan::Role &role,
                const std::vector<trace::Span> &spans, size_t &known, int64_t &steps);

/// The first rank that has the role, which stands for the others.
int32_t firstRank(const plan::Plan &plan, const plan::Role &role);
/// The number of ranks of a role.
int64_t rankCount(const plan::Plan &plan, const plan::Role &role);

} // namespace shardc::page
