#!/usr/bin/env python3
"""Tests record_figure.py: the figure of a run beside a peer, a row that is replaced, and figures given by number or by Google Benchmark."""

import json
import pathlib
import subprocess
import sys
import tempfile

RECORD = pathlib.Path(__file__).resolve().parent / "record_figure.py"
PLAN = """shardc.plan 2 placed "small"
// mesh       dp = 2; 2 ranks
// predicted step: 1 s, 1,100 tokens/s per device; communication takes 0 us
"""


def main():
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)

        def record(*words):
            subprocess.run([sys.executable, "-B", RECORD, "page", *words, "--commit=0a1b2c3d", f"--folder={folder}"], check=True)
            return [{name: value for name, value in row.items() if name != "date"} for row in json.loads((folder / "page.json").read_text())]

        (folder / "plan").write_text(PLAN)
        (folder / "metrics").write_text("".join(json.dumps({"step": i, "tokens_per_s": speed}) + "\n" for i, speed in enumerate((1, 2000, 2400, 2200))))
        (folder / "log").write_text("device memory: 2048.0 of 4096.0 MiB in use; 2000 predicted\n")
        (folder / "peer").write_text(json.dumps({"tokens_per_s_gpu": 1000.2, "memory_gib": {"device_used": 3.14}}))
        run = ["--plan", folder / "plan", "--metrics", folder / "metrics", "--log", folder / "log", "--peer", folder / "peer", "--peer-is=P"]
        small = {"case": "small", "measure": "tokens/s per GPU", "ours": 1150, "gib": 2.0, "predicted": 1100, "peer": 1000, "peer_is": "P",
                 "peer_gib": 3.1, "ratio": 1.15, "hardware": "two", "commit": "0a1b2c3d"}
        assert record("small", "two", *run) == [small]
        given = {"case": "given", "measure": "ms", "ours": 4.0, "peer": 5.0, "peer_is": "P", "ratio": 0.8, "hardware": "one", "commit": "0a1b2c3d"}
        assert record("given", "one", "--measure=ms", "--ours=4", "--peer-value=5", "--peer-is=P") == [small, given]
        assert record("small", "two", *run, "--last=1")[0]["ours"] == 1100
        timed = {"name": "8b whole", "cpu_time": 4512.3, "time_unit": "us"}
        (folder / "benchmark").write_text(json.dumps({"benchmarks": [timed, timed | {"name": "8b lower", "cpu_time": 240}, timed | {"name": "9b lower"}]}))
        run = ["--benchmark", folder / "benchmark", "--name=8b whole", "--more=ops=12"]
        whole = {"case": "whole", "measure": "ms", "ours": 4.5, "more": {"lower": "0.2", "ops": "12"}, "hardware": "one", "commit": "0a1b2c3d"}
        assert record("whole", "one", *run)[2] == whole
        page = folder / "page.json"
        page.write_text(page.read_text().replace('"ours": 4.5, ', '"ours": 4.6, "goal": "5 ms", '))
        assert record("whole", "one", *run)[2] == whole | {"goal": "5 ms"}
        neither = subprocess.run([sys.executable, "-B", RECORD, "page", "small", "two"], capture_output=True, text=True, check=False)
        assert neither.returncode == 2 and "a figure comes from --ours" in neither.stderr, neither


if __name__ == "__main__":
    main()
