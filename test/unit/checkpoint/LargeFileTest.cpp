// Files of several blocks, which other threads write, past the page cache if possible, and read
// ahead. Their bytes and errors must be those of small files.
#include <gtest/gtest.h>

#include "runtime/checkpoint/Integrity.h"
#include "test/unit/checkpoint/PlantedFileFaults.h"
#include "test/unit/checkpoint/TestFiles.h"

namespace shardc::checkpoint {
namespace {

constexpr size_t kMebibyte = size_t{1} << 20;

std::string filePattern(size_t size) {
  std::string bytes(size, '\0');
  uint64_t state = 1;
  for (size_t i = 0; i + 8 <= size; i += 8) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(bytes.data() + i, &state, 8);
  }
  return bytes;
}

/// Writes in parts of changing size, as an archive with small and large entries does.
Status writeParts(const std::string &path, std::string_view bytes, uint64_t bytesExpected = 0,
                  FileFaults *faults = nullptr) {
  ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(path, {.faults = faults}, bytesExpected));
  for (size_t at = 0, part = 1; at < bytes.size(); at += part, part = part * 7 % 5'000'011) {
    std::string_view piece = bytes.substr(at, part);
    RETURN_IF_ERROR(file.write(piece.data(), piece.size()));
  }
  return file.close();
}

/// Runs in memory, and in the folder of temporary files, on a disk that supports direct writes.
class LargeFile : public testing::TestWithParam<bool> {
protected:
  TempFolder folder =
      GetParam() ? TempFolder(std::filesystem::temp_directory_path()) : TempFolder();
};

INSTANTIATE_TEST_SUITE_P(MemoryAndDisk, LargeFile, testing::Bool());

TEST_P(LargeFile, HasTheBytesThatWereGiven) {
  for (size_t size : {size_t{0}, size_t{1}, 8 * kMebibyte - 1, 8 * kMebibyte, 8 * kMebibyte + 1,
                      16 * kMebibyte, 27 * kMebibyte + 12345}) {
    std::string bytes = filePattern(size);
    for (size_t expected : {size_t{0}, size / 2, size, size + 3 * kMebibyte + 1}) {
      ASSERT_OK(writeParts(folder / "file", bytes, expected));
      EXPECT_TRUE(contentsOf(folder / "file") == bytes) << size << ", expected " << expected;
    }
  }
}

TEST_P(LargeFile, ExpectsMoreThanAnyDiskHas) {
  std::string bytes = filePattern(20 * kMebibyte);
  ASSERT_OK(writeParts(folder / "file", bytes, uint64_t{1} << 62));
  EXPECT_TRUE(contentsOf(folder / "file") == bytes);
}

TEST_P(LargeFile, GoesOnAfterAMove) {
  std::string bytes = filePattern(20 * kMebibyte);
  Result<OutputFile> file = OutputFile::create(folder / "file", {});
  ASSERT_OK(file.status());
  ASSERT_OK(file->write(bytes.data(), 9 * kMebibyte));
  OutputFile moved = std::move(*file);
  ASSERT_OK(moved.write(bytes.data() + 9 * kMebibyte, bytes.size() - 9 * kMebibyte));
  ASSERT_OK(moved.close());
  EXPECT_TRUE(contentsOf(folder / "file") == bytes);
}

TEST_P(LargeFile, FailsAtEveryWriteAndSync) {
  std::string bytes = filePattern(26 * kMebibyte);
  InjectedFileFaults counter;
  ASSERT_OK(writeParts(folder / "file", bytes, 0, &counter));
  int64_t count = counter.operationsDone();
  EXPECT_TRUE(contentsOf(folder / "file") == bytes); // also in halves
  EXPECT_GE(count, 1 + 2 * 4 + 1);
  for (auto kind : {FileFault::Kind::DiskFull, FileFault::Kind::Denied})
    for (int64_t operation = 0; operation < count; ++operation) {
      InjectedFileFaults faults({kind, operation});
      EXPECT_FALSE(writeParts(folder / "file", bytes, 0, &faults).isOk()) << operation;
    }
}

TEST_P(LargeFile, IsLeftWithoutHarm) {
  std::string bytes = filePattern(17 * kMebibyte);
  Result<OutputFile> file = OutputFile::create(folder / "file", {});
  ASSERT_OK(file.status());
  ASSERT_OK(file->write(bytes.data(), bytes.size()));
}

TEST_P(LargeFile, IsReadAheadInAnyOrder) {
  std::string bytes = filePattern(96 * kMebibyte + 777);
  ASSERT_OK(writeParts(folder / "file", bytes));
  BlockChecksums sums;
  sums.add(bytes.data(), bytes.size());
  auto read = [&](CheckedFile &file, uint64_t offset, uint64_t length) {
    file.prefetch(offset, length);
    ASSERT_OK(file.ensure(offset, length));
    EXPECT_EQ(std::memcmp(file.bytes().data() + offset, bytes.data() + offset, length), 0);
  };
  for (uint64_t step : {uint64_t{1}, uint64_t{3}, uint64_t{8}}) {
    auto file = CheckedFile::open(std::move(*MappedFile::open(folder / "file")), &sums);
    ASSERT_OK(file.status());
    for (uint64_t at = 100; at < bytes.size(); at += step * kMebibyte)
      read(**file, at, std::min<uint64_t>(step * kMebibyte - 2000, bytes.size() - at));
    for (uint64_t at : {50, 10, 90, 11, 12, 0}) { // backwards, and to the last byte
      (*file)->drop();
      read(**file, at * kMebibyte,
           std::min<uint64_t>(7 * kMebibyte, bytes.size() - at * kMebibyte));
    }
  }
}

TEST_P(LargeFile, ReadsAheadOfNothingBeyondItsEnd) {
  putContents(folder / "file", "short");
  auto file = CheckedFile::open(std::move(*MappedFile::open(folder / "file")), nullptr);
  ASSERT_OK(file.status());
  (*file)->prefetch(0, 5);
  (*file)->prefetch(5, 0);
  EXPECT_EQ((*file)->bytes().size(), 5u);
}

} // namespace
} // namespace shardc::checkpoint
