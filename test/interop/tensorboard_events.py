#!/usr/bin/env python3
"""Reads a run's events with TensorBoard's own reader, also after a resumption, and from a file that ends in a torn
record.

    tensorboard_events.py SHARDC_FOLDER RECIPE

Ends with 77, skipped, without tensorboard.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

STEPS = 12
NAMES = {"loss": "lm loss", "lr": "learning-rate", "grad_norm": "grad-norm"}


def run(program, recipe, folder, metrics, *settings):
    command = [program, "run", recipe, f"--metrics={metrics}"]
    settings = [f"logger.tensorboard_dir={folder}", f"train.train_iters={STEPS}", "validation.eval_interval=4",
                "validation.eval_iters=1", "logger.log_interval=2", "logger.log_timers_to_tensorboard=true", *settings]
    subprocess.run([*command, *[part for setting in settings for part in ("--set", setting)]], check=True,
                   stdout=subprocess.DEVNULL)
    return [json.loads(line) for line in metrics.read_text().splitlines()]


def texts(folder):
    reader = EventAccumulator(str(folder))
    reader.Reload()
    return {tag: [(event.step, event.tensor_proto.string_val[0].decode()) for event in reader.Tensors(tag)]
            for tag in reader.Tags()["tensors"]
            if reader.SummaryMetadata(tag).plugin_data.plugin_name == "text"}


def scalars(folder):
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    found = {}
    for tag in reader.Tags()["scalars"]:  # of a step that ran twice, the later value
        latest = {event.step: event.value for event in sorted(reader.Scalars(tag), key=lambda event: event.wall_time)}
        found[tag] = sorted(latest.items())
    return found


def expect(condition, text):
    if not condition:
        sys.exit(text)


def is_near(got, wanted):
    return len(got) == len(wanted) and all(
        step == step2 and abs(value - value2) <= 1e-6 * abs(value2) for (step, value), (step2, value2) in zip(got, wanted))


def check_texts(place, program, recipe):
    (place / "words.txt").write_text("ranks send tokens\n" * 200)
    paths = [f'dataset.{part}_data_path=["{place}/words.txt"]' for part in ("train", "valid")]
    records = run(program, recipe, place / "texts", place / "texts.jsonl", "dataset.kind=text", *paths, "model.vocab_size=257",
                  "validation.samples=2", "validation.sample_tokens=5")
    wanted = {}
    for record in records:
        if "sample" in record:
            parts = (("prompt", "prompt"), ("model", "said"), ("data", "data"))
            blocks = "\n\n".join(name + "\n\n    " + record[field].replace("\n", "\n    ") for name, field in parts)
            wanted.setdefault(f"samples/{record['sample']}", []).append((record["step"], blocks + "\n"))
    found = texts(place / "texts")
    expect(len(wanted) == 2 and found == wanted, f"texts {found}, not {wanted}")


def check(place, program, recipe):
    folder = place / "events"
    records = run(program, recipe, folder, place / "whole.jsonl", f"checkpoint.save={place / 'saved'}", "checkpoint.save_interval=6")
    steps = [record for record in records if "loss" in record]
    batch = scalars(folder)["batch-size"][0][1]

    def compare(found, what):
        for field, tag in NAMES.items():
            wanted = [(record["step"], record[field]) for record in steps]
            expect(is_near(found[tag], wanted), f"{what}: {tag}: {found[tag]}, not {wanted}")
            wanted = [(step * batch, value) for step, value in wanted]
            expect(is_near(found[f"{tag} vs samples"], wanted), f"{what}: {tag} vs samples: {found[f'{tag} vs samples']}")
        wanted = [(record["step"], record["eval_loss"]) for record in records if "eval_loss" in record]
        expect(wanted and is_near(found["lm loss validation"], wanted), f"{what}: {found['lm loss validation']}, not {wanted}")
        times = [step for step, _ in found["iteration-time"]]
        expect(times == list(range(2, STEPS + 1, 2)), f"{what}: times of steps {times}")

    compare(scalars(folder), "a whole run")
    check_texts(place, program, recipe)
    # A run that goes on from step 6 writes steps that are there.
    run(program, recipe, folder, place / "rest.jsonl", f"checkpoint.load={place / 'saved'}", "checkpoint.ckpt_step=6")
    expect(len(list(folder.iterdir())) == 2, f"files {list(folder.iterdir())}")
    compare(scalars(folder), "a run that goes on")
    # After a kill, the last record is torn, and all others must be read.
    newest = max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    newest.write_bytes(newest.read_bytes()[:-7])
    found = scalars(folder)
    expect([step for step, _ in found["lm loss"]] == list(range(1, STEPS + 1)), f"torn: {found['lm loss']}")


def main():
    folder, recipe = sys.argv[1:]
    with tempfile.TemporaryDirectory() as place:
        check(pathlib.Path(place), pathlib.Path(folder) / "shardc", recipe)
    print("TensorBoard reads whole runs, runs that go on, and torn files")


if __name__ == "__main__":
    main()
