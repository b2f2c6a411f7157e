// Draws the page's data. Texts in the data may come from untrusted recipes and files, so they are inserted only as text
// nodes, never as HTML.
"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const byId = id => document.getElementById(id);

// --- elements, numbers, colours ---------------------------------------------------------------
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {}))
    if (value !== undefined && value !== null && value !== false)
      name.startsWith("on") ? node.addEventListener(name.slice(2), value) : node.setAttribute(name, value);
  for (const child of children.flat())
    if (child !== undefined && child !== null)
      node.append(child instanceof Node ? child : String(child));
  return node;
}
function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {}))
    node.setAttribute(name, value);
  node.append(...children);
  return node;
}
const colour = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const sum = list => list.reduce((a, b) => a + b, 0);
function number(value, digits = 4) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e3) return Math.round(value).toLocaleString("en");
  if (size < 1e-3) return value.toExponential(2).replace(/[.]?0+e/, "e");
  return String(Number(value.toPrecision(digits)));
}
function seconds(value) {
  if (value === 0) return "0 s";
  const size = Math.abs(value);
  if (size >= 0.9995) return number(value) + " s";
  if (size >= 0.9995e-3) return number(value * 1e3) + " ms";
  return number(value * 1e6, 3) + " us";
}
function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) { value /= 1024; ++unit; }
  return (unit === 0 ? value : value.toFixed(1)) + " " + units[unit];
}
const percent = (part, whole) => whole > 0 ? (100 * part / whole).toFixed(1) + " %" : "0.0 %";
const count = value => Math.round(value).toLocaleString("en");
const plural = (n, word) => count(n) + " " + word + (n === 1 ? "" : "s");

// --- pieces of the page -----------------------------------------------------------------------
/// A table with columns of the form {name, get, number, code, show}. A click on a heading sorts the rows.
function table(columns, rows, caption) {
  const body = el("tbody");
  const cellOf = (column, row) => {
    const value = column.get(row);
    const text = column.show && value !== null && value !== undefined ? column.show(value, row) : value === null || value === undefined ? "-" : value;
    const classes = [column.number ? "n" : "", column.code ? "code" : "", column.of || "", column.bad && column.bad(row) ? "bad" : ""];
    return el("td", {class: classes.filter(Boolean).join(" ") || null}, text);
  };
  const fill = list => body.replaceChildren(...list.map(row => el("tr", {}, columns.map(c => cellOf(c, row)))));
  fill(rows);
  let sorted = null, isUp = false;
  const heads = columns.map(column => {
    const head = el("th", {scope: "col", class: column.number ? "n" : null}, column.name);
    if (column.number && rows.length > 1) {
      head.tabIndex = 0;
      head.style.cursor = "pointer";
      head.title = "sort";
      const sort = () => {
        isUp = sorted === column ? !isUp : false;
        sorted = column;
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", isUp ? "ascending" : "descending");
        fill([...rows].sort((a, b) => ((column.get(a) ?? -1) - (column.get(b) ?? -1)) * (isUp ? 1 : -1)));
      };
      head.addEventListener("click", sort);
      head.addEventListener("keydown", event => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); } });
    }
    return head;
  });
  const wrap = el("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": caption},
                  el("table", {}, columns.some(c => c.name) ? el("thead", {}, el("tr", {}, heads)) : null, body),
                  rows.length > 30 ? el("button", {type: "button", onclick: event => { wrap.classList.add("all"); event.target.remove(); }}, `all ${rows.length} rows`) : null);
  wrap.refill = list => { rows = list; fill(list); };
  return wrap;
}
const legend = items => el("div", {class: "legend"}, items.map(([name, variable]) =>
  el("span", {}, el("i", {style: `background:var(--${variable})`}), name)));
/// A stacked bar of total length `whole`. A part is [name, size, CSS variable of its colour].
function bar(parts, whole, show) {
  return el("div", {class: "bar", role: "img", "aria-label": parts.map(p => `${p[0]} ${show(p[1])}`).join(", ")},
    parts.filter(p => p[1] > 0).map(([name, size, variable]) =>
      el("span", {style: `width:${100 * size / whole}%;background:var(--${variable})`, title: `${name}: ${show(size)} (${percent(size, whole)})`})));
}
const tip = byId("tip");
function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 8)) + "px";
  tip.style.top = (y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 10) : y + 18) + "px";
}
const hideTip = () => { tip.hidden = true; };

// --- canvases ---------------------------------------------------------------------------------
const canvases = [];
/// A canvas whose view can be zoomed and moved. Members of `chart`: x and y (the full ranges; y grows downwards),
/// isFlat (only x can be zoomed), height(), items, boxOf(item) as [x0, x1, y0, y1], draw(context, toX, toY, view),
/// describe(item).
function interactive(chart, label) {
  const canvas = el("canvas", {tabindex: 0, role: "img", "aria-label": label + ". Keys: plus and minus zoom, arrows move, n and p go to the next and previous block, 0 shows all."});
  const said = el("p", {class: "said soft", "aria-live": "polite"});
  const view = {x0: chart.x[0], x1: chart.x[1], y0: chart.y[0], y1: chart.y[1]};
  const left = chart.left || 0, top = chart.top || 0;
  let selected = -1, drag = null;
  const width = () => canvas.clientWidth || 900;
  const toX = x => left + (x - view.x0) / (view.x1 - view.x0) * (width() - left);
  const toY = y => top + (y - view.y0) / (view.y1 - view.y0) * (chart.height() - top);
  const fromX = px => view.x0 + (px - left) / (width() - left) * (view.x1 - view.x0);
  const fromY = py => view.y0 + (py - top) / (chart.height() - top) * (view.y1 - view.y0);
  function draw() {
    const ratio = Math.max(devicePixelRatio || 1, 1), w = width(), h = chart.height();
    canvas.style.height = h + "px";
    canvas.width = Math.round(w * ratio);
    canvas.height = Math.round(h * ratio);
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    chart.draw(context, toX, toY, view, w, h);
    if (selected >= 0) {
      const [x0, x1, y0, y1] = chart.boxOf(chart.items[selected]);
      context.strokeStyle = colour("text");
      context.lineWidth = 2;
      context.strokeRect(toX(x0), toY(y0), Math.max(toX(x1) - toX(x0), 2), Math.max(toY(y1) - toY(y0), 2));
    }
  }
  function clamp(a, b, whole) {
    const size = Math.min(b - a, whole[1] - whole[0]);
    const begin = Math.min(Math.max(a, whole[0]), whole[1] - size);
    return [begin, begin + size];
  }
  function show(x0, x1, y0, y1) {
    [view.x0, view.x1] = clamp(x0, x1, chart.x);
    if (!chart.isFlat) [view.y0, view.y1] = clamp(y0, y1, chart.y);
    draw();
  }
  function zoom(factor, x = (view.x0 + view.x1) / 2, y = (view.y0 + view.y1) / 2) {
    show(x - (x - view.x0) * factor, x + (view.x1 - x) * factor, y - (y - view.y0) * factor, y + (view.y1 - y) * factor);
  }
  const move = (dx, dy) => {
    const w = view.x1 - view.x0, h = view.y1 - view.y0;
    show(view.x0 + dx * w, view.x1 + dx * w, view.y0 + dy * h, view.y1 + dy * h);
  };
  function itemAt(event) {
    const box = canvas.getBoundingClientRect();
    const px = event.clientX - box.left, py = event.clientY - box.top, x = fromX(px), y = fromY(py);
    const slack = (view.x1 - view.x0) / width() * 2;
    for (let i = chart.items.length - 1; i >= 0; --i) {
      const [x0, x1, y0, y1] = chart.boxOf(chart.items[i]);
      if (x >= x0 - slack && x <= x1 + slack && y >= y0 && y < y1) return i;
    }
    return -1;
  }
  function select(index) {
    selected = index;
    if (index < 0) return;
    const [x0, x1, y0, y1] = chart.boxOf(chart.items[index]);
    said.textContent = chart.describe(chart.items[index]);
    const middle = (x0 + x1) / 2, half = (view.x1 - view.x0) / 2;
    if (x0 < view.x0 || x1 > view.x1) show(middle - half, middle + half, view.y0, view.y1);
    const between = (y0 + y1) / 2, tall = (view.y1 - view.y0) / 2;
    if (y0 < view.y0 || y1 > view.y1) show(view.x0, view.x1, between - tall, between + tall);
    draw();
  }
  canvas.addEventListener("keydown", event => {
    const step = {ArrowLeft: [-.2, 0], ArrowRight: [.2, 0], ArrowUp: [0, -.2], ArrowDown: [0, .2]}[event.key];
    const isVertical = event.key === "ArrowUp" || event.key === "ArrowDown";
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (step && !(chart.isFlat && isVertical)) move(...step);
    else if (event.key === "+" || event.key === "=") zoom(1 / 1.6);
    else if (event.key === "-") zoom(1.6);
    else if (event.key === "0" || event.key === "Home") show(chart.x[0], chart.x[1], chart.y[0], chart.y[1]);
    else if (event.key === "n" && chart.items.length) select((selected + 1) % chart.items.length);
    else if (event.key === "p" && chart.items.length) select((Math.max(selected, 0) + chart.items.length - 1) % chart.items.length);
    else if (event.key === "Escape") { select(-1); hideTip(); said.textContent = ""; draw(); }
    else return;
    event.preventDefault();
  });
  canvas.addEventListener("pointerdown", event => { drag = {x: event.clientX, y: event.clientY, view: {...view}, moved: false}; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", event => {
    if (drag) {
      const dx = (drag.x - event.clientX) / (width() - left) * (drag.view.x1 - drag.view.x0);
      const dy = (drag.y - event.clientY) / (chart.height() - top) * (drag.view.y1 - drag.view.y0);
      drag.moved = drag.moved || Math.abs(drag.x - event.clientX) > 3;
      show(drag.view.x0 + dx, drag.view.x1 + dx, drag.view.y0 + dy, drag.view.y1 + dy);
      return;
    }
    const index = itemAt(event);
    index < 0 ? hideTip() : showTip(chart.describe(chart.items[index]), event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerup", event => { if (drag && !drag.moved) select(itemAt(event)); drag = null; });
  canvas.addEventListener("pointerleave", () => { hideTip(); });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("wheel", event => {
    if (!event.ctrlKey && !event.shiftKey) return; // without a key, the wheel scrolls the page
    event.preventDefault();
    const box = canvas.getBoundingClientRect();
    zoom((event.deltaY || event.deltaX) > 0 ? 1.25 : .8, fromX(event.clientX - box.left), fromY(event.clientY - box.top));
  }, {passive: false});
  const button = (text, name, action) => el("button", {type: "button", "aria-label": name, title: name, onclick: action}, text);
  const tools = el("div", {class: "tools"},
    button("+", "zoom in", () => zoom(1 / 1.6)), button("-", "zoom out", () => zoom(1.6)), button("all", "show all", () => show(chart.x[0], chart.x[1], chart.y[0], chart.y[1])),
    el("span", {class: "soft"}, "Drag to move; Ctrl or Shift with the wheel, or + and -, to zoom; n and p for the next and previous block."));
  canvases.push({canvas, draw});
  return {nodes: [tools, canvas, said], draw};
}
function redrawAll() {
  for (let i = canvases.length - 1; i >= 0; --i)
    canvases[i].canvas.isConnected ? canvases[i].draw() : canvases.splice(i, 1);
}

/// Writes a time in us at x, or further to the left if it would end behind `end`.
const labelTime = (context, us, x, end) => context.fillText(seconds(us / 1e6), Math.min(x, end - context.measureText(seconds(us / 1e6)).width), 9);
const tickStep = (range, ticks) => {
  const rough = range / Math.max(ticks, 1), power = 10 ** Math.floor(Math.log10(rough || 1));
  return [1, 2, 5, 10].map(f => f * power).find(s => s >= rough) || power;
};

/// Draws timelines below each other. Each is {name, lanes, classes, names, blocks, exposed}.
function timelineChart(timelines) {
  const lanes = [], items = [];
  let last = 0;
  for (const timeline of timelines) {
    const used = timeline.lanes.map((_, lane) => timeline.blocks.some(b => b[0] === lane));
    const at = {};
    lanes.push({head: timeline.name});
    timeline.lanes.forEach((name, lane) => { if (used[lane]) { at[lane] = lanes.length; lanes.push({name}); } });
    if (timeline.exposed.length) { at.exposed = lanes.length; lanes.push({name: "exposed", isExposed: true}); }
    for (const b of timeline.blocks) {
      items.push({timeline, row: at[b[0]], begin: b[1], end: b[1] + b[2], busy: b[3], of: b[4], count: b[5], name: timeline.names[b[6]], microbatch: b[7], mix: b.length > 8 ? b.slice(8) : null, lane: timeline.lanes[b[0]]});
      last = Math.max(last, b[1] + b[2]);
    }
    for (const e of timeline.exposed)
      items.push({timeline, row: at.exposed, begin: e[0], end: e[0] + e[1], isExposed: true, name: timeline.names[e[2]], bare: e[3]});
  }
  const rowHeight = lanes.length > 40 ? 13 : lanes.length > 16 ? 17 : 22;
  return {
    x: [0, last || 1], y: [0, lanes.length], isFlat: true, left: 104, top: 20, items,
    height: () => 20 + lanes.length * rowHeight,
    boxOf: item => [item.begin, item.end, item.row, item.row + 1],
    describe: item => item.isExposed
      ? `exposed communication: ${item.name}\n${seconds(item.bare / 1e6)} of ${seconds((item.end - item.begin) / 1e6)} from ${seconds(item.begin / 1e6)} on`
      : `${item.name}\n${item.mix ? item.mix.map((share, i) => share ? `${item.timeline.classes[i]} ${share} %` : "").filter(Boolean).join(", ") : item.timeline.classes[item.of]}, stream ${item.lane}${item.microbatch >= 0 ? `, microbatch ${item.microbatch}` : ""}\n` +
        `${seconds((item.end - item.begin) / 1e6)} from ${seconds(item.begin / 1e6)} on` +
        (item.count > 1 ? `; ${plural(item.count, "op")} that run ${seconds(item.busy / 1e6)}` : ""),
    draw(context, toX, toY, view, w, h) {
      const line = colour("line"), soft = colour("soft"), exposed = colour("exposed"), on = colour("on");
      context.clearRect(0, 0, w, h);
      const step = tickStep(view.x1 - view.x0, (w - 104) / 110);
      context.fillStyle = soft;
      context.strokeStyle = line;
      context.lineWidth = 1;
      for (let t = Math.ceil(view.x0 / step) * step; t <= view.x1; t += step) {
        const x = Math.round(toX(t)) + .5;
        context.beginPath(); context.moveTo(x, 16); context.lineTo(x, h); context.stroke();
        labelTime(context, t, x + 3, w - 2);
      }
      const colours = {};
      context.save();
      context.beginPath(); context.rect(104, 0, w - 104, h); context.clip();
      for (const item of items) {
        if (item.end < view.x0 || item.begin > view.x1) continue;
        const x = toX(item.begin), wide = Math.max(toX(item.end) - x, .6), y = toY(item.row) + 1, tall = rowHeight - 2;
        const name = item.isExposed ? "exposed" : "c-" + item.timeline.classes[item.of];
        context.fillStyle = item.isExposed ? exposed : colours[name] ||= colour(name);
        if (item.mix) { // a block of several classes has one stripe per class
          let at = y;
          item.mix.forEach((part, i) => {
            context.fillStyle = colours["c-" + item.timeline.classes[i]] ||= colour("c-" + item.timeline.classes[i]);
            context.fillRect(x, at, wide > 3 ? wide - .7 : wide, tall * part / 100);
            at += tall * part / 100;
          });
          continue;
        }
        const share = item.isExposed ? item.bare / Math.max(item.end - item.begin, 1e-9) : 1;
        context.fillRect(x, y + tall * (1 - share), wide > 3 && !item.isExposed ? wide - .7 : wide, Math.max(tall * share, 1));
        if (wide > 44 && tall > 12 && !item.isExposed) {
          context.save();
          context.beginPath(); context.rect(x, y, wide - 4, tall); context.clip();
          context.fillStyle = on;
          const from = Math.max(x, 104) + 4;
          context.fillText(fitted(context, item.name, Math.min(x + wide, w) - 4 - from), from, y + tall / 2 + .5);
          context.restore();
        }
      }
      context.restore();
      lanes.forEach((lane, row) => {
        context.fillStyle = lane.isExposed ? exposed : lane.head ? colour("text") : soft;
        context.font = (lane.head ? "600 " : "") + "11px system-ui, sans-serif";
        context.fillText(lane.head || lane.name, lane.head ? 4 : 12, toY(row) + rowHeight / 2);
      });
    },
  };
}
/// Draws a schedule: a row for each stage, with a rectangle for each pass and, below, the bytes that the stage keeps.
function scheduleChart(rows) {
  const items = [];
  let last = 0, most = 1;
  rows.forEach((row, at) => {
    const from = Math.min(...rows.filter(r => r.name.endsWith("traced") === row.name.endsWith("traced")).flatMap(r => r.passes.slice(0, 1).map(p => p[2])));
    for (const [segment, microbatch, begin, length, kept] of row.passes) {
      const name = row.segments[segment], joint = name.indexOf(".backward");
      const parts = joint < 0 ? [{name, microbatch}] : [{name: name.slice(0, joint), microbatch}, {name: name.slice(joint + 1), microbatch: microbatch + row.shifts[segment]}];
      items.push({row, at, parts, begin: begin - from, end: begin + length - from, kept});
      last = Math.max(last, begin + length - from);
      most = Math.max(most, kept);
    }
  });
  const tall = 30, passes = .68; // the share of a row that passes have
  const light = part => (part.name.startsWith("forward") ? 64 : part.name.startsWith("weights") ? 34 : 48) + (/[.][1-9]/.test(part.name) ? 7 : 0);
  return {
    x: [0, last || 1], y: [0, rows.length], isFlat: true, left: 124, top: 20, items,
    height: () => 20 + rows.length * tall,
    boxOf: item => [item.begin, item.end, item.at, item.at + passes],
    describe: item => `${item.row.name}: ${item.parts.map(part => `${part.name} of microbatch ${part.microbatch}`).join(", beside ")}\n${seconds((item.end - item.begin) / 1e6)} from ${seconds(item.begin / 1e6)} on; the stage keeps ${bytes(item.kept)}`,
    draw(context, toX, toY, view, w, h) {
      context.clearRect(0, 0, w, h);
      context.fillStyle = colour("soft");
      const step = tickStep(view.x1 - view.x0, (w - 124) / 110);
      for (let t = Math.ceil(view.x0 / step) * step; t <= view.x1; t += step)
        labelTime(context, t, toX(t) + 3, w - 1);
      context.save();
      context.beginPath(); context.rect(124, 0, w - 124, h); context.clip();
      context.fillStyle = colour("c-waiting");
      rows.forEach((_, at) => context.fillRect(toX(0), toY(at), toX(last) - toX(0), tall * passes));
      const memory = colour("p-activations"), on = colour("on");
      items.forEach((item, i) => {
        if (item.end < view.x0 || item.begin > view.x1) return;
        const x = toX(item.begin), wide = Math.max(toX(item.end) - x, .6), y = toY(item.at);
        const each = tall * passes / item.parts.length;
        item.parts.forEach((part, k) => {
          context.fillStyle = `hsl(${part.microbatch * 47 % 360} 55% ${light(part)}%)`;
          context.fillRect(x, y + k * each, wide > 3 ? wide - .7 : wide, each);
        });
        const next = i + 1 < items.length && items[i + 1].at === item.at ? items[i + 1].begin : item.end;
        const high = (tall * (1 - passes) - 2) * item.kept / most;
        context.fillStyle = memory;
        context.fillRect(x, y + tall - 2 - high, toX(next) - x, high);
        context.fillStyle = on;
        const text = item.parts.map(part => part.microbatch).join(" ");
        if (wide > context.measureText(text).width + 4) context.fillText(text, x + 2, y + tall * passes / 2);
      });
      context.restore();
      context.fillStyle = colour("soft");
      rows.forEach((row, at) => context.fillText(fitted(context, row.name, 118), 4, toY(at) + tall * passes / 2));
    },
  };
}
/// The drawing of a schedule with its heading, or nothing if there is none.
function scheduleOf(rows, heading) {
  if (!rows.length) return [];
  const most = Math.max(...rows.flatMap(row => row.passes.map(pass => pass[4])));
  return [el("h3", {}, heading), ...interactive(scheduleChart(rows), heading).nodes,
    el("p", {class: "soft"}, `A colour is a microbatch: its forward pass is light, its backward pass darker, and its gradients of weights, where they are apart, darkest; passes that overlap share a rectangle. Grey: the stage runs no pass. Below: what it keeps for later passes, at most ${bytes(most)}.`)];
}
const classLegend = names => legend([...names.map(name => [name, "c-" + name]), ["exposed communication", "exposed"]]);

/// Shortens a name to the width `room`; returns an empty text if fewer than three letters fit.
function fitted(context, name, room) {
  if (context.measureText(name).width <= room) return name;
  let shorter = name.slice(0, Math.floor(name.length * room / context.measureText(name).width));
  while (shorter && context.measureText(shorter + "…").width > room) shorter = shorter.slice(0, -1);
  return shorter.length < 3 ? "" : shorter + "…";
}

function mapChart(map, arenaIndex) {
  const items = map.rects.filter(r => r[0] === arenaIndex);
  const end = map.segments.length ? map.segments[map.segments.length - 1].end : 1;
  const size = Math.max(map.arenas[arenaIndex].bytes, 1);
  return {
    x: [0, end], y: [0, size], left: 74, top: 20, items, height: () => 420,
    boxOf: r => [r[3], r[4], r[1], r[1] + r[2]],
    describe: r => `${map.names[r[7]]}: ${bytes(r[2])} (${count(r[2])} bytes)\n${map.purposes[r[5]]}, ${r[6] ? "kept between segments" : "made by " + map.names[r[8]]}\n` +
      `arena ${map.arenas[arenaIndex].name} at ${count(r[1])}; ops ${r[3]} to ${r[4] - 1}` +
      (() => { const s = map.segments.find(x => r[3] >= x.begin && r[3] < x.end); return s ? ` (from op ${r[3] - s.begin} of ${s.name} on)` : ""; })(),
    draw(context, toX, toY, view, w, h) {
      const colours = map.purposes.map(name => colour("p-" + name)), line = colour("line"), soft = colour("soft"), page = colour("page"), on = colour("on");
      context.clearRect(0, 0, w, h);
      context.fillStyle = colour("free");
      context.fillRect(74, 20, w - 74, h - 20);
      context.save();
      context.beginPath(); context.rect(74, 20, w - 74, h - 20); context.clip();
      for (const r of items) {
        if (r[4] < view.x0 || r[3] > view.x1 || r[1] + r[2] < view.y0 || r[1] > view.y1) continue;
        const x = toX(r[3]), y = toY(r[1]), wide = Math.max(toX(r[4]) - x, .6), tall = Math.max(toY(r[1] + r[2]) - y, .6);
        context.fillStyle = colours[r[5]];
        context.globalAlpha = r[6] ? .8 : 1;
        context.fillRect(x, y, wide, tall);
        context.globalAlpha = 1;
        if (wide > 3 && tall > 3) { context.strokeStyle = page; context.lineWidth = .5; context.strokeRect(x, y, wide, tall); }
        if (wide > 60 && tall > 13) {
          context.save();
          context.beginPath(); context.rect(x, y, wide - 2, tall); context.clip();
          context.fillStyle = on;
          const from = Math.max(x, 74) + 4;
          context.fillText(fitted(context, map.names[r[7]], Math.min(x + wide, w) - 2 - from), from, Math.max(Math.min(y + tall / 2, y + tall - 7), Math.min(30, y + tall - 7)));
          context.restore();
        }
      }
      if (map.peak_at >= 0) {
        context.strokeStyle = colour("exposed"); context.lineWidth = 1.5; context.setLineDash([5, 4]);
        const x = toX(map.peak_at + .5);
        context.beginPath(); context.moveTo(x, 20); context.lineTo(x, h); context.stroke();
        context.setLineDash([]);
      }
      context.restore();
      context.fillStyle = soft; context.strokeStyle = line; context.lineWidth = 1;
      let free = 0; // the x coordinate from which the next name may be drawn
      for (const s of map.segments) {
        if (s.end <= view.x0 || s.begin >= view.x1) continue;
        const x = Math.max(toX(s.begin), 74);
        context.beginPath(); context.moveTo(x + .5, 2); context.lineTo(x + .5, h); context.stroke();
        const wide = context.measureText(s.name).width, from = Math.min(x + 4, w - 2 - wide);
        if (from < free) continue;
        context.fillText(s.name, from, 10);
        free = from + 6 + wide;
      }
      const unit = 2 ** Math.max(Math.ceil(Math.log2((view.y1 - view.y0) / 6)), 0);
      for (let y = Math.ceil(view.y0 / unit) * unit; y <= view.y1; y += unit)
        context.fillText(bytes(y), 6, Math.max(toY(y), 26));
    },
  };
}

// Lines also differ in their dashes, for readers who do not see the colours and for black-and-white print.
const dashes = ["none", "7 3", "2 3"];
/// A moving average whose weights fall by the factor `by` with each step.
function smoothed(points, by) {
  let value = 0, weight = 0;
  return points.map(([x, y]) => [x, (value = value * by + y * (1 - by)) / (weight = weight * by + 1 - by)]);
}
/// Charts, each [title, lines, level, spreads] of lineChart, that show the same steps and are smoothed alike.
function lineCharts(list) {
  const view = {from: -Infinity, to: Infinity, smooth: 0}, host = el("div", {class: "charts"});
  const draw = focused => {
    host.replaceChildren(...list.map((chart, i) => lineChart(view, (from, to) => { view.from = from; view.to = to; draw(i); }, ...chart)));
    if (focused !== undefined) host.children[focused].querySelector("svg").focus();
  };
  draw();
  return [el("div", {class: "tools"},
    el("label", {}, "smoothing ", el("input", {type: "range", min: 0, max: .99, step: .01, value: 0, oninput: event => { view.smooth = Number(event.target.value); draw(); }})),
    el("button", {type: "button", onclick: () => { view.from = -Infinity; view.to = Infinity; draw(); }}, "all steps"),
    el("span", {class: "soft"}, "Drag over steps to zoom into them; keys: + and -, and 0 for all.")), host];
}
/// A chart of lines of [step, value] that shows the steps of `view`. `level`, if given, is drawn as a horizontal line for
/// comparison. The y axis is logarithmic if a peak would flatten the curve, and with `spreads` also if the largest value exceeds
/// 30 times the smallest.
function lineChart(view, zoom, title, whole, level, spreads) {
  const W = 520, H = 220, L = 58, R = 12, T = 10, B = 26;
  const seen = points => { const some = points.filter(p => p[0] >= view.from && p[0] <= view.to); return some.length ? some : points; };
  const lines = whole.map(l => ({name: l.name, points: seen(smoothed(l.points, view.smooth)), raw: seen(l.points)}));
  const points = lines.flatMap(l => view.smooth ? [...l.points, ...l.raw] : l.points);
  const xs = points.map(p => p[0]), values = points.map(p => p[1]).concat(level ? [level.value] : []).sort((a, b) => a - b);
  const x0 = Math.min(...xs), x1 = Math.max(...xs, x0 + 1);
  const least = values[0], most = values[values.length - 1], usual = values[Math.floor(.9 * (values.length - 1))];
  const isLog = least > 0 && (spreads && most / least > 30 || values.length > 9 && 10 * (usual - least) < most - least);
  const scale = isLog ? Math.log10 : y => y;
  let y0 = scale(least), y1 = scale(most);
  const pad = (y1 - y0) * .06 || Math.abs(y1) * .05 || 1;
  y0 -= pad; y1 += pad;
  const toX = x => L + (x - x0) / (x1 - x0) * (W - L - R), toY = y => T + (y1 - scale(y)) / (y1 - y0) * (H - T - B);
  const root = svg("svg", {viewBox: `0 0 ${W} ${H}`, role: "img", tabindex: 0, "aria-label": `${title}, steps ${x0} to ${x1}, values ${number(least)} to ${number(most)}. Left and right go through the points, plus and minus zoom.`});
  const text = (x, y, anchor, content) => { const t = svg("text", {x, y, "text-anchor": anchor}); t.textContent = content; return t; };
  const stepY = isLog ? Math.max(Math.ceil((y1 - y0) / 5), 1) : tickStep(y1 - y0, 4), stepX = tickStep(x1 - x0, 6);
  for (let at = Math.ceil(y0 / stepY) * stepY; at <= y1; at += stepY) {
    const y = isLog ? 10 ** at : Math.abs(at) < stepY / 1e6 ? 0 : at;
    root.append(svg("line", {class: "axis", x1: L, x2: W - R, y1: toY(y), y2: toY(y)}), text(L - 6, toY(y) + 4, "end", number(y)));
  }
  for (let x = Math.ceil(x0 / stepX) * stepX; x <= x1; x += stepX)
    if (toX(x) < W - R - 34) root.append(text(toX(x), H - 8, "middle", number(x)));
  root.append(text(W - R, H - 8, "end", "step"));
  const polyline = (points, i, opacity) => root.append(svg("polyline", {fill: "none", opacity, stroke: `var(--s${i % 3})`, "stroke-width": 1.6, "stroke-dasharray": dashes[i % 3], points: points.map(p => `${toX(p[0]).toFixed(1)},${toY(p[1]).toFixed(1)}`).join(" ")}));
  if (view.smooth) lines.forEach((line, i) => polyline(line.raw, i, .3));
  lines.forEach((line, i) => polyline(line.points, i, 1));
  lines.forEach((line, i) => { if (line.points.length < 40) for (const p of line.points) root.append(svg("circle", {cx: toX(p[0]), cy: toY(p[1]), r: 2.2, fill: `var(--s${i % 3})`})); });
  if (level) {
    root.append(svg("line", {x1: L, x2: W - R, y1: toY(level.value), y2: toY(level.value), stroke: "var(--exposed)", "stroke-dasharray": "6 4", "stroke-width": 1.4}));
    root.append(text(W - R - 4, toY(level.value) + (toY(level.value) < 24 ? 14 : -5), "end", `${level.name} ${number(level.value)}`));
  }
  const dot = svg("circle", {r: 4, fill: "none", stroke: "var(--text)", "stroke-width": 1.5, visibility: "hidden"});
  root.append(dot);
  const said = el("p", {class: "said soft", "aria-live": "polite"});
  let at = -1;
  const mark = (line, index) => {
    const p = line.points[index];
    dot.setAttribute("cx", toX(p[0])); dot.setAttribute("cy", toY(p[1])); dot.setAttribute("visibility", "visible");
    return `step ${number(p[0], 8)}: ${line.name} ${number(p[1], 6)}`;
  };
  const stepAt = event => { const box = root.getBoundingClientRect(); return x0 + ((event.clientX - box.left) / box.width * W - L) / (W - L - R) * (x1 - x0); };
  const range = svg("rect", {y: T, height: H - T - B, fill: "var(--text)", opacity: .12, visibility: "hidden"});
  root.append(range);
  let from = null;
  root.addEventListener("pointerdown", event => { from = stepAt(event); root.setPointerCapture(event.pointerId); });
  root.addEventListener("pointerup", event => {
    const ends = [from, stepAt(event)].sort((a, b) => a - b);
    from = null;
    range.setAttribute("visibility", "hidden");
    if (ends[1] - ends[0] > (x1 - x0) / 50) { hideTip(); zoom(...ends); }
  });
  root.addEventListener("pointercancel", () => { from = null; range.setAttribute("visibility", "hidden"); });
  root.addEventListener("pointermove", event => {
    const x = stepAt(event);
    if (from !== null)
      for (const [name, value] of Object.entries({x: toX(Math.min(from, x)), width: Math.abs(toX(x) - toX(from)), visibility: "visible"})) range.setAttribute(name, value);
    const texts = lines.map(line => {
      let best = 0;
      line.points.forEach((p, i) => { if (Math.abs(p[0] - x) < Math.abs(line.points[best][0] - x)) best = i; });
      return mark(line, best);
    });
    showTip(texts.join("\n"), event.clientX, event.clientY);
  });
  root.addEventListener("pointerleave", () => { hideTip(); dot.setAttribute("visibility", "hidden"); });
  root.addEventListener("keydown", event => {
    const by = {ArrowLeft: -1, ArrowRight: 1}[event.key], factor = {"+": .25, "=": .25, "-": 1, "0": Infinity}[event.key];
    if (!by && !factor || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const middle = at >= 0 ? lines[0].points[at][0] : (x0 + x1) / 2;
    if (factor) return zoom(middle - factor * (x1 - x0), middle + factor * (x1 - x0));
    at = Math.min(Math.max(at + by, 0), lines[0].points.length - 1);
    said.textContent = mark(lines[0], at);
  });
  const names = lines.length > 1 ? legend(lines.map((line, i) => [line.name, "s" + i % 3])) : null;
  const ends = lines.map(line => number(line.points[line.points.length - 1][1])).join(" and ");
  return el("figure", {}, el("figcaption", {}, `${title}${isLog ? " (logarithmic)" : ""}: ${ends} at the end`), names, root, said);
}

// --- sections ---------------------------------------------------------------------------------
const secondsColumn = (name, key) => ({name, get: r => r[key], number: true, show: seconds});
const bytesColumn = (name, key) => ({name, get: r => r[key], number: true, show: bytes});

const stepParts = p => [["kernels", p.compute_s, "c-forward"], ["exposed communication", p.exposed_s, "exposed"], ["waiting for other stages", p.waiting_s, "c-waiting"], ["gaps", Math.max(p.step_s - p.compute_s - p.exposed_s - p.waiting_s, 0), "c-gaps"]];
/// The tables below the answers, in their order.
function answerTables(plan) {
  const p = plan.predicted, step = [], largest = list => [...list].sort((a, b) => b[1] - a[1]);
  if (p) {
    step.push(["a step", seconds(p.step_s)], ["tokens/s of each device", number(p.tokens_per_s_per_device)], ["tokens/s of all", number(p.tokens_per_s)]);
    for (const [name, size] of stepParts(p).filter(part => part[1] > 0)) {
      step.push([name, seconds(size), percent(size, p.step_s)]);
      if (name === "kernels")
        step.push(...largest(plan.ops.filter(r => !r.transfer).map(r => ["of which " + r.op, r.s])).slice(0, 4).map(r => [r[0], seconds(r[1]), percent(r[1], p.step_s)]));
    }
  }
  const parts = memoryParts(plan);
  const fills = [...largest(parts).slice(0, 5), ["largest buffers at the peak"], ...plan.memory.holders.slice(0, 4).map(h => [`${h.what}: ${h.count > 1 ? h.count + " x " : ""}${h.name}`, h.bytes])];
  const of = (rows, name) => rows.length ? table([{name: "", get: r => r[0]}, {name: "", get: r => r[1] || "", of: "n"}, {name: "", get: r => r[2] || "", of: "n"}], rows, name) : null;
  return [of(step, "The step"), of(fills.map(r => r[1] ? [r[0], bytes(r[1]), percent(r[1], plan.memory.needed)] : r), "The memory"), plan.alternatives.length ? changeTable(plan, 5, false) : null];
}
function answers(plan) {
  const measured = plan.run ? plan.run.lines : [], tables = answerTables(plan);
  const outcome = plan.run && plan.run.outcome && plan.run.outcome.length ? el("article", {}, el("h3", {}, "What became of the model?"), plan.run.outcome.map(l => el("p", {}, l))) : null;
  return [el("div", {class: "answers"}, outcome, plan.answers.map((answer, i) =>
    el("article", {}, el("h3", {}, answer.question), [...answer.lines, ...i === 0 ? measured : []].map(l => el("p", {}, l)), tables[i])))];
}
const titles = {loss: "Loss", grad_norm: "Gradient norm", tokens_per_s: "Tokens/s of all ranks", lr: "Learning rate", mfu: "Share of the device's peak", eval_loss: "Loss of evaluations", loss_scale: "Loss scale", host_ms: "Host time of a step, ms", host_wait_ms: "Host waits, ms", model_tflops: "TFLOP/s of the model on each device"};
const besideShow = row => value => row.unit === "s" ? seconds(value) : number(value);
function run(plan) {
  if (!plan.run) return null;
  const nodes = [];
  const isPredicted = plan.run.beside.some(r => r.predicted !== null);
  const measured = {name: "measured", get: r => r.measured, number: true, show: (v, r) => besideShow(r)(v)};
  if (plan.run.beside.length && !isPredicted)
    nodes.push(el("h3", {}, "Measured"), table([{name: "", get: r => r.what}, measured], plan.run.beside, "Measured"));
  else if (plan.run.beside.length)
    nodes.push(el("h3", {}, "Predicted and measured"), table([
      {name: "", get: r => r.what},
      {name: "predicted", get: r => r.predicted, number: true, show: (v, r) => besideShow(r)(v)},
      measured,
      {name: "difference", get: r => r.predicted === null ? null : r.measured / r.predicted - 1, number: true, show: v => Number.isFinite(v) ? (v >= 0 ? "+" : "") + (100 * v).toFixed(1) + " %" : "-"},
    ], plan.run.beside, "Predicted and measured"));
  const metrics = plan.run.metrics;
  if (metrics) {
    const find = name => metrics.series.find(s => s.name === name && s.points.length);
    const order = ["loss", "grad_norm", "tokens_per_s"], taken = new Set(["eval_loss"]);
    if (!find("loss")) taken.delete("eval_loss");
    const charts = [];
    for (const name of [...order, ...metrics.series.map(s => s.name)]) {
      const series = find(name);
      if (!series || taken.has(name) || name === "tokens") continue;
      taken.add(name);
      const lines = [series, name === "loss" ? find("eval_loss") : null].filter(Boolean);
      const level = name === "tokens_per_s" && plan.predicted ? {name: "predicted", value: plan.predicted.tokens_per_s} : null;
      charts.push([titles[name] || name, lines, level, name === "grad_norm" || name === "loss_scale"]);
    }
    nodes.push(el("h3", {}, "Metrics"), el("p", {class: "soft"}, `${plural(metrics.steps, "step")} of ${metrics.file}. Long series are thinned; minima and maxima are kept.`), ...lineCharts(charts));
    if (metrics.said.length)
      nodes.push(el("h3", {}, "Texts after evaluations"), table([
        {name: "step", get: r => r.step, number: true, show: count}, {name: "sample", get: r => r.sample, number: true, show: count},
        {name: "prompt", get: r => r.prompt}, {name: "model", get: r => r.said}, {name: "data", get: r => r.data}], metrics.said, "Texts after evaluations"));
  }
  const trace = plan.run.trace;
  if (trace) {
    const canvas = interactive(timelineChart([trace]), "Timeline of the trace");
    nodes.push(el("h3", {}, "Trace"), el("p", {class: "soft"}, `${plural(trace.steps, "step")} of ${trace.file}, ${trace.name}; a block is ${trace.grain}.`), classLegend(trace.classes), ...canvas.nodes,
      ...scheduleOf([...plan.schedule || [], ...trace.schedule].sort((a, b) => a.name < b.name ? -1 : 1), "Schedule of the first traced step"),
      el("h3", {}, "Ops of a traced step"), table([
        {name: "op", get: r => r.op + (r.group ? " over " + r.group : "")},
        {name: "pieces", get: r => r.count, number: true, show: v => number(v)},
        secondsColumn("measured", "s"), secondsColumn("predicted", "predicted_s"), secondsColumn("exposed", "exposed_s")], trace.ops, "Ops of a traced step"));
  }
  return nodes;
}
function timeline(plan) {
  if (!plan.predicted) return null; // steps are not predicted on the host
  const p = plan.predicted, parts = stepParts(p);
  const nodes = [
    el("p", {}, `Predicted for ${plan.gpu}: a step of ${seconds(p.step_s)}, ${number(p.tokens_per_s_per_device)} tokens/s on each device, ${number(p.tokens_per_s)} in all.`),
    bar(parts, Math.max(p.step_s, sum(parts.map(x => x[1]))), seconds),
    legend(parts.filter(part => part[1] > 0).map(([name, size, variable]) => [`${name} ${seconds(size)} (${percent(size, p.step_s)})`, variable])),
  ];
  nodes.push(...scheduleOf(plan.schedule, "Schedule"));
  const host = el("div");
  const draw = which => {
    const list = which < 0 ? plan.timelines : [plan.timelines[which]];
    const canvas = interactive(timelineChart(list), "Timeline of the predicted step");
    host.replaceChildren(...canvas.nodes);
    requestAnimationFrame(canvas.draw);
  };
  if (plan.timelines.length > 1) {
    const select = el("select", {"aria-label": "Ranks that are shown", onchange: event => draw(Number(event.target.value))},
      el("option", {value: -1}, "all stages"), plan.timelines.map((t, i) => el("option", {value: i}, t.name)));
    nodes.push(el("div", {class: "tools"}, select));
  }
  const first = plan.timelines[0];
  nodes.push(classLegend(first.classes), host, el("p", {class: "soft"}, `A block is ${first.grain}; ${plural(sum(plan.timelines.map(t => t.pieces)), "op")} run in the step. Where exposed communication is too short to be drawn alone, the height says which share of the time it takes.`));
  draw(-1);
  nodes.push(el("h3", {}, `Ops of a step${plan.timelines.length > 1 ? ", " + plan.timelines[plan.slowest].name : ""}`), table([
    {name: "op", get: r => r.op + (r.group ? " over " + r.group : "")},
    {name: "kind", get: r => r.transfer ? "communication" : "kernel"},
    {name: "runs", get: r => r.count, number: true, show: count},
    secondsColumn("time", "s"),
    {name: "share of the step", get: r => r.s, number: true, show: v => percent(v, p.step_s)},
    {name: "exposed", get: r => r.transfer ? r.exposed_s : null, number: true, show: seconds}], plan.ops, "Ops of a step"));
  return nodes;
}
function memoryParts(plan) {
  const m = plan.memory;
  return [...m.purposes.map(p => [p.purpose, p.kept + p.peak, "p-" + p.purpose]), ["outside the plan", sum(m.outside.map(o => o.bytes)), "p-outside"]].filter(p => p[1] > 0);
}
/// The bar of a plan's parts, as long as what it needs of `whole`: parts that share addresses sum to more.
const memoryBar = (plan, whole) => bar(memoryParts(plan), whole * Math.max(sum(memoryParts(plan).map(p => p[1])) / plan.memory.needed, 1), bytes);
function memory(plan) {
  const m = plan.memory, parts = memoryParts(plan);
  const rows = [...m.purposes.map(p => ({what: p.purpose, kept: p.kept, peak: p.peak, all: p.kept + p.peak})), ...m.outside.map(o => ({what: o.what, kept: o.bytes, peak: 0, all: o.bytes}))];
  return [
    el("p", {}, `Each device needs ${bytes(m.needed)}${m.device ? ` of ${bytes(m.device)} (${percent(m.needed, m.device)})` : ""}.` + (plan.stages.length > 1 ? ` The figures are of ${m.role}, which needs most.` : "")),
    memoryBar(plan, Math.max(m.device, m.needed)), legend(parts.map(([name, size, variable]) => [`${name} ${bytes(size)}`, variable])),
    el("p", {class: "soft"}, `Arenas: ${Object.entries(m.arenas).map(([name, size]) => `${name} ${bytes(size)}`).join(", ")}. Buffers of one time share addresses with those of another, so that arenas can be smaller than sums.`),
    table([{name: "purpose", get: r => r.what}, bytesColumn("kept", "kept"), bytesColumn("at the peak", "peak"), bytesColumn("both", "all")], rows, "Memory by purpose"),
    el("h3", {}, "Largest buffers at the peak"),
    table([{name: "buffers", get: r => r.what}, {name: "values", get: r => r.name, code: true}, {name: "purpose", get: r => r.purpose}, {name: "", get: r => r.kept ? "kept" : "of one segment"}, {name: "number", get: r => r.count, number: true, show: count}, bytesColumn("bytes", "bytes"), {name: "share", get: r => r.bytes, number: true, show: v => percent(v, m.needed)}], m.holders, "Largest buffers"),
    m.holders_omitted ? el("p", {class: "soft"}, `${plural(m.holders_omitted, "smaller row")} left out.`) : null,
  ];
}
function addressMap(plan) {
  const map = plan.map, host = el("div"), arenas = map.arenas.map((a, i) => ({...a, i})).filter(a => a.bytes > 0);
  if (!arenas.length) return [el("p", {}, "The plan has no arenas.")];
  const buttons = arenas.map(a => el("button", {type: "button", "aria-pressed": "false", onclick: () => draw(a)}, `${a.name} ${bytes(a.bytes)}`));
  function draw(arena) {
    buttons.forEach((b, i) => b.setAttribute("aria-pressed", String(arenas[i] === arena)));
    const canvas = interactive(mapChart(map, arena.i), `Address map of arena ${arena.name}`);
    host.replaceChildren(...canvas.nodes);
    requestAnimationFrame(canvas.draw);
  }
  draw(arenas.reduce((best, a) => a.name === "work" ? a : best, arenas[0]));
  const used = [...new Set(map.rects.map(r => r[5]))].sort((a, b) => a - b);
  return [
    el("p", {class: "soft"}, `Horizontal: the ops of a step. Vertical: addresses in one arena. A segment of ${map.role} is there once. The dashed line is where most is needed. Paler buffers keep their content between segments.`),
    el("div", {class: "tools", role: "group", "aria-label": "Arenas"}, buttons), legend(used.map(p => [map.purposes[p], "p-" + map.purposes[p]])), host,
    map.omitted ? el("p", {class: "soft"}, `${plural(map.omitted, "small buffer")} of at most ${bytes(map.omitted_bytes)} not drawn.`) : null,
  ];
}
function stages(plan) {
  const units = row => row.units.map(u => u.count > 1 ? `${u.count} x ${u.name}` : u.name).join(", ");
  const columns = [{name: "role", get: r => r.name}, {name: "ranks", get: r => r.ranks, number: true, show: count}, {name: "first rank", get: r => r.rank, number: true, show: count}, {name: "has", get: r => units(r) || r.why}, bytesColumn("arenas", "arena_bytes")];
  if (plan.predicted) columns.push(secondsColumn("kernels", "compute_s"), secondsColumn("exposed", "exposed_s"), secondsColumn("waiting", "waiting_s"));
  return [el("p", {class: "soft"}, `Ranks of a role execute the same ops. Mesh: ${plan.mesh.map(a => `${a.name} ${a.size}`).join(", ")}.`), table(columns, plan.stages, "Stages")];
}
function sharding(plan) {
  return [
    el("h3", {}, "Groups"),
    table([{name: "group", get: r => r.name}, {name: "axes of the mesh", get: r => r.axes.join(", ")}, {name: "ranks", get: r => r.ranks, number: true, show: count}], plan.groups, "Groups"),
    el("h3", {}, "Blocks: parameters that are gathered and reduced together"),
    table([{name: "block", get: r => r.name, code: true}, {name: "number", get: r => r.count, number: true, show: count}, {name: "elements", get: r => r.elements, number: true, show: count}, {name: "weights over", get: r => r.weights_over}, {name: "on each rank", get: r => r.weights_each, number: true, show: count}, {name: "optimizer over", get: r => r.state_over}, {name: "on each rank", get: r => r.state_each, number: true, show: count}], plan.blocks, "Blocks"),
    el("h3", {}, "Parameters"),
    table([{name: "parameter", get: r => r.name, code: true}, {name: "number", get: r => r.count, number: true, show: count}, {name: "shape", get: r => r.whole.join(" x ")}, {name: "on each rank, before blocks are cut", get: r => r.each.join(" x ")}, {name: "cut", get: r => r.splits.map(s => `dimension ${s.dim} over ${s.over}`).join("; ") || "-"}, {name: "copies in", get: r => r.copies.join(", ") || "-"}], plan.params, "Parameters"),
    el("h3", {}, "Traffic of a step, of a rank"),
    table([{name: "collective", get: r => r.op}, {name: "over", get: r => r.group}, {name: "type", get: r => r.dtype}, {name: "calls", get: r => r.calls, number: true, show: count}, bytesColumn("whole buffers", "full"), bytesColumn("sent", "sent")], plan.traffic, "Traffic"),
  ];
}
/// What the plan's first `most` changes would give, with or without their settings.
function changeTable(plan, most, hasSettings) {
  const step = plan.predicted ? plan.predicted.step_s : 0;
  const rows = [{what: "this plan", set: [], bytes: plan.memory.needed, fits: true, step_s: step}, ...plan.alternatives.slice(0, most)];
  const columns = [{name: "change", get: r => r.what}, bytesColumn("memory", "bytes"), {name: "", get: r => r.fits ? "" : "does not fit", bad: r => !r.fits}];
  if (step) columns.push({name: "step", get: r => r.step_s || null, number: true, show: seconds}, {name: "tokens/s of all", get: r => r.step_s ? plan.tokens_per_step / r.step_s : null, number: true, show: number}, {name: "longer by", get: r => r.step_s ? r.step_s / step - 1 : null, number: true, show: v => (v >= 0 ? "+" : "") + (100 * v).toFixed(1) + " %"});
  if (hasSettings) columns.push({name: "settings", get: r => r.set.map(s => "--set " + s).join(" "), code: true, of: "settings"});
  return table(columns, rows, "Changes");
}
const changes = plan => plan.alternatives.length
  ? [el("p", {class: "soft"}, "Each row is a plan that was compiled."), changeTable(plan, plan.alternatives.length, true)]
  : [el("p", {}, plan.answers[2].lines[0])];
function options(plan) {
  if (!plan.options) {
    const rows = Object.entries(plan.job).map(([path, value]) => ({path, value: typeof value === "string" ? value : JSON.stringify(value)}));
    return [el("p", {class: "soft"}, "A compiled plan has the settings of its job, without their origins. The recipe's report has them."), table([{name: "setting", get: r => r.path, code: true}, {name: "value", get: r => r.value, code: true}], rows, "Settings of the job")];
  }
  const rows = table([{name: "option", get: r => r.path, code: true}, {name: "value", get: r => r.value, code: true}, {name: "default", get: r => r.default || "none", code: true}, {name: "from", get: r => r.from, of: "text"}, {name: "reason", get: r => r.reason || r.doc, of: "text"}], plan.options, "Options that differ from their defaults");
  const filter = el("input", {type: "search", placeholder: "filter", "aria-label": "Filter options", oninput: event => {
    const word = event.target.value.toLowerCase();
    rows.refill(plan.options.filter(r => [r.path, r.value, r.from, r.reason, r.doc].some(t => t && t.toLowerCase().includes(word))));
  }});
  return [el("p", {class: "soft"}, `${plural(plan.options.length, "option")} of ${plan.source} not at the default.`), el("div", {class: "tools"}, filter), rows];
}
function comparison() {
  const plans = data.plans, nodes = [];
  const rows = [], row = (what, get, show, lowIsBetter) => { if (plans.some(p => get(p) !== null && get(p) !== undefined)) rows.push({what, values: plans.map(get), show, lowIsBetter}); };
  const p = key => plan => plan.predicted ? plan.predicted[key] : null;
  row("predicted step", p("step_s"), seconds);
  row("tokens/s of each device", p("tokens_per_s_per_device"), number);
  row("tokens/s of all", p("tokens_per_s"), number);
  row("kernels", p("compute_s"), seconds);
  row("communication", p("transfers_s"), seconds);
  row("exposed communication", p("exposed_s"), seconds);
  row("waiting for other stages", p("waiting_s"), seconds);
  row("memory of a device", plan => plan.memory.needed, bytes);
  for (const name of plans[0].map.purposes)
    row("of which " + name, plan => { const m = plan.memory.purposes.find(x => x.purpose === name); return m ? m.kept + m.peak : null; }, bytes);
  row("sent by a rank in a step", plan => sum(plan.traffic.map(t => t.sent)), bytes);
  row("ranks", plan => plan.ranks, count);
  row("tokens of a step", plan => plan.tokens_per_step, count);
  row("measured tokens/s of all", plan => { const b = plan.run && plan.run.beside.find(x => x.what.startsWith("tokens/s")); return b ? b.measured : null; }, number);
  row("measured step", plan => { const b = plan.run && plan.run.beside.find(x => x.what === "step"); return b ? b.measured : null; }, seconds);
  const timed = plans.filter(plan => plan.predicted);
  if (timed.length) {
    const longest = Math.max(...timed.map(plan => plan.predicted.step_s));
    nodes.push(el("h3", {}, "Predicted step"), el("div", {class: "rowbar"}, timed.flatMap(plan => {
      const t = plan.predicted;
      return [el("span", {}, plan.title), bar(stepParts(t), longest, seconds), el("span", {}, seconds(t.step_s))];
    })), legend(stepParts(timed[0].predicted).map(part => [part[0], part[2]])));
  }
  const most = Math.max(...plans.map(plan => plan.memory.needed));
  const purposes = [...new Map(plans.flatMap(plan => memoryParts(plan).map(x => [x[0], x[2]])))];
  nodes.push(el("h3", {}, "Memory of a device"), el("div", {class: "rowbar"}, plans.flatMap(plan => [el("span", {}, plan.title), memoryBar(plan, most), el("span", {}, bytes(plan.memory.needed))])), legend(purposes));
  const number_ = i => ({name: plans[i].title, get: r => r.values[i], number: true, show: (v, r) => r.show(v)});
  nodes.push(el("h3", {}, "Figures"), table([{name: "", get: r => r.what}, ...plans.map((_, i) => number_(i))], rows, "Figures side by side"));
  nodes.push(el("h3", {}, "Settings that differ"), data.differences.length
    ? table([{name: "setting", get: r => r.path, code: true}, ...plans.map((plan, i) => ({name: plan.title, get: r => r.values[i], code: true}))], data.differences, "Settings that differ")
    : el("p", {}, "None."));
  const charts = [];
  for (const name of ["loss", "grad_norm", "tokens_per_s"]) {
    const lines = plans.map(plan => { const s = plan.run && plan.run.metrics && plan.run.metrics.series.find(x => x.name === name && x.points.length); return s ? {name: plan.title, points: s.points} : null; }).filter(Boolean);
    if (lines.length > 1) charts.push([titles[name], lines, null, name === "grad_norm"]);
  }
  if (charts.length) nodes.push(el("h3", {}, "Metrics"), ...lineCharts(charts));
  return nodes;
}

// --- the page ---------------------------------------------------------------------------------
const parts = [["answers", "Answers", answers], ["run", "Run", run], ["timeline", "Predicted step", timeline], ["memory", "Memory", memory], ["map", "Address map", addressMap], ["stages", "Stages", stages], ["sharding", "What is sharded where", sharding], ["changes", "What would change", changes], ["options", "Options", options]];
function show(index) {
  const plan = data.plans[index], main = byId("main"), nav = byId("sections"), isSeveral = data.plans.length > 1;
  const name = isSeveral ? `${data.plans.length} plans side by side` : plan.name;
  document.title = name + " - shardc report";
  byId("title").textContent = name;
  byId("subtitle").textContent = (isSeveral ? data.plans.map(p => p.source).join(", ") : `${plan.source}; ${plural(plan.ranks, "rank")} on ${plan.gpu}, ${plan.mesh.map(a => `${a.name} ${a.size}`).join(", ")}`);
  byId("footer").textContent = `Written by shardc ${data.version}. Figures are of the plan; times are predicted unless they are called measured.`;
  const sections = [], links = [];
  const add = (id, title, nodes) => {
    if (!nodes) return;
    links.push(el("a", {href: "#" + id}, title));
    sections.push(el("section", {id, "aria-labelledby": id + "-title"}, el("h2", {id: id + "-title"}, title), nodes.filter(Boolean)));
  };
  if (isSeveral) {
    add("comparison", "Side by side", comparison());
    sections.push(el("section", {id: "choice"}, el("label", {class: "tools"}, "In detail: ", el("select", {id: "which", onchange: event => { show(Number(event.target.value)); byId("which").focus(); }},
      data.plans.map((p, i) => el("option", {value: i, selected: i === index ? "" : null}, p.title))))));
  }
  for (const [id, title, make] of parts) add(id, title, make(plan));
  main.replaceChildren(...sections);
  nav.replaceChildren(...links);
  redrawAll();
}
show(0);
if (data.reload_s) setTimeout(() => location.reload(), 1000 * data.reload_s);
let pending = 0;
addEventListener("resize", () => { cancelAnimationFrame(pending); pending = requestAnimationFrame(redrawAll); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
matchMedia("print").addEventListener("change", redrawAll);
addEventListener("beforeprint", redrawAll);
addEventListener("afterprint", redrawAll);
})();
