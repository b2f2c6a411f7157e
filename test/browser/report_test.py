#!/usr/bin/env python3
"""Pages of `shardc report` in headless Chromium: of a plan, of a run, of several plans; light and dark, wide and narrow, by
keyboard and pointer, printed; with names that would be markup.

    report_test.py SHARDC_FOLDER RECIPES [--keep=FOLDER]

`--keep` leaves the pages and a screenshot of each in the folder. Ends with 77, skipped, without a browser.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import browser

PLAN = ["llama3/llama3_8b_fsdp_h200.recipe", "--set", "model.num_layers=4"]
STAGES = [*PLAN, "--set", "model.pipeline_model_parallel_size=2", "--set", "cluster.gpus_per_node=2", "--set",
          "train.global_batch_size=4", "--set", "train.micro_batch_size=1"]
SMALL = """recipe small {
  model llama { num_layers = 2  hidden_size = 64  num_attention_heads = 4  seq_length = 32  vocab_size = 256 }
  cluster { gpu = host  gpus_per_node = 2 }
  dist { use_megatron_fsdp = true }
  train { micro_batch_size = 1  global_batch_size = 4  train_iters = 12 }
  dataset synthetic { }
}
"""
MARKUP = "<img src=x onerror=document.title='owned'>"
TITLES = ["Answers", "Predicted step", "Memory", "Address map", "Stages", "What is sharded where", "What would change",
          "Options"]


def expect(condition, text):
    if not condition:
        sys.exit(text)


class Pages:
    def __init__(self, programs, recipes, folder):
        self.shardc, self.recipes, self.folder = programs / "shardc", recipes, folder

    def command(self, *arguments):
        subprocess.run([self.shardc, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def report(self, name, *arguments):
        page = self.folder / f"{name}.html"
        self.command("report", *arguments, "-o", page)
        return page

    def plan(self, name, arguments):
        return self.report(name, self.recipes / arguments[0], *arguments[1:])

    def run(self):
        recipe = self.folder / f"{MARKUP}.recipe"
        recipe.write_text(SMALL)
        metrics, trace = self.folder / "metrics.jsonl", self.folder / "trace.json"
        self.command("run", recipe, f"--metrics={metrics}", f"--trace={trace}")
        lines = metrics.read_text().splitlines()
        lines.append(json.dumps({"step": 13, "</script><script>document.title='owned'</script>": 1}))
        metrics.write_text("\n".join(lines) + "\n")
        return self.report("run", recipe, f"--metrics={metrics}", f"--trace={trace}")

    def runs(self):
        """Twice the run, the second with a peak of its loss."""
        recipe, metrics, peaked = self.folder / f"{MARKUP}.recipe", self.folder / "metrics.jsonl", self.folder / "peaked.jsonl"
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        lines[5]["loss"] = 300.0
        peaked.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return self.report("runs", recipe, recipe, f"--metrics={metrics}", f"--metrics={peaked}")

    def comparison(self):
        plans = []
        for layers in (2, 4):
            plans.append(self.folder / f"of_{layers}_layers.plan")
            self.command("dump-plan", self.recipes / PLAN[0], "--set", f"model.num_layers={layers}", "-o", plans[-1])
        return self.report("comparison", *plans)


def data_of(page):
    """The page's JSON as a reader of HTML finds it: up to the first end of the element."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.S)[1])


def check_opened(window, page, **how):
    window.errors.clear()
    window.open(page, **how)
    expect(not window.errors, f"{page.name}: errors {window.errors}")
    expect(window.requests == [page.as_uri()], f"{page.name}: it requests {window.requests}")
    expect("owned" not in window.value("document.title"), f"{page.name}: its data ran as a script")
    expect(window.value("document.images.length") == 0, f"{page.name}: its data became elements")
    wide, inner = window.value("document.documentElement.scrollWidth"), window.value("innerWidth")
    expect(wide <= inner, f"{page.name}: it is {wide} wide in a window of {inner}")


def titles(window):
    return window.value("[...document.querySelectorAll('h2')].map(x => x.textContent)")


def check_text(window, page):
    text = window.value("document.body.innerText")
    for plan in data_of(page)["plans"][:1]:
        for answer in plan["answers"]:
            for line in answer["lines"]:
                expect(line in text, f"{page.name}: no '{line}'")
        for row in plan["memory"]["purposes"]:
            expect(row["purpose"] in text, f"{page.name}: no purpose '{row['purpose']}'")


def check_tables(window, page):
    """No table hides a part of its last row; the answers have tokens/s; matrices of an MLP have names of their own."""
    cut = window.value("[...document.querySelectorAll('.scroll')].filter(x => x.scrollHeight > x.clientHeight + 1).map(x => x.ariaLabel)")
    expect(not cut, f"{page.name}: rows of {cut} are cut")
    cells = window.value("[...document.querySelectorAll('#answers td')].map(x => x.textContent)")
    expect("tokens/s of each device" in cells and "this plan" in cells, f"{page.name}: the answers have {cells}")
    memory = data_of(page)["plans"][0]["memory"]  # the bar ends where the figure says
    end = window.value("[...document.querySelectorAll('#memory .bar span')].reduce((all, part) => all + parseFloat(part.style.width), 0)")
    expect(abs(end - 100 * memory["needed"] / memory["device"]) < .1, f"{page.name}: the bar of the memory ends at {end} %")
    names = window.value("[...document.querySelectorAll('#sharding td')].map(x => x.textContent)")
    expect(all(f"decoder.layers.*.mlp.linear_fc{i}.weight" in names for i in (1, 2)), f"{page.name}: parameters {names}")


def check_screenshot(window, page, is_dark):
    rows = browser.pixels(window.screenshot())
    counts = {}
    for row in rows:
        for colour in row:
            counts[colour] = counts.get(colour, 0) + 1
    ground = max(counts, key=counts.get)
    expect(sum(ground) < 150 if is_dark else sum(ground) > 700, f"{page.name}: the ground is {ground}")
    drawn = 1 - counts[ground] / (len(rows) * len(rows[0]))
    expect(0.02 < drawn, f"{page.name}: {100 * drawn:.1f} % of the picture are not ground")


def colours_of_canvas(window, section):
    return window.value(f"""(() => {{
      const canvas = document.querySelector('#{section} canvas');
      const bytes = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data, colours = new Set();
      for (let i = 0; i < bytes.length; i += 4) if (bytes[i + 3] === 255) colours.add(bytes[i] << 16 | bytes[i + 1] << 8 | bytes[i + 2]);
      return colours.size;
    }})()""")


def check_keyboard(window, page):
    """Tab reaches the timeline; n tells of its first block; plus draws it larger."""
    for _ in range(60):
        window.press("Tab", 9)
        if window.value("document.activeElement.tagName") == "CANVAS":
            break
    expect(window.value("document.activeElement.tagName") == "CANVAS", f"{page.name}: Tab reaches no canvas")
    said = "document.activeElement.parentElement.querySelector('.said').textContent"
    expect(window.value(said) == "", f"{page.name}: it speaks before a key is pressed")
    window.press("n")
    expect(" s" in window.value(said), f"{page.name}: n says '{window.value(said)}'")
    before = window.value("document.activeElement.toDataURL()")
    window.press("+")
    expect(window.value("document.activeElement.toDataURL()") != before, f"{page.name}: plus changes nothing")


def check_pointer(window, page):
    """Under the pointer are names and bytes of the address map."""
    window.value("document.querySelector('#map canvas').scrollIntoView({block: 'center', behavior: 'instant'})")
    box = window.value("(() => { const b = document.querySelector('#map canvas').getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; })()")
    names = set(data_of(page)["plans"][0]["map"]["names"])
    found = set()
    for part in range(1, 10):
        window.move_to(box[0] + box[2] * (0.1 + 0.09 * part), box[1] + box[3] * 0.3)
        text = window.value("document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent")
        if match := re.match(r"(.*): .* \([\d,]+ bytes\)\n", text):
            found.add(match[1])
    expect(found and found <= names, f"{page.name}: under the pointer are {sorted(found)}")


def check_printed(window, page):
    """On paper no label ends outside of its block or its chart."""
    window.call("Emulation.setDeviceMetricsOverride", width=718, height=1000, deviceScaleFactor=1, mobile=False)
    window.call("Emulation.setEmulatedMedia", media="print")
    cut, labels = window.value("""(() => {
      const kind = CanvasRenderingContext2D.prototype, own = {}, cut = [], clips = [];
      let labels = 0;
      const watch = (name, before) => { own[name] = kind[name]; kind[name] = function (...a) { before(this, ...a); return own[name].apply(this, a); }; };
      watch('save', context => clips.push(context.clipped));
      watch('restore', context => { context.clipped = clips.pop(); });
      watch('rect', (context, x, y, wide) => { context.clipped = x + wide; });
      watch('fillText', (context, text, x) => {
        const end = x + context.measureText(text).width, room = Math.min(context.canvas.clientWidth, context.clipped ?? 1e9);
        ++labels;
        if (text && end > room + .5) cut.push(`'${text}' ends at ${end} of ${room}`);
      });
      dispatchEvent(new Event('beforeprint'));
      Object.assign(kind, own);
      return [cut, labels];
    })()""")
    expect(labels > 10, f"{page.name}: {labels} labels are printed")
    expect(not cut, f"{page.name}: labels are cut: {cut}")
    printed = window.pdf()
    expect(printed[:5] == b"%PDF-" and len(printed) > 20000, f"{page.name}: {len(printed)} bytes are printed")
    window.call("Emulation.setEmulatedMedia", media="")


def check_plan(window, page):
    check_opened(window, page)
    expect(titles(window) == TITLES, f"{page.name}: sections {titles(window)}")
    check_text(window, page)
    check_tables(window, page)
    check_screenshot(window, page, is_dark=False)
    for section in ("timeline", "map"):
        expect(colours_of_canvas(window, section) > 5, f"{page.name}: nothing is drawn in {section}")
    check_keyboard(window, page)
    check_pointer(window, page)
    check_printed(window, page)
    check_opened(window, page, is_dark=True)
    check_screenshot(window, page, is_dark=True)
    check_opened(window, page, width=390, height=844)


def check_curves(window, page, section):
    """Keys and the pointer zoom all curves of a section, and the slider smooths them."""
    points = f"[...document.querySelectorAll('#{section} polyline')].map(x => x.getAttribute('points').trim().split(' ').length)"
    whole = window.value(points)
    window.value(f"document.querySelector('#{section} svg').focus()")
    window.press("+")
    zoomed = window.value(points)
    expect(len(zoomed) == len(whole) and all(a < b or b == 1 for a, b in zip(zoomed, whole)), f"{page.name}: + shows {zoomed} of {whole} points")
    window.press("0")
    expect(window.value(points) == whole, f"{page.name}: 0 does not show all points")
    window.value(f"document.querySelector('#{section} svg').scrollIntoView({{block: 'center', behavior: 'instant'}})")
    box = window.value(f"(() => {{ const b = document.querySelector('#{section} svg').getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; }})()")
    for part, event in (0.4, "mousePressed"), (0.6, "mouseMoved"), (0.8, "mouseReleased"):
        window.call("Input.dispatchMouseEvent", type=event, x=box[0] + box[2] * part, y=box[1] + box[3] / 2, button="left", clickCount=1)
    expect(all(a < b or b == 1 for a, b in zip(window.value(points), whole)), f"{page.name}: dragging over steps shows {window.value(points)} of {whole} points")
    window.value(f"document.querySelector('#{section} .tools button').click()")
    window.value(f"(() => {{ const s = document.querySelector('#{section} input[type=range]'); s.value = .9; s.dispatchEvent(new Event('input')); }})()")
    expect(len(window.value(points)) == 2 * len(whole), f"{page.name}: smoothing draws no second line")


def check_run(window, page):
    check_opened(window, page)
    expect("Run" in titles(window), f"{page.name}: sections {titles(window)}")
    captions = window.value("[...document.querySelectorAll('figcaption')].map(x => x.textContent)")
    names = [caption.split(":")[0] for caption in captions[:3]]
    expect(names == ["Loss", "Gradient norm", "Tokens/s of all ranks"], f"{page.name}: charts {captions}")
    loss = window.value("document.querySelector('#run polyline').getAttribute('points').trim().split(' ').length")
    expect(loss == 12, f"{page.name}: {loss} points of the loss")
    expect(colours_of_canvas(window, "run") > 5, f"{page.name}: nothing is drawn of the trace")
    check_text(window, page)
    check_curves(window, page, "run")
    check_printed(window, page)


def check_runs(window, page):
    """Two runs over each other: every chart has a line of each, and all are of one size. A peak makes the axis logarithmic."""
    check_opened(window, page)
    sizes = window.value("[...document.querySelectorAll('#comparison figure')].map(x => [x.clientWidth, x.querySelectorAll('polyline').length])")
    expect(len(sizes) == 3 and len({tuple(size) for size in sizes}) == 1 and sizes[0][1] == 2, f"{page.name}: charts {sizes}")
    loss = window.value("document.querySelector('#comparison figcaption').textContent")
    expect(loss.startswith("Loss (logarithmic): "), f"{page.name}: a peak of the loss is drawn as '{loss}'")
    check_curves(window, page, "comparison")


def check_comparison(window, page):
    check_opened(window, page)
    expect(titles(window)[0] == "Side by side", f"{page.name}: sections {titles(window)}")
    heads = window.value("[...document.querySelectorAll('#comparison th')].map(x => x.textContent)")
    expect(heads[:3] == ["", "of_2_layers", "of_4_layers"], f"{page.name}: columns {heads}")
    text = window.value("document.querySelector('#comparison').innerText")
    expect("model.num_layers" in text, f"{page.name}: the setting that differs is missing")
    window.value("(() => { const s = document.getElementById('which'); s.value = 1; s.dispatchEvent(new Event('change')); })()")
    answer = data_of(page)["plans"][1]["answers"][0]["lines"][0]
    expect(answer in window.value("document.body.innerText"), f"{page.name}: the second plan is not shown")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("recipes", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path)
    options = parser.parse_args()
    program = browser.find()
    if not program:
        print(f"skipped: no browser; none of {', '.join(browser.NAMES)} is installed, and CHROMIUM is not set")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        pages = Pages(options.programs, options.recipes, options.keep or pathlib.Path(folder))
        pages.folder.mkdir(parents=True, exist_ok=True)
        checks = [(pages.plan("plan", PLAN), check_plan), (pages.plan("stages", STAGES), check_plan), (pages.run(), check_run),
                  (pages.runs(), check_runs), (pages.comparison(), check_comparison)]
        window = browser.Browser(program, pathlib.Path(folder) / "profile")
        try:
            for page, check in checks:
                check(window, page)
                if options.keep:
                    (options.keep / f"{page.stem}.png").write_bytes(window.screenshot(is_whole=True))
        finally:
            window.close()
    print(f"{len(checks)} pages")


if __name__ == "__main__":
    main()
