#!/usr/bin/env python3
"""Walks over all pairs of a form of a section (optimizer, scheduler, peft, preference, mixed_precision, dataset, model) and an
option of that section, in each order of layers: the option in a layer over the form, in the same layer, or below it. The
forms of a model are its families, and what its options need of each other, such as experts or latent attention.

    forms.py SHARDC [--count=N] [--first=SEED] [--jobs=N]

Either the run differs from the one without the option, as alone.py judges it, or an error or a warning names the option. Of what
depends on sizes, ranks, types and weights, a larger run may show it. If the form is in the stronger layer, as in an overlay, a
remark is enough. Recipes that come with shardc choose forms, and those of
users extend them, so an option without effect is one that a user named in vain. Without --count it tries a fixed part of the
pairs, and all of them with SHARDC_LONG=1. Exits with 1 if an option has no effect and no message.
"""

import collections
import os
import random
import sys

from alone import OPTIONS, Bases, beside, check_all, is_named, is_refused, plan_of, recipe_of, run_of, values, values_of_recipe, way_of
from batches import parse_options, try_all
from recipes import write

BATCH, COUNT = 20, 60
KINDS = {"optimizer": "optimizer.optimizer", "scheduler": "scheduler.lr_decay_style", "peft": "peft.scheme",
         "preference": "preference.loss", "mixed_precision": "mixed_precision", "dataset": "dataset.kind", "model": "model"}
# What a form needs beside it, so that it can be tried at all.
NEEDS = {"optimizer.optimizer = muon": ["dist.use_megatron_fsdp = false"], "scheduler.lr_decay_style = WSD": ["scheduler.lr_wsd_decay_iters = 2"],
         "dataset.kind = indexed": ['dataset.data_path = ["tokens"]'], "dataset.kind = synthetic": ["dataset.data_path = none"],
         "preference.loss": ["dataset.kind = synthetic", "dataset.data_path = none"]}
# Values of options that are not executed and follow another option, which the recipe has anyway.
FOLLOWED = [("scheduler.max_steps", "2"), ("dataset.seq_length", "8"), ("model.tensor_parallel_num_weight_shards", "1"),
            ("model.expert_tensor_parallel_num_weight_shards", "1"), ("model.logit_dtype", '"fp32"'), ("model.pipeline_dtype", '"fp32"'),
            ("model.cp_comm_type", '["p2p"]')]
# A larger run. It turns nothing on: an option that belongs to nothing in a form has no effect in it either.
LARGER = ["model.num_layers = 6", "model.seq_length = 4096", "model.vocab_size = 262144", "cluster.gpu = h200", "cluster.gpus_per_node = 4",
          "mixed_precision = bf16_mixed", "model.moe_aux_loss_coeff = [0.01]"]
MODELS = ("gpt", "llama")  # families are sets of defaults; options of the model depend on each other, not on them


def is_choice(need):
    """Whether a need is one of an executed option of the model, and not what a recipe has anyway."""
    path, _, value = need.partition(" = ")
    option = OPTIONS[path.split(" ")[0]]
    return path.startswith("model.") and option.status == "Executed" and value not in ("none", write(option, option.default).strip('"'))


# What executed options of the model need of its other options.
CHOICES = sorted({need for path, option in OPTIONS.items() if path.startswith("model.") and option.status == "Executed"
                  for needs in option.needs for need in needs if is_choice(need)})


def forms():
    """Each form: its section, the settings of a layer, and the number of values that are tried of an option. The one without a
    setting is the section's default."""
    for section, kind in KINDS.items():
        words = MODELS if section == "model" else OPTIONS[kind].words
        for setting in [f"{kind} = {word}" for word in words] + [None] * (section in ("peft", "preference", "mixed_precision")):
            yield section, [] if setting is None else [setting, *NEEDS.get(setting, NEEDS.get(kind, []))], 1 if section == "mixed_precision" else 3
    for choice in CHOICES:
        yield "model", [*beside(OPTIONS[choice.split(" ")[0]]), *way_of(choice)], 1


def pairs():
    found = [(form, f"{path} = {value}", order) for section, form, count in forms() for path, option in sorted(OPTIONS.items())
             if path.startswith(section + ".") and path not in KINDS.values() and not option.seen
             and option.status in ("Executed", "Not executed")[:1 if section == "model" and count == 1 else 2]
             and path not in [setting.split(" = ")[0] for setting in form]
             for value in values(option)[:count] if (path, value) not in FOLLOWED for order in ("above", "same", "below")]
    random.Random(0).shuffle(found)
    return found


PAIRS = pairs()


def ops_of(shardc, settings):
    """The plan without its job, or None if the recipe cannot be compiled."""
    status, text = plan_of(shardc, settings)
    return None if status else "\n".join(line for line in text.splitlines() if not line.startswith("  derived."))


def trains_otherwise(bases, form, setting):
    """Whether the setting changes what is computed here or in a larger run, or the recipe has its value anyway. True if the form
    cannot be compiled."""
    ops, larger = bases.of(ops_of, form), [*form, *LARGER]
    path, _, value = setting.partition(" = ")
    return (ops is None or ops_of(bases.shardc, [*form, setting]) != ops
            or run_of(bases.shardc, [*form, setting]) != bases.of(run_of, form) or OPTIONS[path].unset == value
            or values_of_recipe(bases.shardc, [*form, setting]) == bases.of(values_of_recipe, form)
            or bases.of(ops_of, larger) and ops_of(bases.shardc, [*larger, setting]) not in (None, bases.of(ops_of, larger)))


def layers_of(number, form, setting, order):
    """Two recipes, of which the second, with this number, extends the first."""
    below, above = {"above": (form, [setting]), "same": ([], [*form, setting]), "below": ([setting], form)}[order]
    return (recipe_of(below), recipe_of(above).replace("base.recipe", f"{number - 1}.recipe"))


def try_batch(shardc, seeds):
    found, counts, bases = [], collections.Counter(), Bases(shardc)
    trials = [PAIRS[seed % len(PAIRS)] for seed in seeds]
    texts = [text for i, trial in enumerate(trials) for text in layers_of(2 * i + 1, *trial)]
    for (form, setting, order), messages in zip(trials, check_all(shardc, texts)[1::2]):
        option = OPTIONS[setting.split(" = ")[0]]
        loud = [message for message in messages if message["severity"] != "remark" or order == "below"]
        if is_refused(messages) or is_named(option, loud):
            counts["named"] += 1
        elif trains_otherwise(bases, form, setting):
            counts["in effect"] += 1
        else:
            found.append((option.path, "", f"{setting} changes nothing {order} {form or 'no form'}, and no warning names it"))
    return found, counts


def main():
    options = parse_options("tries options over forms", COUNT)
    if os.environ.get("SHARDC_LONG") == "1" or options.count > len(PAIRS):
        options.count = len(PAIRS)
    found, counts = try_all(options, try_batch, BATCH)
    for _, _, why in found:
        print(why)
    print(f"{options.count} pairs of {len(PAIRS)}: {dict(counts)}, {len(found)} options are ignored")
    sys.exit(1 if found or counts["named"] == 0 else 0)


if __name__ == "__main__":
    main()
