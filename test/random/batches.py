"""Common parts of the programs that try random recipes: their options, and batches of seeds on several processes."""

import argparse
import collections
import concurrent.futures
import os

COUNT_LONG = 100_000  # with SHARDC_LONG=1


def make_parser(description, count):
    """Options of the command line; `count` is the default number of recipes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("shardc")
    parser.add_argument("--count", type=int, default=COUNT_LONG if os.environ.get("SHARDC_LONG") == "1" else count)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--shown", type=int, default=10, help="findings that are printed")
    return parser


def parse_options(description, count):
    return make_parser(description, count).parse_args()


def show(options, found):
    """Prints findings: the seed, its recipe and a reason."""
    for seed, text, why in found[:options.shown]:
        print(f"seed {seed}:\n{text}{why}\n")


def try_all(options, try_batch, size):
    """The findings and counts of `try_batch(shardc, seeds)` over all seeds, with `size` seeds per call."""
    seeds = range(options.first, options.first + options.count)
    batches = [seeds[i:i + size] for i in range(0, len(seeds), size)]
    found, counts = [], collections.Counter()
    with concurrent.futures.ProcessPoolExecutor(options.jobs) as pool:
        for more, count in pool.map(try_batch, [options.shardc] * len(batches), batches):
            found += more
            counts += count
    return found, counts
