#!/usr/bin/env python3
"""Makes what docs/fine-tuning.md begins with: a tiny Llama with random weights, a tokenizer, and some conversations.

    first_tuning.py FOLDER

Needs the package tokenizers.
"""

import json
import pathlib
import random
import struct
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

TEMPLATE = ("{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
WIDTH, FFN, LAYERS, HEADS, KV_HEADS = 64, 192, 2, 4, 2
HOST = """// One rank of the host, and steps that a tiny model needs.
recipe host {
  cluster { gpu = host  nodes = 1  gpus_per_node = 1 }
  model { seq_length = 64 }
  dataset { data_path = ["chat"] }
  checkpoint { pretrained_checkpoint = "weights"  finetune = true }
  train { micro_batch_size = 2  global_batch_size = 8  train_iters = 30 }
  optimizer { lr = 3e-3 }
  scheduler { lr_warmup_iters = 2 }
}
"""


def shapes(vocabulary):
    """Names and shapes of the weights, as transformers has them."""
    yield "model.embed_tokens.weight", (vocabulary, WIDTH)
    for layer in range(LAYERS):
        start, kv = f"model.layers.{layer}.", WIDTH // HEADS * KV_HEADS
        yield from ((start + name + ".weight", shape) for name, shape in {
            "input_layernorm": (WIDTH,), "self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (kv, WIDTH),
            "self_attn.v_proj": (kv, WIDTH), "self_attn.o_proj": (WIDTH, WIDTH), "post_attention_layernorm": (WIDTH,),
            "mlp.gate_proj": (FFN, WIDTH), "mlp.up_proj": (FFN, WIDTH), "mlp.down_proj": (WIDTH, FFN)}.items())
    yield "model.norm.weight", (WIDTH,)
    yield "lm_head.weight", (vocabulary, WIDTH)


def save_weights(path, vocabulary):
    """Writes a safetensors file: norms of ones, other weights normally distributed."""
    draw, header, data = random.Random(1), {}, b""
    for name, shape in shapes(vocabulary):
        values = [1.0] * shape[0] if len(shape) == 1 else [draw.gauss(0, 0.02) for _ in range(shape[0] * shape[1])]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * len(values)]}
        data += struct.pack(f"<{len(values)}f", *values)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def make(folder):
    vocabulary = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    size = len(vocabulary) + len(SPECIAL)
    (folder / "model").mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": WIDTH,
              "intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
              "vocab_size": size, "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
              "tie_word_embeddings": False, "torch_dtype": "float32"}
    (folder / "model/config.json").write_text(json.dumps(config, indent=2))
    save_weights(folder / "model/model.safetensors", size)
    tokenizer.save(str(folder / "model/tokenizer.json"))
    (folder / "model/tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": TEMPLATE}))
    names = ["Ada", "Ben", "Cy", "Di"]
    rows = [[{"role": "user", "content": f"I am {names[i % 4]}. Hi!"}, {"role": "assistant", "content": "Hello!"}] for i in range(64)]
    (folder / "chat.jsonl").write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    (folder / "host.recipe").write_text(HOST)


if __name__ == "__main__":
    make(pathlib.Path(sys.argv[1]))
