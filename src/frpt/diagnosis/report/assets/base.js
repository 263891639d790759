// What the other parts share: data, elements, numbers, colours, the selection, tooltips.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((c) => c !== null && c !== undefined));
  return node;
}

const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// Numbers and names.
const isNumber = (v) => typeof v === "number" && Number.isFinite(v);
const minus = (text) => text.replace("-", "−");

function num(v, digits = 3) {
  if (!isNumber(v)) return "–";
  if (v !== 0 && (Math.abs(v) < 1e-3 || Math.abs(v) >= 1e5)) return minus(v.toExponential(digits - 1));
  return minus(String(Number(v.toPrecision(digits))));
}

function pct(v) { // as percent() in frpt/common/text.py
  if (!isNumber(v)) return "–";
  const size = Math.abs(100 * v);
  const sign = v < 0 ? "−" : "";
  if (size > 1000) return `${sign ? "less" : "more"} than ${sign}1,000 %`;
  if (size === 0) return "0 %";
  if (size >= 100) return `${sign}${size.toFixed(0).replace("1000", "1,000")} %`;
  const shown = Math.min(size, 99.9).toFixed(size >= 1 ? 1 : 2);
  return `${Number(shown) ? sign : ""}${shown} %`;
}

const className = (id) => (id < 0 ? "–" : data.names[id] ?? `class ${id}`);
const layerName = (i) => data.layers[i].name;

// How many Latin letters a name is as wide as: ideographs and the like count twice.
const lettersWide = (text) => Array.from(text).reduce((n, c) => n + (c.codePointAt(0) > 0x1100 && !/[…→−–]/.test(c) ? 2 : 1), 0);

function short(text, width, size = 12) {
  // Cut a name in the middle: its ends tell names apart.
  const letters = Array.from(text);
  const share = lettersWide(text) / Math.max(1, letters.length);
  const room = Math.max(4, Math.floor(width / (size * 0.56 * share)));
  if (letters.length <= room) return text;
  const head = Math.ceil((room - 1) / 2);
  return letters.slice(0, head).join("") + "…" + letters.slice(letters.length - (room - 1 - head)).join("");
}

// Colours. Ramps are lists of [r, g, b]; warm is strong, cool is weak.
const hex = (text) => [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
const RESPONSE = ["#313695", "#4575b4", "#74add1", "#abd9e9", "#fee090", "#fdae61", "#f46d43", "#d73027", "#a50026"].map(hex);
const AMOUNT = {
  light: ["#fdf6e9", "#fbe3bd", "#f7c07b", "#ee9148", "#d95f2b", "#b03a1c", "#7f1d12"].map(hex),
  dark: ["#23262e", "#43302c", "#6e3a26", "#a04e22", "#cf7530", "#eba659", "#fbdca0"].map(hex),
};

function rampColour(ramp, share) {
  const t = Math.min(1, Math.max(0, share)) * (ramp.length - 1);
  const i = Math.min(ramp.length - 2, Math.floor(t));
  return ramp[i].map((v, k) => Math.round(v + (ramp[i + 1][k] - v) * (t - i)));
}

const rgb = (c) => `rgb(${c[0]} ${c[1]} ${c[2]})`;
const luminance = (c) => {
  const [r, g, b] = c.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const inkOn = (c) => (luminance(c) > 0.179 ? "#000000" : "#ffffff"); // 4.58 to 1 at least

// The theme: the system's, or the reader's choice.
const THEMES = ["system", "light", "dark"];
const systemDark = matchMedia("(prefers-color-scheme: dark)");
let printing = false;
let theme = "system";
const isDark = () => !printing && (theme === "system" ? systemDark.matches : theme === "dark");
const amountRamp = () => AMOUNT[isDark() ? "dark" : "light"];

function setTheme(name) {
  theme = name;
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  byId("theme-name").textContent = name;
  emit("theme");
}

// What the reader has selected. Listeners run for the keys they name.
const state = { layer: data.start, class: -1, pair: 0, sample: 0, overlay: true, opacity: 55 };
const listeners = [];
const on = (keys, run) => listeners.push({ keys, run });
const emit = (...keys) => listeners.forEach((l) => l.keys.some((k) => keys.includes(k)) && l.run());

function choose(changes) {
  const changed = Object.keys(changes).filter((k) => state[k] !== changes[k]);
  Object.assign(state, changes);
  if (changed.length) emit(...changed);
}

function select(id, key, options) {
  // Binds a select to a key of the state; options: () => [value, text] pairs.
  const node = byId(id);
  if (!node) return;
  const show = () => {
    const list = options();
    if (!list.some(([v]) => v === state[key])) list.push([state[key], key === "class" ? className(state[key]) : "–"]);
    node.replaceChildren(...list.map(([v, text]) => el("option", { value: v }, text)));
    node.value = state[key];
    node.disabled = list.length < 2;
  };
  node.addEventListener("change", () => choose({ [key]: Number(node.value) }));
  show();
  return show;
}

// One tooltip for everything: shown under the pointer, or beside what has the focus.
const tip = byId("tip");
const tips = new WeakMap();

function showTip(text, node, event) {
  tip.replaceChildren(...text.split("\n").map((line) => el("div", {}, line)));
  tip.hidden = false;
  const box = node.getBoundingClientRect();
  const [x, y] = event ? [event.clientX, event.clientY] : [box.left + box.width / 2, box.top];
  const width = tip.offsetWidth;
  tip.style.left = `${Math.max(8, Math.min(document.documentElement.clientWidth - width - 8, x - width / 2))}px`;
  const above = y - tip.offsetHeight - 12;
  tip.style.top = `${above > 8 ? above : y + 18}px`;
}

const hideTip = () => (tip.hidden = true);

function settleTip() {
  // When the pointer has gone: the tooltip of what the keyboard is on, or none.
  const node = document.activeElement;
  if (tips.has(node) && node.matches(":focus-visible")) showTip(tips.get(node), node);
  else hideTip();
}

function tipped(node, text) {
  tips.set(node, text);
  node.addEventListener("pointerenter", (e) => showTip(text, node, e));
  node.addEventListener("pointermove", (e) => showTip(text, node, e));
  node.addEventListener("pointerleave", settleTip);
  node.addEventListener("focus", () => showTip(text, node));
  node.addEventListener("blur", hideTip);
  return node;
}

addEventListener("keydown", (e) => e.key === "Escape" && hideTip());
addEventListener("scroll", () => tip.hidden || settleTip(), { passive: true, capture: true });

function roving(host, marks, columns = 1) {
  // One tab stop for many marks: arrow keys, Home and End move among them, Enter and Space pick.
  let at = Math.min(Number(host.dataset.at) || 0, marks.length - 1);
  marks.forEach((mark, i) => mark.setAttribute("tabindex", i === at ? "0" : "-1"));
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
  marks.forEach((mark, i) => {
    mark.addEventListener("focus", () => {
      marks[at].setAttribute("tabindex", "-1");
      mark.setAttribute("tabindex", "0");
      host.dataset.at = at = i;
    });
    mark.addEventListener("keydown", (e) => {
      let to = e.key in steps ? i + steps[e.key] : e.key === "Home" ? 0 : e.key === "End" ? marks.length - 1 : null;
      if (e.key === "Enter" || e.key === " ") mark.dispatchEvent(new MouseEvent("click", { bubbles: true }));
      else if (to === null) return;
      e.preventDefault();
      e.stopPropagation();
      if (to !== null && marks[to]) marks[to].focus();
    });
  });
}
