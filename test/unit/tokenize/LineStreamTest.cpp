#include "runtime/tokenize/LineStream.h"

#include "test/unit/tokenize/PackedFiles.h"

namespace shardc::tokenize {
namespace {

using Lines = std::vector<std::string>;

Lines linesOf(const std::string &path, Status &status, std::string *digest = nullptr,
              uint64_t lineBytesMax = uint64_t{1} << 30, FileForm form = FileForm::Lines) {
  Lines lines;
  Result<LineStream> stream = LineStream::open(path, lineBytesMax, form);
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

TEST(LineStream, GivesTheElementsOfAnArray) {
  TempFolder folder;
  Status status;
  auto rowsOf = [&](const std::string &text, uint64_t bytesMax = 3'000'000) {
    return linesOf(folder.write("rows.gz", gzip(text)), status, nullptr, bytesMax,
                   FileForm::JsonRows);
  };
  std::string longRow = "{\"a\": \"" + std::string(2'500'000, 'x') + "\"}";
  EXPECT_EQ(rowsOf("\xef\xbb\xbf\n[ {\"a\": \"],\\\\\\\"}\"},\n" + longRow + ", [1, {}]\n]\n"),
            (Lines{"{\"a\": \"],\\\\\\\"}\"}", longRow, "[1, {}]\n"}));
  ASSERT_OK(status);
  EXPECT_EQ(rowsOf(" []"), Lines{});
  EXPECT_EQ(rowsOf("\xef\xbb\xbf{}\n{}"), (Lines{"{}", "{}"}));
  EXPECT_EQ(rowsOf("\xef"), Lines{"\xef"});
  EXPECT_EQ(rowsOf(""), Lines{});
  ASSERT_OK(status);
  rowsOf("[{}, {\"a");
  EXPECT_FAILS(status, InvalidInput, "is a JSON array, and the file ends after element 1");
  rowsOf("[1]\n[2]");
  EXPECT_FAILS(status, InvalidInput, "it ends, but the file does not, after element 1");
  EXPECT_EQ(rowsOf("[{} {}]"), Lines{"{} {}"}); // its reader finds that this element is no JSON
  rowsOf("[" + longRow + "]", 1000);
  EXPECT_FAILS(status, InvalidInput, "there is one of more bytes than the limit after element 0");
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
