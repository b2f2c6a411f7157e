#include "test/unit/tokenize/PackedFiles.h"

#include <zlib.h>
#if SHARDC_WITH_ZSTD
#include <zstd.h>
#endif

namespace shardc::tokenize {

std::string gzip(std::string_view bytes) {
  z_stream stream = {};
  EXPECT_EQ(::deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(::deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef *>(const_cast<char *>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef *>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(::deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  return out;
}

std::string zstd(std::string_view bytes) {
#if SHARDC_WITH_ZSTD
  std::string out(::ZSTD_compressBound(bytes.size()), '\0');
  out.resize(::ZSTD_compress(out.data(), out.size(), bytes.data(), bytes.size(), 3));
  return out;
#else
  return std::string(bytes);
#endif
}

std::string noise(size_t size) {
  std::string text;
  uint64_t state = 88172645463325252;
  while (text.size() < size) { // xorshift64
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    text += static_cast<char>('!' + state % 90);
  }
  return text;
}

} // namespace shardc::tokenize
