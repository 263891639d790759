// Maps as tables of coloured cells, and maps over positions on a canvas.

// spec: { rows, columns: names; value(r, c), show(v), tip(r, c), pick(r, c), chosen(r, c), plain(r, c): not coloured, corner, tiny }.
function grid(host, spec) {
  if (!host) return () => {};
  const run = () => {
    const { rows, columns, value, show, tip: said, pick, chosen, corner, plain = () => false, tiny = false } = spec();
    const focused = host.contains(document.activeElement);
    const values = rows.flatMap((_, r) => columns.map((_, c) => (plain(r, c) ? null : value(r, c)))).filter(isNumber);
    const top = Math.max(...values, 0) || 1;
    const cells = [];
    const body = rows.map((name, r) => {
      const line = el("tr", {}, el("th", { scope: "row", title: name }, short(name, 150)));
      columns.forEach((_, c) => {
        const v = value(r, c);
        const label = said(r, c);
        const cell = el("td", { "aria-label": label.replaceAll("\n", ", "), "aria-selected": String(chosen(r, c)) });
        if (plain(r, c)) cell.textContent = tiny ? "" : show(v);
        else if (isNumber(v)) {
          const colour = rampColour(amountRamp(), v / top);
          cell.style.background = rgb(colour);
          cell.style.color = inkOn(colour);
          if (!tiny) cell.textContent = show(v);
        } else cell.textContent = "·";
        cell.classList.toggle("plain", plain(r, c));
        cell.addEventListener("click", () => pick(r, c));
        cells.push(tipped(cell, label));
        line.append(cell);
      });
      return line;
    });
    const heads = columns.map((name) => el("th", { scope: "col", title: name }, el("span", {}, short(name, tiny ? 90 : 110))));
    const head = el("thead", {}, el("tr", {}, el("td", {}, corner), ...heads));
    const table = el("table", { role: "grid", class: tiny ? "tiny" : null, "aria-label": host.dataset.label ?? corner }, head);
    table.append(el("tbody", {}, ...body));
    host.replaceChildren(table);
    if (!cells.length) return;
    roving(host, cells, columns.length);
    if (focused) cells[Math.min(Number(host.dataset.at) || 0, cells.length - 1)].focus({ preventScroll: true });
  };
  run();
  drawn.push(run);
  return run;
}

function smooth(values, h, w, height, width) {
  // Bilinear, with cell centres as in an image that is scaled up.
  const out = new Float32Array(height * width);
  for (let y = 0; y < height; y++) {
    const v = Math.min(h - 1, Math.max(0, ((y + 0.5) * h) / height - 0.5));
    const y0 = Math.floor(v), y1 = Math.min(h - 1, y0 + 1), fy = v - y0;
    for (let x = 0; x < width; x++) {
      const u = Math.min(w - 1, Math.max(0, ((x + 0.5) * w) / width - 0.5));
      const x0 = Math.floor(u), x1 = Math.min(w - 1, x0 + 1), fx = u - x0;
      const a = values[y0 * w + x0] * (1 - fx) + values[y0 * w + x1] * fx;
      const b = values[y1 * w + x0] * (1 - fx) + values[y1 * w + x1] * fx;
      out[y * width + x] = a * (1 - fy) + b * fy;
    }
  }
  return out;
}

function coloured(values, h, w, height, width, ramp) {
  // A canvas of values in [0, 1].
  const canvas = el("canvas", { width, height });
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const table = Array.from({ length: 256 }, (_, i) => rampColour(ramp, i / 255));
  smooth(values, h, w, height, width).forEach((v, i) => {
    image.data.set(table[Math.round(Math.min(1, Math.max(0, v)) * 255)], 4 * i);
    image.data[4 * i + 3] = 255;
  });
  context.putImageData(image, 0, 0);
  return canvas;
}

function positions(host) {
  const run = () => {
    const layer = data.layers[state.layer];
    const found = layer?.positions;
    if (!found) {
      host.replaceChildren(el("p", { class: "nothing" }, "This layer has no positions: its feature is a vector."));
      if (host.nextElementSibling) host.nextElementSibling.remove();
      return;
    }
    const [h, w] = found.size;
    const top = Math.max(...found.values);
    const at = found.values.indexOf(top);
    const where = h === 1 ? `position ${at % w}` : `row ${Math.floor(at / w)}, column ${at % w}`;
    const cell = h === 1 ? Math.max(2, Math.floor(1024 / w)) : Math.max(4, Math.floor(256 / Math.max(h, w)));
    const canvas = el("canvas", { class: "cells", width: w * cell, height: h === 1 ? 96 : h * cell, role: "img" });
    canvas.setAttribute("aria-label", `Share of the correction by position at ${layer.name}; largest ${pct(top)} at ${where}`);
    const context = canvas.getContext("2d");
    found.values.forEach((v, i) => {
      context.fillStyle = rgb(rampColour(amountRamp(), top ? v / top : 0));
      context.fillRect((i % w) * cell, Math.floor(i / w) * cell, cell, h === 1 ? 96 : cell);
    });
    const size = found.of.join(" × ");
    const shrunk = found.of.reduce((a, b) => a * b, 1) > h * w ? `, drawn as ${h} × ${w}` : "";
    host.replaceChildren(canvas, el("p", { class: "note" }, `${size} positions${shrunk}; the largest share is ${pct(top)}, at ${where}.`));
    const rows = found.values.map((v, i) => (h === 1 ? [i, v] : [Math.floor(i / w), i % w, v]));
    numbers(host, "Positions", h === 1 ? ["position", "share"] : ["row", "column", "share"], rows);
  };
  drawn.push(run);
  run();
  return run;
}
