"""The fields that the presets of mixed_precision set, from the reference."""

from recipes import OPTIONS

# Fields that the presets of mixed_precision set (reference, section 1.4).
BF16 = {"bf16": True, "params_dtype": "bf16", "pipeline_dtype": "bf16", "grad_reduce_in_fp32": True,
        "autocast_enabled": False}
PRESETS = {
    "fp32": {"fp32": True, "params_dtype": "fp32", "pipeline_dtype": "fp32"},
    "bf16_mixed": BF16,
    "fp16_mixed": {"fp16": True, "params_dtype": "fp16", "pipeline_dtype": "fp16", "autocast_enabled": False},
    "bf16_with_fp8_delayed_scaling_mixed": {**BF16, "fp8": "hybrid", "fp8_recipe": "delayed", "fp8_param_gather": True,
                                            "fp8_margin": 0, "fp8_amax_history_len": 1024,
                                            "fp8_amax_compute_algo": "max"},
    "bf16_with_mxfp8_mixed": {**BF16, "fp8": "e4m3", "fp8_recipe": "mxfp8", "fp8_param_gather": True,
                              "reuse_grad_buf_for_mxfp8_param_ag": True},
    "bf16_with_fp8_current_scaling_mixed": {**BF16, "fp8": "hybrid", "fp8_recipe": "tensorwise",
                                            "fp8_param_gather": True, "first_last_layers_bf16": True,
                                            "num_layers_at_start_in_bf16": 1, "num_layers_at_end_in_bf16": 1},
    "bf16_with_fp8_subchannel_scaling_mixed": {**BF16, "fp8": "hybrid", "fp8_recipe": "blockwise",
                                               "fp8_param_gather": False},
    "bf16_with_nvfp4_mixed": {**BF16, "fp4": "e2m1", "fp4_recipe": "nvfp4"},
}
# Fields that are copied to options of another name.
RENAMED = {"autocast_dtype": ["model.autocast_dtype"], "autocast_enabled": ["model.enable_autocast"],
           "fp8_param": ["model.fp8_param"], "fp8_param_gather": ["ddp.fp8_param_gather"],
           "fp4_param": ["model.fp4_param"], "fp4_param_gather": ["ddp.fp4_param_gather"], "fp32": []}


def targets(section, field):
    """The options that a field of mixed_precision or comm_overlap is copied to."""
    if section == "mixed_precision" and field in RENAMED:
        return RENAMED[field]
    where = ("model", "optimizer", "ddp") if section == "mixed_precision" else ("model", "ddp", "optimizer")
    found = [f"{part}.{field}" for part in where if f"{part}.{field}" in OPTIONS]
    return found[:1] if section == "comm_overlap" else found
