#!/usr/bin/env python3
"""Measures NCCL's collectives by kind, size and number of GPUs of one host: the source of
compiler/predict/LinkTable.def.

    collective_rates.py [--gpus 2 4] [--mib 0.25 1 4 16 64 256 1024] [--kinds all_gather shift ...] [--rows]

For each number of GPUs, the script starts one process per GPU. It captures ten calls of a collective in one CUDA graph
and replays the graph. It prints the median time of one call in microseconds, and the GB/s that a rank receives. MiB are
those of the whole bf16 tensor. A rank receives (n - 1) / n of it in an all-gather, a reduce-scatter or an all-to-all,
twice as much in an all-reduce, and all of it in a shift. Sums are in bf16. --rows prints rows of LinkTable.def instead.
Needs PyTorch.
"""

import argparse
import os
import statistics
import subprocess
import sys

REPEATS, REPLAYS = 10, 12
# What a rank takes in of a whole value, with n ranks.
TAKEN = {"all_gather": lambda n: (n - 1) / n, "reduce_scatter": lambda n: (n - 1) / n, "all_reduce": lambda n: 2 * (n - 1) / n,
         "all_reduce_max": lambda n: 2 * (n - 1) / n, "all_to_all": lambda n: (n - 1) / n, "shift": lambda n: 1}


def worker(sizes, wanted, rows):
    import torch
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))

    def shift(whole, other):
        """Each rank sends its value to the next rank."""
        pair = [dist.P2POp(dist.isend, whole, (rank + 1) % world), dist.P2POp(dist.irecv, other, (rank - 1) % world)]
        for work in dist.batch_isend_irecv(pair):
            work.wait()

    kinds = {"all_gather": lambda whole, part, other: dist.all_gather_into_tensor(whole, part),
             "reduce_scatter": lambda whole, part, other: dist.reduce_scatter_tensor(part, whole),
             "all_reduce": lambda whole, part, other: dist.all_reduce(whole),
             "all_reduce_max": lambda whole, part, other: dist.all_reduce(whole, dist.ReduceOp.MAX),
             "all_to_all": lambda whole, part, other: dist.all_to_all_single(other, whole),
             "shift": lambda whole, part, other: shift(whole, other)}
    for kind in wanted:
        call = kinds[kind]
        for mib in sizes:
            count = int(mib * 2**20) // 2 // world * world
            whole = torch.randn(count, device="cuda", dtype=torch.bfloat16)
            part = torch.randn(count // world, device="cuda", dtype=torch.bfloat16)
            other = torch.empty_like(whole)
            call(whole, part, other)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(REPEATS):
                    call(whole, part, other)
            times = []
            for _ in range(REPLAYS):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                dist.barrier()
                begin.record()
                graph.replay()
                end.record()
                torch.cuda.synchronize()
                times.append(begin.elapsed_time(end) * 1e3 / REPEATS)
            us = statistics.median(times[2:])
            taken = count * 2 * TAKEN[kind](world)
            if rank == 0 and rows:
                name = "".join(word.capitalize() for word in kind.split("_"))
                print(f"TIME({name}, Nccl, {world}, {mib:g}, {us:.1f})", flush=True)
            elif rank == 0:
                print(f"{world} {kind:15} {mib:8g} MiB {us:10.1f} us {taken / us / 1e3:8.1f} GB/s", flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--mib", type=float, nargs="+", default=[0.25, 1, 4, 16, 64, 256, 1024])
    parser.add_argument("--kinds", choices=TAKEN, nargs="+", default=list(TAKEN))
    parser.add_argument("--rows", action="store_true")
    options = parser.parse_args()
    if "RANK" in os.environ:
        return worker(options.mib, options.kinds, options.rows)
    arguments = ["--mib", *(str(mib) for mib in options.mib), "--kinds", *options.kinds, *["--rows"] * options.rows]
    for gpus in options.gpus:
        shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517", "WORLD_SIZE": str(gpus)}
        ranks = [subprocess.Popen([sys.executable, __file__, *arguments], env={**shared, "RANK": str(rank)})
                 for rank in range(gpus)]
        if any([rank.wait() for rank in ranks]):
            sys.exit(f"{gpus} GPUs: a rank failed")


if __name__ == "__main__":
    main()
