"""Makes good folders of each kind that commands take, and damages them as a stranger would. For hostile.py.

Nothing of a folder may run as code: what would run creates the file `owned` in the working folder.
"""

import functools
import gzip
import json
import os
import pathlib
import pickle
import shutil
import socket
import stat
import struct
import subprocess
import sys
import warnings
import zipfile
import zlib

SECRET = "outside-3e1f8a-secret"
HERE = pathlib.Path(__file__).resolve().parent
DRIVER, IMPORTS = HERE.parent.parent / "driver" / "Inputs", HERE.parent.parent / "import" / "Inputs"
OWNED = "touch owned"
WORDS = {"a": 0, "b": 1, "c": 2, "?": 3, "<end>": 4, "<begin>": 5, "\x1b]0;d\x07": 6, "<1>": 7}
TEMPLATE = ("{% for message in messages %}{{ message.role }} {% if message.role == 'assistant' %}{% generation %}{{ message.content }} <end>{% endgeneration %}"
            "{% else %}{{ message.content }} {% endif %}{% endfor %}")
BASE = """recipe base {
  cluster { gpu = host  nodes = 1  gpus_per_node = 1 }
  model gpt { num_layers = 1  hidden_size = 16  num_attention_heads = 2  seq_length = 8  vocab_size = 64 }
  optimizer adam { lr = 1e-3 }
  scheduler { lr_decay_style = constant }
  train { micro_batch_size = 1  global_batch_size = 2  train_iters = 1 }
  logger { log_interval = 1 }
}
"""
MAIN = """recipe main extends "base.recipe" {
  dataset synthetic { }
  checkpoint { save = "saved"  save_interval = 1 }
  env { NCCL_ALGO = "Ring" }
}
"""
YAML = """model:
  _target_: megatron.bridge.models.llama.llama_provider.LlamaModelProvider
  num_layers: 2
  hidden_size: 64
  num_attention_heads: 4
  seq_length: 16
train:
  micro_batch_size: 1
  global_batch_size: 2
  train_iters: 2
"""


def run(*command, **rest):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **rest)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}")


def safetensors(path, shapes, kind="BF16", size=2):
    header, place = {}, 0
    for name, shape in sorted(shapes.items()):
        count = 1
        for extent in shape:
            count *= extent
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [place, place + size * count]}
        place += size * count
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(place))
    return header


def make_tokenizer(folder):
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps({"words": WORDS}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<end>"}, "bos_token": "<begin>"}))
    for name in ("special_tokens_map.json", "generation_config.json"):
        (folder / name).write_text("{}")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(TEMPLATE)


def make_hf(folder):
    """A model of one layer with the files that belong to it."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2,
              "intermediate_size": 16, "vocab_size": 16, "num_hidden_layers": 1, "max_position_embeddings": 16, "rms_norm_eps": 1e-5,
              "tie_word_embeddings": False, "torch_dtype": "bfloat16", "hidden_act": "silu", "rope_theta": 10000.0}
    at = "model.layers.0."
    shapes = {"model.embed_tokens.weight": [16, 8], "lm_head.weight": [16, 8], "model.norm.weight": [8], at + "input_layernorm.weight": [8],
              at + "post_attention_layernorm.weight": [8], **{at + f"self_attn.{part}_proj.weight": [8, 8] for part in "qkvo"},
              at + "mlp.gate_proj.weight": [16, 8], at + "mlp.up_proj.weight": [16, 8], at + "mlp.down_proj.weight": [8, 16]}
    make_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(config))
    header = safetensors(folder / "model.safetensors", shapes)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(header, "model.safetensors")}))
    (folder / "vocab.txt").write_text("a\n")


def make_peft(folder):
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "../hf", "r": 2, "lora_alpha": 4, "lora_dropout": 0.0, "bias": "none",
        "fan_in_fan_out": False, "inference_mode": True, "target_modules": ["q_proj", "v_proj"]}))
    at = "base_model.model.model.layers.0.self_attn."
    safetensors(folder / "adapter_model.safetensors",
                {at + f"{part}_proj.lora_{side}.weight": [2, 8] if side == "A" else [8, 2] for part in "qv" for side in "AB"}, "F32", 4)


def make_hub(folder, model):
    """The model in the form of Hugging Face's cache: links in a snapshot lead to `blobs`."""
    entry = folder / "models--a--b"
    snapshot = entry / "snapshots" / "1"
    (entry / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(path for path in model.iterdir() if path.is_file())):
        shutil.copy(path, entry / "blobs" / f"{number:040x}")
        (snapshot / path.name).symlink_to(f"../../blobs/{number:040x}")


def make_data(folder, environment):
    folder.mkdir()
    make_tokenizer(folder / "tok")
    rows = [{"messages": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]}, {"prompt": "a b", "completion": "c a"}]
    pairs = [{"prompt": "a b", "chosen": "c a", "rejected": "b"}, {"chosen": "a c b", "rejected": "a c c"}]
    lines = {"text.jsonl": [{"text": "a b"}, {"text": "c"}], "rows.jsonl": rows, "pairs.jsonl": pairs}
    for name, values in lines.items():
        (folder / name).write_text("".join(json.dumps(value) + "\n" for value in values))
    (folder / "packed.jsonl.gz").write_bytes(gzip.compress((folder / "text.jsonl").read_bytes(), mtime=0))
    for name in ("packs.npy", "arrays.npy"):
        shutil.copy(DRIVER / "numpy" / name, folder / name)
    run("shardc", "data", "build", "text.jsonl", "indexed", cwd=folder)
    for kind, name, out in (("sft", "rows", "packs"), ("preference", "pairs", "pairs")):
        run("shardc", "data", kind, f"{name}.jsonl", "--tokenizer=tok", "-o", out, "--length=16", f"--python={sys.executable}", env=environment, cwd=folder)


def make_launches(folder):
    folder.mkdir()
    (folder / "main.sh").write_text("#!/bin/bash\nsource ./more.sh\ntorchrun --nproc_per_node 1 pretrain_gpt.py $ARGS --num-layers 2\n")
    (folder / "more.sh").write_text("ARGS='--hidden-size 64 --num-attention-heads 4 --seq-length 16 --micro-batch-size 1 --use-megatron-fsdp'\n")
    shutil.copy(IMPORTS / "llama3_8b_fp8.sh", folder / "large.sh")
    shutil.copy(IMPORTS / "pretrain_basic.yaml", folder / "main.yaml")
    shutil.copy(IMPORTS / "pretrain_base.overrides", folder / "main.overrides")
    (folder / "main.py").write_text("cfg = llama3_8b_pretrain_config()\n")


def make_good(work, environment):
    """A good folder of each kind, by name."""
    good = work / "good"
    good.mkdir()
    make_hf(good / "hf")
    make_peft(good / "peft")
    make_hub(good / "hub", good / "hf")
    (good / "recipes").mkdir()
    (good / "recipes" / "base.recipe").write_text(BASE)
    (good / "recipes" / "main.recipe").write_text(MAIN)
    (good / "recipes" / "over.recipe").write_text("overlay over { train { train_iters = 1 } }\n")
    recipe = good / "recipes" / "main.recipe"
    run("shardc", "run", recipe, "--set", f"checkpoint.save={good / 'run'}", "--set", "train.train_iters=2", env=environment)
    run("shardc", "ckpt", "import", "hf", good / "hf", good / "imported")
    run("shardc", "ckpt", "import", "peft", good / "peft", good / "adapters", f"--config={good / 'hf'}")
    run("shardc", "run", recipe, "--set", f"checkpoint.save={good / 'dist'}", "--set", "checkpoint.ckpt_format=torch_dist")
    make_data(good / "data", environment)
    make_launches(good / "launches")
    (good / "plans").mkdir()
    run("shardc", "dump-plan", recipe, "-o", good / "plans" / "main.plan", "--set", "checkpoint.save=saved")
    run("shardc", "run", good / "plans" / "main.plan", "--metrics", "metrics.jsonl", "--trace", "trace.json", cwd=good / "plans")
    shutil.rmtree(good / "plans" / "saved", ignore_errors=True)
    return good


# What a stranger's script does when it is run.
SCRIPTS = ["cat ../../outside/secret $HOME/.ssh/id_rsa ~/.netrc /proc/1/environ /proc/$PPID/environ; env", "touch ../../outside/new ../owned $HOME/x /tmp/owned",
           "setsid sleep 1000 & (setsid sleep 1000 &) &", "kill -9 -1; kill -9 $PPID", "exec 3<>/dev/tcp/127.0.0.1/22; cat <&3",
           "ls -laR /proc/*/cwd/ /proc/*/fd | head -c 100000", "ln -s /etc/passwd ../results/x; mkfifo ../results/p; head -c 100000000 /dev/zero > ../results/z",
           "for i in $(seq 600); do sleep 1000 & done", "unshare -Ur mount -t tmpfs x /mnt; mount --bind / /mnt"]
# Variables and paths of a recipe that are not for it to set.
LINES = ["env { PYTHONPATH = \".\" }", "env { LD_PRELOAD = \"./x.so\"  PATH = \".\" }", "env { SHARDC_JOB_SECRET = \"0123456789abcdef\"  RANK = 0 }",
         "env { NCCL_NET_PLUGIN = \"./x.so\" }", "env { HF_TOKEN = \"x\" }", "checkpoint { load = \"../../outside\" }", "checkpoint { save = \"../../outside/new\" }",
         "cluster { rates = \"../../outside/secret\" }", "cluster { rates = \"/dev/zero\" }", "dataset blended { data_path = \"/proc/self/environ\" }",
         "dataset blended { data_path = \"../../outside/secret.json\" }", "dataset packed { train_data_path = [\"../../outside/packs\"] }",
         "checkpoint { pretrained_checkpoint = \"/proc/self\" }", "validation { samples = 1 }", "logger { tensorboard_dir = \"events\" }"]
CODE = [b"cposix\nsystem\n(V" + OWNED.encode() + b"\ntR.", b"\x80\x02cbuiltins\nexec\nX\x15\x00\x00\x00open('owned','w').read\x85R.",
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x0btouch owned\x85R."]
PYTHON = "open('owned', 'w')\n"
# Names that programs look for beside what they are given.
ADDED = ["latest_checkpointed_iteration.txt.tmp", "latest_train_state.pt.tmp", ".shardc_lock", "x\x1b]0;title\x07.json", "chat_template.jinja", "chat_template.json",
         "added_tokens.json", ".iter_0000003.saving", "iter_0000009", "merges.txt", "model.safetensors", "pytorch_model.bin", "command.txt", ".metadata", ".metadata.tmp",
         "tokenizer.model", "tokenizer.json", "sentencepiece.bpe.model", "adapter_config.json", "x" * 250 + ".json", "-o", "--help.recipe", "\udcff\udcfe.json", "a\nb.recipe",
         "common.pt", "metadata.json", "train_state.pt", "run_config.yaml", "mp_rank_00", "config.json", ".shardc/secret", "saved", "out", "out.tmp",
         "json.py", "tokenizers.py", "jinja2.py", "sitecustomize.py", "usercustomize.py", "libnccl-net.so", "python3", "bash", "shfmt", "less"]


def bomb(draw, path):
    """Little that becomes much."""
    kind = draw.randrange(7)
    if kind == 0:
        text = b"[" * draw.choice((1000, 200000))
    elif kind == 1:
        text = b'{"a":' * 100000 + b"1" + b"}" * 100000
    elif kind == 2:
        text = ("a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(12))).encode()
    elif kind == 3:
        text = b"}" * 1000 + b"a { " * 20000
    elif kind == 4:
        text = struct.pack("<Q", draw.choice((1 << 20, 1 << 33, (1 << 64) - 1))) + b'{"a":{"dtype":"F32","shape":[' + b"4294967295," * 5 + b'1],"data_offsets":[0,4]}}'
    elif kind == 5:
        text = b"\x80\x02]q\x00" + b"(" * 100000 + b"h\x00" * 1000 + b"t." if draw.random() < 0.5 else b"\x80\x04" + b"\x8e" + b"\xff" * 8 + b"."
    else:
        text = packed_letters(path.suffix == ".zst" and shutil.which("zstd") is not None)
    path.write_bytes(text)


@functools.cache
def packed_letters(is_zstd):
    """128 MB of one letter, as gzip or zstd pack it."""
    program = ["zstd", "-q", "-c"] if is_zstd else ["gzip", "-1", "-c"]
    return subprocess.run(program, input=b"a" * (128 << 20), stdout=subprocess.PIPE, check=True).stdout


def spoil_json(draw, value):
    """Replaces a random part of a JSON value."""
    wrong = [None, [], {}, True, -1, 0, 1 << 63, 1e308, "", "../../outside/secret", "/proc/self/environ", "x\x1b]0;title\x07", "a" * 100000, [[[]]], "nan", "{{ cycler.__init__.__globals__.os.popen('touch owned').read() }}"]
    places = []

    def walk(inside):
        for key in list(inside) if isinstance(inside, dict) else range(len(inside)):
            places.append((inside, key))
            if isinstance(inside[key], (dict, list)):
                walk(inside[key])
    if isinstance(value, (dict, list)):
        walk(value)
    if not places:
        return draw.choice(wrong)
    for _ in range(draw.randint(1, 3)):
        inside, key = draw.choice(places)
        if isinstance(inside, dict) and draw.random() < 0.2:
            inside[draw.choice(("../../outside/secret", "__proto__", "x\x1b[2J", str(key) + " ", "auto_map"))] = inside.get(key)
        elif isinstance(inside, list) or key in inside:
            inside[key] = draw.choice(wrong)
    return value


def spoil(draw, path):
    """Changes the contents of a file, mostly so that they are still read far."""
    data = path.read_bytes()
    name = path.name
    how = draw.random()
    if how < 0.08:
        bomb(draw, path)
    elif name.endswith(".json") and how < 0.8:
        try:
            path.write_text(json.dumps(spoil_json(draw, json.loads(data))))
        except (ValueError, RecursionError):
            path.write_bytes(b"{}")
    elif name.endswith(".safetensors") and how < 0.8 and len(data) > 8:
        length = struct.unpack("<Q", data[:8])[0]
        try:
            header = spoil_json(draw, json.loads(data[8:8 + length]))
        except (ValueError, RecursionError):
            header = {}
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", draw.choice((len(text), len(text), len(text) + 1, 1 << 62))) + text + data[8 + length:])
    elif name.endswith(".jsonl") and how < 0.8:
        lines = data.splitlines() or [b"{}"]
        at = draw.randrange(len(lines))
        try:
            lines[at] = json.dumps(spoil_json(draw, json.loads(lines[at]))).encode()
        except (ValueError, RecursionError):
            pass
        path.write_bytes(b"\n".join(lines))
    elif name.endswith((".recipe", ".plan")) and how < 0.8:
        text = data.decode(errors="replace")
        last = text.rfind("}")
        lines = [text[:last] + draw.choice(LINES) + text[last:], text.replace('"base.recipe"', draw.choice(('"/proc/self/environ"', '"../../outside/secret"', '"main.recipe"', '"/dev/zero"', '"pipe"'))),
                 text.replace("=", draw.choice(("= 99999999999999999999", "= -", "= \x1b[2J", "= {")), draw.randint(1, 3)), "// " + SECRET[:3] + "\x00\x1b[2J\n" + text,
                 text.replace("16", draw.choice(("9223372036854775807", "0", "-1", "1000000000")))]
        path.write_text(draw.choice(lines), errors="replace")
    elif name.endswith((".sh", ".py")) and how < 0.8:
        path.write_text(draw.choice(SCRIPTS if name.endswith(".sh") else [PYTHON, "import os; os.system('touch owned; env')\n", "while True: pass\n"]) + "\n" + data.decode(errors="replace"))
    elif name.endswith((".yaml", ".overrides")) and how < 0.8:
        more = ["x: !!python/object/apply:os.system ['touch owned']\n", "_target_: os.system\n", "<<: *x\n", "a: ${oc.env:OUTSIDE_TOKEN}\n", "defaults: [/etc/passwd]\n", "path: /proc/self/environ\n"]
        path.write_bytes(data + draw.choice(more).encode())
    elif name.endswith(".jinja") and how < 0.8:
        path.write_text(draw.choice(("{{ cycler.__init__.__globals__.os.popen('touch owned').read() }}", "{{ ''.__class__.__mro__ }}", "{% include '/etc/passwd' %}", "{{ messages|attr('__class__') }}",
                                     "{{ 'a' * 100000000 }}", "\x1b]0;x\x07" + TEMPLATE, "{{ self._TemplateReference__context }}", "{{ raise_exception('\x1b[2J') }}")))
    elif zipfile.is_zipfile(path) and how < 0.9:
        spoil_archive(draw, path)
    elif how < 0.92 and (name == ".metadata" or name.endswith((".npy", ".pt"))):
        path.write_bytes(draw.choice((draw.choice(CODE), data[:128] + draw.choice(CODE), data.replace(b"__0_0.distcp", b"../../x.dist"), data.replace(b".distcp", b"/../../"), pickle.dumps(pathlib.PurePath("x")))))
    else:
        raw = bytearray(data or b"\0")
        for _ in range(draw.choice((1, 2, 8, 64))):
            raw[draw.randrange(len(raw))] = draw.randrange(256)
        path.write_bytes(bytes(raw))


def spoil_archive(draw, path):
    """Writes a torch archive again with another pickle, other names, or other sizes."""
    try:
        with zipfile.ZipFile(path) as archive:
            parts = [(part.filename, archive.read(part)) for part in archive.infolist()]
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, RuntimeError, zlib.error):
        return  # it is spoilt already
    how = draw.randrange(4)
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if how == 0 else zipfile.ZIP_STORED) as archive:
        for name, data in parts:
            if how == 1 and name.endswith("data.pkl"):
                data = draw.choice(CODE)
            elif how == 2:
                name = draw.choice(("../../outside/new", "/etc/x", name + "\x1b"))
            elif how == 3 and data:
                data = bytearray(data)
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
                data = bytes(data)
            archive.writestr(name, data)


def link(draw, path, top, outside):
    """A link out of the folder, into it, to itself, or to nowhere."""
    mirror = outside / "mirror" / path.relative_to(top)
    targets = [outside / "secret", outside / "secret.json", outside, "/proc/self/environ", "/dev/zero", "../" * 8 + str(outside / "secret").lstrip("/"), path.name, "nowhere", "..", "/dev/fd/0",
               mirror, mirror, mirror, mirror, os.path.relpath(mirror, path.parent), f"../../blobs/{'../' * 6}{str(outside / 'secret').lstrip('/')}"]
    path.symlink_to(draw.choice(targets))


def damage(draw, top, folder, outside):
    """Changes a random entry of the folder, or adds one with a name that programs use. `top` has all folders."""
    def is_own(path):  # not a link that leads out of the folders
        return os.path.realpath(path).startswith(str(top) + "/")

    entries = sorted(path for path in folder.rglob("*") if not path.is_symlink() or draw.random() < 0.5)
    files = [path for path in entries if path.is_file() and is_own(path)]
    if files and draw.random() < 0.4:
        target = draw.choice(files)
        if os.access(target, os.R_OK | os.W_OK) and target.stat().st_size < 1 << 20:
            spoil(draw, target)
        return
    path = draw.choice(entries) if entries and draw.random() < 0.7 else folder / draw.choice(ADDED)
    if path.is_dir() and not path.is_symlink() and draw.random() < 0.8:
        path = path / draw.choice(ADDED)
    how = draw.randrange(12)
    if how < 7 or how == 8:  # in the place of what is there
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.is_symlink() or path.exists():
            path.unlink()
    if how < 5:
        link(draw, path, top, outside)
    elif how == 5:
        os.mkfifo(path)
    elif how == 6:
        special(draw, path)
    elif how == 7 and path.is_file() and is_own(path):
        with open(path, "r+b") as file:
            file.truncate(draw.choice((0, 7, path.stat().st_size // 2, 1 << 40)))
    elif how == 8:
        path.mkdir()
        if draw.random() < 0.5:
            (path / "loop").symlink_to("..")
    elif how == 9 and path.exists() and is_own(path):
        path.chmod(draw.choice((0, 0o777, 0o4755, 0o2777, 0o111)))
    elif path.is_symlink() or path.exists() or not path.parent.is_dir():
        return
    elif path.suffix in (".py", ".so", ""):
        path.write_text(PYTHON if path.suffix == ".py" else f"#!/bin/sh\n{OWNED}\n")
        path.chmod(0o755)
    else:
        bomb(draw, path)


def special(draw, path):
    """A socket or a device."""
    if draw.random() < 0.5 and os.geteuid() == 0:
        kind = draw.choice((3, 5, 8))  # null, zero, random
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, kind))
            return
        except OSError:
            pass
    with socket.socket(socket.AF_UNIX) as end:
        here = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            end.bind(f"/proc/self/fd/{here}/{path.name[:60]}")
        except OSError:
            path.mkdir(exist_ok=True)
        finally:
            os.close(here)
