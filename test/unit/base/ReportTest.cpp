// Messages of the runtime: the form of the table's rows, how reports are printed, and the ids of
// errors without their own row.
#include <cctype>
#include <filesystem>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/Io.h"
#include "runtime/base/Reports.h"
#include "runtime/base/Socket.h"
#include "test/unit/base/Told.h"

namespace shardc {
namespace {

using test::said;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST(ReportTable, RowsHaveTheHouseForm) {
  std::set<std::string_view> ids;
  for (const ReportInfo &row : reportTable()) {
    std::string_view id = row.id, text = row.text, explanation = row.explanation;
    EXPECT_TRUE(ids.insert(id).second) << id << " is there twice";
    for (char c : id)
      EXPECT_TRUE(c == '-' || std::islower(c) || std::isdigit(c)) << id;
    EXPECT_FALSE(text.empty()) << id;
    EXPECT_FALSE(text.ends_with('.')) << id;
    EXPECT_FALSE(explanation.empty()) << id;
    EXPECT_FALSE(explanation.ends_with('.')) << id;
    EXPECT_TRUE(std::islower(explanation.front()) || explanation.front() == '\'' ||
                explanation.substr(0, 2) == "--" || explanation.starts_with("PyTorch") ||
                explanation.starts_with("NCCL") || explanation.starts_with("SHARDC_") ||
                std::isupper(explanation[1]) || explanation.starts_with("cuDNN"))
        << id << ": " << explanation;
    EXPECT_EQ(row.severity == Severity::Error, row.code != StatusCode::Ok) << id;
    EXPECT_EQ(findReport(id), &row);
  }
  EXPECT_EQ(findReport("no-such-id"), nullptr);
}

TEST(Report, EndsItsFirstLineWithTheId) {
  EXPECT_EQ(lineOf(makeReport(report::SlowGathers, 200.0, 348.25)),
            "warning: all-gathers run at 200.0 GB/s, but the prediction assumes 348.2; steps with "
            "exposed communication will take longer [slow-gathers]");
  EXPECT_EQ(
      lineOf(makeReport(report::TensorsLeftOut, 2, "\n  a\n  b")),
      "warning: the model has no parameters for 2 tensors, which are left out: [tensors-left-out]\n"
      "  a\n  b");
  EXPECT_EQ(lineOf(makeReport(report::RunBegins, "starting at step 0")), "starting at step 0");
  EXPECT_EQ(lineOf(makeReport(report::PlanRefused, "p:1:1: error: no [plan-syntax]")),
            "p:1:1: error: no [plan-syntax]");
}

TEST(Report, ComesBackAsItWasPacked) {
  Report report = makeReport(report::DataRefused, "first\nsecond");
  EXPECT_EQ(unpackReport(packReport(report)), report);
  EXPECT_FALSE(unpackReport(""));
  EXPECT_FALSE(unpackReport("data-refused"));
  EXPECT_FALSE(unpackReport("no-such-id\ntext"));
}

TEST(Report, IsKeptOnce) {
  ReportList list;
  ReportSink sink = list.sink();
  for (const char *channel : {"a", "b", "a"})
    sink(makeReport(report::NoWindows, channel));
  EXPECT_EQ(list.take().size(), 2u);
  EXPECT_THAT(list.take(), IsEmpty());
}

TEST(Status, HasTheIdOfItsRow) {
  Status status = makeStatus(report::OutputExists, "out");
  EXPECT_EQ(status.code(), StatusCode::InvalidInput);
  EXPECT_EQ(said(status),
            "error: 'out' exists already; remove it or choose another path [output-exists]");
  EXPECT_EQ(said(std::move(status).withContext("ckpt")),
            "error: ckpt: 'out' exists already; remove it or choose another path [output-exists]");
  Status other = makeStatus(StatusCode::NotFound, "no key").as(report::TensorsMissing.info());
  EXPECT_EQ(other.code(), StatusCode::NotFound);
  EXPECT_EQ(said(std::move(other).withMessage("no keys")), "error: no keys [tensors-missing]");
  EXPECT_TRUE(Status::ok().as(report::TensorsMissing.info()).isOk());
  EXPECT_EQ(Status(makeReport(report::NotFound, "x")).code(), StatusCode::NotFound);
}

/// The ids of errors without their own row.
TEST(Status, HasTheIdOfItsKindOtherwise) {
  EXPECT_THAT(said(readFile("/").status()), EndsWith(" [input-refused]"));
  EXPECT_THAT(said(readFile("/no/such/file").status()), EndsWith(" [not-found]"));
  EXPECT_THAT(said(writeFileAtomic("/proc/no-such-file/x", "")), StartsWith("error: cannot "));
  EXPECT_THAT(said(readSystemFile("/proc/self/mem").status()), EndsWith(" [system-refused]"));
  Result<Socket> listener = listenOn("127.0.0.1", 0);
  ASSERT_TRUE(listener.isOk());
  int port = portOf(*listener);
  listener->close();
  EXPECT_THAT(said(connectTo("127.0.0.1", port, 0).status()), EndsWith(" [not-available]"));
  EXPECT_EQ(generalReport(StatusCode::Internal).id, std::string("internal-error"));
}

} // namespace
} // namespace shardc
