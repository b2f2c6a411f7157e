#!/usr/bin/env python3
"""Runs with options of upstream that change what a run evaluates, compares or writes. Only Python is needed.

    upstream_option_runs.py CHECK RECIPE [--set path=value ...]

CHECK is the feature to test:
    sets       multiple_validation_sets evaluates each path with the loss that it has alone; test_data_path is evaluated once,
               at the end; the steps stay the same
    documents  inter_document_masking gives the losses of resets behind the token that ends documents; without such a token
               it still separates them
    replicas   check_weight_hash_across_dp_replicas_interval finds a changed byte, and nothing else
    copies     also_save_hf_checkpoint writes what `shardc ckpt export hf` makes of the save
"""

import filecmp
import json
import os
import random
import subprocess

from option_runs import Trial, expect, read_lines, run_check

EVALUATES = ["validation.eval_interval=4", "validation.eval_iters=2", "train.train_iters=6", "scheduler.lr_decay_style=constant"]


def texts(trial):
    """Files of random words, each with words of its own."""
    paths = {}
    for name in ("train", "one", "two", "last"):
        draw = random.Random(name)
        words = ["".join(draw.choices("abcdefgh" if name == "one" else "nopqrstuv", k=5)) for _ in range(40)]
        path = trial.folder / f"{name}.txt"
        path.write_text(" ".join(draw.choices(words, k=1500)), encoding="utf-8")
        paths[name] = str(path)
    return paths


def lines_of(trial, settings):
    """The lines of metrics, and the output with its warnings."""
    metrics = trial.folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    command = ["shardc", "run", trial.runner.recipe, f"--metrics={metrics}", *trial.runner.arguments(settings)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    expect(done.returncode == 0, f"{' '.join(map(str, command))}\nstatus {done.returncode}\n{said}")
    return read_lines(metrics), said


def check_sets(trial):
    paths = texts(trial)
    base = [*EVALUATES, "dataset.kind=text", f'dataset.train_data_path=["{paths["train"]}"]']
    alone = {}
    for name in ("one", "two"):
        lines, _ = lines_of(trial, [*base, f'dataset.valid_data_path=["{paths[name]}"]'])
        alone[name] = [line["eval_loss"] for line in lines if "eval_loss" in line]
        steps = [line["loss"] for line in lines if "loss" in line]
    both = [*base, f'dataset.valid_data_path=["{paths["one"]}", "{paths["two"]}"]', "validation.multiple_validation_sets=true"]
    for names in (["0", "1"], ["first", "second"]):
        named = [] if names == ["0", "1"] else [f"validation.validation_set_names={json.dumps(names)}"]
        lines, said = lines_of(trial, [*both, *named])
        found = [(line["set"], line["eval_loss"]) for line in lines if "eval_loss" in line]
        expect(found == [(names[0], alone["one"][0]), (names[1], alone["two"][0])], f"{found}, not {alone}")
        expect([line["loss"] for line in lines if "loss" in line] == steps, "evaluations change the steps")
        expect(f"evaluation after step 4 of '{names[1]}'" in said, said)
    # The test data, as validation data are evaluated after the last step.
    at_end = [setting.replace("eval_interval=4", "eval_interval=6") for setting in base]
    lines, _ = lines_of(trial, [*at_end, f'dataset.valid_data_path=["{paths["last"]}"]'])
    wanted = [line["eval_loss"] for line in lines if "eval_loss" in line]
    lines, said = lines_of(trial, [*both, f'dataset.test_data_path=["{paths["last"]}"]'])
    tests = [(line["step"], line["test_loss"]) for line in lines if "test_loss" in line]
    expect(tests == [(6, wanted[0])], f"{tests}, not {wanted}")
    expect("test after step 6" in said and len([line for line in lines if "eval_loss" in line]) == 2, said)
    stopped, _ = lines_of(trial, [*both, f'dataset.test_data_path=["{paths["last"]}"]', "train.exit_interval=5"])
    expect(not any("test_loss" in line for line in stopped), "a run that is not done has tested")


def check_documents(trial):
    draw = random.Random(0)
    source = trial.folder / "source.jsonl"
    source.write_text("".join(json.dumps({"text": "".join(draw.choices("abcdefgh ", k=draw.randint(1, 40)))}) + "\n"
                              for _ in range(400)), encoding="utf-8")
    prefix = trial.folder / "corpus"
    trial.runner.call(["shardc", "data", "build", str(source), str(prefix), "--tokenizer=bytes"])
    base = ["train.train_iters=4", "dataset.kind=indexed", f'dataset.data_path=["{prefix}"]', "dataset.tokenizer=none"]

    def losses(*settings):
        lines, _ = lines_of(trial, [*base, *settings])
        return [line["loss"] for line in lines]

    masked = losses("dataset.inter_document_masking=true")
    reset = losses("dataset.eod_token=256", "dataset.reset_attention_mask=true", "dataset.reset_position_ids=true")
    expect(masked == reset, f"{masked}, not {reset}")
    expect(masked != losses(), "documents are not separated")


def check_replicas(trial):
    compares = ["train.check_weight_hash_across_dp_replicas_interval=2", "train.train_iters=4"]
    whole, _ = lines_of(trial, ["train.train_iters=4"])
    lines, _ = lines_of(trial, compares)
    expect([line["loss"] for line in lines] == [line["loss"] for line in whole], "comparisons change the steps")
    for processes in ([], ["--processes=2"]):
        done = subprocess.run(["shardc", "run", trial.runner.recipe, *processes, *trial.runner.arguments(compares)], text=True,
                              env={**os.environ, "SHARDC_FAULT": "corrupt-weights@1:2"}, capture_output=True, check=False)
        said = done.stdout + done.stderr
        expect(done.returncode == 3, f"status {done.returncode}\n{said}")
        expect("step 2: the weights '" in said and "of ranks 0 and 1 differ" in said and "[replicas-differ]" in said, said)


def same_files(one, other):
    names = sorted(path.name for path in one.iterdir())
    expect(names == sorted(path.name for path in other.iterdir()), f"{names} and {sorted(other.iterdir())}")
    for name in names:
        expect(filecmp.cmp(one / name, other / name, shallow=False), f"{name} differs")


def check_copies(trial):
    saves = [*trial.saves("saved"), "checkpoint.save_interval=2", "train.train_iters=4", "checkpoint.also_save_hf_checkpoint=true"]
    for more in ([], ["checkpoint.async_save=true", "checkpoint.overwrite=true"]):
        lines_of(trial, [*saves, *more])
        for step in (2, 4):
            folder = trial.folder / "saved" / f"iter_{step:07}"
            exported = trial.folder / f"exported{step}{len(more)}"
            trial.runner.call(["shardc", "ckpt", "export", "hf", str(folder), str(exported)])
            same_files(folder / "hf", exported)
        trial.runner.call(["shardc", "ckpt", "verify", str(folder)])
        rest, said = lines_of(trial, [f"checkpoint.load={trial.folder / 'saved'}", "train.train_iters=6"])
        expect([line["step"] for line in rest] == [5, 6], said)
    _, said = lines_of(trial, [*trial.saves("other"), "train.train_iters=2", "checkpoint.also_save_hf_checkpoint=true",
                               "model.softmax_type=learnable"])
    expect("the Hugging Face copy of step 2 is not written" in said and "[hf-copy-not-written]" in said, said)
    expect(trial.saved("other") == [2], f"saved {trial.saved('other')}")
    trial.refused([*saves, "checkpoint.hf_source_path=no-such-model"], "is 'no-such-model', which is not a folder of a model")


if __name__ == "__main__":
    run_check(globals(), [], Trial)
