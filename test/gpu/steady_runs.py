#!/usr/bin/env python3
"""Tests properties that every run on GPUs must have: the host's losses, determinism, the predicted memory use, and no
allocation in steps.

    steady_runs.py CHECK SHARDC RECIPES

CHECK is the property to test; see CHECKS. RECIPES is the repository's folder of that name. Uses one GPU. Checks of
several GPUs use four or two of the visible ones.
"""

import json
import math
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

import gpus
from resume_equal import HYBRID, REPLICATED, SHARDING, TORCH, under

HOST_LIMIT = 1e-4  # of losses in fp32, relative
PRECISIONS = [("fp32", HOST_LIMIT), ("bf16_mixed", 1e-2)]  # relative limits for additions in another order
FAST_LOSS_LIMIT, FAST_NORM_LIMIT = 1e-3, 1e-2  # relative limits for bf16 sums in another order
MEMORY_LIMIT_MIB = 512
ARENA_LIMIT = 16 << 20  # bytes; the driver allocates device memory in units of 2 MiB, for streams too
SHARED_ARENA_LIMIT = 32 << 20  # with several GPUs, each also maps its peers' memory, which needs tables and units of its own
SMALL = [("debug/llama_tiny.recipe", []), ("debug/gpt2_tiny.recipe", []), ("debug/llama_tiny_fsdp.recipe", [])]
# 20 steps that every strategy can train. Embeddings are not tied, since FSDP2 refuses tied ones.
ANY_STRATEGY = ("debug/fsdp_smoke.recipe", ["train.micro_batch_size=1", "train.global_batch_size=8", "optimizer.lr=1e-4",
                                            "train.train_iters=20", "model.share_embeddings_and_output_weights=false"])
GPT2 = ("gpt2/gpt2_124m.recipe", ["train.micro_batch_size=8", "train.global_batch_size=16"])


def several():
    """The number of GPUs for a check of several; 0 if only one is visible."""
    count = len(gpus.visible())
    return 4 if count >= 4 else 2 if count >= 2 else 0


def on(count):
    return ["cluster.gpu=h200", "cluster.nodes=1", f"cluster.gpus_per_node={count}"]


class Job:
    def __init__(self, shardc, recipes):
        self.shardc, self.recipes = shardc, recipes
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)

    def run(self, recipe, settings, *options, ranks=1):
        """The metrics of each step, and the output."""
        metrics = self.folder / "metrics.jsonl"
        metrics.unlink(missing_ok=True)
        sets = [f"--set={s}" for s in [*on(ranks), *settings]]
        command = [self.shardc, "run", self.recipes / recipe, *sets, f"--metrics={metrics}", *options]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{recipe} {settings}: status {done.returncode}\n{done.stdout}{done.stderr}")
        self.errors = done.stderr
        return [json.loads(line) for line in metrics.read_text().splitlines()], done.stdout

    def plan(self, recipe, settings, *options, ranks=1):
        """The text of the plan that `run` would run with the same arguments."""
        path = self.folder / "job.plan"
        sets = [f"--set={s}" for s in [*on(ranks), *settings]]
        subprocess.run([self.shardc, "dump-plan", self.recipes / recipe, "-o", path, *sets, *options], check=True, capture_output=True)
        return path.read_text()

    def run_without(self, name, recipe, settings, ranks=1):
        """The metrics of each step, with a plan that is compiled without the pass."""
        self.plan(recipe, settings, f"--disable-pass={name}", ranks=ranks)
        metrics = self.folder / "without.jsonl"
        command = [pathlib.Path(self.shardc).with_name("shardc-run"), self.folder / "job.plan", f"--metrics={metrics}"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{recipe} {settings} without {name}: status {done.returncode}\n{done.stdout}{done.stderr}")
        return [json.loads(line) for line in metrics.read_text().splitlines()]


def losses(metrics):
    return [(step["loss"], step["grad_norm"]) for step in metrics if "loss" in step]


def worst_loss(ours, theirs):
    """The largest relative distance between two series of 20 losses."""
    pairs = list(zip(losses(ours), losses(theirs)))
    distances = [abs(a[0] - b[0]) / abs(b[0]) if None not in (a[0], b[0]) else math.inf for a, b in pairs]
    return max(distances) if len(ours) == len(theirs) == len(pairs) == 20 else math.inf


def check_host(job):
    """Losses in fp32 must be the host backend's, on one GPU and on several under every strategy."""
    jobs = [(recipe, settings, 1) for recipe, settings in SMALL]
    if ranks := several():
        jobs += [("debug/llama_tiny.recipe", under(strategy), ranks) for strategy in [*SHARDING, *REPLICATED]]
        jobs += [("debug/gpt2_tiny.recipe", under(strategy), ranks) for strategy in ("optim_grads_params", "ddp")]
    for recipe, settings, ranks in jobs:
        fp32 = [*settings, "mixed_precision=fp32", "train.train_iters=20"]
        ours, _ = job.run(recipe, fp32, ranks=ranks)
        host, _ = job.run(recipe, fp32, "--backend=host", f"--simulate-ranks={ranks}", ranks=ranks)
        worst = worst_loss(ours, host)
        name = f"{recipe} {' '.join(settings)}: {ranks} rank{'s' if ranks > 1 else ''}"
        if not worst <= HOST_LIMIT:
            sys.exit(f"{name}: losses differ by {worst}\n{losses(ours)}\n{losses(host)}")
        print(f"{name}: 20 steps, losses within {worst:.1e} of the host's", flush=True)


def check_one_gpu(job):
    """Four GPUs under every strategy must have the losses of one GPU."""
    gpus.need(4)
    recipe, batch = ANY_STRATEGY
    for precision, limit in PRECISIONS:
        same = [*batch, f"mixed_precision={precision}"]
        one, _ = job.run(recipe, [*under("no_shard"), *same])
        for strategy in [*SHARDING, *REPLICATED, *TORCH, *HYBRID]:
            worst = worst_loss(job.run(recipe, [*under(strategy), *same], ranks=4)[0], one)
            print(f"{recipe} {precision} {strategy}: 20 steps on 4 GPUs, losses within {worst:.1e} of one GPU's", flush=True)
            if not worst <= limit:
                sys.exit(f"{strategy}: more than {limit}")


def check_elsewhere(job):
    """A job that stops every five steps and continues under another strategy must have the losses of one that never
    stops."""
    gpus.need(4)
    recipe, batch = ANY_STRATEGY
    saved = job.folder / "saved"
    stops = [f'checkpoint.save="{saved}"', f'checkpoint.load="{saved}"', "checkpoint.convert_on_load=true", "train.exit_interval=5"]
    for precision, limit in PRECISIONS:
        same = [*batch, f"mixed_precision={precision}"]
        whole, _ = job.run(recipe, [*under("optim_grads_params"), *same], ranks=4)
        for order in (["hfsdp", "torch_fsdp2", "hsdp", "distributed"], ["ddp", "hfsdp", "optim", "torch_fsdp2"]):
            parts = [job.run(recipe, [*under(strategy), *same, *stops], ranks=4)[0] for strategy in order]
            if [len(losses(part)) for part in parts] != [5] * len(order):
                sys.exit(f"{order}: {[len(losses(part)) for part in parts]} steps")
            worst = worst_loss([step for part in parts for step in part if "loss" in step], whole)
            print(f"{recipe} {precision}: {', '.join(order)} in turn: losses within {worst:.1e} of FSDP's", flush=True)
            if not worst <= limit:
                sys.exit(f"more than {limit}")
            shutil.rmtree(saved)


def check_deterministic(job):
    """Two runs in bf16 must be bitwise equal if the recipe asks for it; on several GPUs with registered memory and
    without."""
    jobs = [(recipe, settings, 1) for recipe, settings in [GPT2, *SMALL]]
    if ranks := several():
        batch = ["train.micro_batch_size=1", f"train.global_batch_size={2 * ranks}"]
        jobs += [("debug/fsdp_smoke.recipe", [*batch, f"ddp.nccl_ub={registers}"], ranks) for registers in ("true", "false")]
    for recipe, settings, ranks in jobs:
        same = [*settings, "mixed_precision=bf16_mixed", "model.deterministic_mode=true", "train.train_iters=10"]
        first, second = (losses(job.run(recipe, same, ranks=ranks)[0]) for _ in range(2))
        name = f"{recipe} {' '.join(settings)}: {ranks} rank{'s' if ranks > 1 else ''}"
        if first != second or len(first) != 10 or not math.isfinite(first[-1][0]):
            sys.exit(f"{name}: {first}\nand {second}")
        print(f"{name}: 10 steps twice, equal to the bit", flush=True)


def memory_jobs():
    """The recipe, settings and ranks of each run whose memory use is checked."""
    jobs = [(recipe, settings, 1) for recipe, settings in [GPT2, *SMALL]]
    if ranks := several():
        smoke, registered = "debug/fsdp_smoke.recipe", "ddp.nccl_ub=true"
        batch = ["train.micro_batch_size=1", f"train.global_batch_size={ranks}"]
        two = [batch[0], f"train.global_batch_size={2 * ranks}"]
        jobs += [(smoke, [registered, *batch], ranks),
                 (smoke, [registered, *two], ranks),
                 (smoke, [registered, "model.deterministic_mode=true", *two], ranks),
                 (smoke, two, ranks),
                 (GPT2[0], ["train.micro_batch_size=8", f"train.global_batch_size={16 * ranks}"], ranks)]
    return jobs


def check_memory(job):
    """The device must use as much memory as predicted. On every rank, arenas must have the plan's sizes, and memory use
    must not grow after the first step."""
    for recipe, settings, ranks in memory_jobs():
        settings = [*settings, "train.train_iters=8"]
        name = f"{recipe} {' '.join(settings)}: {ranks} rank{'s' if ranks > 1 else ''}"
        arenas = re.search(r"^  arenas \{ (.*) \}$", job.plan(recipe, settings, ranks=ranks), re.MULTILINE).group(1)
        planned = sum(int(size) for arena, size in re.findall(r"(\w+) = (\d+)", arenas) if arena != "host")
        _, said = job.run(recipe, settings, ranks=ranks)
        table = re.search(r"device memory: .*?; ([\d.]+) predicted, ([+-][\d.]+)\n(?:  .*\n)*", said)
        end = re.search(r"device memory .* since the first step ([+-]\d+) bytes, (\d+) allocations\n"
                        r"arenas of (\d+) ranks?: (\d+) to (\d+) bytes, in use within (\d+)", said)
        if not table or not end:
            sys.exit(f"{name}: nothing is said of device memory\n{said}")
        print(f"{name}; {planned} bytes of arenas planned\n{table.group(0)}{end.group(0)}", flush=True)
        growth, allocations, told, least, most, off = (int(number) for number in end.groups())
        if abs(float(table.group(2))) > MEMORY_LIMIT_MIB:
            sys.exit(f"{name}: {table.group(2)} MiB beside what was predicted")
        if growth != 0 or allocations != 0:
            sys.exit(f"{name}: device memory grew by {growth} bytes, {allocations} allocations")
        limit = SHARED_ARENA_LIMIT if ranks > 1 else ARENA_LIMIT
        if told != ranks or least != planned or most != planned or off > limit:
            sys.exit(f"{name}: arenas of {told} ranks have {least} to {most} bytes, in use within {off}; planned are {planned}")


def told_by(job, fault, recipe, settings, ranks):
    """The losses of a run with a fault injected on one rank, the warnings of its backend, and its output."""
    os.environ["SHARDC_FAULT"] = f"{fault}@{max(ranks - 1, 0)}"
    metrics, said = job.run(recipe, settings, ranks=ranks)
    del os.environ["SHARDC_FAULT"]
    return losses(metrics), [line for line in job.errors.splitlines() if "shardc-run: warning:" in line], said


def expect_told(name, told, wanted):
    """Expects exactly one sentence for each of the wanted words."""
    counts = [sum(word in line for line in told) for word in wanted]
    if counts != [1] * len(wanted):
        sys.exit(f"{name}: {wanted} {counts} times in\n" + "\n".join(told))
    print(f"{name}: {len(told)} warnings\n" + "\n".join(told), flush=True)


def check_registration(job):
    """If NCCL cannot register memory on one rank, all ranks register less. This is reported once, and losses stay
    bitwise equal. Buffers that are not registered because sums are exchanged are reported once too."""
    ranks = several()
    if not ranks:
        print("one GPU is visible; several are needed")
        sys.exit(gpus.SKIPPED)
    recipe, batch = "debug/fsdp_smoke.recipe", ["train.micro_batch_size=1", f"train.global_batch_size={2 * ranks}"]
    wide = ["model.hidden_size=4096", "model.ffn_hidden_size=14336", "model.num_attention_heads=32"]  # gathers by copy engines
    settings = [*batch, *wide, "ddp.nccl_ub=true", "model.deterministic_mode=true", "optimizer.lr=1e-4", "train.train_iters=6"]
    plain = losses(job.run(recipe, settings, ranks=ranks)[0])
    has_windows = "via ce" in job.plan(recipe, settings, ranks=ranks)
    for fault in ("refused-windows", "refused-buffers"):
        wanted = ["NCCL does not support windows into buffers; gathers use multiprocessors [no-windows]"] if has_windows else []
        wanted += ["NCCL registers no buffers"] if fault == "refused-buffers" else []
        values, told, said = told_by(job, fault, recipe, settings, ranks)
        expect_told(fault, told, wanted)
        remarks = [line for line in said.splitlines() if "is not registered with NCCL" in line and "[channel-not-registered]" in line]
        if values != plain or len(plain) != 6 or len(remarks) != 1:
            sys.exit(f"{fault}: {values}\nand {plain}\n{remarks}")


def check_fast_path(job):
    """The configuration that is used for speed measurements (gathers by copy engines, bf16 sums by NCCL between
    registered buffers) must have the losses of sums in rank order without registration. So must a run with less
    registration on one rank."""
    ranks = several()
    if not ranks:
        print("one GPU is visible; several are needed")
        sys.exit(gpus.SKIPPED)
    recipe, batch = "debug/fsdp_smoke.recipe", ["train.micro_batch_size=1", f"train.global_batch_size={ranks}"]
    wide = ["model.hidden_size=4096", "model.ffn_hidden_size=14336", "model.num_attention_heads=32"]
    bf16 = ["ddp.megatron_fsdp_main_grads_dtype=bf16", "ddp.grad_reduce_in_fp32=false"]
    settings = [*batch, *wide, *bf16, "optimizer.lr=1e-4", "train.train_iters=10"]
    plain = losses(job.run(recipe, [*settings, "ddp.nccl_ub=false", "model.deterministic_mode=true"], ranks=ranks)[0])
    fast = [*settings, "ddp.nccl_ub=true"]
    if "via ce" not in (plan := job.plan(recipe, fast, ranks=ranks)) or "reduce_scatter" not in plan:
        sys.exit("the plan has no gathers by copy engines, or no reductions")
    for fault in ("", "refused-windows", "refused-buffers"):
        values = told_by(job, fault, recipe, fast, ranks)[0] if fault else losses(job.run(recipe, fast, ranks=ranks)[0])
        loss, norm = (max(abs(a[i] - b[i]) / abs(b[i]) for a, b in zip(values, plain)) for i in (0, 1))
        print(f"{fault or 'all registered'}: losses within {loss:.1e}, norms within {norm:.1e}", flush=True)
        if not (loss <= FAST_LOSS_LIMIT and norm <= FAST_NORM_LIMIT) or len(values) != 10 or len(plain) != 10:
            sys.exit(f"{fault}: {values}\nand {plain}")


def check_attention(job):
    """If cuDNN refuses attention on a rank, one warning must name the rank, and losses must stay close."""
    ranks = several() or 1
    recipe, settings = GPT2[0], ["train.micro_batch_size=8", f"train.global_batch_size={8 * ranks}", "train.train_iters=3"]
    plain = losses(job.run(recipe, settings, ranks=ranks)[0])
    values, told, _ = told_by(job, "refused-attention", recipe, settings, ranks)
    who = f"rank {ranks - 1}: " if ranks > 1 else ""
    expect_told("refused-attention", told, [f"{who}cuDNN does not support attention of", f"{who}cuDNN does not support attention_bwd of"])
    if not all(line.endswith("[attention-refused]") for line in told):
        sys.exit("\n".join(told))
    apart = max(abs(a[0] - b[0]) / abs(b[0]) for a, b in zip(values, plain))
    if not apart <= 1e-2 or len(plain) != 3:
        sys.exit(f"losses {values}\nand with cuDNN {plain}")


def expert_jobs():
    """Settings of runs with expert parallelism: top-1 of two experts, top-2 of eight, and with unbalanced tokens."""
    same = ["model.expert_model_parallel_size=2", "model.deterministic_mode=true", "model.num_layers=4", "model.hidden_size=256",
            "model.moe_ffn_hidden_size=512", "model.seq_length=512", "train.micro_batch_size=2", "train.global_batch_size=8",
            "train.train_iters=6"]
    biases = ["model.moe_router_score_function=sigmoid", "model.moe_router_enable_expert_bias=true", "model.moe_router_bias_update_rate=100.0"]
    return {"fp32": [*same, "mixed_precision=fp32"],
            "bf16, FSDP": [*same, "mixed_precision=bf16_mixed", "model.num_moe_experts=8", *under("optim_grads_params")],
            "bf16, registered": [*same, "mixed_precision=bf16_mixed", "ddp.nccl_ub=true", *under("optim_grads_params")],
            "bf16, all tokens to few experts": [*same, "mixed_precision=bf16_mixed", "model.num_moe_experts=8", *biases]}


def check_experts(job):
    """Kernels exchange only those rows of experts that exist. Losses and norms must be bitwise equal to those of full
    exchanges by NCCL. If ranks cannot access each other's memory, this must be reported once."""
    gpus.need(2)
    recipe = "debug/mixtral_tiny.recipe"
    for name, settings in expert_jobs().items():
        counted = set(re.findall(r" = all_to_all %\S+, %\S+ .*?channel (\S+)", job.plan(recipe, settings, ranks=2)))
        metrics, said = job.run(recipe, settings, ranks=2)
        plain = losses(metrics)
        if not counted or "[no-peers]" in said or len(plain) != 6 or not all(math.isfinite(value) for step in plain for value in step):
            sys.exit(f"{name}: counted rows go by channels {counted}\n{plain}\n{said}")
        refused, told, said = told_by(job, "refused-peers", recipe, settings, 2)
        told = [line for line in told if not line.endswith("[slow-gathers]")]  # gathers are small here
        remarks = [line for line in said.splitlines() if line.endswith("[no-peers]")]
        if told or len(remarks) != len(counted):
            sys.exit(f"{name}, refused-peers: {len(remarks)} remarks for channels {counted}\n" + "\n".join([*told, *remarks]))
        others = {"by NCCL": refused, "with all rows": losses(job.run_without("count-rows", recipe, settings, ranks=2)),
                  "op by op": losses(job.run(recipe, settings, "--no-graph", ranks=2)[0])}
        for way, values in others.items():
            if values != plain:
                sys.exit(f"{name}, {way}: {values}\nand {plain}")
        print(f"{name}: 6 steps are the same to the bit {', '.join(others)}; {remarks[0]}", flush=True)


def check_host_time(job):
    """Queueing a step must take the host at most a hundredth of the step's time, unless steps are tiny."""
    recipe, settings = GPT2[0], []
    metrics, _ = job.run(recipe, [*settings, "train.micro_batch_size=64", "train.global_batch_size=64", "train.train_iters=30"])
    tokens = 64 * 1024
    host = statistics.median(step["host_ms"] for step in metrics[10:])
    step = statistics.median(tokens / step["tokens_per_s"] * 1e3 for step in metrics[10:])
    print(f"{recipe}: {host:.3f} ms of the host in a step of {step:.1f} ms, {100 * host / step:.2f} %")
    if host > 0.01 * step:
        sys.exit("more than 1 %")


def check_ranges(job):
    """Profilers must see NVTX ranges with the plan's names: launches of segments, and ops while they are queued."""
    record = job.folder / "ranges"
    os.environ |= {"NVTX_INJECTION64_PATH": os.environ["SHARDC_NVTX_RECORDER"], "NVTX_RECORD": str(record)}
    _, said = job.run("debug/llama_tiny.recipe", ["train.train_iters=4"])
    names = record.read_text().splitlines()
    counts = {name: names.count(name) for name in ("init", "update")}
    micro = [name for name in names if name.startswith("micro ") and ":" not in name]
    ops = [name for name in names if re.match(r"micro: matmul %l0\.qkv \(.*recipe:\d+", name)]
    if counts["update"] != 4 or counts["init"] != 1 or not micro or len(ops) != len(set(micro)):
        sys.exit(f"{counts}, {len(micro)} microbatches, {len(ops)} captures of one op\n" + "\n".join(names[:40]))
    print(f"{len(names)} ranges: {counts}, {sorted(set(micro))} {len(micro)} times, for example '{ops[0]}'")


def spans_of(path):
    """The streams of a trace with the number of spans on each, and the ranks."""
    events = json.loads(path.read_text())["traceEvents"]
    streams = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    counts = {}
    for event in events:
        if event["ph"] == "X":
            if not (event["dur"] >= 0 and event["ts"] >= 0 and event["name"]):
                sys.exit(f"{path.name} has the span {event}")
            name = streams[event["pid"], event["tid"]]
            counts[name] = counts.get(name, 0) + 1
    return counts


def check_ways(job):
    """Runs op by op with checks, without graphs, and with a trace must have losses bitwise equal to the plain run's.
    The trace must show what each stream did."""
    jobs = [("debug/llama_tiny.recipe", [], 1)]
    if ranks := several():
        jobs.append(("debug/llama_tiny_fsdp.recipe", [], ranks))
    for recipe, settings, ranks in jobs:
        trace = job.folder / f"{ranks}.json"
        settings = [*settings, "mixed_precision=bf16_mixed", "model.deterministic_mode=true", "train.train_iters=12"]
        plain = losses(job.run(recipe, settings, ranks=ranks)[0])
        if len(plain) != 12 or not all(math.isfinite(value) for step in plain for value in step):
            sys.exit(f"{recipe}: {plain}")
        for option in ("--check", "--no-graph", f"--trace={trace}"):
            other = losses(job.run(recipe, settings, option, ranks=ranks)[0])
            if other != plain:
                sys.exit(f"{recipe} {option}, {ranks} ranks: {other}\nand plain {plain}")
        counts = spans_of(trace)
        wanted = ["compute"] + (["gather", "reduce"] if ranks > 1 else [])
        if not all(counts.get(name, 0) > 0 for name in wanted):
            sys.exit(f"{recipe}, {ranks} ranks: the trace has spans of {counts}")
        print(f"{recipe}, {ranks} ranks: 12 steps are the same to the bit with --check, --no-graph and --trace; spans {counts}",
              flush=True)


CHECKS = {"host": check_host, "one-gpu": check_one_gpu, "elsewhere": check_elsewhere,
          "registration": check_registration, "fast-path": check_fast_path, "attention": check_attention, "experts": check_experts, "ranges": check_ranges,
          "deterministic": check_deterministic, "memory": check_memory,
          "host-time": check_host_time, "ways": check_ways}


def main():
    gpus.need_permission()
    CHECKS[sys.argv[1]](Job(sys.argv[2], pathlib.Path(sys.argv[3])))


if __name__ == "__main__":
    main()
