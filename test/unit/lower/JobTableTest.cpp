// Compares Options.def with Job.def: if plans contain a section, each of its executed options is a
// field of the job, or only the compiler uses it. Options.cpp asserts that each field is an option.
#include <set>

#include <gtest/gtest.h>

#include "compiler/config/Options.h"
#include "runtime/plan/Job.h"

namespace shardc::lower {
namespace {

TEST(JobTable, HasTheExecutedOptionsOfItsSections) {
  std::set<config::Section> sections;
  std::set<config::Opt> held;
  for (size_t i = 0; i < plan::kJobFields; ++i) {
    std::string_view path = plan::jobInfo(static_cast<plan::JobField>(i)).path;
    if (std::optional<config::Opt> option = config::findOption({path.data(), path.size()})) {
      sections.insert(config::info(*option).section);
      held.insert(*option);
    }
  }
  for (const config::OptionInfo &option : config::options())
    if (option.status == config::OptionStatus::Executed && !option.isCompiled &&
        sections.count(option.section) != 0) {
      EXPECT_EQ(held.count(option.opt), 1u) << option.path.str() << " is missing in Job.def";
    }
}

} // namespace
} // namespace shardc::lower
