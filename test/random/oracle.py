"""The oracle: which errors and warnings, by id, the rule book requires for a recipe. Written from the reference of
upstream's checks and from the deviations in docs/rules.md, not from the compiler. It computes facts as the reference
states them: it copies presets, derives sizes that are not set, and applies adjustments before rules.
"""

import itertools
import math
import operator

import adapters
import batches_that_grow
import frozen
import muon
import kernels
import losses
import rotations
import shares
import sinkhorn
import stages
import stored
from extents import has_odd_extent
from presets import PRESETS, targets
from recipes import FAMILIES, OPTIONS, parse_value
from recomputed import module_missing, moved_layers, recomputed_layers, selective
from unexecuted import not_executed, weight_shards, without_effect

SHARDINGS, BYTES_TOKENS = ["no_shard", "optim", "optim_grads", "optim_grads_params"], 257
AMPERE = {"a100", "a100_40gb", "rtx3090", "a10g", "a10", "a6000", "a40"}
ADA = {"l40s", "rtx4090", "rtx6000ada", "l4"}
BLACKWELL = {"b200", "gb200", "b300", "gb300", "rtx5090", "rtxpro6000", "gb10"}
NO_FP8, HOPPER = AMPERE | {"host"}, {"h100", "h200", "h20", "h100_nvl", "h100_pcie", "gh200"}
BEFORE_BLACKWELL = AMPERE | ADA | HOPPER


class Facts:
    def __init__(self, written):
        self.written = dict(written)
        self.value = {path: option.default for path, option in OPTIONS.items()}
        self.origin = {}
        self.fill()
        self.sizes()
        self.adjust()

    def __getitem__(self, path):
        return self.value[path]

    def on(self, path):
        return self.value[path] is True

    def has(self, path):
        return self.value[path] is not None

    def is_written(self, path):
        return path in self.written

    def num(self, path, left_open=0):
        return self.value[path] if self.value[path] is not None else left_open

    def variable(self, name):
        return self.value[f"env.{name}"]

    def derive(self, path, value):
        if self.value[path] is None:
            self.value[path] = value
            self.origin[path] = "derived"

    def fill(self):
        family = self.written.get("model", "gpt")
        for name, text in FAMILIES.get(family, []):
            path = f"model.{name}"
            self.value[path] = parse_value(text, OPTIONS[path].kind)
            self.origin[path] = "family"
        fields = dict(PRESETS.get(self.written.get("mixed_precision"), {}))
        self.preset = dict(fields)
        given = {path.split(".", 1)[1]: value for path, value in self.written.items() if path.startswith("mixed_precision.")}
        fields.update(given)
        for one, other in (("fp8_param", "fp8_param_gather"), ("fp4_param", "fp4_param_gather")):
            for a, b in ((one, other), (other, one)):
                if a in fields and b not in fields:
                    fields[b] = fields[a]
        for field, value in fields.items():
            self.value[f"mixed_precision.{field}"] = value
            for path in targets("mixed_precision", field):
                self.value[path] = value
        for path, value in self.written.items():
            section, _, field = path.partition(".")
            if section == "comm_overlap":
                for target in targets(section, field):
                    self.value[target] = value
        self.value.update(self.written)
        if not any(self.is_written(f"model.{size}") for size in ("num_layers", "hidden_size", "num_attention_heads")):
            for size, value in (("num_layers", 2), ("hidden_size", 128), ("num_attention_heads", 4)):
                self.derive(f"model.{size}", value)
        self.derive("train.micro_batch_size", 1)
        if not self.has("train.train_samples") and not self.has("train.num_epochs"):
            self.derive("train.train_iters", 100)
        self.derive("optimizer.lr", 3e-4)
        for kind in ("bf16", "fp16"):
            self.derive(f"optimizer.{kind}", self.on(f"model.{kind}"))
        half = "bf16" if self.on("model.bf16") else "fp16" if self.on("model.fp16") else "fp32"
        for path in ("model.params_dtype", "optimizer.params_dtype", "model.pipeline_dtype"):
            self.derive(path, half)
        hidden, heads = self.num("model.hidden_size"), self.num("model.num_attention_heads")
        if hidden > 0 and heads > 0 and hidden >= heads:
            self.derive("model.kv_channels", hidden // heads)
        self.derive("model.num_query_groups", self["model.num_attention_heads"])
        if self.on("model.multi_latent_attention"):
            self.derive("model.rope_type", "yarn")
        if self.has("model.hidden_size"):
            self.derive("model.ffn_hidden_size", 4 * hidden)
        self.derive("model.max_position_embeddings", self["model.seq_length"])
        self.derive("model.expert_tensor_parallel_size", self["model.tensor_model_parallel_size"])
        if self.has("model.num_moe_experts"):
            self.derive("model.moe_ffn_hidden_size", self["model.ffn_hidden_size"])
        if self["model.recompute_granularity"] == "selective":
            self.derive("model.recompute_modules", ["core_attn"])
        self.fill_data()
        self.fill_mesh()
        self.fill_schedule()

    def fill_data(self):
        path = next((self[paths][-1] for paths in shares.TRAINING_DATA if self[paths]), None)
        if path is None:
            self.derive("dataset.kind", "synthetic")
        elif self.has("dataset.blend") and not path.endswith(shares.TEXT):
            self.derive("dataset.kind", "indexed")
        elif path.endswith((".bin", ".idx", "_document", *shares.TEXT)):
            self.derive("dataset.kind", "text" if path.endswith(shares.TEXT) else "indexed")
        self.derive("dataset.tokenizer", "bytes" if self["dataset.kind"] == "text" else "none")
        if self["dataset.tokenizer"] == "bytes":
            self.derive("dataset.eod_token", 256)
            self.derive("model.vocab_size", BYTES_TOKENS)
        self.derive("dataset.seq_length", self["model.seq_length"])
        if self["dataset.kind"] == "synthetic":
            self.derive("model.vocab_size", 50257)

    def fill_mesh(self):
        tp, pp, cp = (self[f"model.{part}_parallel_size"] for part in ("tensor_model", "pipeline_model", "context"))
        stage = tp * cp * self["ddp.num_distributed_optimizer_instances"]
        experts = self["model.expert_model_parallel_size"] * self["model.expert_tensor_parallel_size"]
        world = pp * math.lcm(stage, experts)
        nodes, gpus = self["cluster.nodes"], self["cluster.gpus_per_node"]
        if nodes is None and gpus is None:
            nodes, gpus = 1, world
        elif nodes is None:
            nodes = math.ceil(world / gpus)
        elif gpus is None:
            gpus = math.ceil(world / nodes)
        self.world = nodes * gpus
        self.tp, self.pp, self.cp, self.vp = tp, pp, cp, self.num("model.virtual_pipeline_model_parallel_size", 1)
        self.ep, self.etp = self["model.expert_model_parallel_size"], self["model.expert_tensor_parallel_size"]
        self.instances = self["ddp.num_distributed_optimizer_instances"]
        self.stage = max(self.world // pp, 1)
        self.dp = max(self.stage // (tp * cp), 1)
        self.expert_dp = max(self.stage // (self.ep * self.etp), 1)
        batches_that_grow.derive(self)
        self.derive("train.global_batch_size", self["train.micro_batch_size"] * self.dp)

    def fill_schedule(self):
        self.derive("optimizer.min_lr", 0.0)
        if self.num("train.train_iters") > 0:
            self.derive("scheduler.lr_decay_iters", self["train.train_iters"])

    def sizes(self):
        self.fsdp = any(self.on(path) for path in
                        ("dist.use_megatron_fsdp", "ddp.use_megatron_fsdp", "ddp.use_custom_fsdp"))
        self.v2 = self.fsdp and self["ddp.megatron_fsdp_version"] == 2
        self.torch = self.on("dist.use_torch_fsdp2")
        self.fsdp2 = self.torch and not self.fsdp
        self.derive("checkpoint.ckpt_format", "fsdp_dtensor" if self.fsdp else "torch_dcp" if self.torch else "torch_dist")
        if self.fsdp:
            self.derive("ddp.data_parallel_sharding_strategy", "optim_grads_params")
        self.format = self["checkpoint.ckpt_format"]
        if ("comm_overlap.tp_comm_overlap" in self.written and self.dp > 1 and
                (self.on("ddp.use_distributed_optimizer") or self.on("optimizer.use_distributed_optimizer"))):
            self.derive("ddp.bucket_size", 134217728)

    # --- adjustments (section 2.7) -----------------------------------------------------------------
    def adjust(self):
        before = None
        while before != self.value:
            before = dict(self.value)
            self.adjust_once()
        self.distributed = self.on("ddp.use_distributed_optimizer") or self.on("optimizer.use_distributed_optimizer")
        self.runs = (self["ddp.data_parallel_sharding_strategy"] if self.fsdp else
                     ("optim_grads_params" if self.on("dist.torch_fsdp2_reshard_after_forward") else "optim_grads")
                     if self.torch else "optim" if self.distributed else "no_shard")

    def adjust_once(self):
        set_, on = self.value.__setitem__, self.on
        if on("ddp.use_custom_fsdp") and not self.is_written("ddp.use_megatron_fsdp"):
            set_("ddp.use_megatron_fsdp", True)  # A03
        for a, b in (("dist", "ddp"), ("ddp", "dist")):  # A01
            if on(f"{a}.use_megatron_fsdp") and not self.is_written(f"{b}.use_megatron_fsdp"):
                set_(f"{b}.use_megatron_fsdp", True)
        if self.fsdp:
            for path in ("ddp.average_in_collective", "model.gradient_accumulation_fusion",
                         "ddp.reuse_grad_buf_for_mxfp8_param_ag", "optimizer.reuse_grad_buf_for_mxfp8_param_ag"):
                set_(path, False)
        if self.fsdp and not self.v2:
            self.adjust_version_1()
        if self.v2:  # A26
            for path in ("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer",
                         "ddp.overlap_grad_reduce", "ddp.overlap_param_gather", "optimizer.overlap_param_gather",
                         "optimizer.overlap_param_gather_with_optimizer_step",
                         "ddp.fsdp_all_gather_in_start_param_sync"):
                set_(path, False)
        else:  # A14
            for field in ("use_distributed_optimizer", "overlap_param_gather"):
                if on(f"ddp.{field}") or on(f"optimizer.{field}"):
                    set_(f"ddp.{field}", True)
                    set_(f"optimizer.{field}", True)
            if on("model.delay_wgrad_compute") or on("ddp.delay_wgrad_compute"):
                set_("model.delay_wgrad_compute", True)
                set_("ddp.delay_wgrad_compute", True)
        if on("ddp.megatron_fsdp_max_pool_double_buffer"):
            set_("ddp.fsdp_double_buffer", True)
        if self.tp == 1:
            set_("model.sequence_parallel", False)  # A21
        decay = self.num("scheduler.lr_decay_iters")
        if not self.has("scheduler.lr_warmup_fraction") and decay > 0 and self.num("scheduler.lr_warmup_iters") >= decay:
            set_("scheduler.lr_warmup_iters", decay - 1)
        if self.fsdp2:
            set_("ddp.fp8_param_gather", False)  # V69
        if on("model.fp16") and not self.has("optimizer.loss_scale"):  # A30
            set_("ddp.check_for_nan_in_grad", False)
            set_("rerun_state_machine.check_for_nan_in_loss", False)
        if on("dist.lazy_mpu_init"):
            set_("model.use_cpu_initialization", True)
        shares.adjust_packs(self)

    def adjust_version_1(self):
        set_, on = self.value.__setitem__, self.on
        set_("ddp.use_distributed_optimizer", True)
        set_("optimizer.use_distributed_optimizer", True)
        sharding = SHARDINGS.index(self["ddp.data_parallel_sharding_strategy"])
        if sharding >= 2:
            set_("ddp.overlap_grad_reduce", True)
        if sharding == 3:
            set_("ddp.overlap_param_gather", True)
        if on("optimizer.use_precision_aware_optimizer"):
            set_("ddp.megatron_fsdp_use_decoupled_grad", True)
        if on("ddp.nccl_ub"):
            set_("ddp.fsdp_double_buffer", True)
            set_("ddp.fsdp_manual_registration", True)


def divides(f, whole, part):
    return not f.has(whole) or f[whole] % part == 0


def chooses_groups(experts, topk, groups, chosen):
    """Whether a router can choose `chosen` of `groups` equal groups, and equally many experts in each."""
    return groups and experts % groups == 0 and chosen <= groups and topk % chosen == 0 and topk // chosen <= experts // groups


def expert_mesh(f):
    """Whether the meshes of dense layers and of experts fit the same number of ranks."""
    return (f.has("model.num_moe_experts") or f.ep > 1) and f.world % (f.tp * f.pp * f.cp) == 0 and \
        (f.world // f.pp) % (f.ep * f.etp) == 0 and f.dp % f.instances == 0


def stages_apart(f):
    return f.on("dist.use_tp_pp_dp_mapping") and f.pp > 1 and f.tp * f.cp != f.ep * f.etp


def neighbours(f, *degrees):
    """The sizes of blocks of neighbouring ranks that one mesh forms."""
    first, second, data = degrees
    outer = f.instances if data % f.instances == 0 else 1
    behind = [data // outer, outer]
    order = [first, second, *([f.pp, *behind] if f.on("dist.use_tp_pp_dp_mapping") else [*behind, f.pp])]
    return list(itertools.accumulate(order, operator.mul))


def overlap(f):
    return f.on("model.overlap_moe_expert_parallel_comm")


def plain_optimizer(f):
    return f["optimizer.optimizer"] in ("adam", "sgd")


def any_pair(f, *paths):
    return sum(1 for path in paths if f.is_written(path)) > 1


def conflict(f):
    for path, value in f.written.items():
        section, _, field = path.partition(".")
        if section in ("mixed_precision", "comm_overlap") and field:
            for target in targets(section, field):
                # An option that an adjustment has changed no longer conflicts.
                if f.is_written(target) and f.written[target] == f[target] != value:
                    return True
    return False


def eval_divides(f):
    if not f.has("validation.eval_global_batch_size") and not f.has("validation.eval_micro_batch_size"):
        return True
    ranks = max(f.dp * f.cp // f.num("dist.eval_context_parallel_size", f.cp), 1)
    size = f.num("validation.eval_micro_batch_size", f["train.micro_batch_size"])
    return f.num("validation.eval_global_batch_size", f["train.global_batch_size"]) % (size * ranks) == 0


def is_window(numbers):
    return len(numbers) == 2 and numbers[0] >= -1 and numbers[1] in (-1, 0)


def samples_mixed(f):
    samples = f.has("train.train_samples")
    for field in ("lr_decay", "lr_warmup", "lr_wsd_decay"):
        wrong = f"scheduler.{field}_{'iters' if samples else 'samples'}"
        if f.is_written(wrong) and f.num(wrong) != 0:
            return True
    return False


def layers_wrong(f):
    layers = max(f.num("model.num_layers", 1) // f.pp, 1)
    return not f.has("model.recompute_num_layers") or f["model.recompute_num_layers"] > layers


def overlaps_tensor(f):
    return f.on("model.tp_comm_overlap") and not (f.tp > 1 and f.on("model.sequence_parallel") and f["model.hidden_dropout"])


def row_pieces(f):
    return overlaps_tensor(f) and f["model.tp_comm_overlap_pieces"]


def levels(f):
    return "a2a+p2p" in (f["model.cp_comm_type"] or [])


def exchanged(f, way):
    """The number of ranks that exchange heads for positions. Levels that are refused count as one rank."""
    inner = (f["model.hierarchical_context_parallel_sizes"] or [1])[0]
    return {"a2a": f.cp, "a2a+p2p": inner if levels(f) and f.cp % inner == 0 else 1}.get(way, 1)


def heads_of_rank(f):
    heads = f.num("model.num_attention_heads")
    return heads // f.tp, max(f.num("model.num_query_groups", heads) // f.tp, 1)


def qkv_uneven(f):
    """Whether ranks share key/value heads and cannot divide the rows of their projection evenly."""
    heads, head = max(f.num("model.num_attention_heads", 1), 1), max(f.num("model.kv_channels", 1), 1)
    groups = max(f.num("model.num_query_groups", heads), 1)
    shares = groups < f.tp and f.tp % groups == 0 and heads % f.tp == 0
    return shares and 2 * groups * head % f.tp != 0


def positions(f):
    """How many positions of a microbatch a rank's part (or piece) has, and how many are left over."""
    return divmod(f.num("train.micro_batch_size", 1) * f["model.seq_length"] // f.cp, f.tp * (row_pieces(f) or 1))


def one_queue(f):
    return f.variable("CUDA_DEVICE_MAX_CONNECTIONS") == "1"


def half(f):
    """Whether the model computes in 16 bits. Otherwise weights are in fp32, whatever their type option says."""
    return f.on("model.bf16") or f.on("model.fp16")


def decay_at(f, end):
    """The weight decay at the start or the end of the run."""
    return f.num(f"scheduler.{end}_weight_decay", f.num("optimizer.weight_decay"))


def sharded(f):
    return f.fsdp or f.torch or f.distributed


def old_gpu(f):
    return f["cluster.gpu"] in BEFORE_BLACKWELL


PER_LAYER = ("local", "transformer_engine")
FULL = "full"

# By id: whether the recipe breaks the rule. Comments give the reference's numbers.
ERRORS = {
    # what shardc does not execute, by docs/options.md
    "option-not-executed": not_executed,
    "skip-train-without-evaluation": lambda f: f.on("validation.skip_train") and (not f.has("validation.eval_interval") or
        f.num("validation.eval_iters") == 0 and not f.on("validation.full_validation")),
    # sections 2.1 and 2.2: which strategy runs
    "fsdp-flags-contradict": lambda f: f.on("dist.use_megatron_fsdp") != f.on("ddp.use_megatron_fsdp") or
    f.on("ddp.use_custom_fsdp") and not f.on("ddp.use_megatron_fsdp"),
    "fsdp-and-torch-fsdp2": lambda f: f.fsdp and f.torch,  # V01
    "fsdp-version": lambda f: f["ddp.megatron_fsdp_version"] not in (1, 2),  # V02
    "fsdp-checkpoint-format": lambda f: f.fsdp and not f.v2 and f.format != "fsdp_dtensor",  # V03 V34
    **stored.RULES,
    "checkpoint-format-needs-fsdp": lambda f: not f.fsdp and f.format == "fsdp_dtensor",  # V04
    "fsdp-rank-order": lambda f: f.fsdp and f.on("dist.use_tp_pp_dp_mapping"),  # V05
    "fsdp-max-connections": lambda f: f.fsdp and one_queue(f),  # V06 V43
    "fsdp-manual-registration": lambda f: f.fsdp and f.on("ddp.fsdp_manual_registration") and
    not f.on("ddp.nccl_ub"),  # V07
    "registration-needs-fsdp": lambda f: not f.fsdp and f.on("ddp.fsdp_manual_registration"),  # V46
    "fsdp-weight-hash": lambda f: f.fsdp and f.runs == "optim_grads_params" and
    f.has("train.check_weight_hash_across_dp_replicas_interval"),  # V08
    "registered-buffers-expandable-segments": lambda f: f.on("ddp.nccl_ub") and "expandable_segments:True" in
    (f.variable("PYTORCH_CUDA_ALLOC_CONF") or "").split(","),  # V13
    "fsdp-optimizer": lambda f: f.fsdp and not plain_optimizer(f) and not muon.is_asked(f),  # V36
    "fsdp-hybrid-context-parallel": lambda f: f.fsdp and f.on("model.hybrid_context_parallel"),  # V45
    "hybrid-context-parallel-needs": lambda f: f.on("model.hybrid_context_parallel") and (
        f.pp > 1 or f["model.cuda_graph_impl"] != "none" or not f.on("model.calculate_per_token_loss") or
        f["dataset.dataloader_type"] != "single"),  # V45
    "hybrid-context-parallel-unsupported": lambda f: not f.fsdp and f.on("model.hybrid_context_parallel"),
    "eval-context-parallel-unsupported": lambda f: f.num("dist.eval_context_parallel_size", f.cp) != f.cp,
    "fsdp-single-grouped-experts": lambda f: f.fsdp and (
        f.on("model.moe_single_grouped_weight") or f.on("model.moe_single_grouped_bias")),  # V35
    "outer-sharding-needs-inner": lambda f: f.fsdp and f["ddp.outer_dp_sharding_strategy"] == "optim" and
    f.runs != "optim_grads_params",  # V115
    "outer-sharding-needs-instances": lambda f: f.fsdp and f["ddp.outer_dp_sharding_strategy"] == "optim" and
    f.instances < 2,  # V81
    "buckets-twice": lambda f: f.has("ddp.num_buckets") and f.has("ddp.bucket_size"),  # V16
    "buckets-positive": lambda f: f.has("ddp.num_buckets") and f["ddp.num_buckets"] <= 0,  # V16
    "local-accumulation-patterns": lambda f: bool(f["ddp.param_name_patterns_for_fp32_local_accumulation"]) and
    f.on("ddp.grad_reduce_in_fp32"),  # V17
    "param-gather-overlap-needs-sharding": lambda f: f.on("ddp.overlap_param_gather") and not f.fsdp and
    not f.distributed and f["optimizer.optimizer"] != "dist_muon",  # V42
    "param-gather-overlap-needs-reduce-overlap": lambda f: f.on("ddp.overlap_param_gather") and
    not f.on("ddp.overlap_grad_reduce"),  # V42
    "step-overlap-needs-virtual-stages": lambda f: f.on("optimizer.overlap_param_gather_with_optimizer_step") and
    (f.vp < 2 or not f.distributed),
    # shapes
    "missing-option": lambda f: any(not f.has(f"model.{name}") for name in ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")),
    "world-size": lambda f: f.world % (f.tp * f.pp * f.cp) != 0,  # V26
    "expert-mesh": lambda f: (f.has("model.num_moe_experts") or f.ep > 1) and f.world % f.pp == 0 and
    (f.world // f.pp) % (f.ep * f.etp) != 0,
    "expert-stages": lambda f: expert_mesh(f) and stages_apart(f),
    "expert-groups": lambda f: expert_mesh(f) and not stages_apart(f) and any(
        a % b and b % a for a in neighbours(f, f.tp, f.cp, f.dp) for b in neighbours(f, f.etp, f.ep, f.expert_dp)),
    "instances-divide": lambda f: f.dp % f.instances != 0,
    "global-batch-divides": lambda f: f.world % (f.tp * f.pp * f.cp) == 0 and
    not f.on("train.decrease_batch_size_if_needed") and
    f["train.global_batch_size"] % (f["train.micro_batch_size"] * f.dp) != 0,  # V26
    **batches_that_grow.RULES,
    "heads-divide-hidden": lambda f: (f.origin.get("model.kv_channels") == "derived" or
                                      not f.has("model.kv_channels")) and f.has("model.num_attention_heads") and
    not f.on("model.multi_latent_attention") and not divides(f, "model.hidden_size", f["model.num_attention_heads"]),
    "groups-divide-heads": lambda f: not divides(f, "model.num_attention_heads", f.num("model.num_query_groups", 1)),
    "tensor-parallel-divides-heads": lambda f: not divides(f, "model.num_attention_heads", f.tp),
    "tensor-parallel-divides-groups": lambda f: f.origin.get("model.num_query_groups") != "derived" and
    f.num("model.num_query_groups", 1) > f.tp and not divides(f, "model.num_query_groups", f.tp),
    "groups-replicated": lambda f: f.has("model.num_query_groups") and f["model.num_query_groups"] < f.tp and
    f.tp % f["model.num_query_groups"] != 0,
    "tensor-parallel-divides-qkv": qkv_uneven,
    "tensor-parallel-divides-ffn": lambda f: any(
        f.origin.get(path) != "derived" and f.has(path) and f[path] % part != 0 for path, part in
        (("model.ffn_hidden_size", f.tp), ("model.moe_ffn_hidden_size", f.etp), ("model.moe_shared_expert_intermediate_size", f.tp))),
    "tensor-parallel-divides-hidden": lambda f: not divides(f, "model.hidden_size", f.tp),
    **stages.RULES,
    "context-parallel-divides-sequence": lambda f: f.cp > 1 and f["model.seq_length"] % (2 * f.cp) != 0,  # V22
    "finetuning-context-per-token-loss": lambda f: f.on("dataset.finetuning") and f.cp > 1 and
    not f.on("model.calculate_per_token_loss"),  # V23
    "finetuning-context-average": lambda f: f.on("dataset.finetuning") and f.cp > 1 and
    f.on("ddp.average_in_collective"),  # V23
    **adapters.RULES,
    "mimo-under-fsdp": lambda f: f.on("model.megatron_mimo") and f.fsdp,  # V31
    "sequence-parallel-divides-sequence": lambda f: f.on("model.sequence_parallel") and
    f["model.seq_length"] % f.cp == 0 and f["model.seq_length"] // f.cp % f.tp != 0,
    "learned-positions-unaligned": lambda f: f.on("model.sequence_parallel") and
    f["model.position_embedding_type"] == "learned_absolute" and positions(f)[1] == 0 and positions(f)[0] % 4 != 0,
    "experts-divide": lambda f: not divides(f, "model.num_moe_experts", f.ep),
    "experts-needed": lambda f: f.ep > 1 and not f.has("model.num_moe_experts"),
    "router-topk": lambda f: f.has("model.num_moe_experts") and f.num("model.moe_router_topk") > f["model.num_moe_experts"],
    "expert-bias-score": lambda f: f.has("model.num_moe_experts") and f.on("model.moe_router_enable_expert_bias") and
    f["model.moe_router_score_function"] == "softmax",
    "score-on-input": lambda f: f.has("model.num_moe_experts") and f.on("model.moe_apply_probs_on_input") and
    f.num("model.moe_router_topk") != 1,
    "balance-weights": lambda f: f.has("model.num_moe_experts") and
    len(f["model.moe_aux_loss_coeff"]) != len(f["model.moe_router_load_balancing_type"]),
    **sinkhorn.RULES,
    "rank-capacity-loss-scale": lambda f: f.has("model.num_moe_experts") and f.has("model.moe_expert_rank_capacity_factor") and
    f.on("model.fp16") and not f.has("optimizer.loss_scale"),
    "padded-expert-bias": lambda f: f.has("model.num_moe_experts") and f.on("model.moe_pad_expert_input_to_capacity") and
    f.on("model.moe_router_enable_expert_bias"),
    "capacity-padding": lambda f: f.has("model.num_moe_experts") and f.on("model.moe_pad_expert_input_to_capacity") and
    not f.has("model.moe_expert_capacity_factor"),
    "router-groups": lambda f: f.has("model.num_moe_experts") and f.has("model.moe_router_group_topk") and
    f["model.moe_router_topk"] <= f["model.num_moe_experts"] and not chooses_groups(
        f["model.num_moe_experts"], f["model.moe_router_topk"], f.num("model.moe_router_num_groups"), f["model.moe_router_group_topk"]),
    "vocabulary-not-padded": lambda f: not f.on("model.should_pad_vocab") and f.num("model.vocab_size", 1) % f.tp != 0,
    "positions-fit": lambda f: f["model.position_embedding_type"] == "learned_absolute" and
    f["model.seq_length"] > f["model.max_position_embeddings"],
    "dataset-sequence": lambda f: f["dataset.seq_length"] != f["model.seq_length"],  # V32
    "eval-batch-divides": lambda f: not eval_divides(f),  # V27
    "eval-micro-batch-differs": lambda f: f.tp * f.cp * f.pp > 1 and f.num(
        "validation.eval_micro_batch_size", f["train.micro_batch_size"]) != f["train.micro_batch_size"],
    "window-size": lambda f: f.has("model.window_size") and not is_window(f["model.window_size"]),
    **rotations.RULES,
    # memory, recomputation, graphs
    "cpu-offload-layers": lambda f: f.on("model.cpu_offloading") and
    f.num("model.cpu_offloading_num_layers") >= f.num("model.num_layers", 1),  # V70
    "cpu-offload-pipeline": lambda f: f.on("model.cpu_offloading") and f.pp > 1,  # V71
    "cpu-offload-recompute": lambda f: f.on("model.cpu_offloading") and f.has("model.recompute_granularity"),  # V72
    "cpu-offload-fine-grained": lambda f: f.on("model.cpu_offloading") and
    f.on("model.fine_grained_activation_offloading"),  # V73
    "cpu-offload-paged-stash": lambda f: f.on("model.cpu_offloading") and f.on("model.moe_paged_stash"),  # V73
    "fine-grained-offload-implementation": lambda f: f.on("model.fine_grained_activation_offloading") and
    f["model.transformer_impl"] != "transformer_engine",  # V29
    "recompute-method-without-full": lambda f: f.has("model.recompute_method") and
    f["model.recompute_granularity"] != FULL,  # V74
    "recompute-full-method": lambda f: f["model.recompute_granularity"] == FULL and not f.has("model.recompute_method"),
    "recompute-full-layers": lambda f: f["model.recompute_granularity"] == FULL and layers_wrong(f),
    "recompute-selective-layers": lambda f: f["model.recompute_granularity"] == "selective" and
    f.has("model.recompute_num_layers"),
    "recompute-auto-memory": lambda f: f["model.recompute_granularity"] == "auto" and not f.has("model.recompute_layers") and
    not f.has("cluster.memory") and f["cluster.gpu"] in (None, "host"),
    "recompute-auto-chooses": lambda f: f["model.recompute_granularity"] == "auto" and
    (f.has("model.recompute_num_layers") or f.has("model.recompute_modules")),
    **frozen.RULES,
    **muon.RULES,
    "recompute-layers": lambda f: f.has("model.recompute_layers") and f.has("model.num_layers") and recomputed_layers(f) is None,
    "offload-layers": lambda f: f.has("model.offload_layers") and f.has("model.num_layers") and moved_layers(f) is None,
    "recompute-layers-without-auto": lambda f: f.has("model.recompute_layers") and f["model.recompute_granularity"] != "auto",
    "recompute-module-needs": module_missing,
    "full-graph-nan-check": lambda f: f["model.cuda_graph_impl"] == "full_iteration" and
    f.on("rerun_state_machine.check_for_nan_in_loss"),  # V19
    "modelopt-fusion": lambda f: f.on("model.restore_modelopt_state") and f.on("model.gradient_accumulation_fusion"),  # V20
    "deferred-embedding-pipeline": lambda f: f.on("model.defer_embedding_wgrad_compute") and f.pp == 1,  # V77
    "deferred-embedding-fusion": lambda f: f.on("model.defer_embedding_wgrad_compute") and f.pp > 1 and
    not f.on("model.gradient_accumulation_fusion"),  # V77
    **losses.RULES,
    **kernels.ERRORS,
    "deterministic-nccl": lambda f: f.on("model.deterministic_mode") and f.variable("NCCL_ALGO") is not None and
    f.variable("NCCL_ALGO") not in ("Tree", "Ring", "CollnetDirect", "CollnetChain", "^NVLS"),  # V28
    # precision and the optimizer
    "precision-conflict": conflict,
    "two-precisions": lambda f: f.on("model.bf16") and f.on("model.fp16") or
    f.on("optimizer.bf16") and f.on("optimizer.fp16"),  # V30
    "precision-aware-mismatch": lambda f: f.on("optimizer.use_precision_aware_optimizer") and any(
        f.on(f"model.{kind}") and not f.on(f"optimizer.{kind}") for kind in ("bf16", "fp16")),  # V30
    "precision-aware-adam": lambda f: f.on("optimizer.use_precision_aware_optimizer") and
    f["optimizer.optimizer"] != "adam",  # V79
    "precision-aware-distributed": lambda f: f.on("optimizer.use_precision_aware_optimizer") and not f.v2 and
    not f.distributed,  # V79
    "narrow-state-needs-precision-aware": lambda f: not f.on("optimizer.use_precision_aware_optimizer") and any(
        f[f"optimizer.{name}_dtype"] not in (None, "fp32") for name in
        ("main_grads", "main_params", "exp_avg", "exp_avg_sq")),  # V79
    "fp8-and-fp4": lambda f: f.has("model.fp8") and f.has("model.fp4"),  # V47
    "fp8-device": lambda f: f.has("model.fp8") and f["cluster.gpu"] in NO_FP8 - {"host"},
    "mxfp-device": lambda f: f.has("cluster.gpu") and f["cluster.gpu"] not in BLACKWELL and (
        f.has("model.fp4") or f.has("model.fp8") and f["model.fp8_recipe"] == "mxfp8" and
        f["cluster.gpu"] not in NO_FP8),
    "master-weights-unsupported": lambda f: f.fsdp and (f["ddp.megatron_fsdp_main_params_dtype"] == "bf16" or
        f["ddp.megatron_fsdp_main_params_dtype"] in ("auto", None) and half(f) and f["model.params_dtype"] != "fp32"),
    "moments-unsupported": lambda f: any(f[f"optimizer.{name}_dtype"] == "fp16" for name in ("exp_avg", "exp_avg_sq")),
    "moments-fp8": lambda f: any(f[f"optimizer.{name}_dtype"] == "fp8" for name in ("exp_avg", "exp_avg_sq")),
    "fp8-blockwise-device": lambda f: f.has("model.fp8") and f["model.fp8_recipe"] == "blockwise" and
    f.has("cluster.gpu") and f["cluster.gpu"] not in HOPPER | NO_FP8,
    "fp8-extents": lambda f: f.has("model.fp8") and has_odd_extent(f),
    "fp8-param-gather-unsupported": lambda f: f.has("model.fp8") and f.on("ddp.fp8_param_gather") and (
        f["model.fp8_recipe"] not in ("tensorwise", "delayed") or not f.fsdp),
    "fp8-attention-unsupported": lambda f: f.has("model.fp8") and (
        f.on("model.fp8_dot_product_attention") or f.on("model.fp8_multi_head_attention")),
    "fp8-output-projection-unsupported": lambda f: f.has("model.fp8") and f.on("model.fp8_output_proj"),
    "fp8-quantizers-unsupported": lambda f: f.has("model.fp8") and (
        f.has("model.fp8_quantizer_factory") or f["model.fp8_recipe"] == "custom"), "fp8-weights-unsupported": lambda f: half(f) and f["model.params_dtype"] == "fp8",
    "wandb-run-unsupported": lambda f: f.has("logger.wandb_project"),
    "fp16-weights-unsupported": lambda f: half(f) and f["model.params_dtype"] == "fp16" and not f.on("model.fp16"),
    "fp4-unsupported": lambda f: f.has("model.fp4"),
    "fp8-param-gather-needs": lambda f: f.on("ddp.fp8_param_gather") and not sharded(f),  # V47
    "fp4-param-gather-needs": lambda f: f.on("ddp.fp4_param_gather") and not sharded(f),  # V47
    "fp8-params-strategy": lambda f: f.fsdp and not f.v2 and f.on("ddp.fp8_param_gather") and
    f.runs != "optim_grads_params",  # V94
    "fp8-params-master": lambda f: f.fsdp and f.on("ddp.fp8_param_gather") and
    f["ddp.megatron_fsdp_main_params_dtype"] == "auto",  # V95
    "reuse-grad-buffer-needs-fp8": lambda f: f.on("ddp.reuse_grad_buf_for_mxfp8_param_ag") and
    not f.on("ddp.fp8_param_gather"),  # V15
    "reuse-grad-buffer-required": lambda f: not f.fsdp and f.on("ddp.fp8_param_gather") and
    f["model.fp8_recipe"] == "mxfp8" and not f.on("ddp.reuse_grad_buf_for_mxfp8_param_ag"),  # V14
    "optimizer-offload": lambda f: f.on("optimizer.optimizer_cpu_offload") and not f.v2 and
    not f.on("optimizer.use_precision_aware_optimizer"),  # V49
    "optimizer-offload-fp8": lambda f: f.on("optimizer.optimizer_cpu_offload") and f.on("ddp.fp8_param_gather") and
    f["model.fp8_recipe"] != "delayed",  # V49
    # checkpoints, data, schedule
    "async-save-format": lambda f: f.on("checkpoint.async_save") and f.format not in ("torch_dist", "fsdp_dtensor"),  # V09
    "async-save-needs-save": lambda f: f.on("checkpoint.async_save") and not f.has("checkpoint.save"),  # V10
    "memory-saves-need-save": lambda f: f.has("checkpoint.in_memory_interval") and not f.has("checkpoint.save"),
    "async-save-worker": lambda f: f.on("checkpoint.async_save") and not f.on("checkpoint.use_persistent_ckpt_worker"),  # V10
    "hf-copy-format": lambda f: f.on("checkpoint.also_save_hf_checkpoint") and f.format == "fsdp_dtensor",  # V11
    "hf-copy-local": lambda f: f.on("checkpoint.also_save_hf_checkpoint") and
    f["checkpoint.non_persistent_ckpt_type"] == "local",  # V11
    "main-params-load-optim": lambda f: f.on("checkpoint.load_main_params_from_ckpt") and
    f.on("checkpoint.load_optim"),  # V12
    "main-params-fsdp": lambda f: f.fsdp and f.on("checkpoint.load_main_params_from_ckpt"),  # V38
    "checkpoint-step-needs-load": lambda f: f.has("checkpoint.ckpt_step") and not f.has("checkpoint.load"),  # V12
    "verify-integrity-format": lambda f: f.on("checkpoint.verify_integrity") and f.format != "torch_dist",  # V109
    "no-gloo-format": lambda f: not f.on("dist.use_gloo_process_groups") and f.distributed and
    f.is_written("checkpoint.ckpt_format") and f.format not in ("torch_dist", "fsdp_dtensor"),  # V21
    "zarr-gone": lambda f: not f.fsdp and f.format == "zarr",  # V107
    "decentralized-gloo": lambda f: f.on("dist.use_decentralized_pg") and f.on("dist.use_gloo_process_groups"),  # V18
    "training-length-twice": lambda f: any_pair(f, "train.train_iters", "train.train_samples", "train.num_epochs"),
    "samples-and-iterations": samples_mixed,  # V25
    "epochs-need-steps": lambda f: f.has("train.num_epochs") and not f.has("train.train_iters") and
    not f.has("train.train_samples"),  # no recipe here has data that exist
    "full-validation-needs-data": lambda f: f.on("validation.full_validation") and f.has("validation.eval_interval"),
    "dataloader-type-unsupported": lambda f: f["dataset.dataloader_type"] == "external",
    "main-grads-narrower-than-wire": lambda f: f.fsdp and f["ddp.megatron_fsdp_main_grads_dtype"] in
    ("bf16", "fp16") and f["ddp.megatron_fsdp_grad_comm_dtype"] == "fp32",  # a limit of the plan
    "master-weights-in-fp16": lambda f: f.fsdp and
    f["ddp.megatron_fsdp_main_params_dtype"] == "fp16",  # no optimizer supports them
    "loss-scale-range": lambda f: any(f.has(f"optimizer.{name}") and f[f"optimizer.{name}"] > 3.4028234663852886e38
        for name in ("loss_scale", "initial_loss_scale", "min_loss_scale")),  # the scale is an f32
    "loss-scale-minimum": lambda f: f.on("model.fp16") and not f.has("optimizer.loss_scale") and
    f["optimizer.min_loss_scale"] > f["optimizer.initial_loss_scale"],  # an assertion of DynamicGradScaler
    "loss-scale-window": lambda f: f.on("model.fp16") and not f.has("optimizer.loss_scale") and
    (f["optimizer.loss_scale_window"] % 1 != 0 or f["optimizer.loss_scale_window"] >= 2**31),  # a count never equals it
    "schedule-too-short": lambda f: f.has("scheduler.max_steps") and
    f["scheduler.max_steps"] < f.num("train.train_iters"),  # V25
    "warmup-twice": lambda f: f.has("scheduler.lr_warmup_fraction") and any(
        f.is_written(f"scheduler.lr_warmup_{unit}") and f.num(f"scheduler.lr_warmup_{unit}") > 0
        for unit in ("iters", "samples")),
    "weight-decay-ends": lambda f: f["scheduler.weight_decay_incr_style"] != "constant" and
    not (f.has("scheduler.start_weight_decay") and f.has("scheduler.end_weight_decay")),  # Megatron-LM's assertion
    "weight-decay-constant": lambda f: f["scheduler.weight_decay_incr_style"] == "constant" and
    decay_at(f, "start") != decay_at(f, "end"),  # an assertion of get_wd
    "weight-decay-falls": lambda f: f["scheduler.weight_decay_incr_style"] != "constant" and
    f.has("scheduler.start_weight_decay") and f.has("scheduler.end_weight_decay") and
    decay_at(f, "start") > decay_at(f, "end"),  # an assertion of OptimizerParamScheduler
    "fp32-residual-needs-half": lambda f: f.on("model.fp32_residual_connection") and
    not f.on("model.bf16") and not f.on("model.fp16"),
    "min-lr-above-lr": lambda f: f["optimizer.min_lr"] > f["optimizer.lr"],
    "wsd-needs-decay": lambda f: f["scheduler.lr_decay_style"] == "WSD" and
    not f.has("scheduler.lr_wsd_decay_iters") and not f.has("scheduler.lr_wsd_decay_samples"),  # V25
    "data-path-twice": lambda f: any_pair(f, "dataset.data_path", "dataset.blend", "dataset.train_data_path") or any(
        any_pair(f, path, one) for path in ("dataset.data_path", "dataset.blend")
        for one in ("dataset.valid_data_path", "dataset.test_data_path")),
    **shares.RULES,
    "text-needs-bytes": lambda f: f["dataset.kind"] == "text" and f["dataset.tokenizer"] == "none",
    "samples-need-text": lambda f: f.num("validation.samples", 0) > 0 and f["dataset.kind"] != "packed" and not (
        f["dataset.kind"] != "synthetic" and f["dataset.tokenizer"] == "bytes"),
    "vocabulary-too-small": lambda f: f["dataset.tokenizer"] == "bytes" and
    f.num("model.vocab_size", BYTES_TOKENS) < BYTES_TOKENS,
    "reset-needs-document-end": lambda f: not f.has("dataset.eod_token") and any(
        f.on(f"dataset.{name}") for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")),
    # experts and overlap
    "expert-overlap-needs-experts": lambda f: overlap(f) and f.ep == 1,  # V54
    "expert-overlap-dispatcher": lambda f: overlap(f) and f["model.moe_token_dispatcher_type"] == "allgather",
    "expert-overlap-recompute": lambda f: overlap(f) and f["model.recompute_granularity"] in (FULL, "auto"),
    "expert-overlap-moe-recompute": lambda f: overlap(f) and selective(f, "moe"),
    "expert-overlap-precision": lambda f: overlap(f) and not f.on("model.bf16") and not f.on("model.fp16"),
    "expert-overlap-shared-expert": lambda f: overlap(f) and f.on("model.moe_shared_expert_overlap"),
    "expert-overlap-mtp": lambda f: overlap(f) and f.num("model.mtp_num_layers") > 1,
    "expert-overlap-pipeline": lambda f: overlap(f) and f.pp > 1 and not f.has("model.virtual_pipeline_model_parallel_size"),
    "expert-overlap-double-buffer": lambda f: f.fsdp and overlap(f) and f.on("ddp.fsdp_double_buffer"),  # V50
    "expert-overlap-graph": lambda f: f.fsdp and overlap(f) and f["model.cuda_graph_impl"] in PER_LAYER,  # V51
    "delayed-wgrad-needs-overlap": lambda f: f.on("model.delay_wgrad_compute") and not overlap(f) and not f.v2,  # V55
    "delayed-wgrad-implementation": lambda f: f.on("model.delay_wgrad_compute") and
    f["model.transformer_impl"] != "transformer_engine",  # V55
    "delayed-wgrad-graph": lambda f: not f.fsdp and f.on("model.delay_wgrad_compute") and
    f["model.cuda_graph_impl"] != "none" and not f.on("model.gradient_accumulation_fusion"),  # V55
    "dispatch-wgrad-overlap": lambda f: overlap(f) and f.on("model.overlap_dispatch_backward_with_experts_wgrad"),  # V56
    "dispatch-wgrad-delay": lambda f: f.on("model.delay_wgrad_compute") and
    f.on("model.overlap_dispatch_backward_with_experts_wgrad"),  # V56
    "context-parallel-levels": lambda f: levels(f) and not f.has("model.hierarchical_context_parallel_sizes"),  # V33
    "context-parallel-levels-product": lambda f: levels(f) and f.has("model.hierarchical_context_parallel_sizes") and
    math.prod(f["model.hierarchical_context_parallel_sizes"]) != f.cp,  # V33
    "context-parallel-two-levels": lambda f: f.cp > 1 and levels(f) and
    len(f["model.hierarchical_context_parallel_sizes"] or [0, 0]) != 2,
    "context-parallel-types": lambda f: f.cp > 1 and len(f["model.cp_comm_type"] or []) not in (0, 1, f["model.num_layers"]),
    "context-parallel-heads": lambda f: f.cp > 1 and any(
        count % exchanged(f, way) for way in f["model.cp_comm_type"] or [] for count in heads_of_rank(f)),
    "weight-shards-format": lambda f: weight_shards(f) and f.format not in ("torch", "torch_dist"),  # V48
    "weight-shards-average": lambda f: weight_shards(f) and f.on("ddp.average_in_collective"),  # V48
    "tensor-overlap-needs": lambda f: f.on("model.tp_comm_overlap") and (f.tp < 2 or not f.on("model.sequence_parallel")),
    "tensor-overlap-pieces": lambda f: row_pieces(f) and positions(f)[1] != 0,
    "tensor-overlap-stages": lambda f: row_pieces(f) and f.pp > 1,
    "tensor-overlap-double-buffer": lambda f: row_pieces(f) and f.on("ddp.fsdp_double_buffer"),
    "tensor-overlap-atomic": lambda f: overlaps_tensor(f) and (f.on("model.tp_comm_atomic_ag") or f.on("model.tp_comm_atomic_rs")),
    # section 2.2.2: PyTorch's FSDP2
    "torch-fsdp2-pipeline": lambda f: f.fsdp2 and f.pp > 1,  # V61
    "torch-fsdp2-experts": lambda f: f.fsdp2 and f.ep > 1,  # V62
    "torch-fsdp2-distributed-optimizer": lambda f: f.fsdp2 and f.distributed,  # V63
    "torch-fsdp2-gradient-fusion": lambda f: f.fsdp2 and f.on("model.gradient_accumulation_fusion"),  # V64
    "torch-fsdp2-checkpoint-format": lambda f: f.fsdp2 and
    f.format not in ("torch_dist", "torch_dcp", "fsdp_dtensor"),  # V65
    "torch-fsdp2-tied": lambda f: f.fsdp2 and f.on("model.share_embeddings_and_output_weights"),  # V66
    "torch-fsdp2-fp16": lambda f: f.fsdp2 and f.on("model.fp16"),  # V67
    "torch-fsdp2-max-connections": lambda f: f.fsdp2 and one_queue(f),  # V68
    "torch-fsdp2-optimizer": lambda f: f.fsdp2 and not plain_optimizer(f),  # V36
    "torch-fsdp2-instances": lambda f: f.fsdp2 and f.instances > 1,
    "torch-dcp-tensor-parallel": lambda f: f.fsdp2 and f.format == "torch_dcp" and f.tp > 1,  # V65
    "torch-dcp-needs-fsdp": lambda f: not f.fsdp and not f.torch and f.format == "torch_dcp",  # V65
    # section 2.6: version 2
    "fsdp-v2-bf16": lambda f: f.v2 and not (f.on("model.bf16") and f.on("optimizer.bf16")),
    "fsdp-v2-parallel": lambda f: f.v2 and max(f.tp, f.pp, f.cp, f.ep) > 1,
    "fsdp-v2-experts": lambda f: f.v2 and f.has("model.num_moe_experts"),
    "fsdp-v2-random-init": lambda f: f.v2 and f.on("rng.data_parallel_random_init"),
    "fsdp-v2-hsdp": lambda f: f.v2 and f.instances > 1,
    "fsdp-v2-outer": lambda f: f.v2 and f["ddp.outer_dp_sharding_strategy"] != "no_shard",
    "fsdp-v2-checkpoint": lambda f: f.v2 and any(
        f.has(f"checkpoint.{name}") for name in ("save", "load", "pretrained_checkpoint")),
    "fsdp-v2-loss-scale": lambda f: f.v2 and (f.has("optimizer.loss_scale") or f.on("model.fp16")),
    "fsdp-v2-clip": lambda f: f.v2 and f.num("optimizer.clip_grad") > 0,
    "fsdp-v2-precision-aware": lambda f: f.v2 and f.on("optimizer.use_precision_aware_optimizer"),
    "fsdp-v2-optimizer-offload": lambda f: f.v2 and f.on("optimizer.optimizer_cpu_offload"),
    "fsdp-v2-layer-wise": lambda f: f.v2 and f.on("optimizer.use_layer_wise_distributed_optimizer"),
    "fsdp-v2-optimizer-graph": lambda f: f.v2 and f.on("optimizer.optimizer_cuda_graph"),
    "fsdp-v2-per-token-loss": lambda f: f.v2 and f.on("model.calculate_per_token_loss"),
    "fsdp-v2-fp8": lambda f: f.v2 and (f.has("model.fp8") or f.has("model.fp4")),
    "fsdp-v2-graphs": lambda f: f.v2 and f["model.cuda_graph_impl"] != "none",
    "fsdp-v2-strategy": lambda f: f.v2 and f.runs != "optim_grads_params",
    "fsdp-v2-buffers": lambda f: f.v2 and (any(f.on(f"ddp.{name}") for name in (
        "fsdp_db_use_persist_buf_on_alloc_fail", "fsdp_manual_registration", "delay_wgrad_compute",
        "megatron_fsdp_use_decoupled_grad", "megatron_fsdp_enable_fine_grained_param_gather",
        "megatron_fsdp_max_pool_double_buffer")) or f.has("ddp.suggested_communication_unit_size") or
        f.has("ddp.num_buckets")),
    "fsdp-v2-registration": lambda f: f.v2 and f.on("ddp.nccl_ub") and f.on("ddp.disable_symmetric_registration"),
}


def moves_layers(f):
    """The recipes name no modules for fine-grained offloading."""
    return f.on("model.cpu_offloading") and f.num("model.cpu_offloading_num_layers") > 0


# Options that save memory or time upstream, and do nothing here.
SAVINGS = ["model.distribute_saved_activations", "model.memory_efficient_layer_norm",
           "model.moe_paged_stash", "model.ep_overlap_early_attn_memory_release", "optimizer.optimizer_cpu_offload"]

WARNINGS = {
    "option-without-effect": without_effect,
    "saving-ignored": lambda f: any(f.is_written(path) and f.on(path) for path in SAVINGS) or
    (f.is_written("model.mlp_chunks_for_training") and f["model.mlp_chunks_for_training"] > 1),
    "finetune-without-optimizer": lambda f: f.on("checkpoint.finetune") and f.on("checkpoint.load_optim") and f.is_written("checkpoint.load_optim"),
    "decoupled-min-lr-alone": lambda f: f.has("optimizer.decoupled_min_lr") and not f.has("optimizer.decoupled_lr"),
    "skipped-step-missing": lambda f: batches_that_grow.steps_of(f) > 0 and any(
        not 1 <= step <= batches_that_grow.steps_of(f) for step in f["train.iterations_to_skip"]),
    "no-shard-under-fsdp": lambda f: f.fsdp and f.runs == "no_shard",  # V83
    "strategy-ignored": lambda f: not f.fsdp and f.is_written("ddp.data_parallel_sharding_strategy") and f["ddp.data_parallel_sharding_strategy"] != f.runs,
    "outer-strategy-ignored": lambda f: not f.fsdp and f["ddp.outer_dp_sharding_strategy"] == "optim",
    "fsdp-with-tensor-or-context-parallel": lambda f: f.fsdp and (f.tp > 1 or f.cp > 1) and old_gpu(f),  # V44
    "tensor-parallel-max-connections": lambda f: not f.fsdp and not f.torch and (f.tp > 1 or f.cp > 1) and
    old_gpu(f) and f.variable("CUDA_DEVICE_MAX_CONNECTIONS") not in (None, "1"),  # V44
    "fine-grained-offload-environment": lambda f: f.on("model.fine_grained_activation_offloading") and
    f.variable("NVTE_CPU_OFFLOAD_V1") != "1",  # V29
    "offload-nothing": lambda f: f.has("model.num_layers") and not moves_layers(f) and
    (f.on("model.cpu_offloading") or f.on("model.fine_grained_activation_offloading")),
    "te-cross-entropy": lambda f: f.on("model.cross_entropy_loss_fusion") and
    f["model.cross_entropy_fusion_impl"] == "te",  # V78
    **muon.WARNINGS,
    "save-interval-without-save": lambda f: f.has("checkpoint.save_interval") and not f.has("checkpoint.save"),
    "experts-want-sequence-parallel": lambda f: f.ep > 1 and f.tp > 1 and not f.on("model.sequence_parallel"),  # V76
    "dead-option": lambda f: f.on("ddp.enable_full_sharding_in_hsdp") or f.fsdp and (any(
        f.on(f"ddp.{name}") for name in ("pad_buckets_for_high_nccl_busbw", "reduce_scatter_with_fp32_accumulation", "check_for_large_grads")) or
        f.has("checkpoint.dump_param_to_param_group_map")),  # V97b
    "expert-average": lambda f: f.on("ddp.average_in_collective") and f.has("model.num_moe_experts") and
    f.expert_dp != f.dp * f.cp,  # V91
    "instances-without-sharding": lambda f: f.instances > 1 and not (f.fsdp or f.torch or f.distributed),
    "double-buffer-without-units": lambda f: f.fsdp and f.on("ddp.fsdp_double_buffer") and f.runs == "no_shard",  # V88
}


def judge(recipe):
    """The ids of errors and of warnings that the recipe must give."""
    facts = Facts(recipe.written)
    return ({id for id, breaks in ERRORS.items() if breaks(facts)}, {id for id, breaks in WARNINGS.items() if breaks(facts)})
