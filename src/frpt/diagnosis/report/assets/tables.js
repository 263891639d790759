// Tables: sorting by their header buttons, export as CSV, and the numbers behind a plot.

const keyOf = (cell) => cell.dataset.v ?? cell.textContent;

function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.firstElementChild.addEventListener("click", () => {
      const numeric = head.classList.contains("num");
      const was = head.getAttribute("aria-sort");
      const down = was ? was === "ascending" : numeric; // numbers: largest first
      heads.forEach((h) => h.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const order = (a, b) => {
        const [x, y] = [keyOf(a.cells[column]), keyOf(b.cells[column])];
        if (!numeric) return x.localeCompare(y, undefined, { numeric: true }) * (down ? -1 : 1);
        if (x === "" || y === "") return (x === "") - (y === ""); // what is missing comes last
        return (Number(x) - Number(y)) * (down ? -1 : 1);
      };
      const body = table.tBodies[0];
      if (!body.querySelector(".empty")) body.append(...[...body.rows].sort(order));
    });
  });
  return table;
}

function csv(table) {
  const quoted = (cell) => {
    const text = keyOf(cell);
    const safe = /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text; // no formulas
    return `"${safe.replaceAll('"', '""')}"`;
  };
  const rows = [table.tHead.rows[0], ...[...table.tBodies[0].rows].filter((r) => !r.hidden)];
  return rows.map((r) => [...r.cells].map(quoted).join(",")).join("\r\n") + "\r\n";
}

function download(name, text) {
  const url = URL.createObjectURL(new Blob(["\ufeff", text], { type: "text/csv" }));
  const link = el("a", { href: url, download: `${name}.csv` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

function numbers(host, label, columns, rows) {
  // A closed "Numbers" below the host; the table is built when it is opened, and again when the plot changes.
  let box = host.nextElementSibling;
  if (!box || !box.classList.contains("numbers")) {
    box = el("details", { class: "numbers" }, el("summary", {}, "Numbers", el("span", { class: "sr" }, `: ${label}`)));
    box.append(el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${label}, numbers` }));
    box.addEventListener("toggle", () => box.open && box.build());
    host.after(box);
  }
  box.build = () => {
    const numeric = columns.map((_, i) => rows.every((r) => typeof r[i] !== "string"));
    const cell = (v, i) =>
      fill(document.createElement(i ? "td" : "th"), { class: numeric[i] ? "num" : null, scope: i ? null : "row" }, [
        numeric[i] ? num(v, 4) : v,
      ]);
    const body = rows.map((r) => {
      const cells = r.map(cell);
      cells.forEach((c, i) => numeric[i] && (c.dataset.v = isNumber(r[i]) ? r[i] : ""));
      return el("tr", {}, ...cells);
    });
    const heads = columns.map((c, i) =>
      el("th", { scope: "col", class: numeric[i] ? "num" : null }, el("button", { type: "button" }, c)),
    );
    const table = el("table", {}, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...body));
    box.lastElementChild.replaceChildren(sortable(table));
  };
  if (box.open) box.build();
}

function setUpTables() {
  document.querySelectorAll(".table").forEach((box) => {
    const table = sortable(box.querySelector("table"));
    const button = box.querySelector(".csv");
    button.addEventListener("click", () => download(button.dataset.name, csv(table)));
  });
  const here = new Set(data.gallery.map((s) => s.index));
  document.querySelectorAll("#table-samples tr[data-sample]").forEach((row) => {
    const index = Number(row.dataset.sample);
    if (!here.has(index)) return;
    const cell = row.cells[0];
    cell.dataset.v = index;
    const look = el("button", { type: "button", class: "look", "aria-label": `Sample ${index}: show in the gallery` }, cell.textContent);
    look.addEventListener("click", () => {
      choose({ class: -1, sample: data.gallery.findIndex((s) => s.index === index) });
      byId("stage").scrollIntoView({ block: "center" });
      byId("stage").focus({ preventScroll: true });
    });
    cell.replaceChildren(look);
  });
  on(["layer"], markLayers);
  on(["class"], markClasses);
  markLayers();
  markClasses();
}

function markLayers() {
  document.querySelectorAll("#table-layers tr[data-layer]").forEach((row) => {
    row.classList.toggle("chosen", Number(row.dataset.layer) === state.layer);
  });
}

function markClasses() {
  document.querySelectorAll("#table-classes tr[data-class]").forEach((row) => {
    row.classList.toggle("chosen", Number(row.dataset.class) === state.class);
  });
  const rows = [...document.querySelectorAll("#table-samples tr[data-class]")];
  rows.forEach((row) => (row.hidden = state.class >= 0 && Number(row.dataset.class) !== state.class));
  const note = byId("samples-shown");
  if (note) note.textContent = `${rows.filter((r) => !r.hidden).length} of ${rows.length} rows`;
}
