// Both unpackers accept several streams one after the other, as parallel compressors write them,
// and produce at most kOutputBytes bytes per call.
#include "runtime/tokenize/Unpacker.h"

#include <zlib.h>
#if SHARDC_WITH_ZSTD
#include <zstd.h>
#endif

#include "runtime/base/Reports.h"

namespace shardc::tokenize {
namespace {

class GzipUnpacker : public Unpacker {
public:
  GzipUnpacker() {
    constexpr int kWindowOfGzip = 15 + 16; // zlib's largest window, with a gzip header
    isReady_ = ::inflateInit2(&stream_, kWindowOfGzip) == Z_OK;
  }
  ~GzipUnpacker() override {
    if (isReady_)
      ::inflateEnd(&stream_);
  }

  Status unpack(std::string_view &packed, std::string &out) override {
    if (!isReady_)
      return makeStatus(StatusCode::Exhausted, "not enough memory to unpack gzip");
    if (isEnded_ && packed.empty())
      return Status::ok();
    if (isEnded_)
      ::inflateReset(&stream_);
    isEnded_ = false;
    size_t before = out.size();
    out.resize(before + kOutputBytes);
    size_t bytes = std::min(packed.size(), kOutputBytes);
    stream_.next_in = reinterpret_cast<Bytef *>(const_cast<char *>(packed.data()));
    stream_.avail_in = static_cast<uInt>(bytes);
    stream_.next_out = reinterpret_cast<Bytef *>(out.data() + before);
    stream_.avail_out = static_cast<uInt>(kOutputBytes);
    int status = ::inflate(&stream_, Z_NO_FLUSH);
    packed.remove_prefix(bytes - stream_.avail_in);
    out.resize(out.size() - stream_.avail_out);
    isEnded_ = status == Z_STREAM_END;
    if (status == Z_MEM_ERROR)
      return makeStatus(StatusCode::Exhausted, "not enough memory to unpack gzip");
    if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR)
      return makeStatus(report::DataRefused, "the gzip stream is damaged: {}",
                        stream_.msg ? stream_.msg : "it needs a dictionary");
    return Status::ok();
  }
  bool isComplete() const override { return isEnded_; }
  std::string_view format() const override { return "gzip"; }

private:
  z_stream stream_ = {};
  bool isReady_ = false, isEnded_ = false;
};

#if SHARDC_WITH_ZSTD
/// Unpacks zstd. A file may have several frames; it is complete if the last one has ended.
class ZstdUnpacker : public Unpacker {
public:
  ZstdUnpacker() : stream_(::ZSTD_createDStream()) {}
  ~ZstdUnpacker() override { ::ZSTD_freeDStream(stream_); }

  Status unpack(std::string_view &packed, std::string &out) override {
    if (!stream_)
      return makeStatus(StatusCode::Exhausted, "not enough memory to unpack zstd");
    if (isEnded_ && packed.empty())
      return Status::ok();
    size_t before = out.size();
    out.resize(before + kOutputBytes);
    ZSTD_inBuffer from = {packed.data(), packed.size(), 0};
    ZSTD_outBuffer to = {out.data() + before, kOutputBytes, 0};
    size_t left = ::ZSTD_decompressStream(stream_, &to, &from);
    packed.remove_prefix(from.pos);
    out.resize(before + to.pos);
    if (::ZSTD_isError(left))
      return makeStatus(report::DataRefused, "the zstd stream is damaged: {}",
                        ::ZSTD_getErrorName(left));
    isEnded_ = left == 0;
    return Status::ok();
  }
  bool isComplete() const override { return isEnded_; }
  std::string_view format() const override { return "zstd"; }

private:
  ZSTD_DStream *stream_;
  bool isEnded_ = false;
};
#endif

} // namespace

Result<std::unique_ptr<Unpacker>> makeUnpacker(std::string_view path, std::string_view head) {
  bool isGzip = path.ends_with(".gz"), isZstd = path.ends_with(".zst") || path.ends_with(".zstd");
  if (!isGzip && !isZstd) {
    isGzip = head.starts_with("\x1f\x8b");
    isZstd = head.starts_with("\x28\xb5\x2f\xfd");
  }
  if (isGzip)
    return std::unique_ptr<Unpacker>(std::make_unique<GzipUnpacker>());
#if SHARDC_WITH_ZSTD
  if (isZstd)
    return std::unique_ptr<Unpacker>(std::make_unique<ZstdUnpacker>());
#else
  if (isZstd)
    return makeStatus(StatusCode::Unavailable,
                      "'{}' is packed with zstd, without which this program was built; build it "
                      "where libzstd-dev is installed, or unpack the file first",
                      path);
#endif
  return std::unique_ptr<Unpacker>();
}

} // namespace shardc::tokenize
