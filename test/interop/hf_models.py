"""Common parts of the tests with Hugging Face's transformers. A test that imports this module is skipped (77) without
torch or transformers."""

import os
import pathlib
import subprocess
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

# A text model that the library makes only as a part of another one.
AutoModelForCausalLM.register(transformers.Mistral4Config, transformers.Mistral4ForCausalLM, exist_ok=True)
GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "e2e" / "golden"
VERSIONS = f"torch {torch.__version__}, transformers {transformers.__version__}"


def expect(condition, text):
    if not condition:
        sys.exit(text)


def call(*command, cwd=None):
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True)
    expect(done.returncode == 0, f"{command}\nstatus {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def made(kind, settings):
    """A model of this type, randomly initialised by transformers."""
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings)).to(torch.float32)


def loaded(folder, **options):
    """Loads the model as a user does. No weight may be missing or left over."""
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True, **options)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        expect(not info.get(kind), f"{folder}: {kind}: {info.get(kind)}")
    return model
