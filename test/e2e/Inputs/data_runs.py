#!/usr/bin/env python3
"""Runs a small recipe with options that say which samples a run takes and evaluates. Only Python is needed.

    data_runs.py CHECK RECIPE [--set path=value ...]

CHECK is the feature to test:
    cyclic      a random order of several passes over short data: other losses, to the bit after a resume, and the same on
                ranks that share one order; where it is not asked for, data that are too short are refused
    evaluation  evaluations with batches of their own evaluate the same samples; training does not change
    whole       an evaluation of all data is that of as many single samples, each time, on any number of ranks
    epochs      passes over the data are as many steps
    lengths     what counts data that are not there, have no end or have changed is refused
"""

from option_runs import Trial, expect, losses, run_check

SEQUENCE = 32
TEXT = "the order of the samples of a run is that of the samplers of Megatron, number by number; "


class Data(Trial):
    def write(self, name, samples):
        """A text of this number of samples: one token more than their inputs, the last of which ends the document."""
        path = self.folder / name
        path.write_text((TEXT * samples)[:samples * SEQUENCE])
        return path

    def train(self, settings):
        steps, evaluated, _ = self.run(settings)
        return losses(steps), [(line["step"], line["eval_loss"]) for line in evaluated]


def texts(*paths):
    return "dataset.blend=[" + ", ".join(f'"{path}"' for path in paths) + "]"


def sets(data, train, valid):
    return ["dataset.kind=text", f'dataset.train_data_path=["{data.write("train.txt", train)}"]',
            f'dataset.valid_data_path=["{data.write("valid.txt", valid)}"]']


def near(a, b):
    return len(a) == len(b) and all(abs(x[1] - y[1]) <= 2e-6 * abs(y[1]) for x, y in zip(a, b))


def check_cyclic(data):
    # A blend without weights has each text once: 20 samples, 5 steps of 4, and 10 steps need 40.
    short = ["dataset.kind=text", texts(data.write("a.txt", 12), data.write("b.txt", 8)), 'dataset.split="1,0,0"',
             "train.train_iters=10", "train.global_batch_size=4", "train.micro_batch_size=2"]
    expect("data-too-short" in data.fails(["shardc", "run", data.runner.recipe, *data.runner.arguments(short)], 3),
           "data that are too short are no error")
    cyclic = [*short, "dataset.dataloader_type=cyclic"]
    whole, _ = data.train(cyclic)
    expect(len(whole) == 10, f"{len(whole)} steps, not 10")
    together, _ = data.train([*cyclic, "dataset.data_sharding=false"])
    expect(together != whole, "ranks that shuffle parts of their own train as those that share an order")
    for last in (3, 7, 10):  # within the first pass, and within the second
        parts = data.saves("c") + [f"checkpoint.load={data.folder / 'c'}"]
        got, _ = data.train([*cyclic, *parts] + ([f"train.exit_interval={last}"] if last < 10 else []))
        expect(got == whole[got[0][0] - 1:last], f"a run in parts differs: {got} of {whole}")
    # Ranks that share an order take the same global batches, whatever their number.
    one, _ = data.train([*cyclic, "dataset.data_sharding=false", "cluster.gpus_per_node=1", "train.micro_batch_size=4"])
    two, _ = data.train([*cyclic, "dataset.data_sharding=false", "train.micro_batch_size=2", "cluster.gpus_per_node=2"])
    expect(near(one[:5], two[:5]), f"{one}\n{two}")
    enough = [*short, texts(data.write("long.txt", 80))]
    single, _ = data.train(enough)
    shuffled, _ = data.train([*enough, "dataset.dataloader_type=cyclic"])
    expect(single != shuffled, "the random order is that of the data")
    made, _ = data.train(["train.train_iters=4", "dataset.dataloader_type=cyclic"])  # of data without an end
    plain, _ = data.train(["train.train_iters=4"])
    expect(made != plain, "the random order of data without an end is that of the data")


def check_evaluation(data):
    base = ["train.train_iters=4", "validation.eval_interval=4", "train.global_batch_size=4", "train.micro_batch_size=1"]
    steps, eight = data.train([*base, "validation.eval_iters=2"])
    same, more = data.train([*base, "validation.eval_iters=1", "validation.eval_global_batch_size=8"])
    expect(steps == same and eight == more, f"{eight}, {more}")
    same, twice = data.train([*base, "validation.eval_iters=2", "validation.eval_global_batch_size=8"])
    expect(steps == same and twice != eight, f"{eight}, {twice}")
    same, wide = data.train([*base, "validation.eval_iters=2", "validation.eval_micro_batch_size=2"])
    expect(steps == same and near(wide, eight), f"{eight}, {wide}")
    # Evaluations go on where the last one ended, also in a run that begins later.
    often = [*base, "validation.eval_interval=2", "validation.eval_iters=1", "validation.eval_global_batch_size=6",
             "cluster.gpus_per_node=1"]
    _, whole = data.train(often)
    parts = data.saves("e") + [f"checkpoint.load={data.folder / 'e'}"]
    _, first = data.train([*often, *parts, "train.exit_interval=2"])
    _, second = data.train([*often, *parts])
    expect(first + second == whole, f"{first}, {second}, {whole}")


def check_whole(data):
    base = [*sets(data, 40, 7), "train.train_iters=4", "validation.eval_interval=2", "optimizer.lr=0", "optimizer.min_lr=0"]
    all_ = []
    for ranks, micro in ((1, 1), (1, 4), (2, 1), (2, 2), (4, 2)):
        full = [*base, "validation.full_validation=true", f"cluster.gpus_per_node={ranks}", "train.global_batch_size=8",
                "train.micro_batch_size=1", f"validation.eval_micro_batch_size={micro}"]
        _, evaluated = data.train(full)
        expect([step for step, _ in evaluated] == [2, 4], f"evaluated {evaluated}")
        expect(evaluated[0][1] == evaluated[1][1], f"other samples the second time: {evaluated}")
        all_.append(evaluated)
    # A run that requests seven samples, one at a time, takes each of the seven that there are.
    alone = [*base, "cluster.gpus_per_node=1", "train.micro_batch_size=1", "train.global_batch_size=1", "train.train_iters=1",
             "validation.skip_train=true"]
    _, single = data.train([*alone, "validation.eval_iters=7"])
    for evaluated in all_:
        expect(near(evaluated[:1], single), f"{evaluated}, not {single}")
    _, some = data.train([*alone, "validation.eval_iters=6"])
    expect(not near(some, single), "a sample less makes no difference")
    _, once = data.train([*alone, "validation.full_validation=true", "validation.eval_iters=0"])
    expect(near(once, single), f"{once}, not {single}")


def check_epochs(data):
    base = [*sets(data, 21, 2), "train.global_batch_size=4", "train.train_iters=none"]
    for epochs, steps in ((1, 6), (0.4, 3), (2.5, 15)):  # 21 samples are 6 steps of 4
        got, _ = data.train([*base, f"train.num_epochs={epochs}"])
        expect(len(got) == steps, f"{epochs} passes are {len(got)} steps, not {steps}")
        same, _ = data.train([*base[:-1], f"train.train_iters={steps}"])
        expect(got == same, f"{got}, not {same}")


def check_lengths(data):
    full = ["validation.full_validation=true", "validation.eval_interval=2"]
    epochs = ["train.num_epochs=1", "train.train_iters=none"]
    data.refused(full, "full-validation-needs-data", "synthetic valid data have no end")
    data.refused(epochs, "epochs-need-steps", "synthetic train data have no end")
    data.refused([*epochs, "dataset.kind=text", texts("nowhere.txt")], "epochs-need-steps", "nowhere.txt")
    plan, valid = data.folder / "job.plan", data.folder / "valid.txt"
    settings = [*sets(data, 40, 7), *full]
    data.runner.call(["shardc", "dump-plan", data.runner.recipe, "-o", plan, *data.runner.arguments(settings)])
    data.runner.call(["shardc", "run", plan])
    data.write(valid.name, 20)
    said = data.fails(["shardc", "run", plan])
    expect("plan-disagrees-with-job" in said and "the 20 samples of" in said, said)


if __name__ == "__main__":
    run_check(globals(), [f"model.seq_length={SEQUENCE}"], Data)
