#!/usr/bin/env python3
"""Plans beside their specifications. With SHARDC_LONG=1 all of them, else a few.

    specification.py equal      the plans of the debug recipes, divided in many ways, are equal to their specifications
    specification.py recipes    the same of all recipes of the repository; those that differ, and how
    specification.py carried    debug recipes, each with changes of what is trained, divided in many ways: a file with the plan is read,
                                verified and proved, has the same text when it is printed again, and runs for a step (60 of them unless SHARDC_LONG=1; SEED=n)
    specification.py mutations  changes of what plans mean: what specification and verifier accept trains the same
    specification.py operations each op of a specification matters: a plan differs from one that lacks it
    specification.py mutants    the 181 wrong plans of mutants.tsv differ: plan, kind, a text of the plan and what stands in its place

MUTATIONS=n changes of each kind of each plan, SEED=n, ONLY=WORD: of plans whose name has the word. The programs shardc, shardc-opt and
plan-meaning are found on PATH, files go to TMPDIR, and JOBS=n programs run at once.
"""

import collections
import concurrent.futures
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import proof  # noqa: E402

RECIPES = proof.DEBUG.parent
LONG = os.environ.get("SHARDC_LONG") == "1"
JOBS = int(os.environ.get("JOBS", os.cpu_count()))
ONLY = os.environ.get("ONLY", "")


def ranks(count, *settings):
    return [f"cluster.gpus_per_node={count}", *settings]


TENSOR, ROWS = "model.tensor_model_parallel_size=2", "model.sequence_parallel=true"
CONTEXT, STAGES = "model.context_parallel_size=2", "model.pipeline_model_parallel_size=2"
EXPERTS = "model.expert_model_parallel_size=2"
WAYS = {
    "one": ranks(1), "dp2": ranks(2), "bf16": ranks(2, "model.bf16=true"), "tp2": ranks(2, TENSOR), "tp2sp": ranks(2, TENSOR, ROWS),
    "cp2a2a": ranks(2, CONTEXT, "model.cp_comm_type=[a2a]"), "cp2p2p": ranks(2, CONTEXT, "model.cp_comm_type=[p2p]"),
    "cp2ag": ranks(2, CONTEXT, "model.cp_comm_type=[all_gather]"), "pp2": ranks(2, STAGES),
    "tp2pp2dp2": ranks(8, TENSOR, STAGES, ROWS), "tp2cp2": ranks(4, TENSOR, CONTEXT, ROWS),
    "full": ranks(1, *proof.FULL), "distopt": ranks(2, "ddp.use_distributed_optimizer=true"),
}
EXPERT_WAYS = {
    "ep2": ranks(2, EXPERTS), "tp2ep2": ranks(4, TENSOR, ROWS, EXPERTS, "model.expert_tensor_parallel_size=1"),
    "etp2": ranks(2, TENSOR, ROWS, "model.expert_tensor_parallel_size=2"),
}
OF_EXPERTS = ["mixtral", "moe", "experts", "glm45", "llama4"]
SHORT = ["llama_tiny.tp2cp2", "llama_tiny_fsdp.bf16", "llama_tiny_fsdp.pp2", "mixtral_tiny.tp2ep2", "gpt_oss_tiny.cp2p2p",
         "latent_tiny.cp2a2a"]

# What no plan of those has, each by itself: settings of the model, unless they name another part of the recipe.
OTHERS = {
    "evaluation-of-chunks": ("gpt2_tiny", 4, "num_layers=4 pipeline_model_parallel_size=2 virtual_pipeline_model_parallel_size=2 "
                             "train.global_batch_size=4 train.micro_batch_size=1 validation.eval_interval=1 validation.eval_iters=1"),
    "evaluation-in-8-bits": ("llama_tiny", 1, "hidden_dropout=0.1 validation.eval_interval=1 validation.eval_iters=1 "
                             "mixed_precision=bf16_mixed mixed_precision.fp8=hybrid"),
    "sums-that-are-kept": ("llama_tiny", 2, "mtp_num_layers=1 pipeline_model_parallel_size=2 pipeline_schedule=zero_bubble "
                           "share_embeddings_and_output_weights=true train.global_batch_size=4 train.micro_batch_size=1"),
    "passes-that-overlap": ("mixtral_tiny", 4, "num_layers=8 pipeline_model_parallel_size=2 virtual_pipeline_model_parallel_size=2 "
                            "pipeline_schedule=dual_pipe_v expert_model_parallel_size=2 train.global_batch_size=14 train.micro_batch_size=1"),
    "stages-without-amaxes": ("llama_tiny", 4, "num_layers=4 pipeline_model_parallel_size=4 mixed_precision=bf16_mixed "
                              "mixed_precision.fp8=hybrid mixed_precision.first_last_layers_bf16=true"),
    "products-in-fp32": ("mixtral_tiny", 1, "add_bias_linear=true moe_router_dtype=fp32 mixed_precision=bf16_mixed"),
    "weights-in-another-type": ("llama_tiny", 1, "fp16=true mixed_precision.params_dtype=bf16"),
    "average-over-slices": ("llama_tiny", 4, "context_parallel_size=2 ddp.average_in_collective=true"),
    "slices-of-predictions": ("llama_tiny", 2, "context_parallel_size=2 mtp_num_layers=1"),
    "slices-of-tokens": ("llama_tiny", 2, "context_parallel_size=2 calculate_per_token_loss=true"),
    "slices-of-rows-of-tables": ("gpt2_tiny", 2, "context_parallel_size=2 dist.use_megatron_fsdp=true mixed_precision=fp16_mixed "
                                 "position_embedding_type=rope"),
    "heads-by-two-groups": ("llama_tiny", 4, "tensor_model_parallel_size=2 num_query_groups=4 context_parallel_size=2 cp_comm_type=[a2a] "
                            "attention_dropout=0.1"),
    "slices-of-slices": ("llama_tiny", 8, "tensor_model_parallel_size=2 num_query_groups=4 context_parallel_size=4 "
                         'cp_comm_type=["a2a+p2p"] hierarchical_context_parallel_sizes=[2,2]'),
    "tensors-along-two-axes": ("mixtral_tiny", 4, "tensor_model_parallel_size=4 num_query_groups=4 sequence_parallel=true "
                               "expert_model_parallel_size=2 expert_tensor_parallel_size=1"),
    "ring-along-two-axes": ("mixtral_tiny", 4, "context_parallel_size=4 expert_model_parallel_size=2 cp_comm_type=[p2p]"),
    "heads-along-two-axes": ("mixtral_tiny", 4, "num_query_groups=4 context_parallel_size=4 expert_model_parallel_size=2 "
                             "cp_comm_type=[a2a]"),
    "keys-along-two-axes": ("mixtral_tiny", 4, "context_parallel_size=4 expert_model_parallel_size=2 cp_comm_type=[all_gather]"),
    "rows-of-two-samples": ("llama_tiny", 4, "tensor_model_parallel_size=4 num_query_groups=4 sequence_parallel=true hidden_dropout=0.1"),
    "pieces-of-positions": ("llama_tiny", 2, "tensor_model_parallel_size=2 sequence_parallel=true tp_comm_overlap=true "
                            "tp_comm_overlap_pieces=2 position_embedding_type=learned_absolute"),
    "pieces-of-unequal-size": ("llama_tiny", 2, "tensor_model_parallel_size=2 loss_chunk_rows=24"),
    "dropout-of-shared-heads": ("llama_tiny", 8, "tensor_model_parallel_size=4 num_query_groups=2 context_parallel_size=2 "
                                "attention_dropout=0.1"),
    "short-slices-of-predictions": ("llama_tiny", 4, "context_parallel_size=4 mtp_num_layers=1 seq_length=24 train.micro_batch_size=1"),
    "loads-in-8-bits": ("mixtral_tiny", 1, "moe_router_score_function=sigmoid moe_router_enable_expert_bias=true "
                        "mixed_precision=bf16_mixed mixed_precision.fp8=hybrid"),
    "squares-of-copies": ("llama_tiny_fsdp", 4, "tensor_model_parallel_size=2"),
    "two-loads": ("mixtral_tiny", 1, "moe_aux_loss_coeff=[0.1] num_moe_experts=2"),
    "loads-of-all-samples": ("mixtral_tiny", 2, "moe_router_load_balancing_type=[global_aux_loss] moe_aux_loss_coeff=[0.1]"),
    "sums-of-experts": ("mixtral_tiny", 8, "add_bias_linear=true tensor_model_parallel_size=2 sequence_parallel=true "
                        "ddp.num_distributed_optimizer_instances=2 expert_model_parallel_size=4 train.global_batch_size=32"),
    "sums-per-token": ("llama_tiny", 2, "ddp.average_in_collective=true calculate_per_token_loss=true"),
    "evaluations-of-one-sample": ("llama_tiny", 2, "validation.eval_micro_batch_size=1 validation.eval_interval=1 "
                                  "validation.eval_iters=1"),
    "shares-of-norms": ("glm4_tiny", 4, "qk_layernorm=true tensor_model_parallel_size=4"),
    "averages-of-experts": ("mixtral_tiny", 4, "expert_tensor_parallel_size=2 add_bias_linear=true ddp.average_in_collective=true"),
    "experts-of-all-samples": ("mixtral_tiny", 4, "expert_tensor_parallel_size=2"),
}


def of_model(setting):
    return setting if re.match(r"\w+\.|mixed_precision=", setting) else f"model.{setting}"


def divided():
    for path in sorted(proof.DEBUG.glob("*.recipe")):
        ways = {**WAYS, **(EXPERT_WAYS if any(word in path.stem for word in OF_EXPERTS) else {})}
        for way, settings in ways.items():
            if LONG or ONLY or f"{path.stem}.{way}" in SHORT:
                yield f"{path.stem}.{way}", path, [], settings
    for name, (recipe, count, settings) in OTHERS.items():
        yield name, proof.DEBUG / f"{recipe}.recipe", [], ranks(count, *map(of_model, settings.split()))


def published():
    for path in sorted(RECIPES.glob("**/*.recipe")):
        name = str(path.relative_to(RECIPES))[:-len(".recipe")].replace("/", ".")
        if not name.startswith(("debug.", "overlays.")) and (LONG or ONLY or name == "llama3.llama3_8b_fsdp"):
            yield name, path, [], []


def small():
    """The plans of proof.py, which run in no time."""
    overlay = ["--overlay", HERE / "small_llama.recipe"]
    every = [*proof.variants(), *proof.families()]
    for name, recipe, settings in every if LONG or ONLY else [each for each in every if each[0] in MUTATED]:
        yield name, proof.DEBUG / f"{recipe}.recipe", overlay, settings


MUTATED = ["optim_grads_params-3", "tensor-rows", "context-ring", "stages-3", "experts-fsdp"]


def write(folder, plan):
    """A plan and its specification; nothing of settings that do not go together."""
    name, recipe, options, settings = plan
    files = folder / f"{name}.spec", folder / f"{name}.plan"
    for path, more in zip(files, (["--specification"], [])):
        done = subprocess.run(["shardc", "dump-plan", recipe, *options, *(f"--set={each}" for each in settings), *more, "-o", path],
                              capture_output=True, text=True)
        if done.returncode != 0:
            return None
    return files


def compare(folder, plan):
    files = write(folder, plan)
    if not files:
        return plan[0], None
    done = subprocess.run(["shardc-opt", "--specification", *files], capture_output=True, text=True)
    for path in files:
        path.unlink()
    lines = [line for line in done.stderr.splitlines() if not line.startswith("remark")]
    return plan[0], "" if done.returncode == 0 else "\n".join(lines[:4]) or f"status {done.returncode}"


def equal(folder, plans):
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        found = [each for each in pool.map(lambda plan: compare(folder, plan), plans) if each[1] is not None]
    differ = [(name, why) for name, why in found if why]
    reasons = collections.Counter(re.sub(r"\d+", "N", why.partition("\n")[0]) for _, why in differ)
    for reason, count in reasons.most_common():
        print(count, reason)
    for name, why in differ:
        print(f"{name}: {why}")
    print(f"{len(found) - len(differ)} of {len(found)} plans are equal to their specifications")
    return not differ


LORA = ["peft.scheme=lora", "peft.rank=16"]
FP8 = ["mixed_precision=bf16_mixed", "mixed_precision.fp8=hybrid"]
WIDE = ["model.hidden_size=256", "model.ffn_hidden_size=512", "model.kv_channels=128"]  # for blocks of 8 and 4 bits
CHANGES = {
    "none": [], "lora": LORA, "canonical": ["peft.scheme=canonical_lora", "peft.rank=2"], "dora": ["peft.scheme=dora", "peft.rank=4"],
    "parts": [*LORA, 'peft.targets=["q_proj", "v_proj", "up_proj", "down_proj"]', "peft.dropout=0.1"],
    "lora-saved": [*LORA, 'peft.modules_to_save=["norm", "lm_head"]', "model.share_embeddings_and_output_weights=false"],
    "qlora": [*LORA, *WIDE, "peft.quantize=nf4"], "qlora-nested": [*LORA, *WIDE, "peft.quantize=nf4_double"],
    "lora-fp8": [*LORA, *FP8, "peft.quantize=fp8"], "dora-fp8": ["peft.scheme=dora", "peft.rank=16", *FP8, "peft.quantize=fp8"],
    "lora-blocks": [*LORA, *FP8, *WIDE, "mixed_precision.fp8_recipe=blockwise"],
    "delayed": [*FP8, "mixed_precision.fp8_amax_history_len=3"], "tensorwise": [*FP8, "mixed_precision.fp8_recipe=tensorwise"],
    "blockwise": [*FP8, *WIDE, "mixed_precision.fp8_recipe=blockwise"], "mxfp8": [*FP8, *WIDE, "mixed_precision.fp8_recipe=mxfp8"],
    "fp16": proof.FP16, "muon": ["optimizer.optimizer=muon"], "lion": ["optimizer.optimizer=lion"],
    "frozen": ['model.freeze=["layers.0", "embedding"]', "model.share_embeddings_and_output_weights=false"],
    "frozen-norms": ['model.freeze=["norm"]', "ddp.keep_frozen=if_fits", "cluster.memory=1GiB"],
    "eval": [*proof.EVAL, *proof.SAVE], "recompute": proof.FULL, "modules": ["model.recompute_granularity=selective",
                                                                             'model.recompute_modules=["core_attn", "layernorm", "mlp"]'],
    "further": ["model.mtp_num_layers=1"], "dropout": ["model.hidden_dropout=0.1", "model.attention_dropout=0.1"],
    "pairs": ["preference.loss=sigmoid"], "lora-pairs": [*LORA, "preference.loss=sigmoid"], "remainders": [
        "mixed_precision=bf16_mixed", "optimizer.use_precision_aware_optimizer=true", "optimizer.store_param_remainders=true"],
}
FSDP = proof.STRATEGIES["optim_grads_params"]
PIECES = [TENSOR, ROWS, "model.tp_comm_overlap=true", "model.hidden_dropout=0.0"]
CARRIED_WAYS = {
    **WAYS, "fsdp4": ranks(4, *FSDP), "grads2": ranks(2, *proof.STRATEGIES["optim_grads"]), "fsdp-tp2": ranks(4, *FSDP, TENSOR, ROWS),
    "hsdp": ranks(4, *FSDP, "ddp.num_distributed_optimizer_instances=2"), "distopt-tp4": ranks(4, "ddp.use_distributed_optimizer=true",
                                                                                              "model.tensor_model_parallel_size=4"),
    "hfsdp": ranks(4, *FSDP, "ddp.num_distributed_optimizer_instances=2", "ddp.outer_dp_sharding_strategy=optim"),
    "torch": ranks(2, *proof.TORCH_FSDP2, "model.share_embeddings_and_output_weights=false"),
    "pieces2": ranks(2, *PIECES, "model.tp_comm_overlap_pieces=2"), "pieces4": ranks(4, *PIECES, *FSDP, "model.tp_comm_overlap_pieces=4"),
    "pieces8": ranks(2, *PIECES, "model.tp_comm_overlap_pieces=8"), "fsdp-cp2": ranks(4, *FSDP, CONTEXT, "model.cp_comm_type=[a2a]"),
    "zero-bubble": ranks(4, STAGES, "model.pipeline_schedule=zero_bubble", "ddp.use_distributed_optimizer=true"),
    "interleaved": ranks(2, STAGES, "model.num_layers=4", "model.virtual_pipeline_model_parallel_size=2"), **EXPERT_WAYS,
}


def carried(folder):
    """Every plan that is written can be read back, and runs."""
    cases = [(f"{path.stem}.{change}.{way}", path, [*CHANGES[change], *CARRIED_WAYS[way]])
             for path in sorted(proof.DEBUG.glob("*.recipe")) if path.stem != "fsdp_smoke"  # of a GPU's size
             for change in CHANGES for way in CARRIED_WAYS]
    cases = [case for case in cases if ONLY in case[0]]
    if not LONG and not ONLY:
        cases = random.Random(int(os.environ.get("SEED", "1"))).sample(cases, 60)
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        found = [each for each in pool.map(lambda case: carry(folder, *case), cases) if each[1] is not None]
    for name, why in found:
        if why:
            print(f"{name}: {why}")
    print(f"{len(found)} of {len(cases)} plans are written, {sum(1 for _, why in found if why)} of them cannot be used")
    return all(not why for _, why in found) and len(found) > len(cases) // 4


def carry(folder, name, recipe, settings):
    """Why a plan cannot be used; nothing if it can, and None if a rule refuses the recipe."""
    own = folder / name
    own.mkdir()
    settings = [*settings, "train.train_iters=1", "train.train_samples=none", "checkpoint.load=none", "cluster.nodes=1", "cluster.gpu=host",
                "dataset.kind=synthetic"]
    dump = subprocess.run(["shardc", "dump-plan", recipe, *(f"--set={each}" for each in settings), "-o", "a.plan"], cwd=own,
                          capture_output=True, text=True)
    try:
        if dump.returncode != 0:
            of_rule = dump.returncode == 1 and "plan-refused" not in dump.stderr and "internal error" not in dump.stderr
            return name, None if of_rule else dump.stderr[-600:] or f"status {dump.returncode}"
        for command in (["shardc-opt", "--verify", "a.plan", "-o", "b.plan"], ["shardc-run", "a.plan"]):
            done = subprocess.run(command, cwd=own, capture_output=True, text=True)
            if done.returncode != 0:
                return name, f"{command[0]}: status {done.returncode} {done.stderr[-600:]}"
        first, second = ([line for line in (own / file).read_text().splitlines() if not line.startswith("//")]
                         for file in ("a.plan", "b.plan"))
        return name, "" if first == second else next(f"`{b}` instead of `{a}`" for a, b in zip([*first, ""], [*second, ""]) if a != b)
    finally:
        shutil.rmtree(own)


def mutations(folder):
    files = []
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        for each in pool.map(lambda plan: write(folder, plan), [plan for plan in small() if ONLY in plan[0]]):
            if each and subprocess.run(["shardc-opt", "--specification", *each], capture_output=True).returncode == 0:
                files += each
    command = ["plan-meaning", "--mutations", os.environ.get("MUTATIONS", "40" if LONG else "2"), "--seed", proof.SEED, *files]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    print(done.stdout[-6000:], done.stderr, f"{len(files) // 2} plans")
    return done.returncode == 0


def without(text, line):
    """The specification with an op's result taken from its first operand of the same type, if it has one."""
    made = re.match(r"\s+(%\S+) = \S+ ((?:%[^\s,{}]+(?:, )?)+)", line)
    kind = re.search(r" : (\w+\[[\d,]+\])", line)
    if not made or not kind:
        return None
    for operand in re.findall(r"%[^\s,]+", made[2]):
        defined = re.search(rf"^\s+(?:%\S+, )*{re.escape(operand)}(?:, %\S+)* = .* : (.*)$", text, re.MULTILINE)
        if defined and defined[1].startswith(kind[1]) and f" {made[1]}" in text.partition(line)[2]:
            head, _, tail = text.partition(line)
            return head + line + re.sub(rf"{re.escape(made[1])}(?=[\s,])", operand, tail)
    return None


def operations(folder):
    """Each op of the specification that can be left out."""
    name, recipe, settings = next(plan for plan in proof.variants() if plan[0] == "tensor-rows")
    files = write(folder, (name, proof.DEBUG / f"{recipe}.recipe", ["--overlay", HERE / "small_llama.recipe"], settings))
    text = re.sub(r" hash [0-9a-f]+", "", files[0].read_text())
    lines = [line for line in text.splitlines(True) if re.match(r"\s+%\S+(, %\S+)* = [a-z_]+ %", line)]
    mutants = [mutant for mutant in (without(text, line) for line in lines) if mutant]
    accepted = []
    for mutant in mutants if LONG else mutants[::6]:
        files[0].write_text(mutant)
        if subprocess.run(["shardc-opt", "--specification", *files], capture_output=True).returncode == 0:
            accepted.append(mutant)
    print(f"{len(mutants)} ops left out, {len(accepted)} of them accepted")
    return not accepted


MUTANTS = {
    "dp2": ("llama_tiny", WAYS["dp2"]), "fsdp2": ("llama_tiny_fsdp", ranks(2)), "tp2sp": ("llama_tiny", WAYS["tp2sp"]),
    "cp2a2a": ("llama_tiny", WAYS["cp2a2a"]), "cp2p2p": ("llama_tiny", WAYS["cp2p2p"]), "pp2": ("llama_tiny", WAYS["pp2"]),
    "distopt2": ("llama_tiny_distopt", ranks(2)), "fsdp2tp2sp": ("llama_tiny_fsdp", ranks(4, TENSOR, ROWS)),
    "ep2": ("mixtral_tiny", EXPERT_WAYS["ep2"]), "hfsdp": ("llama_tiny_hfsdp", []),
}


def mutants(folder):
    lines = [line.split("\t") for line in (HERE / "mutants.tsv").read_text().splitlines()]
    plans = [(name, proof.DEBUG / f"{recipe}.recipe", [], settings) for name, (recipe, settings) in MUTANTS.items()]
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        files = dict(zip(MUTANTS, pool.map(lambda plan: write(folder, plan), plans)))
    accepted = []
    for name, (specification, plan) in files.items():
        text, written = re.sub(r" hash [0-9a-f]+", "", plan.read_text(), count=1), []
        for i, (_, kind, old, new) in enumerate(lines):
            if lines[i][0] == name:
                if old not in text:
                    sys.exit(f"{name} has no text `{old}`")
                written.append(folder / f"{i + 1}.{kind.replace(' ', '-')}.plan")
                written[-1].write_text(text.replace(old, new, 1))
        done = subprocess.run(["plan-meaning", "--refused", specification, *written], capture_output=True, text=True)
        accepted += done.stdout.splitlines() + done.stderr.splitlines()
        if done.returncode != 0 and not accepted:
            accepted.append(f"status {done.returncode}")
    print(*accepted, f"{len(lines)} mutants, {len(accepted)} of them accepted", sep="\n")
    return not accepted


def main():
    checks = {"equal": lambda folder: equal(folder, [plan for plan in divided() if ONLY in plan[0]]),
              "recipes": lambda folder: equal(folder, [plan for plan in published() if ONLY in plan[0]]),
              "carried": carried, "mutations": mutations, "mutants": mutants, "operations": operations}
    if len(sys.argv) != 2 or sys.argv[1] not in checks:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(0 if checks[sys.argv[1]](pathlib.Path(folder)) else 1)


if __name__ == "__main__":
    main()
