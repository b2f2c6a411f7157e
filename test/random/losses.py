"""The oracle's rules on losses: fused losses, multi-token prediction, and losses that are computed from some rows of
logits at a time."""


def chunks(f):
    """The number of chunks into which the rows of a microbatch are divided."""
    rows = f.num("train.micro_batch_size", 1) * f["model.seq_length"] // f.cp
    return -(-rows // f["model.loss_chunk_rows"])


RULES = {
    "mtp-token-slices": lambda f: f.has("model.mtp_num_layers") and f.cp > 1 and f.cp % 2 == 1 and
    f["model.seq_length"] % f.cp == 0 and f.num("train.micro_batch_size", 1) * (f["model.seq_length"] // f.cp) % 4 != 0,
    "deterministic-cross-entropy": lambda f: f.on("model.deterministic_mode") and f.on("model.cross_entropy_loss_fusion"),  # V28
    "loss-chunk-unit": lambda f: f.num("model.loss_chunk_rows") % 8 != 0,
    "loss-chunks-many": lambda f: f.has("model.loss_chunk_rows") and f.tp > 1 and chunks(f) > 128,
    "loss-chunks-tied": lambda f: f.has("model.loss_chunk_rows") and f.tp > 1 and f.has("model.mtp_num_layers") and
    f.on("model.share_embeddings_and_output_weights"),
}
