"""Records digests of the bf16 values to which transformers unpacks experts in mxfp4.

usage: hf_mxfp4.py [--record]

test/ckpt/Inputs/mxfp4_model.py makes the data; transformers' own function unpacks them. The digests must be those of
test/ckpt/Inputs/mxfp4.json, with which the test ckpt/hf.test compares what `shardc ckpt import hf` unpacks; `--record` writes that
file. Exits with 77 if torch or transformers is not there.
"""

import hashlib
import json
import pathlib
import sys

from hf_models import VERSIONS, expect, torch, transformers
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

INPUTS = pathlib.Path(__file__).resolve().parents[1] / "ckpt" / "Inputs"
sys.path.insert(0, str(INPUTS))
import mxfp4_model  # noqa: E402


def unpacked():
    tensors = {name: torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(shape)
               for name, (shape, data) in mxfp4_model.packed_tensors().items()}
    digests = {}
    for name in mxfp4_model.PACKED:
        values = convert_moe_packed_tensors(tensors[f"{name}_blocks"], tensors[f"{name}_scales"])
        data = values.contiguous().view(torch.int16).numpy().tobytes()
        digests[name] = {"shape": list(values.shape), "sha256": hashlib.sha256(data).hexdigest()}
    return digests


def main():
    path, found = INPUTS / "mxfp4.json", unpacked()
    if "--record" in sys.argv:
        head = {"made_by": "test/interop/hf_mxfp4.py --record", "torch": torch.__version__, "transformers": transformers.__version__}
        path.write_text(json.dumps({**head, "tensors": found}, indent=1) + "\n")
    recorded = json.loads(path.read_text())["tensors"]
    expect(found == recorded, f"{found}\n{recorded}")
    print(f"{VERSIONS}: {len(found)} tensors are as recorded")


if __name__ == "__main__":
    main()
