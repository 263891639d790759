// Post-training: curves with seeds, paired differences, flips; deviation against score along training.

const TONES = { "back-propagation": "grey", "anchor-only": "orange", "FR-PT": "blue" };
const ARM_SHAPES = { grey: "square", orange: "triangle", blue: "circle" };
const capital = (t) => t.charAt(0).toUpperCase() + t.slice(1);
const toneOf = (name, i) => TONES[name] ?? ["grey", "orange", "blue"][i % 3];

function figureIn(host, title, note) {
  const plotHost = el("div", { class: "plot", "data-label": title });
  host.append(el("div", { class: "figure" }, el("h4", {}, title), note ? el("p", { class: "note" }, note) : null, plotHost));
  return plotHost;
}

function armLegend(arms) {
  return el("p", { class: "keys" }, ...arms.map((a, i) => el("span", { class: `key ${toneOf(a.name, i)}` }, a.name)));
}

const meanOf = (list) => {
  const found = list.filter(isNumber);
  return found.length && found.length === list.length ? found.reduce((a, b) => a + b, 0) / found.length : null;
};

function comparison(run, host) {
  const curve = figureIn(host, `${capital(run.metric)} over epochs`, "Thick: mean over seeds. Thin: one seed each.");
  curve.before(armLegend(run.arms));
  const series = run.arms.flatMap((arm, i) => {
    const tone = toneOf(arm.name, i);
    const start = { x: 0, y: run.start, tip: `start: ${num(run.start, 4)}` };
    const thin = arm.runs.map((r) => ({
      tone, thin: true, dots: false,
      points: [start, ...r.epoch.map((e, k) => ({ x: e, y: r.values[k] }))],
    }));
    const epochs = arm.runs[0]?.epoch ?? [];
    const mean = epochs.map((e, k) => {
      const y = meanOf(arm.runs.map((r) => r.values[k]));
      return { x: e, y, tip: `${arm.name}, epoch ${e}\nmean ${run.metric} ${num(y, 4)}` };
    });
    return [...thin, { tone, shape: ARM_SHAPES[tone], points: mean }];
  });
  const rows = run.arms.flatMap((a) => a.runs.flatMap((r) => r.epoch.map((e, k) => [a.name, r.seed, e, r.values[k]])));
  const refs = isNumber(run.start) ? [{ y: run.start, name: "start" }] : [];
  curves(curve, () => ({
    series, refs, x: { label: "epoch", whole: true }, y: { label: run.metric },
    table: { columns: ["arm", "seed", "epoch", run.metric], rows },
  }));
  if (run.gaps.length) differences(run, host);
  const flips = run.flips.filter((f) => isNumber(f.fixed) && isNumber(f.broken));
  if (!flips.length) return;
  const list = flips.flatMap((f) => [
    { name: `${f.name}: fixed`, value: f.fixed, tone: "blue", tip: `${f.name}\nfixed: ${num(f.fixed)} samples` },
    { name: `${f.name}: broken`, value: -f.broken, tone: "orange", tip: `${f.name}\nbroken: ${num(f.broken)} samples` },
  ]);
  const flipHost = figureIn(host, "Flips", "Samples better (fixed) and worse (broken) than under the starting model, mean over seeds.");
  bars(flipHost, () => ({ rows: list, signed: true, format: (v) => num(Math.abs(v)), columns: ["flips", "samples"] }));
}

function differences(run, host) {
  const gapHost = figureIn(host, "Paired differences to back-propagation", "Dots: seeds. Diamond and line: mean and its 95 % interval.");
  const list = run.gaps.map((g, i) => ({
    ...g, tone: toneOf(g.name, i + 1),
    dots: g.values.map((v, k) => ({ value: v, tip: `${g.name}, seed ${g.seeds[k]}\ndifference ${num(v)}` })),
  }));
  const table = { columns: ["arm", "seed", "difference"], rows: run.gaps.flatMap((g) => g.values.map((v, k) => [g.name, g.seeds[k], v])) };
  intervals(gapHost, () => ({ rows: list, label: `difference in ${run.metric}`, table }));
}

function single(run, host) {
  const line = (title, values, start) => {
    if (!values.some(isNumber)) return;
    const points = run.epoch.map((e, k) => ({ x: e, y: values[k], tip: `epoch ${e}\n${title} ${num(values[k], 4)}` }));
    if (isNumber(start)) points.unshift({ x: 0, y: start, tip: `start\n${title} ${num(start, 4)}` });
    curves(figureIn(host, capital(title)), () => ({ series: [{ tone: "blue", points }], x: { label: "epoch", whole: true }, y: { label: title }, height: 240 }));
  };
  line(run.metric, run.values, run.start);
  line("task loss", run.loss);
  line("distance", run.distance);
  const last = run.flips.at(-1);
  if (!last || !isNumber(last[0]) || !isNumber(last[1])) return;
  const rows = [
    { name: "fixed", value: last[0], tone: "blue" },
    { name: "broken", value: -last[1], tone: "orange" },
  ];
  bars(figureIn(host, "Flips after the last epoch"), () => ({ rows, signed: true, format: (v) => num(Math.abs(v)) }));
}

function trajectory(run, host) {
  for (const layer of run.layers) {
    const points = run.checkpoints.map((c, k) => ({
      x: layer.deviation[k], y: run.score[k],
      tip: `${c}\ndeviation ${num(layer.deviation[k])}\n${run.metric} ${num(run.score[k], 4)}`,
    }));
    const said = `Pearson ${num(layer.pearson, 2)}, Spearman ${num(layer.spearman, 2)}.`;
    curves(figureIn(host, layer.name, said), () => ({
      series: [{ tone: "blue", line: false, points }], x: { label: "deviation" }, y: { label: run.metric }, height: 240,
      table: { columns: ["checkpoint", "deviation", run.metric], rows: run.checkpoints.map((c, k) => [c, layer.deviation[k], run.score[k]]) },
    }));
  }
}

function setUpRuns() {
  const kinds = { comparison, run: single, trajectory };
  data.runs.forEach((run, i) => kinds[run.kind](run, byId(`run-plots-${i}`)));
}
