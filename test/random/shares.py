"""The oracle's rules on data: runs, training or evaluations without data, and packed data."""

TRAINING_DATA, TEXT = ("dataset.blend", "dataset.data_path", "dataset.train_data_path"), (".txt", ".md", ".json", ".jsonl")
BYTES_TOKENS = 257


def is_zero(f, split):
    """Whether the split of shared data leaves nothing for this part."""
    parts = str(f["dataset.split"] or "").split(",")
    is_shared = f.has("dataset.data_path") or f.has("dataset.blend")
    return f["dataset.kind"] != "synthetic" and is_shared and split < len(parts) and parts[split].strip() == "0"


def evaluates_some(f):
    """Whether the run has evaluations of a fixed number of batches. Full validation has a rule of its own."""
    return f.has("validation.eval_interval") and not f.on("validation.full_validation") and f.num("validation.eval_iters", 100) > 0


def changes_size(f):
    return any(f.has(f"train.{name}") for name in ("rampup_batch_size", "step_batch_size_schedule"))


def adjust_packs(f):
    """Adjusts options for packed data, by docs/fine-tuning.md: the loss is divided once, and global batches are drawn
    at random."""
    if f["dataset.kind"] != "packed":
        return
    if not f.v2 and not f.is_written("model.calculate_per_token_loss"):
        f.value["model.calculate_per_token_loss"] = True
    if f.on("model.calculate_per_token_loss"):
        f.value["ddp.average_in_collective"] = False
    if not changes_size(f) and not f.is_written("dataset.dataloader_type"):
        f.value["dataset.dataloader_type"] = "batch"


def begins_with_weights(f):
    return f.on("checkpoint.finetune") or f.has("checkpoint.pretrained_checkpoint")


RULES = {
    "pretrained-without-data": lambda f: f["dataset.kind"] == "synthetic" and not f.is_written("dataset.kind") and begins_with_weights(f),
    "synthetic-with-data": lambda f: f["dataset.kind"] == "synthetic" and any(
        f[path] for path in (*TRAINING_DATA, "dataset.valid_data_path", "dataset.test_data_path")),
    "data-kind-unknown": lambda f: not f.has("dataset.kind"),
    "bytes-for-weights": lambda f: f["dataset.tokenizer"] == "bytes" and not f.is_written("dataset.tokenizer") and
    f.num("model.vocab_size", BYTES_TOKENS) != BYTES_TOKENS and begins_with_weights(f),
    "batch-order-changes-size": lambda f: f["dataset.dataloader_type"] == "batch" and changes_size(f),
    "packed-documents": lambda f: f["dataset.kind"] == "packed" and any(f.on(f"dataset.{name}") for name in (
        "reset_position_ids", "reset_attention_mask", "inter_document_masking", "eod_mask_loss")),
    "preference-data": lambda f: f.has("preference.loss") and f["dataset.kind"] not in ("packed", "synthetic"),
    "preference-context-parallel": lambda f: f.has("preference.loss") and f.num("model.context_parallel_size") > 1,
    "preference-label-smoothing": lambda f: f["preference.loss"] in ("ipo", "orpo") and f.num("preference.label_smoothing") != 0,
    "preference-router-loss": lambda f: f.has("preference.loss") and f.has("model.num_moe_experts") and (
        any(f["model.moe_aux_loss_coeff"]) or f.num("model.moe_z_loss_coeff") != 0),
    "packed-fsdp-v2": lambda f: f["dataset.kind"] == "packed" and f.v2 and not f.is_written("model.calculate_per_token_loss"),
    "packed-mtp": lambda f: f["dataset.kind"] == "packed" and f.num("model.mtp_num_layers") > 0,
    "data-path-missing": lambda f: f["dataset.kind"] != "synthetic" and not any(
        f[f"dataset.{name}"] for name in ("data_path", "blend", "train_data_path")),
    "no-training-data": lambda f: is_zero(f, 0),
    "no-validation-data": lambda f: evaluates_some(f) and (
        is_zero(f, 1) or f.has("dataset.train_data_path") and not f.has("dataset.valid_data_path")),
}
