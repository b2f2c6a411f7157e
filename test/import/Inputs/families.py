#!/usr/bin/env python3
"""Imports functions of Megatron-Bridge (067f987d) whose models recipes do not have, read and run, and prints what is said."""

import pathlib
import re
import subprocess
import sys
import tempfile

FUNCTIONS = """
deepseek_v4_flash_pretrain_32gpu_h100_bf16_config
exaone45_vl_33b_sft_16gpu_h100_bf16_config exaone_moe_pretrain_config flux_12b_pretrain_2gpu_h100_bf16_config
gemma3_vl_4b_sft_1gpu_h100_bf16_config gemma4_e4b_pretrain_2gpu_h100_bf16_config gemma4_vl_26b_sft_8gpu_h100_bf16_config
glm52_pretrain_416gpu_h100_bf16_config glm_45v_sft_128gpu_h100_bf16_config kimi_k25_vl_sft_512gpu_h100_bf16_config
minimax_m3_sft_128gpu_h100_bf16_config nemotron_omni_cord_v2_sft_4gpu_h100_bf16_config
nemotron_nano_v2_vl_12b_sft_4gpu_h100_bf16_config nemotron_3_ultra_pretrain_24gpu_h100_bf16_config
qwen2_audio_7b_sft_1gpu_h100_bf16_config qwen25_vl_3b_sft_1gpu_h100_bf16_config
qwen3_omni_30b_a3b_sft_8gpu_h100_bf16_config
qwen3_vl_8b_pretrain_4gpu_h100_bf16_mock_config qwen35_text_9b_pretrain_8gpu_gb200_bf16_config
qwen35_vl_9b_pretrain_4gpu_h100_bf16_mock_config step35_196b_a11b_pretrain_512gpu_h100_bf16_config
step37_sft_64gpu_h100_bf16_flickr8k_config wan_14b_pretrain_8gpu_h100_bf16_config
""".split()


def said(program, *options):
    done = subprocess.run(["shardc", "import", "bridge-python", *options, program], capture_output=True, text=True)
    found = re.search(r"error: .* is for models of (.*), which recipes do not have \[import-malformed\]", done.stderr)
    return found[1] if found and done.returncode == 1 and not done.stdout else f"status {done.returncode}: {done.stderr}"


def main():
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder, "program.py")
        for i, name in enumerate(FUNCTIONS):
            program.write_text(f"from megatron.bridge.recipes import {name}\ncfg = {name}()\ncfg.train.train_iters = 100\n")
            print(f"{name}: {said(program)}")
            if i == 0:
                print(f"run: {said(program, '--run')}")


if __name__ == "__main__":
    sys.exit(main())
