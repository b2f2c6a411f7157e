// Helpers for the checkpoint tests: fixture files, temporary folders, pickles by hand.
#pragma once

#include <atomic>
#include <barrier>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/base/Io.h"
#include "runtime/checkpoint/CheckpointReader.h"
#include "runtime/checkpoint/CheckpointWriter.h"
#include "test/unit/base/Told.h"
#include "test/unit/support/TempFolder.h"

namespace shardc::checkpoint {

/// Path of a fixture.
std::string fixture(const std::string &name);

/// A folder in memory if the system has one, because saves sync every file, which is slow on disks.
class TempFolder : public test::TempFolder {
public:
  TempFolder();
  using test::TempFolder::TempFolder;
};

/// A barrier for ranks that are threads, at which they learn whether one of them has failed.
class ThreadBarrier {
public:
  explicit ThreadBarrier(int ranks) : barrier_(ranks) {}

  Status operator()(const Status &status) {
    if (!status.isOk())
      hasFailed_ = true;
    barrier_.arrive_and_wait();
    return hasFailed_ ? Status(StatusCode::Aborted, "another rank failed") : Status::ok();
  }

private:
  std::barrier<> barrier_;
  std::atomic<bool> hasFailed_ = false;
};

inline std::span<const uint8_t> bytesOf(std::string_view text) {
  return {reinterpret_cast<const uint8_t *>(text.data()), text.size()};
}

std::string contentsOf(const std::string &path);
void putContents(const std::string &path, std::string_view contents);
void copyFolder(const std::string &from, const std::string &to);
/// The text with the first occurrence of `from`, which must exist, replaced by `to`.
std::string replaced(std::string text, const std::string &from, const std::string &to);
/// The text of an object of the checkpoint, or why it has none.
std::string objectText(const CheckpointReader &reader, const std::string &name);

/// Reads a box that must be readable.
template <typename T>
std::vector<T> readBox(const CheckpointReader &reader, std::string_view name, Shape offset,
                       Shape shape, Element type) {
  std::vector<T> values(static_cast<size_t>(*elementCount(shape)));
  Status status = reader.read(name, {offset, shape}, type, values.data());
  EXPECT_TRUE(status.isOk()) << status.message();
  return values;
}

} // namespace shardc::checkpoint

#define EXPECT_OK(expr)                                                                            \
  do {                                                                                             \
    ::shardc::Status got_ = (expr);                                                                \
    EXPECT_TRUE(got_.isOk()) << got_.message();                                                    \
  } while (false)
#define ASSERT_OK(expr)                                                                            \
  do {                                                                                             \
    ::shardc::Status got_ = (expr);                                                                \
    ASSERT_TRUE(got_.isOk()) << got_.message();                                                    \
  } while (false)
/// Expects that the expression fails with a message that contains `text`, which may end with `
/// [id]`.
#define EXPECT_FAILS(expr, text)                                                                   \
  do {                                                                                             \
    ::shardc::Status got_ = (expr);                                                                \
    EXPECT_FALSE(got_.isOk());                                                                     \
    EXPECT_TRUE(::shardc::test::tells(got_, text)) << got_.message();                              \
  } while (false)
