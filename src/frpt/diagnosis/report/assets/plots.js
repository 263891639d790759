// Plots in SVG, drawn at the width they have so that text keeps its size.

const drawn = [];

function plot(host, draw) {
  // draw(width) returns { label, marks, node, table }; it runs again when the width changes.
  if (!host) return () => {};
  let width = 0;
  const run = () => {
    width = printing ? (host.closest(".two") ? 330 : 680) : host.clientWidth; // paper: what is left of A4
    if (width < 40 || !host.isConnected) return;
    const focused = host.contains(document.activeElement);
    const { node, marks, table } = draw(Math.max(240, width));
    host.replaceChildren(node);
    if (marks.length) roving(host, marks);
    if (focused && marks.length) marks[Math.min(Number(host.dataset.at) || 0, marks.length - 1)].focus();
    if (table) numbers(host, host.dataset.label, table.columns, table.rows);
  };
  new ResizeObserver(() => !printing && Math.abs(host.clientWidth - width) > 1 && run()).observe(host);
  drawn.push(run);
  run();
  return run;
}

const frame = (width, height, label, children) =>
  svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": label }, ...children);
const text = (x, y, content, attributes = {}) => svg("text", { x, y, ...attributes }, content);
const empty = (message) => ({ node: el("p", { class: "nothing" }, message), marks: [] });

function mark(node, label, pick, pressed) {
  fill(node, { role: pick ? "button" : "img", "aria-label": label.replaceAll("\n", ", ") }, []);
  node.classList.add("mark");
  if (pick) {
    node.setAttribute("aria-pressed", String(Boolean(pressed)));
    node.addEventListener("click", pick);
  }
  return tipped(node, label);
}

// Horizontal bars. rows: { name, value, tip, pick, chosen, tone }.
function bars(host, spec) {
  return plot(host, (width) => {
    const { rows, format = num, signed = false, columns } = spec();
    if (!rows.length) return empty("Nothing to show.");
    const longest = Math.max(...rows.map((r) => lettersWide(r.name)));
    const left = Math.min(width * 0.4, longest * 7 + 14);
    const right = 58;
    const room = width - left - right - (signed ? 58 : 0);
    const zero = left + (signed ? 58 + room / 2 : 0);
    const top = Math.max(...rows.map((r) => Math.abs(r.value ?? 0))) || 1;
    const step = 27;
    const height = rows.length * step + 6;
    const marks = rows.map((r, i) => {
      const y = 3 + i * step;
      const size = (Math.abs(r.value ?? 0) / top) * (signed ? room / 2 : room);
      const back = signed && r.value < 0;
      const end = back ? zero - size : zero + size;
      const g = svg("g", { class: `bar ${r.tone ?? ""} ${r.chosen ? "chosen" : ""}` });
      g.append(
        svg("rect", { class: "hit", x: 0, y, width, height: step }),
        text(left - 8, y + step / 2, short(r.name, left - 10), { class: "name", "text-anchor": "end" }),
        svg("rect", { class: "ink", x: Math.min(zero, end), y: y + 5, width: Math.max(size, 1), height: step - 10, rx: 3 }),
        text(end + (back ? -6 : 6), y + step / 2, format(r.value), { class: "value", "text-anchor": back ? "end" : "start" }),
      );
      return mark(g, r.tip ?? `${r.name}: ${format(r.value)}`, r.pick, r.chosen);
    });
    const axis = svg("line", { class: "axis", x1: zero, x2: zero, y1: 2, y2: height - 2 });
    const table = columns ? { columns, rows: rows.map((r) => [r.name, r.value]) } : null;
    return { node: frame(width, height, host.dataset.label, [axis, ...marks]), marks, table };
  });
}

function linearTicks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((k) => k * unit).find((s) => s >= raw * 0.999);
  const ticks = [];
  for (let t = Math.ceil(low / step - 1e-9); t * step <= high + step * 1e-9; t++) ticks.push(Number((t * step).toPrecision(12)));
  return ticks;
}

function scale(values, low, high, { log = false, count = 5, pad = 0.06 } = {}) {
  // Maps values to pixels between low and high, with ticks.
  let found = values.filter((v) => isNumber(v) && (!log || v > 0)).map((v) => (log ? Math.log10(v) : v));
  if (!found.length) found = [0, 1];
  let a = Math.min(...found), b = Math.max(...found);
  if (b - a < 1e-12) [a, b] = [a - (log ? 0.5 : Math.abs(a) * 0.1 || 0.5), b + (log ? 0.5 : Math.abs(b) * 0.1 || 0.5)];
  [a, b] = [a - (b - a) * pad, b + (b - a) * pad];
  const to = (v) => low + ((log ? Math.log10(Math.max(v, 10 ** a)) : v) - a) / (b - a) * (high - low);
  let ticks;
  if (!log) ticks = linearTicks(a, b, count);
  else {
    const jump = Math.max(1, Math.ceil((b - a) / count));
    ticks = [];
    for (let e = Math.floor(a); e <= b; e++) {
      const inside = b - a < 1.6 ? [1, 2, 5] : [1];
      for (const k of inside) if (e % jump === 0 && e + Math.log10(k) >= a && e + Math.log10(k) <= b) ticks.push(k * 10 ** e);
    }
  }
  return { to, ticks };
}

const SHAPES = {
  circle: (x, y) => svg("circle", { cx: x, cy: y, r: 4 }),
  diamond: (x, y) => svg("path", { d: `M${x} ${y - 7}l7 7l-7 7l-7 -7z` }),
  square: (x, y) => svg("rect", { x: x - 4, y: y - 4, width: 8, height: 8 }),
  triangle: (x, y) => svg("path", { d: `M${x} ${y - 5}l5 9h-10z` }),
};

// Points and lines over two axes. series: { name, tone, dash, line, dots, points: [{ x, y, tip, shape, name }] };
// refs: horizontal lines { y, name, tone, side: where the name stands, "left" or "right" }.
function curves(host, spec) {
  return plot(host, (width) => {
    const { series, refs = [], x: xAxis, y: yAxis, table = null, height = 300, nothing } = spec();
    const points = series.flatMap((s) => s.points).filter((p) => isNumber(p.y) && isNumber(p.x));
    if (!points.length) return empty(nothing ?? "Nothing was measured.");
    const [left, right, top, bottom] = [56, 16, 20, height - 44];
    const xs = scale(xAxis.values ?? points.map((p) => p.x), left, width - right, { count: width / 90, pad: xAxis.pad ?? 0.04 });
    const ys = scale([...points, ...refs].map((p) => p.y), bottom, top, { log: yAxis.log, count: 6 });
    const parts = [];
    for (const t of ys.ticks) {
      parts.push(svg("line", { class: "rule", x1: left, x2: width - right, y1: ys.to(t), y2: ys.to(t) }));
      parts.push(text(left - 8, ys.to(t), yAxis.log ? power(t) : num(t), { class: "tick", "text-anchor": "end" }));
    }
    const whole = xs.ticks.filter((t) => !xAxis.whole || Number.isInteger(t));
    for (const t of whole) parts.push(text(xs.to(t), bottom + 18, num(t), { class: "tick", "text-anchor": "middle" }));
    parts.push(svg("line", { class: "axis", x1: left, x2: width - right, y1: bottom, y2: bottom }));
    parts.push(text((left + width - right) / 2, height - 8, xAxis.label, { class: "title", "text-anchor": "middle" }));
    parts.push(text(4, 8, yAxis.label, { class: "title" }));
    for (const r of refs) {
      const y = ys.to(r.y);
      parts.push(svg("line", { class: `ref ${r.tone ?? ""}`, x1: left, x2: width - right, y1: y, y2: y }));
      const [x, anchor] = r.side === "left" ? [left, "start"] : [width - right, "end"];
      parts.push(text(x, y - 8, r.name, { class: `refname ${r.tone ?? ""}`, "text-anchor": anchor }));
    }
    const marks = [];
    for (const s of series) {
      if (s.line !== false) parts.push(path(s, xs, ys));
      if (s.dots === false) continue;
      for (const p of s.points.filter((q) => isNumber(q.y) && isNumber(q.x))) {
        const shape = SHAPES[p.shape ?? s.shape ?? "circle"](xs.to(p.x), ys.to(p.y));
        const hit = svg("circle", { class: "hit", cx: xs.to(p.x), cy: ys.to(p.y), r: 11 });
        marks.push(mark(svg("g", { class: `dot ${p.tone ?? s.tone ?? ""}` }, hit, shape), p.tip, p.pick, false));
      }
    }
    return { node: frame(width, height, host.dataset.label, [...parts, ...marks, ...pointNames(points, xs, ys, width)]), marks, table };
  });
}

function power(value) {
  // A tick of a log axis: small and large powers of ten as such.
  const e = Math.round(Math.log10(value));
  if (Math.abs(e) < 3 || Math.abs(value / 10 ** e - 1) > 1e-9) return num(value);
  return "10" + [...String(e)].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("");
}

function path(s, xs, ys) {
  let d = "", pen = "M";
  for (const p of s.points) {
    if (isNumber(p.y) && isNumber(p.x)) d += `${pen}${xs.to(p.x).toFixed(1)} ${ys.to(p.y).toFixed(1)}`;
    pen = isNumber(p.y) ? "L" : "M";
  }
  return svg("path", { class: `line ${s.tone ?? ""} ${s.thin ? "thin" : ""}`, d });
}

function pointNames(points, xs, ys, width) {
  // Names of points, above or below them, where they do not collide.
  const taken = [];
  const found = [];
  for (const p of points.filter((q) => q.name)) {
    const shown = short(p.name, 110, 11.5);
    const half = lettersWide(shown) * 3.4;
    const x = Math.min(width - 16 - half, Math.max(56 + half, xs.to(p.x)));
    for (const dy of [-14, 20]) {
      const y = ys.to(p.y) + dy;
      if (y < 14 || taken.some((t) => Math.abs(t.x - x) < t.half + half + 6 && Math.abs(t.y - y) < 15)) continue;
      taken.push({ x, y, half });
      found.push(text(x, y, shown, { class: "pointname", "text-anchor": "middle" }));
      break;
    }
  }
  return found;
}

// Differences with their interval. rows: { name, tone, mean, low, high, dots: [{ value, tip }] }.
function intervals(host, spec) {
  return plot(host, (width) => {
    const { rows, label, table } = spec();
    const step = 54;
    const height = rows.length * step + 48;
    const left = Math.min(130, width * 0.3);
    const values = rows.flatMap((r) => [r.mean, r.low, r.high, ...r.dots.map((d) => d.value), 0]);
    const xs = scale(values, left, width - 16, { count: width / 110 });
    const bottom = height - 42;
    const parts = xs.ticks.flatMap((t) => [
      svg("line", { class: "rule", x1: xs.to(t), x2: xs.to(t), y1: 6, y2: bottom }),
      text(xs.to(t), bottom + 16, num(t), { class: "tick", "text-anchor": "middle" }),
    ]);
    parts.push(svg("line", { class: "ref", x1: xs.to(0), x2: xs.to(0), y1: 4, y2: bottom }));
    parts.push(text((left + width - 16) / 2, height - 8, label, { class: "title", "text-anchor": "middle" }));
    const marks = [];
    rows.forEach((r, i) => {
      const y = 6 + i * step + step / 2;
      parts.push(text(left - 10, y, short(r.name, left - 12), { class: "name", "text-anchor": "end" }));
      if (isNumber(r.low) && isNumber(r.high))
        parts.push(svg("line", { class: `span ${r.tone}`, x1: xs.to(r.low), x2: xs.to(r.high), y1: y, y2: y }));
      for (const d of r.dots.filter((q) => isNumber(q.value))) {
        const hit = svg("circle", { class: "hit", cx: xs.to(d.value), cy: y + 13, r: 9 });
        marks.push(mark(svg("g", { class: `dot small ${r.tone}` }, hit, svg("circle", { cx: xs.to(d.value), cy: y + 13, r: 3 })), d.tip));
      }
      if (!isNumber(r.mean)) return;
      const said = `${r.name}, mean difference ${num(r.mean)}` + (isNumber(r.low) ? `\n95 %: ${num(r.low)} to ${num(r.high)}` : "");
      marks.push(mark(svg("g", { class: `dot ${r.tone}` }, SHAPES.diamond(xs.to(r.mean), y)), said));
    });
    return { node: frame(width, height, host.dataset.label, [...parts, ...marks]), marks, table };
  });
}
