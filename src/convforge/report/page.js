"use strict";
// Charts, sortable tables, filters. No library but Vega, which stands in the script before this one.
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
  const charts = new Map();
  const options = {
    renderer: "svg",
    actions: false,
    ast: true,
    defaultStyle: false,
    tooltip: { disableDefaultStyle: true },
  };

  async function draw(place) {
    const spec = JSON.parse(document.getElementById(place.dataset.spec).textContent);
    const result = await vegaEmbed(place, spec, options);
    charts.set(place, result.view);
  }

  async function drawAll() {
    for (const place of document.querySelectorAll(".plot")) {
      try {
        await draw(place);
      } catch (fault) {
        place.classList.add("failed");
        place.textContent = place.dataset.undrawn;
        console.error(fault);
      }
      await new Promise((resolve) => setTimeout(resolve));
    }
    document.documentElement.dataset.charts = "drawn";
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
