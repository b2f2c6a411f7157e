// Plans that carry their specification, as text that zlib compresses, in base64.
#include <algorithm>
#include <cstddef>
#include <fmt/format.h>
#include <sodium.h>
#include <string>
#include <string_view>
#include <zlib.h>

#include "runtime/base/Reports.h"
#include "runtime/base/Status.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/spec/Specification.h"

namespace shardc::plan::spec {

namespace {

constexpr int kVariant = sodium_base64_VARIANT_ORIGINAL;

/// Compresses with zlib and writes the result in base64, without line breaks.
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

/// The text that packText() packed. Errors: InvalidInput if `packed` is damaged or the text is
/// longer than `bytesMax`.
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

Result<Plan> unpacked(const std::string &packed) {
  ASSIGN_OR_RETURN(std::string text, unpackText(packed, limits::kSourceBytesMax));
  ASSIGN_OR_RETURN(Plan specification, parse(text, "<specification>"));
  RETURN_IF_ERROR(verified(specification));
  return specification;
}

} // namespace

std::string packed(const Plan &specification) { return packText(print(specification)); }

Status proved(const Plan &plan) {
  if (plan.specification.empty())
    return Status::ok();
  std::optional<Finding> difference;
  if (Result<Plan> specification = unpacked(plan.specification); specification.isOk())
    difference = compare(*specification, plan).difference;
  else
    difference = Finding{.rule = Rule::Specification,
                         .message = fmt::format("the specification that it carries is damaged: {}",
                                                specification.status().message())};
  return difference ? makeStatus(report::PlanRefused, render(plan, *difference)) : Status::ok();
}

} // namespace shardc::plan::spec
