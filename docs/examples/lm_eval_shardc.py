"""Lets the language model evaluation harness (lm_eval 0.4) judge models by `shardc score` and `shardc generate`.

    python lm_eval_shardc.py --model shardc --model_args model=checkpoints --tasks arc_easy,hellaswag

Takes the options of `lm_eval`. `model_args`: model (a checkpoint, adapters, or the folder of a Hugging Face model) and,
if wanted, base, tokenizer, backend, python, mixed_precision and program (default: `shardc`), as the commands have them.
"""

import json
import subprocess
import tempfile

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model


@register_model("shardc")
class Shardc(LM):
    def __init__(self, model, program="shardc", max_gen_toks=256, mixed_precision=None, batch_size=None, max_batch_size=None, device=None, **options):
        """`options` are those of the commands. Batches and devices are chosen by shardc."""
        super().__init__()
        unknown = options.keys() - {"base", "tokenizer", "backend", "python"}
        if unknown:
            raise ValueError(f"shardc has no option {', '.join(sorted(unknown))}")
        self.model, self.program, self.max_gen_toks = model, program, int(max_gen_toks)
        self.options = [f"--{name}={value}" for name, value in options.items()]
        self.options += [f"--set=mixed_precision={mixed_precision}"] if mixed_precision else []

    def lines(self, command, rows, *options):
        """What a command prints for rows, in their order."""
        if not rows:
            return []
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
            file.flush()
            words = [file.name] if command == "score" else [f"--prompts={file.name}"]
            done = subprocess.run([self.program, command, self.model, *words, *self.options, *options], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"shardc {command} ended with status {done.returncode}: {done.stderr}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def loglikelihood(self, requests):
        rows = [dict(zip(("context", "continuation"), request.args)) for request in requests]
        return [(line["log_probability"], line["is_likeliest"]) for line in self.lines("score", rows)]

    def loglikelihood_rolling(self, requests):
        return [line["log_probability"] for line in self.lines("score", [{"text": request.args[0]} for request in requests])]

    def generate_until(self, requests):
        """Requests with equal settings go together."""
        groups, texts = {}, [None] * len(requests)
        for number, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(number)
        for settings, numbers in groups.items():
            rows = [{"prompt": requests[number].args[0]} for number in numbers]
            lines = self.lines("generate", rows, *self.generation(json.loads(settings)))
            for number, line in zip(numbers, lines, strict=True):
                texts[number] = line["generated"]
        return texts

    def generation(self, settings):
        """The options for a task's settings of generation."""
        stops = settings.pop("until", None) or []
        options = [f"--stop={stop}" for stop in ([stops] if isinstance(stops, str) else stops) if stop]
        options.append(f"--tokens={settings.pop('max_gen_toks', self.max_gen_toks)}")
        temperature = settings.pop("temperature", 0)
        options.append(f"--temperature={temperature if settings.pop('do_sample', temperature > 0) else 0}")
        for name in ("top_k", "top_p", "min_p", "repetition_penalty"):
            if name in settings:
                options.append(f"--{name.replace('_', '-')}={settings.pop(name)}")
        if settings:
            raise ValueError(f"shardc generate has no settings {', '.join(sorted(settings))}")
        return options


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
