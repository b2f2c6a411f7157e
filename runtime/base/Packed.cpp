// Calls zlib and libsodium.
#include "runtime/base/Packed.h"

#include <algorithm>

#include <sodium.h>
#include <zlib.h>

namespace shardc {
namespace {

constexpr int kVariant = sodium_base64_VARIANT_ORIGINAL;

} // namespace

std::string packText(std::string_view text) {
  uLongf size = ::compressBound(text.size());
  std::string bytes(size, '\0');
  int status = ::compress2(reinterpret_cast<Bytef *>(bytes.data()), &size,
                           reinterpret_cast<const Bytef *>(text.data()), text.size(), Z_BEST_SPEED);
  SHARDC_CHECK(status == Z_OK, "zlib cannot compress a text");
  std::string packed(sodium_base64_encoded_len(size, kVariant), '\0');
  ::sodium_bin2base64(packed.data(), packed.size(),
                      reinterpret_cast<const unsigned char *>(bytes.data()), size, kVariant);
  packed.pop_back(); // the final zero byte
  return packed;
}

Result<std::string> unpackText(std::string_view packed, size_t bytesMax) {
  std::string bytes(packed.size(), '\0');
  size_t size = 0;
  if (::sodium_base642bin(reinterpret_cast<unsigned char *>(bytes.data()), bytes.size(),
                          packed.data(), packed.size(), nullptr, &size, nullptr, kVariant) != 0)
    return makeStatus(StatusCode::InvalidInput, "the packed text is no base64");
  std::string text;
  for (size_t capacity = std::min(bytesMax, 8 * size + 1);;
       capacity = std::min(bytesMax, 8 * capacity)) {
    text.resize(capacity);
    uLongf length = capacity;
    int status = ::uncompress(reinterpret_cast<Bytef *>(text.data()), &length,
                              reinterpret_cast<const Bytef *>(bytes.data()), size);
    if (status == Z_OK) {
      text.resize(length);
      return text;
    }
    if (status == Z_BUF_ERROR && capacity < bytesMax)
      continue;
    if (status == Z_BUF_ERROR)
      return makeStatus(StatusCode::InvalidInput,
                        "the packed text is incomplete, or has more than {} bytes", bytesMax);
    return makeStatus(StatusCode::InvalidInput, "zlib cannot read the packed text");
  }
}

} // namespace shardc
