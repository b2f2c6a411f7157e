#include "runtime/exec/ModelFlops.h"

namespace shardc::exec {

double modelFlopsPerToken(const plan::Plan &plan) {
  bool isTied = plan.jobBool("model.share_embeddings_and_output_weights", false);
  double weights = 0;
  for (const plan::Param &param : plan.params) {
    bool isTable = param.name.starts_with("embedding.");
    bool isOutput = isTied && param.name == "embedding.word_embeddings.weight";
    if (param.type.rank > 1 && (!isTable || isOutput))
      weights += static_cast<double>(param.type.numel());
  }
  auto option = [&](const char *path) { return static_cast<double>(plan.jobInt(path, 0)); };
  double attention = option("model.num_layers") * option("model.seq_length") *
                     option("model.num_attention_heads") * option("model.kv_channels");
  return 6 * (weights + attention);
}

double peakFlops(const plan::Plan &plan) { return 1e12 * plan.jobFloat("derived.peak_tflops", 0); }

} // namespace shardc::exec
