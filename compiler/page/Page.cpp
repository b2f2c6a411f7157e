#include "compiler/page/Page.h"

#include <string_view>

namespace shardc::page {
namespace {

/// The text of a file that the build has compiled into the program.
std::string_view assetOf(std::string_view name) {
  struct Asset {
    std::string_view name, text;
  };
  static constexpr Asset kAssets[] = {
#define ASSET(name, text) {name, text},
#include "compiler/page/Assets.inc"
#undef ASSET
  };
  for (const Asset &asset : kAssets)
    if (asset.name == name)
      return asset.text;
  SHARDC_CHECK(false, "no asset '{}'", name);
}

/// Replaces `mark`, which occurs once in the page, by `text`.
void replaceMark(std::string &page, std::string_view mark, std::string_view text) {
  size_t at = page.find(mark);
  SHARDC_CHECK(at != std::string::npos, "no mark '{}' in the page", mark);
  page.replace(at, mark.size(), text);
}

/// JSON inside a page must not contain `</script>` or other markup, so these characters are written
/// as escapes of JSON.
std::string escaped(const std::string &json) {
  std::string out;
  out.reserve(json.size() + json.size() / 64);
  for (char c : json)
    switch (c) {
    case '<':
      out += "\\u003c";
      break;
    case '>':
      out += "\\u003e";
      break;
    case '&':
      out += "\\u0026";
      break;
    default:
      out += c;
    }
  return out;
}

} // namespace

std::string htmlPage(const Json &data) {
  std::string page(assetOf("report.html"));
  replaceMark(page, "/*style*/", assetOf("report.css"));
  replaceMark(page, "/*script*/", assetOf("report.js"));
  replaceMark(page, "/*data*/", escaped(toText(data, -1, /*isAscii=*/true)));
  return page;
}

} // namespace shardc::page
