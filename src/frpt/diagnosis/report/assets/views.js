// The sections, and what happens when the reader chooses something.

function trustCurve() {
  const tipOf = (u, i) => {
    const lines = [`${i + 1}. ${u.name}${u.layer ? ` → ${u.layer}` : ""}`, `worst case ${num(u.bound)}`];
    lines.push(`CCP ${num(u.ccp)}, fallback ${pct(u.fallback)}, ρ ${num(u.rho)}`);
    if (isNumber(u.sigma_max)) lines.push(`σ from ${num(u.sigma_min)} to ${num(u.sigma_max)}`);
    return lines.join("\n");
  };
  curves(byId("trust"), () => {
    // A bound of zero has no place on a log axis: it is drawn at the bottom.
    const least = Math.min(...data.units.map((u) => u.bound).filter((b) => isNumber(b) && b > 0), 0.1);
    const points = data.units.map((u, i) => ({
      x: i + 1,
      y: isNumber(u.bound) ? Math.max(u.bound, least / 2) : null,
      tip: tipOf(u, i),
      name: u.layer,
      shape: u.layer ? "diamond" : "circle",
      tone: "blue",
    }));
    return {
      series: [{ tone: "blue", points }],
      refs: [{ y: 1, name: "from here on all of the correction may be error", tone: "bad", side: "left" }],
      x: { label: "unit, output first", whole: true },
      y: { label: "worst-case error, relative to the correction (log)", log: true },
      nothing: "No bound was measured.",
    };
  });
}

const layerRows = (value, format, what) =>
  data.layers.map((l, i) => ({
    name: l.name,
    value: value(l),
    chosen: i === state.layer,
    pick: () => choose({ layer: i }),
    tip: `${l.name}\n${what} ${format(value(l))}\ncloses ${pct(l.closed)} of the output's residual`,
  }));

function layerBars() {
  const redraw = [
    bars(byId("deviation"), () => ({ rows: layerRows((l) => l.deviation, num, "deviation") })),
    bars(byId("fault"), () => ({ rows: layerRows((l) => l.fault, num, "fault score") })),
  ];
  on(["layer"], () => redraw.forEach((run) => run()));
}

function heatMap() {
  const run = grid(byId("heat"), () => ({
    rows: data.heat.map(className),
    columns: data.layers.map((l) => l.name),
    value: (r, c) => data.layers[c].byClass[data.heat[r]],
    show: (v) => num(v, 2),
    tip: (r, c) => {
      const v = data.layers[c].byClass[data.heat[r]];
      return `${className(data.heat[r])} at ${layerName(c)}\n${isNumber(v) ? `deviation ${num(v)}` : "no sample needs a correction"}`;
    },
    pick: (r, c) => choose({ layer: c, class: data.heat[r] }),
    chosen: (r, c) => c === state.layer && data.heat[r] === state.class,
    corner: "class",
  }));
  on(["layer", "class"], run);
}

const shareRows = (list) => list.map(([c, share]) => ({ name: `channel ${c}`, value: share }));
const shareSpec = (list) => ({ rows: shareRows(list), format: pct, columns: ["channel", "share"] });

function channels() {
  const run = bars(byId("channel-bars"), () => shareSpec(data.layers[state.layer]?.channels[state.class] ?? []));
  const map = positions(byId("positions"));
  on(["layer", "class"], run);
  on(["layer"], map);
}

function confusions() {
  if (data.pairs.length) {
    const pair = () => data.pairs[state.pair];
    const byLayer = bars(byId("pair-layers"), () => ({
      rows: data.layers.map((l, i) => ({
        name: l.name, value: pair().deviation[l.name] ?? null, chosen: i === state.layer, pick: () => choose({ layer: i }),
      })),
      columns: ["layer", "deviation"],
    }));
    const moving = bars(byId("pair-channels"), () => shareSpec(data.layers.length ? pair().channels[layerName(state.layer)] ?? [] : []));
    on(["pair", "layer"], () => [byLayer, moving].forEach((run) => run()));
  }
  if (!data.confusion) return;
  const ids = data.confusion.map((_, i) => i);
  const find = (r, c) => data.pairs.findIndex((p) => p.label === r && p.predicted === c);
  const run = grid(byId("matrix"), () => ({
    rows: ids.map(className),
    columns: ids.map(className),
    value: (r, c) => data.confusion[r][c],
    show: (v) => (v ? String(v) : ""),
    tip: (r, c) => `${className(r)} taken for ${className(c)}\n${data.confusion[r][c]} samples`,
    pick: (r, c) => find(r, c) >= 0 && choose({ pair: find(r, c) }),
    chosen: (r, c) => data.pairs.length > 0 && find(r, c) === state.pair,
    plain: (r, c) => r === c,
    corner: "label",
    tiny: ids.length > 16,
  }));
  on(["pair"], run);
}

function controls() {
  const layers = () => data.layers.map((l, i) => [i, l.name]);
  const classes = () => [[-1, "all classes"], ...data.classes.map((c) => [c, className(c)])];
  const pairs = () => data.pairs.map((p, i) => [i, `${className(p.label)} → ${className(p.predicted)} (${p.count})`]);
  const layerSelects = ["channels-layer", "pair-layer", "gallery-layer"].map((id) => select(id, "layer", layers));
  const classSelects = ["channels-class", "gallery-class", "samples-class"].map((id) => select(id, "class", classes));
  const pairSelect = select("pair", "pair", pairs);
  on(["layer"], () => layerSelects.forEach((show) => show?.()));
  on(["class"], () => classSelects.forEach((show) => show?.()));
  on(["pair"], () => pairSelect?.());
}

function appearance() {
  const button = byId("theme");
  button.addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]));
  const redraw = () => drawn.forEach((run) => run());
  on(["theme"], redraw);
  systemDark.addEventListener("change", redraw);
  for (const [event, value] of [["beforeprint", true], ["afterprint", false]]) {
    addEventListener(event, () => {
      printing = value;
      redraw();
    });
  }
}

controls();
if (data.units.length) trustCurve();
layerBars();
heatMap();
channels();
confusions();
setUpGallery();
setUpRepair();
setUpRuns();
setUpTables();
appearance();
document.documentElement.dataset.ready = "";
