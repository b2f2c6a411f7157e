#!/usr/bin/env python3
"""Tests that check_golden.py accepts the golden values themselves and refuses slightly different ones."""

import contextlib
import io
import json
import pathlib
import struct
import tempfile
import unittest

import check_golden

HERE = pathlib.Path(__file__).resolve().parent
VALUES = HERE / "values" / "llama_tied.json"


class CheckGolden(unittest.TestCase):
    def setUp(self):
        self.golden = json.loads(VALUES.read_text())
        self.metrics = [
            {"step": i + 1, "loss": loss, "grad_norm": norm, "lr": lr}
            for i, (loss, norm, lr) in enumerate(
                zip(self.golden["loss"], self.golden["grad_norm"], self.golden["lr"])
            )
        ]
        self.gradients = check_golden.read_npz(VALUES.with_suffix(".npz"))

    def write_dump(self, folder):
        """self.gradients as two ranks would dump them: shards of one block, padded at its end."""
        flat = [v for _, values in self.gradients.values() for v in values]
        half = (len(flat) + 1) // 2
        flat.append(0.0)
        index = {"params": [], "tensors": []}
        for rank in range(2):
            first, parts, at = rank * half, [], 0
            for name, (_, values) in self.gradients.items():
                begin, end = max(at, first), min(at + len(values), first + half)
                if begin < end:
                    part = {"param": name, "begin": begin - first, "end": end - first}
                    parts.append({**part, "global_begin": begin - at})
                at += len(values)
            file = f"update.0.g.rank{rank}.bin"
            data = struct.pack(f"<{half}f", *flat[first : first + half])
            (folder / file).write_bytes(data)
            entry = {"file": file, "dtype": "f32", "shape": [half], "parts": parts}
            index["tensors"].append(entry)
        for name, (shape, _) in self.gradients.items():
            index["params"].append({"name": name, "dtype": "f32", "shape": shape})
        self.spoil(index)
        (folder / "index.json").write_text(json.dumps(index))

    def spoil(self, index):
        """What a test changes of the dump's index."""

    def check(self):
        """(exit code, text on stderr) for self.metrics and self.gradients."""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            lines = [json.dumps(row) + "\n" for row in self.metrics]
            (folder / "metrics").write_text("".join(lines))
            self.write_dump(folder)
            said, ignored = io.StringIO(), io.StringIO()
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(ignored):
                code = check_golden.compare(VALUES, folder / "metrics", folder, "fp32")
            return code, said.getvalue()

    def refuses(self, text):
        code, said = self.check()
        self.assertEqual(code, 1)
        self.assertIn(text, said)

    def test_accepts_the_values_themselves(self):
        self.assertEqual(self.check(), (0, ""))

    def test_refuses_a_loss_that_is_off(self):
        self.metrics[9]["loss"] *= 1 + 2e-5
        self.refuses("loss of step 10")

    def test_does_not_compare_later_steps(self):
        self.metrics[10]["loss"] *= 2
        self.assertEqual(self.check(), (0, ""))

    def test_refuses_a_loss_that_is_no_number(self):
        self.metrics[3]["loss"] = float("nan")
        self.refuses("loss of step 4")

    def test_refuses_a_norm_that_is_off(self):
        self.metrics[0]["grad_norm"] *= 1 - 2e-5
        self.refuses("grad_norm of step 1")

    def test_refuses_another_learning_rate(self):
        self.metrics[2]["lr"] *= 1.01
        self.refuses("lr of step 3")

    def test_refuses_too_few_steps(self):
        del self.metrics[9:]
        self.refuses("hold 9 steps, 10 are compared")

    def test_refuses_a_missing_step(self):
        del self.metrics[4]
        self.refuses("step 6 follows step 4")

    def test_refuses_one_gradient_that_is_off(self):
        name = "decoder.layers.1.mlp.linear_fc2.weight"
        shape, values = self.gradients[name]
        self.gradients[name] = (shape, [v * (1 + 2e-4) for v in values])
        self.refuses(f"gradient of {name}")

    def test_refuses_a_missing_gradient(self):
        del self.gradients["decoder.final_layernorm.weight"]
        self.refuses("no gradient of 'decoder.final_layernorm.weight'")

    def test_refuses_a_surplus_gradient(self):
        self.gradients["output_layer.weight"] = ([1], [0.0])
        self.refuses("gradient of 'output_layer.weight', which the model does not have")

    def test_refuses_another_shape(self):
        shape, values = self.gradients["embedding.word_embeddings.weight"]
        self.gradients["embedding.word_embeddings.weight"] = (shape[::-1], values)
        self.refuses("has shape [48, 384], not [384, 48]")

    def test_refuses_elements_that_no_rank_has(self):
        self.spoil = lambda index: index["tensors"].pop()
        self.refuses("was not dumped")

    def test_refuses_replicas_that_differ(self):
        def spoil(index):
            replica = json.loads(json.dumps(index["tensors"][1]))
            replica["parts"][-1]["begin"] -= 1
            replica["parts"][-1]["end"] -= 1
            index["tensors"].append(replica)

        self.spoil = spoil
        self.refuses("differs")

    def test_bf16_is_the_upper_half_of_a_float(self):
        self.assertEqual(check_golden.unpack(b"\x80\x3f\x00\xc0", "bf16", ""), (1.0, -2.0))

    def test_bf16_values_have_a_wider_tolerance(self):
        golden = json.loads((HERE / "values" / "llama.json").read_text())
        for key, value in golden["bf16"]["tolerance"].items():
            self.assertGreater(value, golden["tolerance"][key])
            self.assertLess(value, 0.1)


if __name__ == "__main__":
    unittest.main()
