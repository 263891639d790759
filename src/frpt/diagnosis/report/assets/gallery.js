// The gallery: one sample at one layer, as input, forward, reconstructed and difference.

const PANELS = ["Forward", "Reconstructed", "Difference"];
const PANEL_NOTES = ["the feature the layer has", "the feature it should have had", "what would have to change"];
const pictures = new Map();
const inClass = () => data.gallery.map((s, i) => i).filter((i) => state.class < 0 || data.gallery[i].label === state.class);

function pictureOf(sample) {
  // A promise of the decoded input; null if it is no picture.
  if (!sample.image) return Promise.resolve(null);
  if (!pictures.has(sample.index)) {
    const image = new Image();
    image.src = sample.image.url;
    pictures.set(sample.index, image.decode().then(() => image, () => null));
  }
  return pictures.get(sample.index);
}

function unpack(response) {
  // Three maps of values in [0, 1].
  const [h, w] = response.size;
  const bytes = Uint8Array.from(atob(response.maps), (c) => c.charCodeAt(0));
  return PANELS.map((_, k) => Float32Array.from(bytes.subarray(k * h * w, (k + 1) * h * w), (v) => v / 255));
}

function canvasSize(sample, response) {
  const side = 288;
  const [h, w] = sample.image?.size ?? response?.size ?? [1, 1];
  if (h === 1) return [64, side];
  return [Math.max(32, Math.round((side * h) / Math.max(h, w))), Math.max(32, Math.round((side * w) / Math.max(h, w)))];
}

function paint(canvas, image, values, size) {
  // The input below, the map above it.
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  context.globalAlpha = 1;
  context.clearRect(0, 0, width, height);
  if (image && (state.overlay || !values)) {
    context.imageSmoothingEnabled = image.naturalWidth > 96;
    context.drawImage(image, 0, 0, width, height);
  }
  if (!values) return;
  context.globalAlpha = image && state.overlay ? state.opacity / 100 : 1;
  context.drawImage(coloured(values, size[0], size[1], height, width, RESPONSE), 0, 0);
}

const titled = (sample) => `Sample ${sample.index}${sample.name ? ` (${sample.name})` : ""}`;

const said = (sample) => {
  if (sample.label < 0) return sample.says;
  const classes = `${className(sample.label)} taken for ${className(sample.predicted)}`;
  return sample.label === sample.predicted ? `${className(sample.label)}, recognised` : classes;
};

function panel(title, note, content) {
  return el("figure", {}, content, el("figcaption", {}, el("strong", {}, title), el("span", {}, note)));
}

function vectorPanel(response, k, name) {
  const rows = response.channels.map((c, i) => ({ name: `channel ${c}`, value: response.values[k][i] }));
  const host = el("div", { class: "plot", "data-label": `${PANELS[k]}: attributions of channels at ${name}` });
  const box = panel(PANELS[k], PANEL_NOTES[k], host);
  requestAnimationFrame(() => bars(host, () => ({ rows, signed: true, columns: ["channel", "attribution"] })));
  return box;
}

function wordsPanel(sample, title, note, values) {
  // The words of a sample, each on the colour of its response; without values as plain text.
  const host = el("p", { class: "words" });
  sample.words.forEach((word, i) => {
    const span = el("span", {}, word);
    if (values && i < values.length) {
      const colour = rampColour(RESPONSE, values[i]);
      span.style.background = rgb(colour);
      span.style.color = inkOn(colour);
      tipped(span, `${word}\nresponse ${num(values[i])}`);
    }
    host.append(span, " ");
  });
  return panel(title, note, host);
}

function drawingPanel(sample, name) {
  const drawing = sample.drawings[name];
  const [height, width] = drawing.size;
  const image = el("img", { src: drawing.url, width, height, alt: `Output before, target and output after of sample ${sample.index}, ${said(sample)}` });
  const box = panel("Outputs", `before: what the network says; target: the label; after: the network run on from the target of ${name}`, image);
  box.classList.add("drawing");
  return box;
}

let shownSample = 0; // counts redraws, so that a picture that arrives late is not drawn over a newer one

async function showSample() {
  const list = inClass();
  const host = byId("panels");
  const about = byId("about");
  byId("previous").disabled = byId("next").disabled = list.length < 2;
  if (!list.length) {
    about.replaceChildren(`No sample of ${className(state.class)} was chosen to be looked at. `);
    about.append(el("button", { type: "button", onclick: () => choose({ class: -1 }) }, "Show all classes"));
    host.replaceChildren();
    return;
  }
  const turn = ++shownSample;
  const sample = data.gallery[state.sample];
  const name = data.layers.length ? layerName(state.layer) : "";
  const response = sample.responses[name];
  const words = [titled(sample), said(sample), `deviation ${num(sample.deviation[name])} at ${name}`];
  if (isNumber(sample.closed[name])) words.push(`closes ${pct(sample.closed[name])}`);
  const line = words.filter(Boolean).join(" · ") + ` (${list.indexOf(state.sample) + 1} of ${list.length})`;
  if (about.textContent !== line) about.textContent = line; // it is read out when it changes
  const image = await pictureOf(sample);
  if (turn !== shownSample) return;
  drawPanels(host, sample, response, image, name);
}

function drawPanels(host, sample, response, image, name) {
  const [height, width] = canvasSize(sample, response);
  const canvas = (label, values) => {
    const node = el("canvas", { width, height, role: "img", "aria-label": label });
    paint(node, image, values, response?.size);
    return node;
  };
  const found = [];
  const words = sample.words.length > 0;
  if (image) found.push(panel("Input", said(sample) || titled(sample), canvas(`Input of sample ${sample.index}, ${said(sample)}`, null)));
  else if (words) found.push(wordsPanel(sample, "Input", said(sample) || titled(sample), null));
  const vector = response?.kind === "vector";
  if (!response) found.push(el("p", { class: "nothing" }, "There is no response at this layer."));
  else if (vector) PANELS.forEach((_, k) => found.push(vectorPanel(response, k, name)));
  else if (words && response.kind === "tokens" && response.size[0] === 1 && response.size[1] >= sample.words.length)
    unpack(response).forEach((values, k) => found.push(wordsPanel(sample, PANELS[k], PANEL_NOTES[k], values)));
  else
    unpack(response).forEach((values, k) => {
      found.push(panel(PANELS[k], PANEL_NOTES[k], canvas(`${PANELS[k]} response at ${name}: ${PANEL_NOTES[k]}`, values)));
    });
  if (sample.drawings[name]) found.push(drawingPanel(sample, name));
  host.classList.toggle("vectors", vector);
  host.replaceChildren(...found);
  byId("map-controls").hidden = !response || vector;
  byId("overlay").disabled = !image;
  byId("opacity").disabled = !image || !state.overlay;
  byId("map-note").hidden = vector;
  if (vector) host.append(el("p", { class: "note" }, `The ${response.channels.length} of ${response.of} channels whose attribution changes most.`));
}

function turnSample(step) {
  const list = inClass();
  if (list.length < 2) return;
  choose({ sample: list[(list.indexOf(state.sample) + step + list.length) % list.length] });
}

function setUpGallery() {
  if (!data.gallery.length) return;
  const names = select("gallery-sample", "sample", () =>
    inClass().map((i) => {
      const s = data.gallery[i];
      return [i, `${s.index}${s.name ? ` ${s.name}` : ""}${said(s) ? `: ${said(s)}` : ""}`];
    }),
  );
  on(["class"], () => {
    const list = inClass();
    if (list.length && !list.includes(state.sample)) state.sample = list[0];
    names();
  });
  on(["sample"], names);
  on(["layer", "class", "sample", "overlay", "opacity"], showSample);
  byId("previous").addEventListener("click", () => turnSample(-1));
  byId("next").addEventListener("click", () => turnSample(1));
  byId("stage").addEventListener("keydown", (e) => {
    if (e.key !== "ArrowLeft" && e.key !== "ArrowRight") return;
    e.preventDefault();
    turnSample(e.key === "ArrowLeft" ? -1 : 1);
  });
  byId("overlay").addEventListener("change", (e) => choose({ overlay: e.target.checked }));
  byId("opacity").addEventListener("input", (e) => {
    byId("opacity-value").textContent = `${e.target.value} %`;
    choose({ opacity: Number(e.target.value) });
  });
  const legend = byId("legend").getContext("2d");
  for (let i = 0; i < 256; i++) {
    legend.fillStyle = rgb(rampColour(RESPONSE, i / 255));
    legend.fillRect(i, 0, 1, 1);
  }
  showSample();
}
