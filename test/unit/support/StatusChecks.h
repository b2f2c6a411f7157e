// Checks of functions that return a Status or a Result.
#pragma once

#include <string>

#include <gtest/gtest.h>

#include "runtime/base/Status.h"
#include "test/unit/base/Told.h"

/// Expects a failure with this code, whose message contains `text`.
#define EXPECT_FAILS(status, expectedCode, text)                                                   \
  do {                                                                                             \
    const ::shardc::Status failed_ = (status);                                                     \
    EXPECT_EQ(failed_.code(), ::shardc::StatusCode::expectedCode) << failed_.message();            \
    EXPECT_TRUE(::shardc::test::tells(failed_, text)) << failed_.message();                        \
  } while (false)

#define ASSERT_OK(result) ASSERT_TRUE((result).isOk()) << ::shardc::test::messageOf(result)

namespace shardc::test {
inline const std::string &messageOf(const Status &status) { return status.message(); }
template <typename T> const std::string &messageOf(const Result<T> &result) {
  return result.status().message();
}
} // namespace shardc::test
