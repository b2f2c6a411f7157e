"""Runs Megatron-Core on the processor: loads, trains and saves a small GPT as its own training program does.

usage: megatron_worker.py resume IN OUT STEPS TOKENS
       megatron_worker.py again IN OUT RANKS TOKENS
       megatron_worker.py train LIKE OUT STEPS TOKENS

resume loads the torch_dist checkpoint IN with the default strictness, saves what it then holds as OUT and
trains STEPS steps. again does so without training, on RANKS processes that divide the experts. train makes the model that the arguments in checkpoint LIKE describe with weights of its
own, trains STEPS steps, saves OUT and trains as many again. TOKENS is a JSON list: the one sample that every
batch holds, each token's label being the next one, the last one's the first. Prints a line of JSON: the
version and the losses of the steps, each before its update.

Megatron-Core allocates some buffers on GPUs; here they are in ordinary memory. The distributed optimizer uses an Adam
of Transformer Engine's form, as on GPUs: over torch's own Adam, 0.16.1 cannot load a fully reshardable state, not even
its own. Nothing else of it is changed.
"""

import argparse
import contextlib
import copy
import json
import multiprocessing
import os
import pathlib
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # it saves in forked processes, which OpenMP's threads do not survive

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode


class OnProcessor(TorchFunctionMode):
    """Allocates GPU memory on the processor instead, and reports types as if it were on a GPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if isinstance(kwargs.get("device"), int) or str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if func is torch.Tensor.cuda:
            return args[0]
        result = func(*args, **kwargs)
        if func is torch.Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.", 1)
        return result


def without_gpu():
    from megatron.core.transformer.moe import moe_utils
    moe_utils.te_general_gemm = None  # this name does not exist without Transformer Engine
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.current_stream = torch.cuda.default_stream = lambda *_: None
    torch.cuda.synchronize = lambda *_: None
    from megatron.core.tensor_parallel import random
    random.get_cuda_rng_tracker().fork = lambda *_, **__: contextlib.nullcontext()
    return OnProcessor()


def local_of(tensor):
    return getattr(tensor, "_local_tensor", tensor)


class FusedAdam(torch.optim.Optimizer):
    """Adam with decoupled decay whose parameter groups count updates, as in Transformer Engine's on GPUs."""

    def __init__(self, params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, **_):
        super().__init__(params, dict(lr=lr, bias_correction=bias_correction, betas=betas, eps=eps,
                                      weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            step = group["step"] = group.get("step", 0) + 1
            first, second = group["betas"]
            for param in group["params"]:
                state = self.state[param]
                if not state:  # also for a shard without elements
                    state.update(exp_avg=torch.zeros_like(param), exp_avg_sq=torch.zeros_like(param))
                if param.grad is None:
                    continue
                value, grad, mean, square = (local_of(t) for t in (param, param.grad, *state.values()))
                mean.lerp_(grad, 1 - first)
                square.mul_(second).addcmul_(grad, grad, value=1 - second)
                value.mul_(1 - group["lr"] * group["weight_decay"])
                spread = (square / (1 - second**step)).sqrt_().add_(group["eps"])
                value.addcdiv_(mean, spread, value=-group["lr"] / (1 - first**step))


def with_fused_adam():
    import megatron.core.optimizer
    from megatron.core.optimizer import distrib_optimizer
    megatron.core.optimizer.Adam = distrib_optimizer.Adam = FusedAdam
    megatron.core.optimizer.USING_PYTORCH_OPTIMIZER = False
    distrib_optimizer.HAVE_APEX_OR_TE = distrib_optimizer.USING_TE_OPTIMIZER = True  # it then counts updates


def expert_settings(args):
    """The configuration of experts, from a checkpoint's arguments."""
    from megatron.core import parallel_state
    if not getattr(args, "num_experts", None):
        return {}
    names = ("moe_router_topk", "moe_ffn_hidden_size", "moe_layer_freq", "moe_router_load_balancing_type", "moe_aux_loss_coeff",
             "moe_router_pre_softmax", "moe_router_score_function")
    return dict({name: getattr(args, name) for name in names if hasattr(args, name)}, num_moe_experts=args.num_experts, moe_grouped_gemm=False,
                moe_token_dispatcher_type="allgather",
                expert_model_parallel_size=parallel_state.get_expert_model_parallel_world_size())


def spec_of(args, config):
    """Layers without Transformer Engine's modules, with the tensor names that these would have."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec
    if not config.num_moe_experts:
        return get_gpt_layer_local_spec(normalization=args.normalization)
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=args.normalization)
    pattern = config.moe_layer_freq
    for number, layer in enumerate(spec.layer_specs):
        if pattern[number] if isinstance(pattern, list) else number % pattern == 0:  # with experts
            layer.submodules = copy.copy(layer.submodules)
            layer.submodules.sharded_state_dict_keys_map = {"input_layernorm.": "self_attention.linear_qkv.layer_norm_"}
    return spec


def bare_model_of(args):
    """The model that a checkpoint's arguments describe, and its configuration."""
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.module import Float16Module
    from megatron.core.transformer.transformer_config import TransformerConfig

    dtype = torch.bfloat16 if args.bf16 else torch.float32
    config = TransformerConfig(
        num_layers=args.num_layers, hidden_size=args.hidden_size, num_attention_heads=args.num_attention_heads,
        num_query_groups=args.num_query_groups, ffn_hidden_size=args.ffn_hidden_size, kv_channels=args.kv_channels,
        normalization=args.normalization, layernorm_epsilon=args.layernorm_epsilon, gated_linear_unit=args.swiglu,
        activation_func=torch.nn.functional.silu if args.swiglu else torch.nn.functional.gelu,
        add_bias_linear=args.add_bias_linear, bf16=args.bf16, params_dtype=dtype, attention_dropout=0, hidden_dropout=0,
        use_cpu_initialization=True, bias_activation_fusion=False, masked_softmax_fusion=False,
        persist_layer_norm=False, gradient_accumulation_fusion=False, **expert_settings(args))
    learned = args.add_position_embedding
    model = GPTModel(config, spec_of(args, config),
                     vocab_size=args.padded_vocab_size, max_sequence_length=args.seq_length,
                     position_embedding_type="learned_absolute" if learned else "rope", rotary_base=args.rotary_base,
                     share_embeddings_and_output_weights=args.share_embeddings_and_output_weights)
    return config, Float16Module(config, model) if args.bf16 else model


def settings_of_muon(args):
    """The configuration of Muon, from a checkpoint's arguments."""
    names = ("muon_momentum", "muon_nesterov", "muon_num_ns_steps", "muon_coefficient_type", "muon_scale_mode",
             "muon_extra_scale_factor", "muon_fp32_matmul_prec", "muon_tp_mode")
    return {name: getattr(args, name) for name in names} if args.optimizer == "muon" else {}


def optimizer_of(args, model):
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer=args.optimizer, **settings_of_muon(args), lr=args.lr, min_lr=args.min_lr, weight_decay=args.weight_decay,
                        adam_beta1=args.adam_beta1, adam_beta2=args.adam_beta2, adam_eps=args.adam_eps,
                        clip_grad=args.clip_grad, bf16=args.bf16,
                        params_dtype=torch.bfloat16 if args.bf16 else torch.float32,
                        use_distributed_optimizer=args.use_distributed_optimizer), [model])
    for group in optimizer.param_groups:  # as its scheduler does
        group["lr"] = args.lr
        group["weight_decay"] = args.weight_decay * group["wd_mult"]
    return optimizer


def model_of(args):
    """The model that a checkpoint's arguments describe, wrapped for training, and its optimizer."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

    if args.use_distributed_optimizer:
        with_fused_adam()
    config, model = bare_model_of(args)
    model = DistributedDataParallel(
        config, DistributedDataParallelConfig(use_distributed_optimizer=args.use_distributed_optimizer,
                                              grad_reduce_in_fp32=True), model)
    return model, optimizer_of(args, model)


def core_of(model):
    inner = model.module
    return inner.module if type(inner).__name__ == "Float16Module" else inner


def train(model, optimizer, tokens, steps):
    """The losses of some steps, each before its update."""
    ids = torch.tensor([tokens])
    labels = torch.roll(ids, -1, dims=1)
    positions = torch.arange(ids.shape[1])[None]
    mask = torch.triu(torch.ones(1, 1, ids.shape[1], ids.shape[1]), 1).bool()
    losses = []
    for _ in range(steps):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        loss = model(ids, positions, mask, labels=labels).float().mean()
        loss.backward()
        model.finish_grad_sync()
        optimizer.step()
        losses.append(loss.item())
    return losses


def state_of(args, iteration, model, optimizer, metadata, **loading):
    state = {"args": args, "checkpoint_version": 3.0, "iteration": iteration,
             "model": core_of(model).sharded_state_dict(metadata=metadata)}
    if optimizer is not None:
        state["optimizer"] = optimizer.sharded_state_dict(state, metadata=metadata, **loading)
    return state


def fill_state(model, optimizer):
    """Updates without gradients. Before an update, Megatron-Core over torch's own Adam has no state to load into."""
    for param in model.parameters():
        param.main_grad.zero_()
        if hasattr(param, "grad_dtype"):  # newer torch refuses gradients of another type unless told otherwise
            param.grad_dtype = None
        param.grad = torch.zeros_like(param, dtype=torch.float32)
    optimizer.step()


def load(folder):
    """The arguments, the iteration, and the model and optimizer with the checkpoint's contents."""
    from megatron.core import dist_checkpointing
    common = dist_checkpointing.load_common_state_dict(folder)
    args, metadata = common["args"], dict(common["content_metadata"])
    model, optimizer = model_of(args)
    if args.use_distributed_optimizer or args.optimizer == "muon" or getattr(args, "num_experts", None):
        fill_state(model, optimizer)
    metadata_of_run = with_group(metadata)
    asked = state_of(args, common["iteration"], model, None if getattr(args, "no_save_optim", False) else optimizer, metadata_of_run,
                     is_loading=True)
    state = dist_checkpointing.load(asked, folder)
    core_of(model).load_state_dict(state["model"], strict=True)
    if not getattr(args, "no_save_optim", False):
        optimizer.load_state_dict(state["optimizer"])
    return args, state["iteration"], metadata, model, optimizer


def with_group(metadata):
    from megatron.core import parallel_state
    return {**metadata, "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}


def save(folder, args, iteration, metadata, model, optimizer):
    from megatron.core import dist_checkpointing
    place = pathlib.Path(folder) / f"iter_{iteration:07}"
    if dist.get_rank() == 0:
        place.mkdir(parents=True)
    dist.barrier()
    state = state_of(args, iteration, model, optimizer, with_group(metadata))
    dist_checkpointing.save(state, str(place), content_metadata=metadata)
    (place.parent / "latest_checkpointed_iteration.txt").write_text(str(iteration))


def resume(source, target, steps, tokens):
    args, iteration, metadata, model, optimizer = load(source)
    if not getattr(args, "no_save_optim", False):
        save(target, args, iteration, metadata, model, optimizer)
    return train(model, optimizer, tokens, steps)


def again(source, target, *_):
    args, iteration, metadata, model, optimizer = load(source)
    save(target, args, iteration, metadata, model, optimizer)
    return []


def begin(like, target, steps, tokens):
    from megatron.core import dist_checkpointing
    args = copy.deepcopy(dist_checkpointing.load_common_state_dict(like)["args"])
    torch.manual_seed(args.seed)
    model, optimizer = model_of(args)
    metadata = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}
    if args.use_distributed_optimizer:
        metadata["distrib_optim_sharding_type"] = "fully_reshardable"
    losses = train(model, optimizer, tokens, steps)
    args.iteration, args.consumed_train_samples = steps, steps * args.global_batch_size
    save(target, args, steps, metadata, model, optimizer)
    return losses + train(model, optimizer, tokens, steps)


def run(rank, ranks, store, command, source, target, steps, tokens):
    import megatron.core
    from megatron.core import parallel_state
    from megatron.core.safe_globals import register_safe_globals
    register_safe_globals()
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
    with without_gpu():
        dist.init_process_group("gloo", init_method=f"file://{store}/store", rank=rank, world_size=ranks)
        parallel_state.initialize_model_parallel(1, 1, expert_model_parallel_size=ranks)
        work = {"resume": resume, "again": again, "train": begin}[command]
        losses = work(source, target, int(steps), json.loads(tokens))
        if rank == 0:
            print(json.dumps({"version": megatron.core.__version__, "torch": torch.__version__, "losses": losses}), flush=True)
        dist.destroy_process_group()


def main():
    ranks = int(sys.argv[4]) if sys.argv[1] == "again" else 1
    with tempfile.TemporaryDirectory() as store:
        if ranks == 1:
            return run(0, 1, store, *sys.argv[1:])
        started = [multiprocessing.get_context("spawn").Process(target=run, args=(rank, ranks, store, *sys.argv[1:]))
                   for rank in range(ranks)]
        for process in started:
            process.start()
        for process in started:
            process.join()
        sys.exit(max(abs(process.exitcode) for process in started))


if __name__ == "__main__":
    main()
