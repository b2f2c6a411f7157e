#include "runtime/tokenize/Unpacker.h"

#include "test/unit/tokenize/PackedFiles.h"

namespace shardc::tokenize {
namespace {

/// Unpacks the bytes piece by piece. Returns all unpacked bytes, or why unpacking failed.
Result<std::string> unpackAll(std::string_view name, std::string_view packed, size_t piece) {
  ASSIGN_OR_RETURN(std::unique_ptr<Unpacker> unpacker, makeUnpacker(name, packed));
  std::string out;
  if (!unpacker)
    return std::string("plain");
  for (size_t at = 0; at <= packed.size(); at += piece) {
    std::string_view part = packed.substr(at, piece);
    for (size_t before = out.size() + 1; !part.empty() || out.size() != before;) {
      before = out.size();
      RETURN_IF_ERROR(unpacker->unpack(part, out));
    }
  }
  if (!unpacker->isComplete())
    return makeStatus(StatusCode::InvalidInput, "incomplete");
  return out;
}

TEST(Unpacker, UnpacksStreamsThatFollowEachOther) {
  std::string first = noise(5'000), second(3'000'000, 'x');
  for (size_t piece : {size_t{1} << 16, size_t{1} << 22}) {
    auto unpacked = unpackAll("a.gz", gzip(first) + gzip("") + gzip(second), piece);
    ASSERT_OK(unpacked);
    EXPECT_EQ(*unpacked, first + second);
  }
#if SHARDC_WITH_ZSTD
  auto unpacked = unpackAll("a.zst", zstd(first) + zstd("") + zstd(second), 4096);
  ASSERT_OK(unpacked);
  EXPECT_EQ(*unpacked, first + second);
#endif
}

TEST(Unpacker, TheFirstBytesDecideWhereTheNameDoesNot) {
  EXPECT_EQ(*unpackAll("a", gzip("text"), 7), "text");
  EXPECT_EQ(*unpackAll("a", "{\"text\": 1}", 7), "plain");
  EXPECT_EQ(*unpackAll("a", "", 7), "plain");
  EXPECT_FAILS(unpackAll("a.gz", "{\"text\": 1}", 7).status(), InvalidInput,
               "the gzip stream is damaged");
  EXPECT_FAILS(unpackAll("a.gz", "", 7).status(), InvalidInput, "incomplete");
}

TEST(Unpacker, SeesEachCutAndEachGarbage) {
  std::string packed = gzip(noise(100));
  for (size_t size = 1; size < packed.size(); ++size)
    EXPECT_FALSE(unpackAll("a.gz", packed.substr(0, size), 50).isOk()) << size;
  EXPECT_FALSE(unpackAll("a.gz", packed + "rubbish", 50).isOk());
#if SHARDC_WITH_ZSTD
  packed = zstd(noise(100));
  for (size_t size = 1; size < packed.size(); ++size)
    EXPECT_FALSE(unpackAll("a.zst", packed.substr(0, size), 50).isOk()) << size;
  EXPECT_FALSE(unpackAll("a.zst", packed + "rubbish", 50).isOk());
#endif
}

TEST(Unpacker, OneCallGivesNoMoreThanItsLimit) {
  std::string packed = gzip(std::string(40'000'000, 'x')), out;
  auto unpacker = makeUnpacker("a.gz", packed);
  ASSERT_OK(unpacker);
  std::string_view left = packed;
  ASSERT_OK((*unpacker)->unpack(left, out));
  EXPECT_EQ(out.size(), Unpacker::kOutputBytes);
}

} // namespace
} // namespace shardc::tokenize
