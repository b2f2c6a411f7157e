"""The cases that are trained: the Python side of the recipes in this folder."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Case:
    name: str
    family: str  # "gpt", "llama" or "nemotron"
    # The transformers model that computes the case; empty: model.py does.
    module: str = ""
    num_layers: int = 2
    hidden: int = 48
    heads: int = 4
    groups: int = 4
    head: int = 12
    ffn: int = 192
    seq_length: int = 32
    vocab_size: int = 257
    padded_vocab: int = 384
    tied: bool = True
    eps: float = 1e-5
    rotary_base: float = 10000.0
    rotary_share: float = 1.0
    init_std: float = 0.02
    # transformers' rope_parameters except base and share, in alphabetical order.
    rope: tuple = ()
    qk_norm: bool = False
    # Latent attention: ranks of queries (0: not compressed) and of keys and values; channels of a head without
    # positions, of a head with positions, and of values.
    query_rank: int = 0
    key_rank: int = 0
    plain: int = 0
    rotated: int = 0
    values: int = 0
    activation: str = "silu"
    # How many tokens before its own a token sees, in all layers except every `full_every`-th.
    window: int = -1
    full_every: int = 0
    # All products have biases, as in gpt.
    biases: bool = False
    # Each head has a learned score for a key without a value (a sink).
    sinks: bool = False
    # Soft caps of scores and of logits; and the size whose square root divides scores (0: a head's size).
    caps: tuple = (None, None)
    score_size: int = 0
    # Layers with a short convolution in place of attention, and the positions that it adds.
    convs: tuple = ()
    taps: int = 3
    # Rotary base of layers with a window, whose positions are not scaled; 0: the base of all layers.
    window_base: float = 0.0
    # Limit of the factors of gpt_oss' gated unit.
    clamp: float = 0.0
    # Number of experts in each layer, of which a token uses `topk`; 0: dense layers.
    experts: int = 0
    topk: int = 2
    # Every n-th layer has experts, counted from 1. The others are dense, with a width of `dense_ffn`.
    experts_every: int = 1
    dense_ffn: int = 0
    # Width of the shared expert; 0: none. `has_gate`: a logit of each token scales its output.
    shared: int = 0
    has_gate: bool = False
    # Layers except every `unrotated_every`-th see chunks of `chunk` tokens. In the other layers, queries grow by
    # temperature[1] times the logarithm of one more than the number of blocks of temperature[0] tokens before them.
    chunk: int = 0
    unrotated_every: int = 0
    temperature: tuple = ()
    # Weights of the load-balancing losses: of a microbatch, of each sequence, and of the size of logits.
    balance: tuple = ()
    # Number of multi-token prediction layers, and the weight of all their losses together.
    predictions: int = 0
    prediction_weight: float = 0.1
    seed: int = 1234
    # Draws samples with many document ends first, so that token counts are already unequal in step 1.
    data_seed: int = 110

    eod_mask_loss: bool = False
    reset_position_ids: bool = False
    reset_attention_mask: bool = False
    per_token: bool = False

    # Regular expressions for the names of frozen parameters.
    frozen: tuple = ()
    # Adam's moments are rounded to bf16 when they are stored, as Transformer Engine's FusedAdam does.
    narrow_moments: bool = False
    lion: bool = False
    # Options of Muon; empty: AdamW updates all parameters.
    muon: tuple = ()
    # Adapters of layers: the layer's name within a decoder layer, and the numbers of those of its parts that have an
    # adapter each; empty if all parts share one.
    adapters: tuple = ()
    rank: int = 4
    alpha: float = 8.0
    rslora: bool = False
    # Other alphas of some modules, by PEFT's expressions.
    alphas: tuple = ()
    # Second factors have biases.
    lora_bias: bool = False
    # Learning rate of second factors and vectors, divided by that of first factors: PEFT's LoRA+; 0: its optimizer is not used.
    lr_ratio: float = 0.0
    # Modules that are trained in full, by PEFT's names.
    saved: tuple = ()
    # Rows of weights with adapters have trained magnitudes.
    dora: bool = False
    # Frozen linear layers but the head have the numbers that bitsandbytes makes of them in 4 bits.
    quantized: bool = False

    micro_batch: int = 2
    global_batch: int = 8
    steps: int = 20
    lr: float = 2e-3
    min_lr: float = 2e-4
    warmup: int = 4
    warmup_init: float = 0.0
    decay: int = 20
    betas: tuple = (0.9, 0.95)
    adam_eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0

    @property
    def adapter_scale(self):
        return self.alpha / (self.rank**0.5 if self.rslora else self.rank)

    def adapter_columns(self, name):
        """Rows of the adapter's first factor in a layer with this path; 0 if it has no adapter."""
        for stem, parts in self.adapters:
            if name.endswith("." + stem):
                return self.rank * (len(parts) or 1)
        return 0

    @property
    def layer_norm(self):
        return self.family != "llama"

    @property
    def has_bias(self):
        return self.family == "gpt" or self.biases

    @property
    def has_qkv_bias(self):
        """Biases of queries, keys and values in a model whose other products have none."""
        return self.module == "qwen2_moe"

    @property
    def gated(self):
        return self.family == "llama"

    @property
    def gemma(self):
        """A Gemma model: norms before and after branches, and scaled embeddings."""
        return self.module.startswith("gemma")

    @property
    def zero_centered(self):
        return self.family == "nemotron" or self.gemma

    @property
    def latent(self):
        return self.key_rank > 0

    def has_experts(self, layer):
        """Whether the layer has experts. Layers are counted from 0."""
        return self.experts > 0 and (layer + 1) % self.experts_every == 0

    def is_rotated(self, layer):
        return self.unrotated_every == 0 or (layer + 1) % self.unrotated_every != 0

    def has_window(self, layer):
        """Whether the layer has a window. Layers are counted from 0."""
        return self.window >= 0 and (self.full_every == 0 or (layer + 1) % self.full_every != 0)


GPT2 = Case("gpt2", "gpt", eod_mask_loss=True)
LLAMA = Case(
    "llama",
    "llama",
    num_layers=3,
    groups=2,
    ffn=128,
    tied=False,
    eod_mask_loss=True,
    warmup_init=1e-4,
    decay=16,
)
# The gradients of some steps are clipped. Larger initial weights make attention matter from the start.
LLAMA_TIED = replace(
    LLAMA, name="llama_tied", tied=True, num_layers=2, clip=2.2, init_std=0.06, rotary_base=500000.0
)
# The lowest trained parameters are in the second layer. Norms above them are frozen too.
LLAMA_FROZEN = replace(
    LLAMA,
    name="llama_frozen",
    frozen=(
        r"embedding\..*",
        r"decoder\.layers\.0\..*",
        r"decoder\.layers\.1\.self_attention\.linear_qkv\.weight",
        r".*norm\.weight",
        r".*layer_norm_weight",
    ),
)
# The token table is frozen, also where the head reads it. The position table is trained.
GPT2_FROZEN = replace(
    GPT2,
    name="gpt2_frozen",
    frozen=(
        r"embedding\.word_embeddings\.weight",
        r"decoder\.layers\.1\..*",
        r".*norm\.(weight|bias)",
        r".*layer_norm_(weight|bias)",
        r".*linear_\w+\.bias",
    ),
)
# Positions restart at each document, and attention stays within documents.
GPT2_DOCUMENTS = replace(
    GPT2, name="gpt2_documents", reset_position_ids=True, reset_attention_mask=True, per_token=True
)

# Norms of queries and keys; heads that are wider than hidden size / heads.
QWEN3 = replace(
    LLAMA, name="qwen3", module="qwen3", num_layers=2, head=16, qk_norm=True, init_std=0.06
)
# Zero-centred norms, squared ReLU, and rotary positions in half of each head.
NEMOTRON = replace(
    LLAMA,
    name="nemotron",
    family="nemotron",
    module="nemotron",
    num_layers=2,
    ffn=192,
    activation="relu2",
    rotary_share=0.5,
    head=12,
    init_std=0.06,
)
# A window of the token itself and seven before it, in every layer, or only in the first and last of three.
MISTRAL = replace(
    LLAMA, name="mistral", module="mistral", num_layers=2, window=7, init_std=0.06
)
WINDOWS = replace(QWEN3, name="windows", num_layers=3, window=5, full_every=2)
GEGLU = replace(
    LLAMA, name="geglu", module="llama", num_layers=2, activation="gelu", init_std=0.06
)
# Soft caps that take effect on scores and logits, and a window in every second layer.
GEMMA2 = replace(
    LLAMA,
    name="gemma2",
    module="gemma2",
    tied=True,
    head=16,
    activation="gelu_pytorch_tanh",
    init_std=0.06,
    window=5,
    full_every=2,
    caps=(0.5, 0.75),
    score_size=12,
)
# Layers with windows use another rotary base than the third of four, whose positions are scaled down.
GEMMA3 = replace(
    GEMMA2,
    name="gemma3",
    module="gemma3",
    num_layers=4,
    qk_norm=True,
    full_every=3,
    caps=(None, None),
    rotary_base=1000000.0,
    window_base=100.0,
    rope=(("factor", 8.0), ("rope_type", "linear")),
)
# Short convolutions in the first, second and fourth layer, as in LFM2.
LFM2 = replace(
    LLAMA,
    name="lfm2",
    module="lfm2",
    num_layers=4,
    tied=True,
    qk_norm=True,
    convs=(0, 1, 3),
    init_std=0.06,
    rotary_base=1000000.0,
)
# A token uses two of four experts, or four of eight whose width differs from that of dense layers.
MIXTRAL = replace(
    LLAMA, name="mixtral", module="mixtral", num_layers=2, ffn=64, experts=4, init_std=0.06
)
QWEN3_MOE = replace(
    QWEN3, name="qwen3_moe", module="qwen3_moe", ffn=40, experts=8, topk=4
)
LLAMA_MUON = replace(
    LLAMA,
    name="llama_muon",
    muon=(
        ("momentum", 0.95),
        ("nesterov", False),
        ("split_qkv", True),
        ("coefficient_type", "quintic"),
        ("num_ns_steps", 5),
        ("scale_mode", "spectral"),
        ("extra_scale_factor", 0.2),
    ),
)
MIXTRAL_MUON = replace(
    MIXTRAL,
    name="mixtral_muon",
    muon=(
        ("momentum", 0.9),
        ("nesterov", True),
        ("split_qkv", False),
        ("coefficient_type", "simple"),
        ("num_ns_steps", 6),
        ("scale_mode", "shape_scaling"),
        ("extra_scale_factor", 1.0),
    ),
)
# Each head of queries, keys and values is a matrix, and gate and up projection are two.
LLAMA_MUON_HEADS = replace(
    LLAMA_MUON, name="llama_muon_heads", muon=LLAMA_MUON.muon + (("per_head", True), ("split_fc1", True))
)
# YaRN without rounding, and positions that are scaled down.
YARN = replace(
    LLAMA,
    name="yarn",
    module="llama",
    num_layers=2,
    init_std=0.06,
    rope=(
        ("beta_fast", 16.0),
        ("beta_slow", 1.0),
        ("factor", 8.0),
        ("original_max_position_embeddings", 200),
        ("rope_type", "yarn"),
        ("truncate", False),
    ),
)
INTERPOLATED = replace(
    LLAMA,
    name="interpolated",
    module="llama",
    num_layers=2,
    init_std=0.06,
    rope=(("factor", 2.0), ("rope_type", "linear")),
)
# DeepSeek-V3's attention with YaRN, and DeepSeek-V2's without compressed queries.
LATENT = replace(
    LLAMA,
    name="latent",
    module="deepseek_v3",
    num_layers=2,
    groups=4,
    init_std=0.06,
    eps=1e-6,
    query_rank=28,
    key_rank=20,
    plain=12,
    rotated=8,
    values=10,
    rope=(
        ("beta_fast", 32.0),
        ("beta_slow", 1.0),
        ("factor", 4.0),
        ("mscale", 1.0),
        ("mscale_all_dim", 0.5),
        ("original_max_position_embeddings", 256),
        ("rope_type", "yarn"),
    ),
)
LATENT_QUERIES = replace(
    LATENT, name="latent_queries", module="deepseek_v2", query_rank=0, values=24, rope=()
)
LATENT_MUON_HEADS = replace(LATENT, name="latent_muon_heads", muon=LLAMA_MUON_HEADS.muon)
# The same attention in sizes that are multiples of 32, as 8-bit products need.
LATENT_ALIGNED = replace(
    LATENT,
    name="latent_aligned",
    num_layers=3,
    query_rank=32,
    key_rank=32,
    plain=16,
    rotated=32,
    values=16,
)

# gpt-oss with dense layers; in transformers, each is the only expert of its layer. The clamp takes effect on the
# factors of the gated units.
GPT_OSS = replace(
    LLAMA,
    name="gpt_oss",
    module="gpt_oss",
    num_layers=3,
    head=16,
    ffn=64,
    init_std=0.12,
    rotary_base=150000.0,
    window=5,
    full_every=2,
    biases=True,
    sinks=True,
    clamp=0.75,
    rope=(
        ("beta_fast", 32.0),
        ("beta_slow", 1.0),
        ("factor", 32.0),
        ("original_max_position_embeddings", 4096),
        ("rope_type", "yarn"),
        ("truncate", False),
    ),
)

# gpt-oss with experts: a token uses two of four. Router and experts have biases.
GPT_OSS_EXPERTS = replace(GPT_OSS, name="gpt_oss_experts", num_layers=2, ffn=40, experts=4)

# Norms without weights, and chunks in all layers except the second, whose queries grow. A score multiplies the input of
# a token's expert, and there is a shared expert. The first layer is dense.
LLAMA4 = replace(
    LLAMA,
    name="llama4",
    module="llama4",
    head=16,
    ffn=40,
    experts=4,
    topk=1,
    experts_every=2,
    dense_ffn=96,
    shared=40,
    chunk=12,
    unrotated_every=2,
    temperature=(5, 0.5),
    rotary_base=500000.0,
    init_std=0.06,
)
# Biases of queries, keys and values, and a gate on the shared expert.
QWEN2_MOE = replace(
    MIXTRAL, name="qwen2_moe", module="qwen2_moe", ffn=40, experts=8, topk=4, shared=56, has_gate=True, eps=1e-6
)

# Losses of routers are part of the objective, but not of the loss that is reported.
MIXTRAL_BALANCED = replace(MIXTRAL, name="mixtral_balanced", balance=(0.5, 0.3, 0.02))

# Each multi-token prediction has a layer of its own. The weight is large enough to show in gradients.
FURTHER = replace(
    LLAMA, name="further", num_layers=2, predictions=2, prediction_weight=0.6, init_std=0.06
)
FURTHER_TIED = replace(
    GPT2, name="further_tied", predictions=1, prediction_weight=0.6, init_std=0.06
)

# Adapters as in peft: only their factors are trained.
ONLY_ADAPTERS = (r"(?!.*\.adapter\.).*",)
EACH = (0, 1, 2)
LLAMA_LORA = replace(
    LLAMA, name="llama_lora", module="llama", num_layers=2, init_std=0.06, frozen=ONLY_ADAPTERS, lr=5e-3, steps=10,
    adapters=(
        ("self_attention.linear_qkv", EACH), ("self_attention.linear_proj", ()), ("mlp.linear_fc1", (0, 1)), ("mlp.linear_fc2", ()),
    ),
)
# One first factor for queries, keys and values, and one for gate and up, as in Megatron-Bridge.
LLAMA_LORA_JOINT = replace(
    LLAMA_LORA, name="llama_lora_joint",
    adapters=(
        ("self_attention.linear_qkv", ()), ("self_attention.linear_proj", ()), ("mlp.linear_fc1", ()), ("mlp.linear_fc2", ()),
    ),
)
# Modules with scales of their own, among them parts of one layer, and one layer's only.
LLAMA_ALPHAS = replace(
    LLAMA_LORA, name="llama_alphas",
    alphas=(("k_proj", 2.0), ("v_proj", 32.0), (r"model\.layers\.1\..*gate_proj", 5.0), (r".*\.0\..*down_proj", 24.0)),
)
# Biases of second factors, and one of the norms.
LLAMA_LORA_BIASES = replace(
    LLAMA_LORA, name="llama_lora_biases", lora_bias=True, saved=("model.norm",), frozen=(r"(?!.*\.adapter\.|decoder\.final_layernorm\.).*",),
)
# Second factors and their biases learn faster.
LLAMA_LORAPLUS = replace(LLAMA_LORA, name="llama_loraplus", lora_bias=True, lr_ratio=8.0, lr=2e-3)
LLAMA_QLORA = replace(
    LLAMA_LORA, name="llama_qlora", hidden=128, head=32, ffn=256, quantized=True,
)
QWEN3_LORA = replace(
    QWEN3, name="qwen3_lora", frozen=ONLY_ADAPTERS, lr=5e-3, steps=10, rslora=True,
    adapters=(("self_attention.linear_qkv", (0, 2)), ("mlp.linear_fc1", (1,))),
)
GEMMA2_LORA = replace(
    GEMMA2, name="gemma2_lora", frozen=ONLY_ADAPTERS, lr=5e-3, steps=10, adapters=LLAMA_LORA.adapters,
)
LATENT_LORA = replace(
    LATENT_QUERIES, name="latent_lora", frozen=ONLY_ADAPTERS, lr=5e-3, steps=10,
    adapters=(
        ("self_attention.linear_q_proj", ()), ("self_attention.linear_kv_down_proj", ()), ("self_attention.linear_kv_up_proj", ()),
        ("self_attention.linear_proj", ()),
    ),
)
QWEN2_MOE_LORA = replace(
    QWEN2_MOE, name="qwen2_moe_lora", frozen=ONLY_ADAPTERS, lr=5e-3, steps=10,
    adapters=(
        ("self_attention.linear_qkv", EACH), ("mlp.shared_experts.linear_fc1", (0, 1)), ("mlp.shared_experts.linear_fc2", ()),
    ),
)
LLAMA_DORA = replace(LLAMA_LORA, name="llama_dora", dora=True)
LLAMA_DORA_ALPHAS = replace(LLAMA_ALPHAS, name="llama_dora_alphas", dora=True)
QWEN3_DORA = replace(QWEN3_LORA, name="qwen3_dora", dora=True)
QWEN2_MOE_DORA = replace(QWEN2_MOE_LORA, name="qwen2_moe_dora", dora=True)
MIXTRAL_LORA = replace(
    MIXTRAL, name="mixtral_lora", frozen=ONLY_ADAPTERS, lr=5e-3, steps=10,
    adapters=(("mlp.experts.linear_fc1", ()), ("mlp.experts.linear_fc2", ()), ("self_attention.linear_proj", ())),
)

# Values in fp64 are the reference; those in fp32 are recorded beside them.
CASES = [
    GPT2,
    replace(GPT2, name="gpt2_per_token", per_token=True),
    GPT2_DOCUMENTS,
    LLAMA,
    replace(LLAMA, name="llama_per_token", per_token=True),
    # Without a mask. The seed that orders samples is the run's own.
    replace(LLAMA_TIED, eod_mask_loss=False, data_seed=LLAMA_TIED.seed),
    replace(LLAMA_TIED, name="llama_tied_per_token", per_token=True),
    QWEN3,
    NEMOTRON,
    MISTRAL,
    WINDOWS,
    GEGLU,
    GEMMA2,
    GEMMA3,
    LFM2,
    MIXTRAL,
    MIXTRAL_BALANCED,
    LLAMA_MUON,
    LLAMA_MUON_HEADS,
    MIXTRAL_MUON,
    QWEN3_MOE,
    QWEN2_MOE,
    LLAMA4,
    YARN,
    INTERPOLATED,
    LATENT,
    LATENT_MUON_HEADS,
    LATENT_QUERIES,
    GPT_OSS,
    GPT_OSS_EXPERTS,
    FURTHER,
    replace(FURTHER, name="further_per_token", per_token=True),
    FURTHER_TIED,
    LLAMA_FROZEN,
    GPT2_FROZEN,
    LLAMA_LORA,
    LLAMA_LORA_JOINT,
    LLAMA_ALPHAS,
    LLAMA_DORA_ALPHAS,
    LLAMA_LORA_BIASES,
    LLAMA_LORAPLUS,
    LLAMA_QLORA,
    QWEN3_LORA,
    GEMMA2_LORA,
    LATENT_LORA,
    QWEN2_MOE_LORA,
    MIXTRAL_LORA,
    LLAMA_DORA,
    QWEN3_DORA,
    QWEN2_MOE_DORA,
]

CASES += [
    replace(LLAMA, name="llama_moments", narrow_moments=True),
    # By lion-pytorch, with a tenth of the learning rate and suitable decay.
    replace(LLAMA, name="llama_lion", lion=True, lr=2e-4, min_lr=2e-5, betas=(0.9, 0.99), weight_decay=1.0),
]

# Trained in bf16 with fp32 master weights, and compared with the fp64 values of the same case.
BF16_CASES = [GPT2, LLAMA, QWEN3, NEMOTRON]
