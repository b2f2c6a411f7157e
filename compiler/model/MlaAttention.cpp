#include "compiler/model/MlaAttention.h"

namespace shardc::model {

void MlaAttention::declare(Params &params) const {
  const std::string stem = "self_attention.";
  auto linear = [&](const char *what, int64_t out, int64_t in) {
    Linear{stem + what, out, in, false, s_.initStd}.declare(params);
  };
  auto norm = [&](const char *what, int64_t size) {
    if (s_.norm)
      Norm(*s_.norm, size, stem + what, "").declare(params);
  };
  int64_t queries = times(s_.heads, plus(s_.channels, s_.rotated));
  if (s_.queryRank) {
    linear("linear_q_down_proj", *s_.queryRank, s_.hidden);
    norm("linear_q_up_proj.layer_norm_", *s_.queryRank);
    linear("linear_q_up_proj", queries, *s_.queryRank);
  } else {
    linear("linear_q_proj", queries, s_.hidden);
  }
  linear("linear_kv_down_proj", plus(s_.keyRank, s_.rotated), s_.hidden);
  norm("linear_kv_up_proj.layer_norm_", s_.keyRank);
  linear("linear_kv_up_proj", times(s_.heads, plus(s_.channels, s_.values)), s_.keyRank);
  Linear{stem + "linear_proj", s_.hidden, times(s_.heads, s_.values), s_.projBias, s_.residualStd}
      .declare(params);
}

} // namespace shardc::model
