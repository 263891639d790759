// A repair: pictures of what it fixed and broke, what every strength would have cost, which weights and features moved.

const GROUPS = {
  "not fixed": ["Not fixed", "bad"], lost: ["Were right, are wrong", "bad"], fixed: ["Fixed", "blue"],
  broken: ["Old samples that broke", "orange"], mended: ["Old samples that were mended", "grey"],
};

function repairCard(card, tone) {
  const [h, w] = card.image.size;
  const words = card.label === "–" ? `missed its target by ${card.before}, now by ${card.after}` : `${card.label}: taken for ${card.before}, now ${card.after}`;
  const image = el("img", { src: card.image.url, alt: `Sample ${card.index}, ${words}`, width: w, height: h, loading: "lazy" });
  if (Math.max(h, w) < 96) image.classList.add("small");
  const name = card.label === "–" ? `sample ${card.index}` : card.label;
  const caption = el("figcaption", {}, el("strong", {}, name), el("span", {}, `${card.before} → ${card.after}`.replaceAll(" %", "\u00a0%")));
  return tipped(el("figure", { class: tone }, image, caption), `Sample ${card.index}\n${words}`);
}

function repairCards(groups, host) {
  for (const group of groups) {
    const [title, tone] = GROUPS[group.state];
    const more = group.cards.length < group.count ? `, ${group.cards.length} of them shown` : "";
    host.append(el("h3", {}, `${title} (${group.count}${more})`));
    host.append(el("div", { class: "cards" }, ...group.cards.map((card) => repairCard(card, tone))));
  }
}

function repairCurve(id, tried, value, label) {
  const points = tried.filter((t) => isNumber(t[value])).map((t) => ({
    x: t[value], y: 100 * t.fixed, shape: t.chosen ? "diamond" : "circle", tone: t.chosen ? "orange" : "blue",
    name: t.strength === null ? "as it was" : `λ ${num(t.strength)}`,
    tip: (t.strength === null ? "as it was" : `strength ${num(t.strength)}${t.chosen ? ", taken" : ""}`) +
      `\n${pct(t.fixed)} right\npredicted KL ${num(t.kl)}` + (isNumber(t.broken) ? `\n${num(t.broken)} % of old samples broken` : ""),
  }));
  curves(byId(id), () => ({ series: [{ tone: "blue", points }], x: { label }, y: { label: "right of the samples given, %" }, height: 280 }));
}

function setUpRepair() {
  const repair = data.repair;
  if (!repair) return;
  repairCards(repair.groups, byId("repair-cards"));
  repairCurve("repair-kl", repair.curve, "kl", "predicted KL on old inputs, nats");
  repairCurve("repair-broken", repair.curve, "broken", "broken old samples less mended ones, %");
  bars(byId("repair-weights"), () => ({
    rows: repair.weights.map(([name, share]) => ({ name, value: share, tip: `${name}\nmoved by ${pct(share)} of its norm` })), format: pct,
  }));
  bars(byId("repair-features"), () => ({
    rows: repair.features.flatMap((f) => [
      { name: `${f.layer}: moved`, value: f.deviation, tone: "blue", tip: `${f.layer}\nmoved by ${pct(f.deviation)} of the norm\ncosine with the target's direction ${num(f.cosine, 2)}` },
      { name: `${f.layer}: target`, value: f.asked, tone: "grey", tip: `${f.layer}\nnearest target ${pct(f.asked)} away` },
    ]),
    format: pct,
  }));
}
