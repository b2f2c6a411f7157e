#include "runtime/hal/Peers.h"

namespace shardc::hal {

Result<std::string> Peers::broadcast(std::string_view what, int root, std::string_view bytes) {
  ASSIGN_OR_RETURN(std::vector<std::string> all, allGather(what, rank() == root ? bytes : ""));
  return std::move(all[static_cast<size_t>(root)]);
}

Status Peers::barrier(std::string_view what) { return allGather(what, "").status(); }

Status Peers::agree(std::string_view what, const Status &mine) {
  std::string text;
  if (!mine.isOk())
    text =
        fmt::format("{}{}", static_cast<char>('A' + static_cast<int>(mine.code())), mine.message());
  ASSIGN_OR_RETURN(std::vector<std::string> all, allGather(what, text));
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty())
      continue;
    if (static_cast<int>(r) == rank())
      return mine;
    int code = all[r][0] - 'A';
    bool isCode = code > 0 && code <= static_cast<int>(StatusCode::Internal);
    return makeStatus(isCode ? static_cast<StatusCode>(code) : StatusCode::Internal, "rank {}: {}",
                      r, all[r].substr(1));
  }
  return Status::ok();
}

} // namespace shardc::hal
