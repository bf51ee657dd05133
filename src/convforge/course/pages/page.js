"use strict";
// Charts, sortable tables, filters. The only library is Vega, in the script before this one.
(() => {
  // Sorting: a click on a column's name, or Enter or Space on it; numbers by value, words as people sort them,
  // missing values last either way.
  const collator = new Intl.Collator(document.documentElement.lang, { numeric: true, sensitivity: "base" });

  function keyOf(row, column) {
    const cell = row.cells[column];
    if (cell.dataset.sort !== undefined && cell.dataset.sort !== "") {
      const number = Number(cell.dataset.sort);
      return Number.isNaN(number) ? cell.dataset.sort : number;
    }
    const text = cell.textContent.trim();
    return text === "" || text === "–" ? null : text;
  }

  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return collator.compare(String(a), String(b));
  }

  function sort(table, column) {
    const heads = [...table.tHead.rows[0].cells];
    const descending = heads[column].getAttribute("aria-sort") === "ascending";
    heads.forEach((head, i) => {
      head.setAttribute("aria-sort", i === column ? (descending ? "descending" : "ascending") : "none");
    });
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [keyOf(row, column), row]);
    rows.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return descending ? compare(b, a) : compare(a, b);
    });
    body.append(...rows.map(([, row]) => row));
  }

  for (const table of document.querySelectorAll("table[data-sortable]")) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => sort(table, column));
    });
  }

  // Filters: a row stays when it has every word that was typed.
  for (const input of document.querySelectorAll("input[data-filter]")) {
    const rows = [...document.getElementById(input.dataset.filter).tBodies[0].rows];
    const texts = rows.map((row) => [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase());
    const output = input.parentElement.querySelector("output");
    input.parentElement.hidden = false;
    const filter = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      rows.forEach((row, i) => {
        row.hidden = !words.every((word) => texts[i].includes(word));
        shown += row.hidden ? 0 : 1;
      });
      const said = shown === rows.length ? output.dataset.all : output.dataset.some;
      output.textContent = said.replace("{k}", shown).replace("{n}", rows.length);
    };
    input.addEventListener("input", filter);
    filter();
  }

  // Charts, one after the other, so that the page answers while they are drawn.
  const plots = [...document.querySelectorAll(".plot")];
  const charts = new Map();
  const begun = new Map();
  const options = {
    renderer: "svg",
    actions: false,
    ast: true,
    defaultStyle: false,
    tooltip: { disableDefaultStyle: true },
  };

  async function draw(place) {
    try {
      const spec = JSON.parse(document.getElementById(place.dataset.spec).textContent);
      const result = await vegaEmbed(place, spec, options);
      charts.set(place, result.view);
    } catch (fault) {
      place.classList.add("failed");
      place.textContent = place.dataset.undrawn;
      console.error(fault);
    }
  }

  // Each chart is drawn once: at its turn, or earlier for the printer.
  function drawn(place) {
    if (!begun.has(place)) begun.set(place, draw(place));
    return begun.get(place);
  }

  async function drawAll() {
    for (const place of plots) {
      await drawn(place);
      await new Promise((resolve) => setTimeout(resolve));
    }
    document.documentElement.dataset.charts = "drawn";
  }

  // Paper: every chart as wide as its place there, and folds that are short are opened. Drawing waits for promises
  // alone, which the browser settles between this event and the printing.
  const PAPER_PX = 700;
  const PAPER_GAP_PX = 14;

  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details[data-print]:not([open])")) {
      details.open = true;
      details.dataset.opened = "";
    }
    for (const place of plots) {
      const alone = place.closest(".charts").classList.contains("n1");
      const width = alone ? PAPER_PX : (PAPER_PX - PAPER_GAP_PX) / 2;
      drawn(place).then(() => charts.get(place)?.width(width).run());
    }
  });

  addEventListener("afterprint", () => {
    for (const details of document.querySelectorAll("details[data-opened]")) {
      details.open = false;
      delete details.dataset.opened;
    }
    dispatchEvent(new Event("resize"));
  });

  // A script that prints leaves the browser no moment for promises, so it prints once all is drawn.
  const print = window.print.bind(window);
  window.print = () => {
    Promise.all(plots.map(drawn)).then(print);
  };

  // Points by the keyboard: arrows go along a line and between lines; the tooltip is shown and announced.
  const reading = document.getElementById("reading");
  const read = new Map();

  function* told(mark) {
    for (const item of mark.items) {
      if (mark.marktype === "group") for (const inner of item.items) yield* told(inner);
      else if (item.tooltip && ["symbol", "rect"].includes(mark.marktype)) yield item;
    }
  }

  function middle(item) {
    return { x: (item.bounds.x1 + item.bounds.x2) / 2, y: (item.bounds.y1 + item.bounds.y2) / 2 };
  }

  // The points of a chart by line, in the order of their marks; lines without a name differ in shape.
  function linesOf(view) {
    const lines = new Map();
    for (const item of told(view.scenegraph().root)) {
      const name = item.datum.method ?? item.shape;
      if (!lines.has(name)) lines.set(name, []);
      lines.get(name).push(item);
    }
    const found = [...lines.values()];
    for (const line of found) {
      if (line[0].mark.marktype === "symbol") line.sort((a, b) => middle(a).x - middle(b).x);
    }
    return found;
  }

  function nearest(line, to) {
    const axis = to.mark.marktype === "symbol" ? "x" : "y";
    const away = (item) => Math.abs(middle(item)[axis] - middle(to)[axis]);
    return line.reduce((best, item) => (away(item) < away(best) ? item : best));
  }

  function next(lines, item, key) {
    const i = lines.findIndex((line) => line.includes(item));
    if (i < 0) return lines[0][0];
    const [line, at] = [lines[i], lines[i].indexOf(item)];
    switch (key) {
      case "ArrowRight": return line[at + 1] ?? lines[i + 1]?.[0] ?? item;
      case "ArrowLeft": return line[at - 1] ?? lines[i - 1]?.at(-1) ?? item;
      case "ArrowDown": return lines[i + 1] ? nearest(lines[i + 1], item) : item;
      case "ArrowUp": return lines[i - 1] ? nearest(lines[i - 1], item) : item;
      case "Home": return line[0];
      case "End": return line.at(-1);
    }
  }

  function forget(place) {
    const item = read.get(place);
    if (!item) return;
    read.delete(place);
    item._svg?.classList.remove("read");
    charts.get(place).tooltip()(null, null, item, null);
    reading.textContent = "";
  }

  // Shows the tooltip beside the point; not while the point is scrolled out of the window.
  function show(place, item) {
    const box = item._svg.getBoundingClientRect();
    const at = { clientX: box.x + box.width / 2, clientY: box.y + box.height / 2 };
    const seen = box.bottom > 0 && box.top < innerHeight;
    charts.get(place).tooltip()(null, at, item, seen ? item.tooltip : null);
  }

  addEventListener("scroll", () => read.forEach((item, place) => show(place, item)), { passive: true });

  function tell(place, lines, item) {
    forget(place);
    read.set(place, item);
    item._svg.classList.add("read");
    item._svg.scrollIntoView({ block: "nearest", inline: "nearest" });
    show(place, item);
    const every = lines.flat();
    const words = Object.entries(item.tooltip).map(([name, value]) => `${name}: ${value}`);
    reading.textContent = `${words.join("; ")} (${every.indexOf(item) + 1}/${every.length})`;
  }

  for (const place of plots) {
    place.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !charts.has(place)) return;
      if (event.key === "Escape") forget(place);
      if (!["ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp", "Home", "End"].includes(event.key)) return;
      event.preventDefault();
      const lines = linesOf(charts.get(place));
      if (lines.length) tell(place, lines, next(lines, read.get(place), event.key));
    });
    place.addEventListener("blur", () => forget(place));
  }

  // Legends: a press hides or shows a method in all charts of its run.
  for (const legend of document.querySelectorAll(".legend")) {
    const run = document.getElementById(legend.dataset.run);
    legend.addEventListener("click", (event) => {
      const pressed = event.target.closest("button");
      if (!pressed) return;
      const show = pressed.getAttribute("aria-pressed") === "false";
      const buttons = [...run.querySelectorAll(".legend button")];
      for (const button of buttons) {
        if (button.dataset.method === pressed.dataset.method) button.setAttribute("aria-pressed", String(show));
      }
      const hidden = [...new Set(
        buttons.filter((b) => b.getAttribute("aria-pressed") === "false").map((b) => b.dataset.method),
      )];
      for (const place of run.querySelectorAll(".plot[data-hides]")) {
        const view = charts.get(place);
        if (view) view.signal("hidden", hidden).runAsync();
      }
    });
  }

  drawAll();
})();
