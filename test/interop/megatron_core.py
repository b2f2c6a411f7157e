"""Exchanges torch_dist checkpoints between our runs and real Megatron-Core in both directions, on the processor.

usage: megatron_core.py BIN

Covers plain DDP, the distributed optimizer and PyTorch's FSDP2, in fp32 and bf16, for llama and GPT-2. Our run saves;
Megatron-Core loads that with its default strictness, trains, and saves it again; our run continues from there.
Megatron-Core also trains a new model, and one with a padded vocabulary, from which our runs continue. Muon's chain of
optimizers goes both ways if the package emerging_optimizers is installed with Megatron-Core. So do models with experts,
undivided and divided over two ranks. BIN is the folder of shardc and shardc-run. If MEGATRON_LM names a checkout of
Megatron-LM, that is tested in addition to the installed Megatron-Core. Exits with 0 if all agrees, and 77 without
Megatron-Core.
"""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

try:
    import torch  # noqa: F401
    import megatron.core  # noqa: F401
    import psutil  # noqa: F401  Megatron-Core saves with it
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SEQUENCE, VOCABULARY, STEPS = 32, 256, 3
TOKENS = [(7 * i * i + 3 * i) % VOCABULARY for i in range(SEQUENCE)]  # every sample of the data
MODELS = {
    "llama": f"""model llama {{ num_layers = 2  hidden_size = 64  num_attention_heads = 4  num_query_groups = 2
                ffn_hidden_size = 160  seq_length = {SEQUENCE}  vocab_size = VOCABULARY }}""",
    "gpt2": f"""model gpt {{ num_layers = 3  hidden_size = 64  num_attention_heads = 4  seq_length = {SEQUENCE}
               vocab_size = VOCABULARY  hidden_dropout = 0  attention_dropout = 0 }}""",
}
# Experts in some layers; and a list with experts in all, for which Megatron-Core numbers the layers.
EXPERTS = {
    pattern: f"""model mixtral {{ num_layers = 3  hidden_size = 48  num_attention_heads = 4  num_query_groups = 2  ffn_hidden_size = 80
                num_moe_experts = 4  moe_router_topk = 2  moe_ffn_hidden_size = 40  {pattern}
                moe_aux_loss_coeff = [0.0]  seq_length = {SEQUENCE}  vocab_size = VOCABULARY }}"""
    for pattern in ("", "moe_layer_freq = [0, 1, 1]", "moe_layer_freq = [1, 1, 1]")
}
WRAPPERS = {
    "plain": "dist { use_megatron_fsdp = false }  ddp { use_megatron_fsdp = false }",
    "distributed": "dist { use_megatron_fsdp = false }  ddp { use_megatron_fsdp = false  use_distributed_optimizer = true }",
    # We use PyTorch's FSDP2, whose checkpoints are those of plain DDP. Megatron-Core uses plain DDP, since its FSDP2
    # needs GPUs.
    "fsdp2": "dist { use_torch_fsdp2 = true }  checkpoint { ckpt_format = torch_dist }",
}
PRECISION = {"fp32": 1e-6, "bf16_mixed": 2e-2}  # the losses' relative difference that is allowed


def call(*command, **more):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(str(word) for word in command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def write_data(prefix, documents=1, repeats=512):
    """Writes an indexed dataset of one document. Every sample is TOKENS followed by the first of them."""
    tokens = TOKENS * repeats
    prefix.with_suffix(".bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
    prefix.with_suffix(".idx").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, documents, documents + 1) + struct.pack("<i", len(tokens))
        + struct.pack("<q", 0) + struct.pack("<2q", 0, documents))


ADAM = "optimizer adam { lr = 1e-3  weight_decay = 0.1  betas = (0.9, 0.95)  clip_grad = 1.0 }"
MUON = """optimizer muon { lr = 1e-3  weight_decay = 0.1  adam_beta1 = 0.9  adam_beta2 = 0.95  clip_grad = 1.0
                   muon_fp32_matmul_prec = highest  muon_nesterov = true }"""


def write_recipe(folder, model, precision, wrapper, vocabulary=VOCABULARY, optimizer=ADAM):
    path = folder / "job.recipe"
    path.write_text(f"""recipe job {{
  cluster {{ gpu = host  nodes = 1  gpus_per_node = 2 }}
  mixed_precision = {precision}
  {(MODELS | EXPERTS)[model].replace("VOCABULARY", str(vocabulary))}
  dataset indexed {{ blend = ["{folder}/data"]  split = "100,0,0" }}
  {wrapper}
  train {{ micro_batch_size = 1  global_batch_size = 4  train_iters = {2 * STEPS} }}
  {optimizer}
  scheduler constant {{ }}
  logger {{ log_interval = 1 }}
}}
""")
    return path


def ours(binaries, folder, *settings):
    """The losses of a shardc run, by step."""
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    call(binaries / "shardc", "run", folder / "job.recipe", f"--metrics={metrics}", *(f"--set={s}" for s in settings))
    return {record["step"]: record["loss"] for line in metrics.read_text().splitlines()
            if "loss" in (record := json.loads(line))}


def theirs(where, *words, number=STEPS):
    """The results of Megatron-Core, installed or from the checkout `where`. `number` is that of steps or of ranks."""
    more = {**os.environ, "PYTHONPATH": where} if where else dict(os.environ)
    worker = pathlib.Path(__file__).with_name("megatron_worker.py")
    lines = call(sys.executable, "-B", "-W", "ignore", worker, *words, number, json.dumps(TOKENS), env=more)
    return json.loads(lines.splitlines()[-1])


def worst(first, second):
    assert len(first) == len(second) > 0, (first, second)
    return max(abs(a - b) / abs(b) for a, b in zip(first, second))


def check(binaries, where, model, precision, ddp, optimizer=ADAM):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_data(folder / "data")
        write_recipe(folder, model, precision, WRAPPERS[ddp], optimizer=optimizer)
        whole = ours(binaries, folder)
        after = [whole[step] for step in range(STEPS + 1, 2 * STEPS + 1)]
        ours(binaries, folder, f'checkpoint.save="{folder}/ours"', f"train.exit_interval={STEPS}")
        saved = folder / f"ours/iter_{STEPS:07}"

        told = theirs(where, "resume", saved, folder / "again")
        there = worst(told["losses"], after)
        assert there < PRECISION[precision], f"Megatron-Core went on with {told['losses']}, we with {after}"
        again = ours(binaries, folder, f'checkpoint.load="{folder}/again"')
        assert list(again.values()) == after, f"from what Megatron-Core saved again: {again}, before {after}"

        trained = theirs(where, "train", saved, folder / "theirs")["losses"][STEPS:]
        mine = list(ours(binaries, folder, f'checkpoint.load="{folder}/theirs"').values())
        here = worst(mine, trained)
        assert here < PRECISION[precision], f"we went on with {mine}, Megatron-Core with {trained}"
        print(f"Megatron-Core {told['version']} with torch {told['torch']}, {model}, {precision}, {ddp}, {optimizer.split()[1]}: "
              f"losses after its load of ours within {there:.1e}, after our load of its within {here:.1e}, there and back to the bit")


def check_experts(binaries, where, model, ddp, ranks, optimizer=ADAM):
    """Both programs divide the experts among equally many ranks, since Megatron-Core cannot load a checkpoint with
    another number, not even its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_data(folder / "data")
        write_recipe(folder, model, "fp32", WRAPPERS[ddp], optimizer=optimizer)
        divided = f"model.expert_model_parallel_size={ranks}"
        after = [loss for step, loss in ours(binaries, folder, divided).items() if step > STEPS]
        ours(binaries, folder, divided, f'checkpoint.save="{folder}/ours"', f"train.exit_interval={STEPS}")
        saved, there = folder / f"ours/iter_{STEPS:07}", None
        if ranks == 1:
            losses = theirs(where, "resume", saved, folder / "again")["losses"]
            there = worst(losses, after)
            assert there < PRECISION["fp32"], f"Megatron-Core went on with {losses}, we with {after}"
        else:
            theirs(where, "again", saved, folder / "again", number=ranks)
        again = ours(binaries, folder, divided, f'checkpoint.load="{folder}/again"')
        assert list(again.values()) == after, f"from what Megatron-Core saved again: {again}, before {after}"
        print(f"experts divided by {ranks}, {model or 'in all layers'}, {ddp}, {optimizer.split()[1]}: there and back to the bit"
              + (f", losses there within {there:.1e}" if there is not None else ""))


def check_padding(binaries, where):
    """Megatron-Core includes the padding rows of the vocabulary in its softmax. shardc does so if the recipe asks for
    it."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_data(folder / "data")
        recipe = write_recipe(folder, "llama", "fp32", WRAPPERS["plain"], vocabulary=257)
        as_there, load = "model.mask_padded_vocab=false", f'checkpoint.load="{folder}/theirs"'
        ours(binaries, folder, as_there, f'checkpoint.save="{folder}/ours"', f"train.exit_interval={STEPS}")
        told = theirs(where, "train", folder / f"ours/iter_{STEPS:07}", folder / "theirs")
        trained = told["losses"][STEPS:]
        alike = list(ours(binaries, folder, as_there, load).values())
        masked = list(ours(binaries, folder, load).values())
        assert worst(alike, trained) < PRECISION["fp32"], f"with padded rows {alike}, Megatron-Core has {trained}"
        assert trained[0] - masked[0] > 0.1, f"without padded rows {masked}, Megatron-Core has {trained}"
        said = call(binaries / "shardc", "run", recipe, f"--set={load}")
        assert "'model.mask_padded_vocab = false' restores the former setting" in said, said
        print(f"Megatron-Core {told['version']}, 257 tokens padded to 384: {trained[0]:.4f} there, {alike[0]:.4f} here with "
              f"padded rows, {masked[0]:.4f} without")


def has_muon(where):
    """Whether this Megatron-Core offers Muon, from the package emerging_optimizers."""
    asked = "from megatron.core.optimizer.emerging_optimizers import HAVE_EMERGING_OPTIMIZERS as has; raise SystemExit(not has)"
    more = {**os.environ, "PYTHONPATH": where} if where else dict(os.environ)
    return subprocess.run([sys.executable, "-W", "ignore", "-c", asked], env=more, capture_output=True).returncode == 0


def main():
    binaries = pathlib.Path(sys.argv[1])
    for where in ("", *filter(None, [os.environ.get("MEGATRON_LM")])):
        for model in MODELS:
            for precision in PRECISION:
                for ddp in WRAPPERS:
                    if ddp != "fsdp2" or model != "gpt2":  # gpt2's embedding is tied, which FSDP2 refuses
                        check(binaries, where, model, precision, ddp)
        if has_muon(where):
            check(binaries, where, "llama", "fp32", "plain", optimizer=MUON)
            for ranks in (1, 2):
                check_experts(binaries, where, "moe_layer_freq = [0, 1, 1]", "plain", ranks, optimizer=MUON)
        check_padding(binaries, where)
        for ddp in ("plain", "distributed"):
            for ranks in (1, 2):
                check_experts(binaries, where, "moe_layer_freq = [1, 1, 1]", ddp, ranks)
        check_experts(binaries, where, "moe_layer_freq = [0, 1, 1]", "plain", 1)
        check_experts(binaries, where, "", "distributed", 2)


if __name__ == "__main__":
    main()
