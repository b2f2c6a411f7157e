#include "runtime/tokenize/LineStream.h"

#include "test/unit/tokenize/PackedFiles.h"

namespace shardc::tokenize {
namespace {

using Lines = std::vector<std::string>;

Lines linesOf(const std::string &path, Status &status, std::string *digest = nullptr,
              uint64_t lineBytesMax = uint64_t{1} << 30) {
  Lines lines;
  Result<LineStream> stream = LineStream::open(path, lineBytesMax);
  status = stream.status();
  std::string line;
  while (status.isOk()) {
    Result<bool> isMore = stream->next(line);
    status = isMore.status();
    if (!isMore.isOk() || !*isMore)
      break;
    lines.push_back(line);
  }
  if (digest && status.isOk())
    *digest = stream->digest();
  return lines;
}

TEST(LineStream, GivesLinesOfPlainAndPackedFiles) {
  TempFolder folder;
  std::string longLine(3'000'000, 'x'), odd(1'048'575, 'y');
  std::string text = "a\n\n" + longLine + "\n" + odd + "\nlast";
  Status status;
  Lines wanted = {"a", "", longLine, odd, "last"};
  EXPECT_EQ(linesOf(folder.write("a.jsonl", text), status), wanted);
  ASSERT_OK(status);
  EXPECT_EQ(linesOf(folder.write("a.gz", gzip(text)), status), wanted);
  ASSERT_OK(status);
#if SHARDC_WITH_ZSTD
  EXPECT_EQ(linesOf(folder.write("a.zst", zstd(text)), status), wanted);
  ASSERT_OK(status);
#endif
  EXPECT_EQ(linesOf(folder.write("b", "a\n"), status), Lines{"a"});
  EXPECT_EQ(linesOf(folder.write("c", ""), status), Lines{});
  ASSERT_OK(status);
}

TEST(LineStream, DigestsTheFileAndNotItsText) {
  TempFolder folder;
  std::string packed = gzip("a\nb\n"), digest;
  Sha256 wanted;
  wanted.add(packed);
  Status status;
  linesOf(folder.write("a.gz", packed), status, &digest);
  ASSERT_OK(status);
  EXPECT_EQ(digest, wanted.hex());
}

TEST(LineStream, SaysWhatIsWrong) {
  TempFolder folder;
  Status status;
  std::string packed = gzip("a\n" + noise(100'000));
  EXPECT_EQ(linesOf(folder.write("a.gz", packed.substr(0, packed.size() - 9)), status), Lines{"a"});
  EXPECT_FAILS(status, InvalidInput,
               "a.gz' ends in the middle of its gzip stream; it is truncated");
  packed[packed.size() / 2] ^= 1;
  linesOf(folder.write("b.gz", packed), status);
  EXPECT_FAILS(status, InvalidInput, "b.gz': the gzip stream is damaged");
  EXPECT_EQ(linesOf(folder.write("c", "ab\nabcdef\n"), status, nullptr, 5), Lines{"ab"});
  EXPECT_FAILS(status, InvalidInput, "c:2': the line has more than 5 bytes, the limit");
  linesOf(folder.write("d.gz", gzip(std::string(9'000'000, 'x'))), status, nullptr, 5);
  EXPECT_FAILS(status, InvalidInput, "d.gz:1': the line has more than 5 bytes");
  linesOf(folder / "nothing", status);
  EXPECT_FAILS(status, NotFound, "nothing");
}

} // namespace
} // namespace shardc::tokenize
