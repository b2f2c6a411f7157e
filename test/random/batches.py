"""What programs that try random recipes share: their options, and batches of seeds on several processes."""

import argparse
import collections
import concurrent.futures
import os

COUNT_LONG = 100_000  # with SHARDC_LONG=1


def make_parser(description, count):
    """Of the options of the command line; `count` recipes unless it says otherwise."""
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
    """Prints findings of a seed, its recipe and a reason each."""
    for seed, text, why in found[:options.shown]:
        print(f"seed {seed}:\n{text}{why}\n")


def try_all(options, try_batch, size):
    """Findings and counts of `try_batch(shardc, seeds)` over all seeds, `size` of them a call."""
    seeds = range(options.first, options.first + options.count)
    batches = [seeds[i:i + size] for i in range(0, len(seeds), size)]
    found, counts = [], collections.Counter()
    with concurrent.futures.ProcessPoolExecutor(options.jobs) as pool:
        for more, count in pool.map(try_batch, [options.shardc] * len(batches), batches):
            found += more
            counts += count
    return found, counts
