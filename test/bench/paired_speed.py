#!/usr/bin/env python3
"""Compares our plans with other programs on the same GPUs in turns, and with the rates that the machine reaches.

    paired_speed.py SHARDC_RUN FOLDER --ours NAME=[PROGRAM:]PLAN ... [--peer NAME=COMMAND ...] [--probe COMMAND] [--rounds R] [--limit S]
                    [--record FILE HARDWARE]

Each round runs every --ours and every --peer once, in this order; logs, metrics and results stay in FOLDER. A peer's COMMAND
gets `--name NAME --out FILE` behind it and writes a JSON object with tokens_per_s_gpu and memory_gib.device_used, as
bench_torch.py does. PROGRAM:PLAN in place of PLAN runs it by another shardc-run. Ours is the mean over the second half of a run's steps. The table has, of each, the median of the rounds and
its range, the device's memory and the ratio to each peer. The --probe gets `--out FILE` and writes the ceilings as probe.py
does; a bound then follows for each of our plans: the terms of a dense transformer's step at the rates of this run, products at
the one they settle at, transfers hidden. A run ends after --limit seconds: ours is sent SIGTERM, peers and the probe get `--time-limit`, as their
workers have sessions of their own. What is known is printed after every round. --record writes a row for each of our plans
beside each peer, with the plan's NAME as its case.
"""

import argparse
import json
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import time

import record_figure


class Plan:
    """The options that a placed plan carries."""

    def __init__(self, words):
        program, _, path = words.rpartition(":")
        self.program, path = program, pathlib.Path(path)
        self.path = path
        head = path.read_text(errors="replace")[:400_000]
        self.options = dict(re.findall(r"^  ([a-z_]+\.[a-z_0-9.]+) = (.+)$", head, re.MULTILINE))
        self.ranks = int(re.search(r"^// mesh .*; (\d+) ranks?$", head, re.MULTILINE).group(1))
        self.predicted = record_figure.predicted_speed(head)
        self.parameters = int(re.search(r"^// parameters (\d+)", head, re.MULTILINE).group(1))

    def number(self, name):
        return int(self.options[name])

    def bound(self, ceilings):
        """Tokens/s of a GPU: products, attention, element-wise passes and the optimizer, nothing between them."""
        layers, hidden, sequence = (self.number(f"{name}") for name in
                                    ("model.num_layers", "model.hidden_size", "dataset.seq_length"))
        heads, groups, size = (self.number(f"model.{name}") for name in
                               ("num_attention_heads", "num_query_groups", "kv_channels"))
        ffn, vocabulary = self.number("model.ffn_hidden_size"), self.number("derived.padded_vocab_size")
        gated = self.options["model.gated_linear_unit"] == "true"
        weights = layers * (hidden * size * 2 * (heads + groups) + (3 if gated else 2) * hidden * ffn) + vocabulary * hidden
        scores = 2 * layers * sequence * heads * size  # causal, forward
        passes = 3 * layers * (16 * hidden + 4 * (heads + groups) * size + (6 if gated else 4) * ffn) + 6 * vocabulary
        tokens = self.number("train.micro_batch_size") * self.number("derived.num_microbatches") * sequence
        seconds = 6 * weights / ceilings["product"] + scores / ceilings["forward"] + 2.5 * scores / ceilings["backward"]
        seconds += passes / ceilings["copy"] + 30 * self.parameters / self.ranks / ceilings["copy"] / tokens
        return 1 / seconds


def ceilings_of(result, plan):
    """Per second. Attention is the fastest that was measured with heads of the plan's size."""
    wanted = "llama3_8b_8k" if plan.number("model.kv_channels") == 128 else "llama_1b_8k"
    rates = [rate for name, rate in result["attention"].items() if name.startswith(wanted) and isinstance(rate, dict)]
    return {"product": 1e12 * result["sustained"]["settled_slowest_rank"],
            "forward": 1e12 * max(rate["fwd"] for rate in rates), "backward": 1e12 * max(rate["bwd"] for rate in rates),
            "copy": 1e9 * result["copies"]["d2d_read_plus_write"]}


class Bench:
    def __init__(self, options):
        self.options = options
        self.folder = options.folder
        self.figures = {}

    def call(self, name, command):
        """What it printed; its errors end nothing but its own row."""
        begin = time.monotonic()
        try:
            # The limit's own end comes first: what outlives this one keeps its GPUs.
            done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=self.options.limit + 60)
            status, text = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired as error:
            status, text = "over the limit", str(error.stdout or "")
        (self.folder / f"{name}.log").write_text(text)
        print(f"{name}: {time.monotonic() - begin:.0f} s, status {status}", flush=True)
        if status != 0:
            print(text[-600:], flush=True)
        return text if status == 0 else None

    def add(self, name, rate, memory):
        rates, memories = self.figures.setdefault(name, ([], []))
        rates.append(rate)
        memories.append(memory)

    def run_ours(self, name, plan, round):
        metrics = self.folder / f"{name}.{round}.jsonl"
        limited = ["timeout", "--kill-after=10", self.options.limit]
        said = self.call(f"{name}.{round}", [*limited, plan.program or self.options.shardc_run, f"--metrics={metrics}", plan.path])
        if said is None:
            return
        steps = [json.loads(line) for line in metrics.read_text().splitlines()]
        rates = [step["tokens_per_s"] / plan.ranks for step in steps if "tokens_per_s" in step]
        used = re.search(r"device memory: ([\d.]+) of", said)
        self.add(name, statistics.mean(rates[len(rates) // 2:]), float(used.group(1)) / 1024 if used else None)

    def run_peer(self, name, command, round):
        out = self.folder / f"{name}.{round}.json"
        limit = ["--time-limit", int(self.options.limit)]
        if self.call(f"{name}.{round}", [*shlex.split(command), "--name", name, "--out", out, *limit]) is None:
            return
        result = json.loads(out.read_text())
        self.add(name, result["tokens_per_s_gpu"], result.get("memory_gib", {}).get("device_used"))

    def probe(self):
        """The measurements; None if they failed or lack a part that the bound needs."""
        out = self.folder / "probe.json"
        self.call("probe", [*shlex.split(self.options.probe), "--out", out, "--time-limit", int(self.options.limit)])
        if not out.exists():
            return None
        result = json.loads(out.read_text())
        missing = [part for part in ("sustained", "attention", "copies") if "error" in result.get(part, {"error": "it was not run"})]
        for part in missing:
            print(f"probe: no ceiling of {part}: {result.get(part, {}).get('error', 'it was not run')}")
        return None if missing else result

    def table(self, plans, peers, probed):
        median = {name: statistics.median(rates) for name, (rates, _) in self.figures.items()}
        for name, (rates, memories) in self.figures.items():
            memory = [used for used in memories if used is not None]
            words = [f"{name:<28} {median[name]:>10,.0f} tokens/s of a GPU ({min(rates):,.0f} to {max(rates):,.0f})"]
            words += [f"{max(memory):.1f} GiB"] if memory else []
            if name in plans:
                words += [f"{median[name] / median[peer]:.3f} of {peer}" for peer in peers if peer in median]
            if name in plans and probed:
                bound = plans[name].bound(ceilings_of(probed, plans[name]))
                words += [f"{100 * median[name] / bound:.1f} % of {bound:,.0f}"]
            print("; ".join(words))
        if probed:
            first = next(iter(plans.values()))
            print("ceilings: " + ", ".join(f"{name} {rate:.3g}/s" for name, rate in ceilings_of(probed, first).items()))


    def record(self, plans, file, hardware):
        def of(name, speed, gib):
            rates, memories = self.figures[name]
            memory = [used for used in memories if used is not None]
            return {speed: round(statistics.median(rates)), gib: round(max(memory), 1) if memory else None}

        peers = [name for name in self.figures if name not in plans]
        for name, plan in plans.items():
            for peer in peers or [None]:
                row = of(name, "ours", "gib") | (of(peer, "peer", "peer_gib") if peer else {})
                record_figure.record(file, case=name, measure="tokens/s per GPU", predicted=plan.predicted, peer_is=peer, hardware=hardware, **row)


def named(text):
    name, equals, rest = text.partition("=")
    if not equals or not re.fullmatch(r"[\w.-]+", name):
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=...")
    return name, rest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shardc_run")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--ours", type=named, action="append", required=True)
    parser.add_argument("--peer", type=named, action="append", default=[])
    parser.add_argument("--probe")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--limit", type=float, default=300)
    record_figure.add_argument(parser)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(options)
    plans = {name: Plan(words) for name, words in options.ours}
    probed = bench.probe() if options.probe else None
    for round in range(options.rounds):
        for name, plan in plans.items():
            bench.run_ours(name, plan, round)
        for name, command in options.peer:
            bench.run_peer(name, command, round)
        bench.table(plans, [name for name, _ in options.peer], probed)
    if set(bench.figures) != {*plans, *(name for name, _ in options.peer)}:
        sys.exit("not all of them ran")
    if options.record:
        bench.record(plans, *options.record)


if __name__ == "__main__":
    main()
