"use strict";
// The page polls for new data every second, keeps the runs' curves, and draws charts and tables. Texts from runs are only
// set with textContent.

const COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#9467BD", "#8C6D46", "#7F8C8D", "#B5BD22"];
const DASHES = [[], [7, 4], [2, 3]];
const CHARTS = [
  // series, title, unit, place, and whether the default scale is logarithmic
  {name: "loss", title: "Training loss", unit: "nats per token", wide: true},
  {name: "valid_loss", title: "Validation loss", unit: "nats per token", points: true},
  {name: "grad_norm", title: "Gradient norm", unit: "before clipping", log: true, peaks: true},
  {name: "lr", title: "Learning rate", unit: "", exact: true},
  {name: "tokens_per_s", title: "Speed", unit: "tokens/s"},
  {name: "fp8.saturated", title: "FP8 saturated", unit: "largest share of any operand", log: true, points: true},
  {name: "fp8.flushed", title: "FP8 flushed to zero", unit: "largest share of any operand", log: true, points: true},
];
const NEVER = /perplexity$|^valid_perplexity/;
const AXES = {step: "steps", tokens: "tokens", seconds: "time in steps"};
const MANY = 4;  // with more lines, min-max bands would hide each other
const EARLY = 0.05;  // fraction of a run that does not set the scale: the steep initial decrease would flatten the rest
const OUTLIERS = 0.02;  // fraction of the values at both ends that do not set the scale
const ENOUGH = 100;  // number of values from which outliers are detected

const $ = id => document.getElementById(id);
const runs = new Map();  // id -> {data, curves, shown}
const charts = new Map();  // series -> chart
const state = {axis: "step", smooth: 0, log: {}, off: {}, zoom: null, part: null};
let redraw = true, lastAnswer = 0, failures = 0;

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children.filter(c => c !== null));
  return element;
}
const color = id => COLORS[id % COLORS.length];
const dash = id => DASHES[Math.floor(id / COLORS.length) % DASHES.length];

// ---- State in the URL, so that a view can be saved and shared --------------------------------------------------------
function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  if (AXES[given.get("x")]) state.axis = given.get("x");
  state.smooth = Math.min(10, Math.max(0, parseFloat(given.get("smooth")) || 0));
  for (const part of (given.get("log") || "").split(",").filter(Boolean)) state.log[part.replace(/^-/, "")] = part[0] !== "-";
  for (const name of given.getAll("off")) state.off[name] = true;
}
function writeAddress() {
  const said = new URLSearchParams();
  if (state.axis !== "step") said.set("x", state.axis);
  if (state.smooth) said.set("smooth", state.smooth);
  const logs = Object.entries(state.log).map(([name, on]) => (on ? "" : "-") + name);
  if (logs.length) said.set("log", logs.join(","));
  for (const name of Object.keys(state.off).filter(n => state.off[n])) said.append("off", name);
  history.replaceState(null, "", "#" + said);
}

// ---- New data -------------------------------------------------------------------------------------------------------------
async function ask(address) {
  const abort = new AbortController(), timer = setTimeout(() => abort.abort(), 20000);
  try {
    const answer = await fetch(address, {signal: abort.signal, cache: "no-store"});
    if (!answer.ok) throw new Error(answer.status);
    return await answer.json();
  } finally { clearTimeout(timer); }
}
function take(news) {
  for (const data of news.runs) {
    const known = runs.get(data.id);
    const run = known || {curves: {step: [], tokens: [], seconds: [], series: {}}};
    const {curves} = run, from = data.from;
    for (const axis of Object.keys(AXES)) curves[axis] = curves[axis].slice(0, from).concat(data[axis]);
    if (from === 0) curves.series = {};
    for (const [name, lines] of Object.entries(data.series)) {
      const mine = curves.series[name] || (curves.series[name] = {});
      for (const kind of Object.keys(lines)) mine[kind] = (mine[kind] || []).slice(0, from).concat(lines[kind]);
    }
    if (!known || data.step.length > 1 || from === 0 || run.data.now_step !== data.now_step) redraw = true;
    run.data = data;
    runs.set(data.id, run);
  }
  document.title = `te-train: ${news.runs.length} runs`;
  $("where").textContent = news.paths.join(" ");
  $("empty").hidden = news.runs.length > 0;
}
async function poll() {
  try {
    const have = [...runs.values()].map(r => `${r.data.id}:${r.data.cursor}`).join(",");
    take(await ask("/api/runs?have=" + have));
    lastAnswer = Date.now(); failures = 0;
    const loading = [...runs.values()].some(r => r.data.loading < 1);
    if (state.zoom && (loading || Date.now() - (state.asked || 0) > 5000)) await lookCloser();
    showRuns(); showDifferences(); showOperands(); showSampleRuns();
    if (redraw) drawAll();
    document.body.dataset.polls = 1 + Number(document.body.dataset.polls || 0);
  } catch (error) { failures += 1; if (error instanceof TypeError && error.stack && !/fetch/i.test(error.message)) console.error(error); }
  $("live").className = failures > 1 ? "lost" : "";
  $("live").textContent = failures > 1 ? "no connection" : "live";
  setTimeout(poll, document.hidden ? 5000 : failures ? 3000 : 1000);
}

// ---- Formatting of numbers -------------------------------------------------------------------------------------------------
const number = (v, digits = 4) => v === null || v === undefined ? "–" : v.toFixed(digits);
function count(v, digits = 4) {
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (Math.abs(v) >= size) return +(v / size).toPrecision(digits) + " " + unit;
  return String(+v.toPrecision(digits));
}
function time(s) {
  if (s === null || s === undefined) return "–";
  if (s < 100) return +s.toPrecision(3) + " s";
  const h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60;
  return h ? `${h}:${String(m).padStart(2, "0")} h` : `${m}:${String(Math.floor(s) % 60).padStart(2, "0")} min`;
}
const onAxis = v => state.axis === "seconds" ? time(v) : count(v);
const value = v => v === null ? "–" : v !== 0 && (Math.abs(v) < 1e-3 || Math.abs(v) >= 1e6) ? v.toExponential(2) : String(+v.toPrecision(5));

// ---- Table of runs, also the legend ---------------------------------------------------------------------------------
function showRuns() {
  const box = $("runs");
  if (!box.children.length && runs.size) {
    const head = make("div", {className: "run head"}, make("span"), make("span", {textContent: "run"}),
      make("span", {textContent: "state"}), make("span", {textContent: "step"}));
    for (const title of ["loss", "validation", "tokens/s", "left"]) head.append(make("span", {className: "number", textContent: title}));
    box.append(head);
  }
  for (const [id, run] of runs) {
    if (!run.row) box.append(run.row = makeRow(id, run));
    fillRow(run);
  }
}
function makeRow(id, run) {
  const check = make("input", {type: "checkbox", id: "show" + id, checked: !state.off[run.data.name]});
  check.style.setProperty("--c", color(id));
  check.addEventListener("change", () => { state.off[run.data.name] = !check.checked; writeAddress(); showRuns(); drawAll(); });
  const line = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  line.setAttribute("viewBox", "0 0 26 10");
  line.innerHTML = `<path d="M0 5H26" stroke="${color(id)}" stroke-width="3" stroke-dasharray="${dash(id).join(" ")}"/>`;
  const label = make("label", {htmlFor: "show" + id}, line, document.createTextNode(run.data.name));
  const parts = {config: make("small"), state: make("span", {className: "state"}), progress: make("span"), bar: make("i")};
  parts.numbers = ["loss", "validation", "tokens/s", "left"].map(title => {
    const cell = make("div", {className: "number"});
    cell.dataset.label = title;
    return cell;
  });
  run.parts = parts;
  return make("div", {className: "run"}, check, make("div", {className: "name"}, label, parts.config), parts.state,
    make("div", {className: "progress"}, parts.progress, make("div", {className: "bar"}, parts.bar)), ...parts.numbers);
}
function fillRow(run) {
  const {data, parts, row} = run, config = Object.entries(data.config);
  const short = config.slice(0, 4).map(([key, v]) => `${key.split(".").pop()} ${v || "-"}`);
  parts.config.textContent = short.join(" · ") + (config.length > 4 ? " · …" : "");
  parts.config.title = Object.entries(data.start).map(([k, v]) => `${k} ${v}`).join(", ");
  row.className = `run ${data.state}${state.off[data.name] ? " off" : ""}`;
  parts.state.textContent = data.loading < 1 ? `reading ${Math.floor(100 * data.loading)}%` : data.state;
  parts.state.title = data.why;
  const now = data.now_step;
  parts.progress.textContent = `${now.toLocaleString("en")}${data.steps ? " / " + data.steps.toLocaleString("en") : ""}` +
    (data.why ? `: ${data.why}` : "");
  parts.bar.style.width = data.steps ? `${Math.min(100, 100 * now / data.steps)}%` : "0";
  const last = data.last, texts = [number(last.loss), number(last.valid_loss), last.tokens_per_s ? count(last.tokens_per_s) : "–", time(data.eta)];
  parts.numbers.forEach((cell, i) => { cell.textContent = texts[i]; });
}

// ---- Other tables -------------------------------------------------------------------------------------------------------
function table(box, head, rows) {
  const text = JSON.stringify([head, rows]);
  if (box.dataset.text === text) return;
  box.dataset.text = text;
  const right = head.map((_, i) => rows.every(row => /^[-\d.,e+]+$/.test(row[i])));
  const line = (tag, cells) => make("tr", {}, ...cells.map((c, i) => make(tag, {textContent: c, className: right[i] ? "n" : ""})));
  box.replaceChildren(make("table", {}, make("thead", {}, line("th", head)), make("tbody", {}, ...rows.map(r => line("td", r)))));
}
function showDifferences() {
  const all = [...runs.values()].map(r => r.data), keys = all.length ? Object.keys(all[0].config) : [];
  $("differs").hidden = !keys.length;
  if (keys.length) table($("differing"), ["key", ...all.map(d => d.name)], keys.map(k => [k, ...all.map(d => d.config[k])]));
}
function showOperands() {
  const rows = [];
  for (const {data} of runs.values())
    for (const x of data.fp8.operands)
      rows.push([data.name, String(data.fp8.step), x.operand, x.format, ...["saturated", "flushed", "amax", "scale"].map(k => x[k] === undefined ? "-" : value(x[k]))]);
  $("fp8").hidden = !rows.length;
  if (rows.length) table($("operands"), ["run", "step", "operand", "format", "saturated", "flushed", "amax", "scale"], rows);
}
let sampleState = "";
function showSampleRuns() {
  const having = [...runs.values()].filter(r => r.data.samples > 0), select = $("sampled");
  $("samples").hidden = !having.length;
  for (const {data} of having)
    if (![...select.options].some(o => o.value === String(data.id))) select.append(make("option", {value: data.id, textContent: data.name}));
  const run = having.find(r => String(r.data.id) === select.value);
  const now = run ? `${run.data.id} ${run.data.samples}` : "";
  if (run && $("samples").open && now !== sampleState) { sampleState = now; showSamples(run.data.id); }
}
async function showSamples(id) {
  const {samples} = await ask("/api/samples?run=" + id);
  $("texts").replaceChildren(...samples.reverse().map(s => make("div", {className: "text"},
    make("small", {textContent: `step ${s.step ?? "?"}${s.ending ? ", " + s.ending : ""}`}),
    make("strong", {textContent: s.prompt ?? ""}), document.createTextNode(s.text ?? ""))));
}

// ---- Curves -------------------------------------------------------------------------------------------------------------
const source = id => (state.zoom && state.part && state.part.get(id)) || (runs.get(id) || {}).curves;
function smoothed(values, half) {
  // Centered moving average over the existing values, `half` on each side; narrower at the ends.
  if (half < 1) return values;
  const sums = [0], counts = [0];
  values.forEach((v, i) => { sums.push(sums[i] + (v ?? 0)); counts.push(counts[i] + (v === null ? 0 : 1)); });
  return values.map((v, i) => {
    if (v === null) return null;
    const reach = Math.min(half, i, values.length - 1 - i);
    return (sums[i + reach + 1] - sums[i - reach]) / (counts[i + reach + 1] - counts[i - reach]);
  });
}
function span(found) {
  if (state.zoom) return {left: state.zoom.low, right: state.zoom.high};
  return {left: Math.min(...found.map(l => l.x[0])), right: Math.max(...found.map(l => l.x[l.x.length - 1]))};
}
function lines(name) {
  const found = [];
  for (const [id, run] of runs) {
    const curves = source(id), series = curves && curves.series[name];
    if (!series || state.off[run.data.name] || series.mean.every(v => v === null)) continue;
    const after = run.data.diverged_after, left = curves.step.findIndex(step => after !== null && step > after);
    found.push({id, name: run.data.name, x: curves[state.axis], raw: series, y: series.mean, course: left < 0 ? Infinity : left});
  }
  if (!found.length || !state.smooth || definition(name).points || definition(name).exact) return found;
  const {left, right} = span(found);
  for (const line of found) {  // over the same range of the axis for all runs, independent of their length
    const step = (line.x[line.x.length - 1] - line.x[0]) / Math.max(1, line.x.length - 1);
    line.y = smoothed(line.y, Math.round(state.smooth / 200 * (right - left) / (step || 1)));
  }
  return found;
}
function ranges(found, log, whole, exact) {
  // The range follows regular values: neither outliers nor a diverged run flatten the others. A zoomed part shows all
  // values.
  const {left, right} = span(found), values = [];
  let low = Infinity, high = -Infinity, least = Infinity, most = -Infinity;
  const early = whole || state.zoom ? -Infinity : left + EARLY * (right - left);
  for (const {x, y, course} of found)
    for (let i = 0; i < y.length; i++) {
      if (y[i] === null || (log && !(y[i] > 0))) continue;
      if (state.zoom && (x[i] < state.zoom.low || x[i] > state.zoom.high)) continue;
      if (x[i] >= early || i === y.length - 1) { least = Math.min(least, y[i]); most = Math.max(most, y[i]); }
      if (!state.zoom && i >= course) continue;
      low = Math.min(low, y[i]);
      if (x[i] >= early || i === y.length - 1) { high = Math.max(high, y[i]); values.push(log ? Math.log(y[i]) : y[i]); }
    }
  if (!(high >= low)) { low = least; high = most; }  // all runs diverged at once
  if (!(high >= low)) { low = log ? 1e-8 : 0; high = 1; }
  if (values.length >= ENOUGH && !state.zoom && !exact) {
    values.sort((a, b) => a - b);
    const at = share => values[Math.round(share * (values.length - 1))], bottom = at(OUTLIERS), top = at(1 - OUTLIERS);
    const back = v => log ? Math.exp(v) : v, reach = (top - bottom) / 2;
    if (reach > 0) { low = Math.max(low, back(bottom - reach)); high = Math.min(high, back(top + reach)); }
  }
  const scale = (bottom, top) => ({left, right, low: bottom, high: top, beyond: least < bottom || most > top});
  if (log) {
    if (high / low < 1.2) { low /= 1.1; high *= 1.1; }
    const room = Math.pow(high / low, 0.05);
    return scale(low / room, high * room);
  }
  const room = 0.06 * (high - low) || Math.abs(high) * 0.05 || 1;
  return scale(low - room, high + room);
}
function ticks(low, high, many) {
  const rough = (high - low) / many, power = Math.pow(10, Math.floor(Math.log10(rough)));
  const size = [1, 2, 5, 10].map(f => f * power).find(s => s >= rough), found = [];
  for (let t = Math.ceil(low / size) * size; t <= high + 1e-9 * size; t += size) found.push(Math.abs(t) < size * 1e-6 ? 0 : t);
  return found;
}
function logTicks(low, high) {
  const decades = Math.log10(high / low), found = [];
  const factors = decades < 1.3 ? [1, 2, 3, 5, 7] : decades < 3 ? [1, 3] : [1], every = Math.max(1, Math.ceil(decades / 6));
  for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p++)
    if (p % every === 0) for (const f of factors) { const t = f * Math.pow(10, p); if (t >= low && t <= high) found.push(t); }
  return found.length > 2 ? found : ticks(low, high, 4);
}

// ---- Charts -------------------------------------------------------------------------------------------------------------
function definition(name) {
  const known = CHARTS.find(c => c.name === name);
  if (known) return known;
  const set = name.match(/^valid\.(.+)\.loss$/) || name.match(/^valid_loss\.(.+)$/);
  if (set) return {name, title: `Validation loss: ${set[1]}`, unit: "nats per token", points: true};
  return {name, title: name, unit: "", more: true};
}
function wantedCharts() {
  const names = new Set(), sets = new Set();
  for (const {curves} of runs.values())
    for (const name of Object.keys(curves.series)) {
      if (NEVER.test(name)) continue;
      names.add(name);
      if (/^valid\.|^valid_loss\./.test(name)) sets.add(name);
    }
  if (sets.size === 1) names.delete([...sets][0]);  // the one set is valid_loss
  const order = CHARTS.map(c => c.name);
  return [...names].sort((a, b) => (order.indexOf(a) + 1 || 99) - (order.indexOf(b) + 1 || 99) || (a < b ? -1 : 1));
}
function makeChart(name) {
  const about = definition(name), button = make("button", {type: "button", textContent: "log"});
  const plot = make("canvas"), over = make("canvas");
  const unit = make("small", {textContent: about.unit});
  const figure = make("figure", {id: "chart-" + name, className: about.wide ? "wide" : ""},
    make("figcaption", {}, document.createTextNode(about.title), unit, button),
    make("div", {className: "plot"}, plot, over));
  plot.setAttribute("role", "img");
  plot.setAttribute("aria-label", about.title);
  const chart = {name, about, figure, plot, over, button, unit};
  button.title = "logarithmic scale";
  button.addEventListener("click", () => { state.log[name] = !isLog(chart); writeAddress(); drawAll(); });
  over.addEventListener("pointermove", event => point(chart, event));
  over.addEventListener("pointerleave", () => { chart.from = null; leave(); });
  over.addEventListener("pointerdown", event => { if (event.pointerType === "mouse") chart.from = event.offsetX; });
  over.addEventListener("pointerup", event => release(chart, event));
  over.addEventListener("dblclick", () => zoom(null));
  $(about.more ? "more-charts" : "charts").append(figure);
  return chart;
}
const isLog = chart => state.log[chart.name] ?? Boolean(chart.about.log);
function drawAll() {
  redraw = false;
  for (const name of wantedCharts()) if (!charts.has(name)) charts.set(name, makeChart(name));
  for (const chart of charts.values()) draw(chart);
  $("more").hidden = !$("more-charts").children.length;
  for (const button of document.querySelectorAll("[data-axis]")) button.setAttribute("aria-pressed", button.dataset.axis === state.axis);
  $("smooth").value = state.smooth;
  $("smoothed").textContent = state.smooth ? `${state.smooth}%` : "off";
  $("unzoom").hidden = !state.zoom;
}
function canvasOf(canvas) {
  const box = canvas.getBoundingClientRect(), scale = devicePixelRatio || 1;
  const width = Math.round(box.width * scale), height = Math.round(box.height * scale);
  if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, box.width, box.height);
  pen.font = "11px system-ui, 'DejaVu Sans', sans-serif";
  return {pen, width: box.width, height: box.height};
}
const ink = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
function draw(chart) {
  const found = lines(chart.name), log = isLog(chart);
  chart.button.setAttribute("aria-pressed", log);
  chart.figure.dataset.lines = found.length;
  chart.figure.dataset.points = found.reduce((sum, l) => sum + l.x.length, 0);
  chart.figure.hidden = !found.length;
  if (!found.length || !chart.plot.getBoundingClientRect().width) { chart.frame = null; return; }
  const {pen, width, height} = canvasOf(chart.plot);
  const range = ranges(found, log, chart.about.points || chart.about.log || ["lr", "tokens_per_s"].includes(chart.name), chart.about.exact);
  chart.unit.textContent = chart.about.unit + (range.beyond ? `${chart.about.unit ? "; " : ""}some values are outside the scale` : "");
  const frame = {left: 58, top: 6, right: width - 10, bottom: height - 20, range, log, found};
  const flat = v => log ? Math.log(v) : v, low = flat(range.low), high = flat(range.high);
  frame.x = v => frame.left + (v - range.left) / (range.right - range.left || 1) * (frame.right - frame.left);
  frame.y = v => frame.bottom - ((log && v <= 0 ? low : flat(v)) - low) / (high - low) * (frame.bottom - frame.top);
  frame.back = px => range.left + (px - frame.left) / (frame.right - frame.left) * (range.right - range.left);
  chart.frame = frame;
  drawAxes(pen, frame, range, log);
  pen.save();
  pen.beginPath(); pen.rect(frame.left, frame.top, frame.right - frame.left, frame.bottom - frame.top); pen.clip();
  for (const line of found) drawLine(pen, frame, line, chart.about, found.length <= MANY);
  pen.restore();
}
function drawAxes(pen, frame, range, log) {
  pen.strokeStyle = ink("--grid"); pen.fillStyle = ink("--soft"); pen.lineWidth = 1;
  pen.textAlign = "right"; pen.textBaseline = "middle";
  const levels = log ? logTicks(range.low, range.high) : ticks(range.low, range.high, 5);
  // Enough digits to distinguish neighboring labels.
  const gap = Math.min(...levels.slice(1).map((t, i) => (t - levels[i]) / Math.max(Math.abs(t), Math.abs(levels[i]))));
  const digits = Math.min(8, Math.max(1, Math.ceil(-Math.log10(gap)) + 1));
  for (const t of levels) {
    const y = Math.round(frame.y(t)) + 0.5;
    pen.beginPath(); pen.moveTo(frame.left, y); pen.lineTo(frame.right, y); pen.stroke();
    const small = t !== 0 && Math.abs(t) < 1e-2;
    pen.fillText(Math.abs(t) >= 1e4 ? count(t, digits) : small ? (+t.toPrecision(digits)).toExponential() : String(+t.toPrecision(Math.max(4, digits))), frame.left - 6, y);
  }
  pen.textBaseline = "top";
  const marks = ticks(range.left, range.right, Math.max(2, (frame.right - frame.left) / 110));
  for (const t of marks) {
    pen.textAlign = frame.x(t) > frame.right - 20 ? "right" : "center";
    pen.fillText(onAxis(t), frame.x(t), frame.bottom + 5);
  }
}
function drawLine(pen, frame, {id, x, y, raw}, {points, peaks}, few) {
  pen.strokeStyle = pen.fillStyle = color(id);
  if (raw.low && peaks && !few) { pen.globalAlpha = 0.3; stroke(pen, frame, x, raw.high, 0.8); }
  if (raw.low && few && y === raw.mean) {  // minimum and maximum of each bucket
    pen.globalAlpha = 0.14;
    pen.beginPath();
    let any = false;
    x.forEach((v, i) => { if (raw.high[i] !== null) { pen[any ? "lineTo" : "moveTo"](frame.x(v), frame.y(raw.high[i])); any = true; } });
    for (let i = x.length - 1; i >= 0; i--) if (raw.low[i] !== null) pen.lineTo(frame.x(x[i]), frame.y(raw.low[i]));
    pen.fill();
  }
  if (y !== raw.mean) { pen.globalAlpha = 0.2; stroke(pen, frame, x, raw.mean, 1); }
  pen.globalAlpha = 1;
  pen.setLineDash(dash(id));
  stroke(pen, frame, x, y, 1.6);
  pen.setLineDash([]);
  const there = y.filter(v => v !== null).length;
  if (points && there <= 60 || there === 1)
    x.forEach((v, i) => { if (y[i] !== null) { pen.beginPath(); pen.arc(frame.x(v), frame.y(y[i]), 2.6, 0, 7); pen.fill(); } });
}
function stroke(pen, frame, x, y, width) {
  pen.lineWidth = width;
  pen.lineJoin = "round";
  pen.beginPath();
  let any = false;
  for (let i = 0; i < x.length; i++) {
    if (y[i] === null) continue;
    pen[any ? "lineTo" : "moveTo"](frame.x(x[i]), frame.y(y[i]));
    any = true;
  }
  pen.stroke();
}

// ---- Pointer ------------------------------------------------------------------------------------------------------------
function nearest(x, y, at) {
  let low = 0, high = x.length - 1;
  while (low < high) { const middle = (low + high) >> 1; if (x[middle] < at) low = middle + 1; else high = middle; }
  for (let reach = 0; reach < x.length; reach++)
    for (const i of [low - reach, low + reach]) if (i >= 0 && i < x.length && y[i] !== null) return i;
  return -1;
}
function point(chart, event) {
  const {frame} = chart;
  if (!frame) return;
  const at = frame.back(Math.min(frame.right, Math.max(frame.left, event.offsetX)));
  for (const other of charts.values()) cross(other, at, other === chart ? chart.from : null, event.offsetX);
  const rows = frame.found.map(line => {
    const i = nearest(line.x, line.y, at);
    return i < 0 ? null : {line, v: line.y[i], far: Math.abs(frame.y(line.y[i]) - event.offsetY)};
  }).filter(Boolean);
  const shown = rows.sort((a, b) => a.far - b.far).slice(0, 12).sort((a, b) => b.v - a.v);
  const tip = $("tip");
  tip.replaceChildren(make("div", {textContent: `${AXES[state.axis]}: ${onAxis(at)}`}), ...shown.map(({line, v}) => {
    const mark = make("i");
    mark.style.setProperty("--c", color(line.id));
    return make("div", {}, mark, make("span", {textContent: line.name}), make("b", {textContent: value(v)}));
  }));
  tip.hidden = false;
  const left = event.clientX + 16 + tip.offsetWidth > innerWidth ? event.clientX - 16 - tip.offsetWidth : event.clientX + 16;
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = Math.max(4, Math.min(event.clientY + 12, innerHeight - tip.offsetHeight - 8)) + "px";
}
function cross(chart, at, from, to) {
  if (!chart.frame || !chart.over.getBoundingClientRect().width) return;
  const {pen} = canvasOf(chart.over), {frame} = chart;
  pen.strokeStyle = ink("--soft"); pen.lineWidth = 1; pen.setLineDash([3, 3]);
  const x = Math.round(frame.x(at)) + 0.5;
  pen.beginPath(); pen.moveTo(x, frame.top); pen.lineTo(x, frame.bottom); pen.stroke();
  if (from !== null && from !== undefined) {
    pen.globalAlpha = 0.12; pen.fillStyle = ink("--ink");
    pen.fillRect(Math.min(from, to), frame.top, Math.abs(to - from), frame.bottom - frame.top);
    pen.globalAlpha = 1;
  }
}
function leave() {
  $("tip").hidden = true;
  for (const chart of charts.values()) if (chart.over.getBoundingClientRect().width) canvasOf(chart.over);
}
function release(chart, event) {
  const {frame, from} = chart;
  chart.from = null;
  if (!frame || from === null || from === undefined || Math.abs(event.offsetX - from) < 8) return;
  const ends = [from, event.offsetX].map(px => frame.back(Math.min(frame.right, Math.max(frame.left, px)))).sort((a, b) => a - b);
  zoom({low: ends[0], high: ends[1]});
}
async function lookCloser() {
  const {zoom: wanted, axis} = state;
  const answer = await ask(`/api/part?axis=${axis}&low=${wanted.low}&high=${wanted.high}`);
  if (state.zoom !== wanted || state.axis !== axis) return;
  state.part = new Map(answer.runs.map(r => [r.id, r]));
  state.asked = Date.now();
  redraw = true;
}
async function zoom(wanted) {
  state.zoom = wanted;
  state.part = null;
  drawAll();
  if (wanted) { try { await lookCloser(); drawAll(); } catch { /* keep the coarse curves */ } }
}

// ---- Start --------------------------------------------------------------------------------------------------------------
readAddress();
for (const button of document.querySelectorAll("[data-axis]"))
  button.addEventListener("click", () => { state.axis = button.dataset.axis; zoom(null); writeAddress(); });
$("smooth").addEventListener("input", () => { state.smooth = Number($("smooth").value); writeAddress(); drawAll(); });
$("unzoom").addEventListener("click", () => zoom(null));
$("more").addEventListener("toggle", drawAll);
$("samples").addEventListener("toggle", showSampleRuns);
$("sampled").addEventListener("change", showSampleRuns);
new ResizeObserver(() => drawAll()).observe($("charts"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
drawAll();
poll();
