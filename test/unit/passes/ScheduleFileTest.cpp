// Files of pipeline schedules: those that PyTorch's classes write are read, named schedules are
// PyTorch's, and each fault is found at its cell.
#include "compiler/model/ScheduleFile.h"

#include <fstream>
#include <map>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace shardc::model {
namespace {

/// A schedule of torch_schedules.txt, which torch_schedules.py beside it has written.
struct TorchSchedule {
  std::string kind, form, text;
  PipelineShape shape;
};

std::vector<TorchSchedule> torchSchedules() {
  std::vector<TorchSchedule> schedules;
  std::ifstream file(SHARDC_GOLDEN "/torch_schedules.txt");
  std::string line;
  std::getline(file, line); // how it was written
  while (std::getline(file, line)) {
    if (line.starts_with("# ")) {
      TorchSchedule &next = schedules.emplace_back();
      std::istringstream words(line.substr(2));
      words >> next.kind >> next.shape.stages >> next.shape.chunks >> next.shape.microbatches >>
          next.form;
    } else {
      schedules.back().text += line + "\n";
    }
  }
  return schedules;
}

PassOrder readOrFail(const TorchSchedule &schedule) {
  auto read = readSchedule(schedule.text, schedule.shape.stages, schedule.shape.microbatches);
  if (auto *fault = std::get_if<OrderFault>(&read)) {
    ADD_FAILURE() << schedule.kind << " " << schedule.form << ": " << fault->row << ":"
                  << fault->column << ": " << fault->reason;
    return {};
  }
  return std::get<PassOrder>(read);
}

TEST(ScheduleFile, ReadsPyTorchsFilesWithTransfersAndWithout) {
  std::vector<TorchSchedule> schedules = torchSchedules();
  ASSERT_EQ(schedules.size(), 48u);
  for (size_t i = 0; i < schedules.size(); i += 2) {
    PassOrder passes = readOrFail(schedules[i]), transfers = readOrFail(schedules[i + 1]);
    EXPECT_EQ(passes.rows, transfers.rows) << schedules[i].kind;
    EXPECT_EQ(writeSchedule(passes), schedules[i].text);
  }
}

TEST(ScheduleFile, NamedSchedulesArePyTorchs) {
  int compared = 0;
  for (const TorchSchedule &schedule : torchSchedules()) {
    using enum plan::Job::PipelineSchedule;
    const std::map<std::string, plan::Job::PipelineSchedule> names = {
        {"ScheduleLoopedBFS", LoopedBfs},
        {"ScheduleZBVZeroBubble", ZbV},
        {"ScheduleDualPipeV", DualPipeV}};
    auto named = names.find(schedule.kind);
    if (named == names.end() || schedule.form != "compute_only")
      continue;
    EXPECT_EQ(writeSchedule(orderOf(named->second, schedule.shape)), schedule.text)
        << schedule.kind;
    ++compared;
  }
  EXPECT_EQ(compared, 16);
}

struct FaultCase {
  const char *text;
  int64_t stages, microbatches;
  OrderFault::Kind kind;
  int64_t row, column;
  const char *reason;
};

TEST(ScheduleFile, FindsEachFaultAtItsCell) {
  using enum OrderFault::Kind;
  const FaultCase cases[] = {
      {"0F0,0B0\n1F0,1B0\n", 4, 1, Shape, 0, 0,
       "the schedule has 2 rows, but the pipeline has 4 stages"},
      {"0F0,0B0\n1F0,1B0\n", 2, 3, Shape, 0, 0,
       "the schedule has 1 microbatches, but a step has 3"},
      {"0F0,0B0\n1F0,1B0\n", 2, int64_t{1} << 60, Shape, 0, 0,
       "the schedule has 1 microbatches, but a step has 1152921504606846976"},
      {"0F0,2F1\n1F0,3F1\n", 2, 2, Missing, 0, 0,
       "the schedule has 4 passes; 4 chunks and 2 microbatches need at least 16"},
      {"0F0,0B0\n1F0, B1\n", 2, 1, Cell, 2, 2,
       "'B1' is not a pass; write the chunk, then F, B, I or W, then the microbatch, as in '2F0'"},
      {"0F0,0B0\n1F0,1B\n", 2, 1, Cell, 2, 2,
       "'1B' is not a pass; write the chunk, then F, B, I or W, then the microbatch, as in '2F0'"},
      {"0F0,(0F1;0W0)OVERLAP_F_B\n1F0,1B0\n", 2, 1, Cell, 1, 2,
       "'(0F1;0W0)OVERLAP_F_B' must hold a forward and a backward pass"},
      {"0F0,0B0,1F0\n1F0,1B0\n", 2, 1, Placement, 1, 3,
       "'1F0' is of chunk 1, which stage 1 holds, not stage 0"},
      {"0F0,0B0\n2F0,2B0\n", 2, 1, Placement, 0, 0,
       "no row has a pass of chunk 1, but there are passes of chunk 2"},
      {"0F0,0B0,0F0\n1F0,1B0\n", 2, 1, Twice, 1, 3, "'0F0' is there twice; first in column 1"},
      {"0F0,,0B0,0I0\n1F0,1B0\n", 2, 1, Twice, 1, 4, "'0I0' repeats a part of '0B0', column 3"},
      {"0F0,0B0\n1F0\n", 2, 1, Missing, 2, 0, "'1B0' is missing, or '1I0' and '1W0'"},
      {"0F0,0I0\n1F0,1B0\n", 2, 1, Missing, 1, 0, "'0W0' is missing; the row has '0I0'"},
      {"0F0,0B0\n1B0,1F0\n", 2, 1, Order, 2, 1,
       "'1B0' needs '1F0', which comes later, in column 2"},
      {"0F0,(0F1;0B1)OVERLAP_F_B,0B0\n1F0,1B0,1F1,1B1\n", 2, 2, Order, 1, 2,
       "'0B1' needs '0F1', in the same cell"},
      {"0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n", 2, 2, Cycle, 1, 2,
       "stages wait for each other: stage 0 (column 2) waits in '0B0' for '1B0'; stage 1 (column "
       "1) "
       "waits in '1F1' for '0F1'"},
      {"0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1SEND_B0,1B0\n", 2, 1, Transfer, 2, 3,
       "'1SEND_B0' comes before the pass that makes the value"},
      {"0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0\n", 2, 1, Transfer, 1, 0,
       "'0RECV_B0' is missing; the file has other transfers"},
      {"0UNSHARD,0F0,0RESHARD,0B0\n1F0,1B0\n", 2, 1, Transfer, 1, 4,
       "'0B0' runs while the weights of chunk 0 are not gathered"},
      {"0F0,0REDUCE_GRAD,0B0\n1F0,1B0\n", 2, 1, Transfer, 1, 2,
       "'0REDUCE_GRAD' comes before '0B0', which adds to the gradient"},
  };
  for (const FaultCase &each : cases) {
    auto read = readSchedule(each.text, each.stages, each.microbatches);
    ASSERT_TRUE(std::holds_alternative<OrderFault>(read)) << each.text;
    const auto &fault = std::get<OrderFault>(read);
    EXPECT_EQ(fault.kind, each.kind) << each.text << fault.reason;
    EXPECT_EQ(fault.row, each.row) << each.text;
    EXPECT_EQ(fault.column, each.column) << each.text;
    EXPECT_EQ(fault.reason, each.reason) << each.text;
  }
}

} // namespace
} // namespace shardc::model
