#!/usr/bin/env python3
"""Writes the pictures of docs/.pictures from reports, in headless Chromium.

    pictures.py SHARDC_FOLDER
"""

import pathlib
import subprocess
import sys
import tempfile

import browser

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLAN = ["shardc:llama3/llama3_8b_fsdp_h200.recipe"]
STAGES = [*PLAN, "--set=model.pipeline_model_parallel_size=4", "--set=train.global_batch_size=8", "--set=train.micro_batch_size=1", "--seconds=0"]
# Name, arguments of the report, width of the window, and the first and the last element of the picture.
PICTURES = [
    ("report", PLAN, 1000, "header", "#answers"),
    ("timeline", PLAN, 1000, "#timeline", "#timeline canvas"),
    ("memory", PLAN, 1000, "#memory", "#memory .legend"),
    ("pipeline", STAGES, 1000, "#timeline h3", "#timeline canvas"),
]
MARGIN = 4  # pixels


def main():
    program, shardc = browser.find(), pathlib.Path(sys.argv[1]).resolve() / "shardc"
    if not program:
        sys.exit(f"there is no browser; none of {', '.join(browser.NAMES)} is installed")
    with tempfile.TemporaryDirectory() as folder:
        window = browser.Browser(program, pathlib.Path(folder) / "profile")
        try:
            for name, arguments, width, first, last in PICTURES:
                page = pathlib.Path(folder) / f"{name}.html"
                subprocess.run([shardc, "report", *arguments, "-o", page], check=True, stderr=subprocess.DEVNULL)
                window.open(page, width=width)
                top, bottom = (window.value(f"document.querySelector('{element}').getBoundingClientRect().{side}")
                               for element, side in ((first, "top"), (last, "bottom")))
                top = max(top - MARGIN, 0)
                (ROOT / f"docs/.pictures/{name}.png").write_bytes(window.screenshot(clip=(0, top, width, bottom + MARGIN - top)))
        finally:
            window.close()


if __name__ == "__main__":
    main()
