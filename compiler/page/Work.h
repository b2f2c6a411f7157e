// The work on one rank's streams, in the same form for a prediction and for a trace.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compiler/predict/StepTime.h"
#include "runtime/plan/Plan.h"
#include "runtime/trace/Span.h"

namespace shardc::page {

/// Stores each text once and numbers the texts.
class Names {
public:
  uint32_t idOf(const std::string &text);
  const std::vector<std::string> &list() const { return list_; }

private:
  std::map<std::string, uint32_t> ids_;
  std::vector<std::string> list_;
};

/// The classes of work, drawn in different colours.
enum class Class : uint8_t { Forward, Backward, Recompute, Update, Other, Transfer };
inline constexpr int kClassCount = 6;
const char *toString(Class);

/// One execution of an op on a stream. Texts are indices into Work::names.
struct Piece {
  uint32_t lane = 0; ///< index into Work::lanes
  double begin = 0;  ///< seconds since the start of the step or the trace
  double end = 0;
  Class of = Class::Other;
  uint32_t label = 0;   ///< such as `micro: matmul %y (a.recipe:12)`
  uint32_t op = 0;      ///< name in the op table
  uint32_t group = 0;   ///< for a transfer, the group's name; otherwise empty
  uint32_t unit = 0;    ///< empty if the op belongs to no unit
  uint32_t segment = 0; ///< empty for work that belongs to no op
  int64_t microbatch = -1;

  double seconds() const { return end - begin; }
};

struct Work {
  std::vector<std::string> lanes; ///< names of the streams
  std::vector<Piece> pieces;      ///< by lane, then by begin
  Names names;
};

/// The predicted step of a role.
Work predictedWork(const plan::Plan &plan, const plan::Role &role,
                   const std::vector<predict::Interval> &intervals);

/// Converts the spans of one rank of `role`. Sets `known` to the number of spans whose label is
/// that of an op of the role, and `steps` to the number of steps that begin.
Work tracedWork(const plan::Plan &plan, const plan::Role &role,
                const std::vector<trace::Span> &spans, size_t &known, int64_t &steps);

/// The lowest rank that has the role.
int32_t firstRank(const plan::Plan &plan, const plan::Role &role);
/// The number of ranks that have the role.
int64_t rankCount(const plan::Plan &plan, const plan::Role &role);

} // namespace shardc::page
